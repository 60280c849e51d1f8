"""The runs of jobs and the states of schedules, stored and read in pages."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal

from attrs import astuple, frozen

from models.paging import Page, Paging
from models.supervision.process import Status
from models.supervision.tables import database

Trigger = Literal["schedule", "manual", "dependency", "restart", "auto"]
Outcome = Literal["success", "failure", "timeout", "stopped", "unknown"]

_COLUMNS = "id, process, generation, trigger, scheduled_for, start_time, end_time, exit_code, outcome"
_SAVE = f"INSERT OR REPLACE INTO run ({_COLUMNS}) VALUES ({', '.join('?' * 9)})"  # noqa: S608 (our own names)
_PRUNE = (
    "DELETE FROM run WHERE process = ? AND id <= "
    "(SELECT id FROM run WHERE process = ? ORDER BY id DESC LIMIT 1 OFFSET ?)"
)
_STATE = "process, times, handled, paused, missed, skipped, queued"
_SAVE_STATE = f"INSERT OR REPLACE INTO schedule ({_STATE}) VALUES ({', '.join('?' * 7)})"  # noqa: S608


@frozen
class Cause:
    """Why a process is started."""

    trigger: Trigger = "manual"
    scheduled_for: int | None = None
    """The instant of the schedule."""


@frozen
class JobRun:
    """One run of a job: an instance, or an attempt to start one. Times are microseconds since 1970."""

    id: int
    process: str
    generation: int
    trigger: Trigger
    scheduled_for: int | None = None
    start: int | None = None
    end: int | None = None
    exit_code: int | None = None
    outcome: Outcome | None = None
    """`None` while the run is in progress."""


@frozen
class ScheduleState:
    """The stored state of a schedule."""

    process: str
    times: str
    """`Schedule.times` to which the other values apply."""
    handled: int
    """The newest instant that ran, was skipped or was missed: no instant up to it runs any more."""
    paused: bool = False
    missed: int = 0
    skipped: int = 0
    queued: int | None = None
    """The instant of the run that waits for the run before it (`overlap: queue`)."""


def outcome_of(status: Status, old: Status) -> Outcome:
    """The outcome of a run that ended with `status`; `old` is the status before."""
    if status is Status.FINISHED:
        return "success"
    if status is Status.UNKNOWN:
        return "unknown"
    return "stopped" if Status.STOPPED is status or old is Status.STOPPING else "failure"


def last_id() -> int:
    return int(database.execute_sql("SELECT coalesce(max(id), 0) FROM run").fetchone()[0])


def latest() -> dict[str, JobRun]:
    """The last run of each process."""
    query = f"SELECT {_COLUMNS} FROM run WHERE id IN (SELECT max(id) FROM run GROUP BY process)"  # noqa: S608
    return {row[1]: JobRun(*row) for row in database.execute_sql(query)}


def save(runs: Iterable[JobRun], retain: int) -> None:
    """Writes these runs and keeps the newest `retain` of each process. For use within `atomic()`."""
    written = [astuple(run) for run in runs]
    database.write_many(_SAVE, written)
    database.write_many(_PRUNE, [(name, name, retain) for name in {row[1] for row in written}])


def page(process: str, paging: Paging) -> Page[JobRun]:
    """One page of the runs of a process, read in one transaction."""
    way = "DESC" if paging.descending else "ASC"
    query = f"SELECT {_COLUMNS} FROM run WHERE process = ? ORDER BY id {way} LIMIT ? OFFSET ?"  # noqa: S608
    with database.atomic("DEFERRED"):
        (total,) = database.execute_sql("SELECT count(*) FROM run WHERE process = ?", (process,)).fetchone()
        rows: Sequence[Sequence[Any]] = database.execute_sql(query, (process, paging.size, paging.offset)).fetchall()
    return Page([JobRun(*row) for row in rows], total, paging)


def save_states(states: Mapping[str, ScheduleState | None]) -> None:
    """Writes these states; `None` deletes one. For use within `atomic()`."""
    database.write_many(_SAVE_STATE, [astuple(state) for state in states.values() if state is not None])
    deleted = [(name,) for name, state in states.items() if state is None]
    database.write_many("DELETE FROM schedule WHERE process = ?", deleted)


def load_states() -> dict[str, ScheduleState]:
    rows = database.execute_sql(f"SELECT {_STATE} FROM schedule")  # noqa: S608
    return {row[0]: ScheduleState(row[0], row[1], row[2], bool(row[3]), *row[4:]) for row in rows}
