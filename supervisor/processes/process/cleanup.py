"""After an exit that no stop caused: ends what the instance left running, before the process is started again."""

from __future__ import annotations

import asyncio
import logging

from models.supervision.process import Status
from supervisor.processes.process.attempts import next_request
from supervisor.processes.process.context import SupervisionContext
from supervisor.processes.process.hooks import Hooks
from supervisor.processes.process.instance import ProcessInstance
from supervisor.processes.process.state import ProcessState
from supervisor.scheduling import BackgroundTasks

log = logging.getLogger("supervision")


class Cleanup:
    """The orphans, `stop-post` and the late error messages of the instances of one process."""

    def __init__(
        self,
        state: ProcessState,
        context: SupervisionContext,
        hooks: Hooks,
        queue: asyncio.Lock,
        tasks: BackgroundTasks,
    ) -> None:
        """`queue` is the command lock of the process."""
        self._state = state
        self._context = context
        self._hooks = hooks
        self._queue = queue
        self._tasks = tasks

    def after_exit(self, instance: ProcessInstance) -> None:
        """Ends the orphans of an unrequested exit.

        Where its control group shows that nothing is left, a restart without delay need not wait for that.
        """
        state = self._state
        if not self._context.closing:
            at_once = not state.spec.restart_delay and instance.left_nothing() and not instance.spec.stop_post
            self._tasks.start(instance.sweep(state.record.generation) if at_once else self._clear(instance))

    async def _clear(self, instance: ProcessInstance) -> None:
        record = self._state.record
        async with self._queue:
            if self._state.is_live:
                return
            has_left = await instance.clear(instance.spec.stop_timeout)
            await self._hooks.run_stop_post(next_request())
        if has_left and record.status is Status.FINISHED:
            reason = "it exited while processes that it had started were running, and these were ended:"
            log.warning("%s: %s it must run in the foreground", record.name, reason)
            self._state.add_to_failed_log(record, f"{reason} configure it to run in the foreground")
