"""The life of one process: its state, the legal transitions, and its instances from the spawn to the exit.

`ProcessState._become` is the only place where a status changes. Each instance has a generation, and events of any
instance but the present one are ignored.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
from collections.abc import Awaitable, Callable, Coroutine, Iterator
from typing import Any

from models.config.redaction import shown_words
from models.errors import NotFound, Problem, Unavailable
from models.supervision.process import (
    ENDED,
    TRANSITIONS,
    TROUBLE,
    UP,
    Exit,
    OnUnhealthy,
    ProcessSpec,
    Status,
    restarts,
    status_after_exit,
)
from models.supervision.record import Record
from supervisor.processes.child import Launch
from supervisor.processes.context import SupervisionContext
from supervisor.processes.instance import Phase, ProcessInstance, StartAttempt, next_request, stopped_before_start
from supervisor.processes.log_files import LogFile
from supervisor.processes.restart_policy import RestartPolicy

log = logging.getLogger("supervision")

NEW_INSTANCE: dict[str, Any] = {
    "pid": None, "start_ticks": None, "boot_id": None, "start": None, "end": None, "exit_code": None, "uptime": 0,
    "failed_log": None,
}  # fmt: skip


class IllegalTransition(Exception):
    """A bug: a transition that is not in the table."""


class ProcessState:
    """What is known of a process, its transitions and its background tasks."""

    def __init__(self, spec: ProcessSpec, context: SupervisionContext, record: Record | None = None) -> None:
        self.spec = spec
        self.record = record or Record(spec.name)
        self.instance: ProcessInstance | None = None
        self.retired = False
        """Whether it is no longer configured, and only to be stopped."""
        self.attempt: StartAttempt | None = None
        """The attempt that began last."""
        self.policy = RestartPolicy()
        self.next_restart: int | None = None
        """When the restart that is due happens, in microseconds since 1970."""
        self._context = context
        self._attempts: list[StartAttempt] = []
        self._announced = 0
        self._called_off_before = 0
        self._restart_called_off_by = 0
        self._tasks: set[asyncio.Task[None]] = set()
        self._watchers: set[asyncio.Future[None]] = set()

    @property
    def name(self) -> str:
        return self.spec.name

    @property
    def status(self) -> Status:
        return self.record.status

    @property
    def live(self) -> bool:
        """Whether it has an operating-system process now."""
        return self.instance is not None

    @property
    def waits_for_restart(self) -> bool:
        return self.policy.is_due

    @property
    def restarts(self) -> int:
        return self.policy.restarts

    @property
    def is_pending(self) -> bool:
        """Whether a start was requested and has not ended, or a restart is due."""
        return bool(self._attempts) or self._announced > 0 or self.waits_for_restart

    @property
    def waiting_for(self) -> str | None:
        """`dependency`, `restart` or `queue`; `None` where it waits for nothing."""
        if any(attempt.phase is Phase.DEPENDENCY for attempt in self._attempts):
            return Phase.DEPENDENCY.value
        if self.waits_for_restart:
            return "restart"
        return Phase.QUEUE.value if self.is_pending and not self.live else None

    def uptime(self) -> int:
        """Microseconds that the present instance has run, or that the last one ran."""
        return self.record.uptime if self.instance is None else self.instance.uptime()

    def log_files(self) -> list[LogFile]:
        spec = self.spec
        if not (spec.stdout_logfile or spec.stderr_logfile):
            return []  # called for all processes, every few seconds
        paths = {path: None for path in (spec.stdout_logfile, spec.stderr_file) if path}
        return [LogFile(path, spec.log_max_bytes, spec.log_backups, spec.name) for path in paths]

    async def until(self, reached: Callable[[ProcessState], bool]) -> None:
        """Returns when `reached(self)` is true; it is called again after each transition."""
        while not reached(self):
            change = asyncio.get_running_loop().create_future()
            self._watchers.add(change)
            try:
                await change
            finally:
                self._watchers.discard(change)

    def is_called_off(self, request: int) -> bool:
        """Whether a stop was requested after this request."""
        return request < self._called_off_before

    @contextlib.contextmanager
    def announced(self) -> Iterator[None]:
        """A group operation is going to start this process."""
        self._announced += 1
        try:
            yield
        finally:
            self._announced -= 1

    def _want(self, wanted: bool) -> None:
        if self.record.wanted != wanted:
            self.record = self.record._replace(wanted=wanted)
            self._context.event_writer.note(self.record)

    def _become(self, status: Status, **facts: Any) -> None:
        """The one place where a status changes: along a legal transition, with exactly one event."""
        old = self.status
        if status not in TRANSITIONS[old]:
            raise IllegalTransition(f"{self.name}: {old.value} to {status.value}")
        self.record = self.record._replace(status=status, **facts)
        self._context.event_writer.record(self.record, old, self._context.clock.now(), self.uptime())
        level = logging.WARNING if status in TROUBLE else logging.INFO
        log.log(level, "%s: %s -> %s%s", self.name, old.value, status.value, self._pid_and_exit_code())
        for change in self._watchers:
            if not change.done():
                change.set_result(None)

    def _pid_and_exit_code(self) -> str:
        if self.status in ENDED and self.record.exit_code is not None:
            return f" (pid {self.record.pid}, exit code {self.record.exit_code})"
        return f" (pid {self.record.pid})" if self.record.pid else ""

    def _post(self, notice: str, message: str) -> None:
        """Posts a notice with the status and the exit code."""
        facts = {"status": self.status.value, "exitCode": self.record.exit_code}
        self._context.notices.post(notice, self.name, message, **facts)

    def _background(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task: asyncio.Task[None] = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._on_task_done)
        return task

    def _on_task_done(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()):
            log.error("%s: %s", self.name, error, exc_info=None if isinstance(error, Problem) else error)

    def cancel_tasks(self) -> None:
        """Ends all background work; the child, if any, goes on."""
        self.policy.cancel()
        for task in list(self._tasks):
            task.cancel()


class InstanceLifecycle(ProcessState):
    """The instance: spawned, running, probed, ended, restarted by policy."""

    def __init__(
        self,
        spec: ProcessSpec,
        context: SupervisionContext,
        start_dependencies: Callable[[str], Awaitable[None]],
        record: Record | None = None,
    ) -> None:
        """`start_dependencies` starts the dependencies of a process and waits for them; it raises `Failed`."""
        super().__init__(spec, context, record)
        self._start_dependencies = start_dependencies
        self._queue = asyncio.Lock()

    # Starting

    async def _begin(self, launch: Launch, attempt: StartAttempt) -> None:
        """Starts a child; `attempt.outcome` tells whether it became a running process.

        A spawn that has begun is completed, even where the caller is cancelled.
        """
        if self._context.closing:
            raise Unavailable("pilothouse is stopping")
        if self.retired:
            raise NotFound(f"{self.name} is no longer configured", "PROCESS_NOT_FOUND")
        self.policy.cancel()
        self.attempt = attempt
        attempt.phase = Phase.SPAWN
        self._become(Status.STARTING, wanted=True, generation=self.record.generation + 1, **NEW_INSTANCE)
        attempt.spawned = spawned = self._background(self._spawn_in_turn(launch, attempt))
        try:
            await asyncio.shield(spawned)
        except asyncio.CancelledError:
            await asyncio.wait({spawned})
            raise

    async def _spawn_in_turn(self, launch: Launch, attempt: StartAttempt) -> None:
        """The intent is stored first, so that a life that leaves no other trace still has its events."""
        try:
            await self._context.event_writer.stored_soon(self.name)
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
        try:
            child = self._context.children.spawn(launch)
        except (OSError, ValueError) as error:
            reason = error.strerror if isinstance(error, OSError) else str(error)
            file = error.filename if isinstance(error, OSError) else None
            about = f" ({file})" if file and file != launch.argv[0] else ""
            where = launch.directory or _working_directory()
            command = " ".join(shown_words(launch.argv))
            self._fail_to_start(f"{command!r} in directory {where} could not be started: {reason}{about}")
            return
        attempt.phase = Phase.READY
        instance = ProcessInstance(self._context, self.spec, launch, child, self._context.clock.since_boot())
        self._on_spawned(instance, self._context.clock.now())

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
        self._context.cgroups.join(self.name, child)
        self._context.on_logs_opened(self.log_files())

    def _on_executing(self, instance: ProcessInstance) -> None:
        if instance.spec.start_seconds:
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
            self._probe(self.instance)

    def _fail_to_start(self, reason: str) -> None:
        self._become(Status.FAILED_TO_START, failed_log=reason)
        log.error("%s: %s", self.name, reason)
        first_line = reason.partition("\n")[0]
        self._post("process.start_failed", f"{self.name} failed to start: {first_line}")
        if self.attempt is not None:
            self.attempt.fail(f"{self.name} failed to start: {reason}")
        self._restart_if_due()

    def _fail_before_spawn(self, reason: str) -> None:
        """A start failed before there was anything to spawn: a dependency, a missing directory."""
        if self.live or self.retired or self._context.closing:
            return
        self.policy.cancel()
        self.attempt = None
        self._become(Status.STARTING, wanted=True, generation=self.record.generation + 1, **NEW_INSTANCE)
        self._fail_to_start(reason)

    # Ending

    async def _end(self, wanted: bool) -> None:
        """Stops the instance; returns when it and what it left running are gone. Raises `Failed`."""
        instance = self.instance
        assert instance is not None
        if self.status is not Status.STOPPING:
            self._become(Status.STOPPING, wanted=wanted)
        if self.attempt is not None:
            self.attempt.fail(f"{self.name} was stopped while it was starting")
        await instance.end()

    def _on_exit(self, instance: ProcessInstance, exit: Exit | None) -> None:
        if instance is not self.instance:
            return
        code = None if exit is None else exit.exit_code
        facts: dict[str, Any] = {"end": self._context.clock.now(), "exit_code": code, "uptime": instance.uptime()}
        self.instance = None
        instance.stop_probes()
        if self.status is Status.STOPPING:
            self._become(Status.ABORTED if instance.killed else Status.STOPPED, **facts)
            return
        self._clear_after_exit(instance)
        if self.status is Status.STARTING and exit is not None:
            if not instance.did_start(exit):
                self.record = self.record._replace(**facts)
                self._fail_to_start(instance.start_failure(exit))
                self._background(self._add_chain_error(instance, exit, self.record))
                return
            self._mark_running()
        self._become(status_after_exit(exit), **facts)
        self._restart_if_due()

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
        """The process ended by itself: what it left running is ended before it is started again.

        Where its control group shows that nothing is left, a restart without delay need not wait for that.
        """
        if not self._context.closing:
            at_once = not self.spec.restart_delay and instance.left_nothing()
            self._background(instance.sweep(self.record.generation) if at_once else self._clear_in_turn(instance))

    async def _clear_in_turn(self, instance: ProcessInstance) -> None:
        record = self.record
        async with self._queue:
            if self.live or not await instance.clear(instance.spec.stop_timeout):
                return
        if record.status is Status.FINISHED:
            reason = "it exited while processes that it had started were running, and these were ended: "
            log.warning(
                "%s: it exited while processes that it had started were running, and these were ended:"
                " it must run in the foreground",
                self.name,
            )
            self._add_to_failed_log(record, f"{reason}configure it to run in the foreground")

    # Restarting by policy

    def _restart_if_due(self) -> None:
        if self.record.wanted and not self._context.closing and restarts(self.spec.restart, self.status):
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
            await self._start_dependencies(self.name)
        except Problem as failure:
            problem = failure
        async with self._queue:
            if not self.policy.holds(restart) or self.live or self._context.closing:
                return
            try:
                if problem is not None:
                    raise problem
                launch = self._context.launch(self.spec, self.record.generation + 1)
            except Problem as failure:
                self.policy.release(restart)
                self._fail_before_spawn(failure.message)
                return
            self.policy.release(restart)
            self.policy.restarts += 1
            await self._begin(launch, StartAttempt(self.name, next_request()))

    # Health

    def _probe(self, instance: ProcessInstance) -> None:
        instance.probe(lambda healthy: self._on_health(instance, healthy))

    def _on_health(self, instance: ProcessInstance, healthy: bool) -> None:
        status = Status.HEALTHY if healthy else Status.UNHEALTHY
        if instance is not self.instance or self.status not in UP:
            return
        if self.status is not status:
            self._become(status)
        check = instance.spec.health_check
        if not healthy and check is not None and check.on_unhealthy is OnUnhealthy.RESTART:
            self._background(self._replace_unhealthy(instance))

    async def _replace_unhealthy(self, instance: ProcessInstance) -> None:
        """Restarts an unhealthy instance, within the same limit and with the same delays as one that crashed."""
        async with self._queue:
            if instance is self.instance and self.status is Status.UNHEALTHY:
                await self._end(wanted=True)
                if self.record.wanted and not self._context.closing:
                    self._schedule_restart()


def _working_directory() -> str:
    try:
        return os.getcwd()  # noqa: PTH109 (Path.cwd is no better, and this is the one that may fail)
    except OSError:
        return "that no longer exists"
