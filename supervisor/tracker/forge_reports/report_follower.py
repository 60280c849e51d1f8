"""Follows the events of runs and the quarantines of tests, and stores reports of commits in the outbox when due.

Completion has no event of its own: commits that wait for it are looked at again. Nor has a change of what a commit is
compared with (a later attempt, a late completion or the deletion of a baseline): the verdicts of the commits that were
reported last are compared with those that were reported.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
from collections.abc import Callable, Collection

import peewee

from models.config.settings import Config
from models.errors import Problem
from models.outbound import following
from models.outbound.tables import store
from models.storage.store import MAX_QUERY_SECONDS
from models.times import SECOND
from models.tracker.failures import quarantine
from models.tracker.forge_reports import commit_reports, waits
from models.tracker.forge_reports.commit_reports import CommitReport
from models.tracker.forge_reports.waits import Commit, Wait
from models.tracker.runs import attempts, run_events
from models.tracker.tables import reports
from supervisor.clock import Clock
from supervisor.outbound.dispatcher import Run
from supervisor.scheduling import RETRY_SECONDS, watch_rounds

log = logging.getLogger("outbox")

_BATCH = 500
_AWAITED_SECONDS = 10.0
"""How often commits that are not complete are looked at again."""
_FORGET_SECONDS = 600.0
_COMPARE_SECONDS, _COMPARED_AT_ONCE, _PAUSE_FACTOR = 300.0, 10, 100
"""How often verdicts are compared with those that were reported, and how many before others are reported; for a
hundredth of the time at most."""
_SETTINGS_DIGITS = 15
"""Of a hexadecimal number that fits the store."""
_FIRST: Commit = (0, "")


class ReportFollower:
    def __init__(self, config: Config, clock: Clock, run: Run, on_added: Callable[[], None]) -> None:
        """`run` runs work on the store of the outbox in a thread. `on_added` is called when it has new messages."""
        self._config = config
        self._times = config.tracker.forge_reports
        self._clock = clock
        self._run = run
        self._on_added = on_added
        self._wake = asyncio.Event()
        self._looks_at_all = True
        self._has_failed = False
        self._looked_at, self._forgot_at = float("-inf"), float("-inf")
        self._compare_at, self._compare_next = float("-inf"), float("-inf")
        self._uncompared: list[Commit] = []

    def wake(self) -> None:
        """A run has changed."""
        self._wake.set()

    def look_again(self) -> None:
        """A run may be complete, or reports may be allowed now."""
        self._looks_at_all = True
        self._wake.set()

    def start(self) -> None:
        """Begins at the newest event where nothing was followed before; in a thread."""
        self._position(waits.RUNS)
        self._position(waits.STATUSES)
        self._renew_all_if_changed()

    @staticmethod
    def _position(source: str) -> int:
        newest = run_events.bounds if source == waits.RUNS else lambda: (0, quarantine.newest())
        return following.start(source, reports.run_with_timeout(newest, MAX_QUERY_SECONDS)[1])

    def _renew_all_if_changed(self) -> None:
        """Reports the newest commits of all projects anew where other settings of the server are in use now."""
        tracker, before = self._config.tracker, following.position(waits.SETTINGS)
        text = repr((tracker.quality_gate, tracker.forge_reports))
        number = int(hashlib.sha256(text.encode()).hexdigest()[:_SETTINGS_DIGITS], 16)
        if number == before:
            return
        found: list[Commit] = []
        if before is not None:
            since = self._since()
            found = reports.run_with_timeout(lambda: commit_reports.recent_of_all(since), MAX_QUERY_SECONDS)
        waits.follow(waits.SETTINGS, before, number, found, self._clock.now(), self._times)

    def _since(self) -> int:
        """The time of the oldest upload whose commit is reported anew."""
        return self._clock.now() - int(self._config.server.outbox.max_age * SECOND)

    async def watch(self) -> None:
        """Follows, for ever."""

        def failed(error: Exception, is_known: bool) -> None:
            log.warning("commits cannot be reported now: %s", error, exc_info=not is_known)

        await watch_rounds(self._wake, self._round, failed)

    async def _round(self) -> float | None:
        """Reports what is due; returns the seconds until something else is, None if nothing waits."""
        changed: set[Commit] = set()
        is_more = True
        while is_more:
            found, is_more = await self._run(self._follow_some)
            changed |= found
            is_more |= await self._run(self._follow_statuses)
        now = self._clock.since_boot()
        if now >= self._forgot_at + _FORGET_SECONDS:
            longest = self._config.tracker.runs.incomplete_after
            await self._run(lambda: waits.forget(self._clock.now(), self._config.server.outbox, longest))
            self._forgot_at = now
        self._has_failed = False
        due = await self._run(lambda: waits.candidates(changed, self._clock.now()))
        await self._report(due)
        if self._looks_at_all or now >= self._looked_at + _AWAITED_SECONDS:
            await self._look_at_all()
        times = [await self._compare_some()]
        next_due, waiting = await self._run(waits.next_due)
        if waiting:
            times.append(max(0.01, self._looked_at + _AWAITED_SECONDS - self._clock.since_boot()))
        if next_due is not None:
            soonest = RETRY_SECONDS if self._has_failed else 0.01  # what has failed is due still
            times.append(max(soonest, (next_due - self._clock.now()) / SECOND))
        return min((time for time in times if time is not None), default=None)

    async def _compare_some(self) -> float | None:
        """Notes the commits reported last whose verdict is another now, a few at a time.

        Returns after how many seconds it must be called again; None: no commit was reported.
        """
        begun = self._clock.since_boot()
        if begun < self._compare_at:
            return self._compare_at - begun
        if not self._uncompared:
            since = self._since()
            self._compare_next = begun + _COMPARE_SECONDS
            self._uncompared = await self._run(lambda: waits.reported(since))
        part, self._uncompared = self._uncompared[:_COMPARED_AT_ONCE], self._uncompared[_COMPARED_AT_ONCE:]
        for commit in part:
            try:
                await self._run(lambda: self._compare(commit))  # noqa: B023 (called here)
            except Exception as error:
                is_known = isinstance(error, peewee.PeeweeException | Problem)
                log.warning("the commit %s cannot be judged now: %s", commit[1], error, exc_info=not is_known)
        ended = self._clock.since_boot()
        pause = _PAUSE_FACTOR * (ended - begun)
        self._compare_at = ended + pause if self._uncompared else max(self._compare_next, ended + pause)
        return self._compare_at - ended if part else None

    def _compare(self, commit: Commit) -> None:
        """Notes a commit if its verdict is another than was reported."""
        reported, now = waits.verdict(commit), self._clock.now()
        if reported is None:
            return
        found = reports.run_with_timeout(lambda: find_report(self._config, *commit, now), MAX_QUERY_SECONDS)
        if isinstance(found, CommitReport) and commit_reports.fingerprint(found) != reported:
            self.note([commit])

    def _follow_some(self) -> tuple[set[Commit], bool]:
        """Notes the commits of some events; returns them, and whether there may be more."""
        after = following.position(waits.RUNS)
        if after is None:
            after = self._position(waits.RUNS)

        def read() -> tuple[int, set[Commit], int]:
            updates = run_events.since(after, _BATCH)
            ids = sorted({update.run_id for update in updates})
            return (
                (updates[-1].id if updates else after),
                set(commit_reports.of_runs(ids)) if ids else set(),
                len(updates),
            )

        last, commits, count = reports.run_with_timeout(read, MAX_QUERY_SECONDS)
        if count:
            waits.follow(waits.RUNS, after, last, commits, self._clock.now(), self._times)
        return commits, count == _BATCH

    def _follow_statuses(self) -> bool:
        """Notes the newest commits of projects whose quarantined tests have changed; returns whether there may be more.

        They are due after `debounce`: a policy quarantines several tests at once, and several quarantines end.
        """
        after = following.position(waits.STATUSES)
        if after is None:
            after = self._position(waits.STATUSES)

        def read() -> tuple[int, set[Commit], int]:
            changes, since = quarantine.since(after, _BATCH), self._since()
            projects = {change.project_id for change in changes if change.changes_gate}
            commits = {commit for id in projects for commit in commit_reports.recent(id, since)}
            return changes[-1].id if changes else after, commits, len(changes)

        last, commits, count = reports.run_with_timeout(read, MAX_QUERY_SECONDS)
        if count:
            waits.follow(waits.STATUSES, after, last, commits, self._clock.now(), self._times)
        return count == _BATCH

    async def _look_at_all(self) -> None:
        """Reports the commits that are complete now."""
        self._looks_at_all, self._looked_at = False, self._clock.since_boot()
        after = _FIRST
        while found := await self._run(lambda: waits.listing(after)):  # noqa: B023 (called here)
            await self._report(found)
            after = found[-1].project_id, found[-1].commit

    async def _report(self, found: Collection[Wait]) -> None:
        """Each commit is judged for itself: one that cannot be judged waits on."""
        for wait in found:
            try:
                if await self._run(lambda: self._enqueue(wait)):  # noqa: B023 (called here)
                    self._on_added()
            except Exception as error:
                self._has_failed = True
                is_known = isinstance(error, peewee.PeeweeException | Problem)
                log.warning("the commit %s cannot be judged now: %s", wait.commit, error, exc_info=not is_known)

    def _enqueue(self, wait: Wait) -> bool:
        """Stores the messages of a commit that is due or complete; returns whether there are any."""
        now, limits = self._clock.now(), self._config.server.outbox
        is_due = wait.due_at is not None and wait.due_at <= now
        found = reports.run_with_timeout(lambda: self._judged(wait, is_due), MAX_QUERY_SECONDS)
        if found is None or (isinstance(found, CommitReport) and not (is_due or found.is_over)):
            return False
        if isinstance(found, str):
            log.debug("the commit %s of project %d is not reported: %s", wait.commit, wait.project_id, found)
            waits.enqueue(wait, [], True, now, limits)
            return False
        messages, verdict = commit_reports.messages(found), commit_reports.fingerprint(found)
        return waits.enqueue(wait, messages, found.is_over, now, limits, verdict) and bool(messages)

    def _judged(self, wait: Wait, is_due: bool) -> CommitReport | str | None:
        """None if the commit is neither due nor complete, which a query of one row shows."""
        if not is_due and commit_reports.is_pending(wait.project_id, wait.commit):
            return None
        return find_report(self._config, wait.project_id, wait.commit, self._clock.now())

    def renew(self, project_id: int) -> None:
        """The newest commits of a project are reported anew, and its forge may be requested again; in a thread."""
        since = self._since()
        found = reports.run_with_timeout(lambda: commit_reports.recent(project_id, since), MAX_QUERY_SECONDS)
        waits.renew(project_id, found, self._clock.now(), self._times)

    def beside_run(self, id: int) -> Collection[Commit]:
        """The commits whose report may change where a run is deleted; in a thread."""
        since = self._since()
        return reports.run_with_timeout(lambda: commit_reports.beside_run(id, since), MAX_QUERY_SECONDS)

    def note(self, commits: Collection[Commit]) -> None:
        """The report of these commits may have changed; in a thread."""
        with store.atomic():
            waits.note(commits, self._clock.now(), self._times)


def find_report(config: Config, project_id: int, commit: str, now: int) -> CommitReport | str:
    """A commit that may be reported, or why it may not. Reads the store of the tracker."""
    tracker = config.tracker
    late = attempts.late(tracker.runs, now)
    return commit_reports.find(project_id, commit, tracker.quality_gate, tracker.forge_reports, tracker.forges, late)
