"""A store that several nodes share: a database of PostgreSQL, with the methods and the meaning of
`models/storage/sqlite.py`.

Who writes holds a lock of the whole store until the end of its transaction, as in SQLite: rules that were written for
one writer at a time stay true. Only accounts have one of their own: nobody waits to log in until a large report is in.
Who reads several things sees them at one moment. Everything here waits for another machine, so it belongs to worker
threads; no wait is without an end.
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

_MOST_CONNECTIONS = 20
_PREFIX = "pilothouse_"
_MANY = 500
_AWAY = "the database is away"
_GONE = ("08", "28", "3D", "53", "57", "58")
"""Classes of SQLSTATE: no connection, not let in, no such database, too many, an operator's doing, a disk."""
_READ_ONLY = "25006"
"""Another has become the primary."""
_LOOK, _QUIET = 0.5, 10.0
_ANSWERS_WITHIN = 5.0
"""A server that is stopped, or behind a network that is, closes nothing and keeps no time: we do."""
_USUAL = 20.0
_WAIT_SHARE = 4
"""Of the time that work may take, so much (a quarter) is for others who write."""
_SESSION = {
    "application_name": "pilothouse",
    "client_encoding": "UTF8",
    "connect_timeout": "5",
    "keepalives_idle": "30",
    "keepalives_interval": "10",
    "tcp_user_timeout": "30000",
}
"""What the URL does not say."""
_VERSIONS = "CREATE TABLE IF NOT EXISTS schema_version (store TEXT PRIMARY KEY, version BIGINT NOT NULL)"
_VERSION = "SELECT version FROM schema_version WHERE store = ?"
_SET_VERSION = (
    "INSERT INTO schema_version (store, version) VALUES (?, ?)"
    " ON CONFLICT (store) DO UPDATE SET version = excluded.version"
)
_RESERVE = (
    "SELECT setval(s, nextval(s) + ({new})) - ({new})"
    " FROM (SELECT CAST(pg_get_serial_sequence('{table}', 'id') AS regclass) AS s) AS sequence"
)


class _Text(StrDumperUnknown):
    """A NUL, which PostgreSQL does not hold, becomes the sign for what is none."""

    def dump(self, obj: str) -> Any:
        return super().dump(obj.replace("\0", "\ufffd") if "\0" in obj else obj)


class Connection(psycopg.Connection[Any]):
    seconds = 0.0
    """How long a statement may take on it."""
    most = inf
    """How long we wait for an answer; then the connection is lost."""

    def allow(self, seconds: float) -> None:
        self.most = seconds + _ANSWERS_WITHIN
        if self.seconds != seconds:
            most, wait = round(seconds * 1000), round(seconds * 1000 / _WAIT_SHARE)
            self.execute(f"SET statement_timeout = {most}; SET lock_timeout = {wait}")
            self.seconds = seconds

    def wait(self, gen: Generator[Any, Any, Any], *arguments: Any, **options: Any) -> Any:
        return super().wait(self._bounded(gen), *arguments, **options)

    def _bounded(self, work: Generator[Any, Any, Any]) -> Generator[Any, Any, Any]:
        """The same, whose waiting ends: what comes in is what the socket is ready for, 0 where nothing came."""
        end = time.monotonic() + self.most
        try:
            wanted = next(work)
            while True:
                ready = yield wanted
                if not ready and time.monotonic() > end:
                    self.pgconn.finish()
                    raise psycopg.OperationalError("the database does not answer")
                wanted = work.send(ready)
        except StopIteration as done:
            return done.value


class _Adapter(peewee.Psycopg3Adapter):
    """Peewee's, for a driver that was not there when Peewee looked for it (`models/__init__.py`)."""

    txn_idle = pq.TransactionStatus.IDLE
    txn_inerror = pq.TransactionStatus.INERROR
    txn_unknown = pq.TransactionStatus.UNKNOWN

    def check_driver(self) -> None:
        pass

    def get_binary_type(self) -> Any:
        return psycopg.Binary

    def connect(self, db: Any, **params: Any) -> Connection:
        made = Connection.connect(**params, cursor_factory=psycopg.RawCursor)
        made.adapters.register_dumper(str, _Text)
        made.adapters.register_loader("numeric", IntLoader)  # a sum of whole numbers is one
        return made


class Postgres(PooledPostgresqlDatabase, Store):  # type: ignore[misc]  # it has no types
    """One database, bound by `open`; `steps` are written in the words of SQLite (`models/storage/dialect.py`)."""

    param = "?"
    is_local = False

    def __init__(self, name: str, steps: Sequence[Sequence[str]]) -> None:
        """`name` tells these steps, and the lock of who writes, from those of other stores in the same database."""
        super().__init__(None, max_connections=_MOST_CONNECTIONS, timeout=_USUAL)
        self.name = name
        self.steps = steps
        self._failed_at = 0.0
        self._asked = threading.local()
        self._deadline = threading.local()

    def init(self, database: str | None, **options: Any) -> None:
        super().init(database, **options)
        self._adapter = _Adapter()

    def open(self, url: str) -> None:
        """Connects, and brings the tables to the newest version.

        Raises `CannotUse` for a URL that is none, `peewee.DatabaseError` where it cannot be reached, or is newer.
        """
        try:
            places = conninfo_to_dict(url)
        except psycopg.Error:  # it would show the URL, and with it the password
            raise CannotUse("server.database-url: this is not understood; it is postgresql://USER@HOST/NAME") from None
        self.init(str(places.get("dbname") or ""), **{**_SESSION, **places})
        self.connect()
        try:
            self.migrate()
        except BaseException:
            self.close_all()
            raise

    def migrate(self) -> None:
        """As `Store.migrate`; of several nodes that start at once one does it."""
        with self.atomic():
            self.execute_sql(_VERSIONS)
            row = self.execute_sql(_VERSION, (self.name,)).fetchone()
            done = row[0] if row else 0
            if done > len(self.steps):
                raise peewee.DatabaseError(
                    f"its tables are of version {done}, newer than this program's {len(self.steps)}"
                )
            for step in self.steps[done:]:
                for statement in step:
                    for one in dialect.schema(statement):
                        self.execute_sql(one)
            self.execute_sql(_SET_VERSION, (self.name, len(self.steps)))

    def connect(self, reuse_if_open: bool = False) -> bool:
        self._asked.at = time.monotonic()
        return bool(super().connect(reuse_if_open))

    def _connect(self) -> Any:
        """One at a time. Who stood in line while another tried in vain has seen enough, and does not try again."""
        if self._failed_at > self._asked.at:
            raise psycopg.OperationalError(_AWAY)
        try:
            return super()._connect()
        except psycopg.OperationalError:
            self._failed_at = time.monotonic()
            raise

    def _is_closed(self, conn: Connection) -> bool:
        """Asks it. What was lost was not lost alone, so the others are not asked one after the other."""
        conn.most = _ANSWERS_WITHIN
        if lost := bool(super()._is_closed(conn)):
            self._close_raw(conn)
            self.close_idle()
        conn.most = inf
        return lost

    def execute_sql(self, sql: str, params: Any = None) -> Any:
        end = getattr(self._deadline, "end", None)
        if end is not None and time.monotonic() > end:
            raise TimedOut("the query took too long")
        statement, names = dialect.statement(sql)
        return super().execute_sql(statement, params if names is None else [params[name] for name in names])

    def begin(self, lock_type: str = "IMMEDIATE", of: str = "") -> None:
        """`IMMEDIATE` waits until nobody else writes."""
        if lock_type != "IMMEDIATE":
            self.execute_sql("BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY")
            return
        self.execute_sql("BEGIN")
        try:
            self.execute_sql("SELECT pg_advisory_xact_lock(?)", (self.lock_id(of),))
        except BaseException:
            self.rollback()
            raise

    def lock_id(self, of: str = "") -> int:
        """Of who writes in this store, or in that part of it."""
        return crc32(f"pilothouse {of or self.name}".encode())

    def atomic(self, lock_type: str = "IMMEDIATE", *arguments: Any, of: str = "", **options: Any) -> Any:
        """As `Store.atomic`."""
        return super().atomic(lock_type, *arguments, of=of, **options)

    def version(self) -> str:
        """As `Store.version`, for whoever asks: what can be seen just now."""
        return str(self.execute_sql("SELECT CAST(pg_current_snapshot() AS text)").fetchone()[0])

    def rollback(self) -> Any:
        """A connection that is lost has nothing to take back."""
        if self.connection().closed or self.connection().broken:
            return None
        return super().rollback()

    def write_many(self, statement: str, rows: Iterable[Sequence[Any]]) -> None:
        """As `Store.write_many`, within `run_with_timeout`."""
        self.connection().cursor().executemany(dialect.statement(statement)[0], rows)

    def run_with_timeout(self, work: Callable[[], Result], seconds: float) -> Result:
        """As `Store.run_with_timeout`. Raises `TimedOut`; what was lost on the way is a `peewee.OperationalError`."""
        self._deadline.end = time.monotonic() + seconds
        try:
            with self.connection_context():
                self.connection().allow(seconds)
                return work()
        except (peewee.DatabaseError, peewee.InterfaceError, psycopg.Error) as error:
            if _state(error) == _READ_ONLY:
                self.close_idle()
            raise _told(error, seconds) from error
        finally:
            self._deadline.end = None

    def last_ids(self, new: Mapping[str, str]) -> dict[str, int]:
        """As `Store.last_ids`: from its sequences, which never give a number twice."""
        return {
            table: int(self.execute_sql(_RESERVE.format(new=count, table=table)).fetchone()[0])
            for table, count in new.items()
        }

    @contextmanager
    def spooled(self, path: Path) -> Iterator[None]:
        """As `Store.spooled`: copies them, before anybody has to wait for this."""
        with closing(sqlite3.connect(path)) as spool:
            tables = spool.execute("SELECT name, sql FROM sqlite_master WHERE type = 'table'").fetchall()
            with self.connection().transaction():
                for name, made in tables:
                    self._copy(name, made, spool.execute(f"SELECT * FROM {name}"))  # noqa: S608 (our own names)
        try:
            yield
        finally:
            if not self.connection().closed:
                self.connection().execute(b"DISCARD TEMP")

    def _copy(self, name: str, made: str, rows: Iterable[Sequence[Any]]) -> None:
        cursor = self.connection().cursor()
        cursor.execute(dialect.schema(made)[0].replace("CREATE TABLE", "CREATE TEMP TABLE", 1))
        with cursor.copy(f"COPY {name} FROM STDIN") as copy:
            for row in rows:
                copy.write_row(row)
        if cursor.rowcount > _MANY:
            cursor.execute(f"ANALYZE {name}")

    def notify(self, channel: str) -> None:
        """Wakes the nodes that listen (`supervisor/replication.py`), once this is committed."""
        self.execute_sql("SELECT pg_notify(?, '')", (f"{_PREFIX}{channel}",))

    def heard(self, channels: Sequence[str], is_over: Callable[[], bool]) -> Iterator[Collection[str]]:
        """The channels with news, all of them at first and at times; on a connection of its own, until `is_over`.

        Raises `peewee.OperationalError` where that is lost.
        """
        try:
            with closing(self._connect_apart()) as connection:
                for channel in channels:
                    connection.execute(f"LISTEN {_PREFIX}{channel}".encode())
                yield channels
                quiet = 0.0
                while not is_over():
                    news = {one.channel for one in connection.notifies(timeout=_LOOK, stop_after=1)}
                    quiet = 0.0 if news else quiet + _LOOK
                    if quiet > _QUIET:
                        quiet = 0.0
                        connection.execute("SELECT 1")  # whether it is still there
                        yield channels
                    elif news:
                        yield [name.removeprefix(_PREFIX) for name in news]
        except psycopg.Error as error:
            raise peewee.OperationalError(_line(error)) from error

    def _connect_apart(self) -> Connection:
        made: Connection = self._adapter.connect(self, **self.connect_params)
        made.autocommit = True
        made.most = _ANSWERS_WITHIN
        return made

    def be_patient(self, seconds: float) -> None:
        """As `Store.be_patient`."""
        self.connection().allow(seconds * _WAIT_SHARE)

    def checkpoint(self) -> None:
        """Does nothing: the server does this by itself."""

    def limit_log(self) -> None:
        """Does nothing: the server does this by itself."""


def _line(error: object) -> str:
    return " ".join(str(error).split())


def _cause(error: Exception) -> Exception:
    return getattr(error, "orig", None) or error


def _state(error: Exception) -> str:
    """Its SQLSTATE."""
    return getattr(_cause(error), "sqlstate", None) or ""


def _told(error: Exception, seconds: float) -> Exception:
    """In one line. That the database is away, stopping, or gave up for another is nobody's fault here: try again.

    Who asked is not told where it is; the log is, by who listens (`supervisor/replication.py`).
    """
    cause, state = _cause(error), _state(error)
    if isinstance(cause, psycopg.errors.QueryCanceled):
        return TimedOut(f"the query took longer than {seconds:g} s")
    if state == _READ_ONLY:
        return peewee.OperationalError(_AWAY)
    if isinstance(cause, psycopg.errors.ForeignKeyViolation):
        return peewee.OperationalError("what this refers to was deleted at the same moment")
    if isinstance(error, peewee.OperationalError | peewee.InterfaceError | psycopg.OperationalError):
        return peewee.OperationalError(_AWAY if not state or state[:2] in _GONE else _line(cause))
    return peewee.DatabaseError(str(error)) if isinstance(error, psycopg.Error) else error
