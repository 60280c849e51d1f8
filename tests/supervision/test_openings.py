"""Files in folders of a process' user: whatever the user puts there, nothing of root's is read, changed or created."""

from __future__ import annotations

import contextlib
import os
import random
import shutil
import stat
import struct
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from conftest import IS_PROOF, Serve, wait_for
from requirements import ROOT_USER, missing_part

from supervisor.children.openings import (
    FileCredentials,
    UnsafePathError,
    acting_as,
    is_safe,
    open_input,
    open_log,
    open_settings,
)
from supervisor.processes.logs.access import rights
from supervisor.processes.logs.files import LogFile, log_sizes, tail
from supervisor.processes.logs.rotation import Rotation, rotate

pytestmark = pytest.mark.needs(ROOT_USER)

NOBODY = FileCredentials(65534, 65534, (65534,))
PROC = Path("/proc/self")
SECRET = b"root's secret\n" * 100


@pytest.fixture
def users(open_folder: Path) -> Path:
    """A folder of `nobody`, in one of root's."""
    folder = open_folder / "home"
    folder.mkdir()
    os.chown(folder, NOBODY.uid, NOBODY.gid)
    return folder


@pytest.fixture
def roots(tmp_path: Path) -> Iterator[Path]:
    """A folder that only root may enter, with a file; both must stay as they are."""
    folder = tmp_path / "roots"
    folder.mkdir(mode=0o700)
    file = folder / "web.log"
    file.write_bytes(SECRET)
    file.chmod(0o600)
    before = file.stat()
    yield folder
    assert file.read_bytes() == SECRET
    assert [entry.name for entry in folder.iterdir()] == ["web.log"]
    after = file.stat()
    assert (after.st_mtime_ns, after.st_mode, after.st_uid) == (before.st_mtime_ns, before.st_mode, 0)


def own(path: Path) -> Path:
    os.chown(path, NOBODY.uid, NOBODY.gid, follow_symlinks=False)
    return path


def own_folder(path: Path) -> Path:
    path.mkdir()
    return own(path)


def link(path: Path, target: Path | str) -> Path:
    path.symlink_to(target)
    return own(path)


def as_nobody_file(path: Path, content: bytes = b"") -> Path:
    path.write_bytes(content)
    path.chmod(0o600)
    return own(path)


@contextlib.contextmanager
def known_to_logs(path: Path) -> Iterator[str]:
    rights.take_over({str(path): NOBODY})
    yield str(path)
    rights.take_over({str(path): None})


def test_new_log_in_the_users_folder_belongs_to_the_user(users: Path) -> None:
    os.close(open_log(str(users / "logs" / "web.log"), NOBODY, False))
    for path in (users / "logs", users / "logs" / "web.log"):
        assert (path.stat().st_uid, path.stat().st_gid) == (NOBODY.uid, NOBODY.gid)


def test_new_log_in_roots_folder_belongs_to_root(open_folder: Path) -> None:
    os.close(open_log(str(open_folder / "logs" / "web.log"), NOBODY, False))
    assert (open_folder / "logs" / "web.log").stat().st_uid == 0


def test_link_of_root_in_roots_folder_is_followed(open_folder: Path) -> None:
    (open_folder / "real").mkdir()
    (open_folder / "link").symlink_to("real")
    os.close(open_log(str(open_folder / "link" / "web.log"), None, False))
    assert (open_folder / "real" / "web.log").exists()
    assert is_safe(str(open_folder / "link"))


@pytest.mark.parametrize("opened", [open_input, open_settings, lambda path, who: open_log(path, who, False)])
def test_root_itself_does_not_use_a_folder_of_a_user(users: Path, opened: Callable[..., int]) -> None:
    as_nobody_file(users / "web.log")
    with pytest.raises(UnsafePathError, match=f"the folder {users} belongs to nobody"):
        opened(str(users / "web.log"), None)
    shared = users.parent / "shared"
    shared.mkdir()
    shared.chmod(0o777)
    with pytest.raises(UnsafePathError, match=f"in the folder {shared} of root others may write"):
        opened(str(shared / "web.log"), None)


def test_folder_of_a_group_or_with_an_access_control_list_is_not_safe(open_folder: Path) -> None:
    shared = open_folder / "shared"
    shared.mkdir()
    (shared / "logs").mkdir()
    shared.chmod(0o775)
    assert is_safe(shared / "logs")  # of the group root
    os.chown(shared, 0, NOBODY.gid)
    assert not is_safe(shared / "logs")
    os.chown(shared, 0, 0)
    entries = [
        (0x01, 7, 2**32 - 1),
        (0x02, 7, NOBODY.uid),
        (0x04, 5, 2**32 - 1),
        (0x10, 7, 2**32 - 1),
        (0x20, 5, 2**32 - 1),
    ]
    acl = struct.pack("<I", 2) + b"".join(struct.pack("<HHI", *entry) for entry in entries)
    try:
        os.setxattr(shared, "system.posix_acl_access", acl)
    except OSError:
        missing_part("access control lists", "not in Debian: put the folder of pytest on a file system that has them")
    assert not is_safe(shared / "logs")


@pytest.mark.parametrize("opened", [open_input, open_settings, lambda path, who: open_log(path, who, False)])
@pytest.mark.parametrize("component", ["folder", "file"])
def test_link_to_what_only_root_may_use_is_refused(
    users: Path, roots: Path, opened: Callable[..., int], component: str
) -> None:
    if component == "folder":
        link(users / "logs", roots)
    else:
        own(shutil.copytree(users, users / "logs"))
        link(users / "logs" / "web.log", roots / "web.log")
    with pytest.raises(OSError, match=r"Permission denied|Too many levels"):
        opened(str(users / "logs" / "web.log"), NOBODY)


@pytest.mark.parametrize(
    "target",
    [PROC / "environ", PROC / "root" / "etc" / "shadow", PROC / "fd" / "0", "/proc/1/environ", "/sys/kernel/notes"],
    ids=str,
)
@pytest.mark.parametrize("opened", [open_input, open_settings])
def test_link_into_proc_is_refused(users: Path, opened: Callable[..., int], target: str | Path) -> None:
    """The kernel lets every thread of the server read the server's own entries."""
    link(users / "file", target)
    with pytest.raises(OSError, match=r"Permission denied|Too many levels|no regular file|No such file"):
        opened(str(users / "file"), NOBODY)


def test_fifo_and_device_never_block(users: Path) -> None:
    os.mkfifo(users / "fifo")
    own(users / "fifo")
    os.mknod(users / "device", 0o666 | stat.S_IFCHR, os.makedev(1, 5))
    begun = time.monotonic()
    with pytest.raises(OSError, match="no regular file"):
        open_settings(str(users / "fifo"), NOBODY)
    for opened in (open_input, open_settings):
        with pytest.raises(OSError, match="no regular file"):
            opened(str(users / "device"), NOBODY)
    with pytest.raises(OSError, match=r"No such device|no regular file"):
        open_log(str(users / "fifo"), NOBODY, False)  # nobody reads it
    for name in ("fifo", "device"):
        with known_to_logs(users / name) as path:
            assert tail(Path(path), 10) == (b"", 0)
            assert rotate(LogFile(path, 1, 1)).result is Rotation.MISSING
    assert time.monotonic() - begun < 5


@pytest.mark.parametrize("component", ["folder", "file", "backup"])
def test_logs_are_neither_read_nor_rotated_through_a_link(users: Path, roots: Path, component: str) -> None:
    folder = users / "logs"
    if component == "folder":
        link(folder, roots)
    else:
        own_folder(folder)
        if component == "file":
            link(folder / "web.log", roots / "web.log")
        else:
            as_nobody_file(folder / "web.log", b"x" * 100)
            link(folder / "web.log.1", roots / "web.log")
            link(folder / "web.log.0", roots / "web.log")
    with known_to_logs(folder / "web.log") as path:
        if component == "backup":
            assert b"secret" not in tail(Path(path), 10)[0]
        else:
            with pytest.raises(OSError, match=r"symbolic links|Permission denied"):
                tail(Path(path), 10)
        assert log_sizes([LogFile(path, 1, 1)]).get(path, 0) in (0, 100)
        rotated = rotate(LogFile(path, 1, 2)).result
        assert (rotated is Rotation.ROTATED) == (component == "backup")


def test_rotation_in_the_users_folder_is_the_users(users: Path) -> None:
    as_nobody_file(users / "web.log", b"line\n" * 100)
    with known_to_logs(users / "web.log") as path:
        assert rotate(LogFile(path, 100, 2)).result is Rotation.ROTATED
        assert (users / "web.log.1").read_bytes() == b"line\n" * 100
        assert (users / "web.log.1").stat().st_uid == NOBODY.uid
        assert tail(Path(path), 5) == (b"", 0)


def test_identity_is_that_of_the_thread_alone(users: Path, roots: Path) -> None:
    entered, leave = threading.Event(), threading.Event()
    problems: list[BaseException] = []

    def act() -> None:
        with acting_as(NOBODY):
            try:
                (roots / "web.log").read_bytes()
            except PermissionError as problem:
                problems.append(problem)
            entered.set()
            leave.wait(10)

    thread = threading.Thread(target=act)
    thread.start()
    entered.wait(10)
    assert (roots / "web.log").read_bytes() == SECRET  # this thread is root
    leave.set()
    thread.join()
    assert len(problems) == 1


def exchange(folder: Path, roots: Path, generator: random.Random) -> None:
    """Puts something else in the place of a component, as `nobody`."""
    path = generator.choice([folder, folder / "web.log", folder / "web.log.1"])
    with acting_as(NOBODY), contextlib.suppress(OSError):
        if path.is_symlink() or not path.is_dir():
            path.unlink(missing_ok=True)
        else:
            shutil.rmtree(path)
        kind = generator.choice(["link", "proc", "fifo", "folder", "file"])
        if kind == "link":
            path.symlink_to(roots if path == folder else roots / "web.log")
        elif kind == "proc":
            path.symlink_to(PROC / "root" / roots.relative_to("/") if path == folder else PROC / "environ")
        elif kind == "fifo":
            os.mkfifo(path)
        elif kind == "folder" or path == folder:
            path.mkdir(parents=True)
        else:
            path.write_bytes(b"x" * 200)


def test_random_exchanges_beside_a_running_server(serve: Serve, users: Path, roots: Path) -> None:
    folder = users / "logs"
    own_folder(folder)
    spec = {
        "command": ["sh", "-c", "while echo 0123456789; do sleep 0.01; done"], "user": "nobody",
        "stdout-logfile": str(folder / "web.log"), "log-max-bytes": 100, "log-backups": 2, "restart": "never",
    }  # fmt: skip
    server = serve({"web": spec})
    generator = random.Random(25)
    for number in range(1000 if IS_PROOF else 100):
        exchange(folder, roots, generator)
        if number % 10 == 0:
            server.do("start", "web")
        elif number % 10 == 5:
            server.do("stop", "web")
        answer = server.get("/api/v1/processes/logs?name=web")
        assert b"secret" not in answer.body
        assert b"PILOTHOUSE" not in answer.body
        assert server.get("/healthz").status == 200
    server.do("stop", "web")


def test_log_that_cannot_be_opened_safely_fails_the_start_with_the_folder_and_its_owner(
    serve: Serve, users: Path
) -> None:
    server = serve({"web": {"command": "sleep 1000", "stdout-logfile": str(users / "web.log")}})
    assert server.do("start", "web").status == 500
    assert f"the folder {users} belongs to nobody" in server.info("web")["failedErrorLog"]
    assert not (users / "web.log").exists()


def test_env_file_that_is_a_fifo_holds_no_worker(serve: Serve, users: Path) -> None:
    os.mkfifo(users / ".env")
    own(users / ".env")
    names = [f"p{number}" for number in range(8)]
    spec = {"command": "sleep 1000", "user": "nobody", "env-file": str(users / ".env")}
    server = serve(dict.fromkeys(names, spec))
    begun = time.monotonic()
    for name in names:
        answer = server.do("start", name)
        assert answer.status in (400, 500)
        assert "is no regular file" in answer.body.decode()
    assert time.monotonic() - begun < 5


def test_directory_of_the_user_may_be_a_link(serve: Serve, users: Path) -> None:
    own_folder(users / "releases")
    link(users / "current", "releases")
    log = users / "web.log"
    server = serve({
        "web": {"command": "pwd", "user": "nobody", "directory": str(users / "current"), "stdout-logfile": str(log)}
    })  # fmt: skip
    assert server.do("start", "web").status == 200
    wait_for(lambda: log.exists() and log.read_text() == f"{users}/releases\n")
