"""Runs the hooks of a process, and handles their failures."""

from __future__ import annotations

import logging
from collections.abc import Sequence

from models.errors import Invalid
from models.supervision.process import ProcessSpec, Status, When
from supervisor.children.child import Launch
from supervisor.processes.automatic_restarts import AutomaticRestarts
from supervisor.processes.hooks import ON_FAILURE, START_PRE, STOP_POST, Hook, HookCalledOff, HookFailed
from supervisor.processes.instance import Phase, ProcessInstance, StartAttempt, next_request

log = logging.getLogger("supervision")

_MAX_WAITING_ACTIONS = 2


class HookedProcess(AutomaticRestarts):
    """A process with hooks. `start-pre` must succeed; the failure of another hook is a notice."""

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
