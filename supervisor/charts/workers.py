"""Worker threads and child processes for work whose size a caller decides: inflating, parsing, encoding.

The queue of threads is bounded. Logins and the database use the event loop's default executor, so a flood of such work
cannot delay them.
"""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import json
import os
import pickle
import signal
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any, ParamSpec, TypeVar

from attrs import define

from models.config.settings import Work as Settings
from models.deadline import Deadline, applied, checkpoint
from models.errors import Unavailable, Unprocessable
from supervisor.charts.helm.runner import PROCESS_NAME, memory_file
from supervisor.charts.isolated_child import FROZEN_ARGUMENT, MAX_MEMORY_BYTES, MAX_SECONDS
from supervisor.children.child import Child, Children, Launch
from supervisor.children.tags import TAG_VARIABLE
from supervisor.workers.process import interpreter_environment

Arguments = ParamSpec("Arguments")
Result = TypeVar("Result")
_MAX_JSON_ON_LOOP_BYTES = 64 * 1024
MAX_C_CALL_BYTES = 5 * 1024**2
"""A larger document is parsed in a child process: the C parser cannot be interrupted and holds the global lock."""
_POLL_SECONDS = 0.05
_KILL_WAIT_SECONDS = 20.0
_PROGRAM = "import sys; sys.path.insert(0, sys.argv.pop()); from supervisor.charts.isolated_child import serve; serve()"


class Isolation:
    """Calls functions in child processes, for work that one call into C does and no checkpoint can end.

    A parser written in C holds Python's global lock to its end, so a large document would stall the event loop from a
    worker thread too. The child runs a function of the product and can be killed.
    """

    def __init__(self, children: Children, instance: str, environ: Mapping[str, str]) -> None:
        self._children = children
        self._loop = asyncio.get_running_loop()
        self._environment = interpreter_environment(environ)
        self._environment[TAG_VARIABLE] = f"{instance}:0:{PROCESS_NAME}"

    def call(self, function: Callable[..., Any], *arguments: Any, **options: Any) -> Any:
        """Calls a function of a module in a child process; for worker threads, whose deadline applies.

        Raises what the function raises, `Unprocessable` beyond 512 MB or 60 s, and `Unavailable` without a process.
        """
        request = pickle.dumps((function, arguments, options))
        running = asyncio.run_coroutine_threadsafe(self._run(request), self._loop)
        try:
            while True:
                with contextlib.suppress(TimeoutError):
                    has_returned, result = pickle.loads(running.result(_POLL_SECONDS))  # noqa: S301 (written by serve)
                    break
                checkpoint()
        except BaseException:
            running.cancel()
            raise
        if has_returned:
            return result
        raise result

    async def _run(self, request: bytes) -> bytes:
        """The child's answer. A child that does not answer is killed."""
        with contextlib.ExitStack() as files:
            given, answered = memory_file("request", files, request), memory_file("answer", files)
            launch = Launch(_command(), self._environment, "/", stdin=given, stdout=answered, stderr=answered)
            try:
                child = self._children.spawn(launch)
            except OSError as error:
                raise Unavailable(f"no process can be started: {error.strerror}") from None
            self._children.watch(child, lambda exit: None)
            try:
                await asyncio.wait({child.exited}, timeout=MAX_SECONDS)
            finally:
                await asyncio.shield(_kill(child))
            exit = child.exited.result()
            if exit is None or exit.exit_code != 0:
                raise Unprocessable(f"the work needs more than {MAX_MEMORY_BYTES} bytes or {MAX_SECONDS} s")
            with os.fdopen(os.dup(answered), "rb") as file:
                file.seek(0)
                return file.read()


async def _kill(child: Child) -> None:
    if not child.exited.done():
        child.send(signal.SIGKILL)
        await asyncio.wait({child.exited}, timeout=_KILL_WAIT_SECONDS)


def _command() -> list[str]:
    if getattr(sys, "frozen", False):
        return [sys.executable, FROZEN_ARGUMENT]
    return [sys.executable, "-c", _PROGRAM, str(Path(__file__).resolve().parents[2])]


@define
class _Allowance:
    """The seconds of work that one request has left."""

    seconds: float


_allowance: contextvars.ContextVar[_Allowance | None] = contextvars.ContextVar("allowance", default=None)


class Workers:
    def __init__(self, settings: Settings | None = None, isolation: Isolation | None = None) -> None:
        """Without `isolation`, as in tests of other things, no child process is used."""
        self.settings = settings or Settings()
        self._isolation = isolation
        self._executor = ThreadPoolExecutor(self.settings.threads, thread_name_prefix="work")
        self._pending: dict[Future[Any], Deadline] = {}

    @contextlib.contextmanager
    def one_request(self) -> Iterator[None]:
        """All work within shares one `svc.work.timeout`; time between the steps does not count."""
        token = _allowance.set(_Allowance(self.settings.timeout))
        try:
            yield
        finally:
            _allowance.reset(token)

    async def run(
        self, function: Callable[Arguments, Result], *arguments: Arguments.args, **options: Arguments.kwargs
    ) -> Result:
        """Runs a function in a worker thread. If the caller is cancelled, the work stops at its next checkpoint.

        Raises what the function raises, `Unavailable` if the queue is full, `Unprocessable` if it takes too long.
        """
        if len(self._pending) >= self.settings.threads + self.settings.queue:
            raise Unavailable("too much work is waiting (svc.work.queue)")
        allowance = _allowance.get() or _Allowance(self.settings.timeout)
        reason = f"the work took longer than {self.settings.timeout:g} s (svc.work.timeout)"
        deadline, began = Deadline(allowance.seconds, reason), time.monotonic()
        future = self._executor.submit(_run, deadline, function, arguments, options)
        self._pending[future] = deadline
        loop = asyncio.get_running_loop()
        future.add_done_callback(lambda done: _call_soon(loop, self._pending.pop, done))
        timeout = asyncio.timeout(max(0, allowance.seconds))
        try:
            async with timeout:
                return await asyncio.wrap_future(future)
        except TimeoutError:
            if not timeout.expired():
                raise
            raise Unprocessable(reason) from None
        finally:
            deadline.cancel()
            allowance.seconds -= time.monotonic() - began

    def isolated(
        self, function: Callable[Arguments, Result], *arguments: Arguments.args, **options: Arguments.kwargs
    ) -> Result:
        """Calls a function of a module in a child process that is killed in time; for functions that `run` runs.

        The result should be small: it is unpickled here. Raises what the function raises, `Unprocessable` if it needs
        too much memory or time.
        """
        if self._isolation is None:
            return function(*arguments, **options)
        result: Result = self._isolation.call(function, *arguments, **options)
        return result

    async def parse_json(self, text: bytes | str) -> Any:
        """Raises `ValueError`, `RecursionError`, and what `run` and `isolated` raise."""
        if len(text) <= _MAX_JSON_ON_LOOP_BYTES:
            return json.loads(text)
        if len(text) <= MAX_C_CALL_BYTES:
            return await self.run(json.loads, text)
        return await self.run(self.isolated, json.loads, text)

    def close(self) -> None:
        """Cancels waiting work; running work stops at its next checkpoint."""
        for deadline in self._pending.values():
            deadline.cancel()
        self._executor.shutdown(wait=False, cancel_futures=True)


def _run(deadline: Deadline, function: Callable[..., Result], arguments: Any, options: Any) -> Result:
    with applied(deadline):
        deadline.check()
        return function(*arguments, **options)


def _call_soon(
    loop: asyncio.AbstractEventLoop, function: Callable[[Future[Any], None], Any], done: Future[Any]
) -> None:
    if not loop.is_closed():
        loop.call_soon_threadsafe(function, done, None)
