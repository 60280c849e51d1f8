"""A bounded queue of worker threads for work whose size a caller decides: inflating, parsing, encoding.

Logins and the database use the event loop's default executor, so a flood of such work cannot delay them.
"""

from __future__ import annotations

import asyncio
import contextvars
import json
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any, ParamSpec, TypeVar

from attrs import define

from models.config.settings import Work as Settings
from models.deadline import Deadline, applied
from models.errors import Unavailable, Unprocessable
from supervisor.charts.isolated import Isolation

Arguments = ParamSpec("Arguments")
Result = TypeVar("Result")
_MAX_JSON_ON_LOOP_BYTES = 64 * 1024
MAX_C_CALL_BYTES = 5 * 1024**2
"""A larger document is parsed in a child process: the C parser cannot be interrupted and holds the global lock."""


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

    @contextmanager
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
