"""How much each process takes of the machine, looked up when somebody asks, off the loop."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable

import psutil
from attrs import frozen

from supervisor.process import Process


@frozen
class Usage:
    """Of one process alone, without what it has started. `cpu` is percent of one processor since the last look, None
    at the first; `memory` is its resident set in bytes."""

    cpu: float | None
    memory: int


class Meter:
    def __init__(self) -> None:
        self._known: dict[int, psutil.Process] = {}

    async def read(self, processes: Iterable[Process]) -> dict[str, Usage]:
        """The usage of all that are live, by name; one that ends meanwhile is left out."""
        pids = {process.record.pid: process.name for process in processes if process.live and process.record.pid}
        return await asyncio.to_thread(self._look, pids)

    def _look(self, pids: dict[int, str]) -> dict[str, Usage]:
        known, found = self._known, dict[str, Usage]()
        self._known = {}
        for pid, name in pids.items():
            try:
                one = known.get(pid)
                is_new = one is None or not one.is_running()
                one = psutil.Process(pid) if is_new or one is None else one
                with one.oneshot():
                    cpu, memory = one.cpu_percent(None), one.memory_info().rss
            except psutil.Error:
                continue
            self._known[pid] = one
            found[name] = Usage(None if is_new else cpu, memory)
        return found
