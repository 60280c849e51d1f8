"""Follows what happens on this node, and reports it by the rules: processes by their stored events, runs by theirs.

Events are read from the stores that keep them, after a position that is stored, so a restart loses none.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any

import peewee
from attrs import evolve

from models.accounts import accounts
from models.config.settings import Config
from models.errors import Problem
from models.outbound import dropped, events, following, run_verdicts
from models.outbound.channels import name_of
from models.outbound.dropped import Dropped
from models.outbound.events import SubjectEvent
from models.outbound.rules import matches
from models.storage.sqlite import Either, SqliteStore
from models.storage.store import MAX_QUERY_SECONDS
from models.supervision import events as process_events
from models.supervision import notices
from models.supervision.tables import database
from models.times import SECOND
from models.tracker.failures import quarantine
from models.tracker.runs import attempts, run_events
from models.tracker.tables import reports
from supervisor.clock import Clock
from supervisor.outbound.dispatcher import Run
from supervisor.outbound.notifier import Notifier
from supervisor.scheduling import watch_rounds

log = logging.getLogger("outbox")

_BATCH = 500
_AWAITED_SECONDS = 10.0
"""How often runs that are not complete are looked at again."""
_JUDGING_SECONDS = 2.0
"""How long runs are judged before processes are looked at again."""
_TOKENS_SECONDS = 3600.0
"""How often tokens are looked at: one may be made, and the clock may be changed."""
RUNS, STATUSES = "run", "mark"

Labels = Callable[[], Mapping[str, Sequence[str]]]


class EventFollower:
    def __init__(
        self, config: Config, clock: Clock, instance: str, run: Run, notifier: Notifier, labels: Labels,
        on_added: Callable[[], None],
    ) -> None:  # fmt: skip
        """`labels` has those of each process now. `on_added` is called when messages are in the outbox."""
        self._config = config
        self._clock = clock
        self._run = run
        self._notifier = notifier
        self._labels = labels
        self._on_added = on_added
        self._wake = asyncio.Event()
        self._instance = instance
        self._events, self._notices = f"event {instance}", f"notice {instance}"
        self._judged = 0
        """The run after which awaited runs are looked at."""
        self._tokens_at = 0
        """From when on tokens are looked at again."""
        self._is_shared = config.server.database_url is not None

    def wake(self, _: object = None) -> None:
        self._wake.set()

    def start(self, begun: Mapping[str, int] = MappingProxyType({})) -> None:
        """Reads the rules and positions, in a thread.

        A source without a position begins where it was when the server started (`begun`), else now. Without rules
        and mail nothing has a position: rules that are made later, even after a restart, report nothing older than
        they are.
        """
        self._read()
        self._tokens_at = 0  # rules may report them now
        if self._notifier.is_used:
            newest = self._newest()
            own = {f"{kind} {self._instance}": at for kind, at in begun.items()}
            for name in newest:
                following.start(name, newest[name], own.get(name))

    def _read(self) -> None:
        self._notifier.read()
        if not self._notifier.is_used:
            following.stop((self._events, self._notices, RUNS, STATUSES))

    def _newest(self) -> Mapping[str, int]:
        """The newest event of each source."""
        own = database.run_with_timeout(lambda: (process_events.last_id(), notices.last_id()), MAX_QUERY_SECONDS)
        runs, status = reports.run_with_timeout(
            lambda: (run_events.bounds()[1], quarantine.newest()), MAX_QUERY_SECONDS
        )
        return {self._events: own[0], self._notices: own[1], RUNS: runs, STATUSES: status}

    def _position(self, name: str) -> int:
        at = following.position(name)
        return following.start(name, self._newest()[name]) if at is None else at

    async def watch(self) -> None:
        """Follows, for ever."""

        def failed(error: Exception, is_known: bool) -> None:
            log.warning("events cannot be reported now: %s", error, exc_info=not is_known)

        await watch_rounds(self._wake, self._round, failed)

    async def _round(self) -> float | None:
        """Reports what happened; returns the seconds until something is due."""
        if self._is_shared:
            await self._run(self._read)  # another node may have changed the rules
        if not self._notifier.is_used:
            return None
        waits: list[float | None] = []
        try:
            while await self._run(self._follow_some):
                pass
            waits += [await self._judge_runs(), await self._run(self._note_tokens)]
        finally:
            waits.append(await self._report())
        return min((each for each in waits if each is not None), default=None)

    async def _report(self) -> float | None:
        """Puts what is due into the outbox; returns the seconds until something else is."""
        added, due = await self._run(self._flush)
        if added:
            self._on_added()
        return self._until(due)

    def _until(self, due: int | None) -> float | None:
        """The seconds until a time."""
        return None if due is None else max(0.01, (due - self._clock.now()) / SECOND)

    def _flush(self) -> tuple[int, int | None]:
        notifier, now = self._notifier, self._clock.now()
        limits, rules = self._config.server.outbox, list(notifier.rules.values())

        def event(one: Dropped) -> SubjectEvent:
            return events.of_dropped(name_of(one.target, notifier.channels), now, one.count, one.project_id)

        following.note_dropped(event, rules, now)
        added, due = following.flush(rules, list(notifier.channels.values()), now, limits)
        return added, min((at for at in (due, dropped.next_at()) if at is not None), default=None)

    def _follow_some(self) -> bool:
        """Notes some of the events; returns whether there may be more."""
        labels = self._labels()
        is_more = self._follow(self._events, process_events.since, lambda one: events.of_entry(one, labels))
        is_more |= self._follow(self._notices, notices.since, lambda one: events.of_notice(one, labels))
        is_more |= self._follow(STATUSES, quarantine.since, events.of_status_change, reports)
        return self._follow_runs() or is_more

    def _follow(
        self, name: str, since: Callable[[int, int], Sequence[Any]], read: Callable[[Any], SubjectEvent | None],
        source: SqliteStore | Either = database,
    ) -> bool:  # fmt: skip
        after = self._position(name)
        entries = source.run_with_timeout(lambda: since(after, _BATCH), MAX_QUERY_SECONDS)
        if not entries:
            return False
        now = self._clock.now()
        oldest = now - int(self._config.server.outbox.max_age * SECOND)
        found = [event for one in entries if one.at >= oldest and (event := read(one)) is not None]
        found = found if source is reports else [self._own(event) for event in found]
        following.apply(name, after, entries[-1].id, found, self._rules, now)
        return len(entries) == _BATCH

    def _own(self, event: SubjectEvent) -> SubjectEvent:
        """The event with a subject of this node: another one may have a process of the same name."""
        return evolve(event, subject=f"{event.subject}@{self._instance}") if self._is_shared else event

    @property
    def _rules(self) -> list[Any]:
        return list(self._notifier.rules.values())

    def _follow_runs(self) -> bool:
        after = self._position(RUNS)
        updates = reports.run_with_timeout(lambda: run_events.since(after, _BATCH), MAX_QUERY_SECONDS)
        if updates:
            runs = [update.run_id for update in updates]
            following.await_runs(RUNS, after, updates[-1].id, runs)
        return len(updates) == _BATCH

    async def _judge_runs(self) -> float | None:
        """Judges awaited runs that are complete, for a moment; returns the seconds until others are looked at.

        Each has a limit of time of its own, and one that cannot be judged is awaited on.
        """
        end, begun = self._clock.since_boot() + _JUDGING_SECONDS, self._judged
        ids, ready = await self._run(self._awaited)
        for id in ready:
            if self._clock.since_boot() > end:
                return 0.0
            self._judged = id
            try:
                await self._run(lambda: self._judge(id))  # noqa: B023 (called here)
            except Exception as error:
                is_known = isinstance(error, peewee.PeeweeException | Problem)
                log.warning("the run %d cannot be judged now: %s", id, error, exc_info=not is_known)
        is_last = len(ids) < following.AWAITED_AT_ONCE
        self._judged = 0 if is_last else ids[-1]
        return 0.0 if not is_last else _AWAITED_SECONDS if ids or begun else None

    def _note_tokens(self) -> float | None:
        """Notes the tokens that end soon, if they are due; returns the seconds until they are looked at."""
        now = self._clock.now()
        is_reported = any(matches(rule.settings.events, "token.expiring") for rule in self._rules)
        if not (is_reported or self._notifier.has_mail):
            return None
        if self._tokens_at <= now:
            ending, due = reports.run_with_timeout(lambda: accounts.expiring_tokens(now), MAX_QUERY_SECONDS)
            for token in ending:
                following.note(events.of_token(token, now), self._rules, now)
            latest = now + int(_TOKENS_SECONDS * SECOND)
            self._tokens_at = latest if due is None else min(due, latest)
        return self._until(self._tokens_at)

    def _awaited(self) -> tuple[Sequence[int], Sequence[int]]:
        """Runs that are awaited, after the one that was judged last, and those of them that are complete."""
        ids = following.awaited_runs(self._judged)
        return ids, reports.run_with_timeout(lambda: run_verdicts.complete(ids), MAX_QUERY_SECONDS) if ids else []

    def _judge(self, id: int) -> None:
        now, gate = self._clock.now(), self._config.tracker.quality_gate
        late = attempts.late(self._config.tracker.runs, now)
        has_mail = self._notifier.has_mail
        found = reports.run_with_timeout(lambda: run_verdicts.judge(id, gate, now, late, has_mail), MAX_QUERY_SECONDS)
        if found is not None:
            following.judged(id, found, self._rules, now)
