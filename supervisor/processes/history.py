"""The history of status changes as the handlers ask for it: this host's own, or the one that several nodes share."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Protocol, TypeVar

import peewee

from models.errors import Problem, Unavailable
from models.paging import Page, Paging
from models.supervision import events
from models.supervision.events import Entry, Filter
from models.supervision.tables import database

if TYPE_CHECKING:
    from models.storage.postgres import Postgres

log = logging.getLogger("events")

Result = TypeVar("Result")

QUERY_TAKES = 20.0
_AT_ONCE = 500
_COPIED_WITHIN = 5.0
_FIRST_RETRY, _LAST_RETRY = 0.05, 2.0


class History(Protocol):
    """Every read may raise `Unavailable`, `TimedOut`."""

    @property
    def last_told(self) -> int:
        """The last event that the streams of this node were told of."""

    async def page(self, asked: Paging, which: Filter | None = None) -> Page[Entry]: ...

    async def count(self, which: Filter) -> int: ...

    async def counts(self) -> dict[str, int]: ...

    async def get(self, id: int) -> Entry:
        """Raises `NotFound` too."""

    async def since(self, id: int, limit: int) -> Sequence[Entry]: ...

    async def prune(self, before: int, most: int) -> int:
        """As `events.prune`."""


class OwnHistory:
    """In a file: what is near is read on the loop, for that takes no time."""

    @property
    def last_told(self) -> int:
        return events.last_id()

    async def page(self, asked: Paging, which: Filter | None = None) -> Page[Entry]:
        if events.is_near_newest(asked):
            return events.page(asked, which)
        return await _off_loop(lambda: events.page(asked, which))

    async def count(self, which: Filter) -> int:
        return events.count(which)

    async def counts(self) -> dict[str, int]:
        return events.counts()

    async def get(self, id: int) -> Entry:
        return events.get(id)

    async def since(self, id: int, limit: int) -> Sequence[Entry]:
        return events.since(id, limit)

    async def prune(self, before: int, most: int) -> int:
        return await _off_loop(lambda: events.prune(before, most))


class SharedHistory:
    """In PostgreSQL. A change is first in this host's own file, and copied from there: no process waits for a network.

    Who reads waits until what this node had when he asked is there.
    """

    def __init__(self, store: Postgres, instance: str) -> None:
        """Reads how far it has come. Raises `peewee.DatabaseError`."""
        from models.supervision import shared_events  # only where it is asked for: its driver is large

        self._sharing = shared_events
        self._store = store
        self._instance = instance
        self.last_told = events.last_id(store)
        """Set by who tells the streams (`supervisor/replication.py`)."""
        self._copied = shared_events.begin(store, instance, events.last_id())
        self._more = asyncio.Event()
        self._more.set()
        self._moved = asyncio.Condition()

    @property
    def waiting(self) -> int:
        """How many changes of this node are not there yet."""
        return max(0, events.last_id() - self._copied)

    def notice(self, _: Entry) -> None:
        """There is something in the own file."""
        self._more.set()

    async def copy(self) -> None:
        """Copies what comes, for ever; where the database is away, it is tried again and again."""
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
                    log.error("the shared history cannot be written (%s): changes wait in the own store", error)
                retry = min(max(2 * retry, _FIRST_RETRY), _LAST_RETRY)
                self._more.set()
                await asyncio.sleep(retry)
            else:
                if retry:
                    log.warning("the shared history can be written again")
                retry = 0.0

    def _copy_some(self) -> bool:
        entries = database.run_with_timeout(lambda: events.since(self._copied, _AT_ONCE), QUERY_TAKES)
        if entries:
            copy = self._sharing.copy
            self._copied = self._store.run_with_timeout(
                lambda: copy(self._store, self._instance, entries, self._copied), QUERY_TAKES
            )
        return bool(entries)

    async def finish(self, seconds: float) -> None:
        """Copies what is left; what that is not enough for is copied at the next start."""
        try:
            async with asyncio.timeout(seconds):
                while await asyncio.to_thread(self._copy_some):
                    pass
        except (TimeoutError, peewee.PeeweeException, Problem):
            log.warning("the shared history lacks the last changes of this node until its next start")

    async def _read(self, query: Callable[[], Result]) -> Result:
        newest = events.last_id()
        try:
            async with asyncio.timeout(_COPIED_WITHIN), self._moved:
                await self._moved.wait_for(lambda: self._copied >= newest)
        except TimeoutError:
            raise Unavailable("the shared history does not have the last changes yet: its database is away") from None
        return await self._ask(query)

    async def _ask(self, query: Callable[[], Result]) -> Result:
        try:
            return await asyncio.to_thread(self._store.run_with_timeout, query, QUERY_TAKES)
        except peewee.OperationalError as error:
            log.error("the shared history does not answer: %s", error)
            raise Unavailable("the shared history does not answer") from None

    async def page(self, asked: Paging, which: Filter | None = None) -> Page[Entry]:
        return await self._read(lambda: events.page(asked, which, self._store))

    async def count(self, which: Filter) -> int:
        return await self._read(lambda: events.count(which, self._store))

    async def counts(self) -> dict[str, int]:
        return await self._read(lambda: events.counts(self._store))

    async def get(self, id: int) -> Entry:
        return await self._read(lambda: events.get(id, self._store))

    async def since(self, id: int, limit: int) -> Sequence[Entry]:
        """Asked by streams, which miss nothing: what is not there yet they are told later."""
        return await self._ask(lambda: events.since(id, limit, self._store))

    async def prune(self, before: int, most: int) -> int:
        """The shared history; the own file too, which keeps what was copied as long as the other does."""
        own = await _off_loop(lambda: events.prune(before, most))
        return own + await self._ask(lambda: events.prune(before, most, store=self._store))


async def _off_loop(query: Callable[[], Result]) -> Result:
    return await asyncio.to_thread(database.run_with_timeout, query, QUERY_TAKES)
