"""The file of a store: the workers that write take turns."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path

import peewee
import pytest
from conftest import wait_for

from models.errors import TimedOut
from models.storage.sqlite import SqliteStore

SECONDS = 60


@pytest.fixture
def store(tmp_path: Path) -> Iterator[SqliteStore]:
    store = SqliteStore([["CREATE TABLE thing (name TEXT)"]])
    store.open(tmp_path / "things.db")
    yield store
    store.close_all()


def write(store: SqliteStore, name: str) -> None:
    with store.atomic():
        store.execute_sql("INSERT INTO thing VALUES (?)", (name,))


def names(store: SqliteStore) -> list[str]:
    return [name for (name,) in store.execute_sql("SELECT name FROM thing ORDER BY rowid")]


def test_a_writer_that_waits_comes_before_one_that_writes_again(store: SqliteStore) -> None:
    other = threading.Thread(target=lambda: store.run_with_timeout(lambda: write(store, "other"), SECONDS))

    def work() -> None:
        with store.atomic():
            other.start()
            wait_for(lambda: len(store.write_lock) == 2)
            with store.atomic():  # a savepoint needs no turn
                store.execute_sql("INSERT INTO thing VALUES ('first')")
        write(store, "again")

    store.run_with_timeout(work, SECONDS)
    other.join(SECONDS)
    assert names(store) == ["first", "other", "again"]


def test_a_lock_that_is_not_free_in_time_is_a_timeout_and_blocks_no_later_waiter(store: SqliteStore) -> None:
    def work() -> None:
        def late() -> None:
            with pytest.raises(TimedOut):
                store.run_with_timeout(lambda: write(store, "late"), 0.05)

        with store.atomic():
            other = threading.Thread(target=late)
            other.start()
            other.join(SECONDS)
        assert len(store.write_lock) == 0

    store.run_with_timeout(work, SECONDS)
    store.run_with_timeout(lambda: write(store, "next"), SECONDS)
    assert names(store) == ["next"]


def test_a_failed_transaction_gives_its_turn_back(store: SqliteStore) -> None:
    def fail() -> None:
        with store.atomic():
            store.execute_sql("INSERT INTO nowhere VALUES (1)")

    for _ in range(2):
        with pytest.raises(peewee.OperationalError, match="no such table"):
            store.run_with_timeout(fail, SECONDS)
    assert len(store.write_lock) == 0


def test_outside_of_a_worker_nothing_waits(store: SqliteStore) -> None:
    begun, over = threading.Event(), threading.Event()

    def hold() -> None:
        with store.atomic():
            begun.set()
            over.wait(SECONDS)

    other = threading.Thread(target=lambda: store.run_with_timeout(hold, SECONDS))
    other.start()
    begun.wait(SECONDS)
    with pytest.raises(peewee.OperationalError, match="locked"):
        write(store, "loop")
    over.set()
    other.join(SECONDS)
