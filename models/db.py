"""The stores: SQLite files in WAL mode, with ordered migrations, and the one way to write several things as one.

Each service has a file of its own, so that a long write of one is never felt by another. The loop's own connection
never waits for a lock (`busy_timeout` 0): who writes on the loop keeps what it could not write and tries again. A
worker thread has a connection of its own, which may wait.
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


class Store(peewee.SqliteDatabase):
    """One file, bound by `open`; `steps` are the statements of its migrations, never changed once released."""

    def __init__(self, steps: Sequence[Sequence[str]] = ()) -> None:
        """`steps`: statements by version; a store at version n gets those after n."""
        super().__init__(None)
        self.steps = steps

    def open(self, path: Path) -> None:
        """Opens (and makes) the file for this thread, at its newest version; other threads connect by themselves.

        Raises `peewee.DatabaseError` where it is no database, cannot be opened, or is newer than this program.
        """
        path.touch(mode=0o600)
        self.init(str(path), pragmas=_PRAGMAS)
        self.connect()
        self.migrate()

    def migrate(self) -> None:
        """Brings the open store to the newest version, each version whole or not at all."""
        done = int(self.pragma("user_version"))
        if done > len(self.steps):
            raise peewee.DatabaseError(f"the store is of version {done}, newer than this program ({len(self.steps)})")
        for version, statements in enumerate(self.steps[done:], done + 1):
            with self.atomic():
                for statement in statements:
                    self.execute_sql(statement)
                self.execute_sql(f"PRAGMA user_version = {version}")

    def atomic(self, lock_type: str = "IMMEDIATE", *arguments: Any, **options: Any) -> Any:
        """A context in which all is written or nothing. For several reads of one moment: `DEFERRED`."""
        return super().atomic(lock_type, *arguments, **options)  # a read that became a write could not be retried

    def write_many(self, statement: str, rows: Iterable[Sequence[Any]]) -> None:
        """Runs `statement` for each row, quickly. For use within `atomic()`.

        Raises `peewee.DatabaseError`, as peewee's own ways do: this one goes past them.
        """
        try:
            self.connection().executemany(statement, rows)
        except sqlite3.Error as error:
            raise peewee.DatabaseError(str(error)) from error

    def checkpoint(self) -> None:
        """Moves what is in the write-ahead log into the file. For the worker: it waits for the disk."""
        with self.connection_context():
            self.execute_sql("PRAGMA wal_checkpoint(PASSIVE)").fetchall()

    def patiently(self, work: Callable[[], Result], seconds: float) -> Result:
        """Runs `work` in a worker thread on a connection that may wait, and ends it after `seconds`.

        Raises `TimedOut`.
        """
        with self.connection_context():
            connection = self.connection()
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


def storable(text: str) -> str:
    """`text` as UTF-8 has it: bytes of a file name that are none are lost."""
    return text.encode("utf-8", "replace").decode()
