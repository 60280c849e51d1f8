"""Threads for log files, whose file system may not answer: what hangs holds no thread of others, and no stop."""

from __future__ import annotations

import asyncio
import errno
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any, TypeVar

from attrs import define, frozen

from supervisor.scheduling import DaemonThreads, retrieve_exception

_Result = TypeVar("_Result")

MAX_THREADS = 64
ANSWER_SECONDS = 5.0


@frozen(eq=False)
class _Work:
    done: asyncio.Future[Any]
    ends_at: float
    """When its file system should have answered, in the loop's time."""


@define
class _Pass:
    """The use of one file after the other, in a thread."""

    path: str = ""
    is_over: bool = False


class LogThreads:
    """Runs what uses log files: one piece of work at a time for each file, so that a file holds one thread at most."""

    def __init__(self) -> None:
        self.executor = DaemonThreads(MAX_THREADS, "logs")
        self._running: dict[str, _Work] = {}

    async def run(
        self, path: str, work: Callable[[], _Result], give_up: Callable[[_Result], object] | None = None
    ) -> _Result:
        """Returns what `work` returns, and raises what it raises. `give_up` gets what comes too late, in a thread.

        Raises `OSError` (ETIMEDOUT) where the file system does not answer within five seconds, from then on at once
        until it does, and where so many files hang that no thread is free. Work ends also when its caller has left.
        """
        loop = asyncio.get_running_loop()
        while (running := self._running.get(path)) is not None:
            await self._answer(running)
        if sum(one.ends_at <= loop.time() for one in self._running.values()) >= MAX_THREADS:
            raise OSError(errno.ETIMEDOUT, f"{MAX_THREADS} log files do not answer")
        done = loop.run_in_executor(self.executor, work)
        self._note(path, one := _Work(done, loop.time() + ANSWER_SECONDS))
        try:
            await self._answer(one)
        except BaseException:
            if give_up is not None:
                done.add_done_callback(partial(self._give_up, give_up))
            raise
        return done.result()

    def _give_up(self, give_up: Callable[[_Result], object], done: asyncio.Future[_Result]) -> None:
        if not done.cancelled() and done.exception() is None:
            self.executor.submit(give_up, done.result())

    async def _answer(self, one: _Work) -> None:
        """Waits for work. Raises `OSError`."""
        seconds = max(0.0, one.ends_at - asyncio.get_running_loop().time())
        if not (await asyncio.wait({one.done}, timeout=seconds))[0]:
            raise OSError(errno.ETIMEDOUT, "the file system does not answer")

    def _note(self, path: str, one: _Work) -> None:
        def forget(done: asyncio.Future[Any]) -> None:
            retrieve_exception(done)
            if self._running.get(path) is one:
                del self._running[path]

        self._running[path] = one
        one.done.add_done_callback(forget)

    def hangs(self, path: str) -> bool:
        """Whether the file system of a file has not answered in time, and does not yet."""
        one = self._running.get(path)
        return one is not None and one.ends_at <= asyncio.get_running_loop().time()

    async def run_each(self, paths: Iterable[str], work: Callable[[str], _Result]) -> dict[str, _Result]:
        """What `work` returns for each file whose file system answers, in one thread, and one more for each that hangs.

        Raises what `work` raises.
        """
        left, found = list(paths), dict[str, _Result]()
        loop = asyncio.get_running_loop()
        while left := [path for path in left if path not in found and not self.hangs(path)]:
            one = _Pass()
            done = loop.run_in_executor(self.executor, _run_through, one, left, work, found)
            done.add_done_callback(retrieve_exception)
            before = None
            while not done.done() and one.path != before:  # many files may take longer than one that answers
                before = one.path
                await asyncio.wait({done}, timeout=ANSWER_SECONDS)
            if done.done():
                done.result()
                break
            one.is_over = True
            if not one.path:
                break  # no thread is free
            self._note(one.path, _Work(done, loop.time()))
        return dict(found)


def _run_through(one: _Pass, paths: Iterable[str], work: Callable[[str], _Result], found: dict[str, _Result]) -> None:
    for path in paths:
        if one.is_over:
            return
        one.path = path
        found[path] = work(path)
