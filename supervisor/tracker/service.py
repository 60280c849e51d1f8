"""The service that tracks the reports of CI: its parts, opened in order and closed in reverse."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import peewee

from models.config.settings import Config
from models.errors import DiskFull, Unavailable
from models.storage.sqlite import is_disk_full
from models.storage.store import MAX_QUERY_SECONDS
from models.tracker.runs import run_events
from models.tracker.runs.run_events import RunUpdate
from models.tracker.tables import reports
from supervisor.clock import Clock
from supervisor.pubsub import PubSub
from supervisor.scheduling import BackgroundTasks
from supervisor.tracker.attachments import Attachments
from supervisor.tracker.disk_space import DiskSpace
from supervisor.tracker.forge_sources import ForgeSources
from supervisor.tracker.ingest import Ingest
from supervisor.tracker.insights import Insights
from supervisor.tracker.retention import Retention
from supervisor.workers.pool import WorkerPool

if TYPE_CHECKING:
    from supervisor.replication import Sharing

Result = TypeVar("Result")


class Tracker:
    """Uploads, their retention, and source files from forges."""

    def __init__(
        self,
        config: Config,
        clock: Clock,
        updates: PubSub[RunUpdate],
        sharing: Sharing | None,
        pool: WorkerPool,
        disk: DiskSpace,
    ) -> None:
        """The store is open. `updates` has the changes of runs. `pool` reads the uploads, if `disk` has space.

        `sharing` is given where several nodes share the database: then the changes of this node come from there too.
        """
        data_dir = Path(config.server.data_dir)
        kept = config.tracker.attachments
        own_folder = None if sharing else data_dir / "attachments"
        self.updates = updates
        self._sharing = sharing
        self._disk = disk
        self.attachments = Attachments(kept.dir or own_folder, kept, clock, self.run_deletion)
        self.insights = Insights(config.tracker.quality_gate.base_branch, self.run)
        self.retention = Retention(config.tracker, clock, self.run_deletion, self.attachments, self.insights.notice)
        self.updates.subscribe(self.retention.notice)
        self.updates.subscribe(self.insights.notice)
        self.forges = ForgeSources(config)
        publish = (lambda _: None) if sharing else updates.publish
        self.ingest = Ingest(data_dir / "incoming", config, clock, publish, self.attachments, pool, disk)

    def start(self, tasks: BackgroundTasks) -> None:
        """Begins the background work."""
        tasks.start(self.retention.watch(), "retention")
        tasks.start(self.attachments.watch(), "attachments")
        tasks.start(self.retention.settle(), "completion of runs")
        tasks.start(self.insights.watch(), "summaries of tests")

    async def end_jobs(self, seconds: float) -> None:
        """Ends the uploads; waits for those that are being stored, at most `seconds`."""
        await self.ingest.close(seconds)

    def close(self) -> None:
        """After the last request."""
        self.ingest.end()
        self.forges.close()

    async def run(self, work: Callable[[], Result]) -> Result:
        """Runs work on the store in a worker. Raises `Unavailable`, `DiskFull`, `TimedOut`."""
        try:
            return await asyncio.to_thread(reports.run_with_timeout, work, MAX_QUERY_SECONDS)
        except peewee.OperationalError as error:
            if is_disk_full(error):
                raise DiskFull("the store of the tracker cannot be written: the disk is full") from None
            raise Unavailable(f"the store of the tracker does not answer: {error}") from None

    async def run_deletion(self, work: Callable[[], Result]) -> Result:
        """As `run`, for work that deletes: on a full disk it uses the reserve, and an emptied write-ahead log."""
        return await self._disk.run_deletion(reports, self.run, work)

    async def read_fast(self, query: Callable[[], Result]) -> Result:
        """Reads a few rows of the store: on the loop where the store is a local file.

        Raises `peewee.PeeweeException`, `Unavailable`, `TimedOut`.
        """
        return query() if reports.is_local else await self.run(query)

    @property
    def last_update(self) -> int:
        """The id of the last change of a run that streams may have received."""
        return self._sharing.last_run if self._sharing else run_events.bounds()[1]
