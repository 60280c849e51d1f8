"""Reads the event log: from the file of this host, or from the database that several nodes share."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Protocol, TypeVar

import peewee

from models.errors import Problem, Unavailable
from models.paging import Page, Paging
from models.storage.store import MAX_QUERY_SECONDS
from models.supervision import events
from models.supervision.events import Filter, StatusEvent
from models.supervision.tables import database

if TYPE_CHECKING:
    from models.storage.postgres import Postgres

log = logging.getLogger("events")

Result = TypeVar("Result")

_MAX_ENTRIES_PER_COPY = 500
_COPY_TIMEOUT_SECONDS = 5.0
_FIRST_RETRY_SECONDS, _LAST_RETRY_SECONDS = 0.05, 2.0


class History(Protocol):
    """Every read may raise `Unavailable`, `TimedOut`."""

    @property
    def last_published(self) -> int:
        """The last event that was sent to the streams of this node."""

    async def page(self, paging: Paging, which: Filter | None = None) -> Page[StatusEvent]: ...

    async def count(self, which: Filter) -> int: ...

    async def counts(self) -> dict[str, int]: ...

    async def get(self, id: int) -> StatusEvent:
        """Raises `NotFound` too."""

    async def since(self, id: int, limit: int) -> Sequence[StatusEvent]: ...

    async def prune(self, before: int, most: int) -> int:
        """As `events.prune`."""


class OwnHistory:
    """In a file: recent pages are read on the loop, because that takes less than a millisecond."""

    @property
    def last_published(self) -> int:
        return events.last_id()

    async def page(self, paging: Paging, which: Filter | None = None) -> Page[StatusEvent]:
        if events.is_near_newest(paging, which):
            return events.page(paging, which)
        return await off_loop(lambda: events.page(paging, which))

    async def count(self, which: Filter) -> int:
        return events.count(which)

    async def counts(self) -> dict[str, int]:
        return events.counts()

    async def get(self, id: int) -> StatusEvent:
        return events.get(id)

    async def since(self, id: int, limit: int) -> Sequence[StatusEvent]:
        return events.since(id, limit)

    async def prune(self, before: int, most: int) -> int:
        return await off_loop(lambda: events.prune(before, most))


class SharedHistory:
    """In PostgreSQL. A change is first written to the file of this host and copied from there, so no process waits
    for a network. A read waits until the changes of this node at that time are copied.
    """

    def __init__(self, store: Postgres, instance: str) -> None:
        """Reads which events are copied. Raises `peewee.DatabaseError`."""
        from models.supervision import shared_events  # its driver is large: imported only where it is used

        self._sharing = shared_events
        self._store = store
        self._instance = instance
        self.last_published = events.last_id(store)
        """Set by `supervisor/replication.py`."""
        self._copied = shared_events.begin(store, instance, events.last_id())
        self._more = asyncio.Event()
        self._more.set()
        self._moved = asyncio.Condition()

    @property
    def waiting(self) -> int:
        """How many changes of this node are not copied yet."""
        return max(0, events.last_id() - self._copied)

    def notice(self, _: StatusEvent) -> None:
        """A change was written to the file of this host."""
        self._more.set()

    async def copy(self) -> None:
        """Copies changes as they are written; retries while the database is unavailable."""
        retry = 0.0
        while True:
            await self._more.wait()
            self._more.clear()
            try:
                while await asyncio.to_thread(self._copy_some):
                    async with self._moved:
                        self._moved.notify_all()
            except (peewee.PeeweeException, Problem) as error:
                if not retry:
                    log.error("the shared history cannot be written (%s): changes wait in the local store", error)
                retry = min(max(2 * retry, _FIRST_RETRY_SECONDS), _LAST_RETRY_SECONDS)
                self._more.set()
                await asyncio.sleep(retry)
            else:
                if retry:
                    log.warning("the shared history can be written again")
                retry = 0.0

    def _copy_some(self) -> bool:
        entries = database.run_with_timeout(
            lambda: events.since(self._copied, _MAX_ENTRIES_PER_COPY), MAX_QUERY_SECONDS
        )
        if entries:
            copy = self._sharing.copy
            self._copied = self._store.run_with_timeout(
                lambda: copy(self._store, self._instance, entries, self._copied), MAX_QUERY_SECONDS
            )
        return bool(entries)

    async def finish(self, seconds: float) -> None:
        """Copies the remaining changes; those that do not fit into that time are copied at the next start."""
        try:
            async with asyncio.timeout(seconds):
                while await asyncio.to_thread(self._copy_some):
                    pass
        except (TimeoutError, peewee.PeeweeException, Problem):
            log.warning("the shared history lacks the latest changes of this node until its next start")

    async def _read(self, query: Callable[[], Result]) -> Result:
        newest = events.last_id()
        try:
            async with asyncio.timeout(_COPY_TIMEOUT_SECONDS), self._moved:
                await self._moved.wait_for(lambda: self._copied >= newest)
        except TimeoutError:
            raise Unavailable(
                "the shared history does not have the latest changes yet: its database is unavailable"
            ) from None
        return await self._query(query)

    async def _query(self, query: Callable[[], Result]) -> Result:
        try:
            return await asyncio.to_thread(self._store.run_with_timeout, query, MAX_QUERY_SECONDS)
        except peewee.OperationalError as error:
            log.error("the shared history does not respond: %s", error)
            raise Unavailable("the shared history does not respond") from None

    async def page(self, paging: Paging, which: Filter | None = None) -> Page[StatusEvent]:
        return await self._read(lambda: events.page(paging, which, self._store))

    async def count(self, which: Filter) -> int:
        return await self._read(lambda: events.count(which, self._store))

    async def counts(self) -> dict[str, int]:
        return await self._read(lambda: events.counts(self._store))

    async def get(self, id: int) -> StatusEvent:
        return await self._read(lambda: events.get(id, self._store))

    async def since(self, id: int, limit: int) -> Sequence[StatusEvent]:
        """For streams, which are sent later what is not copied yet."""
        return await self._query(lambda: events.since(id, limit, self._store))

    async def prune(self, before: int, most: int) -> int:
        """Prunes the shared history and the file of this host."""
        own = await off_loop(lambda: events.prune(before, most))
        return own + await self._query(lambda: events.prune(before, most, store=self._store))


async def off_loop(query: Callable[[], Result]) -> Result:
    """Runs a query on the file of this host in a worker. Raises `TimedOut`, `peewee.PeeweeException`."""
    return await asyncio.to_thread(database.run_with_timeout, query, MAX_QUERY_SECONDS)
