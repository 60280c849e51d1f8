"""Deletes expired runs, and runs on request, in short transactions between which others write."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from typing import Any

import peewee

from models.config.settings import TrackerSettings
from models.errors import Problem
from models.times import SECOND
from models.tracker import open_projects
from models.tracker.failures import clusters, quarantine, quarantine_policy
from models.tracker.files.attachments import hashes_of
from models.tracker.runs import attempts, retention
from supervisor.clock import Clock
from supervisor.tracker.attachments import Attachments

log = logging.getLogger("tracker")

_PERIOD_SECONDS = 600.0
_DELAY_SECONDS = 2.0
_PAUSE_SECONDS = 0.01
_MIN_SETTLE_SECONDS = 1.0
_PAUSE_FACTOR = 20

InStore = Callable[[Callable[[], Any]], Awaitable[Any]]


class Retention:
    """Enforces `retain-days`, `retain-runs` and `quarantine`, every ten minutes and shortly after each upload."""

    def __init__(
        self,
        settings: TrackerSettings,
        clock: Clock,
        in_store: InStore,
        attachments: Attachments,
        on_deleted: Callable[[], None] = lambda: None,
    ) -> None:
        """`in_store` runs a piece of work on the tracker's store, in the worker; `on_deleted` is called after runs."""
        self.on_changed: Callable[[], None] = lambda: None
        """Called when the status of a test has changed, which no event of a run reports."""
        self._settings = settings
        self._clock = clock
        self._in_store = in_store
        self._attachments = attachments
        self._on_deleted = on_deleted
        self._run_stored = asyncio.Event()
        self._upload_stored = asyncio.Event()
        self._orphans = False
        """Whether tests without results may exist."""
        self._judged: dict[int, object] = {}
        """The states of the projects that the policy of quarantine has judged."""
        self._newest_change: int | None = None
        """The newest change of a test's status that `on_changed` was called for."""
        self._judged_until = 0.0
        """When the policy may be applied again, in seconds of the loop."""

    def notice(self, _: object) -> None:
        """Called for each stored upload: its branch may have more runs than it keeps, and it may be pending."""
        self._upload_stored.set()
        if self._settings.retain_runs:
            self._run_stored.set()

    def wake(self) -> None:
        """Called when a status or a setting was changed: a quarantine may end earlier, or the policy be another."""
        self._upload_stored.set()

    async def settle(self) -> None:
        """Closes pending runs and ends quarantines when their time is over, and quarantines flaky tests, for ever."""
        while True:
            self._upload_stored.clear()
            due: int | None = None
            wait = _PERIOD_SECONDS
            try:
                due = await self._in_store(self._close_due)
            except (peewee.PeeweeException, Problem) as error:
                log.warning("the state of runs could not be updated: %s", error)
            wait = min(wait, await self._quarantine_flaky())
            await self._report_changes()
            if due is not None:
                wait = min(wait, max(_MIN_SETTLE_SECONDS, (due - self._clock.now()) / SECOND))
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(wait):
                    await self._upload_stored.wait()
                    await asyncio.sleep(_MIN_SETTLE_SECONDS)  # uploads come in groups

    async def _report_changes(self) -> None:
        try:
            newest = await self._in_store(quarantine.newest)
        except (peewee.PeeweeException, Problem) as error:
            log.warning("the changes of quarantined tests could not be read: %s", error)
            return
        if newest != self._newest_change:
            self._newest_change = newest
            self.on_changed()

    def _close_due(self) -> int | None:
        """Closes pending runs and ends quarantines; returns when the next one is due."""
        now = self._clock.now()
        due = attempts.settle(self._settings.runs, now), quarantine.expire(now)
        return min((time for time in due if time is not None), default=None)

    async def _quarantine_flaky(self) -> float:
        """Applies the policy to the projects that have changed since, for a twentieth of the time at most.

        Returns after how many seconds it must be called again.
        """
        time, policy = asyncio.get_running_loop().time, self._settings.quarantine
        begun = time()
        if begun < self._judged_until:
            return self._judged_until - begun
        with self._warned():
            states = await self._in_store(lambda: quarantine_policy.states(policy))
            self._judged = {id: state for id, state in self._judged.items() if states.get(id) == state}
            for id in [id for id in states if id not in self._judged]:
                with self._warned():
                    await self._apply(id)
                    self._judged[id] = states[id]
        self._judged_until = time() + _PAUSE_FACTOR * (time() - begun)
        return _PERIOD_SECONDS

    async def _apply(self, id: int) -> None:
        policy = self._settings.quarantine
        added = await self._in_store(lambda: quarantine_policy.apply(id, policy, self._clock.now()))
        if added:
            log.info("%d flaky tests of the project %d were quarantined", added, id)

    @contextlib.contextmanager
    def _warned(self) -> Iterator[None]:
        """Logs that the policy could not be applied."""
        try:
            yield
        except (peewee.PeeweeException, Problem) as error:
            log.warning("flaky tests could not be quarantined: %s", error)

    async def watch(self) -> None:
        """Counts the failures of an earlier version, once, then deletes what has expired, for ever."""
        try:
            while await self._in_store(clusters.backfill):
                await asyncio.sleep(_PAUSE_SECONDS)
        except (peewee.PeeweeException, Problem) as error:
            log.warning("failures of an earlier version could not be counted: %s", error)
        while True:
            try:
                await self._delete_expired()
            except (peewee.PeeweeException, Problem) as error:
                log.warning("old runs could not be deleted: %s", error)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_PERIOD_SECONDS):
                    await self._run_stored.wait()
                    await asyncio.sleep(_DELAY_SECONDS)  # uploads come in groups
            self._run_stored.clear()

    async def _delete_expired(self) -> None:
        days, runs, gate = self._settings.retain_days, self._settings.retain_runs, self._settings.quality_gate
        before = self._clock.expired_before(days) if days else 0
        while (days or runs) and (ids := await self._in_store(lambda: retention.expired(before, runs, gate))):
            for id in ids:
                await self.delete(id)
            log.info("%d expired runs were deleted", len(ids))
        if self._orphans:
            self._orphans = False
            after: int | None = 0
            while after is not None:
                after = await self._in_store(lambda: retention.forget_tests(after or 0))  # noqa: B023 (awaited here)
                await asyncio.sleep(_PAUSE_SECONDS)

    async def delete(self, id: int) -> None:
        """Deletes a run, if it exists."""
        for part in (*await self._in_store(lambda: retention.superseded_runs(id)), id):
            hashes = await self._in_store(lambda: hashes_of(part))  # noqa: B023 (awaited here)
            while await self._in_store(lambda: retention.delete_some(part)):  # noqa: B023 (awaited here)
                await asyncio.sleep(_PAUSE_SECONDS)
            await self._in_store(lambda: self._attachments.remove_unused(hashes))  # noqa: B023 (awaited here)
        self._orphans = True
        self._on_deleted()

    async def delete_open_projects(self, ids: Iterable[int]) -> Sequence[int]:
        """Deletes those of these projects that anonymous callers created, with their runs; returns their ids."""
        return [id for id in ids if await self._delete_open_project(id)]

    async def _delete_open_project(self, id: int) -> bool:
        for run in await self._in_store(lambda: open_projects.runs_of(id)):
            await self.delete(run)
        while more := await self._in_store(lambda: open_projects.delete_some(id)):
            await asyncio.sleep(_PAUSE_SECONDS)
        return more is False
