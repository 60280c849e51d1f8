"""The history that nodes share, on a real PostgreSQL, held against the files of the nodes."""

from __future__ import annotations

import random
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from attrs import evolve
from postgresql import Postgresql
from test_events import FIELDS, FILTERS, some_events, write

from models import events, sharing
from models.errors import NotFound
from models.paging import Paging
from models.postgres import Postgres
from models.schema import database


@pytest.fixture
def shared(postgresql: Postgresql) -> Iterator[Postgres]:
    store = sharing.open_history(postgresql.emptied())
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
        shared.patiently(lambda: sharing.copy(shared, "one", entries[start : start + 50]), 20)  # noqa: B023 (called here)
    for which in FILTERS:
        for sort in FIELDS:
            for descending in (True, False):
                for number in (0, 3):
                    asked = Paging(number, 13, sort, descending)
                    assert events.page(asked, which, shared) == events.page(asked, which), (which, asked)
    assert events.counts(shared) == events.counts()
    assert events.get(77, shared) == events.get(77)
    assert events.since(100, 30, shared) == events.since(100, 30)
    with pytest.raises(NotFound):
        events.get(121, shared)


def test_what_is_copied_again_is_there_once_in_the_order_of_the_copies(shared: Postgres) -> None:
    chance = random.Random(8)
    one, two = some_events(chance, 1, 40), some_events(chance, 1, 30)
    shared.patiently(lambda: sharing.copy(shared, "one", one[:20]), 20)
    shared.patiently(lambda: sharing.copy(shared, "two", two), 20)
    shared.patiently(lambda: sharing.copy(shared, "one", one[10:]), 20)
    shared.patiently(lambda: sharing.copy(shared, "one", one), 20)
    found = events.since(0, 1000, shared)
    assert [entry.id for entry in found] == list(range(1, 71))
    assert [evolve(entry, id=0) for entry in found] == [evolve(entry, id=0) for entry in (*one[:20], *two, *one[20:])]
    assert events.counts(shared)["totalEvents"] == 70


def test_numbers_have_no_gap_whoever_copies_at_once(shared: Postgres) -> None:
    def copy(name: str) -> None:
        for entry in some_events(random.Random(name), 1, 25):
            shared.patiently(lambda: sharing.copy(shared, name, [entry]), 20)  # noqa: B023 (called here)

    threads = [threading.Thread(target=copy, args=(name,)) for name in ("one", "two", "three")]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [entry.id for entry in events.since(0, 1000, shared)] == list(range(1, 76))


def test_old_ones_go_and_no_number_is_given_twice(shared: Postgres) -> None:
    entries = some_events(random.Random(9), 1, 50)
    shared.patiently(lambda: sharing.copy(shared, "one", entries), 20)
    while shared.patiently(lambda: events.prune(2**60, 10**6, 20, shared), 20):
        pass
    assert events.counts(shared) == {"totalEvents": 0}
    assert events.last_id(shared) == 50
    shared.patiently(lambda: sharing.copy(shared, "one", some_events(random.Random(9), 51, 2)), 20)
    assert [entry.id for entry in events.since(0, 10, shared)] == [51, 52]


@pytest.mark.parametrize(("newest", "begin"), [(50, 30), (30, 30), (12, 12)])
def test_a_node_goes_on_where_it_was_or_where_it_was_put_back_to(shared: Postgres, newest: int, begin: int) -> None:
    entries = some_events(random.Random(9), 1, 60)
    shared.patiently(lambda: sharing.copy(shared, "one", entries[:30]), 20)
    assert sharing.begin(shared, "new", 10) == 0
    assert sharing.begin(shared, "one", newest) == begin
    shared.patiently(lambda: sharing.copy(shared, "one", entries[begin:]), 20)
    assert events.last_id(shared) == 30 + 60 - begin
