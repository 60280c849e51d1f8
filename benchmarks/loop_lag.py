"""Runs the server with a clock in its event loop.

    python benchmarks/loop_lag.py FILE [PYTHON run.py] [options of run.py]

SIGUSR1 writes how late the ticks of the loop were since the last SIGUSR1, a tick each millisecond, to FILE as JSON, in
milliseconds. A tick that comes late because of the server itself is one during which the process used a processor. So
the stall of a tick is the shorter of its delay and of the CPU time of all threads meanwhile: the load of the machine
hardly changes it. The answers of /healthz have the CPU time of the process so far in `X-Cpu-Seconds`, for the same use.
"""

import argparse
import asyncio
import http.client
import json
import os
import signal
import statistics
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))  # it is run as a program

from tornado.web import RequestHandler

from benchmarks.candidates import until
from models.config.settings import Config

INTERVAL_SECONDS = 0.001
CPU_HEADER = "X-Cpu-Seconds"
_CHECK_SECONDS = 0.005
_ANSWER_SECONDS = 120.0


@dataclass(frozen=True)
class Lag:
    """The delay of the loop, in milliseconds."""

    median: float
    p99: float
    worst: float


@dataclass(frozen=True)
class Stalls:
    """The stalls of the loop: their number, and in milliseconds."""

    count: int
    p999: float
    worst: float


def lag(pid: int, file: Path) -> Lag:
    """The delay of the server `pid` since the last call of this or `stalls`."""
    found = _read(pid, file)
    return Lag(found["median"], found["p99"], found["worst"])


def stalls(pid: int, file: Path) -> Stalls:
    """The stalls of the server `pid` since the last call of this or `lag`."""
    return Stalls(**_read(pid, file)["stalls"])


def _read(pid: int, file: Path) -> Any:
    file.unlink(missing_ok=True)
    os.kill(pid, signal.SIGUSR1)
    until(file.exists, 30, "the clock in the loop")
    return json.loads(file.read_text())


def cpu_seconds(pid: int) -> float:
    """The CPU time of a process so far: that of `CPU_HEADER`, from outside."""
    return time.clock_gettime((~pid << 3) | 2)  # as clock_getcpuclockid(3)


@contextmanager
def health_checks(port: int, pid: int) -> Iterator[list[float]]:
    """Another client requests `/healthz` all the time; the list has how long the server delayed each answer, in ms.

    That is the shorter of the time until the answer and of the CPU time that the server used from the request to its
    answer: an answer that comes late because others use the processors is not delayed by the server.
    """
    delays: list[float] = []
    ended = threading.Event()

    def check() -> None:
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=_ANSWER_SECONDS)
        while not ended.is_set():
            begun = time.monotonic()
            connection.request("GET", "/healthz")
            used = cpu_seconds(pid)
            response = connection.getresponse()
            response.read()
            took, stamp = time.monotonic() - begun, response.headers.get(CPU_HEADER)
            spent = took if stamp is None else max(0.0, float(stamp) - used)  # an older tree has no stamp
            delays.append(1000 * min(took, spent))
            ended.wait(_CHECK_SECONDS)
        connection.close()

    thread = threading.Thread(target=check)
    thread.start()
    try:
        yield delays
    finally:
        ended.set()
        thread.join()


def command(file: Path) -> list[str]:
    """What to run instead of Python, or before it, for a server with a clock."""
    return [sys.executable, str(Path(__file__).resolve()), str(file)]


class LoopClock:
    """Measures how late a timer is."""

    def __init__(self, file: Path) -> None:
        self._file = file
        self._delays = list[float]()
        self._stalls = list[float]()

    def start(self) -> None:
        asyncio.get_running_loop().add_signal_handler(signal.SIGUSR1, self._write)
        self._wait()

    def _wait(self) -> None:
        self._due, self._used = time.monotonic() + INTERVAL_SECONDS, time.process_time()
        self._timer = asyncio.get_running_loop().call_later(INTERVAL_SECONDS, self._tick)

    def _tick(self) -> None:
        self._note()
        self._wait()

    def _note(self) -> None:
        delay = max(0.0, 1000 * (time.monotonic() - self._due))
        self._delays.append(delay)
        self._stalls.append(min(delay, 1000 * (time.process_time() - self._used)))

    def _write(self) -> None:
        """Writes the figures; the time that this takes is in none."""
        self._note()
        self._timer.cancel()
        delays, stalls = sorted(self._delays), sorted(self._stalls)
        self._delays, self._stalls = [], []
        lag = Lag(statistics.median(delays), _quantile(delays, 0.99), delays[-1])
        of_process = Stalls(len(stalls), _quantile(stalls, 0.999), stalls[-1])
        draft = self._file.with_suffix(".draft")
        draft.write_text(json.dumps({**asdict(lag), "stalls": asdict(of_process)}))
        draft.rename(self._file)
        self._wait()


def _quantile(ordered: list[float], part: float) -> float:
    return ordered[int(len(ordered) * part)]


def _stamped(finish: Callable[..., Any]) -> Callable[..., Any]:
    """`RequestHandler.finish` that adds `CPU_HEADER` to the answers of /healthz."""

    def finish_stamped(handler: RequestHandler, *chunk: Any) -> Any:
        if handler.request.path == "/healthz":
            handler.set_header(CPU_HEADER, f"{time.process_time():.6f}")
        return finish(handler, *chunk)

    return finish_stamped


def main() -> int:
    import run

    serve, clock, options = run.serve, LoopClock(Path(sys.argv[1])), sys.argv[2:]
    while options and not options[0].startswith("-"):
        del options[0]  # the command in whose place this is run

    async def serve_and_measure(settings: Config, arguments: argparse.Namespace) -> None:
        clock.start()
        await serve(settings, arguments)

    run.serve = serve_and_measure
    RequestHandler.finish = _stamped(RequestHandler.finish)  # type: ignore[method-assign]
    return run.main(options)


if __name__ == "__main__":
    sys.exit(main())
