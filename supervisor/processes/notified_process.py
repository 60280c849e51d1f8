"""Reactions to readiness notifications, missed watchdog pings and memory above the limit."""

from __future__ import annotations

import asyncio
import signal

from models.supervision.process import UP, Kind, Status
from supervisor.processes.hooked_process import HookedProcess
from supervisor.processes.instance import ProcessInstance
from supervisor.processes.notify import Notification

_MAX_ROUNDS_ABOVE_MEMORY = 2


class NotifiedProcess(HookedProcess):
    """`READY=1` makes a process of type `notify` running; without it in time the process has failed to start."""

    def _mark_running(self) -> None:
        """Marks the instance as running."""
        raise NotImplementedError

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

    async def _replace(self, instance: ProcessInstance, only: Status | None = None) -> None:
        """Ends an instance and restarts it whatever its policy, within the limit of its restarts."""
        raise NotImplementedError

    async def _abort(self, instance: ProcessInstance, number: signal.Signals) -> None:
        """Ends an instance by a signal, and by SIGKILL after `stop-timeout`; it is `aborted`, its policy decides."""
        instance.is_aborted = True
        instance.child.send(number)
        instance.child.send(signal.SIGCONT)
        await asyncio.wait({instance.child.exited}, timeout=instance.spec.stop_timeout)
        if not instance.child.exited.done():
            instance.kill()
