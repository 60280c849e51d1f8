"""Several nodes on one database: each node publishes to its streams the events of all, in one order.

Each node listens for notifications on its own connection, in a thread. A notification wakes it; it reads new events
from the tables, so a lost notification delays them but loses none. A node's own events arrive the same way.
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
from models.supervision.events import StatusEvent
from models.tracker.runs import run_events
from models.tracker.runs.run_events import RunUpdate
from models.tracker.tables import reports
from supervisor.processes.history import SharedHistory
from supervisor.pubsub import PubSub

if TYPE_CHECKING:
    from models.storage.postgres import Postgres

log = logging.getLogger("nodes")

_MAX_EVENTS_PER_READ = 500
_READ_SECONDS = 20.0
_RECONNECT_SECONDS = 0.5


class EventTable:
    """A table of numbered events, and the function that publishes new ones."""

    is_polled = True
    """Whether it is read after an idle time too, without a notification."""

    def __init__(
        self,
        store: Postgres | Any,
        read: Callable[[int, int], Sequence[Any]],
        last: int,
        publish: Callable[[Sequence[Any]], None],
    ) -> None:
        """`read(after, count)` returns events after an id; `last` is published already; `publish` runs on the loop."""
        self._store = store
        self._read = read
        self._last = last
        self._publish = publish

    def take(self, loop: asyncio.AbstractEventLoop) -> None:
        """Publishes new events. Returns when the loop has done so, which bounds the work queued on a busy loop."""
        while events := self._store.run_with_timeout(
            lambda: self._read(self._last, _MAX_EVENTS_PER_READ), _READ_SECONDS
        ):
            published: concurrent.futures.Future[None] = concurrent.futures.Future()
            loop.call_soon_threadsafe(self._publish_new, events, published)
            published.result(_READ_SECONDS)

    def _publish_new(self, events: Sequence[Any], published: concurrent.futures.Future[None]) -> None:
        """Runs on the loop. Events that were read twice, because the loop was slow, are published once."""
        new = [event for event in events if event.id > self._last]
        try:
            if new:
                self._last = new[-1].id
                self._publish(new)
        finally:
            published.set_result(None)


class Wake:
    """A function that each notification calls on the loop. It is called after a lost connection too."""

    is_polled = False

    def __init__(self, wake: Callable[[], None]) -> None:
        self._wake = wake

    def take(self, loop: asyncio.AbstractEventLoop) -> None:
        loop.call_soon_threadsafe(self._wake)


class Nodes:
    """Listens until `close`."""

    def __init__(self, store: Postgres, sources: Mapping[str, EventTable | Wake]) -> None:
        """`sources` by the channel of their notifications."""
        self._store = store
        self._sources = sources
        self._closing = threading.Event()
        self._loop = asyncio.get_running_loop()
        self.is_connected = False
        threading.Thread(target=self._listen, name="nodes", daemon=True).start()

    def close(self) -> None:
        """Makes the thread end, without waiting for it."""
        self._closing.set()

    def _listen(self) -> None:
        failed = False
        polled = [channel for channel, source in self._sources.items() if source.is_polled]
        while not self._closing.is_set():
            try:
                for channels in self._store.notified_channels(tuple(self._sources), polled, self._closing.is_set):
                    if failed:
                        log.warning("notifications of the other nodes arrive again")
                        failed = False
                    self.is_connected = True
                    for channel in channels:
                        self._sources[channel].take(self._loop)
            except (peewee.PeeweeException, Problem, TimeoutError) as error:
                if not failed and not self._closing.is_set():
                    failed = True
                    log.error("notifications of the other nodes cannot be received: %s", error)
            except RuntimeError:  # the loop is closed
                return
            self.is_connected = False
            self._closing.wait(_RECONNECT_SECONDS)


class Sharing:
    """Publishes on this node the events that any node commits, its own included, in one order for all nodes."""

    def __init__(self, url: str, instance: str, changes: PubSub[StatusEvent], runs: PubSub[RunUpdate]) -> None:
        """The store of the tracker must be open. Raises `CannotUse`, `peewee.DatabaseError`."""
        self._changes = changes
        self._runs = runs
        self._store = shared_events.open_history(url)
        self.history = SharedHistory(self._store, instance)
        self.last_run = run_events.bounds()[1]
        """The id of the last run event that this node has published."""

    @property
    def is_connected(self) -> bool:
        """Whether the last attempt to reach the database succeeded."""
        return self.nodes.is_connected

    def listen(self, wakes: Mapping[str, Callable[[], None]]) -> None:
        """Starts publishing. `wakes` are called for notifications, by channel."""
        store = self._store
        self.nodes = Nodes(
            store,
            {
                shared_events.CHANNEL: EventTable(
                    store,
                    lambda after, count: events.since(after, count, store),
                    self.history.last_published,
                    self._publish_changes,
                ),
                run_events.CHANNEL: EventTable(reports, run_events.since, self.last_run, self._publish_runs),
                **{channel: Wake(wake) for channel, wake in wakes.items()},
            },
        )

    def _publish_changes(self, entries: Sequence[StatusEvent]) -> None:
        for entry in entries:
            self.history.last_published = entry.id
            self._changes.publish(entry)

    def _publish_runs(self, updates: Sequence[RunUpdate]) -> None:
        for update in updates:
            self.last_run = update.id
            self._runs.publish(update)

    async def close(self, seconds: float) -> None:
        """Copies the rest of the history, for at most `seconds`, and closes the connections."""
        self.nodes.close()
        await self.history.finish(seconds)
        await asyncio.to_thread(self._store.close_all)
