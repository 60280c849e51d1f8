"""Runs the server and measures how long its event loop stalls, in a way that the load of the machine does not change.

    python loop_clock.py FILE PYTHON run.py options of run.py

A tick of the loop that comes late because of the server itself is one during which the process used the processor. So
the stall of a tick is the shorter of its delay and of the CPU time of all threads in between. SIGUSR1 writes the stalls
since the last SIGUSR1, in milliseconds and sorted, to FILE as JSON.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import signal
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from models.config.settings import Config

sys.path.insert(0, str(Path(__file__).resolve().parent.parent.parent))  # it is run as a program

INTERVAL_SECONDS = 0.001


class LoopClock:
    def __init__(self, file: Path) -> None:
        self._file = file
        self._stalls = [0.0]

    async def measure(self) -> None:
        asyncio.get_running_loop().add_signal_handler(signal.SIGUSR1, self._write)
        while True:
            due, used = time.monotonic() + INTERVAL_SECONDS, time.process_time()
            await asyncio.sleep(INTERVAL_SECONDS)
            self._stalls.append(1000 * min(time.monotonic() - due, time.process_time() - used))

    def _write(self) -> None:
        stalls, self._stalls = sorted(self._stalls), [0.0]
        draft = self._file.with_suffix(".draft")
        draft.write_text(json.dumps([round(stall, 2) for stall in stalls]))
        draft.rename(self._file)


def loop_stalls(pid: int, file: Path) -> list[float]:
    """The stalls of the server `pid` since the last call, in milliseconds, sorted."""
    file.unlink(missing_ok=True)
    os.kill(pid, signal.SIGUSR1)
    end = time.monotonic() + 30
    while not file.exists():
        assert time.monotonic() < end, "the loop has not answered for 30 s"
        time.sleep(0.005)
    found: list[float] = json.loads(file.read_text())
    return found


def server_command(file: Path) -> list[str]:
    """For `serve(command=...)`."""
    return [sys.executable, str(Path(__file__).resolve()), str(file)]


def main() -> int:
    import run

    serve, clock = run.serve, LoopClock(Path(sys.argv[1]))

    async def measured(settings: Config, arguments: argparse.Namespace) -> None:
        task = asyncio.create_task(clock.measure())
        try:
            await serve(settings, arguments)
        finally:
            task.cancel()

    run.serve = measured
    return run.main(sys.argv[4:])


if __name__ == "__main__":
    sys.exit(main())
