"""The outbox: how long a message takes while another target hangs and messages wait for it, and what else waits.

    python benchmarks/outbox.py [--waiting 5000] [--messages 30]

Only loopback is used.
"""

import argparse
import contextlib
import http.client
import json
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))  # it is run as a program

from benchmarks.candidates import free_port, until  # noqa: E402
from models.config.settings import Outbox  # noqa: E402
from models.outbound import outbox  # noqa: E402
from models.outbound.outbox import Message  # noqa: E402
from models.outbound.tables import store  # noqa: E402

_RULE = {"events": ["process.crashed"], "group-wait": "0s", "quiet": "0s", "only-on-change": False, "resolve": False}


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


def fill(path: Path, count: int) -> None:
    """Puts messages to the hanging target into the outbox of a stopped server."""
    store.open(path)
    payload = {"type": "test", "timestamp": "", "data": {"rule": "", "title": "x", "lines": [], "more": 0}}

    def add() -> None:
        with store.atomic():
            messages = [Message("notify", "channel:config:hangs", payload)] * count
            outbox.add(messages, time.time_ns() // 1000, Outbox())

    store.run_with_timeout(add, 60)
    store.close_all()


def get(port: int, path: str, method: str = "GET") -> float:
    """The milliseconds that a request takes."""
    begin = time.monotonic()
    with contextlib.closing(http.client.HTTPConnection("127.0.0.1", port, timeout=10)) as connection:
        connection.request(method, path)
        connection.getresponse().read()
    return (time.monotonic() - begin) * 1000


def measure(waiting: int, messages: int) -> dict[str, list[float]]:
    """Milliseconds from a crash until its message arrived, and of other requests meanwhile."""
    with tempfile.TemporaryDirectory() as place, receiver() as (chat, came), hanging() as hang:
        folder, port = Path(place), free_port()
        (folder / "data").mkdir()
        fill(folder / "data" / "outbox.db", waiting)
        url = "http://127.0.0.1:{}/"
        channels = {name: {"type": "slack", "url": url.format(at)} for name, at in (("team", chat), ("hangs", hang))}
        config = {
            "server": {"outbound": {"allowed-hosts": [f"127.0.0.1:{at}" for at in (chat, hang)]}},
            "supervisor": {"processes": {"boom": {"command": ["sh", "-c", "exit 3"], "restart": "never"}}},
            "notify": {"channels": channels, "rules": [{"name": "team", "channels": ["team"], **_RULE}]},
        }
        (folder / "p.yaml").write_text(yaml.safe_dump(config))
        command = [sys.executable, str(ROOT / "run.py"), "--config", str(folder / "p.yaml"), "--port", str(port)]
        command += ["--data-dir", str(folder / "data")]
        with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as server:
            try:
                return _measured(port, came, messages)
            finally:
                server.send_signal(signal.SIGTERM)


def _measured(port: int, came: list[float], messages: int) -> dict[str, list[float]]:
    until(lambda: _answers(port), 30, "the server")
    found: dict[str, list[float]] = {"message": [], "request": []}
    for number in range(messages):
        begin = time.monotonic()
        get(port, "/api/v1/processes/start/boom", "POST")
        until(lambda: len(came) > number, 30, "the message")  # noqa: B023 (called here)
        found["message"].append((came[-1] - begin) * 1000)
        found["request"] += [get(port, "/api/v1/processes") for _ in range(20)]
    return found


def _answers(port: int) -> bool:
    try:
        get(port, "/healthz")
    except OSError:
        return False
    return True


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--waiting", type=int, default=5000)
    parser.add_argument("--messages", type=int, default=30)
    options = parser.parse_args()
    shown: Callable[[list[float]], str] = lambda all: f"{statistics.median(all):.1f} (at most {max(all):.1f})"  # noqa: E731
    results = {}
    for waiting in (0, options.waiting):
        found = measure(waiting, options.messages)
        results[waiting] = {name: shown(values) for name, values in found.items()}
    print(json.dumps(results, indent=2))


if __name__ == "__main__":
    main()
