"""Keeps the summaries of tests current: counts results in batches, between which others write."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable

from models.tracker.insights import counting
from supervisor.scheduling import watch_rounds

log = logging.getLogger("tracker")

_PERIOD_SECONDS = 600.0
_MIN_PAUSE_SECONDS = 0.01


class Insights:
    """Counts what was stored or deleted shortly after it, for half of the time at most."""

    def __init__(self, base_branch: str, in_store: Callable[[Callable[[], bool]], Awaitable[bool]]) -> None:
        """`in_store` runs a piece of work on the tracker's store, in the worker."""
        self._base_branch = base_branch
        self._in_store = in_store
        self._changed = asyncio.Event()

    def notice(self, _: object = None) -> None:
        """Called for each stored upload and after a deletion."""
        self._changed.set()

    async def watch(self) -> None:
        """Counts for ever; begins with what was not counted when the server ended."""

        def failed(error: Exception, is_known: bool) -> None:
            log.warning("the summaries of tests could not be updated: %s", error, exc_info=not is_known)

        await watch_rounds(self._changed, self._count, failed)

    async def _count(self) -> float:
        """Returns the seconds until it looks again for what a node that was killed has stored."""
        time = asyncio.get_running_loop().time
        begun = time()
        while await self._in_store(lambda: counting.count_some(self._base_branch)):
            await asyncio.sleep(max(_MIN_PAUSE_SECONDS, time() - begun))
            begun = time()
        return _PERIOD_SECONDS
