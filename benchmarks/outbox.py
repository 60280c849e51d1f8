"""The outbox: what messages to another target, uploads, processes and requests take while one target is bad.

    python benchmarks/outbox.py [--waiting 5000] [--messages 15] [--runs 3] [--out FILE] [--claims FILE]

Each run starts four servers, one after the other. In three of them messages wait for a target: one that accepts
connections and never answers, one whose responses have no end, and one that takes each message at once, so that the
server sends all the time. Only loopback is used.
"""

import argparse
import contextlib
import http.client
import itertools
import json
import os
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))  # it is run as a program

from benchmarks import claims, report  # noqa: E402
from benchmarks.candidates import free_port, until  # noqa: E402
from benchmarks.claims import Claim  # noqa: E402
from models.config.settings import OutboxSettings  # noqa: E402
from models.outbound import outbox  # noqa: E402
from models.outbound.outbox import Message  # noqa: E402
from models.outbound.tables import store  # noqa: E402

_RULE = {"events": ["process.crashed"], "group-wait": "0s", "quiet": "0s", "only-on-change": False, "resolve": False}
_ENDLESS = b"10000\r\n%b\r\n" % (b"x" * 0x10000)
API = "/api/v1"
NONE = "no other target"
BAD = ("a target that hangs", "a target with endless responses", "a target that takes all at once")
FIGURES = {
    "message": "crash of a process → its message arrives",
    "restart": "kill -9 of a process → its replacement runs",
    "upload": "upload of a small report",
    "list": "list of processes",
}
TARGETS = dict(zip(BAD, (2.0, 2.0, 4.0), strict=True))
"""Times as long. Beside the last one the server and this program send and receive all the time."""
Measured = Mapping[str, Mapping[str, Sequence[float]]]
"""By scene and figure, a median in milliseconds for each run."""


@contextlib.contextmanager
def receiver() -> Iterator[tuple[int, list[float]]]:
    """A chat: its port, and when each message came."""
    came: list[float] = []

    class Chat(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["Content-Length"]))
            came.append(time.monotonic())
            self.send_response(204)
            self.end_headers()

        def log_message(self, *_: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Chat)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield server.server_port, came
    server.shutdown()
    server.server_close()


@contextlib.contextmanager
def hanging() -> Iterator[int]:
    """A port that accepts connections and never answers."""
    with socket.create_server(("127.0.0.1", 0), backlog=100) as listener:
        yield int(listener.getsockname()[1])


@contextlib.contextmanager
def endless() -> Iterator[int]:
    """A port whose responses have no end."""

    def serve(listener: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while True:
                connection, _ = listener.accept()
                with contextlib.suppress(OSError), connection:
                    connection.sendall(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
                    while True:
                        connection.sendall(_ENDLESS)

    with socket.create_server(("127.0.0.1", 0)) as listener:
        threading.Thread(target=serve, args=(listener,), daemon=True).start()
        yield int(listener.getsockname()[1])


@contextlib.contextmanager
def taking() -> Iterator[int]:
    with receiver() as (port, _):
        yield port


def fill(path: Path, count: int) -> None:
    """Puts messages to the bad target into the outbox of a stopped server."""
    store.open(path)
    payload = {"type": "test", "timestamp": "", "data": {"rule": "", "title": "x", "lines": [], "more": 0}}

    def add() -> None:
        with store.atomic():
            messages = [Message("notify", "channel:config:bad", payload)] * count
            outbox.add(messages, time.time_ns() // 1000, OutboxSettings())

    store.run_with_timeout(add, 60)
    store.close_all()


class Requests:
    """Requests to a server. `numbers` makes each upload another one."""

    def __init__(self, port: int) -> None:
        self.port = port
        self._numbers = itertools.count(1)

    def send(self, path: str, method: str = "GET", body: bytes = b"", kind: str = "") -> bytes:
        with contextlib.closing(http.client.HTTPConnection("127.0.0.1", self.port, timeout=30)) as connection:
            connection.request(method, path, body, {"Content-Type": kind} if kind else {})
            response = connection.getresponse()
            answer = response.read()
        if response.status >= 300:
            raise RuntimeError(f"{method} {path}: {response.status}")
        return answer

    def upload(self) -> None:
        number = next(self._numbers)
        parts = {
            "project": "bench",
            "commit": f"{number:040}",
            "junit": f"<testsuite name='s'><testcase classname='c' name='n{number}'/></testsuite>",
        }
        head = '--b\r\nContent-Disposition: form-data; name="{}"{}\r\n\r\n{}\r\n'
        made = [head.format(name, '; filename="a"' if name == "junit" else "", text) for name, text in parts.items()]
        self.send(f"{API}/ingest", "POST", "".join([*made, "--b--\r\n"]).encode(), "multipart/form-data; boundary=b")

    def pid(self, process: str) -> int | None:
        found: int | None = json.loads(self.send(f"{API}/processes/info/{process}"))["pid"]
        return found

    def is_alive(self) -> bool:
        try:
            self.send("/readyz")
        except (OSError, RuntimeError):
            return False
        return self.pid("web") is not None


def measure(scene: str, waiting: int, messages: int) -> dict[str, float]:
    """The median of each figure, in milliseconds."""
    makers: dict[str, Callable[[], contextlib.AbstractContextManager[int]]] = dict(
        zip(BAD, (hanging, endless, taking), strict=True)
    )
    with tempfile.TemporaryDirectory() as place, receiver() as (chat, came), makers.get(scene, hanging)() as bad:
        folder, port = Path(place), free_port()
        (folder / "data").mkdir()
        fill(folder / "data" / "outbox.db", 0 if scene == NONE else waiting)
        ports = {"team": chat, "bad": bad}
        channels = {name: {"type": "slack", "url": f"http://127.0.0.1:{at}/"} for name, at in ports.items()}
        boom = {"command": ["sh", "-c", "exit 3"], "restart": "never"}
        web = {"command": ["sleep", "100000"], "restart": "always", "auto-start": True}
        web |= {"restart-delay": 0, "restart-limit": 0}
        config = {
            "server": {"outbound": {"allowed-hosts": [f"127.0.0.1:{at}" for at in (chat, bad)]}},
            "supervisor": {"processes": {"boom": boom, "web": web}},
            "notify": {
                "channels": channels,
                "rules": [{"name": "team", "channels": ["team"], "processes": ["boom"], **_RULE}],
            },
        }
        (folder / "p.yaml").write_text(yaml.safe_dump(config))
        command = [sys.executable, str(ROOT / "run.py"), "--config", str(folder / "p.yaml"), "--port", str(port)]
        command += ["--data-dir", str(folder / "data")]
        with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as server:
            try:
                return _measured(Requests(port), came, messages)
            finally:
                server.send_signal(signal.SIGTERM)


def _measured(server: Requests, came: list[float], messages: int) -> dict[str, float]:
    until(server.is_alive, 60, "the server")
    found: dict[str, list[float]] = {name: [] for name in FIGURES}

    def timed(name: str, work: Callable[[], object]) -> None:
        begin = time.monotonic()
        work()
        found[name].append((time.monotonic() - begin) * 1000)

    for number in range(messages):
        begin = time.monotonic()
        server.send(f"{API}/processes/start/boom", "POST")
        until(lambda: len(came) > number, 30, "the message")  # noqa: B023 (called here)
        found["message"].append((came[-1] - begin) * 1000)
        timed("restart", lambda: _restart(server))
        timed("upload", server.upload)
        for _ in range(10):
            timed("list", lambda: server.send(f"{API}/processes"))
    return {name: statistics.median(values) for name, values in found.items()}


def _restart(server: Requests) -> None:
    pid = server.pid("web")
    assert pid is not None
    os.kill(pid, signal.SIGKILL)
    while server.pid("web") in (pid, None):
        pass


def claimed(measured: Measured) -> list[Claim]:
    return [
        Claim(
            "outbox", f"{text}, beside {scene}", "ms", measured[scene][name], NONE, measured[NONE][name], TARGETS[scene]
        )
        for scene in BAD
        for name, text in FIGURES.items()
    ]


def document(options: argparse.Namespace, measured: Measured) -> str:
    rows = [
        [text, *(" / ".join(f"{value:.1f}" for value in figures[name]) for figures in measured.values())]
        for name, text in FIGURES.items()
    ]
    return (
        f"# The outbox\n\n{options.waiting:,} messages wait for the bad target. Milliseconds, the median of each run. "
        f"{report.machine()}.\n`python benchmarks/outbox.py`, which explains the columns.\n\n"
        f"{report.table(['', *measured], rows)}\n"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description="Measures what a bad target of messages delays.")
    parser.add_argument("--waiting", type=int, default=5000)
    parser.add_argument("--messages", type=int, default=15)
    parser.add_argument("--runs", type=int, default=3)
    claims.add_outputs(parser)
    options = parser.parse_args()
    runs = [
        {scene: measure(scene, options.waiting, options.messages) for scene in (NONE, *BAD)}
        for _ in range(options.runs)
    ]
    measured = {scene: {name: [run[scene][name] for run in runs] for name in FIGURES} for scene in (NONE, *BAD)}
    claims.publish(options, document(options, measured), claimed(measured))


if __name__ == "__main__":
    main()
