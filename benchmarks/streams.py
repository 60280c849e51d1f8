"""The run stream: Pilothouse compared with nginx and nchan, in the same runs.

    python benchmarks/streams.py [--streams 1000,10000] [--runs 3] [--events 10] [--stalled 20] [--out FILE]

For Pilothouse an event is a report that is posted, stored and judged; for nchan it is a message of the same size. nginx
and its module nchan are those of Debian's nginx-light and libnginx-mod-nchan. Only loopback is used.
"""

import argparse
import http.client
import json
import shutil
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))  # it is run as a program

from benchmarks import claims, loop_lag, procfs, report
from benchmarks.candidates import free_port, until
from benchmarks.claims import Claim
from benchmarks.listeners import Listeners
from benchmarks.loop_lag import Lag
from benchmarks.report import PILOTHOUSE, Figures, Metric

NCHAN = Path("/usr/lib/nginx/modules/ngx_nchan_module.so")
JUNIT = b'<testsuite name="s"><testcase classname="c" name="a"/><testcase classname="c" name="b"/></testsuite>'

METRICS = (
    Metric("posted_last", "event posted → the last client has it, ms (median)", 1),
    Metric("first_last", "the first client has it → the last client has it, ms (median)", 1),
    Metric("processor", "processor time of an event per stream, µs", 1),
    Metric("lag", "delay of the event loop meanwhile, ms (p99)", 2),
    Metric("stall", "delay of the event loop meanwhile, ms (worst)", 1),
    Metric("memory", "memory per open stream, KiB (RSS)", 1),
    Metric("memory_after", "memory per open stream after the events, KiB (RSS)", 1),
    Metric("opening", "time to open all streams, 200 at a time, s", 2),
    Metric("opening_stall", "delay of the event loop while all are opened, ms (worst)", 1),
)
STALLED = (
    Metric("flood", "unsent events of each stalled client, MiB", 2),
    Metric("growth", "maximum memory of {n} stalled clients, MiB (RSS)", 1),
    Metric("left", "streams of stalled clients that are still open", 0),
)


Made = TypeVar("Made", bound="Hub")


class Hub(ABC):
    """A server that streams to many clients: its port, the path of its stream, and how to publish an event."""

    name: str
    stream: str

    def __init__(self, place: Path) -> None:
        self.place = place
        self.port = free_port()
        self.process: subprocess.Popen[bytes] | None = None

    @abstractmethod
    def command(self) -> Sequence[str]: ...

    @abstractmethod
    def publish(self, number: int, branch: str = "main") -> None: ...

    def pids(self) -> list[int]:
        assert self.process
        return procfs.family(self.process.pid, ())

    def memory(self) -> float:
        """KiB."""
        return 1024 * procfs.memory(self.pids())[1]

    def is_starting(self) -> bool:
        """Whether helper processes of its start still run."""
        return False

    def lag(self) -> Lag | None:
        """The delay of its loop since the last call, if it can be measured."""
        return None

    def post(self, path: str, body: bytes, headers: dict[str, str]) -> None:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)
        connection.request("POST", path, body, headers)
        answer = connection.getresponse()
        if answer.status not in (201, 202):
            raise RuntimeError(f"{path}: {answer.status} {answer.read(500)!r}")
        connection.close()

    def answers(self) -> bool:
        with socket.socket() as attempt:
            return attempt.connect_ex(("127.0.0.1", self.port)) == 0


class Pilothouse(Hub):
    name = PILOTHOUSE
    stream = "/tracker/api/v1/events"
    settings: Mapping[str, Any] = {"server": {"max-streams": 20_000}}

    def command(self) -> Sequence[str]:
        config = self.place / "pilothouse.yaml"
        config.write_text(json.dumps(self.settings))
        data = self.place / "data"
        options = ["--config", str(config), "--data-dir", str(data), "--port", str(self.port)]
        return [*loop_lag.command(self.place / "lag"), *options]

    def pids(self) -> list[int]:
        """Returns only the server's pid: short helm processes do not count as its memory."""
        assert self.process
        return [self.process.pid]

    def is_starting(self) -> bool:
        assert self.process
        return len(procfs.family(self.process.pid, ())) > 1

    def lag(self) -> Lag:
        assert self.process
        return loop_lag.lag(self.process.pid, self.place / "lag")

    def publish(self, number: int, branch: str = "main") -> None:
        """One upload, whose run is sent to all streams."""
        parts = {"project": "bench", "branch": branch, "commit": f"{number:040x}"}
        lines = [
            f'--b\r\nContent-Disposition: form-data; name="{key}"\r\n\r\n{text}\r\n' for key, text in parts.items()
        ]
        head = '--b\r\nContent-Disposition: form-data; name="junit"; filename="a.xml"\r\n\r\n'
        body = "".join([*lines, head]).encode() + JUNIT + b"\r\n--b--\r\n"
        self.post("/api/v1/ingest", body, {"Content-Type": "multipart/form-data; boundary=b"})


class Nchan(Hub):
    name = "nchan"
    stream = "/sub"

    def command(self) -> Sequence[str]:
        config = self.place / "nginx.conf"
        config.write_text(f"""
load_module {NCHAN};
daemon off; worker_processes 1; pid {self.place}/pid; error_log {self.place}/error; worker_rlimit_nofile 20000;
events {{ worker_connections 19000; }}
http {{
  access_log off; client_body_temp_path {self.place}/body; proxy_temp_path {self.place}/proxy;
  nchan_max_reserved_memory 256M;
  server {{ listen 127.0.0.1:{self.port} backlog=4096;
    location = /pub {{ nchan_publisher; nchan_channel_id runs; nchan_message_buffer_length 100; }}
    location = /sub {{ nchan_subscriber eventsource; nchan_channel_id runs; nchan_subscriber_first_message newest; }}
  }}
}}""")
        return ["nginx", "-p", str(self.place), "-c", str(config)]

    def publish(self, number: int, branch: str = "main") -> None:
        self.post("/pub", EVENT.replace(b"1234567", b"%07d" % number), {"X-EventSource-Event": "run"})


EVENT = json.dumps(
    {
        "projectId": 1, "runId": 1234567, "branch": "main", "flag": "default", "status": "PASSED", "totalTests": 2,
        "failed": 0, "skipped": 0, "passRatePct": 100.0, "lineCoveragePct": None, "durationMs": 0,
        "shortSha": "0000000", "createdAt": "2026-11-21T12:00:00.000000Z", "project": "bench", "gateStatus": "PASSED",
        "gatePassed": True, "uploads": 1,
    },
    separators=(",", ":"),
).encode()  # fmt: skip
"""The event that Pilothouse sends for an upload of these benchmarks, except for its numbers."""


@contextmanager
def running(kind: Callable[[Path], Made]) -> Iterator[Made]:
    with tempfile.TemporaryDirectory(prefix="ph-bench-") as name:
        hub = kind(Path(name))
        with (hub.place / "log").open("ab") as log:
            hub.process = subprocess.Popen(hub.command(), cwd=name, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        try:
            until(hub.answers, 20, hub.name)
            yield hub
        finally:
            hub.process.send_signal(signal.SIGTERM)
            try:
                hub.process.wait(20)
            except subprocess.TimeoutExpired:
                hub.process.kill()
                hub.process.wait()


def measure(kind: type[Hub], streams: int, events: int, record: Callable[[str, float], None]) -> None:
    with running(kind) as hub:
        hub.publish(0)
        until(lambda: not hub.is_starting(), 60, "the end of the server's start")
        hub.lag()
        before = hub.memory()
        with Listeners(hub.port, hub.stream, streams) as listeners:
            record("opening", listeners.opening)
            if late := hub.lag():
                record("opening_stall", late.worst)
            record("memory", (hub.memory() - before) / streams)
            _publish_events(hub, listeners, events, streams, record)
            record("memory_after", (hub.memory() - before) / streams)


def _publish_events(
    hub: Hub, listeners: Listeners, events: int, streams: int, record: Callable[[str, float], None]
) -> None:
    """Publishes events one after another, and records when the clients received them."""
    posted, spread, pids = [], [], hub.pids()
    hub.lag()
    processor = procfs.processor_seconds(pids)
    for number in range(1, events + 1):
        listeners.expect()
        begin = time.monotonic()
        hub.publish(number)
        received = listeners.received()
        posted.append(1000 * (received.last - begin))
        spread.append(1000 * (received.last - received.first))
    record("processor", 1e6 * (procfs.processor_seconds(pids) - processor) / events / streams)
    record("posted_last", statistics.median(posted))
    record("first_last", statistics.median(spread))
    if late := hub.lag():
        record("lag", late.p99)
        record("stall", late.worst)


def flood(stalled: int, record: Callable[[str, float], None]) -> None:
    """Clients that do not read, and events until all clients are dropped or all events are sent."""
    with running(Pilothouse) as hub:
        hub.publish(0)
        until(lambda: not hub.is_starting(), 60, "the end of the server's start")
        before, most, sent = hub.memory(), 0.0, 0
        clients = [_stall(hub) for _ in range(stalled)]
        for number in range(1, FLOOD + 1):
            hub.publish(number, "b" * 200)
            if number % 20 == 0:
                most, sent = max(most, hub.memory() - before), number
                if not _open(hub):
                    break
        record("flood", sent * (len(EVENT) + 200) / 2**20)
        record("growth", most / 1024)
        record("left", _open(hub))
        for client in clients:
            client.close()


FLOOD = 2_000


def _stall(hub: Hub) -> socket.socket:
    client = socket.socket()
    client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    client.connect(("127.0.0.1", hub.port))
    client.sendall(f"GET {hub.stream} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode())
    return client


def _open(hub: Hub) -> int:
    connection = http.client.HTTPConnection("127.0.0.1", hub.port, timeout=60)
    connection.request("GET", "/metrics")
    lines = connection.getresponse().read().decode().splitlines()
    connection.close()
    return int(next(float(line.split()[1]) for line in lines if line.startswith("pilothouse_streams_open ")))


def document(figures: Figures, sizes: Sequence[int], kinds: Sequence[type[Hub]], options: argparse.Namespace) -> str:
    names = [kind.name for kind in kinds]
    rows = [
        [metric.title, str(size), *(figures.cell(metric, size, name) for name in names)]
        for metric in METRICS
        for size in sizes
    ]
    rest = [[metric.title.format(n=options.stalled), figures.cell(metric, 0, PILOTHOUSE)] for metric in STALLED]
    parts = [
        "# The run stream",
        f"{report.machine()}. {options.runs} run(s) of {options.events} events; cells: median of the runs (min..max) "
        "**x ratio to Pilothouse in the same run**. Pilothouse stores and judges a report per event; nchan only "
        "forwards messages.",
        report.table(["", "streams", *names], rows),
    ]
    if options.stalled:
        parts += ["## Clients that do not read", report.table(["", PILOTHOUSE], rest)]
    return "\n\n".join(parts) + "\n"


def claimed(figures: Figures, size: int) -> list[Claim]:
    def of(metric: str, text: str, unit: str, **more: Any) -> list[Claim]:
        return claims.measured(figures, metric, size, "streams", f"{text}, {size} streams", unit, **more)

    return [
        *of("posted_last", "report posted → the last client has the event", "ms", reference="nchan", target=2.0),
        *of("memory", "memory per stream", "KiB", reference="nchan", target=1.0),
        *of("stall", "longest delay of the event loop while events are sent", "ms", target=20.0),
        *of("opening_stall", "longest delay of the event loop while the streams are opened", "ms"),
    ]


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--streams", default="1000,10000", help="how many, in commas")
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--events", type=int, default=10, help="in each run")
    parser.add_argument("--stalled", type=int, default=20, help="clients that do not read; 0: none")
    claims.add_outputs(parser)
    return parser.parse_args()


def main() -> int:
    options = arguments()
    kinds: list[type[Hub]] = [Pilothouse, *([Nchan] if NCHAN.exists() and shutil.which("nginx") else [])]
    sizes, figures = [int(size) for size in options.streams.split(",")], Figures()
    for run in range(options.runs):
        for size in sizes:
            for kind in kinds if run % 2 else kinds[::-1]:
                measure(kind, size, options.events, lambda key, value: figures.put(run, key, size, kind.name, value))  # noqa: B023 (called at once)
                print(f"run {run + 1}: {kind.name}, {size} streams", file=sys.stderr, flush=True)
    if options.stalled:
        flood(options.stalled, lambda key, value: figures.put(0, key, 0, PILOTHOUSE, value))
    text = document(figures, sizes, kinds, options)
    claims.publish(options, text, claimed(figures, max(sizes)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
