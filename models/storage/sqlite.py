"""A store in a SQLite file in WAL mode.

Each service has its own file, so that a long write of one does not delay another. The loop's connection never waits for
a lock (`busy_timeout` 0): code on the loop keeps what it could not write and retries. A worker thread has its own
connection, which may wait.
"""

from __future__ import annotations

import sqlite3
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import peewee

from models.errors import TimedOut
from models.storage.store import Result, Store

if TYPE_CHECKING:
    from models.storage.postgres import Postgres

_PRAGMAS = {
    "journal_mode": "wal",
    "synchronous": "normal",  # survives kill -9; a power cut may lose the last moments, never the file
    "foreign_keys": 1,
    "wal_autocheckpoint": 0,  # a checkpoint may wait for the disk, so a worker makes it, not the loop
    "journal_size_limit": 16 * 1024 * 1024,
    "busy_timeout": 0,
    "cache_size": -4096,
}

_CHECKPOINT_PAGES = 256
"""After so many pages in its write-ahead log a worker checkpoints a store that only workers use."""

MAX_LOG_BYTES = 32 * 1024 * 1024
"""A larger write-ahead log is emptied after the upload that made it so, before the next one is stored."""

_PATIENCE = 5_000
_STEPS = 50_000


class FairLock:
    """A lock that waiting threads get in the order of their arrival."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._queue: deque[object] = deque()

    def __len__(self) -> int:
        """Returns the number of threads that hold the lock or wait for it."""
        return len(self._queue)

    @contextmanager
    def hold(self, seconds: float) -> Iterator[None]:
        """Holds the lock. Raises `TimeoutError` after waiting `seconds`."""
        ticket = object()
        with self._changed:
            self._queue.append(ticket)
            if not self._changed.wait_for(lambda: self._queue[0] is ticket, seconds):
                self._leave(ticket)
                raise TimeoutError
        try:
            yield
        finally:
            with self._changed:
                self._leave(ticket)

    def _leave(self, ticket: object) -> None:
        self._queue.remove(ticket)
        self._changed.notify_all()


class SqliteStore(peewee.SqliteDatabase, Store):
    """One file, bound by `open`."""

    is_local = True

    def __init__(self, steps: Sequence[Sequence[str]] = ()) -> None:
        super().__init__(None)
        self.steps = steps
        self.write_lock = FairLock()
        """Orders the writing workers. The loop writes without it, because it never waits."""
        self._worker = threading.local()
        self._held: sqlite3.Connection | None = None
        self._has_ended = False

    def end_queries(self) -> None:
        """What `run_with_timeout` runs fails from now on, as where the store does not respond."""
        self._has_ended = True

    def open(self, path: Path) -> None:
        """Opens or creates the file for this thread, at its newest version. Other threads connect by themselves.

        Raises `peewee.DatabaseError` if it is no database, cannot be opened, or is newer than this program.
        """
        self._has_ended = False
        path.touch(mode=0o600)
        self.init(str(path), pragmas=_PRAGMAS)
        self.connect()
        self.migrate()

    def hold(self) -> None:
        """Keeps the open file in use while no thread has a connection.

        SQLite removes the write-ahead log with the last connection, and cannot make it again on a full disk.
        Raises `peewee.OperationalError`.
        """
        self._release()
        try:
            self._held = sqlite3.connect(self.database, check_same_thread=False)
            self._held.execute("PRAGMA user_version").fetchall()  # the first statement opens the log
        except sqlite3.Error as error:
            self._release()
            raise peewee.OperationalError(str(error)) from error
        self.pragma("wal_autocheckpoint", _CHECKPOINT_PAGES, permanent=True)

    def _release(self) -> None:
        if self._held is not None:
            self._held.close()
            self._held = None

    def migrate(self) -> None:
        done = int(self.pragma("user_version"))
        if done > len(self.steps):
            raise peewee.DatabaseError(f"the store is of version {done}, newer than this program ({len(self.steps)})")
        for version, statements in enumerate(self.steps[done:], done + 1):
            with self.atomic():
                if int(self.pragma("user_version")) >= version:
                    continue  # another process, a command beside the server, has made this step meanwhile
                for statement in statements:
                    self.execute_sql(statement)
                self.execute_sql(f"PRAGMA user_version = {version}")

    def atomic(self, lock_type: str = "IMMEDIATE", *arguments: Any, of: str = "", **options: Any) -> Any:
        """Begins a transaction. A worker's outermost one waits in order: with SQLite's own lock a writer can starve."""
        work = super().atomic(lock_type, *arguments, **options)  # a read that became a write could not be retried
        end = getattr(self._worker, "end", None)
        is_write = lock_type == "IMMEDIATE" and not self.in_transaction()
        return self._in_order(work, end) if is_write and end is not None else work

    @contextmanager
    def _in_order(self, work: AbstractContextManager[Any], end: float) -> Iterator[None]:
        with ExitStack() as stack:
            try:
                stack.enter_context(self.write_lock.hold(max(0.0, end - time.monotonic())))
            except TimeoutError:
                raise peewee.OperationalError("other writers locked the database for too long") from None
            with work:
                yield

    def rollback(self) -> None:
        """Does nothing where SQLite has rolled back by itself, as on a full disk: that error is the one to report."""
        if self.connection().in_transaction:
            super().rollback()

    def version(self) -> tuple[int, int]:
        (others,) = self.execute_sql("PRAGMA data_version").fetchone()
        return others, self.connection().total_changes

    def write_many(self, statement: str, rows: Iterable[Sequence[Any]]) -> None:
        try:
            self.connection().executemany(statement, rows)
        except sqlite3.Error as error:
            raise peewee.DatabaseError(str(error)) from error

    def last_ids(self, new: Mapping[str, str]) -> dict[str, int]:
        last = "SELECT coalesce(max(id), 0) FROM {}"
        found = {table: int(self.execute_sql(last.format(table)).fetchone()[0]) for table in new}
        for table, given in self.execute_sql("SELECT name, seq FROM sqlite_sequence"):
            if table in found:
                found[table] = max(found[table], int(given))  # ids of deleted rows are not used again
        return found

    @contextmanager
    def spooled(self, path: Path) -> Iterator[None]:
        """Attaches the SQLite file at `path`; only for a connection of `run_with_timeout`.

        What is made of them refers to nothing that is not looked up or made in the same transaction.
        """
        self.execute_sql("ATTACH DATABASE ? AS spool", (str(path),))
        self.execute_sql("PRAGMA foreign_keys = 0")
        yield

    def notify(self, channel: str) -> None:
        """Does nothing: a file has one node."""

    def close_all(self) -> None:
        self.close()
        self._release()

    def set_lock_timeout(self, seconds: float) -> None:
        self.execute_sql(f"PRAGMA busy_timeout = {round(seconds * 1000)}").fetchall()

    def checkpoint(self, begin: bool = False, truncate: bool = False) -> None:
        """Copies the write-ahead log into the file. For a worker: it waits for the disk.

        The first commit afterwards restarts the log and syncs its header; `begin` makes that commit here. While
        others read and write all the time the log never restarts: `truncate` empties it, and makes them wait.
        """
        with self.connection_context():
            self.set_lock_timeout(_PATIENCE / 1000)
            self.execute_sql("PRAGMA wal_checkpoint(PASSIVE)").fetchall()  # most of the work, without a lock
            if truncate:
                self.execute_sql("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
            if begin:
                with self.atomic():
                    self.execute_sql(f"PRAGMA user_version = {int(self.pragma('user_version'))}")

    def limit_log(self, max_bytes: int | None = None) -> None:
        """Empties the write-ahead log if it is larger than that, `MAX_LOG_BYTES` by default.

        For a worker, outside of transactions.
        """
        try:
            size = Path(f"{self.database}-wal").stat().st_size
        except FileNotFoundError:
            return
        if size > (MAX_LOG_BYTES if max_bytes is None else max_bytes):
            self.checkpoint(truncate=True)

    def run_with_timeout(self, work: Callable[[], Result], seconds: float) -> Result:
        with self.connection_context():
            connection = self.connection()
            connection.execute(f"PRAGMA busy_timeout = {_PATIENCE}")
            self._worker.end = end = time.monotonic() + seconds
            connection.set_progress_handler(lambda: self._has_ended or time.monotonic() > end, _STEPS)
            try:
                return work()
            except (peewee.OperationalError, sqlite3.OperationalError) as error:  # the latter from a row being fetched
                if time.monotonic() < end:
                    raise peewee.OperationalError(str(error)) from error
                raise TimedOut(f"the query took longer than {seconds:g} s") from error
            finally:
                self._worker.end = None
                connection.set_progress_handler(None, 0)


class Either(peewee.DatabaseProxy):
    """A store that is a file, or the PostgreSQL database of `server.database-url`."""

    __slots__ = ("_Model", "_callbacks", "name", "obj", "steps")
    obj: SqliteStore | Postgres

    def __init__(self, name: str, steps: Sequence[Sequence[str]]) -> None:
        """`name` identifies these `steps` in a database that holds the tables of several stores."""
        super().__init__()
        self.name = name
        self.steps = steps
        self.initialize(SqliteStore(steps))

    def open(self, path: Path, url: str | None = None) -> None:
        """As `SqliteStore.open`, or connects to the database at `url`. Raises `CannotUse`, `peewee.DatabaseError`."""
        if not isinstance(self.obj, SqliteStore):
            self.obj.close_all()
        if url is not None:
            from models.storage.postgres import Postgres  # imported only for PostgreSQL: its driver is large

            made = Postgres(self.name, self.steps)
            made.open(url)
            self.initialize(made)
            return
        if not isinstance(self.obj, SqliteStore):
            self.initialize(SqliteStore(self.steps))
        self.obj.open(path)  # type: ignore[arg-type]

    def open_for_workers(self, path: Path, url: str | None = None) -> None:
        """As `open`, for a store that only workers use: this thread has no connection afterwards.

        A file stays in use until `close_all`, so that it can be read on a full disk.
        """
        self.open(path, url)
        try:
            if isinstance(self.obj, SqliteStore):
                self.obj.hold()
        finally:
            self.close()

    def end_queries(self) -> None:
        """As `SqliteStore.end_queries`; those of a database have its own limit of time."""
        if isinstance(self.obj, SqliteStore):
            self.obj.end_queries()

    def atomic(self, *arguments: Any, **options: Any) -> Any:
        return self.obj.atomic(*arguments, **options)

    def connection_context(self) -> Any:
        return self.obj.connection_context()

    def execute_sql(self, sql: str, params: Any = None) -> Any:
        return self.obj.execute_sql(sql, params)

    def run_with_timeout(self, work: Callable[[], Result], seconds: float) -> Result:
        return self.obj.run_with_timeout(work, seconds)


def is_disk_full(error: Exception) -> bool:
    """Whether a statement failed because the disk, or the quota, is full."""
    return str(error) == "database or disk is full"  # SQLite's text of SQLITE_FULL; Peewee drops the code


def storable(text: str) -> str:
    """Returns `text` as valid UTF-8: bytes of a file name that are not UTF-8 are lost."""
    return text.encode("utf-8", "replace").decode()
