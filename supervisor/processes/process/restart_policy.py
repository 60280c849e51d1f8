"""When a process is restarted: the delays, which double, and the limits of restarts."""

from __future__ import annotations

import asyncio
import logging
import random
from collections import deque
from collections.abc import Awaitable, Callable
from typing import Any

from models.errors import Problem
from models.supervision.process import ENDED, ProcessSpec, Status, calls_for_restart, forbids_restart
from models.times import SECOND
from supervisor.processes.process.attempts import next_request
from supervisor.processes.process.context import SupervisionContext
from supervisor.processes.process.state import ProcessState
from supervisor.scheduling import BackgroundTasks

log = logging.getLogger("supervision")


class RestartPolicy:
    """The restarts of one process since an operator last started it."""

    def __init__(self) -> None:
        self.restarts = 0
        self._attempt = 0
        self._failed_starts = 0
        self._at: deque[float] = deque()

    def next_delay(self, spec: ProcessSpec, uptime: float, now: float, failed_start: bool = False) -> float | None:
        """Seconds until the next restart, or None where `restart-limit` or `start-retries` is reached.

        `uptime` is how many seconds the process ran; `now` is on a clock that never jumps; `failed_start` is whether
        it failed to start.
        """
        self._failed_starts = self._failed_starts + 1 if failed_start else 0
        if self._exceeds_start_retries(spec):
            return None
        if uptime >= spec.restart_reset:
            self._attempt = 0
        while self._at and self._at[0] <= now - spec.restart_window:
            self._at.popleft()
        if spec.restart_limit and len(self._at) >= spec.restart_limit:
            return None
        if spec.restart_limit:
            self._at.append(now)
        self._attempt += 1
        return delay(spec, self._attempt - 1, random.random())

    def _exceeds_start_retries(self, spec: ProcessSpec) -> bool:
        return spec.start_retries is not None and self._failed_starts > spec.start_retries

    def reached(self, spec: ProcessSpec) -> str:
        """The limit that `next_delay` has found to be reached, as text."""
        if self._exceeds_start_retries(spec):
            return f"{self._failed_starts} failed start{'s in a row' if self._failed_starts > 1 else ''}"
        return f"{spec.restart_limit} restarts within {spec.restart_window:g} s"

    def reset(self) -> None:
        """An operator starts the process: earlier restarts do not count."""
        self._attempt = self._failed_starts = 0
        self._at.clear()


class Restarter:
    """Restarts one process that has ended by itself, when its policy says so; at most one restart is due."""

    def __init__(
        self,
        state: ProcessState,
        context: SupervisionContext,
        tasks: BackgroundTasks,
        start_dependencies: Callable[[str, int], Awaitable[None]],
        restart: Callable[[asyncio.Task[Any] | None, Problem | None], Awaitable[None]],
    ) -> None:
        """`restart` is called with the restart that is due, which it takes, and why the dependencies are not up."""
        self.policy = RestartPolicy()
        self._state = state
        self._context = context
        self._tasks = tasks
        self._start_dependencies = start_dependencies
        self._restart = restart
        self._due: asyncio.Task[None] | None = None
        self._at: int | None = None

    @property
    def is_due(self) -> bool:
        """Whether the process waits for its restart."""
        return self._due is not None

    @property
    def next_restart(self) -> int | None:
        """When the restart that is due happens, in microseconds since 1970."""
        return self._at if self.is_due else None

    def resume(self) -> None:
        """At the start of the server: schedules the restart that the last end, known or not, calls for."""
        if self._state.status in ENDED and not self._state.is_live and not self.is_due:
            self.schedule_if_due()

    def schedule_if_due(self) -> None:
        """Schedules the restart that the end of the last instance calls for."""
        state, spec = self._state, self._state.spec
        if not state.record.wanted or self._context.closing or not calls_for_restart(spec, state.status):
            return
        if forbids_restart(spec, state.status, state.record.exit_code):
            log.info("%s: not restarted: no-restart-exit-codes lists how it ended", state.name)
            return
        self.schedule()

    def schedule(self) -> None:
        """Schedules a restart, unless a limit of restarts is reached."""
        state, spec, clock = self._state, self._state.spec, self._context.clock
        failed_start = state.status is Status.FAILED_TO_START
        seconds = self.policy.next_delay(spec, state.record.uptime / SECOND, clock.since_boot(), failed_start)
        if seconds is None:
            limit, status = self.policy.reached(spec), state.status.value
            log.error("%s: restart limit reached (%s): it stays %s", state.name, limit, status)
            state.note(wanted=False)  # the next start of the server does not restart it either
            state.post("process.gave_up", f"{state.name} is not restarted again: {limit}; it stays {status}")
            return
        self._due = self._tasks.start(self._restart_after(seconds))
        self._at = clock.now() + int(seconds * SECOND)

    async def _restart_after(self, seconds: float) -> None:
        due = asyncio.current_task()
        try:
            if seconds:
                log.info("%s: restart in %.1f s", self._state.name, seconds)
                await self._context.clock.sleep(seconds)
            problem: Problem | None = None
            try:
                await self._start_dependencies(self._state.name, next_request())
            except Problem as failure:
                problem = failure
            await self._restart(due, problem)
        finally:
            self._release(due)

    def take(self, due: asyncio.Task[Any] | None) -> bool:
        """Whether that restart is still due, and the process may start; it is no longer due then."""
        if self._due is not due or self._state.is_live or self._context.closing:
            return False
        self._due = None
        return True

    def _release(self, due: asyncio.Task[Any] | None) -> None:
        if self._due is due:
            self._due = None

    def cancel(self) -> bool:
        """Cancels the restart that is due; returns whether one was."""
        due, self._due = self._due, None
        if due is not None:
            due.cancel()
        return due is not None

    def reset(self) -> None:
        """An operator starts the process: no restart is due, and earlier restarts do not count."""
        self.cancel()
        self.policy.reset()


def delay(spec: ProcessSpec, attempt: int, chance: float) -> float:
    """Seconds before the restart numbered `attempt` (0 is the first after a stable run).

    The delay doubles from `restart-delay` up to `restart-max-delay`. `chance` (0 to 1) adds up to a quarter, so that
    processes that failed together do not restart together; at the maximum the quarter is subtracted.
    """
    first, longest = float(spec.restart_delay), float(max(spec.restart_max_delay, spec.restart_delay))
    wait = first * 2.0 ** min(attempt, 64)
    if wait < longest:
        return min(wait * (1 + chance / 4), longest)
    return max(first, longest * (1 - chance / 4))
