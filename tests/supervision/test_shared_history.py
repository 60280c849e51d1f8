"""The history that nodes share, on a real PostgreSQL, held against the files of the nodes."""

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
def own(tmp_path: Path) -> Iterator[None]:
    database.open(tmp_path / "pilothouse.db")
    yield
    database.close()


@pytest.mark.usefixtures("own")
def test_it_is_paged_as_the_own_file_is(shared: Postgres) -> None:
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


def test_what_is_copied_again_is_there_once_in_the_order_of_the_copies(shared: Postgres) -> None:
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


def test_numbers_have_no_gap_whoever_copies_at_once(shared: Postgres) -> None:
    def copy(name: str) -> None:
        for entry in some_events(random.Random(name), 1, 25):
            shared.run_with_timeout(lambda: shared_events.copy(shared, name, [entry]), 20)  # noqa: B023 (called here)

    threads = [threading.Thread(target=copy, args=(name,)) for name in ("one", "two", "three")]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [entry.id for entry in events.since(0, 1000, shared)] == list(range(1, 76))


def test_old_ones_go_and_no_number_is_given_twice(shared: Postgres) -> None:
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
    source = replication.Source(
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


def test_what_a_database_has_lost_is_copied_anew(shared: Postgres) -> None:
    """A copy of it that was behind has taken its place."""
    entries = some_events(random.Random(9), 1, 60)
    send_request = shared_events.copy
    assert shared.run_with_timeout(lambda: send_request(shared, "one", entries[:30], 0), 20) == 30
    assert shared.run_with_timeout(lambda: send_request(shared, "one", entries[30:60], 40), 20) == 30, (
        "it says what it has, and waits"
    )
    assert events.last_id(shared) == 30
    assert shared.run_with_timeout(lambda: send_request(shared, "one", entries[30:60], 30), 20) == 60
    assert shared.run_with_timeout(lambda: send_request(shared, "one", entries[50:60], 50), 20) == 60, (
        "what is there is not added"
    )
    assert [evolve(entry, id=0) for entry in events.since(0, 99, shared)] == [evolve(one, id=0) for one in entries]


@pytest.mark.parametrize(("newest", "begin"), [(50, 30), (30, 30), (12, 12)])
def test_a_node_goes_on_where_it_was_or_where_it_was_put_back_to(shared: Postgres, newest: int, begin: int) -> None:
    entries = some_events(random.Random(9), 1, 60)
    shared.run_with_timeout(lambda: shared_events.copy(shared, "one", entries[:30]), 20)
    assert shared_events.begin(shared, "new", 10) == 0
    assert shared_events.begin(shared, "one", newest) == begin
    shared.run_with_timeout(lambda: shared_events.copy(shared, "one", entries[begin:]), 20)
    assert events.last_id(shared) == 30 + 60 - begin
