"""Turns of the loop: what is done to hundreds of processes at once leaves room in between for everybody else.

An answer to a request takes a few turns of the loop. Were there a piece of group work in each of them, the answer would
wait for all of those pieces; so a piece is followed by as many turns as an answer takes.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

_TURNS = 8


def later(do: Callable[[], object], turns: int = _TURNS) -> None:
    """Calls `do` that many turns of the loop later."""
    loop = asyncio.get_running_loop()
    if turns > 1:
        loop.call_soon(later, do, turns - 1)
    else:
        loop.call_soon(do)


async def pause() -> None:
    """Returns some turns of the loop later."""
    for _ in range(_TURNS):
        await asyncio.sleep(0)


class Turns:
    """`async with` it: those inside go one after another, with turns for everybody else in between."""

    def __init__(self) -> None:
        self._lock = asyncio.Lock()

    async def __aenter__(self) -> None:
        await self._lock.acquire()

    async def __aexit__(self, *_: object) -> None:
        later(self._lock.release)
