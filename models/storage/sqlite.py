"""The stores: SQLite files in WAL mode, with ordered migrations, and the one way to write several things as one.

Each service has a file of its own, so that a long write of one is never felt by another. The loop's own connection
never waits for a lock (`busy_timeout` 0): who writes on the loop keeps what it could not write and tries again. A
worker thread has a connection of its own, which may wait. A store that several nodes share is no file but a database of
PostgreSQL (`models/storage/postgres.py`), which has the same methods; it is only asked in a worker thread.
"""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import peewee

from models.errors import TimedOut

if TYPE_CHECKING:
    from models.storage.postgres import Postgres

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

MAX_LOG_BYTES = 32 * 1024 * 1024
"""A larger write-ahead log is emptied after the upload that made it so, before the next one is stored."""

_PATIENCE = 5_000
_STEPS = 50_000


class Store(peewee.SqliteDatabase):
    """One file, bound by `open`; `steps` are the statements of its migrations, never changed once released."""

    is_local = True
    """A row is read at once, so the loop may do it."""

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

    def atomic(self, lock_type: str = "IMMEDIATE", *arguments: Any, of: str = "", **options: Any) -> Any:
        """A context in which all is written or nothing. For several reads of one moment: `DEFERRED`.

        `of` names the part of a store that may be written beside the rest of it: of a file, none can.
        """
        return super().atomic(lock_type, *arguments, **options)  # a read that became a write could not be retried

    def version(self) -> tuple[int, int]:
        """Another one whenever something was stored: by others, of this process or not, or by this connection.

        It is compared with what the same connection was told before (the loop's own), and costs no look at the file.
        """
        (others,) = self.execute_sql("PRAGMA data_version").fetchone()
        return others, self.connection().total_changes

    def write_many(self, statement: str, rows: Iterable[Sequence[Any]]) -> None:
        """Runs `statement` for each row, quickly. For use within `atomic()`.

        Raises `peewee.DatabaseError`, as peewee's own ways do: this one goes past them.
        """
        try:
            self.connection().executemany(statement, rows)
        except sqlite3.Error as error:
            raise peewee.DatabaseError(str(error)) from error

    def last_ids(self, new: Mapping[str, str]) -> dict[str, int]:
        """The last id that each table has ever given. For use within `atomic()`.

        `new` has for each table a query of how many more there will be at most, for a store that reserves them.
        """
        last = "SELECT coalesce(max(id), 0) FROM {}"
        found = {table: int(self.execute_sql(last.format(table)).fetchone()[0]) for table in new}
        for table, given in self.execute_sql("SELECT name, seq FROM sqlite_sequence"):
            if table in found:
                found[table] = max(found[table], int(given))  # ids of what was deleted are not used again
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
        """Tells other nodes that there is something new, once this is committed: a file has none."""

    def close_all(self) -> None:
        """Lets go of it, here and in other threads."""
        self.close()

    def be_patient(self, seconds: float) -> None:
        """Lets this thread's connection wait that long for others who write."""
        self.execute_sql(f"PRAGMA busy_timeout = {round(seconds * 1000)}").fetchall()

    def checkpoint(self, begin: bool = False, truncate: bool = False) -> None:
        """Copies the write-ahead log into the file. For a worker: it waits for the disk.

        The first commit afterwards restarts the log and syncs its header; `begin` makes that commit here. While
        others read and write all the time the log never restarts: `truncate` empties it, and makes them wait.
        """
        with self.connection_context():
            self.be_patient(_PATIENCE / 1000)
            self.execute_sql("PRAGMA wal_checkpoint(PASSIVE)").fetchall()  # most of the work, without a lock
            if truncate:
                self.execute_sql("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
            if begin:
                with self.atomic():
                    self.execute_sql(f"PRAGMA user_version = {int(self.pragma('user_version'))}")

    def limit_log(self) -> None:
        """Empties the write-ahead log if it is larger than `MAX_LOG_BYTES`. For a worker, outside of transactions."""
        try:
            size = Path(f"{self.database}-wal").stat().st_size
        except FileNotFoundError:
            return
        if size > MAX_LOG_BYTES:
            self.checkpoint(truncate=True)

    def run_with_timeout(self, work: Callable[[], Result], seconds: float) -> Result:
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


class Either(peewee.DatabaseProxy):
    """A store that is a file of ours, or the PostgreSQL database that `server.database-url` names."""

    __slots__ = ("_Model", "_callbacks", "name", "obj", "steps")
    obj: Store | Postgres

    def __init__(self, name: str, steps: Sequence[Sequence[str]]) -> None:
        """`name` is whose `steps` these are, where one database holds the tables of several stores."""
        super().__init__()
        self.name = name
        self.steps = steps
        self.initialize(Store(steps))

    def open(self, path: Path, url: str | None = None) -> None:
        """As `Store.open`, or connects to the database at `url`. Raises `CannotUse`, `peewee.DatabaseError`."""
        if not isinstance(self.obj, Store):
            self.obj.close_all()
        if url is not None:
            from models.storage.postgres import Postgres  # only where it is asked for: its driver is large

            made = Postgres(self.name, self.steps)
            made.open(url)
            self.initialize(made)
            return
        if not isinstance(self.obj, Store):
            self.initialize(Store(self.steps))
        self.obj.open(path)  # type: ignore[arg-type]

    def atomic(self, *arguments: Any, **options: Any) -> Any:
        return self.obj.atomic(*arguments, **options)

    def connection_context(self) -> Any:
        return self.obj.connection_context()

    def execute_sql(self, sql: str, params: Any = None) -> Any:
        return self.obj.execute_sql(sql, params)

    def run_with_timeout(self, work: Callable[[], Result], seconds: float) -> Result:
        return self.obj.run_with_timeout(work, seconds)


def storable(text: str) -> str:
    """`text` as UTF-8 has it: bytes of a file name that are none are lost."""
    return text.encode("utf-8", "replace").decode()
