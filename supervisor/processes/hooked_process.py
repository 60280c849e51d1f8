"""When the hooks of a process run, and what their failures mean."""

from __future__ import annotations

import logging
from collections.abc import Sequence

from supervisor.processes.automatic_restarts import AutomaticRestarts
from supervisor.processes.child import Launch
from supervisor.processes.hooks import START_PRE, STOP_POST, Hook, HookCalledOff, HookFailed
from supervisor.processes.instance import Phase, ProcessInstance, StartAttempt

log = logging.getLogger("supervision")


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
        if instance.launch is None:
            return
        hook = Hook(kind, command, timeout or instance.spec.hook_timeout, request, self._end_variables())
        try:
            await self.hooks.run(hook, instance.spec, instance.launch)
        except HookFailed as problem:
            self._context.notices.post("process.hook_failed", self.name, f"{self.name}: {problem}", hook=kind)
        except HookCalledOff:
            log.info("%s: %s was ended by a stop", self.name, kind)

    def _end_variables(self) -> dict[str, str]:
        code = self.record.exit_code
        return {"PILOTHOUSE_STATUS": self.status.value, "PILOTHOUSE_EXIT_CODE": "" if code is None else str(code)}

    async def _run_stop_post(self, request: int) -> None:
        """Runs `stop-post` of the instance that ended last, unless it has run."""
        instance, self._stop_post_due = self._stop_post_due, None
        if instance is not None:
            await self._run_hook(STOP_POST, instance, instance.spec.stop_post, request)
