"""One operating-system process of a supervised process: started, ready, probed, limited, ended."""

from __future__ import annotations

import asyncio
import contextlib
import enum
import logging
import os
import signal
from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

from attrs import evolve

from models.children import Exit
from models.config.redaction import shown_words
from models.errors import Failed
from models.supervision.process import ProcessKind, ProcessSpec
from models.times import SECOND
from supervisor.children.child import Child, Launch
from supervisor.children.orphans import ProcessTree
from supervisor.children.proc import ticks_per_second, tracer
from supervisor.processes.logs.files import tail
from supervisor.processes.process.context import SupervisionContext
from supervisor.processes.process.notify import SOCKET_VARIABLE, Notification, NotifySocket, adopted_address
from supervisor.scheduling import BackgroundTasks

log = logging.getLogger("supervision")

_MAX_STDERR_BYTES = 4096
_KILL_TIMEOUT_SECONDS = 10.0
_SWEEP_DELAY_SECONDS = 0.1
_MAX_ROUNDS_ABOVE_MEMORY = 2


class Fault(enum.Enum):
    """Why the server should end an instance."""

    NOT_READY = "not ready"
    WATCHDOG = "watchdog"
    MEMORY = "memory"
    RUNTIME = "runtime"


class Listener(Protocol):
    """What an instance reports to, until it has ended."""

    def on_running(self, instance: ProcessInstance) -> None:
        """It has started."""

    def on_health(self, instance: ProcessInstance, healthy: bool) -> None:
        """The result of its health check has changed."""

    def on_fault(self, instance: ProcessInstance, fault: Fault) -> None:
        """It has reached a limit of its spec."""

    def on_exit(self, instance: ProcessInstance, exit: Exit | None) -> None:
        """It has ended; `None` where its exit could not be read. This is the last report."""


class SpawnFailed(Exception):
    """The command could not be started; the message has the reason."""


class ProcessInstance:
    """One operating-system process from its spawn until it is reaped, with the spec that it was started with."""

    def __init__(
        self,
        context: SupervisionContext,
        listener: Listener,
        spec: ProcessSpec,
        launch: Launch,
        child: Child,
        notifications: NotifySocket | None,
        since: float,
    ) -> None:
        """`since` is when it was started, in seconds since boot."""
        self.spec = spec
        self.child = child
        self.since = since
        self.is_running = False
        """Whether it has started."""
        self.is_ending = False
        """Whether the server stops it."""
        self.has_ended = False
        self.killed = False
        self.is_aborted = False
        """Whether the server ends it for a fault: its status will be `aborted`."""
        self.status_text: str | None = None
        self.start_problem: str | None = None
        """Why the server ends it before it is running."""
        self._context = context
        self._listener = listener
        self._notifications = notifications
        keeps_launch = spec.health_check is not None or spec.has_hooks
        self.launch = launch if keeps_launch else None  # each is kilobytes of environment
        self._max_memory, self._max_runtime = spec.max_memory, spec.max_runtime
        self._rounds_above_memory = 0
        self._extended_until = 0.0  # in seconds since boot: its start and its stop may take so long by its own request
        self._pinged_at = 0.0  # when its watchdog began or was last reset, by the clock of the loop
        self._runtime_limit: asyncio.Task[None] | None = None
        self._tasks = BackgroundTasks(self._report_failure)

    @classmethod
    def spawn(
        cls, context: SupervisionContext, listener: Listener, spec: ProcessSpec, launch: Launch
    ) -> ProcessInstance:
        """Starts the command. Raises `SpawnFailed`."""
        notifications: NotifySocket | None = None
        try:
            if spec.notifies:
                notifications = NotifySocket(launch.environment[SOCKET_VARIABLE], spec.name, launch.uid)
            group = context.cgroups.prepare(spec.name)
            child = context.children.spawn(evolve(launch, control_group=group, is_adoptable=True))
        except (OSError, ValueError) as error:
            if notifications is not None:
                notifications.close()
            raise SpawnFailed(_spawn_problem(launch, error)) from None
        return cls(context, listener, spec, launch, child, notifications, context.clock.since_boot())

    @classmethod
    def adopted(
        cls, context: SupervisionContext, listener: Listener, spec: ProcessSpec, launch: Launch, child: Child
    ) -> ProcessInstance:
        """The instance of a child that an earlier run of the server started; it is not watched yet."""
        notifications: NotifySocket | None = None
        address = adopted_address(child.pid) or launch.environment.get(SOCKET_VARIABLE)
        if spec.notifies and address is not None:
            try:
                notifications = NotifySocket(address, spec.name, launch.uid)
            except OSError as error:
                log.error("%s: its socket for notifications cannot be bound: %s", spec.name, error.strerror)
        since = child.identity.start_ticks / ticks_per_second()
        return cls(context, listener, spec, launch, child, notifications, since)

    def uptime(self) -> int:
        """Microseconds since it was started."""
        return int((self._context.clock.since_boot() - self.since) * SECOND)

    @property
    def is_starting(self) -> bool:
        return not (self.is_running or self.is_ending or self.has_ended)

    @property
    def is_up(self) -> bool:
        """Whether it has started and is not stopped or ended."""
        return self.is_running and not (self.is_ending or self.has_ended)

    # What it reports

    def watch(self) -> None:
        """Reports its notifications, limits and exit from now on."""
        self._context.children.watch(self.child, self._on_exit)
        if self._notifications is not None:
            self._notifications.listen(self._on_notification)
        self._limit_runtime()

    def follow_start(self) -> None:
        """Reports `on_running` once it has started: at once, after `start-seconds`, or when it sends READY=1."""
        self._tasks.start(self._follow_launch()) if self.child.is_launching else self._on_executing()

    def resume(self) -> None:
        """It was adopted and is up: begins its watchdog and its health check."""
        self.is_running = True
        self._begin_checks()

    def take_over(self, spec: ProcessSpec) -> None:
        """A reload has changed the limits that apply without a restart."""
        self._max_memory, self._max_runtime = spec.max_memory, spec.max_runtime
        self._limit_runtime()

    def release(self) -> None:
        """Reports nothing more but its exit: the server stops and leaves it running."""
        self._tasks.cancel()

    def _on_exit(self, exit: Exit | None) -> None:
        if self._notifications is not None:
            self._notifications.read()  # what it sent just before its end
            self._notifications.close()
        self.has_ended = True
        self._tasks.cancel()
        self._listener.on_exit(self, exit)

    def _report_failure(self, _: str, error: BaseException) -> None:
        log.error("%s: %s", self.spec.name, error, exc_info=error)

    # Its start

    async def _follow_launch(self) -> None:
        if await self.child.executed():
            self._on_executing()

    def _on_executing(self) -> None:
        if self.spec.type is ProcessKind.NOTIFY:
            if self.spec.ready_timeout and self.is_starting:
                self._tasks.start(self._wait_for_ready())
        elif self.spec.seconds_until_running:
            self._tasks.start(self._wait_for_start_seconds())
        else:
            self._mark_running()

    async def _wait_for_start_seconds(self) -> None:
        await self._context.clock.sleep(max(0.0, self.spec.seconds_until_running - self.uptime() / SECOND))
        self._mark_running()

    async def _wait_for_ready(self) -> None:
        clock = self._context.clock
        end = clock.since_boot() + self.spec.ready_timeout
        while (left := max(end, self._extended_until) - clock.since_boot()) > 0:
            await clock.sleep(left)
        if self.is_starting and self.child.is_adopted:
            self._assume_ready(f"and did not send READY=1 within {self.spec.ready_timeout:g} s of its adoption")
        elif self.is_starting:
            self._listener.on_fault(self, Fault.NOT_READY)

    def _assume_ready(self, why: str) -> None:
        """An adopted instance may have sent READY=1 while no server ran: it is not ended for the lack of it."""
        name = self.spec.name
        message = f"{name} was adopted while it was starting {why}: it counts as running"
        self._context.notices.post("process.ready_assumed", name, message, pid=self.child.pid)
        self._mark_running()

    def _mark_running(self) -> None:
        if self.is_starting:
            self.is_running = True
            self._begin_checks()
            self._listener.on_running(self)

    # While it runs: notifications, watchdog, health, memory and runtime

    def _on_notification(self, message: Notification) -> None:
        if message.status is not None:
            self.status_text = message.status
        if message.extension is not None:
            self._extended_until = self._context.clock.since_boot() + message.extension
        if message.ready and self.spec.type is ProcessKind.NOTIFY:
            self._mark_running()
        if (
            message.watchdog == "1"
            and self.spec.type is ProcessKind.NOTIFY
            and self.is_starting
            and self.child.is_adopted
        ):
            self._assume_ready("and has sent WATCHDOG=1")
        if message.watchdog == "1":
            self._pinged_at = asyncio.get_running_loop().time()
        elif message.watchdog == "trigger" and self.spec.watchdog is not None:
            self._miss_watchdog(self.spec.watchdog)

    def _begin_checks(self) -> None:
        """Begins the watchdog and the health check."""
        if self.spec.watchdog is not None and self._notifications is not None:
            self._tasks.start(self._watch_pings(self.spec.watchdog))
        if self.launch is not None and self.spec.health_check is not None:
            probes = self._context.prober.watch(self.spec, self.launch, self._on_health)
            self._tasks.start(probes, f"probe {self.spec.name}")

    async def _watch_pings(self, watchdog: float) -> None:
        """Waits until WATCHDOG=1 was not sent in time. The clock stops while the machine sleeps."""
        now = asyncio.get_running_loop().time
        self._pinged_at = now()
        while (left := self._pinged_at + watchdog - now()) > 0:
            await asyncio.sleep(left)
        self._miss_watchdog(watchdog)

    def _miss_watchdog(self, watchdog: float) -> None:
        if self.is_up and not self.is_aborted:
            message = f"{self.spec.name} has missed its watchdog of {watchdog:g} s and is ended"
            self._context.notices.post("process.watchdog_missed", self.spec.name, message, pid=self.child.pid)
            self._listener.on_fault(self, Fault.WATCHDOG)

    def _on_health(self, healthy: bool) -> None:
        if self.is_up:
            self._listener.on_health(self, healthy)

    def on_memory(self, size: int) -> None:
        """Its tree has this much memory: the second time in a row above `max-memory` is a fault."""
        limit, name = self._max_memory, self.spec.name
        if limit is None or not self.is_up:
            return
        self._rounds_above_memory = self._rounds_above_memory + 1 if size > limit else 0
        if self._rounds_above_memory == _MAX_ROUNDS_ABOVE_MEMORY:
            message = f"{name} has {size} bytes of memory with its descendants, more than {limit}, and is ended"
            facts = {"memoryBytes": size, "maxMemory": int(limit), "pid": self.child.pid}
            self._context.notices.post("process.memory_exceeded", name, message, **facts)
            self._listener.on_fault(self, Fault.MEMORY)

    def _limit_runtime(self) -> None:
        if self._runtime_limit is not None:
            self._runtime_limit.cancel()
            self._runtime_limit = None
        if self._max_runtime is not None:
            self._runtime_limit = self._tasks.start(self._wait_for_limit(self._max_runtime))

    async def _wait_for_limit(self, limit: float) -> None:
        while not self.is_over_runtime():
            await self._context.clock.sleep(max(0.0, limit - self.uptime() / SECOND))
        self._listener.on_fault(self, Fault.RUNTIME)

    def is_over_runtime(self) -> bool:
        """Whether it has run for `max-runtime`."""
        return self._max_runtime is not None and self.uptime() >= self._max_runtime * SECOND

    def send(self, number: signal.Signals, to_group: bool) -> None:
        """Sends a signal to it, or to its whole process group. Raises `Failed`."""
        if to_group:
            self.child.send(number)
        else:
            self.child.send_to_main(number)
        whole = " and its group" if to_group else ""
        log.info("%s: %s sent to pid %d%s", self.spec.name, number.name, self.child.pid, whole)

    # Its end

    async def abort(self, number: signal.Signals) -> None:
        """Ends it for a fault: by a signal, and by SIGKILL after `stop-timeout`. It will be `aborted`."""
        self.is_aborted = True
        self.child.send(number)
        self.child.send(signal.SIGCONT)
        await asyncio.wait({self.child.exited}, timeout=self.spec.stop_timeout)
        if not self.child.exited.done():
            self.kill()

    async def end(self, end: float) -> None:
        """Sends the stop signal, SIGKILL at `end` (in seconds since boot), and ends what it left running.

        Raises `Failed` where it cannot be killed.
        """
        clock, child = self._context.clock, self.child
        with contextlib.closing(ProcessTree(child.pid)) as tree:
            child.send(self.spec.stop_signal)
            child.send(signal.SIGCONT)
            while not child.exited.done() and (left := max(end, self._extended_until) - clock.since_boot()) > 0:
                await asyncio.wait({child.exited}, timeout=left)
            if not child.exited.done():
                self.kill()
                await asyncio.wait({child.exited}, timeout=_KILL_TIMEOUT_SECONDS)
            if not child.exited.done():
                debugger = tracer(child.pid)
                why = f"the debugger pid {debugger} holds it" if debugger else "is still running"
                raise Failed(f"{self.spec.name} (pid {child.pid}) was killed but {why}", "STOP_FAILED")
            await self.clear(max(end - clock.since_boot(), 0), tree)

    async def end_unready(self) -> None:
        """Ends it, unless it has started meanwhile. Raises `Failed`."""
        if self.is_starting:
            self.start_problem = f"it did not send READY=1 within {self.spec.ready_timeout:g} s"
            await self.end(self._context.clock.since_boot() + self.spec.stop_timeout)

    def kill(self) -> None:
        """Sends SIGKILL to it and to everything in its control group. Raises `Failed`, `Unavailable`."""
        self.child.check_held()
        self.killed = True
        self._context.cgroups.kill(self.spec.name)
        self.child.send(signal.SIGKILL)

    async def clear(self, timeout: float, tree: ProcessTree | None = None) -> bool:
        """Ends what it left running, with SIGKILL after `timeout` seconds; returns whether it left anything."""
        return await self._context.orphans.clear(self.child, self.spec.name, self.spec.stop_signal, timeout, tree)

    async def sweep(self, generation: int) -> None:
        """Ends, a moment later, what has left its control group."""
        await self._context.clock.sleep(_SWEEP_DELAY_SECONDS)
        await self._context.orphans.sweep(self.spec.name, generation, self.spec.stop_timeout)

    def left_nothing(self) -> bool:
        """Whether its control group shows that it left nothing running."""
        return self.child.is_grouped and not self._context.orphans.are_likely(self.child, self.spec.name)

    # How it ended

    def did_start(self, exit: Exit) -> bool:
        """Whether an instance that exited while it was starting counts as started: it was too short to be observed."""
        must_wait = self.spec.seconds_until_running or self.spec.type is ProcessKind.NOTIFY
        return not must_wait and not self.was_not_executed(exit)

    def was_not_executed(self, exit: Exit) -> bool:
        """Whether it ended before it executed the command."""
        return self.child.is_launching and exit.exit_code != 0

    def start_failure(self, exit: Exit) -> str:
        """Why it failed to start: how it ended, and the end of its standard error where that is a file of its own."""
        missed = (
            "it sent READY=1"
            if self.spec.type is ProcessKind.NOTIFY
            else f"it had run for {self.spec.start_seconds:g} s"
        )
        reason = self.start_problem or f"it ended with {exit} before {missed}"
        if self.was_not_executed(exit):
            problem = self.child.launch_problem
            reason = f"{' '.join(shown_words(self.spec.argv))!r} could not be executed ({exit})"
            reason += "" if problem is None else f": {_reason(self.spec.argv, problem)}"
        file = Path(self.spec.stderr_file or "")
        try:
            text = tail(file, 100, _MAX_STDERR_BYTES)[0] if self.spec.stderr_file else b""
        except OSError:
            text = b""
        return f"{reason}\n{text[-_MAX_STDERR_BYTES:].decode('utf-8', 'replace')}".rstrip()


def _spawn_problem(launch: Launch, error: OSError | ValueError) -> str:
    where, reason = launch.directory or _working_directory(), _reason(launch.argv, error)
    return f"{' '.join(shown_words(launch.argv))!r} in directory {where} could not be started: {reason}"


def _reason(argv: Sequence[str], error: OSError | ValueError) -> str:
    """Why a command could not be executed, with the file that caused it where that is another one."""
    if isinstance(error, ValueError):
        return str(error)
    file = error.filename
    return f"{error.strerror} ({file})" if file and file != argv[0] else str(error.strerror)


def _working_directory() -> str:
    try:
        return os.getcwd()  # noqa: PTH109 (Path.cwd is no better, and this is the one that may fail)
    except OSError:
        return "that no longer exists"
