"""Cooperative scheduling: work on hundreds of processes yields to the loop in between.

A response takes a few iterations of the loop. Were there a piece of group work in each of them, the response would wait
for all of those pieces; so a piece is followed by as many free iterations as a response takes.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

_FREE_ITERATIONS = 8


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


class YieldingLock:
    """A lock that leaves some iterations of the loop to others before the next holder has it."""

    def __init__(self) -> None:
        self._lock = asyncio.Lock()

    async def __aenter__(self) -> None:
        await self._lock.acquire()

    async def __aexit__(self, *_: object) -> None:
        call_later(self._lock.release)
