"""The parts of what is sent, in use: opened when a channel or a message exists, or the first request needs them."""

from __future__ import annotations

import asyncio
import contextlib
import secrets
from collections import deque
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, TypeVar

import peewee

from models.config.settings import Config
from models.errors import DiskFull, Unavailable
from models.json_format import ParseJson, rfc3339
from models.outbound import events, following, outbox
from models.outbound.channels import Channel, name_of
from models.outbound.outbox import FORGE_KINDS, Delivery, DeliveryOutcome
from models.outbound.tables import FILE, store
from models.storage.sqlite import is_disk_full
from models.storage.store import MAX_QUERY_SECONDS
from models.tracker.project_secrets import ProjectSecrets
from supervisor.clock import Clock
from supervisor.outbound.dispatcher import Dispatcher
from supervisor.outbound.follower import EventFollower, Labels
from supervisor.outbound.notifier import Notifier
from supervisor.outbound.release_changes import ReleaseChanges
from supervisor.scheduling import BackgroundTasks
from supervisor.tracker.disk_space import DiskSpace

if TYPE_CHECKING:
    from supervisor.tracker.forge_reports.report_follower import ReportFollower
    from supervisor.tracker.forge_reports.reporter import Reporter

Result = TypeVar("Result")
_THREADS = 2
_CLOSE_SECONDS = 3.0


class Core:
    def __init__(
        self,
        config: Config,
        clock: Clock,
        instance: str,
        secrets: ProjectSecrets,
        labels: Labels,
        parse_json: ParseJson,
        begun: Mapping[str, int],
        disk: DiskSpace,
    ) -> None:
        """Opens the store, in a thread. `begun` has the last events before the start, `disk` the reserve for deletions.

        Raises `peewee.PeeweeException`, `CannotUse`.
        """
        self.limits = config.server.outbox
        self._config = config
        self._clock = clock
        self._disk = disk
        store.open_for_workers(config.server.data_dir / FILE, config.server.database_url)
        self._executor = ThreadPoolExecutor(_THREADS, "outbox")
        self.notifier = Notifier(config, clock, self.run, secrets)
        self.dispatcher = Dispatcher(
            self.run, clock, instance, self.limits, self._send, self._report_dead, lambda: self.follower.wake()
        )
        self.follower = EventFollower(config, clock, instance, self.run, self.notifier, labels, self.dispatcher.wake)
        self._secrets = secrets
        self._parse_json = parse_json
        self.reports: ReportFollower | None = None
        self._reporter: Reporter | None = None
        if config.tracker.forges:
            self._load_reports()
        self.releases = ReleaseChanges(clock, instance, self.run, self.notifier, self.follower.wake)
        self._instance = instance
        self._begun = begun
        self.tested: dict[str, deque[float]] = {}
        """When each channel was tested last, in seconds since boot."""

    def _load_reports(self) -> None:
        """What reports commits to forges, loaded where there are any."""
        from supervisor.tracker.forge_reports.report_follower import ReportFollower
        from supervisor.tracker.forge_reports.reporter import Reporter

        self.reports = ReportFollower(self._config, self._clock, self.run, self._on_added)
        facts = self._config, self._clock, self.run, self._secrets, self._parse_json
        self._reporter = Reporter(*facts, self.reports.look_again)

    def _on_added(self) -> None:
        """Reports of commits are in the outbox, which may have dropped others."""
        self.dispatcher.wake()
        self.follower.wake()

    def load(self) -> None:
        """Ends leases of an earlier process, and reads channels, rules and positions; in a thread."""
        outbox.release_own(self._instance)
        self.follower.start(self._begun)
        self.releases.recover()
        if self.reports is not None:
            self.reports.start()

    def start(self, tasks: BackgroundTasks) -> None:
        """Begins to send."""
        tasks.start(self.dispatcher.watch(), "outbox")
        tasks.start(self.follower.watch(), "notifications")
        if self.reports is not None:
            tasks.start(self.reports.watch(), "forge reports")

    async def run(self, work: Callable[[], Result]) -> Result:
        """Runs work on the store in a thread of its own. Raises `Unavailable`, `DiskFull`, `TimedOut`."""
        loop = asyncio.get_running_loop()
        try:
            return await loop.run_in_executor(self._executor, lambda: store.run_with_timeout(work, MAX_QUERY_SECONDS))
        except peewee.OperationalError as error:
            if is_disk_full(error):
                raise DiskFull("the outbox cannot be written: the disk is full") from None
            raise Unavailable(f"the outbox does not answer: {error}") from None

    async def run_deletion(self, work: Callable[[], Result]) -> Result:
        """As `run`, for work that deletes, and what belongs to a deletion: on a full disk it uses the reserve."""
        return await self._disk.run_deletion(store, self.run, work)

    def notice(self) -> None:
        """A process or a run has changed."""
        self.follower.wake()
        if self.reports is not None:
            self.reports.wake()

    async def changed(self) -> None:
        """Reads channels and rules again after a change of them."""
        await self.run_deletion(self.follower.start)
        self.follower.wake()
        self.dispatcher.wake()

    async def _send(self, delivery: Delivery) -> DeliveryOutcome:
        if delivery.kind == "notify":
            return await self.notifier.send(delivery)
        if delivery.kind in FORGE_KINDS and self._reporter is not None:
            return await self._reporter.send(delivery)
        return DeliveryOutcome(False, None, f"nothing sends messages of the kind {delivery.kind}", is_final=True)

    def _report_dead(self, delivery: Delivery) -> None:
        """Reports what is given up, unless it was such a report itself; in the transaction that gives it up."""
        if outbox.is_dead_report(delivery.kind, delivery.content):
            return
        now, target = self._clock.now(), name_of(delivery.target, self.notifier.channels)
        event = events.of_dead_delivery(target, now, delivery.error, delivery.project_id)
        following.note(event, list(self.notifier.rules.values()), now)

    async def test(self, channel: Channel) -> DeliveryOutcome:
        """Sends a message to a channel at once, past the outbox."""
        title = f"Test of the channel {channel.name}: it works"
        at = rfc3339(self._clock.now())
        line = {"event": "test", "subject": f"channel:{channel.name}", "state": "info", "title": title}
        lines = [{**line, "count": 1, "at": at, "link": "/notifications"}]
        payload: dict[str, Any] = {"type": "test", "timestamp": at}
        payload["data"] = {"rule": "", "title": title, "lines": lines, "more": 0}
        return await self.notifier.send_to(channel, payload, f"msg_{secrets.token_hex(16)}")

    async def close(self) -> None:
        """Ends requests; what was not confirmed is sent again after the next start."""
        self.dispatcher.close()
        self._executor.shutdown(wait=False, cancel_futures=True)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_CLOSE_SECONDS):  # a database that does not answer delays no stop
                await asyncio.to_thread(self._executor.shutdown)
                store.close_all()
