"""What a node has where `server.database-url` names a database: the shared history, and the news of all nodes."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from models import events, sharing
from models.events import Entry
from models.tracker import runevents
from models.tracker.runevents import RunUpdate
from models.tracker.schema import reports
from supervisor.feed import Feed
from supervisor.history import SharedHistory
from supervisor.nodes import Nodes, Source


class Sharing:
    """The feeds of this node are told what any node has committed, its own changes too: in one order for all."""

    def __init__(self, url: str, instance: str, changes: Feed[Entry], runs: Feed[RunUpdate]) -> None:
        """For when the store of the tracker is open. Raises `CannotUse`, `peewee.DatabaseError`."""
        self._changes = changes
        self._runs = runs
        self._store = sharing.open_history(url)
        self.history = SharedHistory(self._store, instance)
        self.last_run = runevents.bounds()[1]
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
                sharing.CHANNEL: Source(
                    store, lambda after, most: events.since(after, most, store), self.history.last_told, self._changed
                ),
                runevents.CHANNEL: Source(reports, runevents.since, self.last_run, self._ran),
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
