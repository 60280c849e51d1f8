"""Pages of a long history: the duration must not depend on the number of events.

As a program (`-m benchmarks.paging DATA_DIR COUNT`) it fills a store: the models know one database for each process.
"""

import contextlib
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks import report
from benchmarks.candidates import ROOT, Pilothouse, Setup
from benchmarks.httpload import Target, hammer

if TYPE_CHECKING:
    from models.supervision.events import StatusEvent

PROCESSES = 50
BATCH = 20_000
QUERIES = {
    "/events, first page": "/api/v1/events?page=0&size=20",
    "/events, first page of 100": "/api/v1/events?page=0&size=100",
    "/events/by-process, first page": "/api/v1/events/by-process/c0007?page=0&size=20",
    "/events/by-status, first page": "/api/v1/events/by-status/failed?page=0&size=20",
    "/events, last page": "/api/v1/events?page={last}&size=20",
    "/events, middle page": "/api/v1/events?page={middle}&size=20",
    "/events, first page by processName": "/api/v1/events?page=0&size=20&sortBy=processName",
    "/events/count": "/api/v1/events/count",
}


@dataclass(frozen=True)
class Row:
    """A query, and the median duration for each length of the history."""

    query: str
    milliseconds: dict[int, float] = field(default_factory=dict)


def fill(data_dir: Path, count: int) -> None:
    """Writes `count` events through the models: starts, runs and failures of some processes over the last ten days."""
    from models.supervision.events import append
    from models.supervision.tables import database

    data_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
    database.open(data_dir / "pilothouse.db")
    for first in range(1, count + 1, BATCH):
        with database.atomic():
            append(_entries(first, min(BATCH, count + 1 - first), count))
        database.checkpoint()


def _entries(first: int, batch: int, count: int) -> list["StatusEvent"]:
    from models.supervision.events import StatusEvent
    from models.supervision.process import Status

    moves = (
        (Status("not_started"), Status("starting")),
        (Status("starting"), Status("running")),
        (Status("running"), Status("failed")),
    )
    now, span = int(time.time() * 1e6), 10 * 86_400 * 1_000_000
    begin, step = now - span, span / count
    entries = []
    for number in range(first, first + batch):
        at = begin + int(number * step)
        old, new = moves[number % 3]
        ended = new.value == "failed"
        entries.append(
            StatusEvent(
                id=number,
                at=at,
                process=f"c{number // 3 % PROCESSES:04}",
                pid=number % 30_000 + 2,
                start=at - 1_000_000,
                end=at if ended else None,
                exit_code=1 if ended else None,
                new=new,
                old=old,
                uptime=1_000_000,
            )
        )
    return entries


def measure(sizes: Sequence[int], seconds: float = 0.4) -> list[Row]:
    """Each query, repeated by one client, on a history of each size."""
    rows = [Row(query) for query in QUERIES]
    for size in sizes:
        with _served(size) as port:
            for row in rows:
                last = (size - 1) // 20
                path = QUERIES[row.query].format(last=last, middle=last // 2)
                row.milliseconds[size] = hammer(Target.get(port, path), 1, seconds).median
    return rows


@contextlib.contextmanager
def _served(size: int) -> Iterator[int]:
    """Starts Pilothouse without processes on a history of `size` events; yields its port."""
    with tempfile.TemporaryDirectory(prefix="ph-bench-", ignore_cleanup_errors=True) as name:
        setup = Setup(Path(name), 0, ())
        filler = [sys.executable, "-m", "benchmarks.paging", str(setup.directory / "data"), str(size)]
        subprocess.run(filler, check=True, timeout=120, cwd=ROOT)
        server = Pilothouse(setup)
        server.settings = {"events": {"retain-rows": 10 * size, "retain-days": 3650}}
        try:
            server.launch()
            server.connect()
            yield server.port
        finally:
            server.close()


def table(rows: Sequence[Row]) -> str:
    sizes = sorted(rows[0].milliseconds)
    head = ["page, median ms of one client", *(f"{size:,} events" for size in sizes), "ratio"]
    return report.table(head, [_cells(row, sizes) for row in rows])


def _cells(row: Row, sizes: Sequence[int]) -> list[str]:
    found = [row.milliseconds[size] for size in sizes]
    return [row.query, *(f"{value:.2f}" for value in found), f"x {found[-1] / found[0]:.2g}"]


if __name__ == "__main__":
    fill(Path(sys.argv[1]), int(sys.argv[2]))
