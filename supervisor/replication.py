"""Several nodes on one database: what any of them has committed is told to the streams of all, in one order.

Each node listens on a connection of its own, in a thread. A word wakes it; what is new it reads from the tables, so a
word that was lost with a connection costs nothing but time. Its own events come the same way as those of others.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import logging
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import peewee

from models.errors import Problem
from models.supervision import events, shared_events
from models.supervision.events import Entry
from models.tracker import run_events
from models.tracker.run_events import RunUpdate
from models.tracker.tables import reports
from supervisor.processes.history import SharedHistory
from supervisor.pubsub import PubSub

if TYPE_CHECKING:
    from models.storage.postgres import Postgres

log = logging.getLogger("nodes")

_AT_ONCE = 500
_TAKES = 20.0
_AGAIN = 0.5


class Source:
    """A table of numbered events, and whom to tell of them."""

    def __init__(
        self,
        store: Postgres | Any,
        read: Callable[[int, int], Sequence[Any]],
        last: int,
        tell: Callable[[Sequence[Any]], None],
    ) -> None:
        """`read` gives those after an id, at most so many; `last` was told already; `tell` is called on the loop."""
        self._store = store
        self._read = read
        self._last = last
        self._tell = tell

    def take(self, loop: asyncio.AbstractEventLoop) -> None:
        """Tells what is new. Returns when the loop has done so: a loop that is busy is not buried."""
        while found := self._store.run_with_timeout(lambda: self._read(self._last, _AT_ONCE), _TAKES):
            told: concurrent.futures.Future[None] = concurrent.futures.Future()
            loop.call_soon_threadsafe(self._tell_all, found, told)
            told.result(_TAKES)

    def _tell_all(self, found: Sequence[Any], told: concurrent.futures.Future[None]) -> None:
        """On the loop; if that took so long that the same was read twice, it is told once."""
        fresh = [one for one in found if one.id > self._last]
        try:
            if fresh:
                self._last = fresh[-1].id
                self._tell(fresh)
        finally:
            told.set_result(None)


class Nodes:
    """Listens until `close`."""

    def __init__(self, store: Postgres, sources: Mapping[str, Source]) -> None:
        """`sources` by the channel on which their news come."""
        self._store = store
        self._sources = sources
        self._closing = threading.Event()
        self._loop = asyncio.get_running_loop()
        self.is_connected = False
        threading.Thread(target=self._listen, name="nodes", daemon=True).start()

    def close(self) -> None:
        """Soon; nobody waits for it."""
        self._closing.set()

    def _listen(self) -> None:
        told = False
        while not self._closing.is_set():
            try:
                for channels in self._store.heard(tuple(self._sources), self._closing.is_set):
                    if told:
                        log.warning("the other nodes are heard again")
                        told = False
                    self.is_connected = True
                    for channel in channels:
                        self._sources[channel].take(self._loop)
            except (peewee.PeeweeException, Problem, TimeoutError) as error:
                if not told and not self._closing.is_set():
                    told = True
                    log.error("the other nodes cannot be heard: %s", error)
            except RuntimeError:  # the loop is closed, and with it the house
                return
            self.is_connected = False
            self._closing.wait(_AGAIN)


class Sharing:
    """The feeds of this node are told what any node has committed, its own changes too: in one order for all."""

    def __init__(self, url: str, instance: str, changes: PubSub[Entry], runs: PubSub[RunUpdate]) -> None:
        """For when the store of the tracker is open. Raises `CannotUse`, `peewee.DatabaseError`."""
        self._changes = changes
        self._runs = runs
        self._store = shared_events.open_history(url)
        self.history = SharedHistory(self._store, instance)
        self.last_run = run_events.bounds()[1]
        """The last run event that the streams of this node were told of."""

    @property
    def is_connected(self) -> bool:
        """Whether the database was there when it was last looked at."""
        return self.nodes.is_connected

    def listen(self) -> None:
        """From now on the feeds are told."""
        store = self._store
        self.nodes = Nodes(
            store,
            {
                shared_events.CHANNEL: Source(
                    store, lambda after, most: events.since(after, most, store), self.history.last_told, self._changed
                ),
                run_events.CHANNEL: Source(reports, run_events.since, self.last_run, self._ran),
            },
        )

    def _changed(self, found: Sequence[Entry]) -> None:
        for entry in found:
            self.history.last_told = entry.id
            self._changes.publish(entry)

    def _ran(self, found: Sequence[RunUpdate]) -> None:
        for update in found:
            self.last_run = update.id
            self._runs.publish(update)

    async def close(self, seconds: float) -> None:
        """Copies what is left, for so long at most, and lets go of the database."""
        self.nodes.close()
        await self.history.finish(seconds)
        await asyncio.to_thread(self._store.close_all)
