"""Our server with a clock in its loop, which tells how late it was called.

    python benchmarks/ticking.py FILE [options of run.py]

SIGUSR1: the delays since the last SIGUSR1 (every millisecond one) go to FILE as JSON, in milliseconds.
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

from benchmarks.contestants import until
from models.config.settings import Config

TICK = 0.001


@dataclass(frozen=True)
class Lag:
    """How late the loop was, in milliseconds."""

    median: float
    p99: float
    worst: float


def lag(pid: int, file: Path) -> Lag:
    """Of the server `pid`, since this was asked last."""
    file.unlink(missing_ok=True)
    os.kill(pid, signal.SIGUSR1)
    until(file.exists, 30, "the clock in the loop")
    return Lag(**json.loads(file.read_text()))


class Clock:
    def __init__(self, file: Path) -> None:
        self._file = file
        self._delays = [0.0]

    async def tick(self) -> None:
        asyncio.get_running_loop().add_signal_handler(signal.SIGUSR1, self._tell)
        while True:
            due = time.monotonic() + TICK
            await asyncio.sleep(TICK)
            self._delays.append(time.monotonic() - due)

    def _tell(self) -> None:
        delays, self._delays = sorted(1000 * delay for delay in self._delays), [0.0]
        said = Lag(statistics.median(delays), delays[int(len(delays) * 0.99)], delays[-1])
        draft = self._file.with_suffix(".draft")
        draft.write_text(json.dumps(asdict(said)))
        draft.rename(self._file)


def main() -> int:
    import run

    serve, clock = run.serve, Clock(Path(sys.argv[1]))

    async def with_clock(settings: Config, asked: argparse.Namespace) -> None:
        ticking = asyncio.create_task(clock.tick())
        try:
            await serve(settings, asked)
        finally:
            ticking.cancel()

    run.serve = with_clock
    return run.main(sys.argv[2:])


if __name__ == "__main__":
    sys.exit(main())
