"""Checks that an installed, packed or containerized copy works, from outside.

    python packing/smoke.py [--helm FILE] [--without-tools] [--bare] COMMAND...

COMMAND starts the server: `pilothouse`, `dist/pilothouse-…`, `podman run … pilothouse`. With `--bare` it is one file,
which runs in a root directory with nothing else but the C library and a program to supervise; this needs root's
rights. Uses only the standard library.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Sequence
from email.message import Message
from pathlib import Path
from typing import Any, NamedTuple

PATIENCE = 60.0
REPORT = (
    b'<testsuite name="s"><testcase name="good"/><testcase name="bad"><failure message="no"/></testcase></testsuite>'
)
HELLO = {
    "jsonrpc": "2.0",
    "id": 1,
    "method": "initialize",
    "params": {"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": {"name": "smoke", "version": "1"}},
}
C_LIBRARY = ("libc.so.6", "libm.so.6", "libdl.so.2", "libpthread.so.0", "librt.so.1", "libutil.so.1", "libresolv.so.2")
OURS_ALONE = re.compile(rb"(^|\0)(LD_LIBRARY_PATH|_PYI_|_MEI|NOTIFY_SOCKET|WATCHDOG_|LISTEN_)")


class Answer(NamedTuple):
    status: int
    body: bytes
    headers: Message

    @property
    def json(self) -> Any:
        return json.loads(self.body)


class InstalledCopy:
    """The copy under test and its working folder. `root` is its root directory."""

    def __init__(self, command: Sequence[str], root: Path, folder: Path, helm: str | None) -> None:
        self._command, self._root, self.folder = command, root, folder
        self.inside = Path("/") / folder.relative_to(root)
        self.log = folder / "log"
        self.base, self.process = "", subprocess.Popen(["true"])
        sleeper = {"command": "/bin/sleep 1000", "start-seconds": "0s"}
        settings = {
            "server": {"data-dir": str(self.inside / "data"), "port": 0},
            "supervisor": {"on-exit": "stop", "processes": {"sleeper": sleeper}},
            "svc": {"helm": {"binary": helm or "/nonexistent"}, "kube": {"kubeconfig": "/nonexistent"}},
        }
        (folder / "pilothouse.yaml").write_text(json.dumps(settings))  # YAML holds JSON
        (folder / "cache").mkdir()

    def start(self, *arguments: str, words: str | None = None) -> subprocess.Popen[bytes]:
        environ = {"PATH": "/usr/sbin:/usr/bin:/bin", "XDG_CACHE_HOME": str(self.inside / "cache")}
        with self.log.open("ab") as log:
            return subprocess.Popen(
                [*self._command, "--config", str(self.inside / "pilothouse.yaml"), *arguments],
                stdin=subprocess.DEVNULL if words is None else subprocess.PIPE,
                stdout=subprocess.PIPE if arguments else log,
                stderr=log,
                env=environ,
                cwd=self.folder,
            )

    def verb(self, *arguments: str, words: str | None = None) -> str:
        process = self.start(*arguments, words=words)
        printed, _ = process.communicate(words.encode() if words is not None else None, timeout=PATIENCE)
        assert process.returncode == 0, (arguments, process.returncode, self.log.read_text())
        return printed.decode()

    def serve(self) -> float:
        """Starts the server; returns the seconds until its first response."""
        begins = self.log.stat().st_size if self.log.exists() else 0
        before = time.monotonic()
        self.process = self.start()
        wait_for(lambda: self._listens(begins), "a server that listens")
        assert self.get("/healthz").json["status"] == "UP"
        return time.monotonic() - before

    def _listens(self, begins: int) -> bool:
        assert self.process.poll() is None, self.log.read_text()
        found = re.search(r"listening on (\S+) .*\n", self.log.read_bytes()[begins:].decode())
        self.base = found[1].replace("0.0.0.0", "127.0.0.1") if found else ""
        return bool(found)

    def ask(self, method: str, path: str, body: bytes | None = None, **headers: str) -> Answer:
        named: dict[str, str] = {name.replace("_", "-"): text for name, text in headers.items()}
        request = urllib.request.Request(self.base + path, body, named, method=method)
        try:
            with urllib.request.urlopen(request, timeout=PATIENCE) as answer:
                return Answer(answer.status, answer.read(), answer.headers)
        except urllib.error.HTTPError as error:
            return Answer(error.code, error.read(), error.headers)

    def get(self, path: str, **headers: str) -> Answer:
        return self.ask("GET", path, None, **headers)

    def upload(self, path: str, **parts: bytes) -> Answer:
        lines = [
            b'--edge\r\nContent-Disposition: form-data; name="%b"; filename="f"\r\n\r\n%b\r\n'
            % (name.encode(), content)
            for name, content in parts.items()
        ]
        whole = b"".join(lines) + b"--edge--\r\n"
        return self.ask("POST", path, whole, Content_Type="multipart/form-data; boundary=edge")

    def info(self) -> Any:
        return self.get("/api/v1/processes/info/sleeper").json

    def until(self, status: str) -> Any:
        wait_for(lambda: self.info()["status"] == status, f"sleeper to be {status}")
        return self.info()

    def close(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()


def wait_for(what: Callable[[], Any], about: str) -> None:
    end = time.monotonic() + PATIENCE
    while not what():
        assert time.monotonic() < end, f"waited in vain for {about}"
        time.sleep(0.005)


def is_alive(pid: int) -> bool:
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    return False


# What it must do


def a_starting_configuration(copy: InstalledCopy, asked: argparse.Namespace) -> None:
    copy.verb("init", "--units", str(copy.inside / "new"))
    assert {path.suffix for path in (copy.folder / "new").iterdir()} == {".yaml", ".service", ".socket"}
    assert "processes: 1" in copy.verb("check", "--config", str(copy.inside / "new" / "pilothouse.yaml"))
    assert "complete" in copy.verb("ctl", "completion", "bash")


def the_interface_document(copy: InstalledCopy, asked: argparse.Namespace) -> None:
    document = copy.get("/v3/api-docs").json
    assert document["openapi"].startswith("3.")
    for part in ("/processes", "/charts", "/ingest"):
        assert any(part in path for path in document["paths"]), part


def pages_with_their_files(copy: InstalledCopy, asked: argparse.Namespace) -> None:
    for page in ("/", "/login", "/projects", "/charts/", "/swagger-ui.html"):
        answer = copy.get(page, Accept="text/html")
        assert answer.status == 200, (page, answer)
        for file in set(re.findall(r'<(?:link|script)[^>]* (?:href|src)="([^"]+)"', answer.body.decode())):
            found = copy.get(file)
            assert (found.status, bool(found.body)) == (200, True), (page, file)


def a_process_started_and_stopped(copy: InstalledCopy, asked: argparse.Namespace) -> None:
    assert copy.ask("POST", "/api/v1/processes/start/sleeper").status == 200
    pid = copy.until("running")["pid"]
    file = Path(f"/proc/{pid}/environ")
    wait_for(file.read_bytes, "an environment")  # the kernel shows it a moment after the program is executed
    environment = file.read_bytes()
    assert b"PATH=" in environment
    assert not OURS_ALONE.search(environment), environment
    assert copy.ask("POST", "/api/v1/processes/stop/sleeper").status == 200
    copy.until("stopped")
    assert not is_alive(pid)


def a_report_and_its_verdict(copy: InstalledCopy, asked: argparse.Namespace) -> None:
    told = copy.upload("/api/v1/ingest", project=b"smoke", branch=b"main", junit=REPORT)
    assert (told.status, told.json["failures"]) == (201, 1), told
    verdict = copy.get("/api/v1/gate?project=smoke&branch=main")
    assert b"FAILED" in verdict.body, verdict
    assert copy.get(told.json["runPath"], Accept="text/html").status == 200


def an_account(copy: InstalledCopy, asked: argparse.Namespace) -> None:
    copy.verb("user", "add", "ann", "--admin", words="a long enough password\n")
    token = copy.verb("user", "token", "ann").strip()
    assert copy.get("/users", Authorization=f"Bearer {token}", Accept="text/html").status == 200
    assert copy.get("/healthz", Authorization="Bearer plt_wrong").status in (200, 401)


def charts(copy: InstalledCopy, asked: argparse.Namespace) -> None:
    assert copy.get("/api/v1/repos").json == []
    if asked.helm is None:
        assert copy.ask("POST", "/api/v1/charts/create", b'{"name":"web"}').status == 503
        return
    made = copy.ask("POST", "/api/v1/charts/create", b'{"name":"web"}', Content_Type="application/json")
    assert made.status == 200, made
    shown = copy.upload("/api/v1/charts/template/upload", chart=made.body)
    assert (shown.status, b"kind: Deployment" in shown.body) == (200, True), shown


def tools_for_agents(copy: InstalledCopy, asked: argparse.Namespace) -> None:
    headers = {"Content_Type": "application/json", "Accept": "application/json, text/event-stream"}
    hello = copy.ask("POST", "/mcp", json.dumps(HELLO).encode(), **headers)
    if asked.without_tools:
        assert hello.status == 404, hello
        return
    assert (hello.status, b"serverInfo" in hello.body) == (200, True), hello
    headers["Mcp_Session_Id"] = hello.headers["Mcp-Session-Id"]
    copy.ask("POST", "/mcp", b'{"jsonrpc":"2.0","method":"notifications/initialized"}', **headers)
    listed = copy.ask("POST", "/mcp", b'{"jsonrpc":"2.0","id":2,"method":"tools/list"}', **headers)
    assert (listed.status, b"inputSchema" in listed.body) == (200, True), listed


def kill_9_and_adoption(copy: InstalledCopy, asked: argparse.Namespace) -> None:
    copy.ask("POST", "/api/v1/processes/start/sleeper")
    pid = copy.until("running")["pid"]
    copy.process.kill()
    copy.process.wait()
    with contextlib.suppress(OSError):
        raise AssertionError(f"somebody still answers: {urllib.request.urlopen(copy.base + '/healthz').read()}")
    assert is_alive(pid), "a supervised process survives its supervisor"
    copy.serve()
    assert copy.until("running")["pid"] == pid
    copy.process.send_signal(signal.SIGTERM)
    assert copy.process.wait(PATIENCE) == 0
    assert not is_alive(pid)


LOOKS: tuple[Callable[[InstalledCopy, argparse.Namespace], None], ...] = (
    a_starting_configuration,
    the_interface_document,
    pages_with_their_files,
    a_process_started_and_stopped,
    a_report_and_its_verdict,
    an_account,
    charts,
    tools_for_agents,
    kill_9_and_adoption,
)


def look_at(copy: InstalledCopy, asked: argparse.Namespace) -> None:
    print(copy.verb("--version").strip())
    try:
        first, again = copy.serve(), 0.0
        copy.process.send_signal(signal.SIGTERM)
        assert copy.process.wait(PATIENCE) == 0
        again = copy.serve()
        print(f"answered after {first:.2f} s, and after {again:.2f} s")
        for look in LOOKS:
            look(copy, asked)
            print(look.__name__.replace("_", " "))
    except BaseException:
        sys.stderr.write(copy.log.read_text())
        raise
    finally:
        copy.close()


# A machine with nothing on it


def bare(root: Path, program: str, helm: str | None) -> list[str]:
    """Installs the minimum into `root`; returns the command that runs the program there."""
    for name in ("bin", "dev", "proc", "tmp", "smoke"):
        (root / name).mkdir()
    shutil.copy2(program, root / "pilothouse")
    put(root, "sleep")
    if helm is not None:
        shutil.copy2(helm, root / "bin" / "helm")
    os.mknod(root / "dev" / "null", 0o666 | 0o020000, os.makedev(1, 3))
    mounted = 'mount -t proc proc "$0/proc" && exec chroot "$0" "$@"'
    return ["unshare", "--mount", "sh", "-c", mounted, str(root), "/pilothouse"]


def put(root: Path, program: str) -> None:
    """Copies a program of this machine with its libraries, and the whole C library."""
    found = shutil.which(program)
    assert found is not None, program
    shutil.copy2(found, root / "bin" / program)
    needed = subprocess.run(["ldd", found], capture_output=True, text=True, check=True).stdout
    for library in map(Path, re.findall(r"(/\S+) \(0x", needed)):
        for file in (library, *(library.parent / name for name in C_LIBRARY)):
            if file.exists():
                (root / file.relative_to("/")).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(file, root / file.relative_to("/"))


def main() -> int:
    parser = argparse.ArgumentParser(description="Looks whether a copy does what it must.")
    parser.add_argument("--helm", help="a helm that it is to use")
    parser.add_argument("--without-tools", action="store_true", help="the extra mcp was not installed")
    parser.add_argument("--bare", action="store_true", help="run COMMAND, a file, where there is nothing else")
    parser.add_argument("command", nargs="+", metavar="COMMAND")
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="smoke-") as folder:
        if asked.bare:
            command = bare(Path(folder), asked.command[0], asked.helm)
            look_at(InstalledCopy(command, Path(folder), Path(folder) / "smoke", asked.helm and "/bin/helm"), asked)
        else:
            look_at(InstalledCopy(asked.command, Path("/"), Path(folder), asked.helm), asked)
    return 0


if __name__ == "__main__":
    sys.exit(main())
