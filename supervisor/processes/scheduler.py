"""Schedules: one timer for all of them, and what a tick does.

The instant of a tick is stored in the same transaction as the status `starting`, which comes before the spawn: so no
instant runs twice, whenever the server is killed. A run that waits for the run before it is stored until then.
"""

from __future__ import annotations

import asyncio
import logging
import random

from attrs import define, evolve, frozen

from models.errors import Invalid, Problem
from models.json_format import rfc3339
from models.supervision import runs
from models.supervision.runs import Cause, ScheduleState
from models.supervision.schedule import Due, Overlap, Schedule, usable, zone, zone_name
from models.times import SECOND
from supervisor.processes.fleet import Fleet
from supervisor.processes.process.attempts import StartCalledOff, next_request
from supervisor.processes.process.context import SupervisionContext
from supervisor.processes.process.process import Process
from supervisor.scheduling import BackgroundTasks, yield_to_loop

log = logging.getLogger("schedules")

_BATCH = 5
_JUMP_SECONDS = 1.0
_STOPPED = "it was stopped or paused before it started"


@frozen
class ScheduleReport:
    """What responses and pages show of a schedule."""

    expression: str
    timezone: str
    next_run: int | None
    paused: bool
    missed: int
    skipped: int


@define(eq=False)
class ScheduledProcess:
    """The schedule of one process."""

    process: Process
    schedule: Schedule
    state: ScheduleState
    is_planned: bool = False
    due_at: int | None = None
    """When the next instant runs; `None` where there is none or the schedule is paused."""
    queued: int | None = None
    """The number of the request for the run that waits; its instant is `state.queued`."""
    dropped: int | None = None
    """A handled instant that was too far ahead. It counts again if the clock returns to it: that time was right."""

    def is_ahead_of(self, now: int) -> bool:
        """Whether the clock was wrong when the newest handled instant was stored."""
        return usable(self.state.handled, now) != self.state.handled

    def plan(self) -> None:
        """Computes when the next instant runs."""
        self.is_planned = True
        instant = None if self.state.paused else self.schedule.next_after(self.state.handled)
        self.due_at = None if instant is None else self.schedule.delayed(instant, random.random())


def _report_failure(_: str, error: BaseException) -> None:
    log.error("unexpected error: %s", error, exc_info=error)


class Scheduler:
    def __init__(self, fleet: Fleet, context: SupervisionContext) -> None:
        """Reads the states of all schedules. Raises `peewee.PeeweeException`."""
        self._fleet = fleet
        self._context = context
        self._states = runs.load_states()
        self._entries: dict[str, ScheduledProcess] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._armed_for = 0
        self._round: asyncio.Task[None] | None = None
        self._tasks = BackgroundTasks(_report_failure)
        fleet.on_specs_changed = self.configure
        context.runs.on_begun = self._on_begun

    def configure(self) -> None:
        """Takes over the schedules of the present configuration. Runs that go on are not touched."""
        now, before = self._context.clock.now(), self._entries
        zone.cache_clear()
        self._entries = {}
        for process in self._fleet:
            schedule = process.spec.schedule
            if schedule is None or process.retired:
                continue
            old = before.get(process.name)
            if old is not None and old.process is process and old.schedule == schedule:
                old.is_planned = False
                self._entries[process.name] = old
            else:
                entry = ScheduledProcess(process, schedule, self._state(process.name, schedule, now))
                self._entries[process.name] = entry
                if entry.state.queued is not None:  # since before a reload or a kill -9 of the server
                    self._start_queued(entry, entry.state.queued)
        for name in [name for name in self._states if name not in self._entries]:
            del self._states[name]
            self._context.event_writer.forget_schedule(name)
        self._wake()

    def _state(self, name: str, schedule: Schedule, now: int) -> ScheduleState:
        """The stored state; instants that passed under other times were not missed."""
        stored = self._states.get(name)
        if stored is not None and stored.times == schedule.times:
            return stored
        if stored is None:
            state = ScheduleState(name, schedule.times, now)
        else:
            state = evolve(stored, times=schedule.times, handled=max(now, usable(stored.handled, now)))
        return self._keep(state)

    def _keep(self, state: ScheduleState) -> ScheduleState:
        self._states[state.process] = state
        self._context.event_writer.note_schedule(state)
        return state

    def report(self, process: Process) -> ScheduleReport | None:
        """`None` for a process without a schedule."""
        entry = self._entries.get(process.name)
        if entry is None:
            return None
        state, schedule = entry.state, entry.schedule
        timezone = "UTC" if schedule.every is not None else zone_name(schedule.timezone)
        return ScheduleReport(schedule.expression, timezone, entry.due_at, state.paused, state.missed, state.skipped)

    # Pausing

    async def pause(self, name: str, paused: bool) -> str:
        """Pauses or resumes the schedule of a process; returns when that is stored. Raises `NotFound`, `Invalid`."""
        self._fleet.get(name)
        entry = self._entries.get(name)
        if entry is None:
            raise Invalid(f"{name} has no schedule")
        self._pause(entry, paused)
        self._wake()
        await self._fleet.stored()
        return f"the schedule of {name} {'is paused' if paused else 'goes on'}"

    def pause_all(self, paused: bool) -> None:
        for entry in self._entries.values():
            self._pause(entry, paused)
        self._wake()

    def _pause(self, entry: ScheduledProcess, paused: bool) -> None:
        if entry.state.paused == paused:
            return
        now = self._context.clock.now()
        handled = entry.state.handled if paused else max(now, usable(entry.state.handled, now))
        entry.state = self._keep(evolve(entry.state, paused=paused, handled=handled))
        entry.is_planned = False

    # Time

    def check_clock(self) -> None:
        """Called every few seconds: the wall clock may have jumped, or the host slept, while the timer waited."""
        if self._timer is None:
            return
        now = self._context.clock.now()
        remaining = self._timer.when() - asyncio.get_running_loop().time()
        if abs((self._armed_for - now) / SECOND - remaining) > _JUMP_SECONDS:
            self._wake()

    def _wake(self) -> None:
        """Begins a round, unless one goes on."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._round is None and not self._context.closing:
            self._round = self._tasks.start(self._run_round())

    async def _run_round(self) -> None:
        """Ticks, a few in each iteration of the loop, until nothing is due; then sets the timer."""
        try:
            while due := self._due():
                for number, entry in enumerate(due, 1):
                    self._handle(entry)
                    if number % _BATCH == 0:
                        await yield_to_loop()
        finally:
            self._round = None
        self._arm()

    def _due(self) -> list[ScheduledProcess]:
        now = self._context.clock.now()
        return [
            entry
            for entry in self._entries.values()
            if not entry.is_planned or (entry.due_at is not None and entry.due_at <= now) or entry.is_ahead_of(now)
        ]

    def _arm(self) -> None:
        times = [entry.due_at for entry in self._entries.values() if entry.due_at is not None]
        if times and not self._context.closing:
            self._armed_for = min(times)
            wait = max(0, self._armed_for - self._context.clock.now()) / SECOND
            self._timer = asyncio.get_running_loop().call_later(wait, self._wake)

    def _handle(self, entry: ScheduledProcess) -> None:
        try:
            self._tick(entry)
        except Exception:  # one bad schedule must not stop the others
            log.exception("%s: its schedule does not run until the next reload", entry.process.name)
            entry.is_planned, entry.due_at = True, None

    def _tick(self, entry: ScheduledProcess) -> None:
        """Runs what is due, and plans the next instant."""
        if self._entries.get(entry.process.name) is not entry:
            return  # a reload replaced it during the round
        now = self._context.clock.now()
        self._correct_handled(entry, now)
        if not entry.is_planned:
            entry.plan()
        if entry.due_at is None or entry.due_at > now:
            return
        due = entry.schedule.due(entry.state.handled, now)
        missed = entry.state.missed + due.missed
        entry.state = self._keep(evolve(entry.state, handled=due.handled, missed=missed))
        if due.missed:
            self._report_missed(entry, due)
        if due.run is not None:
            self._run(entry, due.run)
        entry.plan()

    def _correct_handled(self, entry: ScheduledProcess, now: int) -> None:
        """Drops a handled instant of a wrong clock, and takes a dropped one back when the clock is near it."""
        if entry.is_ahead_of(now):
            entry.dropped, handled = entry.state.handled, now
        elif entry.dropped is not None and usable(entry.dropped, now) == entry.dropped:
            handled = max(entry.dropped, entry.state.handled)
            entry.dropped = None
        else:
            return
        entry.state = self._keep(evolve(entry.state, handled=handled))
        entry.is_planned = False

    # Ticks

    def _run(self, entry: ScheduledProcess, instant: int) -> None:
        """One tick, according to the kind of the process and what it does now."""
        process = entry.process
        if held := self._fleet.held_dependency(process):
            self._skip(entry, instant, f"an operator stopped {held.name}, which it depends on")
        elif not process.spec.is_job:
            if process.live and process.record.wanted:
                self._tasks.start(self._restart(entry, instant))
            else:
                self._skip(entry, instant, f"it is {process.status.value}, and only a live service is restarted")
        elif not (process.live or process.is_pending):
            self._tasks.start(self._start(entry, instant))
        elif entry.schedule.overlap is Overlap.REPLACE:
            self._tasks.start(self._replace(entry, instant))
        elif entry.schedule.overlap is Overlap.QUEUE and not self._has_queued(entry):
            entry.state = self._keep(evolve(entry.state, queued=instant))
            self._start_queued(entry, instant)
        else:
            self._skip(entry, instant, "the run before is not over")

    @staticmethod
    def _has_queued(entry: ScheduledProcess) -> bool:
        return entry.queued is not None and not entry.process.starts.is_called_off(entry.queued)

    def _start_queued(self, entry: ScheduledProcess, instant: int) -> None:
        entry.queued = next_request()
        self._tasks.start(self._start_after(entry, instant, entry.queued))

    def _on_begun(self, name: str, cause: Cause) -> None:
        """A run begins: stored together with it, no run waits any more."""
        if (entry := self._entries.get(name)) is not None and cause.scheduled_for is not None:
            self._drop_queued(entry, cause.scheduled_for)

    def _drop_queued(self, entry: ScheduledProcess, instant: int) -> None:
        if entry.state.queued == instant:
            entry.state = self._keep(evolve(entry.state, queued=None))

    async def _start(self, entry: ScheduledProcess, instant: int) -> None:
        process = entry.process
        try:
            await self._fleet.start_once(process, next_request(), Cause("schedule", instant))
        except StartCalledOff:
            self._skip(entry, instant, _STOPPED)
        except Problem as problem:
            self._drop_queued(entry, instant)
            log.warning("%s: %s", process.name, problem.message)

    async def _restart(self, entry: ScheduledProcess, instant: int) -> None:
        try:
            await self._fleet.restart(entry.process.name, Cause("schedule", instant))
        except Problem as problem:
            log.warning("%s: %s", entry.process.name, problem.message)

    async def _replace(self, entry: ScheduledProcess, instant: int) -> None:
        request = next_request()
        try:
            await entry.process.stop(request)
        except Problem as problem:
            self._skip(entry, instant, problem.message)
            return
        await self._start_unless_stopped(entry, instant, request)

    async def _start_after(self, entry: ScheduledProcess, instant: int, request: int) -> None:
        """Starts it when the run before is over, unless a stop or a pause comes first."""
        process = entry.process
        await process.until(lambda state: state.starts.is_called_off(request) or not (state.live or state.is_pending))
        if entry.queued == request:
            entry.queued = None
        is_replaced = self._entries.get(process.name) is not entry
        if is_replaced or entry.state.queued != instant or self._context.closing:
            return
        await self._start_unless_stopped(entry, instant, request)

    async def _start_unless_stopped(self, entry: ScheduledProcess, instant: int, request: int) -> None:
        """Starts the process unless it was stopped after `request`."""
        if entry.state.paused or entry.process.starts.is_called_off(request):
            self._skip(entry, instant, _STOPPED)
        else:
            await self._start(entry, instant)

    def _skip(self, entry: ScheduledProcess, instant: int, reason: str) -> None:
        queued = None if entry.state.queued == instant else entry.state.queued
        entry.state = self._keep(evolve(entry.state, skipped=entry.state.skipped + 1, queued=queued))
        name, at = entry.process.name, rfc3339(instant)
        message = f"{name}: the run of {at} is skipped: {reason}"
        self._context.notices.post("schedule.skipped", name, message, scheduledFor=at, reason=reason)

    def _report_missed(self, entry: ScheduledProcess, due: Due) -> None:
        name, until = entry.process.name, rfc3339(due.handled)
        many = "1 run was" if due.missed == 1 else f"{due.missed} runs were"
        message = f"{name}: {many} missed until {until}{', one is made up for' if due.is_made_up else ''}"
        self._context.notices.post("schedule.missed", name, message, count=due.missed, until=until)

    def close(self) -> None:
        """No schedule runs any more."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._tasks.cancel()
