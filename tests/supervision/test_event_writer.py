"""The event writer, also with a store whose writes fail."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Coroutine, Iterator
from pathlib import Path
from typing import Any

import pytest
from conftest import until

from models.errors import Unavailable
from models.supervision import events
from models.supervision import record as supervised
from models.supervision.events import Filter, StatusEvent
from models.supervision.process import Status
from models.supervision.record import Record
from models.supervision.tables import database
from supervisor.processes import event_writer as writers
from supervisor.processes.event_writer import EventWriter

WEB = Record("web", Status.STARTING, wanted=True, generation=1)


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Path]:
    path = tmp_path / "pilothouse.db"
    database.open(path)
    yield path
    database.close()


def run(work: Coroutine[Any, Any, None]) -> None:
    async def with_timeout() -> None:
        async with asyncio.timeout(20):
            await work

    asyncio.run(with_timeout())


def record(event_writer: EventWriter, number: int) -> None:
    """Records a change, identified by its pid."""
    event_writer.record(WEB._replace(pid=number), Status.NOT_STARTED, at=1000 + number, uptime=0)


def stored() -> list[tuple[int, int | None]]:
    return [(entry.id, entry.pid) for entry in events.since(0, 10_000)]


def test_change_is_published_only_after_it_is_stored(store: Path) -> None:
    seen: list[tuple[StatusEvent, bool]] = []

    async def work() -> None:
        event_writer = EventWriter(lambda entry: seen.append((entry, events.get(entry.id) == entry)))
        record(event_writer, 7)
        assert not seen
        assert await event_writer.stored_within(5)

    run(work())
    assert [(entry.id, entry.pid, entry.new, was_stored) for entry, was_stored in seen] == [
        (1, 7, Status.STARTING, True)
    ]


def test_stored_within_returns_at_once_without_changes(store: Path) -> None:
    async def work() -> None:
        assert await EventWriter(lambda _: None).stored_within(0)

    run(work())


def test_changes_of_one_loop_iteration_are_one_transaction(store: Path) -> None:
    async def work() -> None:
        event_writer = EventWriter(lambda _: None)
        for number in range(200):
            record(event_writer, number)
        assert await event_writer.stored_within(5)
        assert event_writer.commits == 1

    run(work())
    assert stored() == [(number + 1, number) for number in range(200)]


def test_ids_continue_after_those_of_an_earlier_writer(store: Path) -> None:
    async def work() -> None:
        event_writer = EventWriter(lambda _: None)
        record(event_writer, 5)
        assert await event_writer.stored_within(5)

    run(work())
    run(work())
    assert stored() == [(1, 5), (2, 5)]


def test_last_noted_record_is_stored_without_an_event(store: Path) -> None:
    async def work() -> None:
        event_writer = EventWriter(lambda _: None)
        event_writer.note(WEB._replace(pid=1))
        event_writer.note(WEB._replace(pid=2, exit_code=3, failed_log="why\nso"))
        assert await event_writer.stored_within(5)
        assert supervised.load() == {"web": WEB._replace(pid=2, exit_code=3, failed_log="why\nso")}
        event_writer.forget("web")
        assert await event_writer.stored_within(5)

    run(work())
    assert supervised.load() == {}
    assert events.count(Filter()) == 0


class StoreFault:
    """Makes writes to the store fail until `repair`."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def repair(self) -> None: ...


class Locked(StoreFault):
    def __init__(self, path: Path) -> None:
        self.other = sqlite3.connect(path, isolation_level=None)
        self.other.execute("BEGIN IMMEDIATE")

    def repair(self) -> None:
        self.other.execute("ROLLBACK")
        self.other.close()


class Full(StoreFault):
    def __init__(self, path: Path) -> None:
        pages = database.pragma("page_count")
        database.execute_sql(f"PRAGMA max_page_count = {pages}")
        assert database.pragma("max_page_count") == pages

    def repair(self) -> None:
        database.execute_sql("PRAGMA max_page_count = 1000000")


class ReadOnly(StoreFault):
    def __init__(self, path: Path) -> None:
        database.execute_sql("PRAGMA query_only = 1")

    def repair(self) -> None:
        database.execute_sql("PRAGMA query_only = 0")


class Refusing(StoreFault):
    def __init__(self, path: Path) -> None:
        database.execute_sql(
            "CREATE TRIGGER refuse BEFORE INSERT ON event BEGIN SELECT RAISE(ABORT, 'not this one'); END"
        )

    def repair(self) -> None:
        database.execute_sql("DROP TRIGGER refuse")


STORE_FAULTS = [Locked, Full, ReadOnly, Refusing]


@pytest.mark.parametrize("fault_type", STORE_FAULTS)
def test_failing_store_blocks_no_caller_and_gets_all_changes_in_order_later(
    store: Path, fault_type: type[StoreFault], caplog: pytest.LogCaptureFixture
) -> None:
    seen: list[int] = []

    async def work() -> None:
        event_writer = EventWriter(lambda entry: seen.append(entry.id))
        fault = fault_type(store)
        for number in range(300):  # more than fits into the free pages
            record(event_writer, number)
        assert not await event_writer.stored_within(0.05)
        assert not seen
        await until(lambda: event_writer.failing)
        assert event_writer.waiting == 300
        record(event_writer, 300)
        fault.repair()
        assert await event_writer.stored_within(10)
        assert not event_writer.failing
        assert event_writer.waiting == 0

    run(work())
    assert stored() == [(number + 1, number) for number in range(301)]
    assert seen == list(range(1, 302))
    assert supervised.load()["web"].pid == 300
    assert [one.levelname for one in caplog.records] == ["ERROR", "WARNING"]  # once when it begins, once when it ends


@pytest.mark.parametrize("fault_type", STORE_FAULTS)
def test_ensure_stored_raises_unavailable_while_the_store_fails(
    store: Path, fault_type: type[StoreFault], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(writers, "_ENSURE_STORED_SECONDS", 0.1)

    async def work() -> None:
        event_writer = EventWriter(lambda _: None)
        fault = fault_type(store)
        for number in range(300):
            record(event_writer, number)
        with pytest.raises(Unavailable):
            await event_writer.ensure_stored()
        fault.repair()
        await event_writer.stored_within(10)
        await event_writer.ensure_stored()

    run(work())
    assert len(stored()) == 300


def test_stored_soon_returns_while_the_store_fails(store: Path) -> None:
    async def work() -> None:
        event_writer = EventWriter(lambda _: None)
        fault = Locked(store)
        record(event_writer, 1)
        await event_writer.stored_soon()  # returns while the store is still locked
        await until(lambda: event_writer.failing)
        for _ in range(100):
            await event_writer.stored_soon()
        fault.repair()
        assert await event_writer.stored_within(10)

    run(work())


def test_stored_soon_does_not_wait_for_changes_of_other_processes(store: Path) -> None:
    async def work() -> None:
        event_writer = EventWriter(lambda _: None)
        fault = Locked(store)
        record(event_writer, 1)
        with pytest.raises(StopIteration):
            event_writer.stored_soon("other").send(None)  # it returns without waiting
        assert event_writer.waiting == 1
        fault.repair()
        await event_writer.stored_soon("web")
        assert stored() == [(1, 1)]

    run(work())


@pytest.mark.parametrize("before", [0, 1500], ids=["no others", "others of more than one commit"])
def test_stored_soon_waits_for_all_changes_of_its_process(
    store: Path, monkeypatch: pytest.MonkeyPatch, before: int
) -> None:
    monkeypatch.setattr(writers, "_STORED_SOON_SECONDS", 10.0)  # under load two commits may take longer than a moment

    async def work() -> None:
        event_writer = EventWriter(lambda _: None)
        for number in range(before):
            event_writer.record(WEB._replace(name="other", pid=number), Status.NOT_STARTED, at=number, uptime=0)
        record(event_writer, 1)
        await event_writer.stored_soon("web")
        assert len(stored()) == before + 1

    run(work())


def test_stored_soon_returns_after_the_commit(store: Path) -> None:
    async def work() -> None:
        event_writer = EventWriter(lambda _: None)
        record(event_writer, 1)
        await event_writer.stored_soon()
        assert stored() == [(1, 1)]

    run(work())


def test_queue_for_the_store_is_bounded_and_keeps_the_newest_changes(store: Path) -> None:
    async def work() -> None:
        event_writer = EventWriter(lambda _: None, keep=10)
        fault = Locked(store)
        for number in range(1, 51):
            record(event_writer, number)
            await asyncio.sleep(0)
        assert event_writer.waiting == 10
        fault.repair()
        assert await event_writer.stored_within(10)

    run(work())
    assert stored() == [(number, number) for number in range(41, 51)]
    assert events.counts() == {"totalEvents": 10, "starting": 10}


def test_change_that_cannot_be_stored_is_dropped_and_delays_no_other_change(store: Path) -> None:
    async def work() -> None:
        event_writer = EventWriter(lambda _: None)
        record(event_writer, 1)
        event_writer.record(WEB._replace(name="\udcff", pid=2), Status.NOT_STARTED, at=1002, uptime=0)
        record(event_writer, 3)
        assert await event_writer.stored_within(5)
        commits = event_writer.commits
        for _ in range(20):
            await asyncio.sleep(0)
        assert event_writer.commits == commits
        record(event_writer, 4)
        assert await event_writer.stored_within(5)

    run(work())
    assert [pid for _, pid in stored()] == [1, 3, 4]


def test_changes_without_a_waiting_caller_share_commits_and_others_are_not_delayed(
    store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(writers, "_COMMIT_INTERVAL_SECONDS", 3600.0)
    monkeypatch.setattr(writers, "_EAGER_FLUSH_ENTRIES", 10)

    async def work() -> None:
        event_writer = EventWriter(lambda entry: None)
        record(event_writer, 1)
        await until(lambda: stored() == [(1, 1)])  # the first change after a pause is not delayed
        for number in range(2, 10):
            record(event_writer, number)
            await asyncio.sleep(0)
        assert event_writer.commits == 1
        await event_writer.ensure_stored()
        assert (len(stored()), event_writer.commits) == (9, 2)
        for number in range(10, 20):
            record(event_writer, number)
        await until(lambda: len(stored()) == 19)  # ten queued changes are stored without delay
        assert event_writer.commits == 3

    run(work())
