"""The README's two commands on a bare machine: `make run`, then `make test`, as an ordinary user of a fresh Debian 12.

    python .ci/bare.py [--part] [--keep FOLDER] [TEST…]

debootstrap makes the machine with the packages that the README names, in a folder that is removed at the end. The
checkout is copied without `.venv` and `.tools`. Each skipped test must say how to get the missing part. Exit code:
0 passed, 1 failed, 75 not tried, because this machine lacks root's rights, debootstrap or a mirror; it prints why.

apt's mirror, pip's settings and the certificates are those of this machine, read when it runs.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
NOT_TRIED = 75
USER, NUMBER = "ann", 1000
HOME = Path("/home") / USER
REASON = re.compile(r"missing: .+ \((Debian: apt install [a-z0-9. +-]+|not in Debian: .+)\)")
"""The only reason for which a test may be skipped, as `missing_part` in `tests/requirements.py` words it."""
PART = [
    "tests/accounts/test_first_start.py",
    "tests/charts/test_release_changes.py",
    "tests/cli",
    "tests/config",
    "tests/http/test_tls.py",
    "tests/journeys/test_adoption.py",
    "tests/mcp",
    "tests/project",
    "tests/server",
    "tests/storage",
    "tests/supervision/test_children.py",
    "tests/supervision/test_exits.py",
    "tests/supervision/test_hooks.py",
    "tests/supervision/test_limits_and_actions.py",
    "tests/supervision/test_notify.py",
    "tests/tracker/test_gate_rules.py",
    "tests/web/test_look.py",
]
"""The tests of `--part`: those that use most of the machine."""
START_SECONDS, TEST_SECONDS = 600, 5000
CARRIED = re.compile(r"PIP_.*|.*_PROXY|.*_proxy|.*(_CA_BUNDLE|_CERT_FILE|_CERT)")
"""The variables of this machine that its package index needs. A value that is a file is copied as well."""
MOUNTS = """
mount -t proc proc "$0/proc"
mount --rbind /sys "$0/sys"
mount -t tmpfs -o mode=1777 tmpfs "$0/tmp"
mkdir -p "$0/dev/pts" "$0/dev/shm"
mount -t devpts -o newinstance,ptmxmode=666 devpts "$0/dev/pts"
rm -f "$0/dev/ptmx" && ln -s pts/ptmx "$0/dev/ptmx"
mount -t tmpfs -o mode=1777 tmpfs "$0/dev/shm"
exec chroot "$0" setpriv --reuid="$1" --regid="$1" --clear-groups env -i "${@:2}"
"""


class NotTried(Exception):
    """This machine cannot make another one."""


def packages() -> str:
    """The packages that the README names for Debian, with commas between them."""
    named = re.search(r"`apt install ([a-z0-9. -]+)`", (ROOT / "README.md").read_text())
    assert named is not None, "the README names no packages"
    return ",".join(named[1].split())


def mirror() -> str:
    """The first archive that this machine's apt uses, or Debian's own."""
    files = [Path("/etc/apt/sources.list"), *sorted(Path("/etc/apt/sources.list.d").glob("*"))]
    lines = [line for file in files if file.is_file() for line in file.read_text(errors="replace").splitlines()]
    urls = (re.match(r"(?:URIs:|deb(?: \[[^]]*\])?)\s+(https?://\S+)", line) for line in lines)
    found = [url[1] for url in urls if url and "security" not in url[1]]
    return os.environ.get("DEBIAN_MIRROR") or (found[0] if found else "http://deb.debian.org/debian")


def run(*command: str | Path, **more: int | None) -> bool:
    return subprocess.run([str(word) for word in command], timeout=more.get("timeout")).returncode == 0


def check_machine() -> None:
    """Raises NotTried where a Debian cannot be made here."""
    if os.geteuid() != 0:
        raise NotTried("debootstrap and chroot need root's rights")
    for program in ("debootstrap", "unshare", "chroot", "git"):
        if shutil.which(program) is None:
            raise NotTried(f"{program} is missing (Debian: apt install {program})")
    if not run("unshare", "--mount", "--pid", "--fork", "mount", "-t", "tmpfs", "tmpfs", "/mnt"):
        raise NotTried("no file system can be mounted here")
    try:
        urllib.request.urlopen(f"{mirror()}/dists/bookworm/Release", timeout=30).close()  # noqa: S310 (of apt)
    except (OSError, urllib.error.URLError) as error:
        raise NotTried(f"the mirror of apt does not answer: {error}") from None


def make_debian(root: Path) -> None:
    options = ("--variant=minbase", f"--include={packages()}")
    with (root.parent / "debootstrap.log").open("w") as log:
        command = ["debootstrap", *options, "bookworm", str(root), mirror()]
        if subprocess.run(command, stdout=log, stderr=subprocess.STDOUT).returncode != 0:
            raise NotTried(f"debootstrap failed:\n{(root.parent / 'debootstrap.log').read_text()[-2000:]}")
    if not run("chroot", root, "useradd", "--create-home", "--uid", str(NUMBER), "--shell", "/bin/bash", USER):
        raise NotTried("no user can be made")


def carried() -> Mapping[str, str]:
    return {name: value for name, value in os.environ.items() if CARRIED.fullmatch(name)}


def carry_over(root: Path) -> None:
    """Gives the new machine this one's resolver, pip's settings and certificates."""
    files = {"/etc/resolv.conf", "/etc/hosts", "/etc/pip.conf", "/etc/ssl/certs/ca-certificates.crt"}
    for file in sorted(files | {value for value in carried().values() if value.startswith("/")}):
        if Path(file).is_file():
            target = root / file.lstrip("/")
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(file, target)


def check_out(root: Path) -> None:
    """Copies the files that git knows or would add, as they are here, to the user's home folder."""
    target = root / str(HOME).lstrip("/") / "pilothouse"
    for old in target.glob("*"):  # of an earlier run, with --keep: `.venv` and `.tools` stay
        shutil.rmtree(old) if old.is_dir() else old.unlink()
    listed = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard", "-z"],
        cwd=ROOT,
        check=True,
        stdout=subprocess.PIPE,
    ).stdout
    for name in listed.decode().split("\0"):
        if name and (ROOT / name).exists():
            (target / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, target / name)
    for path in (target, *target.rglob("*")):
        os.chown(path, NUMBER, NUMBER)


def inside(root: Path, *arguments: str) -> int:
    """Runs this script in the new machine as its user, with namespaces of processes and mounts of its own."""
    environ = {
        **carried(), "HOME": str(HOME), "USER": USER, "LANG": "C.UTF-8", "SHELL": "/bin/bash",
        "PATH": "/usr/local/bin:/usr/bin:/bin:/usr/local/games:/usr/games", "TERM": "dumb",
    }  # fmt: skip
    words = [f"{name}={value}" for name, value in environ.items()]
    command = ["unshare", "--mount", "--pid", "--fork", "--kill-child", "bash", "-euc", MOUNTS, str(root), str(NUMBER)]
    return subprocess.run(
        [*command, *words, "python3", f"{HOME}/pilothouse/.ci/bare.py", "--inside", *arguments],
        stdin=subprocess.DEVNULL,
    ).returncode


# In the new machine


def ports() -> Mapping[str, str]:
    """Other ports for the server and the example, if theirs are in use: the network is shared with the host."""
    found = {}
    for name, port in {"SERVER_PORT": 8080, "PORT": 9000}.items():
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                probe.bind(("127.0.0.1", 0))
                found[name] = str(probe.getsockname()[1])
    return found


def is_healthy(port: str) -> bool:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/healthz", timeout=5) as answer:
            return bool(answer.status == 200)
    except (urllib.error.URLError, ConnectionError, TimeoutError):
        return False


def make_run() -> str | None:
    """Runs `make run` until it serves, then ends it. Returns what is wrong."""
    environ = {**os.environ, **ports()}
    server = subprocess.Popen(["make", "run"], env=environ, start_new_session=True)
    end = time.monotonic() + START_SECONDS
    while not is_healthy(environ.get("SERVER_PORT", "8080")):
        if server.poll() is not None:
            return f"`make run` ended with {server.returncode}"
        if time.monotonic() > end:
            return f"`make run` does not serve after {START_SECONDS} s"
        time.sleep(0.2)
    server.send_signal(signal.SIGTERM)
    server.wait(60)
    left = sorted(processes())
    return f"`make run` has left processes behind: {left}" if left else None


def processes() -> Iterator[str]:
    """The command lines of all other processes of this user."""
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            if int(folder.name) != os.getpid() and folder.stat().st_uid == NUMBER:
                line = (folder / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace").strip()
                if line:
                    yield line
        except OSError:
            continue


def make_test(tests: list[str]) -> str | None:
    """Runs `make test` with these files, or whole. Returns what is wrong."""
    command = ["make", "test", *([f"TESTS={' '.join(tests)}"] if tests else [])]
    lines = []
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, errors="replace") as test:
        assert test.stdout is not None
        for line in test.stdout:
            print(line, end="", flush=True)
            lines.append(line)
    if test.returncode != 0:
        return f"`make test` ended with {test.returncode}"
    skipped = [line for line in lines if line.startswith("SKIPPED")]
    if bad := [line for line in skipped if not REASON.search(line)]:
        return f"these skipped tests do not say how to get the missing part:\n{''.join(bad)}"
    return None if any(" passed" in line for line in lines[-3:]) else "no test was run"


def run_inside(tests: list[str]) -> int:
    os.chdir(HOME / "pilothouse")
    for step in (make_run, lambda: make_test(tests)):
        begin = time.monotonic()
        problem = step()
        print(f"bare machine: {problem or 'good'}, after {time.monotonic() - begin:.0f} s", flush=True)
        if problem:
            return 1
    return 0


def main() -> int:
    parser = argparse.ArgumentParser(description="The README's two commands on a bare machine.")
    parser.add_argument("--part", action="store_true", help="a part of the tests, in less than five minutes")
    parser.add_argument("--keep", type=Path, metavar="FOLDER", help="make the machine in this folder, and keep it")
    parser.add_argument("--inside", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("tests", nargs="*", metavar="TEST", help="folders and files of tests instead of all")
    given = parser.parse_args()
    tests = given.tests or (PART if given.part else [])
    if given.inside:
        return run_inside(tests)
    begin = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="bare-") as folder:
        root = (given.keep or Path(folder)) / "root"
        root.parent.mkdir(parents=True, exist_ok=True)
        try:
            check_machine()
            if not root.exists():
                make_debian(root)
        except NotTried as problem:
            print(f"bare machine: NOT TRIED: {problem}")
            return NOT_TRIED
        carry_over(root)
        check_out(root)
        code = inside(root, *tests)
    print(f"bare machine: {'passed' if code == 0 else 'FAILED'} in {time.monotonic() - begin:.0f} s")
    return code


if __name__ == "__main__":
    sys.exit(main())
