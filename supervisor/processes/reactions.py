"""What a process does by itself: restarts by its policy, hooks, reactions to notifications, watchdog and memory."""

from __future__ import annotations

import asyncio
import logging
import signal
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from models.errors import Invalid, Problem
from models.supervision.process import UP, Kind, ProcessSpec, Status, When, forbids_restart, restarts
from models.supervision.record import Record
from models.supervision.runs import Cause
from supervisor.children.child import Launch
from supervisor.processes.context import SupervisionContext
from supervisor.processes.hooks import ON_FAILURE, START_PRE, STOP_POST, Hook, HookCalledOff, HookFailed
from supervisor.processes.instance import Phase, ProcessInstance, StartAttempt, next_request
from supervisor.processes.notify import Notification
from supervisor.processes.state import ProcessState

log = logging.getLogger("supervision")

_RESTART = Cause("restart")
_MAX_WAITING_ACTIONS = 2
_MAX_ROUNDS_ABOVE_MEMORY = 2


class ProcessReactions(ProcessState):
    """A process with hooks and a restart policy. `InstanceLifecycle` has what starts and ends an instance."""

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

    def _mark_running(self) -> None:
        """Marks the instance as running."""
        raise NotImplementedError

    async def _replace(self, instance: ProcessInstance, only: Status | None = None) -> None:
        """Ends an instance and restarts it whatever its policy, within the limit of its restarts."""
        raise NotImplementedError

    # Restarts by policy

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

    # Hooks: `start-pre` must succeed; the failure of another one is a notice

    async def _start_pre_problem(self, launch: Launch, attempt: StartAttempt) -> str:
        """Runs `start-pre`; returns why the process cannot start, or an empty text."""
        if self.is_called_off(attempt.request):
            attempt.call_off()
        if not self.spec.start_pre or attempt.is_called_off:
            return ""
        attempt.phase = Phase.START_PRE
        hook = Hook(START_PRE, self.spec.start_pre, self.spec.hook_timeout, attempt.request)
        try:
            await self.hooks.run(hook, self.spec, launch)
        except HookCalledOff:
            attempt.call_off()
        except HookFailed as problem:
            return str(problem)
        attempt.phase = Phase.SPAWN
        return ""

    async def _run_hook(
        self, kind: str, instance: ProcessInstance, command: Sequence[str], request: int, timeout: float | None = None
    ) -> None:
        """Runs a hook of an instance; a failure is a notice."""
        if instance.launch is not None:
            hook = Hook(kind, command, timeout or instance.spec.hook_timeout, request, self._end_variables())
            await self._run_noted(hook, instance.spec, instance.launch)

    async def _run_noted(self, hook: Hook, spec: ProcessSpec, launch: Launch) -> None:
        try:
            await self.hooks.run(hook, spec, launch)
        except HookFailed as problem:
            self._post_hook_failed(hook.kind, str(problem))
        except HookCalledOff:
            log.info("%s: %s was ended by a stop", self.name, hook.kind)

    def _post_hook_failed(self, kind: str, problem: str) -> None:
        self._context.notices.post("process.hook_failed", self.name, f"{self.name}: {problem}", hook=kind)

    def _on_failed(self) -> None:
        """It has failed, and a restart is due or not: posts the notice of a final failure, and runs `on-failure`."""
        is_final = not self.waits_for_restart
        if is_final and self.record.wanted and self.status in (Status.FAILED, Status.ABORTED):
            code = "" if self.record.exit_code is None else f" (exit code {self.record.exit_code})"
            self._post("process.failed", f"{self.name} has {self.status.value}{code}")
        action = self.spec.on_failure
        if action is None or self._context.closing or (action.when is When.FINAL and not is_final):
            return
        if self._waiting_actions < _MAX_WAITING_ACTIONS:
            hook = Hook(ON_FAILURE, action.command, self.spec.hook_timeout, next_request(), self._end_variables())
            self._background(self._run_on_failure(hook))

    async def _run_on_failure(self, hook: Hook) -> None:
        """One at a time; while one runs, one other waits, and later failures do not count."""
        self._waiting_actions += 1
        try:
            async with self._action_lock:
                if self.is_called_off(hook.request):
                    return
                launch = await self._context.launch(self.spec, self.record.generation)
                if self.is_called_off(hook.request):
                    return
                await self._run_noted(hook, self.spec, launch)
        except Invalid as problem:
            self._post_hook_failed(hook.kind, f"{hook.kind} could not be started: {problem.message}")
        finally:
            self._waiting_actions -= 1

    def _end_variables(self) -> dict[str, str]:
        code = self.record.exit_code
        return {"PILOTHOUSE_STATUS": self.status.value, "PILOTHOUSE_EXIT_CODE": "" if code is None else str(code)}

    async def _run_stop_post(self, request: int) -> None:
        """Runs `stop-post` of the instance that ended last, unless it has run."""
        instance, self._stop_post_due = self._stop_post_due, None
        if instance is not None:
            await self._run_hook(STOP_POST, instance, instance.spec.stop_post, request)

    # Notifications: `READY=1` makes a process of type `notify` running; without it in time the start has failed

    def _on_notification(self, instance: ProcessInstance, message: Notification) -> None:
        if instance is not self.instance:
            return
        if message.status is not None:
            instance.status_text = message.status
        if message.extension is not None:
            instance.extended_until = self._context.clock.since_boot() + message.extension
        if message.ready and instance.spec.type is Kind.NOTIFY and self.status is Status.STARTING:
            self._mark_running()
        if message.watchdog == "1":
            instance.pinged_at = asyncio.get_running_loop().time()
        elif message.watchdog == "trigger" and instance.spec.watchdog is not None and self.status in UP:
            self._miss_watchdog(instance)

    async def _wait_for_ready(self, instance: ProcessInstance) -> None:
        """Ends an instance that is not ready in time."""
        clock, spec = self._context.clock, instance.spec
        end = clock.since_boot() + spec.ready_timeout
        while (left := max(end, instance.extended_until) - clock.since_boot()) > 0:
            await clock.sleep(left)
        self._background(self._end_unready(instance))  # the present task ends with the instance

    async def _end_unready(self, instance: ProcessInstance) -> None:
        async with self._queue:
            if instance is self.instance and self.status is Status.STARTING:
                instance.start_problem = f"it did not send READY=1 within {instance.spec.ready_timeout:g} s"
                await instance.end(self._context.clock.since_boot() + instance.spec.stop_timeout)

    async def _watch_pings(self, instance: ProcessInstance, watchdog: float) -> None:
        """Reports an instance that does not send `WATCHDOG=1` in time. The clock stops while the machine sleeps."""
        now = asyncio.get_running_loop().time
        instance.pinged_at = now()
        while (left := instance.pinged_at + watchdog - now()) > 0:
            await asyncio.sleep(left)
        if instance is self.instance and self.status in UP:
            self._miss_watchdog(instance)

    def _miss_watchdog(self, instance: ProcessInstance) -> None:
        if not instance.is_aborted:
            message = f"{self.name} has missed its watchdog of {instance.spec.watchdog:g} s and is ended"
            self._context.notices.post("process.watchdog_missed", self.name, message, pid=instance.child.pid)
            self._background(self._abort(instance, signal.SIGABRT))

    def on_memory(self, instance: ProcessInstance, size: int) -> None:
        """Its tree has this much memory: the second time in a row above `max-memory` a service is restarted."""
        limit = self.spec.max_memory
        if limit is None or instance is not self.instance or self.status not in UP:
            return
        instance.rounds_above_memory = instance.rounds_above_memory + 1 if size > limit else 0
        if instance.rounds_above_memory == _MAX_ROUNDS_ABOVE_MEMORY:
            message = f"{self.name} has {size} bytes of memory with its descendants, more than {limit}, and is ended"
            facts = {"memoryBytes": size, "maxMemory": int(limit), "pid": instance.child.pid}
            self._context.notices.post("process.memory_exceeded", self.name, message, **facts)
            is_job = self.spec.is_job
            self._background(self._abort(instance, self.spec.stop_signal) if is_job else self._replace(instance))

    async def _abort(self, instance: ProcessInstance, number: signal.Signals) -> None:
        """Ends an instance by a signal, and by SIGKILL after `stop-timeout`; it is `aborted`, its policy decides."""
        instance.is_aborted = True
        instance.child.send(number)
        instance.child.send(signal.SIGCONT)
        await asyncio.wait({instance.child.exited}, timeout=instance.spec.stop_timeout)
        if not instance.child.exited.done():
            instance.kill()
