"""What the metrics of many processes cost: the size of a day in the store, the transaction of a minute, a sample.

    python benchmarks/metrics.py [--processes 500] [--minutes 1440] [--runs 5] [--out FILE]

The store is filled with a day of minutes of random values, all of which have a process group of its own; then each run
stores one more minute, as the server does once a minute, and takes one sample of as many processes that do nothing.
"""

import argparse
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))  # it is run as a program

from benchmarks import claims, report
from benchmarks.claims import Claim
from models.supervision import metrics
from models.supervision.metrics import Minute
from models.supervision.tables import database
from supervisor.clock import Clock
from supervisor.processes.readings import MEMBERS_SECONDS, GroupReader

MAX_BYTES = 40_000_000
MAX_PERCENT = 2.0
MAX_SAMPLES_PERCENT = 0.05
MINUTE_SECONDS, INTERVAL_SECONDS = 60, 5
_FIRST_MINUTE = 30_000_000
_TIMEOUT_SECONDS = 60.0


@dataclass(frozen=True)
class Cost:
    rows: int
    size: int
    """Of the store's file less that of an empty one, in bytes."""
    minutes: list[float]
    """Processor seconds of each transaction."""
    read: list[float]
    """Processor seconds of reading the day of one process."""
    samples: list[float]
    """Processor seconds of each sample of processes that have not run."""
    whole: list[float]
    """Processor seconds of each sample that reads everything, with a search for the members of groups."""


def values(chance: random.Random) -> list[float]:
    """Up to 400 % of a processor and 16 GB; the group uses more."""
    cpu, memory = chance.uniform(0, 200), chance.uniform(1e6, 8e9)
    one = [cpu, 2 * cpu, memory, 1.5 * memory]
    return [*one, *(1.1 * value for value in one)]


def minute_of(processes: int, number: int, chance: random.Random) -> dict[str, list[Minute]]:
    return {f"process-{name:03}": [(_FIRST_MINUTE + number, values(chance))] for name in range(processes)}


def store(batch: dict[str, list[Minute]], number: int, keep: int) -> None:
    """Stores a minute as the server does: on a connection of its own."""
    last = _FIRST_MINUTE + number
    database.run_with_timeout(lambda: metrics.write(batch, last - keep + 1, last), _TIMEOUT_SECONDS)


def spent(work: Callable[[], object]) -> float:
    before = time.process_time()
    work()
    return time.process_time() - before


@contextmanager
def sleeping(processes: int) -> Iterator[set[int]]:
    """As many processes, each in a session of its own; their pids."""
    made = [subprocess.Popen(["sleep", "1000"], start_new_session=True) for _ in range(processes)]
    try:
        yield {process.pid for process in made}
    finally:
        for process in made:
            process.kill()
            process.wait()


def measure(processes: int, keep: int, runs: int) -> Cost:
    chance, clock = random.Random(1), Clock()
    with tempfile.TemporaryDirectory(prefix="ph-bench-") as name:
        path = Path(name) / "pilothouse.db"
        database.open(path)
        database.checkpoint(truncate=True)
        empty = path.stat().st_size
        for number in range(keep):
            store(minute_of(processes, number, chance), number, keep)
        minutes = []
        for number in range(keep, keep + runs):
            batch = minute_of(processes, number, chance)
            minutes.append(spent(lambda: store(batch, number, keep)))  # noqa: B023 (called at once)
        database.checkpoint(truncate=True)
        first, last = _FIRST_MINUTE + runs, _FIRST_MINUTE + keep + runs
        read = [spent(lambda: metrics.of_process("process-000", first, last)) for _ in range(runs)]
        rows = int(database.execute_sql("SELECT count(*) FROM metric_minute").fetchone()[0])
        size = path.stat().st_size - empty
        database.close()
    with sleeping(processes) as leaders:
        whole = [spent(lambda: GroupReader(clock).read(leaders)) for _ in range(runs)]
        reader = GroupReader(clock)
        reader.read(leaders)
        samples = [spent(lambda: reader.read(leaders)) for _ in range(runs)]
    return Cost(rows, size, minutes, read, samples, whole)


def claimed(processes: int, cost: Cost) -> list[Claim]:
    def of(text: str, unit: str, ours: list[float], bound: float) -> Claim:
        return Claim("metrics", f"{processes} processes: {text}", unit, ours, target=bound)

    return [
        of("the minutes of a day in the store", "MB", [cost.size / 1e6], MAX_BYTES / 1e6),
        of("the transaction of a minute", "% of a processor", share(cost.minutes, MINUTE_SECONDS), MAX_PERCENT),
        of("samples every 5 s", "% of a processor", share(cost.samples, INTERVAL_SECONDS), MAX_SAMPLES_PERCENT),
        of("whole samples every 30 s", "% of a processor", share(cost.whole, MEMBERS_SECONDS), MAX_SAMPLES_PERCENT),
    ]


def share(seconds: list[float], every: float) -> list[float]:
    """Percent of one processor."""
    return [100 * one / every for one in seconds]


def document(processes: int, cost: Cost, found: list[Claim]) -> str:
    milliseconds = [[1000 * one for one in seconds] for seconds in (cost.minutes, cost.samples, cost.whole, cost.read)]
    head = ["", "processor time, ms"]
    names = ("the transaction of a minute", "a sample", "a whole sample", "reading the day of one process")
    rows = [
        [name, " / ".join(f"{one:.1f}" for one in values)] for name, values in zip(names, milliseconds, strict=True)
    ]
    return (
        f"# Metrics\n\n{report.machine()}. {processes} processes, {cost.rows:,} rows, {cost.size / 1e6:.1f} MB: "
        f"{cost.size / cost.rows:.0f} bytes a row. Each run has its own figure.\n\n{report.table(head, rows)}\n\n"
        f"{claims.claims_table(found)}\n"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description="What the metrics of many processes cost.")
    parser.add_argument("--processes", type=int, default=500)
    parser.add_argument("--minutes", type=int, default=1440, help="that are kept")
    parser.add_argument("--runs", type=int, default=5)
    claims.add_outputs(parser)
    options = parser.parse_args()
    cost = measure(options.processes, options.minutes, options.runs)
    found = claimed(options.processes, cost)
    text = document(options.processes, cost, found)
    claims.publish(options, text, found)


if __name__ == "__main__":
    main()
