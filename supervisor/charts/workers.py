"""Runs what reads callers' bytes in worker processes of their own: archives, values, indexes, releases.

Calls are counted to one caller each, share the time of their request and end with it.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import contextvars
import itertools
import pickle
import shutil
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, ParamSpec, Protocol, TypeVar

from attrs import define

from models.config.settings import WorkSettings
from models.errors import Unprocessable
from models.json_format import json_value
from supervisor.charts.helm.slots import caller
from supervisor.workers import answers, calls
from supervisor.workers.pool import WorkerPool
from supervisor.workers.process import Job

Arguments = ParamSpec("Arguments")
Result = TypeVar("Result")
Call = tuple[Callable[..., Any], Sequence[Any], Mapping[str, Any]]
"""A function with its arguments."""

MAX_INLINE_BYTES = 64 * 1024
"""Longer documents are read in a worker process."""
MAX_INLINE_YAML_BYTES = 4 * 1024
"""YAML costs far more than JSON."""
MAX_CPU_SECONDS = 20
MAX_FILE_BYTES = 256 * 1024**2
"""The largest file that a call may write, and its largest answer."""
_SMALL_CALL_COST = 16 * 1024
_ABOUT = "the data of the request"


class CallFolders(Protocol):
    """Where the files of calls are."""

    def place(self, name: str) -> Path: ...


@define
class _Allowance:
    """The seconds of work that one request has left."""

    seconds: float


_allowance: contextvars.ContextVar[_Allowance | None] = contextvars.ContextVar("allowance", default=None)


class Workers:
    def __init__(
        self, settings: WorkSettings | None = None, pool: WorkerPool | None = None, folders: CallFolders | None = None
    ) -> None:
        """Without a pool, as in tests of other things, functions are called where they are."""
        self.settings = settings or WorkSettings()
        self._pool = pool
        self._folders = folders
        self._numbers = itertools.count()

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
        """Calls a function of a module in a worker process, which ends if the caller is cancelled.

        The result has the type that the function declares. Raises what the function raises of `protocol.PROBLEMS`,
        `Unavailable` if the queue is full, `Unprocessable` and `TooLarge` for a limit, and `Failed` for a process that
        died.
        """
        return await self.run_within(MAX_CPU_SECONDS, function, *arguments, **options)

    async def run_if(
        self,
        is_large: bool,
        function: Callable[Arguments, Result],
        *arguments: Arguments.args,
        **options: Arguments.kwargs,
    ) -> Result:
        """Calls a function here if its input is small, else as `run`."""
        return await self.run(function, *arguments, **options) if is_large else function(*arguments, **options)

    async def run_within(
        self,
        cpu_seconds: int,
        function: Callable[Arguments, Result],
        *arguments: Arguments.args,
        **options: Arguments.kwargs,
    ) -> Result:
        """As `run`, with another limit of CPU time. One beyond 20 s holds instead of `svc.work.timeout`, too."""
        if self._pool is None or self._folders is None:
            return function(*arguments, **options)
        result: Result = await self._limited(
            self._pool, cpu_seconds, answers.result_type(function), (function, arguments, options)
        )
        return result

    async def _limited(self, pool: WorkerPool, cpu_seconds: int, expected: Any, call: Call) -> Any:
        """The result of a call, of the `expected` type, within the time of its request."""
        began, limit = time.monotonic(), f"{self.settings.timeout:g} s (svc.work.timeout)"
        allowance = _allowance.get() or _Allowance(self.settings.timeout)
        if cpu_seconds > MAX_CPU_SECONDS:
            allowance, limit = _Allowance(cpu_seconds), f"{cpu_seconds} s"
        timeout = asyncio.timeout(max(0, allowance.seconds))
        try:
            async with timeout:
                return await self._called(pool, cpu_seconds, expected, call)
        except TimeoutError:
            if not timeout.expired():
                raise
            raise Unprocessable(f"the work took longer than {limit}") from None
        finally:
            allowance.seconds -= time.monotonic() - began

    async def _called(self, pool: WorkerPool, cpu_seconds: int, expected: Any, call: Call) -> Any:
        """As `_limited`, without a limit of time. The folder of a call exists only while it has files."""
        assert self._folders is not None
        folder = self._folders.place(f"call-{next(self._numbers)}")
        packed = _packed(call)
        has_files = packed is None

        async def read(answer: Any) -> Any:
            nonlocal has_files
            has_files |= "whole" not in answer
            return await answers.read(expected, answer, folder / calls.ANSWER)

        given = {"folder": str(folder), "call": packed}
        job: Job[Any] = Job(
            "supervisor.workers.calls:perform", given, read, cpu_seconds, float("inf"), MAX_FILE_BYTES, _ABOUT
        )
        is_done = False
        try:
            if has_files:
                folder.mkdir()
                await asyncio.to_thread(_write, folder / calls.CALL, call)
            result = await pool.run(job, caller.get())
            is_done = True
            return result
        finally:
            if has_files or not is_done:
                shutil.rmtree(folder, ignore_errors=True)

    async def parse_json(self, text: bytes | str) -> Any:
        """Raises `Invalid`, and what `run` raises."""
        return json_value(text) if len(text) <= MAX_INLINE_BYTES else await self.run(json_value, text)

    async def end_calls(self) -> None:
        """Ends the calls that are under way or wait; they fail with `Unavailable`."""
        if self._pool is not None:
            await self._pool.end_jobs()

    async def close(self) -> None:
        """As `end_calls`, for all later calls too."""
        if self._pool is not None:
            await self._pool.close()


def _packed(call: Call) -> str | None:
    """A call for a message, as base64 of its pickle; None where it is written to a file."""
    if not calls.is_small(call[1:], _SMALL_CALL_COST):
        return None
    packed = base64.b64encode(pickle.dumps(call)).decode()
    return packed if len(packed) <= calls.MAX_WHOLE_BYTES else None


def _write(path: Path, call: Any) -> None:
    """Writes a pickle, in a thread: between its frames the loop runs."""
    with path.open("wb") as file:
        pickle.dump(call, file)
