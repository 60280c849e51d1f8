"""The write-ahead log of the tracker's store stays bounded while uploads and readers never pause."""

from __future__ import annotations

import contextlib
import sqlite3
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from models.storage import sqlite
from models.storage.sqlite import SqliteStore

MIB = 1024 * 1024


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[SqliteStore]:
    monkeypatch.setattr(sqlite, "MAX_LOG_BYTES", MIB)
    store = SqliteStore([["CREATE TABLE block (id INTEGER PRIMARY KEY, data BLOB)"]])
    store.open(tmp_path / "store.db")
    yield store
    store.close()


def log_size(store: SqliteStore) -> int:
    return Path(f"{store.database}-wal").stat().st_size


@contextlib.contextmanager
def endless_readers(path: str) -> Iterator[None]:
    """Three threads that read one after the other, so that at every moment one of them has a snapshot."""
    begin, done = [threading.Event() for _ in range(3)], threading.Event()

    def read(number: int) -> None:
        with contextlib.closing(sqlite3.connect(path, isolation_level=None)) as connection:
            while not done.is_set():
                connection.execute("BEGIN")
                connection.execute("SELECT count(*) FROM block").fetchone()
                begin[number].set()
                following = begin[(number + 1) % 3]
                while not following.wait(0.05) and not done.is_set():
                    pass
                connection.execute("COMMIT")
                begin[number].clear()

    threads = [threading.Thread(target=read, args=(number,)) for number in range(3)]
    for thread in threads:
        thread.start()
    for event in begin:
        event.wait(10)
    try:
        yield
    finally:
        done.set()
        for thread in threads:
            thread.join()


def test_write_ahead_log_is_truncated_despite_constant_reads_and_writes(store: SqliteStore) -> None:
    store.set_lock_timeout(10)
    largest = 0
    with endless_readers(str(store.database)):
        for _ in range(40):
            with store.atomic():
                store.execute_sql("INSERT INTO block (data) VALUES (zeroblob(?))", (MIB // 2,))
            largest = max(largest, log_size(store))
            worker = threading.Thread(target=store.limit_log)
            worker.start()
            worker.join()
    assert largest < 4 * MIB
    assert store.execute_sql("SELECT count(*) FROM block").fetchone() == (40,)


def test_small_write_ahead_log_is_not_truncated(store: SqliteStore) -> None:
    with store.atomic():
        store.execute_sql("INSERT INTO block (data) VALUES (zeroblob(1000))")
    before = log_size(store)
    worker = threading.Thread(target=store.limit_log)
    worker.start()
    worker.join()
    assert log_size(store) == before > 0
