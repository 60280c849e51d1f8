"""The calls that change processes and have not ended. Where the server stops and leaves its processes, they end too."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterable, Iterator
from typing import Any

from models.errors import Unavailable

_END_SECONDS = 5.0


class OpenCalls:
    """Each call is a task; what a call has begun is cancelled with it."""

    def __init__(self) -> None:
        self._tasks: set[asyncio.Task[Any]] = set()
        self._ended: set[asyncio.Task[Any]] = set()
        self._is_closed = False

    @contextlib.contextmanager
    def open(self) -> Iterator[None]:
        """The present task runs a call. Raises `Unavailable` where the server stops meanwhile."""
        task = asyncio.current_task()
        if task is None or task in self._tasks:
            yield
            return
        if self._is_closed:
            raise stopping()
        self._tasks.add(task)
        try:
            yield
        except asyncio.CancelledError:
            if task in self._ended and task.uncancel() == 0:
                raise stopping() from None
            raise
        finally:
            self._tasks.discard(task)
            self._ended.discard(task)

    async def end(self, others: Iterable[asyncio.Future[Any]] = ()) -> None:
        """Cancels all calls, and other work that they wait for; returns when these have ended."""
        self._is_closed = True
        self._ended |= self._tasks
        work = {*self._tasks, *others} - {asyncio.current_task()}
        for task in work:
            task.cancel()
        if work:
            await asyncio.wait(work, timeout=_END_SECONDS)


def stopping() -> Unavailable:
    return Unavailable("the server is stopping")
