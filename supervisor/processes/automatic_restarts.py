"""Restarts by policy: whether one is due after an end, the delay before it, and the restart itself."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Any

from models.errors import Problem
from models.supervision.process import ProcessSpec, forbids_restart, restarts
from models.supervision.record import Record
from models.supervision.runs import Cause
from supervisor.children.child import Launch
from supervisor.processes.context import SupervisionContext
from supervisor.processes.instance import ProcessInstance, StartAttempt, next_request
from supervisor.processes.state import ProcessState

log = logging.getLogger("supervision")

_RESTART = Cause("restart")


class AutomaticRestarts(ProcessState):
    """A process that its policy restarts."""

    def __init__(
        self,
        spec: ProcessSpec,
        context: SupervisionContext,
        start_dependencies: Callable[[str, int], Awaitable[None]],
        record: Record | None = None,
    ) -> None:
        """`start_dependencies` starts the dependencies of a process for a request and waits for them.

        It raises `Failed`.
        """
        super().__init__(spec, context, record)
        self._start_dependencies = start_dependencies
        self._queue = asyncio.Lock()
        self._stop_post_due: ProcessInstance | None = None
        self._action_lock = asyncio.Lock()
        self._waiting_actions = 0

    async def _begin(self, launch: Launch, attempt: StartAttempt) -> None:
        """Starts a child."""
        raise NotImplementedError

    def _fail_before_spawn(self, reason: str, cause: Cause) -> None:
        """A start failed before there was anything to spawn."""
        raise NotImplementedError

    def _restart_if_due(self) -> None:
        if not self.record.wanted or self._context.closing or not restarts(self.spec.restart, self.status):
            return
        if forbids_restart(self.spec, self.status, self.record.exit_code):
            log.info("%s: not restarted: no-restart-exit-codes lists how it ended", self.name)
            return
        self._schedule_restart()

    def _schedule_restart(self) -> None:
        delay = self.policy.next_delay(self.spec, self.record.uptime / 1_000_000, self._context.clock.since_boot())
        if delay is None:
            log.error(
                "%s: restart limit reached (%d restarts within %g s): it stays %s",
                self.name, self.spec.restart_limit, self.spec.restart_window, self.status.value,
            )  # fmt: skip
            self._want(False)  # the next start of the server does not restart it either
            self._post(
                "process.gave_up",
                f"{self.name} is not restarted again: {self.spec.restart_limit} restarts within "
                f"{self.spec.restart_window:g} s; it stays {self.status.value}",
            )
            return
        self.policy.schedule(self._background(self._restart_after(delay)))
        self.next_restart = self._context.clock.now() + int(delay * 1_000_000)

    async def _restart_after(self, delay: float) -> None:
        restart = asyncio.current_task()
        try:
            if delay:
                log.info("%s: restart in %.1f s", self.name, delay)
                await self._context.clock.sleep(delay)
            await self._restart_by_policy(restart)
        finally:
            self.policy.release(restart)

    async def _restart_by_policy(self, restart: asyncio.Task[Any] | None) -> None:
        problem: Problem | None = None
        try:
            await self._start_dependencies(self.name, next_request())
        except Problem as failure:
            problem = failure
        async with self._queue:
            launch: Launch | None = None
            try:
                if problem is None:
                    launch = await self._context.launch(self.spec, self.record.generation + 1)
            except Problem as failure:
                problem = failure
            if not self.policy.holds(restart) or self.live or self._context.closing:
                return
            if launch is None:
                self.policy.release(restart)
                self._fail_before_spawn(problem.message if problem is not None else "", _RESTART)
                return
            self.policy.release(restart)
            self.policy.restarts += 1
            await self._begin(launch, StartAttempt(self.name, next_request(), _RESTART))
