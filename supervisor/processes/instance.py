"""One start of a process: the attempt, from the request to its outcome, and the instance that it creates."""

from __future__ import annotations

import asyncio
import contextlib
import enum
import signal
from collections.abc import Awaitable, Callable, Coroutine
from itertools import count
from pathlib import Path
from typing import Any, TypeVar

from models.children import Exit
from models.config.redaction import shown_words
from models.errors import Failed
from models.supervision.process import Kind, ProcessSpec
from models.supervision.runs import Cause
from supervisor.children.child import Child, Launch
from supervisor.children.orphans import ProcessTree
from supervisor.children.proc import tracer
from supervisor.processes.context import SupervisionContext
from supervisor.processes.log_files import tail
from supervisor.processes.notify import NotifySocket
from supervisor.scheduling import retrieve_exception

_MAX_STDERR_BYTES = 4096
_KILL_TIMEOUT_SECONDS = 10.0
_SWEEP_DELAY_SECONDS = 0.1

Result = TypeVar("Result")

_requests = count(1)


def next_request() -> int:
    """The number of a request. A stop calls off the starts of all requests that came before it."""
    return next(_requests)


class Phase(enum.Enum):
    """The phase that an attempt waits for."""

    QUEUE = "queue"
    DEPENDENCY = "dependency"
    START_DELAY = "start-delay"
    START_PRE = "start-pre"
    SPAWN = "spawn"
    READY = "ready"
    DONE = "done"


class StartAttempt:
    """Created when a start is requested. It ends as running, as failed, or called off by a stop."""

    def __init__(self, name: str, request: int, cause: Cause) -> None:
        loop = asyncio.get_running_loop()
        self.request = request
        self.cause = cause
        self.phase = Phase.QUEUE
        self.spawned: asyncio.Task[None] | None = None
        """The spawn. It is completed even where the caller is cancelled: there is never half a start."""
        self.outcome: asyncio.Future[None] = loop.create_future()
        """Done when the process is running; holds `Failed` where it is not."""
        self.outcome.add_done_callback(retrieve_exception)  # the caller may have left
        self._name = name
        self._called_off: asyncio.Future[None] = loop.create_future()

    @property
    def is_called_off(self) -> bool:
        return self._called_off.done()

    def call_off(self) -> None:
        """A stop was requested after this start."""
        if not self._called_off.done():
            self._called_off.set_result(None)

    def check(self) -> None:
        """Raises `Failed` where the attempt was called off."""
        if self.is_called_off:
            raise stopped_before_start(self._name)

    async def unless_called_off(self, work: Awaitable[Result]) -> Result:
        """Returns the result of `work`; cancels it, and raises `Failed`, where the attempt is called off first."""
        task: asyncio.Future[Any] = asyncio.ensure_future(work)
        task.add_done_callback(retrieve_exception)  # it may fail although it is cancelled
        try:
            await asyncio.wait({task, self._called_off}, return_when=asyncio.FIRST_COMPLETED)
            self.check()
            result: Result = task.result()
            return result
        finally:
            task.cancel()

    def succeed(self) -> None:
        self.phase = Phase.DONE
        if not self.outcome.done():
            self.outcome.set_result(None)

    def fail(self, message: str) -> None:
        self.phase = Phase.DONE
        if not self.outcome.done():
            self.outcome.set_exception(Failed(message, "START_FAILED"))


class StartCalledOff(Failed):
    """A stop overtook the start: that is no failure of the process, so its policy does not retry it."""


def stopped_before_start(name: str) -> StartCalledOff:
    return StartCalledOff(f"{name} was stopped before it started", "START_FAILED")


class ProcessInstance:
    """One operating-system process from its spawn until it is reaped, with the spec that it was started with."""

    def __init__(
        self, context: SupervisionContext, spec: ProcessSpec, launch: Launch, child: Child, since: float
    ) -> None:
        """`since` is when it was started, in seconds since boot."""
        self.spec = spec
        self.child = child
        self.killed = False
        self.rounds_above_memory = 0
        """How often in a row it was seen above `max-memory`."""
        self.is_aborted = False
        """Whether the server ends it for a fault: its status will be `aborted`."""
        self.notifications: NotifySocket | None = None
        self.status_text: str | None = None
        self.extended_until = 0.0
        """Until when (in seconds since boot) its start and its stop may take by its own request."""
        self.pinged_at = 0.0
        """When its watchdog began or was last reset, by the clock of the loop."""
        self.start_problem: str | None = None
        """Why the server ends it before it is running."""
        self._context = context
        keeps_launch = spec.health_check is not None or child.is_chained or spec.has_hooks
        self.launch = launch if keeps_launch else None  # each is kilobytes of environment
        self._since = since
        self._tasks: list[asyncio.Task[None]] = []

    def uptime(self) -> int:
        """Microseconds since it was started."""
        return int((self._context.clock.since_boot() - self._since) * 1_000_000)

    async def survived(self) -> None:
        """Returns when it has run for `start-seconds`."""
        await self._context.clock.sleep(max(0.0, self.spec.seconds_until_running - self.uptime() / 1_000_000))

    def probe(self, on_change: Callable[[bool], None]) -> None:
        """Starts the health check; `on_change` is called with True or False when the result changes."""
        if self.launch is not None and self.spec.health_check is not None:
            watch = self._context.prober.watch(self.spec, self.launch, on_change)
            self._tasks.append(asyncio.get_running_loop().create_task(watch, name=f"probe {self.spec.name}"))

    def keep(self, work: Coroutine[Any, Any, None]) -> None:
        """Runs background work until the instance ends."""
        self._tasks.append(asyncio.get_running_loop().create_task(work))

    def stop_tasks(self) -> None:
        """Ends its probes and its other background work."""
        if self.notifications is not None:
            self.notifications.close()
        for task in self._tasks:
            task.cancel()

    # Its end

    async def end(self, end: float) -> None:
        """Sends the stop signal, SIGKILL at `end` (in seconds since boot), and ends what it left running.

        Raises `Failed` where it cannot be killed.
        """
        clock, child = self._context.clock, self.child
        with contextlib.closing(ProcessTree(child.pid)) as tree:
            child.send(self.spec.stop_signal)
            child.send(signal.SIGCONT)
            while not child.exited.done() and (left := max(end, self.extended_until) - clock.since_boot()) > 0:
                await asyncio.wait({child.exited}, timeout=left)
            if not child.exited.done():
                self.kill()
                await asyncio.wait({child.exited}, timeout=_KILL_TIMEOUT_SECONDS)
            if not child.exited.done():
                debugger = tracer(child.pid)
                why = f"the debugger pid {debugger} holds it" if debugger else "is still running"
                raise Failed(f"{self.spec.name} (pid {child.pid}) was killed but {why}", "STOP_FAILED")
            await self.clear(max(end - clock.since_boot(), 0), tree)

    def kill(self) -> None:
        """Sends SIGKILL to it and to everything in its control group."""
        self.killed = True
        self._context.cgroups.kill(self.spec.name)
        self.child.send(signal.SIGKILL)

    async def clear(self, timeout: float, tree: ProcessTree | None = None) -> bool:
        """Ends what it left running, with SIGKILL after `timeout` seconds; returns whether it left anything."""
        return await self._context.orphans.clear(self.child, self.spec.name, self.spec.stop_signal, timeout, tree)

    async def sweep(self, generation: int) -> None:
        """Ends, a moment later, what it had started before it was in its control group."""
        await self._context.clock.sleep(_SWEEP_DELAY_SECONDS)
        await self._context.orphans.sweep(self.spec.name, generation, self.spec.stop_timeout)

    def left_nothing(self) -> bool:
        """Whether its control group shows that it left nothing running."""
        return self.child.is_grouped and not self._context.orphans.are_likely(self.child, self.spec.name)

    # How it ended

    def did_start(self, exit: Exit) -> bool:
        """Whether an instance that exited while it was starting counts as started: it was too short to be observed."""
        must_wait = self.spec.seconds_until_running or self.spec.type is Kind.NOTIFY
        return not must_wait and not self._was_not_executed(exit)

    def _was_not_executed(self, exit: Exit) -> bool:
        """Whether the chain (`prlimit`, `setpriv`) failed before it executed the command."""
        return self.child.is_chained and exit.exit_code != 0

    async def chain_error(self, exit: Exit) -> str:
        """Why the chain failed, where its standard error is not in a file; else empty."""
        if self.launch is None or self.spec.stderr_file or not self._was_not_executed(exit):
            return ""
        return await self._context.children.chain_error(self.launch)

    def start_failure(self, exit: Exit) -> str:
        """Why it failed to start: how it ended, and the end of its standard error where that is a file of its own."""
        missed = "it sent READY=1" if self.spec.type is Kind.NOTIFY else f"it had run for {self.spec.start_seconds:g} s"
        reason = self.start_problem or f"it ended with {exit} before {missed}"
        if self._was_not_executed(exit):
            reason = f"{' '.join(shown_words(self.spec.argv))!r} could not be executed ({exit})"
        file = Path(self.spec.stderr_file or "")
        try:
            text = tail(file, 100, _MAX_STDERR_BYTES)[0] if file.is_file() else b""  # /dev/stderr cannot be read again
        except OSError:
            text = b""
        return f"{reason}\n{text[-_MAX_STDERR_BYTES:].decode('utf-8', 'replace')}".rstrip()
