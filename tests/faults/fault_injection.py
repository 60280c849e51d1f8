"""Helpers for tests of faults: a server with data of all services, faults, and requests during a fault."""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import sqlite3
import subprocess
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from attrs import Factory, define, field
from chart_servers import WebServer
from conftest import Answer, Server, wait_for
from requirements import MOUNTING, missing_part, require
from small_charts import FULL, KEY, helm_path, multipart, sample_chart
from uploads import FORM, form, junit

from benchmarks import procfs

API = "/api/v1"
SLEEPER = {"command": "sleep 1000"}
JSON = {"Content-Type": "application/json"}
STORES = ("pilothouse", "tracker", "charts")

PreparedRequest = tuple[str, str, bytes | None, Mapping[str, str]]
"""A request: method, path, body, headers."""


def charts_settings(repository: WebServer, temp: Path, **more: Any) -> dict[str, Any]:
    """`svc` of a configuration that allows this repository."""
    return {
        **FULL,
        "security": {**FULL["security"], "allowed-hosts": [repository.host_port]},
        "helm": {"binary": helm_path("helm")},
        "rest": {"temp-dir": str(temp)},
        **more,
    }


def create_records(server: Server, repository: WebServer) -> None:
    """Creates a repository and a run, and starts a process."""
    repository.serve(("tint", "0.1.0", sample_chart()))
    for method, path, body, headers in (add_repository_request("lab", repository), upload_request("before")):
        assert server.ask(method, path, body, dict(headers)).status == 201
    assert server.do("start", "web").status == 200


def json_request(method: str, path: str, what: Any) -> PreparedRequest:
    return method, f"{API}{path}", json.dumps(what).encode(), {**KEY, **JSON}


def add_repository_request(name: str, repository: WebServer) -> PreparedRequest:
    return json_request("POST", "/repos", {"name": name, "url": repository.url})


def upload_request(project: str, count: int = 3) -> PreparedRequest:
    return (
        "POST",
        f"{API}/ingest",
        form([("project", project), ("junit", junit(passed=count))]),
        {"Content-Type": FORM},
    )


def template_request(padding: int = 0) -> PreparedRequest:
    body, headers = multipart(
        chart=sample_chart(padding="x" * padding) if padding else sample_chart(), request={"releaseName": "r"}
    )
    return "POST", f"{API}/charts/template/upload", body, {**KEY, **headers}


TEMPLATE = json_request("POST", "/charts/template", {"chartRef": "lab/tint"})
PULL = json_request("POST", "/repos/pull", {"chart": "lab/tint"})
UPDATE: PreparedRequest = ("POST", f"{API}/repos/lab/update", None, KEY)
READS = (
    "/healthz", f"{API}/processes", f"{API}/events?size=5", f"{API}/events/count", f"{API}/projects", "/",
    "/projects/1", f"{API}/runs/1", f"{API}/runs/1/quality-gate", "/badge/1/pass.svg", f"{API}/repos",
    f"{API}/repos/lab/charts", "/metrics",
)  # fmt: skip
"""At least one path of each service."""


def send_prepared(server: Server, request: PreparedRequest) -> Answer:
    method, path, body, headers = request
    return server.ask(method, path, body, dict(headers), 60)


def check_reads(server: Server, paths: Sequence[str] = READS) -> None:
    for path in paths:
        answer = server.get(path)
        assert answer.status == 200, (path, answer)


def check_failure(answer: Answer, *statuses: int) -> str:
    """Returns the message of a failed request, whose status must be one of `statuses`. It is no internal error."""
    assert answer.status in (statuses or (500, 502, 503, 504)), answer
    is_page = str(answer.headers["Content-Type"]).startswith("text/")
    message = answer.text if is_page else str(answer.json.get("detail") or answer.json["message"])
    assert "internal error" not in message, answer
    return message


@define
class ParallelRequests:
    """Sends requests at the same time, each in a thread; `answers` waits for their responses."""

    server: Server
    requests: Sequence[PreparedRequest]
    _answers: dict[int, Answer | Exception] = field(init=False, default=Factory(dict))
    _threads: list[threading.Thread] = field(init=False, default=Factory(list))

    def start(self) -> ParallelRequests:
        self._threads = [threading.Thread(target=self._ask, args=(number,)) for number in range(len(self.requests))]
        for thread in self._threads:
            thread.start()
        return self

    def _ask(self, number: int) -> None:
        try:
            self._answers[number] = send_prepared(self.server, self.requests[number])
        except (OSError, http.client.HTTPException) as error:
            self._answers[number] = error

    def answers(self) -> list[Answer]:
        for thread in self._threads:
            thread.join()
        found = [self._answers[number] for number in range(len(self.requests))]
        assert all(isinstance(one, Answer) for one in found), found
        return [one for one in found if isinstance(one, Answer)]


class PersistentConnection:
    """One open connection, for a server that cannot accept another."""

    def __init__(self, server: Server) -> None:
        self._connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=60)
        self.ask(("GET", "/healthz", None, {}))

    def ask(self, request: PreparedRequest) -> Answer:
        method, path, body, headers = request
        self._connection.request(method, path, body, dict(headers))
        response = self._connection.getresponse()
        return Answer(response.status, response.headers, response.read())

    def close(self) -> None:
        self._connection.close()


@contextlib.contextmanager
def locked_stores(server: Server, *names: str) -> Iterator[Callable[[], None]]:
    """Holds exclusive locks on these stores. Calling the yielded function releases them."""
    with contextlib.ExitStack() as stack:
        held = []
        for name in names or STORES:
            store = sqlite3.connect(server.data / f"{name}.db", isolation_level=None, timeout=20)
            stack.callback(store.close)
            store.execute("BEGIN EXCLUSIVE")
            held.append(store)

        def unlock() -> None:
            while held:
                held.pop().execute("ROLLBACK")

        stack.callback(unlock)
        yield unlock


def _mount(folder: Path, *arguments: str) -> None:
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    done = subprocess.run(["mount", *arguments, str(folder)], capture_output=True, text=True)
    if done.returncode:
        missing_part(f"a file system that can be mounted: {done.stderr.strip()}", "not in Debian: run as root")


@contextlib.contextmanager
def small_disk(folder: Path, size: str) -> Iterator[Path]:
    """Mounts a small file system at `folder`. Needs root; in CI it must be possible."""
    _mount(folder, "-t", "tmpfs", "-o", f"size={size},mode=0700", "tmpfs")
    try:
        yield folder
    finally:
        subprocess.run(["umount", "-l", str(folder)], check=True)


def fill_disk(disk: Path, leave: int = 0) -> Path:
    """Fills a disk with one file, except for `leave` bytes, or fills it again; returns that file."""
    filler = disk / "filler"
    if leave:
        found = os.statvfs(disk)
        with filler.open("wb") as file:
            os.posix_fallocate(file.fileno(), 0, found.f_bavail * found.f_frsize - leave)
        return filler
    with filler.open("ab", buffering=0) as file, contextlib.suppress(OSError):
        while True:
            file.write(b"\0" * 1024)
    return filler


class FailingDisk:
    """A disk that the kernel remounts read-only while files are open on it, as it does after an I/O error."""

    def __init__(self, folder: Path, image: Path) -> None:
        require("mkfs.ext4", "losetup", "e2fsck", MOUNTING)
        with image.open("wb") as file:
            file.truncate(24 * 1024**2)
        subprocess.run(["mkfs.ext4", "-q", str(image)], check=True)
        self.folder, self._image = folder, image
        self._mount()
        folder.chmod(0o700)

    def _mount(self) -> None:
        _mount(self.folder, "-o", "loop,errors=remount-ro", str(self._image))

    def fail(self) -> None:
        """Makes the disk read-only. Syncs first: unwritten data would be lost, as in a power cut."""
        subprocess.run(["sync", "-f", str(self.folder)], check=True)
        lines = [line.split() for line in Path("/proc/self/mounts").read_text().splitlines()]
        device = next(words[0] for words in lines if words[1] == str(self.folder))
        Path(f"/sys/fs/ext4/{Path(device).name}/trigger_fs_error").write_text("1")

    def repair(self) -> None:
        """Unmounts the disk, checks it with e2fsck and mounts it again, as an operator would."""
        subprocess.run(["umount", str(self.folder)], check=True)
        wait_for(lambda: not subprocess.run(["losetup", "-j", str(self._image)], capture_output=True).stdout)
        assert subprocess.run(["e2fsck", "-p", "-f", str(self._image)], capture_output=True).returncode in (0, 1)
        self._mount()

    def close(self) -> None:
        subprocess.run(["umount", "-l", str(self.folder)], check=True)


def is_swept(temp: Path) -> bool:
    """Whether the temporary folder of a server has nothing of a request; a folder may be swept meanwhile."""
    with contextlib.suppress(FileNotFoundError):
        return [file.name for own in temp.iterdir() for file in own.iterdir()] == [".lock"]
    return False


def resident_mib(server: Server) -> float:
    """The server's resident memory in MiB."""
    with open(f"/proc/{server.pid}/status") as status:
        return next(int(line.split()[1]) for line in status if line.startswith("VmRSS")) / 1024


def open_descriptors(server: Server) -> int:
    """Without those of warm worker processes, which the first requests of a test may start."""
    return procfs.descriptors(server.pid, sampled=1)


def check_no_traceback(server: Server) -> None:
    assert "Traceback" not in server.log.read_text(), server.log.read_text()[-6000:]
