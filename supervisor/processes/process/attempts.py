"""The starts of a process: each attempt from the request to its outcome, and the stops that call attempts off."""

from __future__ import annotations

import asyncio
import contextlib
import enum
from collections.abc import Awaitable, Callable, Iterator
from itertools import count
from typing import Any, TypeVar

from models.errors import Conflict, Failed, Problem
from models.supervision.process import Status
from models.supervision.runs import Cause
from supervisor.scheduling import retrieve_exception

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
        """Done when the process is running; holds `Failed` or `Conflict` where it is not."""
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

    async def dependency_problem(self, start: Awaitable[None]) -> Problem | None:
        """Waits for `start`, the start of the dependencies; returns why they are not up.

        Raises `Failed` where the attempt is called off.
        """
        self.phase = Phase.DEPENDENCY
        try:
            await self.unless_called_off(start)
        except StartCalledOff:
            raise
        except Problem as problem:
            self.check()
            return problem
        self.phase = Phase.QUEUE
        return None

    async def delay(self, over: Awaitable[None], started: Awaitable[None]) -> None:
        """Waits for `start-delay`; less if the process is started by name meanwhile. Raises `Failed` if called off."""
        self.phase = Phase.START_DELAY
        tasks = {asyncio.ensure_future(over), asyncio.ensure_future(started)}
        try:
            await self.unless_called_off(asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED))
        finally:
            for task in tasks:
                task.cancel()
        self.phase = Phase.QUEUE

    def succeed(self) -> None:
        self.phase = Phase.DONE
        if not self.outcome.done():
            self.outcome.set_result(None)

    def fail(self, message: str) -> None:
        self._end_with(Failed(message, "START_FAILED"))

    def stop(self) -> None:
        """A stop or restart ends the process while it is starting: the state has changed, nothing has failed."""
        self._end_with(Conflict(f"{self._name} was stopped while it was starting", "START_FAILED"))

    def give_up(self, stopped: StartCalledOff) -> None:
        """A stop overtook the start."""
        self._end_with(stopped)

    def _end_with(self, problem: Problem) -> None:
        self.phase = Phase.DONE
        if not self.outcome.done():
            self.outcome.set_exception(problem)


class StartCalledOff(Failed):
    """A stop overtook the start: that is no failure of the process, so its policy does not retry it."""


def stopped_before_start(name: str) -> StartCalledOff:
    return StartCalledOff(f"{name} was stopped before it started", "START_FAILED")


class StartAttempts:
    """The starts of one process that were requested and have not ended."""

    def __init__(self, name: str, on_change: Callable[[], None]) -> None:
        """`on_change` is called when one has ended or was called off."""
        self.latest: StartAttempt | None = None
        """The attempt that began last. A start that failed before there was anything to spawn has none."""
        self._name = name
        self._on_change = on_change
        self._open: list[StartAttempt] = []
        self._announced = 0
        self._called_off_before = 0

    @property
    def is_pending(self) -> bool:
        """Whether a start was requested, or announced by a group operation, and has not ended."""
        return bool(self._open) or self._announced > 0

    def begun_since(self, request: int) -> StartAttempt | None:
        """The attempt that began for `request` or a later one, if there is one."""
        return self.latest if self.latest is not None and self.latest.request >= request else None

    def waiting_for(self, status: Status, waits_for_restart: bool, live: bool) -> str | None:
        """What a process with this status waits for before its spawn: a value of `Phase`, `restart` or nothing."""
        if status is Status.STARTING and self.latest is not None and self.latest.phase is Phase.START_PRE:
            return Phase.START_PRE.value
        for phase in (Phase.DEPENDENCY, Phase.START_DELAY):
            if any(attempt.phase is phase for attempt in self._open):
                return str(phase.value)
        if waits_for_restart:
            return "restart"
        return Phase.QUEUE.value if self.is_pending and not live else None

    def is_called_off(self, request: int) -> bool:
        """Whether a stop was requested after this request."""
        return request < self._called_off_before

    def call_off(self, request: int) -> None:
        """A stop: calls off the starts that were requested before `request`."""
        self._called_off_before = max(self._called_off_before, request)
        for attempt in self._open:
            if attempt.request < request:
                attempt.call_off()
        self._on_change()

    @contextlib.contextmanager
    def attempting(self, request: int | None, cause: Cause) -> Iterator[StartAttempt]:
        """One attempt, for a new request where it is None. Raises `Failed` where a stop was requested since."""
        attempt = StartAttempt(self._name, next_request() if request is None else request, cause)
        if self.is_called_off(attempt.request):
            attempt.call_off()
        attempt.check()
        self._open.append(attempt)
        try:
            yield attempt
        finally:
            self._open.remove(attempt)
            self._on_change()

    @contextlib.contextmanager
    def announced(self) -> Iterator[None]:
        """A group operation is going to start this process."""
        self._announced += 1
        try:
            yield
        finally:
            self._announced -= 1
            self._on_change()
