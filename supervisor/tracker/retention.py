"""Deletes runs: those that have had their time, and those that somebody asks for; in pieces, so that nobody waits."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Any

import peewee

from models.config.settings import Tracker
from models.errors import Problem
from models.tracker import retention
from supervisor.clock import Clock

log = logging.getLogger("tracker")

_EVERY = 600.0
_AFTER_A_RUN = 2.0
_BREATH = 0.01
_DAY = 86_400 * 1_000_000

InStore = Callable[[Callable[[], Any]], Awaitable[Any]]


class Retention:
    """`retain-days` and `retain-runs`, looked at every ten minutes and soon after a run came in."""

    def __init__(self, settings: Tracker, clock: Clock, in_store: InStore) -> None:
        """`in_store` runs a piece of work on the tracker's store, in the worker."""
        self._settings = settings
        self._clock = clock
        self._in_store = in_store
        self._came = asyncio.Event()
        self._orphans = False
        """Whether tests may have lost their last run."""

    def notice(self, _: object) -> None:
        """A run came in: its branch may have more than it keeps."""
        if self._settings.retain_runs:
            self._came.set()

    async def watch(self) -> None:
        while True:
            try:
                await self._look()
            except (peewee.PeeweeException, Problem) as error:
                log.warning("old runs could not be deleted: %s", error)
            try:
                async with asyncio.timeout(_EVERY):
                    await self._came.wait()
                    await asyncio.sleep(_AFTER_A_RUN)  # many come at once
            except TimeoutError:
                pass
            self._came.clear()

    async def _look(self) -> None:
        days, runs, gate = self._settings.retain_days, self._settings.retain_runs, self._settings.quality_gate
        before = self._clock.settled() - days * _DAY if days else 0
        while (days or runs) and (ids := await self._in_store(lambda: retention.expired(before, runs, gate))):
            for id in ids:
                await self.delete(id)
            log.info("%d runs were deleted: they had had their time", len(ids))
        if self._orphans:
            self._orphans = False
            after: int | None = 0
            while after is not None:
                after = await self._in_store(lambda: retention.forget_tests(after or 0))  # noqa: B023 (awaited here)
                await asyncio.sleep(_BREATH)

    async def delete(self, id: int) -> None:
        """Deletes a run, if it is there."""
        while await self._in_store(lambda: retention.delete_some(id)):
            await asyncio.sleep(_BREATH)
        self._orphans = True
