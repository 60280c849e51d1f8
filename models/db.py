"""The database: SQLite in WAL mode, the base of all tables, and the one way to write several things as one.

The loop's own connection never waits for a lock (`busy_timeout` 0): who writes on the loop keeps what it could not
write and tries again. A worker thread has a connection of its own, which may wait.
"""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, TypeVar

import peewee

from models.errors import TimedOut

Result = TypeVar("Result")

database = peewee.SqliteDatabase(None)
"""Bound to a file by `open_database`; the only global there is."""

_PRAGMAS = {
    "journal_mode": "wal",
    "synchronous": "normal",  # survives kill -9; a power cut may take the last moments, never the file
    "foreign_keys": 1,
    "wal_autocheckpoint": 0,  # a checkpoint may wait for the disk: the worker makes it, not the loop
    "journal_size_limit": 16 * 1024 * 1024,
    "busy_timeout": 0,
    "cache_size": -4096,
}

_PATIENCE = 5_000
_STEPS = 50_000


class Table(peewee.Model):
    """The base of every table."""

    class Meta:
        database = database


def open_database(path: Path) -> None:
    """Opens (and makes) the file for this thread; other threads connect by themselves.

    Raises `peewee.DatabaseError` where it is no database or cannot be opened.
    """
    path.touch(mode=0o600)
    database.init(str(path), pragmas=_PRAGMAS)
    database.connect()


def atomic() -> Any:
    """A context in which all is written or nothing."""
    return database.atomic("IMMEDIATE")  # a read that became a write could not be retried


def write_many(statement: str, rows: Iterable[Sequence[Any]]) -> None:
    """Runs `statement` for each row, quickly. For use within `atomic()`.

    Raises `peewee.DatabaseError`, as peewee's own ways do: this one goes past them.
    """
    try:
        database.connection().executemany(statement, rows)
    except sqlite3.Error as error:
        raise peewee.DatabaseError(str(error)) from error


def storable(text: str) -> str:
    """`text` as UTF-8 has it: bytes of a file name that are none are lost."""
    return text.encode("utf-8", "replace").decode()


def checkpoint() -> None:
    """Moves what is in the write-ahead log into the file. For the worker: it waits for the disk."""
    with database.connection_context():
        database.execute_sql("PRAGMA wal_checkpoint(PASSIVE)").fetchall()


def patiently(work: Callable[[], Result], seconds: float) -> Result:
    """Runs `work` in a worker thread on a connection that may wait, and ends it after `seconds`.

    Raises `TimedOut`.
    """
    with database.connection_context():
        connection = database.connection()
        connection.execute(f"PRAGMA busy_timeout = {_PATIENCE}")
        end = time.monotonic() + seconds
        connection.set_progress_handler(lambda: time.monotonic() > end, _STEPS)
        try:
            return work()
        except (peewee.OperationalError, sqlite3.OperationalError) as error:  # the latter from a row being fetched
            if time.monotonic() < end:
                raise peewee.OperationalError(str(error)) from error
            raise TimedOut(f"the query took longer than {seconds:g} s") from error
        finally:
            connection.set_progress_handler(None, 0)
