"""Callers who ask for the same at the same time share an answer; nobody gets one that was begun before it asked."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Hashable
from typing import Generic, TypeVar

Result = TypeVar("Result")


class SingleFlight(Generic[Result]):
    """At any time one asks for a key, and whoever comes meanwhile waits for the next one: at most two for any crowd."""

    def __init__(self) -> None:
        self._now: dict[Hashable, asyncio.Task[Result]] = {}
        self._next: dict[Hashable, asyncio.Task[Result]] = {}

    async def ask(self, key: Hashable, work: Callable[[], Awaitable[Result]]) -> Result:
        """What `work` returns or raises. One caller who leaves takes nothing from the others."""
        if key not in self._now:
            task = self._now[key] = self._begin(key, work, None)
        elif key not in self._next:
            task = self._next[key] = self._begin(key, work, self._now[key])
        else:
            task = self._next[key]
        return await asyncio.shield(task)

    def _begin(
        self, key: Hashable, work: Callable[[], Awaitable[Result]], before: asyncio.Task[Result] | None
    ) -> asyncio.Task[Result]:
        task = asyncio.get_running_loop().create_task(self._run(key, work, before), name=f"read {key}")
        task.add_done_callback(_seen)
        return task

    async def _run(
        self, key: Hashable, work: Callable[[], Awaitable[Result]], before: asyncio.Task[Result] | None
    ) -> Result:
        if before is not None:
            await asyncio.wait({before})
        try:
            return await work()
        finally:  # at once: whoever comes before the next one has begun must find it
            following = self._next.pop(key, None)
            if following is None:
                del self._now[key]
            else:
                self._now[key] = following


def _seen(task: asyncio.Task[Result]) -> None:
    """Its failure is told to those who wait; where all have left, nobody has to be warned of it."""
    if not task.cancelled():
        task.exception()
