"""SqliteStore: the write lock of the worker threads."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import peewee
import pytest
from conftest import wait_for

from models.errors import TimedOut
from models.storage.sqlite import Either, SqliteStore

TIMEOUT_SECONDS = 60


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


def test_waiting_writer_runs_before_the_second_write_of_another(store: SqliteStore) -> None:
    other = threading.Thread(target=lambda: store.run_with_timeout(lambda: write(store, "other"), TIMEOUT_SECONDS))

    def work() -> None:
        with store.atomic():
            other.start()
            wait_for(lambda: len(store.write_lock) == 2)
            with store.atomic():  # a savepoint does not take the lock
                store.execute_sql("INSERT INTO thing VALUES ('first')")
        write(store, "again")

    store.run_with_timeout(work, TIMEOUT_SECONDS)
    other.join(TIMEOUT_SECONDS)
    assert names(store) == ["first", "other", "again"]


def test_write_lock_timeout_does_not_block_later_writers(store: SqliteStore) -> None:
    def work() -> None:
        def late() -> None:
            with pytest.raises(TimedOut):
                store.run_with_timeout(lambda: write(store, "late"), 0.05)

        with store.atomic():
            other = threading.Thread(target=late)
            other.start()
            other.join(TIMEOUT_SECONDS)
        assert len(store.write_lock) == 0

    store.run_with_timeout(work, TIMEOUT_SECONDS)
    store.run_with_timeout(lambda: write(store, "next"), TIMEOUT_SECONDS)
    assert names(store) == ["next"]


def test_failed_transaction_releases_the_write_lock(store: SqliteStore) -> None:
    def fail() -> None:
        with store.atomic():
            store.execute_sql("INSERT INTO nowhere VALUES (1)")

    for _ in range(2):
        with pytest.raises(peewee.OperationalError, match="no such table"):
            store.run_with_timeout(fail, TIMEOUT_SECONDS)
    assert len(store.write_lock) == 0


def test_write_outside_a_worker_fails_at_once_if_the_store_is_locked(store: SqliteStore) -> None:
    begun, over = threading.Event(), threading.Event()

    def hold() -> None:
        with store.atomic():
            begun.set()
            over.wait(TIMEOUT_SECONDS)

    other = threading.Thread(target=lambda: store.run_with_timeout(hold, TIMEOUT_SECONDS))
    other.start()
    begun.wait(TIMEOUT_SECONDS)
    with pytest.raises(peewee.OperationalError, match="locked"):
        write(store, "loop")
    over.set()
    other.join(TIMEOUT_SECONDS)


def test_log_of_a_store_for_workers_stays_and_is_checkpointed(tmp_path: Path) -> None:
    store, log = Either("things", [["CREATE TABLE thing (name TEXT)"]]), tmp_path / "things.db-wal"

    def write_large() -> None:
        with store.atomic():
            store.execute_sql("INSERT INTO thing VALUES (?)", ("x" * 100_000,))

    store.open_for_workers(tmp_path / "things.db")
    for _ in range(100):
        store.run_with_timeout(write_large, TIMEOUT_SECONDS)
    assert 0 < log.stat().st_size < 4_000_000
    store.close_all()
    assert not log.exists()


def test_steps_that_another_process_made_meanwhile_are_not_repeated(tmp_path: Path) -> None:
    steps = [["CREATE TABLE a (x)"], ["ALTER TABLE a ADD COLUMN y"]]
    file, other = tmp_path / "a.db", SqliteStore(steps)

    class Overtaken(SqliteStore):
        def atomic(self, *arguments: Any, **options: Any) -> Any:
            if other.is_closed():
                other.open(file)
            return super().atomic(*arguments, **options)

    store = Overtaken(steps)
    try:
        store.open(file)
        assert store.pragma("user_version") == 2
        assert [column.name for column in store.get_columns("a")] == ["x", "y"]
    finally:
        store.close()
        other.close()
