"""When the journal's write-ahead log is moved, and that the loop does not wait for the disk because of it."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import pytest

from models.supervision.tables import database
from models.tracker.tables import reports
from supervisor.maintenance import Maintenance

if TYPE_CHECKING:
    from supervisor.processes.event_writer import EventWriter

_SALT = slice(16, 24)
"""What is new in the head of a write-ahead log each time that is begun anew (sqlite.org/fileformat2.html, 4.1)."""


class Counted:
    """Stands for the journal: only how often it wrote counts here."""

    commits = 0


@pytest.fixture
def wal(tmp_path: Path) -> Iterator[Path]:
    database.open(tmp_path / "pilothouse.db")
    yield tmp_path / "pilothouse.db-wal"
    database.close()


def write() -> None:
    with database.atomic():
        database.execute_sql("INSERT INTO tally VALUES ('x', 1) ON CONFLICT (scope) DO UPDATE SET events = events + 1")


def begun(wal: Path) -> bytes:
    return wal.read_bytes()[_SALT]


def test_the_first_write_after_a_checkpoint_is_not_left_to_the_loop(wal: Path) -> None:
    write()
    first = begun(wal)
    asyncio.run(asyncio.to_thread(database.checkpoint))
    assert begun(wal) == first
    write()  # it begins the log anew, and waits for the disk
    second = begun(wal)
    assert second != first
    asyncio.run(asyncio.to_thread(database.checkpoint, begin=True))
    third = begun(wal)
    assert third != second
    write()
    assert begun(wal) == third
    assert int(database.pragma("user_version")) == len(database.steps)


def made(folder: Path) -> Maintenance:
    nothing: Any = None
    wal, writer = folder / "tracker.db-wal", cast("EventWriter", Counted())
    return Maintenance(nothing, writer, nothing, nothing, lambda: None, wal)


def moved(maintenance: Maintenance, wal: Path, commits: int, beat: int = 1) -> bool:
    """Whether that many commits since the last time have the log moved, at that beat."""
    write()
    before = begun(wal)
    maintenance._event_writer.commits = commits
    asyncio.run(maintenance._run_round(beat))
    return begun(wal) != before


def test_it_waits_for_a_storm_to_pass(wal: Path, tmp_path: Path) -> None:
    maintenance = made(tmp_path)
    assert not moved(maintenance, wal, 50)
    assert not moved(maintenance, wal, 5_000)  # much was written since the beat before
    assert moved(maintenance, wal, 5_050)  # little was
    assert not moved(maintenance, wal, 5_000)
    assert moved(maintenance, wal, 10_000)  # but it does not grow for ever


def test_where_nothing_was_written_nothing_is(wal: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("supervisor.maintenance._CHECKPOINT_EVERY_ROUNDS", 7)  # not with that of zombies
    reports.open(tmp_path / "tracker.db")
    maintenance = made(tmp_path)
    assert not moved(maintenance, wal, 0, beat=7)
    assert moved(maintenance, wal, 1, beat=7)
    reports.close_all()


def test_others_wake_with_its_rounds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("supervisor.maintenance.INTERVAL_SECONDS", 0.001)
    maintenance = made(tmp_path)

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
