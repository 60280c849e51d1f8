"""The contract of a store. `SqliteStore` is a file, `Postgres` a database that several nodes share."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, TypeVar

Result = TypeVar("Result")

MAX_QUERY_SECONDS = 20.0
"""How long a query of a request may take."""


class Store:
    """A database of one service, at its newest version, with peewee's methods in addition to these."""

    steps: Sequence[Sequence[str]]
    """Statements by version, in SQLite's dialect, unchanged once released. A store at version n runs those after n."""

    is_local: bool
    """Whether a row is read at once, so that the loop may do so. Otherwise only worker threads use the store."""

    def migrate(self) -> None:
        """Brings the open store to the newest version.

        Raises `peewee.DatabaseError` if the store is newer than this program.
        """
        raise NotImplementedError

    def atomic(self, *arguments: Any, of: str = "", **options: Any) -> Any:
        """A context in which everything is written or nothing. `DEFERRED`: for several reads of one moment.

        `of` names a part of the store that may be written while another transaction writes the rest.
        """
        raise NotImplementedError

    def version(self) -> object:
        """A value that differs whenever something was stored since this connection last called it."""
        raise NotImplementedError

    def write_many(self, statement: str, rows: Iterable[Sequence[Any]]) -> None:
        """Runs `statement` for each row, within `atomic()`. Raises `peewee.DatabaseError`."""
        raise NotImplementedError

    def last_ids(self, new: Mapping[str, str]) -> dict[str, int]:
        """The last id that each table has given, within `atomic()`.

        `new` has for each table a query that counts at most how many rows follow, for a store that reserves ids.
        """
        raise NotImplementedError

    def spooled(self, path: Path) -> AbstractContextManager[None]:
        """Makes the tables of the SQLite file at `path` readable, on a connection of `run_with_timeout`."""
        raise NotImplementedError

    def notify(self, channel: str) -> None:
        """Wakes the nodes that listen on `channel` once the transaction is committed."""
        raise NotImplementedError

    def close_all(self) -> None:
        """Closes the connections of all threads."""
        raise NotImplementedError

    def set_lock_timeout(self, seconds: float) -> None:
        """Sets how long this thread's connection waits for other writers."""
        raise NotImplementedError

    def limit_log(self, max_bytes: int | None = None) -> None:
        """Empties a write-ahead log that is larger than that. For a worker, outside of transactions."""
        raise NotImplementedError

    def run_with_timeout(self, work: Callable[[], Result], seconds: float) -> Result:
        """Runs `work` in a worker thread, on a connection that may wait, and interrupts it after `seconds`.

        Raises `TimedOut`, and `peewee.OperationalError` where the store cannot be used.
        """
        raise NotImplementedError
