"""Runs the server with a task that measures the delay of its event loop.

    python benchmarks/loop_lag.py FILE [options of run.py]

SIGUSR1 writes the delays since the last SIGUSR1, measured every millisecond, to FILE as JSON, in milliseconds.
"""

import argparse
import asyncio
import json
import os
import signal
import statistics
import sys
import time
from dataclasses import asdict, dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))  # it is run as a program

from benchmarks.candidates import until
from models.config.settings import Config

INTERVAL_SECONDS = 0.001


@dataclass(frozen=True)
class Lag:
    """The delay of the loop, in milliseconds."""

    median: float
    p99: float
    worst: float


def lag(pid: int, file: Path) -> Lag:
    """The delay of the server `pid` since the last call."""
    file.unlink(missing_ok=True)
    os.kill(pid, signal.SIGUSR1)
    until(file.exists, 30, "the clock in the loop")
    return Lag(**json.loads(file.read_text()))


class LagMeter:
    """Measures how late a sleeping task continues."""

    def __init__(self, file: Path) -> None:
        self._file = file
        self._delays = [0.0]

    async def measure(self) -> None:
        asyncio.get_running_loop().add_signal_handler(signal.SIGUSR1, self._write)
        while True:
            due = time.monotonic() + INTERVAL_SECONDS
            await asyncio.sleep(INTERVAL_SECONDS)
            self._delays.append(time.monotonic() - due)

    def _write(self) -> None:
        delays, self._delays = sorted(1000 * delay for delay in self._delays), [0.0]
        result = Lag(statistics.median(delays), delays[int(len(delays) * 0.99)], delays[-1])
        draft = self._file.with_suffix(".draft")
        draft.write_text(json.dumps(asdict(result)))
        draft.rename(self._file)


def main() -> int:
    import run

    serve, meter = run.serve, LagMeter(Path(sys.argv[1]))

    async def serve_and_measure(settings: Config, arguments: argparse.Namespace) -> None:
        task = asyncio.create_task(meter.measure())
        try:
            await serve(settings, arguments)
        finally:
            task.cancel()

    run.serve = serve_and_measure
    return run.main(sys.argv[2:])


if __name__ == "__main__":
    sys.exit(main())
