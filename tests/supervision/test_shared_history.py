"""The event history that nodes share in PostgreSQL, compared with the SQLite files of the nodes."""

from __future__ import annotations

import asyncio
import random
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from attrs import evolve
from postgresql import Postgresql
from test_events import FIELDS, FILTERS, some_events, write

from models.errors import NotFound
from models.paging import Paging
from models.storage.postgres import Postgres
from models.supervision import events, shared_events
from models.supervision.tables import database
from supervisor import replication


@pytest.fixture
def shared(postgresql: Postgresql) -> Iterator[Postgres]:
    store = shared_events.open_history(postgresql.emptied())
    yield store
    store.close_all()


@pytest.fixture
def node_store(tmp_path: Path) -> Iterator[None]:
    database.open(tmp_path / "pilothouse.db")
    yield
    database.close()


@pytest.mark.usefixtures("node_store")
def test_shared_history_is_paged_like_the_store_of_a_node(shared: Postgres) -> None:
    chance = random.Random(7)
    entries = some_events(chance, 1, 120)
    write(entries)
    for start in range(0, 120, 50):
        shared.run_with_timeout(lambda: shared_events.copy(shared, "one", entries[start : start + 50]), 20)  # noqa: B023 (called here)
    for which in FILTERS:
        for sort in FIELDS:
            for descending in (True, False):
                for number in (0, 3):
                    requested = Paging(number, 13, sort, descending)
                    assert events.page(requested, which, shared) == events.page(requested, which), (which, requested)
    assert events.counts(shared) == events.counts()
    assert events.get(77, shared) == events.get(77)
    assert events.since(100, 30, shared) == events.since(100, 30)
    with pytest.raises(NotFound):
        events.get(121, shared)


def test_events_copied_again_are_stored_once_in_the_order_of_the_copies(shared: Postgres) -> None:
    chance = random.Random(8)
    one, two = some_events(chance, 1, 40), some_events(chance, 1, 30)
    shared.run_with_timeout(lambda: shared_events.copy(shared, "one", one[:20]), 20)
    shared.run_with_timeout(lambda: shared_events.copy(shared, "two", two), 20)
    shared.run_with_timeout(lambda: shared_events.copy(shared, "one", one[10:]), 20)
    shared.run_with_timeout(lambda: shared_events.copy(shared, "one", one), 20)
    found = events.since(0, 1000, shared)
    assert [entry.id for entry in found] == list(range(1, 71))
    assert [evolve(entry, id=0) for entry in found] == [evolve(entry, id=0) for entry in (*one[:20], *two, *one[20:])]
    assert events.counts(shared)["totalEvents"] == 70


def test_ids_have_no_gap_with_concurrent_copies(shared: Postgres) -> None:
    def copy(name: str) -> None:
        for entry in some_events(random.Random(name), 1, 25):
            shared.run_with_timeout(lambda: shared_events.copy(shared, name, [entry]), 20)  # noqa: B023 (called here)

    threads = [threading.Thread(target=copy, args=(name,)) for name in ("one", "two", "three")]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [entry.id for entry in events.since(0, 1000, shared)] == list(range(1, 76))


def test_pruned_ids_are_not_reused(shared: Postgres) -> None:
    entries = some_events(random.Random(9), 1, 50)
    shared.run_with_timeout(lambda: shared_events.copy(shared, "one", entries), 20)
    while shared.run_with_timeout(lambda: events.prune(2**60, 10**6, 20, shared), 20):
        pass
    assert events.counts(shared) == {"totalEvents": 0}
    assert events.last_id(shared) == 50
    shared.run_with_timeout(lambda: shared_events.copy(shared, "one", some_events(random.Random(9), 51, 2)), 20)
    assert [entry.id for entry in events.since(0, 10, shared)] == [51, 52]


def test_events_read_twice_by_a_busy_loop_are_published_once(shared: Postgres, monkeypatch: pytest.MonkeyPatch) -> None:
    shared.run_with_timeout(lambda: shared_events.copy(shared, "one", some_events(random.Random(9), 1, 5)), 20)
    result: list[int] = []
    source = replication.EventTable(
        shared,
        lambda after, most: events.since(after, most, shared),
        0,
        lambda new: result.extend(one.id for one in new),
    )
    loop, busy = asyncio.new_event_loop(), threading.Event()
    loop.call_soon(busy.wait)
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    with monkeypatch.context() as patched:
        patched.setattr(replication, "_READ_SECONDS", 0.5)
        for _ in range(2):
            with pytest.raises(TimeoutError):
                source.take(loop)
    busy.set()
    source.take(loop)
    loop.call_soon_threadsafe(loop.stop)
    thread.join()
    loop.close()
    assert result == [1, 2, 3, 4, 5]


def test_events_that_the_database_lost_are_copied_again(shared: Postgres) -> None:
    """As after a failover to a replica that was behind."""
    entries = some_events(random.Random(9), 1, 60)
    copy_events = shared_events.copy
    assert shared.run_with_timeout(lambda: copy_events(shared, "one", entries[:30], 0), 20) == 30
    assert shared.run_with_timeout(lambda: copy_events(shared, "one", entries[30:60], 40), 20) == 30, (
        "returns its last id and adds nothing after a gap"
    )
    assert events.last_id(shared) == 30
    assert shared.run_with_timeout(lambda: copy_events(shared, "one", entries[30:60], 30), 20) == 60
    assert shared.run_with_timeout(lambda: copy_events(shared, "one", entries[50:60], 50), 20) == 60, (
        "stored events are not added again"
    )
    assert [evolve(entry, id=0) for entry in events.since(0, 99, shared)] == [evolve(one, id=0) for one in entries]


@pytest.mark.parametrize(("newest", "begin"), [(50, 30), (30, 30), (12, 12)])
def test_node_continues_after_its_last_copied_or_restored_event(shared: Postgres, newest: int, begin: int) -> None:
    entries = some_events(random.Random(9), 1, 60)
    shared.run_with_timeout(lambda: shared_events.copy(shared, "one", entries[:30]), 20)
    assert shared_events.begin(shared, "new", 10) == 0
    assert shared_events.begin(shared, "one", newest) == begin
    shared.run_with_timeout(lambda: shared_events.copy(shared, "one", entries[begin:]), 20)
    assert events.last_id(shared) == 30 + 60 - begin
