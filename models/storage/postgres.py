"""A store that several nodes share: a PostgreSQL database with the behaviour of `models/storage/sqlite.py`.

A write transaction holds one advisory lock for the whole store, as in SQLite, so code written for a single writer stays
correct. Accounts have their own lock, so logins do not wait for large reports. A read transaction sees one snapshot.
Every call waits for another machine: use worker threads only. Every wait has a timeout.
"""

from __future__ import annotations

import sqlite3
import threading
import time
from collections.abc import Callable, Collection, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from math import inf
from pathlib import Path
from typing import Any
from zlib import crc32

import peewee
from playhouse.pool import PooledPostgresqlDatabase

from models.errors import CannotUse, TimedOut
from models.storage import dialect
from models.storage.store import Result, Store

try:
    import psycopg
    from psycopg import pq
    from psycopg.conninfo import conninfo_to_dict
    from psycopg.types.numeric import IntLoader
    from psycopg.types.string import StrDumperUnknown
except ImportError:
    raise CannotUse("server.database-url: the driver is missing; install the extra `postgres`") from None

_MAX_CONNECTIONS = 20
_CHANNEL_PREFIX = "pilothouse_"
_MIN_ROWS_TO_ANALYZE = 500
_UNAVAILABLE = "the database is unavailable"
_UNAVAILABLE_CLASSES = ("08", "28", "3D", "53", "57", "58")
"""SQLSTATE classes: connection, authorization, database name, resources, operator intervention, system error."""
_TRANSACTION_TIMEOUT_STATES = ("25P03", "25P04")
"""SQLSTATEs of a server that closed the connection because a transaction was idle, or open, for too long."""
_READ_ONLY_STATE = "25006"
"""The SQLSTATE of a write on a read-only server: after a failover another server is the primary."""
_NOTIFY_POLL_SECONDS, _PING_SECONDS = 0.5, 10.0
_RESPONSE_GRACE_SECONDS = 5.0
"""Added to the statement timeout: a stopped or unreachable server neither closes connections nor enforces timeouts."""
_CHECKOUT_SECONDS = 20.0
_LOCK_TIMEOUT_DIVISOR = 4
"""The lock timeout is a quarter of the statement timeout."""
_SESSION = {
    "application_name": "pilothouse",
    "client_encoding": "UTF8",
    "connect_timeout": "5",
    "keepalives_idle": "30",
    "keepalives_interval": "10",
    "tcp_user_timeout": "30000",
}
"""Connection parameters that the URL may override."""
_CREATE_VERSIONS = "CREATE TABLE IF NOT EXISTS schema_version (store TEXT PRIMARY KEY, version BIGINT NOT NULL)"
_SELECT_VERSION = "SELECT version FROM schema_version WHERE store = ?"
_SET_VERSION = (
    "INSERT INTO schema_version (store, version) VALUES (?, ?)"
    " ON CONFLICT (store) DO UPDATE SET version = excluded.version"
)
_RESERVE_IDS = (
    "SELECT setval(s, nextval(s) + ({new})) - ({new})"
    " FROM (SELECT CAST(pg_get_serial_sequence('{table}', 'id') AS regclass) AS s) AS sequence"
)


class _Text(StrDumperUnknown):
    """Replaces NUL, which PostgreSQL cannot store, by U+FFFD."""

    def dump(self, obj: str) -> Any:
        return super().dump(obj.replace("\0", "\ufffd") if "\0" in obj else obj)


class Connection(psycopg.Connection[Any]):
    """A connection whose waits end: after `response_seconds` without a response it is closed."""

    statement_seconds = 0.0
    """The statement timeout set on the server."""
    response_seconds = inf
    """How long to wait for a response before the connection counts as lost."""

    def set_timeouts(self, seconds: float) -> None:
        """Sets the statement timeout, and the lock and response timeouts that follow from it."""
        self.response_seconds = seconds + _RESPONSE_GRACE_SECONDS
        if self.statement_seconds != seconds:
            statement, lock = round(seconds * 1000), round(seconds * 1000 / _LOCK_TIMEOUT_DIVISOR)
            self.execute(f"SET statement_timeout = {statement}; SET lock_timeout = {lock}")
            self.statement_seconds = seconds

    def wait(self, gen: Generator[Any, Any, Any], *arguments: Any, **options: Any) -> Any:
        return super().wait(self._bounded(gen), *arguments, **options)

    def _bounded(self, work: Generator[Any, Any, Any]) -> Generator[Any, Any, Any]:
        """Drives `work` until its end or the response timeout. It is sent the socket's readiness, 0 for none."""
        end = time.monotonic() + self.response_seconds
        try:
            interest = next(work)
            while True:
                ready = yield interest
                if not ready and time.monotonic() > end:
                    self.pgconn.finish()
                    raise psycopg.OperationalError("the database does not answer")
                interest = work.send(ready)
        except StopIteration as done:
            return done.value


class _Adapter(peewee.Psycopg3Adapter):
    """Peewee's adapter, for a driver that was not importable when Peewee was imported (`models/__init__.py`)."""

    txn_idle = pq.TransactionStatus.IDLE
    txn_inerror = pq.TransactionStatus.INERROR
    txn_unknown = pq.TransactionStatus.UNKNOWN

    def check_driver(self) -> None:
        pass

    def get_binary_type(self) -> Any:
        return psycopg.Binary

    def connect(self, db: Any, **params: Any) -> Connection:
        connection = Connection.connect(**params, autocommit=True, cursor_factory=psycopg.RawCursor)
        connection.adapters.register_dumper(str, _Text)
        connection.adapters.register_loader("numeric", IntLoader)  # sums of integers are numeric
        if connection.info.parameter_status("standard_conforming_strings") == "off":
            connection.execute("SET standard_conforming_strings = on")  # off doubles backslashes in `_copy`
        return connection


class Postgres(PooledPostgresqlDatabase, Store):  # type: ignore[misc]  # it has no types
    """One database, bound by `open`; `steps` are in SQLite's dialect (`models/storage/dialect.py`)."""

    param = "?"
    is_local = False

    def __init__(self, name: str, steps: Sequence[Sequence[str]]) -> None:
        """`name` identifies the schema version and the write lock among the stores of one database."""
        super().__init__(None, max_connections=_MAX_CONNECTIONS, timeout=_CHECKOUT_SECONDS)
        self.name = name
        self.steps = steps
        self._failed_at = 0.0
        self._requested = threading.local()
        self._deadline = threading.local()

    def init(self, database: str | None, **options: Any) -> None:
        super().init(database, **options)
        self._adapter = _Adapter()

    def open(self, url: str) -> None:
        """Connects, and migrates the tables to the newest version.

        Raises `CannotUse` for an invalid URL, `peewee.DatabaseError` if the database is unreachable or newer.
        """
        try:
            parameters = conninfo_to_dict(url)
        except psycopg.Error:  # its message would show the URL with the password
            raise CannotUse("server.database-url: this is not understood; it is postgresql://USER@HOST/NAME") from None
        self.init(str(parameters.get("dbname") or ""), **{**_SESSION, **parameters})
        self.connect()
        try:
            self.migrate()
        except BaseException:
            self.close_all()
            raise

    def migrate(self) -> None:
        """As `Store.migrate`; if several nodes start at once, one of them migrates."""
        with self.atomic():
            self.execute_sql(_CREATE_VERSIONS)
            row = self.execute_sql(_SELECT_VERSION, (self.name,)).fetchone()
            version = row[0] if row else 0
            if version > len(self.steps):
                raise peewee.DatabaseError(
                    f"its tables are of version {version}, newer than this program's {len(self.steps)}"
                )
            for step in self.steps[version:]:
                for statement in step:
                    for translated in dialect.schema(statement):
                        self.execute_sql(translated)
            self.execute_sql(_SET_VERSION, (self.name, len(self.steps)))

    def connect(self, reuse_if_open: bool = False) -> bool:
        self._requested.at = time.monotonic()
        return bool(super().connect(reuse_if_open))

    def _connect(self) -> Any:
        """One thread connects at a time. Threads that waited for a failed attempt fail too, without a retry."""
        if self._failed_at > self._requested.at:
            raise psycopg.OperationalError(_UNAVAILABLE)
        try:
            return super()._connect()
        except psycopg.OperationalError:
            self._failed_at = time.monotonic()
            raise

    def _is_closed(self, conn: Connection) -> bool:
        """Checks the connection. If it is lost, closes all idle ones, which are probably lost too."""
        conn.response_seconds = _RESPONSE_GRACE_SECONDS
        if lost := bool(super()._is_closed(conn)):
            self._close_raw(conn)
            self.close_idle()
        conn.response_seconds = inf
        return lost

    def execute_sql(self, sql: str, params: Any = None) -> Any:
        end = getattr(self._deadline, "end", None)
        if end is not None and time.monotonic() > end:
            raise TimedOut("the query took too long")
        statement, names = dialect.statement(sql)
        return super().execute_sql(statement, params if names is None else [params[name] for name in names])

    def begin(self, lock_type: str = "IMMEDIATE", of: str = "") -> None:
        """`IMMEDIATE` waits until no other transaction holds the write lock.

        At a level above `READ COMMITTED`, which the database may have as its default, statements after the wait would
        read a snapshot from before it.
        """
        if lock_type != "IMMEDIATE":
            self.execute_sql("BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY")
            return
        self.execute_sql("BEGIN ISOLATION LEVEL READ COMMITTED")
        try:
            self.execute_sql("SELECT pg_advisory_xact_lock(?)", (self.lock_id(of),))
        except BaseException:
            self.rollback()
            raise

    def lock_id(self, of: str = "") -> int:
        """The advisory lock of writers to this store, or to the part `of` of it."""
        return crc32(f"pilothouse {of or self.name}".encode())

    def atomic(self, lock_type: str = "IMMEDIATE", *arguments: Any, of: str = "", **options: Any) -> Any:
        """As `Store.atomic`."""
        return super().atomic(lock_type, *arguments, of=of, **options)

    def version(self) -> str:
        """As `Store.version`: the current snapshot, the same for all connections."""
        return str(self.execute_sql("SELECT CAST(pg_current_snapshot() AS text)").fetchone()[0])

    def rollback(self) -> Any:
        """Does nothing on a lost connection."""
        if self.connection().closed or self.connection().broken:
            return None
        return super().rollback()

    def write_many(self, statement: str, rows: Iterable[Sequence[Any]]) -> None:
        """As `Store.write_many`, within `run_with_timeout`."""
        self.connection().cursor().executemany(dialect.statement(statement)[0], rows)

    def run_with_timeout(self, work: Callable[[], Result], seconds: float) -> Result:
        """As `Store.run_with_timeout`. Raises `TimedOut`, and `peewee.OperationalError` for a lost connection."""
        self._deadline.end = time.monotonic() + seconds
        try:
            with self.connection_context():
                self.connection().set_timeouts(seconds)
                return work()
        except (peewee.DatabaseError, peewee.InterfaceError, psycopg.Error) as error:
            if _state(error) == _READ_ONLY_STATE:
                self.close_idle()
            raise _translated(error, seconds) from error
        finally:
            self._deadline.end = None

    def last_ids(self, new: Mapping[str, str]) -> dict[str, int]:
        """As `Store.last_ids`, from the sequences, which never return a number twice."""
        return {
            table: int(self.execute_sql(_RESERVE_IDS.format(new=count, table=table)).fetchone()[0])
            for table, count in new.items()
        }

    @contextmanager
    def spooled(self, path: Path) -> Iterator[None]:
        """As `Store.spooled`: copies the tables, before the write lock is taken."""
        with closing(sqlite3.connect(path)) as spool:
            tables = spool.execute("SELECT name, sql FROM sqlite_master WHERE type = 'table'").fetchall()
            with self.connection().transaction():
                for name, definition in tables:
                    self._copy(name, definition, spool.execute(f"SELECT * FROM {name}"))  # noqa: S608 (our own names)
        try:
            yield
        finally:
            if not self.connection().closed:
                self.connection().execute(b"DISCARD TEMP")

    def _copy(self, name: str, definition: str, rows: Iterable[Sequence[Any]]) -> None:
        cursor = self.connection().cursor()
        cursor.execute(dialect.schema(definition)[0].replace("CREATE TABLE", "CREATE TEMP TABLE", 1))
        with cursor.copy(f"COPY {name} FROM STDIN") as copy:
            for row in rows:
                copy.write_row(row)
        if cursor.rowcount > _MIN_ROWS_TO_ANALYZE:
            cursor.execute(f"ANALYZE {name}")

    def notify(self, channel: str) -> None:
        """As `Store.notify`; `supervisor/replication.py` listens."""
        self.execute_sql("SELECT pg_notify(?, '')", (f"{_CHANNEL_PREFIX}{channel}",))

    def notified_channels(
        self, channels: Sequence[str], polled: Sequence[str], is_closing: Callable[[], bool]
    ) -> Iterator[Collection[str]]:
        """Yields the notified channels, on a connection of its own, until `is_closing`.

        Yields all channels first, and those of `polled` after each idle period. Raises `peewee.OperationalError` if the
        connection is lost.
        """
        try:
            with closing(self._connect_listener()) as connection:
                for channel in channels:
                    connection.execute(f"LISTEN {_CHANNEL_PREFIX}{channel}".encode())
                yield channels
                idle = 0.0
                while not is_closing():
                    notices = connection.notifies(timeout=_NOTIFY_POLL_SECONDS, stop_after=1)
                    names = {notice.channel for notice in notices}
                    idle = 0.0 if names else idle + _NOTIFY_POLL_SECONDS
                    if idle > _PING_SECONDS:
                        idle = 0.0
                        connection.execute("SELECT 1")  # detects a lost connection
                        yield polled
                    elif names:
                        yield [name.removeprefix(_CHANNEL_PREFIX) for name in names]
        except psycopg.Error as error:
            raise peewee.OperationalError(_one_line(error)) from error

    def _connect_listener(self) -> Connection:
        connection: Connection = self._adapter.connect(self, **self.connect_params)
        connection.response_seconds = _RESPONSE_GRACE_SECONDS
        return connection

    def set_lock_timeout(self, seconds: float) -> None:
        """As `Store.set_lock_timeout`."""
        self.connection().set_timeouts(seconds * _LOCK_TIMEOUT_DIVISOR)

    def checkpoint(self) -> None:
        """Does nothing: PostgreSQL has its own checkpoints."""

    def limit_log(self, max_bytes: int | None = None) -> None:
        """Does nothing: PostgreSQL limits its write-ahead log."""


def _one_line(error: object) -> str:
    return " ".join(str(error).split())


def _cause(error: Exception) -> Exception:
    return getattr(error, "orig", None) or error


def _state(error: Exception) -> str:
    """The SQLSTATE of an error; empty if it has none."""
    return getattr(_cause(error), "sqlstate", None) or ""


def _translated(error: Exception, seconds: float) -> Exception:
    """The error for callers, with a message of one line. Temporary faults become `peewee.OperationalError`.

    The message does not contain the database's address; `supervisor/replication.py` logs that.
    """
    cause, state = _cause(error), _state(error)
    if isinstance(cause, psycopg.errors.QueryCanceled):
        return TimedOut(f"the query took longer than {seconds:g} s")
    if state == _READ_ONLY_STATE or state in _TRANSACTION_TIMEOUT_STATES:
        return peewee.OperationalError(_UNAVAILABLE)
    if isinstance(cause, psycopg.errors.ForeignKeyViolation):
        return peewee.OperationalError("an object that this refers to was deleted concurrently")
    if isinstance(error, peewee.OperationalError | peewee.InterfaceError | psycopg.OperationalError):
        return peewee.OperationalError(
            _UNAVAILABLE if not state or state[:2] in _UNAVAILABLE_CLASSES else _one_line(cause)
        )
    return peewee.DatabaseError(str(error)) if isinstance(error, psycopg.Error) else error
