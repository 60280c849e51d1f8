"""What is kept of each process beside its history: enough to find it again after we were killed."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import NamedTuple

from models.storage.sqlite import storable
from models.supervision.process import STATUSES, Status
from models.supervision.tables import Supervised, database

_COLUMNS = (
    "name, status, wanted, generation, pid, start_ticks, boot_id, start_time, end_time, exit_code, uptime, failed_log"
)
_SAVE = f"INSERT OR REPLACE INTO supervised ({_COLUMNS}) VALUES ({', '.join('?' * 12)})"  # noqa: S608 (our own names)


class Record(NamedTuple):
    """One process at one moment, never changed but replaced: four times in each life, so it is a tuple.

    `wanted` is what the operator (or auto-start) last asked for. `generation` counts its starts: it tells a child from
    the ones before it. `pid`, `start_ticks` and `boot_id` are those of its last child and together name one process of
    one boot; whether that one still lives is told by the status. Times are microseconds since 1970 (UTC), `uptime` is
    the length of the last life in microseconds, once that is over.
    """

    name: str
    status: Status = Status.NOT_STARTED
    wanted: bool = False
    generation: int = 0
    pid: int | None = None
    start_ticks: int | None = None
    boot_id: str | None = None
    start: int | None = None
    end: int | None = None
    exit_code: int | None = None
    uptime: int = 0
    failed_log: str | None = None

    def row(self) -> tuple[object, ...]:
        return (
            self.name, self.status.rank, self.wanted, self.generation, self.pid, self.start_ticks, self.boot_id,
            self.start, self.end, self.exit_code, self.uptime, self.failed_log and storable(self.failed_log),
        )  # fmt: skip


def save(records: Iterable[Record]) -> None:
    """Replaces the rows of these processes. For use within `atomic()`."""
    database.write_many(_SAVE, [record.row() for record in records])


def load() -> dict[str, Record]:
    """All that is known of processes, by name, also of those that the configuration no longer has."""
    rows = database.execute_sql(f"SELECT {_COLUMNS} FROM supervised")  # noqa: S608
    return {row[0]: Record(row[0], STATUSES[row[1]], bool(row[2]), *row[3:]) for row in rows}


def forget(names: Collection[str]) -> None:
    """Drops what is kept of processes that are configured no more; their history stays. For use within `atomic()`."""
    if names:
        Supervised.delete().where(Supervised.name.in_(list(names))).execute()
