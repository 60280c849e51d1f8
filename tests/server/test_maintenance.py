"""Checkpoints of the write-ahead log: when they are made, and without a wait of the loop for the disk."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import pytest

from models.supervision.tables import database
from models.tracker.tables import reports
from supervisor.maintenance import Maintenance
from supervisor.tracker.disk_space import DiskSpace

if TYPE_CHECKING:
    from supervisor.processes.event_writer import EventWriter
    from supervisor.processes.logs.growth import LogGrowth

_SALT = slice(16, 24)
"""Bytes of the header that change when the write-ahead log restarts (sqlite.org/fileformat2.html, 4.1)."""


class CommitCounter:
    """Has only the number of commits."""

    commits = 0


@pytest.fixture
def wal(tmp_path: Path) -> Iterator[Path]:
    database.open(tmp_path / "pilothouse.db")
    yield tmp_path / "pilothouse.db-wal"
    database.close()


def write() -> None:
    with database.atomic():
        database.execute_sql("INSERT INTO tally VALUES ('x', 1) ON CONFLICT (scope) DO UPDATE SET events = events + 1")


def salt(wal: Path) -> bytes:
    return wal.read_bytes()[_SALT]


def test_checkpoint_with_begin_makes_the_first_write_to_the_log(wal: Path) -> None:
    write()
    first = salt(wal)
    asyncio.run(asyncio.to_thread(database.checkpoint))
    assert salt(wal) == first
    write()  # restarts the log, and waits for the disk
    second = salt(wal)
    assert second != first
    asyncio.run(asyncio.to_thread(database.checkpoint, begin=True))
    third = salt(wal)
    assert third != second
    write()
    assert salt(wal) == third
    assert int(database.pragma("user_version")) == len(database.steps)


def make_maintenance(folder: Path) -> Maintenance:
    nothing: Any = None
    wal, writer = folder / "tracker.db-wal", cast("EventWriter", CommitCounter())
    return Maintenance(nothing, writer, nothing, nothing, lambda: None, wal, DiskSpace(folder, 0))


def restarts_log(maintenance: Maintenance, wal: Path, commits: int, round_number: int = 1) -> bool:
    """Whether the maintenance round restarts the log, after this total number of commits."""
    write()
    before = salt(wal)
    maintenance._event_writer.commits = commits
    asyncio.run(maintenance._run_round(round_number))
    return salt(wal) != before


def test_checkpoint_is_postponed_during_many_commits(wal: Path, tmp_path: Path) -> None:
    maintenance = make_maintenance(tmp_path)
    assert not restarts_log(maintenance, wal, 50)
    assert not restarts_log(maintenance, wal, 5_000)  # many commits since the previous round
    assert restarts_log(maintenance, wal, 5_050)  # few commits
    assert not restarts_log(maintenance, wal, 5_000)
    assert restarts_log(maintenance, wal, 10_000)  # the log does not grow without a limit


def test_no_checkpoint_is_made_without_commits(wal: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        "supervisor.maintenance._CHECKPOINT_EVERY_ROUNDS", 7
    )  # in another round than the check for zombies
    reports.open(tmp_path / "tracker.db")
    maintenance = make_maintenance(tmp_path)
    assert not restarts_log(maintenance, wal, 0, round_number=7)
    assert restarts_log(maintenance, wal, 1, round_number=7)
    reports.close_all()


def test_round_end_wakes_all_waiting_tasks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("supervisor.maintenance.INTERVAL_SECONDS", 0.001)
    maintenance = make_maintenance(tmp_path)

    async def work() -> None:
        watch = asyncio.create_task(maintenance.watch())
        cancelled, *waiting = [asyncio.create_task(maintenance.round_end()) for _ in range(3)]
        await asyncio.sleep(0)
        cancelled.cancel()  # must not end the waiting of the others
        await asyncio.wait(waiting)
        await maintenance.round_end()
        watch.cancel()
        await asyncio.wait({watch, cancelled})

    asyncio.run(asyncio.wait_for(work(), 30))


class HangingRotation:
    """Log files whose file system does not answer."""

    begun = 0

    async def rotate_all(self) -> None:
        self.begun += 1
        await asyncio.Event().wait()


def test_rotation_that_hangs_holds_up_no_round(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("supervisor.maintenance._ROTATION_SECONDS", 0.01)
    maintenance, rotation = make_maintenance(tmp_path), HangingRotation()
    maintenance._log_growth = cast("LogGrowth", rotation)

    async def work() -> None:
        for _ in range(3):
            await maintenance._run_round(2)
        maintenance.close()

    asyncio.run(asyncio.wait_for(work(), 30))
    assert rotation.begun == 1
