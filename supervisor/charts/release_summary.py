"""What releases there are in all of a cluster, as pages show it: at once.

What was learned a moment ago is shown as it is, unless somebody has changed something here since. Else the cluster is
asked, and waited for only so long where something is known: what it said last is shown, and soon shown right.
"""

from __future__ import annotations

import asyncio
import time
from collections import OrderedDict

from attrs import frozen

from models.charts.releases import Brief
from models.errors import Problem
from supervisor.charts.kube.config import Place
from supervisor.charts.release_reads import Reads
from supervisor.single_flight import SingleFlight

_CLUSTERS = 16
_FRESH = 1.0
_OLD = 10.0
_PATIENCE = 0.015
"""Seconds for which a page waits that has something to show."""


@frozen
class Known:
    """What a cluster said last. `at` is when it was asked, by the monotonic clock."""

    releases: list[Brief]
    problem: Problem | None
    at: float


class Overview:
    def __init__(self) -> None:
        self._known: OrderedDict[Place, Known] = OrderedDict()
        self._changed: dict[Place, float] = {}
        self._asking: SingleFlight[Known] = SingleFlight()
        self._tasks: set[asyncio.Task[Known]] = set()

    async def newest(self, reads: Reads) -> Known:
        """What there is now; or, of a slow cluster, a moment ago."""
        known, now = self._known.get(reads.place), time.monotonic()
        is_right = known is not None and known.problem is None and known.at >= self._changed.get(reads.place, 0)
        if known is not None and is_right and now - known.at < _FRESH:
            return known
        task = self._begin(reads)
        if known is not None and is_right and now - known.at < _OLD:
            await asyncio.wait({task}, timeout=_PATIENCE)
            return task.result() if task.done() else known
        return await task

    async def lately(self, reads: Reads) -> Known | None:
        """What there is, or was when the cluster last answered; `None` where it never has. Never waits long."""
        known = self._known.get(reads.place)
        if known is not None and time.monotonic() - known.at < _FRESH:
            return known
        task = self._begin(reads)
        await asyncio.wait({task}, timeout=_PATIENCE)
        return task.result() if task.done() else known

    def _begin(self, reads: Reads) -> asyncio.Task[Known]:
        task = asyncio.create_task(self._asking.ask(reads.place, lambda: self._ask(reads)))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    def forget(self, place: Place) -> None:
        """Something was changed: the next one who asks for what is newest waits for the cluster."""
        self._changed[place] = time.monotonic()
        if len(self._changed) > _CLUSTERS:
            self._changed.pop(next(iter(self._changed)))

    async def _ask(self, reads: Reads) -> Known:
        began = time.monotonic()
        try:
            found, problem = await reads.everywhere(), None
        except Problem as told:
            found, problem = [], told
        known = Known(found, problem, began)
        self._known[reads.place] = known
        self._known.move_to_end(reads.place)
        if len(self._known) > _CLUSTERS:
            self._known.popitem(last=False)
        return known
