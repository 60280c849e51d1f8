"""One supervised process: the commands start, stop, restart, adopt and retire, and how it reacts to its instance.

Commands for one process are executed one after another (`_queue`); the exit of its child is handled at once.
"""

from __future__ import annotations

import asyncio
import logging
import signal
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from models.children import Exit
from models.errors import Conflict, Invalid, NotFound, Problem, Unavailable
from models.supervision.process import (
    OnUnhealthy,
    ProcessSpec,
    Restart,
    Status,
    restarts,
    status_after_exit,
)
from models.supervision.record import Record
from models.supervision.runs import Cause
from supervisor.children.child import Launch
from supervisor.processes.logs.files import LogFile
from supervisor.processes.process.attempts import Phase, StartAttempt, StartAttempts, StartCalledOff, next_request
from supervisor.processes.process.cleanup import Cleanup
from supervisor.processes.process.context import SupervisionContext
from supervisor.processes.process.hooks import START_POST, HookFailed, Hooks
from supervisor.processes.process.instance import Fault, ProcessInstance, SpawnFailed
from supervisor.processes.process.restart_policy import Restarter
from supervisor.processes.process.state import ProcessState
from supervisor.scheduling import BackgroundTasks

log = logging.getLogger("supervision")

MANUAL = Cause("manual")
_RESTART = Cause("restart")


class Process:
    """A process: its state, its starts, its hooks, its restarts, and at most one instance, to which it listens."""

    def __init__(
        self,
        spec: ProcessSpec,
        context: SupervisionContext,
        start_dependencies: Callable[[str, int], Awaitable[None]],
        record: Record | None = None,
    ) -> None:
        """`start_dependencies` starts the dependencies of a process for a request and waits; it raises `Failed`."""
        self.state = ProcessState(spec, context, record)
        self.starts = StartAttempts(spec.name, self.state.wake_waiters)
        self.instance: ProcessInstance | None = None
        self.retired = False
        """Whether it is no longer configured, and only to be stopped."""
        self._context = context
        self._start_dependencies = start_dependencies
        self._tasks = BackgroundTasks(self._report_failure)
        self.hooks = Hooks(self.state, context, self._tasks)
        self.restarter = Restarter(self.state, context, self._tasks, start_dependencies, self._restart_by_policy)
        self._queue = asyncio.Lock()
        self._cleanup = Cleanup(self.state, context, self.hooks, self._queue, self._tasks)
        self._restart_called_off_by = 0

    @property
    def name(self) -> str:
        return self.state.name

    @property
    def spec(self) -> ProcessSpec:
        return self.state.spec

    @property
    def record(self) -> Record:
        return self.state.record

    @property
    def status(self) -> Status:
        return self.state.record.status

    @property
    def live(self) -> bool:
        """Whether it has an operating-system process now."""
        return self.instance is not None

    @property
    def waits_for_restart(self) -> bool:
        return self.restarter.is_due

    @property
    def restarts(self) -> int:
        return self.restarter.policy.restarts

    @property
    def is_pending(self) -> bool:
        """Whether a start was requested and has not ended, or a restart is due."""
        return self.starts.is_pending or self.waits_for_restart

    @property
    def waiting_for(self) -> str | None:
        """What it waits for: `dependency`, `start-delay`, `start-pre`, `ready`, `restart`, `queue` or nothing."""
        if self.status is Status.STARTING and self.live:
            return Phase.READY.value
        return self.starts.waiting_for(self.status, self.waits_for_restart, self.live)

    def uptime(self) -> int:
        """Microseconds that the present instance has run, or that the last one ran."""
        return self.state.uptime()

    def log_files(self) -> list[LogFile]:
        """The log files of the process."""
        return self.state.log_files()

    async def until(self, reached: Callable[[Process], bool]) -> None:
        """Returns when `reached(self)` is true; it is called again after each transition and each start or stop."""
        while not reached(self):
            await self.state.change()

    def _report_failure(self, _: str, error: BaseException) -> None:
        log.error("%s: %s", self.name, error, exc_info=None if isinstance(error, Problem) else error)

    def cancel_tasks(self) -> None:
        """Ends all background work; the child, if any, goes on."""
        self.restarter.cancel()
        self._tasks.cancel()
        if self.instance is not None:
            self.instance.release()

    # Start

    async def start(
        self, request: int | None = None, cause: Cause = MANUAL, check_first: bool = False, delayed: bool = False
    ) -> str:
        """Returns what was done, once the outcome is known. Raises `Failed`, `Invalid`.

        Resets the restart counters, except for a dependent. Where the spec cannot be run on this machine, `Invalid` is
        raised; with `check_first` the status does not change then. With `delayed` it waits for `start-delay`.
        """
        if self.live and self.status is not Status.STOPPING:
            return self._already()
        if request is not None and self.spec.is_job and (ran := self.starts.begun_since(request)) is not None:
            await asyncio.shield(ran.outcome)
            return f"{self.name} has been started (pid {self.record.pid})"
        with self.starts.attempting(request, cause) as attempt:
            wanted = self.record.wanted
            self.state.note(wanted=True)
            problem = await self._dependency_problem(attempt)
            if delayed and problem is None and self.spec.start_delay:
                await attempt.delay(self._context.clock.sleep(self.spec.start_delay), self.until(_is_live))
            async with self._queue:
                attempt.check()
                if self.live:
                    return self._already()
                try:
                    if problem is not None:
                        raise problem
                    launch = await self._context.launch(self.spec, self.record.generation + 1)
                except Problem as failure:
                    if check_first and isinstance(failure, Invalid):
                        self.state.note(wanted=wanted)
                    else:
                        self._fail_before_spawn(failure.message, cause)
                    raise
                attempt.check()
                if cause.trigger != "dependency":
                    self.restarter.reset()
                self.state.note(wanted=True)
                await self._begin(launch, attempt)
            await asyncio.shield(attempt.outcome)
        return f"{self.name} has been started (pid {self.record.pid})"

    async def _dependency_problem(self, attempt: StartAttempt) -> Problem | None:
        if not self.spec.depends_on:
            return None
        return await attempt.dependency_problem(self._start_dependencies(self.name, attempt.request))

    def _already(self) -> str:
        return f"{self.name} is already {self.status.value} (pid {self.record.pid})"

    async def _begin(self, launch: Launch, attempt: StartAttempt) -> None:
        """Starts a child; `attempt.outcome` is whether it became a running process.

        A spawn that has begun is completed, even where the caller is cancelled.
        """
        if self._context.closing:
            raise Unavailable("pilothouse is stopping")
        if self.retired:
            raise NotFound(f"{self.name} is no longer configured", "PROCESS_NOT_FOUND")
        await self.hooks.run_stop_post(attempt.request)
        self.restarter.cancel()
        self.starts.latest = attempt
        attempt.phase = Phase.SPAWN
        self.state.begin_generation(self.record.generation + 1, attempt.cause)
        attempt.spawned = spawned = self._tasks.start(self._spawn_after_commit(launch, attempt))
        try:
            await asyncio.shield(spawned)
        except asyncio.CancelledError:
            await asyncio.wait({spawned})
            raise

    async def _spawn_after_commit(self, launch: Launch, attempt: StartAttempt) -> None:
        """The intent is stored first, so that an instance without any other trace has its events."""
        try:
            await self._context.event_writer.stored_soon(self.name)
            await self.hooks.run_start_pre(launch, attempt)
            sizes = await self._context.log_sizes(self.name, self.log_files())
            async with self._context.spawn_lock:
                attempt.check()
                self._spawn(launch, attempt, sizes)
        except StartCalledOff as stopped:  # before the spawn
            self.state.become(Status.STOPPING, wanted=False)
            self.state.become(Status.STOPPED, end=self._context.clock.now())
            attempt.give_up(stopped)
        except (HookFailed, SpawnFailed) as problem:
            self._fail_to_start(str(problem))
        except Exception as error:
            log.exception("%s: unexpected error during a start", self.name)
            if self.instance is not None:
                self.instance.child.send(signal.SIGKILL)
            elif self.status is Status.STARTING:
                self._fail_to_start(str(error))
        if self.instance is not None:
            self.instance.follow_start()

    def _spawn(self, launch: Launch, attempt: StartAttempt, sizes: Mapping[str, int]) -> None:
        """`sizes` are those of the log files. Raises `SpawnFailed`."""
        instance = ProcessInstance.spawn(self._context, self, self.spec, launch)
        attempt.phase = Phase.READY
        self.follow(instance, self._context.clock.now())
        self._context.on_start(sizes, self.record)

    def follow(self, instance: ProcessInstance, start: int) -> None:
        """The process has this instance from now on, which started at `start` (in microseconds since 1970)."""
        self.instance = instance
        self.state.on_spawned(instance.child.identity, instance.since, start)
        instance.watch()
        self._context.on_logs_opened(self.log_files())

    def _fail_before_spawn(self, reason: str, cause: Cause) -> None:
        """A start failed before there was anything to spawn: a dependency, a missing directory."""
        if cause.trigger not in ("dependency", _RESTART.trigger):
            self.restarter.reset()
        if self.live or self.retired or self._context.closing:
            return
        self.restarter.cancel()
        self.starts.latest = None
        self.state.begin_generation(self.record.generation + 1, cause)
        self._fail_to_start(reason)

    def _fail_to_start(self, reason: str, **facts: Any) -> None:
        self.state.fail_to_start(reason, facts)
        if self.starts.latest is not None:
            self.starts.latest.fail(f"{self.name} failed to start: {reason}")
        self.restarter.schedule_if_due()
        self._on_failed()

    async def _restart_by_policy(self, due: asyncio.Task[Any] | None, problem: Problem | None) -> None:
        """The restart is due, and the dependencies are up or `problem` is why not."""
        async with self._queue:
            try:
                if problem is not None:
                    raise problem
                launch = await self._context.launch(self.spec, self.record.generation + 1)
            except Problem as failure:
                if self.restarter.take(due):
                    self._fail_before_spawn(failure.message, _RESTART)
                return
            if self.restarter.take(due):
                self.restarter.policy.restarts += 1
                await self._begin(launch, StartAttempt(self.name, next_request(), _RESTART))

    # Stop, restart, signal, retire

    async def stop(self, request: int | None = None) -> str:
        """Returns what was done, once it is gone. Calls off all starts that were requested before. Raises `Failed`."""
        request = next_request() if request is None else request
        self.call_off(request)
        self.state.note(wanted=False)
        async with self._queue:
            waited = self.call_off(request)  # a start that was before us in the queue may have ended already
            self.state.note(wanted=False)
            if self.instance is None:
                return f"{self.name} {'will not be restarted' if waited else 'is not running'}"
            pid = self.record.pid
            await self._end(self.instance, wanted=False, request=request)
        return f"{self.name} has been stopped (pid {pid})"

    def call_off(self, request: int) -> bool:
        """Calls off the starts that were requested before `request`; returns whether it cancelled a restart."""
        if self.live or self.is_pending:
            self.state.note(wanted=False)
        self.hooks.call_off(request)
        if self.restarter.cancel():
            self._restart_called_off_by = request
        self.starts.call_off(request)
        return self._restart_called_off_by == request

    async def restart(self, request: int | None = None, cause: Cause = MANUAL) -> str:
        """Stops the process if it is live, then starts it; as `start` with `check_first`, and `stop`."""
        with self.starts.attempting(request, cause) as attempt:
            wanted = self.record.wanted
            self.state.note(wanted=True)
            problem = await self._dependency_problem(attempt)
            async with self._queue:
                attempt.check()
                if problem is not None:
                    self._fail_before_spawn(problem.message, cause)
                    raise problem
                try:
                    launch = await self._context.launch(self.spec, self.record.generation + 1)
                except Invalid:
                    self.state.note(wanted=wanted)
                    raise
                attempt.check()
                self.restarter.reset()
                self.state.note(wanted=True)
                old = self.record.pid if self.live else None
                await self._begin_anew(launch, attempt)
            await asyncio.shield(attempt.outcome)
        return f"{self.name} has been restarted (pid {self.record.pid}{f', was {old}' if old else ''})"

    async def restart_if_running(self) -> str:
        """Restarts the process if it is live and wanted: its spec has changed."""
        with self.starts.attempting(None, _RESTART) as attempt:
            if problem := await self._dependency_problem(attempt):
                raise problem
            async with self._queue:
                if not self.live or not self.record.wanted:
                    return f"{self.name} is not running"
                launch = await self._context.launch(self.spec, self.record.generation + 1)
                attempt.check()
                if not self.live:
                    return f"{self.name} is not running"
                await self._begin_anew(launch, attempt)
            await asyncio.shield(attempt.outcome)
        return f"{self.name} has been restarted (pid {self.record.pid})"

    async def _begin_anew(self, launch: Launch, attempt: StartAttempt) -> None:
        """Stops the present instance, if there is one, and begins another."""
        if self.instance is not None:
            await self._end(self.instance, wanted=True, request=attempt.request)
            attempt.check()
        await self._begin(launch, attempt)

    def send(self, number: signal.Signals, to_group: bool = False) -> str:
        """Sends a signal to the main process, or to its whole group. Raises `Conflict` where it does not run."""
        if self.instance is None:
            raise Conflict(f"{self.name} is not running ({self.status.value})", "PROCESS_NOT_RUNNING")
        self.instance.send(number, to_group)
        return f"{number.name} has been sent to {self.name} (pid {self.instance.child.pid})"

    def take_over(self, spec: ProcessSpec) -> None:
        """A reload has changed its configuration."""
        self.state.spec = spec
        if self.instance is not None:
            self.instance.take_over(spec)

    async def retire(self) -> str:
        """Stops the process and deletes its record, but not its history: it is no longer configured."""
        self.retired = True
        try:
            return await self.stop()
        finally:
            self.cancel_tasks()
            if not self.live:
                self._context.event_writer.forget(self.name)

    async def _end(self, instance: ProcessInstance, wanted: bool, request: int) -> None:
        """Stops the instance; returns when it and what it left running are gone. Raises `Failed`.

        `request` is the number of the request to stop. Hooks that an earlier request has started are ended.
        """
        instance.is_ending = True
        if self.status is not Status.STOPPING:
            self.state.become(Status.STOPPING, wanted=wanted)
        if self.starts.latest is not None:
            self.starts.latest.stop()
        self.hooks.call_off(request, START_POST)
        end = self._context.clock.since_boot() + instance.spec.stop_timeout
        await self.hooks.run_stop_pre(instance, request)
        await instance.end(end)
        await self.hooks.run_stop_post(request)

    def finish_stopping(self, instance: ProcessInstance) -> None:
        """The instance was being stopped when an earlier run of the server ended."""
        instance.is_ending = True
        self._tasks.start(self._finish_stopping(instance))

    async def _finish_stopping(self, instance: ProcessInstance) -> None:
        async with self._queue:
            if not instance.has_ended:
                if self.record.wanted and instance.is_over_runtime():
                    await self._end_over_runtime(instance)
                else:
                    await self._end(instance, self.record.wanted, next_request())

    # What the instance reports

    def on_running(self, instance: ProcessInstance) -> None:
        self._mark_running()
        self.hooks.start_post(instance, self.starts.latest)

    def _mark_running(self) -> None:
        self.state.become(Status.RUNNING)
        if self.starts.latest is not None:
            self.starts.latest.succeed()

    def on_health(self, instance: ProcessInstance, healthy: bool) -> None:
        status = Status.HEALTHY if healthy else Status.UNHEALTHY
        if self.status is not status:
            self.state.become(status)
        check = instance.spec.health_check
        if not healthy and check is not None and check.on_unhealthy is OnUnhealthy.RESTART:
            self._tasks.start(self._replace(instance, Status.UNHEALTHY))

    def on_fault(self, instance: ProcessInstance, fault: Fault) -> None:
        if fault is Fault.NOT_READY:
            self._tasks.start(self._end_unready(instance))
        elif fault is Fault.RUNTIME:
            self._tasks.start(self._end_at_limit(instance))
        elif fault is Fault.MEMORY and not self.spec.is_job:
            self._tasks.start(self._replace(instance))
        else:
            self._tasks.start(instance.abort(signal.SIGABRT if fault is Fault.WATCHDOG else self.spec.stop_signal))

    def on_exit(self, instance: ProcessInstance, exit: Exit | None) -> None:
        facts = self.state.on_exited(instance.spec, None if exit is None else exit.exit_code)
        self.instance = None
        self.hooks.on_exit(instance)
        if self.status is Status.STOPPING:
            self.state.become(Status.ABORTED if instance.killed or instance.is_aborted else Status.STOPPED, **facts)
            return
        self._cleanup.after_exit(instance)
        if self.status is Status.STARTING and exit is not None:
            if not instance.did_start(exit):
                if instance.was_not_executed(exit):
                    facts["exit_code"] = None  # it is that of the launcher
                self._fail_to_start(instance.start_failure(exit), **facts)
                return
            self._mark_running()
        ended = status_after_exit(exit, instance.spec.success_exit_codes)
        self.state.become(Status.ABORTED if instance.is_aborted else ended, **facts)
        self.restarter.schedule_if_due()
        if restarts(Restart.ON_FAILURE, self.status):
            self._on_failed()

    def _on_failed(self) -> None:
        """It has failed, and a restart is due or not: posts the notice of a final failure, and runs `on-failure`."""
        is_final = not self.waits_for_restart
        if is_final and self.record.wanted:
            self.state.post_failure()
        self.hooks.on_failure(is_final)

    async def _end_unready(self, instance: ProcessInstance) -> None:
        async with self._queue:
            await instance.end_unready()

    async def _end_at_limit(self, instance: ProcessInstance) -> None:
        """Ends an instance that has run for `max-runtime`, unless a reload has raised the limit meanwhile."""
        async with self._queue:
            if not instance.has_ended and instance.is_over_runtime():
                if self.status is not Status.STOPPING:
                    limit = self.spec.max_runtime
                    self.state.post("process.runtime_exceeded", f"{self.name} has run for {limit:g} s and is stopped")
                await self._end_over_runtime(instance)

    async def _end_over_runtime(self, instance: ProcessInstance) -> None:
        """Ends it; unless an operator has stopped it meanwhile, its policy decides about a restart."""
        instance.is_aborted = True
        self._context.runs.judge(self.name, "timeout")
        await self._end(instance, self.record.wanted, next_request())
        if self.record.wanted and self.status is Status.ABORTED:
            self.restarter.schedule_if_due()
            self._on_failed()

    async def _replace(self, instance: ProcessInstance, only: Status | None = None) -> None:
        """Restarts an instance, within the same limit and with the same delays as one that crashed.

        With `only` it does nothing where the status is another one by then.
        """
        async with self._queue:
            if instance.is_up and only in (None, self.status):
                await self._end(instance, wanted=True, request=next_request())
                if self.record.wanted and not self._context.closing:
                    self.restarter.schedule()
                    if not self.waits_for_restart:
                        self._on_failed()


def _is_live(process: Process) -> bool:
    return process.live
