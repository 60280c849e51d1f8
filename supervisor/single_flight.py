"""Coalesces concurrent calls with the same key; no caller gets a result whose work began before its call."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Hashable
from typing import Generic, TypeVar

Result = TypeVar("Result")


class SingleFlight(Generic[Result]):
    """Per key, one call runs and later callers share the next one: at most two calls for any number of callers."""

    def __init__(self) -> None:
        self._current: dict[Hashable, asyncio.Task[Result]] = {}
        self._next: dict[Hashable, asyncio.Task[Result]] = {}

    async def run(self, key: Hashable, work: Callable[[], Awaitable[Result]]) -> Result:
        """What `work` returns or raises. A caller that is cancelled does not cancel the others."""
        if key not in self._current:
            task = self._current[key] = self._begin(key, work, None)
        elif key not in self._next:
            task = self._next[key] = self._begin(key, work, self._current[key])
        else:
            task = self._next[key]
        return await asyncio.shield(task)

    def _begin(
        self, key: Hashable, work: Callable[[], Awaitable[Result]], before: asyncio.Task[Result] | None
    ) -> asyncio.Task[Result]:
        task = asyncio.get_running_loop().create_task(self._run(key, work, before), name=f"read {key}")
        task.add_done_callback(_retrieve_exception)
        return task

    async def _run(
        self, key: Hashable, work: Callable[[], Awaitable[Result]], before: asyncio.Task[Result] | None
    ) -> Result:
        if before is not None:
            await asyncio.wait({before})
        try:
            return await work()
        finally:  # without an await, so a caller that arrives now finds the next task
            following = self._next.pop(key, None)
            if following is None:
                del self._current[key]
            else:
                self._current[key] = following


def _retrieve_exception(task: asyncio.Task[Result]) -> None:
    """Marks the task's exception as retrieved, so that asyncio does not log it when every caller has left."""
    if not task.cancelled():
        task.exception()
