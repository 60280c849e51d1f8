"""Fixtures and helpers of all tests: a real server in its own process, with its own port, stores and children."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import http.client
import importlib.util
import itertools
import json
import os
import random
import signal
import socket
import sqlite3
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

import preloaded
import pytest
import yaml
from requirements import require

from models.supervision.tables import StoreFact

ROOT = Path(__file__).parent.parent
TIMEOUT_SECONDS = 30.0
IS_PROOF = os.environ.get("PILOTHOUSE_PROOF") == "1"
"""Whether tests make their long rounds and try every view (`make proof`)."""
_PORT_COUNT = 10_000 // int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1"))
_FIRST_PORT = 20_000 + _PORT_COUNT * int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw"))
_PORTS = itertools.count(random.SystemRandom().randrange(_PORT_COUNT))
"""Each worker of xdist has ports of its own, and takes them in turn."""
DATABASES: dict[Path, str] = {}
"""Data directory -> URL of the PostgreSQL database that replaces its file."""

UNLIMITED = {"open-projects": 1_000_000, "open-projects-per-hour": 0}
"""`tracker.limits` of a test that sets no others: tests upload to many projects from loopback."""

asyncio.set_event_loop(None)  # else pytest-tornado, asking for the current loop, makes one that nobody closes

# In the background job of a script SIGINT is ignored, and all child processes would inherit that.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--postgresql", action="store_true", help="every server's tracker is a database of PostgreSQL")


def database_of(data: Path) -> str | None:
    """The URL of the database that replaces the file of a data directory; with `--postgresql` each has one."""
    if Server.is_on_postgresql and data not in DATABASES:
        from postgresql import shared_cluster

        DATABASES[data] = shared_cluster().fresh()
    return DATABASES.get(data)


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line(
        "markers", "needs(*parts): skipped where the machine lacks one of them (tests/requirements.py)"
    )
    config.addinivalue_line("markers", "proof: takes long, and runs with `make proof` (PILOTHOUSE_PROOF=1) only")
    Server.is_on_postgresql = config.getoption("postgresql")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leaves out what runs with `make proof` only."""
    if not IS_PROOF:
        config.hook.pytest_deselected(items=[item for item in items if item.get_closest_marker("proof")])
        items[:] = [item for item in items if not item.get_closest_marker("proof")]


def pytest_runtest_setup(item: pytest.Item) -> None:
    for mark in item.iter_markers("needs"):
        require(*mark.args)


async def until(condition: Callable[[], bool]) -> None:
    """Waits on the loop; the caller bounds it."""
    while not condition():
        await asyncio.sleep(0.001)


def wait_for(what: Callable[[], Any], timeout: float = TIMEOUT_SECONDS, about: str | Callable[[], object] = "") -> Any:
    """Calls `what` until its result is true, and returns it; fails after `timeout` seconds."""
    end = time.monotonic() + timeout
    while time.monotonic() < end:
        if answer := what():
            return answer
        time.sleep(0.005)
    raise AssertionError(f"timed out after {timeout} s: {about() if callable(about) else about or what}")


def free_port() -> int:
    """A free port below the range of outgoing connections: it stays free until and while a server restarts."""
    while True:
        port = _FIRST_PORT + next(_PORTS) % _PORT_COUNT
        with socket.socket() as candidate, contextlib.suppress(OSError):
            candidate.bind(("127.0.0.1", port))
            return port


class Answer:
    def __init__(self, status: int, headers: http.client.HTTPMessage, body: bytes) -> None:
        self.status = status
        self.headers = headers
        self.body = body

    @property
    def text(self) -> str:
        return self.body.decode()

    @property
    def json(self) -> Any:
        return json.loads(self.body)

    def __repr__(self) -> str:
        return f"<{self.status} {self.body[:500]!r}>"


@functools.cache
def preloaded_program() -> preloaded.Preloaded:
    return preloaded.Preloaded()


def run_verb(
    *arguments: str, folder: Path, environ: dict[str, str] | None = None, given: bytes = b"", timeout: float = 60
) -> subprocess.CompletedProcess[str]:
    """Runs `python run.py` with these arguments in `folder` until it ends; `environ` is its whole environment.

    It is forked (`tests/preloaded.py`) unless Python itself would read another environment than that of the tests.
    """
    command, environ = [str(ROOT / "run.py"), *arguments], dict(os.environ) if environ is None else environ
    of_python = {name: value for name, value in environ.items() if name.startswith(("PYTHON", "LC_", "LANG"))}
    if Server.is_forked and of_python.items() <= {**os.environ, **preloaded.WARNINGS}.items():
        done = preloaded_program().run(command, folder, environ, given, timeout)
    else:
        done = subprocess.run(
            [sys.executable, *command], cwd=folder, env=environ, input=given, capture_output=True, timeout=timeout
        )
    return subprocess.CompletedProcess(done.args, done.returncode, done.stdout.decode(), done.stderr.decode())


def pytest_unconfigure() -> None:
    if preloaded_program.cache_info().currsize:
        preloaded_program().close()


class Server:
    """`python run.py` on a free port, with a configuration as parsed from YAML (`tests/preloaded.py`)."""

    is_on_postgresql = False
    is_forked = not IS_PROOF and "COVERAGE_PROCESS_START" not in os.environ
    """Whether the server is forked, unless it has a command or an environment of its own."""

    def __init__(self, folder: Path, config: dict[str, Any], environ: dict[str, str], command: list[str]) -> None:
        self.folder = folder
        self.file = folder / "pilothouse.yaml"
        self.data = folder / "data"
        self.log = folder / "server.log"
        self.port = 0
        self.environ = environ
        self.command = command
        self.process: subprocess.Popen[bytes] | preloaded.Forked | None = None
        self.configure(config)

    def configure(self, config: dict[str, Any]) -> None:
        settings = config.get("server", {})
        if "database-url" in settings:
            DATABASES[self.data] = settings["database-url"]
        elif url := database_of(self.data):
            config = {**config, "server": {**settings, "database-url": url}}
        if isinstance(tracker := config.get("tracker", {}), dict) and isinstance(tracker.get("limits", {}), dict):
            config = {**config, "tracker": {**tracker, "limits": UNLIMITED | tracker.get("limits", {})}}
        self.file.write_text(yaml.safe_dump(config, sort_keys=False))

    def launch(self) -> Server:
        """Starts the server without waiting for it."""
        self.port = self.port or free_port()
        arguments = ["--config", str(self.file), "--port", str(self.port), "--data-dir", str(self.data)]
        command = [str(ROOT / "run.py"), *arguments]
        environ = {**os.environ, **preloaded.WARNINGS, **self.environ}
        self.log_begins = self.log.stat().st_size if self.log.exists() else 0
        with self.log.open("ab") as log:
            if self.command or self.environ or not self.is_forked:
                self.process = subprocess.Popen(
                    [*self.command, sys.executable, *command],
                    stdin=subprocess.DEVNULL, stdout=log, stderr=log, cwd=self.folder, env=environ,
                )  # fmt: skip
            else:
                self.process = preloaded_program().launch(command, self.folder, environ, log)
        return self

    def start(self) -> Server:
        """Starts the server and waits until it listens."""
        self.launch()
        self.port = int(wait_for(self._listens, about=f"a listening server; its log:\n{self.log}"))
        return self

    def _listens(self) -> str | None:
        assert self.process is not None
        assert self.process.poll() is None, f"the server ended ({self.process.returncode}):\n{self.log.read_text()}"
        with self.log.open() as log:
            log.seek(self.log_begins)
            lines = [line for line in log if "listening on " in line and line.endswith("\n")]
        return lines[0].split("listening on ")[1].split()[0].rstrip('",').rpartition(":")[2] if lines else None

    def kill(self) -> None:
        """Kills the server with SIGKILL. Its children continue."""
        assert self.process is not None
        self.process.kill()
        self.process.wait()

    def stop(self, number: int = signal.SIGTERM) -> int:
        """Sends a signal and waits; returns the exit code."""
        assert self.process is not None
        self.process.send_signal(number)
        return self.process.wait(TIMEOUT_SECONDS)

    @property
    def cookie(self) -> str:
        """The name of its session cookie."""
        return "pilothouse_shared" if self.data in DATABASES else f"pilothouse_{self.port}"

    @property
    def pid(self) -> int:
        assert self.process is not None
        return self.process.pid

    def ask(
        self,
        method: str,
        path: str,
        body: bytes | None = None,
        headers: dict[str, str] | None = None,
        timeout: float = 60,
    ) -> Answer:
        """Sends a request on a new connection."""
        with contextlib.closing(http.client.HTTPConnection("127.0.0.1", self.port, timeout=timeout)) as connection:
            connection.request(method, path, body, headers or {})
            response = connection.getresponse()
            return Answer(response.status, response.headers, response.read())

    def get(self, path: str, **headers: str) -> Answer:
        return self.ask("GET", path, headers={name.replace("_", "-"): value for name, value in headers.items()})

    def post(self, path: str, body: bytes | None = b"", **headers: str) -> Answer:
        return self.ask("POST", path, body, headers={name.replace("_", "-"): value for name, value in headers.items()})

    def do(self, verb: str, name: str) -> Answer:
        """Starts, stops or restarts one process."""
        return self.post(f"/api/v1/processes/{verb}/{quote(name, safe='')}")

    def info(self, name: str) -> Any:
        answer = self.get(f"/api/v1/processes/info/{quote(name, safe='')}")
        assert answer.status == 200, answer
        return answer.json

    def status(self, name: str) -> str:
        return str(self.info(name)["status"])

    def until(self, name: str, *statuses: str) -> Any:
        """Waits until a process has one of these statuses; returns its info."""
        return wait_for(
            lambda: (info := self.info(name))["status"] in statuses and info,
            about=f"{name} to be {' or '.join(statuses)}",
        )

    def events(self, name: str) -> list[dict[str, Any]]:
        """The history of one process, oldest first."""
        path = f"/api/v1/events/by-process/{quote(name, safe='')}?size=100&sortBy=id&sortDirection=asc"
        found: list[dict[str, Any]] = []
        while True:
            answer = self.get(f"{path}&page={len(found) // 100}")
            assert answer.status in (200, 404), answer
            if answer.status == 404:
                return found
            found += answer.json["content"]
            if answer.json["last"] or len(found) % 100:
                return found

    def new_statuses(self, name: str) -> list[str]:
        """The new statuses of one process, oldest first."""
        return [event["newStatus"] for event in self.events(name)]

    def send(self, verb: str, name: str) -> http.client.HTTPConnection:
        """Has the server begin to start, stop or restart one process; the caller reads the response, and closes."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)
        connection.request("POST", f"/api/v1/processes/{verb}/{quote(name, safe='')}")
        for _ in range(3):  # it reads and dispatches requests in the order in which they come
            assert self.get("/healthz").status == 200
        return connection

    def stream(self, path: str, **headers: str) -> Stream:
        return Stream(self.port, path, {name.replace("_", "-"): value for name, value in headers.items()})

    def close(self) -> None:
        """Stops the server, and kills its remaining children."""
        if self.process is not None and self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
            try:
                self.process.wait(TIMEOUT_SECONDS)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()
        for pid in children_of(self.data, with_helm=True):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)


class Stream:
    """An open event stream, read event by event."""

    def __init__(self, port: int, path: str, headers: dict[str, str]) -> None:
        self.socket = socket.create_connection(("127.0.0.1", port), timeout=TIMEOUT_SECONDS)
        lines = "".join(f"{name}: {value}\r\n" for name, value in {"Accept": "text/event-stream", **headers}.items())
        self.socket.sendall(f"GET {path} HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\n{lines}\r\n".encode())
        self._file = self.socket.makefile("rb")
        self.status = int(self._file.readline().split()[1])
        self.headers = http.client.parse_headers(self._file)

    def next(self) -> dict[str, str]:
        """The next event with its fields; comments and a bare `retry:` are skipped. Raises EOFError at the end."""
        event: dict[str, str] = {}
        end = time.monotonic() + TIMEOUT_SECONDS
        for raw in self._file:
            assert time.monotonic() < end, "only heartbeats came"
            line = raw.decode().rstrip("\n")
            if not line and ("event" in event or "data" in event):
                return event
            name, _, value = line.partition(": ")
            if name and not line.startswith(":"):
                event[name] = f"{event[name]}\n{value}" if name in event else value
        raise EOFError

    def close(self) -> None:
        self._file.close()
        self.socket.close()


def children_of(data: Path, with_helm: bool = False) -> list[int]:
    """The pids of processes that servers on this data directory started; helm and workers only if `with_helm`."""
    instance = instance_of(data)
    own = {pid: tag for pid, tag in tags_by_pid().items() if instance and tag.startswith(f"{instance}:")}
    return [pid for pid, tag in own.items() if with_helm or not tag.endswith((":\x01helm", ":\x01worker"))]


def workers_of(server: Server) -> list[int]:
    """The pids of the worker processes of a server."""
    instance = instance_of(server.data)
    return [pid for pid, tag in tags_by_pid().items() if tag == f"{instance}:0:\x01worker"]


def launcher_of(server: int) -> int:
    """The pid of the process with which a server starts children."""

    def found() -> int | None:
        for pid in Path(f"/proc/{server}/task/{server}/children").read_text().split():
            with contextlib.suppress(OSError):  # a child that has ended meanwhile
                if b"launcher_process" in Path(f"/proc/{pid}/cmdline").read_bytes():
                    return int(pid)
        return None

    return int(wait_for(found, about="a launcher"))


def instance_of(data: Path) -> str | None:
    """The id of the servers on this data directory, the first part of each tag; None before the first start."""
    if not (data / "pilothouse.db").exists():
        return None
    query = f"SELECT value FROM {StoreFact._meta.table_name} WHERE key = 'instance'"  # noqa: S608 (our own table name)
    with contextlib.closing(sqlite3.connect(data / "pilothouse.db")) as store:
        try:
            row = store.execute(query).fetchone()
        except sqlite3.OperationalError:
            return None
    return str(row[0]) if row else None


def tags_by_pid() -> dict[int, str]:
    """pid -> tag (instance:generation:name) of every running process that has a tag."""
    found: dict[int, str] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with contextlib.suppress(OSError):
                if (entry / "stat").read_text().rpartition(")")[2].split()[0] in "ZX":
                    continue
                for word in _environment(entry).split(b"\0"):
                    if word.startswith(b"PILOTHOUSE_CHILD="):
                        found[int(entry.name)] = word.partition(b"=")[2].decode("utf-8", "surrogateescape")
    return found


def _environment(process: Path) -> bytes:
    """The environment of a process. It is empty for a moment after the process has executed its command."""
    content = b""
    for _ in range(100):
        content = (process / "environ").read_bytes()
        if content or not os.readlink(process / "exe"):
            break
        time.sleep(0.001)
    return content


def open_for_writing(file: Path) -> int | None:
    """Returns a descriptor to write to the pipe, or `None` while it has no reader."""
    try:
        return os.open(file, os.O_WRONLY | os.O_NONBLOCK)
    except OSError:
        return None


def load_script(name: str) -> Any:
    """Imports a program that is not a module of the product, such as `.ci/configuration.py`."""
    spec = importlib.util.spec_from_file_location(Path(name).stem + "_script", ROOT / name)
    assert spec is not None
    assert spec.loader is not None
    found = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(found)
    return found


def session_leaders(data: Path) -> Counter[str]:
    """The number of running processes of each name that lead their session, as supervised processes do."""
    known, found = tags_by_pid(), Counter[str]()
    for pid in children_of(data):
        with contextlib.suppress(OSError, KeyError):
            if int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[3]) == pid:
                found[known[pid].split(":", 2)[2]] += 1
    return found


def is_alive(pid: int) -> bool:
    """Whether a process runs. A zombie does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


Serve = Callable[..., Server]


@pytest.fixture
def serve(tmp_path: Path) -> Iterator[Serve]:
    """`serve({name: spec}, supervisor={...}, server={...}, environ={...})` -> a running Server for the test."""
    servers: list[Server] = []

    def start(
        processes: dict[str, Any] | None = None,
        environ: dict[str, str] | None = None,
        command: list[str] | None = None,
        wait: bool = True,
        **sections: Any,
    ) -> Server:
        config = {**sections, "supervisor": {"processes": processes or {}, **sections.get("supervisor", {})}}
        folder = tmp_path / f"server{len(servers)}"
        folder.mkdir()
        servers.append(Server(folder, config, environ or {}, command or []))
        return servers[-1].start() if wait else servers[-1]

    yield start
    for server in servers:
        server.close()


@pytest.fixture
def open_folder() -> Iterator[Path]:
    """A folder that every user may enter; `tmp_path` is below one that belongs to the user who runs the tests."""
    with tempfile.TemporaryDirectory() as folder:
        Path(folder).chmod(0o755)
        yield Path(folder)


@pytest.fixture(scope="session")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """A real Kubernetes API server (tests/charts/cluster.py), started for the first test that needs it."""
    from cluster import Cluster, programs

    one = Cluster(tmp_path_factory.mktemp("cluster"), programs())
    try:
        yield one.start()
    finally:
        one.close()


@pytest.fixture(scope="session")
def chromium() -> Iterator[Any]:
    """A real Chromium (tests/web/browser_pages.py), started for the first test that opens a page."""
    from browser_pages import Browser

    one = Browser()
    yield one
    one.close()


@pytest.fixture(scope="session")
def postgresql() -> Iterator[Any]:
    """A real PostgreSQL server (tests/tracker/postgresql.py), started for the first test that needs it."""
    from postgresql import shared_cluster

    one = shared_cluster()
    yield one
    one.close()


@pytest.fixture(params=["sqlite", "postgresql"])
def database_url(request: pytest.FixtureRequest) -> str | None:
    """For tests of both kinds of store: None (a file), then the URL of a database with empty tables."""
    return None if request.param == "sqlite" else str(request.getfixturevalue("postgresql").emptied())


def python_command(code: str) -> list[str]:
    """A command that runs this Python code."""
    return [sys.executable, "-c", code]
