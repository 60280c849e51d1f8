"""The stored state of each process: enough to adopt its child after the server was killed."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import NamedTuple

from models.storage.sqlite import storable
from models.supervision.process import STATUSES, Status
from models.supervision.tables import database

_COLUMNS = (
    "name, status, wanted, generation, pid, start_ticks, boot_id, start_time, end_time, exit_code, uptime, failed_log,"
    " period, held"
)
_SAVE = f"INSERT OR REPLACE INTO supervised ({_COLUMNS}) VALUES ({', '.join('?' * 14)})"  # noqa: S608 (our own names)


class Record(NamedTuple):
    """The state of one process; replaced at each change.

    `wanted` is whether the operator (or auto-start) last requested it to run. `generation` counts its starts and
    distinguishes its instances. `pid`, `start_ticks` and `boot_id` identify its last child; the status determines
    whether that is live. Times are microseconds since 1970 (UTC); `uptime` is how long the last instance ran, in
    microseconds. `period` is the one in which its last instance began: a new one begins when the server starts and
    finds no live child. `held` is whether an operator stopped it since its last start: no schedule starts it as a
    dependency then.
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
    period: int = 0
    held: bool = False

    def row(self) -> tuple[object, ...]:
        return (
            self.name, self.status.rank, self.wanted, self.generation, self.pid, self.start_ticks, self.boot_id,
            self.start, self.end, self.exit_code, self.uptime, self.failed_log and storable(self.failed_log),
            self.period, self.held,
        )  # fmt: skip


def save(records: Iterable[Record]) -> None:
    """Replaces the rows of these processes. For use within `atomic()`."""
    database.write_many(_SAVE, [record.row() for record in records])


def load() -> dict[str, Record]:
    """All records by name, also of processes that are no longer configured."""
    rows = database.execute_sql(f"SELECT {_COLUMNS} FROM supervised")  # noqa: S608
    return {row[0]: Record(row[0], STATUSES[row[1]], bool(row[2]), *row[3:]) for row in rows}


def forget(names: Collection[str]) -> None:
    """Deletes the records of processes that are no longer configured; their events stay. For use within `atomic()`."""
    database.write_many("DELETE FROM supervised WHERE name = ?", [(name,) for name in names])
