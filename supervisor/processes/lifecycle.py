"""The process instances of one process, from the spawn to the exit.

Each instance has a generation, and events of any instance but the present one are ignored.
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal
from typing import Any

from models.children import Exit
from models.config.redaction import shown_words
from models.errors import NotFound, Unavailable
from models.supervision.process import UP, Kind, OnUnhealthy, Restart, Seconds, Status, restarts, status_after_exit
from models.supervision.record import Record
from models.supervision.runs import Cause
from supervisor.children.child import Launch
from supervisor.processes.hooks import START_POST, STOP_PRE
from supervisor.processes.instance import Phase, ProcessInstance, StartAttempt, next_request, stopped_before_start
from supervisor.processes.log_files import log_sizes
from supervisor.processes.notify import NotifySocket
from supervisor.processes.reactions import ProcessReactions

log = logging.getLogger("supervision")


class InstanceLifecycle(ProcessReactions):
    """The instance: spawned, running, probed, ended."""

    _runtime_limit: asyncio.Task[None] | None = None

    # Starting

    async def _begin(self, launch: Launch, attempt: StartAttempt) -> None:
        """Starts a child; `attempt.outcome` is whether it became a running process.

        A spawn that has begun is completed, even where the caller is cancelled.
        """
        if self._context.closing:
            raise Unavailable("pilothouse is stopping")
        if self.retired:
            raise NotFound(f"{self.name} is no longer configured", "PROCESS_NOT_FOUND")
        await self._run_stop_post(attempt.request)
        self.policy.cancel()
        self.attempt = attempt
        attempt.phase = Phase.SPAWN
        self._begin_generation(self.record.generation + 1, attempt.cause)
        attempt.spawned = spawned = self._background(self._spawn_after_commit(launch, attempt))
        try:
            await asyncio.shield(spawned)
        except asyncio.CancelledError:
            await asyncio.wait({spawned})
            raise

    async def _spawn_after_commit(self, launch: Launch, attempt: StartAttempt) -> None:
        """The intent is stored first, so that an instance without any other trace has its events."""
        try:
            await self._context.event_writer.stored_soon(self.name)
            if problem := await self._start_pre_problem(launch, attempt):
                self._fail_to_start(problem)
                return
            async with self._context.spawn_lock:
                if attempt.is_called_off:
                    self._abandon(attempt)
                else:
                    self._spawn(launch, attempt)
        except Exception as error:
            log.exception("%s: unexpected error during a start", self.name)
            if self.instance is not None:
                self.instance.child.send(signal.SIGKILL)
            elif self.status is Status.STARTING:
                self._fail_to_start(str(error))
        if self.instance is not None and self.instance.child.is_chained:
            self._background(self._wait_for_exec(self.instance))
        elif self.instance is not None:
            self._on_executing(self.instance)

    def _abandon(self, attempt: StartAttempt) -> None:
        """A stop arrived before the spawn."""
        self._become(Status.STOPPING, wanted=False)
        self._become(Status.STOPPED, end=self._context.clock.now())
        attempt.fail(stopped_before_start(self.name).message)

    async def _wait_for_exec(self, instance: ProcessInstance) -> None:
        if await instance.child.executed():
            self._on_executing(instance)

    def _spawn(self, launch: Launch, attempt: StartAttempt) -> None:
        notifications: NotifySocket | None = None
        try:
            if self.spec.notifies:
                notifications = NotifySocket(self._context.server_id, self.name, launch.uid)
            sizes = log_sizes(self.log_files())
            child = self._context.children.spawn(launch)
        except (OSError, ValueError) as error:
            reason = error.strerror if isinstance(error, OSError) else str(error)
            file = error.filename if isinstance(error, OSError) else None
            about = f" ({file})" if file and file != launch.argv[0] else ""
            where = launch.directory or _working_directory()
            command = " ".join(shown_words(launch.argv))
            if notifications is not None:
                notifications.close()
            self._fail_to_start(f"{command!r} in directory {where} could not be started: {reason}{about}")
            return
        attempt.phase = Phase.READY
        instance = ProcessInstance(self._context, self.spec, launch, child, self._context.clock.since_boot())
        instance.notifications = notifications
        self._on_spawned(instance, self._context.clock.now())
        self._context.on_log_marks(sizes, self.record, False)

    def _on_spawned(self, instance: ProcessInstance, start: int) -> None:
        self.instance, child = instance, instance.child
        self.record = self.record._replace(
            pid=child.pid,
            start_ticks=child.identity.start_ticks,
            boot_id=child.identity.boot_id,
            start=start,
        )
        self._context.event_writer.note(self.record)
        self._context.children.watch(child, lambda exit: self._on_exit(instance, exit))
        if instance.notifications is not None:
            instance.notifications.listen(lambda message: self._on_notification(instance, message))
        self._context.cgroups.join(self.name, child)
        self._context.on_logs_opened(self.log_files())
        self.limit_runtime()

    def _on_executing(self, instance: ProcessInstance) -> None:
        if instance.spec.type is Kind.NOTIFY:
            if instance.spec.ready_timeout and self.status is Status.STARTING:
                instance.keep(self._wait_for_ready(instance))
        elif instance.spec.seconds_until_running:
            self._background(self._wait_for_start_seconds(instance))
        elif instance is self.instance and self.status is Status.STARTING:
            self._mark_running()

    async def _wait_for_start_seconds(self, instance: ProcessInstance) -> None:
        await instance.survived()
        if instance is self.instance and self.status is Status.STARTING:
            self._mark_running()

    def _mark_running(self) -> None:
        self._become(Status.RUNNING)
        if self.attempt is not None:
            self.attempt.succeed()
        if self.instance is not None:
            self._watch(self.instance)
            if self.instance.spec.start_post:
                request = self.attempt.request if self.attempt is not None else next_request()
                self._background(self._run_hook(START_POST, self.instance, self.instance.spec.start_post, request))

    def _fail_to_start(self, reason: str) -> None:
        self._become(Status.FAILED_TO_START, failed_log=reason)
        log.error("%s: %s", self.name, reason)
        first_line = reason.partition("\n")[0]
        self._post("process.start_failed", f"{self.name} failed to start: {first_line}")
        if self.attempt is not None:
            self.attempt.fail(f"{self.name} failed to start: {reason}")
        self._restart_if_due()
        self._on_failed()

    def _fail_before_spawn(self, reason: str, cause: Cause) -> None:
        """A start failed before there was anything to spawn: a dependency, a missing directory."""
        if self.live or self.retired or self._context.closing:
            return
        self.policy.cancel()
        self.attempt = None
        self._begin_generation(self.record.generation + 1, cause)
        self._fail_to_start(reason)

    # Ending

    async def _end(self, wanted: bool, request: int) -> None:
        """Stops the instance; returns when it and what it left running are gone. Raises `Failed`.

        `request` is the number of the request that stops it: a later stop ends the hooks of this one.
        """
        instance = self.instance
        assert instance is not None
        if self.status is not Status.STOPPING:
            self._become(Status.STOPPING, wanted=wanted)
        if self.attempt is not None:
            self.attempt.fail(f"{self.name} was stopped while it was starting")
        self.hooks.call_off(request, START_POST)
        end = self._context.clock.since_boot() + instance.spec.stop_timeout
        if instance.spec.stop_pre:
            longest = min(instance.spec.hook_timeout, instance.spec.stop_timeout)
            await self._run_hook(STOP_PRE, instance, instance.spec.stop_pre, request, longest)
        await instance.end(end)
        await self._run_stop_post(request)

    def _on_exit(self, instance: ProcessInstance, exit: Exit | None) -> None:
        if instance is not self.instance:
            return
        if instance.notifications is not None:
            instance.notifications.read()  # what it sent just before its end
        code = None if exit is None else exit.exit_code
        facts: dict[str, Any] = {"end": self._context.clock.now(), "exit_code": code, "uptime": instance.uptime()}
        self._context.on_log_marks(log_sizes(self.log_files(instance.spec)), self.record._replace(**facts), True)
        self.instance = None
        instance.stop_tasks()
        self.hooks.call_off(next_request(), START_POST)
        if instance.spec.stop_post:
            self._stop_post_due = instance
        self.limit_runtime()
        if self.status is Status.STOPPING:
            self._become(Status.ABORTED if instance.killed or instance.is_aborted else Status.STOPPED, **facts)
            return
        self._clear_after_exit(instance)
        if self.status is Status.STARTING and exit is not None:
            if not instance.did_start(exit):
                self.record = self.record._replace(**facts)
                self._fail_to_start(instance.start_failure(exit))
                self._background(self._add_chain_error(instance, exit, self.record))
                return
            self._mark_running()
        ended = status_after_exit(exit, instance.spec.success_exit_codes)
        self._become(Status.ABORTED if instance.is_aborted else ended, **facts)
        self._restart_if_due()
        if restarts(Restart.ON_FAILURE, self.status):
            self._on_failed()

    async def _add_chain_error(self, instance: ProcessInstance, exit: Exit, record: Record) -> None:
        """The programs of the chain write to the standard error of the server: what they print is added here."""
        if reason := await instance.chain_error(exit):
            log.error("%s: %s", self.name, reason)
            self._add_to_failed_log(record, reason)

    def _add_to_failed_log(self, record: Record, text: str) -> None:
        """Adds to `failedErrorLog`, unless another instance has begun meanwhile."""
        if self.record.generation == record.generation:
            self.record = self.record._replace(failed_log="\n".join(filter(None, (self.record.failed_log, text))))
            self._context.event_writer.note(self.record)

    def _clear_after_exit(self, instance: ProcessInstance) -> None:
        """Ends the orphans of an unrequested exit before the process is started again.

        Where its control group shows that nothing is left, a restart without delay need not wait for that.
        """
        if not self._context.closing:
            at_once = not self.spec.restart_delay and instance.left_nothing() and not instance.spec.stop_post
            self._background(instance.sweep(self.record.generation) if at_once else self._clear_in_turn(instance))

    async def _clear_in_turn(self, instance: ProcessInstance) -> None:
        record = self.record
        async with self._queue:
            if self.live:
                return
            has_left = await instance.clear(instance.spec.stop_timeout)
            await self._run_stop_post(next_request())
        if not has_left:
            return
        if record.status is Status.FINISHED:
            reason = "it exited while processes that it had started were running, and these were ended: "
            log.warning(
                "%s: it exited while processes that it had started were running, and these were ended:"
                " it must run in the foreground",
                self.name,
            )
            self._add_to_failed_log(record, f"{reason}configure it to run in the foreground")

    def limit_runtime(self) -> None:
        """Ends the present instance when it has run for `max-runtime`. Called when it begins or the limit changes."""
        if self._runtime_limit is not None:
            self._runtime_limit.cancel()
            self._runtime_limit = None
        if self.instance is not None and self.spec.max_runtime is not None:
            self._runtime_limit = self._background(self._end_at_limit(self.instance, self.spec.max_runtime))

    async def _end_at_limit(self, instance: ProcessInstance, limit: Seconds) -> None:
        await self._context.clock.sleep(max(0.0, limit - instance.uptime() / 1_000_000))
        async with self._queue:
            if instance is not self.instance:
                return
            self._runtime_limit = None  # from here on it is not cancelled
            if self.status is not Status.STOPPING:
                self._post("process.runtime_exceeded", f"{self.name} has run for {limit:g} s and is stopped")
            self._abort_at_limit(instance)
            await self._end(self.record.wanted, next_request())
            self._after_limit()

    def _abort_at_limit(self, instance: ProcessInstance) -> None:
        """An exit by this stop signal is `aborted`, so that the policy decides about a restart."""
        instance.is_aborted = True
        self._context.runs.judge(self.name, "timeout")

    def _after_limit(self) -> None:
        """It was ended at its limit; unless an operator has stopped it meanwhile, its policy decides."""
        if self.record.wanted and self.status is Status.ABORTED:
            self._restart_if_due()
            self._on_failed()

    # Health

    def _watch(self, instance: ProcessInstance) -> None:
        """Begins the health check and the watchdog."""
        if instance.spec.watchdog is not None and instance.notifications is not None:
            instance.keep(self._watch_pings(instance, instance.spec.watchdog))
        instance.probe(lambda healthy: self._on_health(instance, healthy))

    def _on_health(self, instance: ProcessInstance, healthy: bool) -> None:
        status = Status.HEALTHY if healthy else Status.UNHEALTHY
        if instance is not self.instance or self.status not in UP:
            return
        if self.status is not status:
            self._become(status)
        check = instance.spec.health_check
        if not healthy and check is not None and check.on_unhealthy is OnUnhealthy.RESTART:
            self._background(self._replace(instance, Status.UNHEALTHY))

    async def _replace(self, instance: ProcessInstance, only: Status | None = None) -> None:
        """Restarts an instance, within the same limit and with the same delays as one that crashed.

        With `only` it does nothing where the status is another one by then.
        """
        async with self._queue:
            if instance is self.instance and self.status in UP and only in (None, self.status):
                await self._end(wanted=True, request=next_request())
                if self.record.wanted and not self._context.closing:
                    self._schedule_restart()
                    if not self.waits_for_restart:
                        self._on_failed()


def _working_directory() -> str:
    try:
        return os.getcwd()  # noqa: PTH109 (Path.cwd is no better, and this is the one that may fail)
    except OSError:
        return "that no longer exists"
