"""Each component of each file of a process, exchanged by its user for something else, at each use of the file.

Whatever it is exchanged for, nothing of root's is read, changed, created or deleted, and no call waits.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import shutil
import stat
import time
from collections.abc import Iterator
from itertools import product
from pathlib import Path
from typing import Any

import pytest
from conftest import IS_PROOF, Serve, Server
from requirements import ROOT_USER

from supervisor.children.openings import FileCredentials
from supervisor.processes.logs import rotation
from supervisor.processes.logs.access import rights
from supervisor.processes.logs.files import LogFile, LogFiles, log_sizes, tail
from supervisor.processes.logs.rotation import rotate

pytestmark = pytest.mark.needs(ROOT_USER)

NOBODY, DAEMON = FileCredentials(65534, 65534, (65534,)), 1
SECRET = "root's secret"
CONTENT = f"VALUE={SECRET}\n" * 20
KINDS = ("link", "proc link", "fifo", "device", "foreign")
FOLDERS = ("outer", "inner")
PROPERTIES = ("stdout-logfile", "stderr-logfile", "stdin", "env-file", "directory")
SERVED_KINDS = KINDS if IS_PROOF else ("link", "fifo")


def components(name: str) -> tuple[str, ...]:
    return FOLDERS if name == "directory" else (*FOLDERS, "file")


EXCHANGES = [f"{name}: {part}: {kind}" for name in PROPERTIES for part, kind in product(components(name), SERVED_KINDS)]
LOG_EXCHANGES = list(product((*FOLDERS, "file", "file.1", "file.2"), KINDS))
ACCEPTED = "stdin: file: fifo"
"""It is a FIFO of the user, from which a process may read."""


def snapshot(folder: Path) -> dict[str, tuple[Any, ...]]:
    found = {}
    for path in (folder, *folder.rglob("*")):
        facts = path.lstat()
        content = path.read_bytes() if stat.S_ISREG(facts.st_mode) else b""
        found[str(path)] = (facts.st_mode, facts.st_uid, facts.st_mtime_ns, facts.st_ino, content)
    return found


@pytest.fixture
def roots(tmp_path: Path) -> Iterator[Path]:
    """What the links lead to: folders and files of root's, which must stay as they are."""
    folder = tmp_path / "roots"
    (folder / "inner").mkdir(parents=True)
    for path in (folder / "file", folder / "inner" / "file", folder / "inner" / "file.1"):
        path.write_text(CONTENT)
        path.chmod(0o600)
    folder.chmod(0o700)
    before = snapshot(folder)
    yield folder
    assert snapshot(folder) == before


@pytest.fixture
def users(open_folder: Path) -> Path:
    home = open_folder / "home"
    home.mkdir()
    own(home)
    return home


def own(path: Path, uid: int = NOBODY.uid) -> Path:
    os.chown(path, uid, uid, follow_symlinks=False)
    return path


def fill(home: Path, content: str = "VALUE=mine\n" * 20) -> Path:
    """Makes `outer/inner` of the user with a file and its backups; returns the file."""
    home.mkdir(exist_ok=True)
    for folder in (home, home / "outer", home / "outer" / "inner"):
        folder.mkdir(exist_ok=True)
        own(folder)
    for name in ("file", "file.1", "file.2"):
        (home / "outer" / "inner" / name).write_text(content)
        own(home / "outer" / "inner" / name)
    return home / "outer" / "inner" / "file"


@contextlib.contextmanager
def private_files() -> Iterator[None]:
    """What is made meanwhile is its owner's alone from the beginning."""
    before = os.umask(0o077)
    try:
        yield
    finally:
        os.umask(before)


@private_files()
def exchange(home: Path, component: str, kind: str, roots: Path) -> None:
    """Puts something else in the place of a component."""
    path = {"outer": home / "outer", "inner": home / "outer" / "inner"}.get(component)
    is_folder = path is not None
    path = path or home / "outer" / "inner" / component
    while is_folder and path.exists():
        with contextlib.suppress(FileNotFoundError):  # the server rotates a file in it meanwhile
            shutil.rmtree(path)
    if not is_folder:
        path.unlink(missing_ok=True)
    target = {"outer": roots, "inner": roots / "inner"}.get(component, roots / "inner" / "file")
    if kind == "link":
        path.symlink_to(target)
    elif kind == "proc link":
        path.symlink_to(f"/proc/self/root{target}")
    elif kind == "fifo":
        os.mkfifo(path)
    elif kind == "device":
        os.mknod(path, 0o666 | stat.S_IFCHR, os.makedev(1, 5))
    elif is_folder:
        shutil.copytree(roots if component == "outer" else roots / "inner", path)
        path.chmod(0o700)
    else:
        path.write_text(CONTENT)
        path.chmod(0o600)
    own(path, DAEMON if kind == "foreign" else NOBODY.uid)


# The files of logs, by the functions that use them


@contextlib.contextmanager
def accessed_as_nobody(path: Path) -> Iterator[LogFile]:
    rights.take_over({str(path): NOBODY})
    yield LogFile(str(path), 100, 2)
    rights.take_over({str(path): None})


async def _follow(file: LogFile) -> bytes:
    logs = LogFiles(lambda: [file])
    text, place = await logs.begin(file.path, 100)
    return text + await logs.read_on(file.path, place)


async def _download(file: LogFile) -> bytes:
    return b"".join([piece async for piece in LogFiles(lambda: [file]).content(file, True)])


async def _rotate_by_time(file: LogFile) -> bytes:
    await LogFiles(lambda: [file]).rotate()
    return b""


def use(file: LogFile, moment: str) -> bytes:
    if moment == "read":
        return tail(Path(file.path), 100)[0]
    if moment == "rotation by size":
        return repr(rotate(file)).encode()
    if moment == "size":
        return repr(log_sizes([file])).encode()
    return asyncio.run({"follow": _follow, "download": _download, "rotation by time": _rotate_by_time}[moment](file))


MOMENTS = ("read", "follow", "download", "size", "rotation by size", "rotation by time")


@pytest.mark.parametrize("moment", [*MOMENTS, "deletion on a full disk"])
@pytest.mark.parametrize(("component", "kind"), LOG_EXCHANGES)
def test_log_of_a_user(
    users: Path, roots: Path, monkeypatch: pytest.MonkeyPatch, component: str, kind: str, moment: str
) -> None:
    path = fill(users)
    exchange(users, component, kind, roots)

    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    if moment.startswith("deletion"):
        monkeypatch.setattr(rotation, "_copy", full)
    begun = time.monotonic()
    with accessed_as_nobody(path) as file, contextlib.suppress(OSError):
        assert SECRET.encode() not in use(file, "rotation by size" if moment.startswith("deletion") else moment)
    assert time.monotonic() - begun < 5


@pytest.mark.parametrize("moment", MOMENTS)
def test_log_that_is_not_exchanged(users: Path, moment: str) -> None:
    """What the tests above refuse works."""
    with accessed_as_nobody(fill(users)) as file:
        used = use(file, moment)
    assert moment == "size" or not moment.startswith(("read", "follow", "download")) or b"VALUE=mine" in used
    assert (Path(file.path).stat().st_size == 0) == moment.startswith("rotation")


# All properties, by a server


def spec(name: str, home: Path) -> dict[str, Any]:
    path = home / "outer" / "inner" / ("" if name == "directory" else "file")
    command = "env; timeout 0.2 cat; while echo line; do sleep 0.2; done"
    more: dict[str, Any] = {name: str(path)}
    if "logfile" in name:
        more |= {"log-max-bytes": 100, "log-backups": 2}
    if name != "stdout-logfile":
        more["stdout-logfile"] = str(home / "output")
    return {"command": ["sh", "-c", command], "user": "nobody", "restart": "never", "stop-timeout": "1s", **more}


def homes(users: Path) -> dict[str, Path]:
    found = {}
    for number, name in enumerate(EXCHANGES):
        found[name] = users / str(number)
        fill(found[name])
    return found


def names_of(exchanges: dict[str, Path]) -> dict[str, str]:
    """The process of each exchange."""
    return {name: f"p{number}" for number, name in enumerate(exchanges)}


def served(serve: Serve, exchanges: dict[str, Path]) -> Server:
    processes = names_of(exchanges)
    return serve({processes[name]: spec(name.partition(":")[0], home) for name, home in exchanges.items()})


def exchange_all(exchanges: dict[str, Path], roots: Path) -> None:
    for name, home in exchanges.items():
        _, component, kind = name.split(": ")
        exchange(home, component, kind, roots)


def check_outputs(exchanges: dict[str, Path]) -> None:
    """No process has got what only root may read."""
    for name, home in exchanges.items():
        for path in (home / "output", home / "outer" / "inner" / "file"):
            with contextlib.suppress(OSError):
                is_own = path.lstat().st_uid == NOBODY.uid and path.is_file() and not path.is_symlink()
                assert not (is_own and SECRET in path.read_text()), name


def call(server: Server, method: str, path: str) -> Any:
    begun = time.monotonic()
    answer = server.ask(method, path)
    assert SECRET.encode() not in answer.body, path
    assert time.monotonic() - begun < 10, path
    assert server.get("/healthz").status == 200
    return answer


@pytest.mark.parametrize("moment", ["start", "restart"])
def test_start_with_an_exchanged_component_fails(serve: Serve, users: Path, roots: Path, moment: str) -> None:
    exchanges = homes(users)
    server, processes = served(serve, exchanges), names_of(exchanges)
    if moment == "restart":
        assert server.post("/api/v1/processes/group/start").status == 200
    exchange_all(exchanges, roots)
    for name, process in processes.items():
        answer = call(server, "POST", f"/api/v1/processes/{moment}/{process}")
        assert (answer.status == 200) == (name == ACCEPTED), (name, answer)
        assert answer.status in (200, 400, 500), (name, answer)
    server.post("/api/v1/processes/group/stop")
    check_outputs(exchanges)


def followed(server: Server, path: str) -> bytes:
    """What a stream sends at once."""
    stream, text = server.stream(path), b""
    stream.socket.settimeout(0.2)
    with contextlib.suppress(OSError):
        while piece := stream.socket.recv(65536):
            text += piece
    stream.close()
    return text


@pytest.mark.parametrize("moment", ["read", "follow", "download"])
def test_log_with_an_exchanged_component_shows_nothing(serve: Serve, users: Path, roots: Path, moment: str) -> None:
    exchanges = {name: home for name, home in homes(users).items() if "logfile" in name}
    server, processes = served(serve, exchanges), names_of(exchanges)
    assert server.post("/api/v1/processes/group/start").status == 200
    exchange_all(exchanges, roots)
    for name, process in processes.items():
        path = f"/api/v1/processes/logs/{process}?stream={name[:6]}"
        if moment == "follow":
            assert SECRET.encode() not in followed(server, path)
        else:
            call(server, "GET", path + "&download=true&backups=true" * (moment == "download"))
    server.post("/api/v1/processes/group/stop")
    check_outputs(exchanges)
