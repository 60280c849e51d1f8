"""One supervised process: the commands start, stop, restart, adopt and retire.

Commands for one process are executed one after another (`_queue`); the exit of its child is handled at once.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
from collections.abc import Iterator, Mapping

from models.errors import Conflict, Invalid, Problem
from models.supervision.process import ENDED, IDLE, ProcessSpec, Status
from models.supervision.record import Record
from models.supervision.runs import Cause
from supervisor.children.child import TAG_VARIABLE, Child, Launch
from supervisor.children.proc import ticks_per_second
from supervisor.processes.instance import Phase, ProcessInstance, StartAttempt, StartCalledOff, next_request
from supervisor.processes.lifecycle import InstanceLifecycle
from supervisor.processes.log_files import log_sizes
from supervisor.processes.notify import NotifySocket

log = logging.getLogger("supervision")

MANUAL = Cause("manual")


class Process(InstanceLifecycle):
    """The commands: start, stop, restart, adopt, retire."""

    async def start(
        self, request: int | None = None, cause: Cause = MANUAL, check_first: bool = False, delayed: bool = False
    ) -> str:
        """Returns what was done, once the outcome is known. Raises `Failed`, `Invalid`.

        Resets the restart counters, except for a dependent. Where the spec cannot be run on this machine, `Invalid` is
        raised; with `check_first` the status does not change then. With `delayed` it waits for `start-delay`.
        """
        if self.live and self.status is not Status.STOPPING:
            return self._already()
        if request is not None and (ran := self._job_started_since(request)) is not None:
            await asyncio.shield(ran.outcome)
            return f"{self.name} has been started (pid {self.record.pid})"
        with self._attempting(request, cause) as attempt:
            wanted = self.record.wanted
            self._want(True)
            problem = await self._wait_to_start(attempt, delayed)
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
                        self._want(wanted)
                    else:
                        self._fail_by_request(failure, cause)
                    raise
                attempt.check()
                if cause.trigger != "dependency":
                    self.policy.reset()
                self._want(True)
                await self._begin(launch, attempt)
            await asyncio.shield(attempt.outcome)
        return f"{self.name} has been started (pid {self.record.pid})"

    async def _wait_to_start(self, attempt: StartAttempt, delayed: bool) -> Problem | None:
        """Waits for the dependencies, then for `start-delay`; returns why the dependencies are not up.

        Raises `Failed` if called off.
        """
        problem = await self._dependency_problem(attempt)
        if delayed and problem is None and self.spec.start_delay:
            attempt.phase = Phase.START_DELAY
            await attempt.unless_called_off(self._delay())
            attempt.phase = Phase.QUEUE
        return problem

    async def _delay(self) -> None:
        """Waits for `start-delay`; less if the process is started by name meanwhile."""
        over = asyncio.ensure_future(self._context.clock.sleep(self.spec.start_delay))
        started = asyncio.ensure_future(self.until(lambda state: state.live))
        try:
            await asyncio.wait({over, started}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            over.cancel()
            started.cancel()

    def _job_started_since(self, request: int) -> StartAttempt | None:
        """The start of a job for `request` or a later one: it ran for a dependent, and one request runs it once."""
        attempt = self.attempt
        return attempt if self.spec.is_job and attempt is not None and attempt.request >= request else None

    def _fail_by_request(self, failure: Problem, cause: Cause) -> None:
        if cause.trigger != "dependency":
            self.policy.reset()
        self._fail_before_spawn(failure.message, cause)

    async def stop(self, request: int | None = None) -> str:
        """Returns what was done, once it is gone. Calls off all starts that were requested before. Raises `Failed`."""
        request = next_request() if request is None else request
        self.call_off(request)
        self._want(False)
        async with self._queue:
            waited = self.call_off(request)  # a start that was before us in the queue may have ended already
            self._want(False)
            if not self.live:
                return f"{self.name} {'will not be restarted' if waited else 'is not running'}"
            pid = self.record.pid
            await self._end(wanted=False, request=request)
        return f"{self.name} has been stopped (pid {pid})"

    def call_off(self, request: int) -> bool:
        """Calls off the starts that were requested before `request`; returns whether it cancelled a restart."""
        if self.live or self.is_pending:
            self._want(False)
        self._called_off_before = max(self._called_off_before, request)
        self.hooks.call_off(request)
        for attempt in self._attempts:
            if attempt.request < request:
                attempt.call_off()
        if self.policy.cancel():
            self._restart_called_off_by = request
        self._wake_watchers()
        return self._restart_called_off_by == request

    async def restart(self, request: int | None = None, cause: Cause = MANUAL) -> str:
        """Stops the process if it is live, then starts it; as `start` with `check_first`, and `stop`."""
        with self._attempting(request, cause) as attempt:
            wanted = self.record.wanted
            self._want(True)
            problem = await self._dependency_problem(attempt)
            async with self._queue:
                attempt.check()
                if problem is not None:
                    self._fail_by_request(problem, cause)
                    raise problem
                try:
                    launch = await self._context.launch(self.spec, self.record.generation + 1)
                except Invalid:
                    self._want(wanted)
                    raise
                attempt.check()
                self.policy.reset()
                self._want(True)
                old = self.record.pid if self.live else None
                if self.live:
                    await self._end(wanted=True, request=attempt.request)
                    attempt.check()
                await self._begin(launch, attempt)
            await asyncio.shield(attempt.outcome)
        return f"{self.name} has been restarted (pid {self.record.pid}{f', was {old}' if old else ''})"

    def send(self, number: signal.Signals, to_group: bool = False) -> str:
        """Sends a signal to the main process, or to its whole group. Raises `Conflict` where it does not run."""
        if self.instance is None:
            raise Conflict(f"{self.name} is not running ({self.status.value})", "PROCESS_NOT_RUNNING")
        child = self.instance.child
        if to_group:
            child.send(number)
        else:
            child.send_to_main(number)
        log.info("%s: %s sent to pid %d%s", self.name, number.name, child.pid, " and its group" if to_group else "")
        return f"{number.name} has been sent to {self.name} (pid {child.pid})"

    async def restart_if_running(self) -> str:
        """Restarts the process if it is live and wanted: its spec has changed."""
        with self._attempting(None, Cause("restart")) as attempt:
            if problem := await self._dependency_problem(attempt):
                raise problem
            async with self._queue:
                if not self.live or not self.record.wanted:
                    return f"{self.name} is not running"
                launch = await self._context.launch(self.spec, self.record.generation + 1)
                attempt.check()
                if not self.live:
                    return f"{self.name} is not running"
                await self._end(wanted=True, request=attempt.request)
                attempt.check()
                await self._begin(launch, attempt)
            await asyncio.shield(attempt.outcome)
        return f"{self.name} has been restarted (pid {self.record.pid})"

    @contextlib.contextmanager
    def _attempting(self, request: int | None, cause: Cause) -> Iterator[StartAttempt]:
        attempt = StartAttempt(self.name, next_request() if request is None else request, cause)
        if self.is_called_off(attempt.request):
            attempt.call_off()
        attempt.check()
        self._attempts.append(attempt)
        try:
            yield attempt
        finally:
            self._attempts.remove(attempt)
            self._wake_watchers()

    async def _dependency_problem(self, attempt: StartAttempt) -> Problem | None:
        """Starts the dependencies and waits for them; returns why they are not up. Raises `Failed` if called off."""
        if not self.spec.depends_on:
            return None
        attempt.phase = Phase.DEPENDENCY
        try:
            await attempt.unless_called_off(self._start_dependencies(self.name, attempt.request))
        except StartCalledOff:
            raise
        except Problem as problem:
            attempt.check()
            return problem
        attempt.phase = Phase.QUEUE
        return None

    def _already(self) -> str:
        return f"{self.name} is already {self.status.value} (pid {self.record.pid})"

    def take_over(self, spec: ProcessSpec) -> None:
        """A reload has changed its configuration."""
        self.spec = spec
        self.limit_runtime()

    # Adoption

    def adopt(self, child: Child, record: Record, generation: int, variables: Mapping[str, str] | None) -> None:
        """Takes over a child that an earlier run of the server started; `variables` are those of its `env-file`."""
        self.record = record
        if generation != record.generation and self.status not in IDLE:
            self.mark_unknown()
        if self.status in IDLE:  # its start could not be stored
            self._begin_generation(generation)
        since = child.identity.start_ticks / ticks_per_second()
        age = self._context.clock.since_boot() - since
        known = self.record.start if self.record.pid == child.pid else None
        launch = self._adopted_launch(generation, variables)
        instance = ProcessInstance(self._context, self.spec, launch, child, since)
        if self.spec.notifies:
            try:
                instance.notifications = NotifySocket(self._context.server_id, self.name, launch.uid)
            except OSError as error:
                log.error("%s: its socket for notifications cannot be bound: %s", self.name, error.strerror)
        self._on_spawned(instance, known or self._context.clock.now() - int(age * 1_000_000))
        log.info("%s: adopted (pid %d, %s)", self.name, child.pid, self.status.value)
        if self.status is Status.STARTING:
            self._on_executing(instance)
        elif self.status is Status.STOPPING:
            self._background(self._finish_stopping())
        else:
            self._watch(instance)

    def _adopted_launch(self, generation: int, variables: Mapping[str, str] | None) -> Launch:
        """As it would be launched now, for its probes; without its user and directory where those are gone."""
        try:
            return self._context.adopted_launch(self.spec, generation, variables)
        except Invalid:
            tag = self._context.tag(self.name, generation)
            return Launch(self.spec.argv, {**self._context.environment, TAG_VARIABLE: tag})

    async def _finish_stopping(self) -> None:
        async with self._queue:
            if self.instance is None or self.status is not Status.STOPPING:
                return
            limit = self.spec.max_runtime
            is_over = self.record.wanted and limit is not None and self.instance.uptime() >= limit * 1_000_000
            if is_over:
                self._abort_at_limit(self.instance)
            await self._end(self.record.wanted, next_request())
            if is_over:
                self._after_limit()

    def mark_unknown(self) -> None:
        """It ended while no server was watching it."""
        now = self._context.clock.now()
        self._become(Status.UNKNOWN, end=now, exit_code=None, uptime=max(0, now - (self.record.start or now)))
        if self.record.pid is not None:
            self._context.on_log_marks(log_sizes(self.log_files()), self.record, True)
        log.warning("%s: ended while no server was running (pid %s)", self.name, self.record.pid)

    def mark_unstored(self, generation: int) -> None:
        """An earlier run of the server started this generation and was killed before it could store the start."""
        if self.status not in IDLE:
            self.mark_unknown()
        self._begin_generation(generation)
        self.mark_unknown()

    def resume(self) -> None:
        """Schedules the restart that the last end, known or not, calls for."""
        if self.status in ENDED and not self.live and not self.waits_for_restart:
            self._restart_if_due()

    async def retire(self) -> str:
        """Stops the process and deletes its record, but not its history: it is no longer configured."""
        self.retired = True
        try:
            return await self.stop()
        finally:
            self.cancel_tasks()
            for path in self.spec.captured_files:  # they are kept for some time from now on
                with contextlib.suppress(OSError):
                    os.utime(path)
            if not self.live:
                self._context.event_writer.forget(self.name)
