"""Background tasks and threads, and cooperative scheduling: work on many processes yields to the loop in between.

A response takes a few iterations of the loop. Were there a piece of group work in each of them, the response would wait
for all of those pieces; so a piece is followed by as many free iterations as a response takes.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from collections.abc import Awaitable, Callable, Coroutine
from concurrent.futures import Executor, Future
from functools import partial
from queue import SimpleQueue
from typing import Any, ParamSpec, TypeVar

import peewee

from models.errors import Problem

_Result = TypeVar("_Result")
_Parameters = ParamSpec("_Parameters")

_FREE_ITERATIONS = 8
_MIN_CLOSING_SECONDS = 1.0
RETRY_SECONDS = 5.0
_GATHER_SECONDS = 0.1
"""Events come in groups."""


def call_later(callback: Callable[[], object], iterations: int = _FREE_ITERATIONS) -> None:
    """Calls `callback` after that many iterations of the loop."""
    loop = asyncio.get_running_loop()
    if iterations > 1:
        loop.call_soon(call_later, callback, iterations - 1)
    else:
        loop.call_soon(callback)


async def yield_to_loop() -> None:
    """Returns after some iterations of the loop."""
    for _ in range(_FREE_ITERATIONS):
        await asyncio.sleep(0)


def retrieve_exception(done: asyncio.Future[Any]) -> None:
    """Retrieves an exception that nobody may wait for: asyncio would log it as an error."""
    if not done.cancelled():
        done.exception()


class YieldingLock:
    """A lock that leaves some iterations of the loop to others before the next holder has it."""

    def __init__(self) -> None:
        self._lock = asyncio.Lock()

    async def __aenter__(self) -> None:
        await self._lock.acquire()

    async def __aexit__(self, *_: object) -> None:
        call_later(self._lock.release)


async def watch_rounds(
    wake: asyncio.Event, run: Callable[[], Awaitable[float | None]], failed: Callable[[Exception, bool], None]
) -> None:
    """Runs a round now, after each `wake`, and after the seconds that the round before has returned; for ever.

    A round that fails is tried again; `failed` logs the error, and whether it is of the store or of another service.
    """
    wait: float | None = 0.0
    while True:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(wait):
                await wake.wait()
                await asyncio.sleep(_GATHER_SECONDS)
        wake.clear()
        try:
            wait = await run()
        except Exception as error:  # this task does not end
            is_known = isinstance(error, peewee.PeeweeException | Problem | OSError)
            failed(error, is_known)
            wait = RETRY_SECONDS


class BackgroundTasks:
    """Background tasks: referenced until they end; their exceptions are reported."""

    __slots__ = ("_report", "_tasks")

    def __init__(self, report: Callable[[str, BaseException], None]) -> None:
        """`report` is called with the name of a task and what it raised."""
        self._report = report
        self._tasks: set[asyncio.Task[None]] = set()

    def start(self, work: Coroutine[Any, Any, None], name: str | None = None) -> asyncio.Task[None]:
        task = asyncio.get_running_loop().create_task(work, name=name)
        self._tasks.add(task)
        task.add_done_callback(self._on_done)
        return task

    def cancel(self) -> None:
        """Cancels all that have not ended."""
        for task in list(self._tasks):
            task.cancel()

    def _on_done(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()):
            self._report(task.get_name(), error)


def seconds_until(end: float) -> float:
    """The seconds until a time of the monotonic clock, and at least one: something that is closed may need it."""
    return max(_MIN_CLOSING_SECONDS, end - time.monotonic())


class DaemonThreads(Executor):
    """At most `most` threads for what may hang, as files, names and mail servers: the program ends without them."""

    def __init__(self, most: int, name: str, begin: Callable[[], object] = lambda: None) -> None:
        """`begin` is called in each thread when it starts."""
        self._most, self._name, self._begin = most, name, begin
        self._jobs: SimpleQueue[tuple[Future[Any], Callable[[], Any]]] = SimpleQueue()
        self._lock = threading.Lock()
        self._threads = self._idle = 0

    def submit(
        self, fn: Callable[_Parameters, _Result], /, *args: _Parameters.args, **kwargs: _Parameters.kwargs
    ) -> Future[_Result]:
        future: Future[_Result] = Future()
        self._jobs.put((future, partial(fn, *args, **kwargs)))
        with self._lock:
            if self._idle:
                self._idle -= 1
            elif self._threads < self._most:
                self._threads += 1
                threading.Thread(target=self._work, name=self._name, daemon=True).start()
        return future

    def _work(self) -> None:
        self._begin()
        while True:
            future, work = self._jobs.get()
            report: Callable[[], object] = future.cancelled
            if future.set_running_or_notify_cancel():
                try:
                    report = partial(future.set_result, work())
                except BaseException as error:
                    report = partial(future.set_exception, error)
            with self._lock:
                self._idle += 1  # first: a caller that gets the result may submit the next work at once
            report()
            del future, work, report
