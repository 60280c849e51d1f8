"""How much each process takes of the machine, looked up when somebody asks, off the loop."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable, Mapping
from weakref import WeakKeyDictionary

import psutil
from attrs import frozen

from supervisor.processes.process import Process

_FRESH = 1.0
"""Seconds for which a look counts: a share of the processor over less says nothing, and many may ask at once."""


@frozen
class Usage:
    """Of one process alone, without what it has started. `cpu` is percent of one processor since the look before, and
    at the first since it was started; `memory` is its resident set in bytes."""

    cpu: float
    memory: int


@frozen
class _Look:
    """What was seen of one life of a process. `seconds` is what it had taken of processors by then."""

    generation: int
    process: psutil.Process
    at: float
    seconds: float
    usage: Usage


class Meter:
    def __init__(self) -> None:
        self._seen: WeakKeyDictionary[Process, _Look] = WeakKeyDictionary()
        self._turn = asyncio.Lock()

    async def read(self, processes: Iterable[Process]) -> Mapping[str, Usage]:
        """The usage of all that are live, by name; one that ends meanwhile is left out."""
        live = [process for process in processes if process.live and process.record.pid]
        async with self._turn:
            new = time.monotonic() - _FRESH
            due = [process for process in live if (last := self._last(process)) is None or last.at < new]
            if due:
                asked = [(process.record.pid, process.record.generation, self._last(process)) for process in due]
                found = await asyncio.to_thread(lambda: [_look(*one) for one in asked])
                self._seen.update((one, look) for one, look in zip(due, found, strict=True) if look is not None)
                for one, look in zip(due, found, strict=True):
                    if look is None:
                        self._seen.pop(one, None)
        return {process.name: last.usage for process in live if (last := self._last(process)) is not None}

    def _last(self, process: Process) -> _Look | None:
        """The last look at the life that it has now."""
        look = self._seen.get(process)
        return look if look is not None and look.generation == process.record.generation else None


def _look(pid: int | None, generation: int, last: _Look | None) -> _Look | None:
    """None: it has ended."""
    try:
        one = last.process if last is not None else psutil.Process(pid)
        with one.oneshot():
            now, times, memory = time.monotonic(), one.cpu_times(), one.memory_info().rss
            seconds = times.user + times.system
            born = now - time.time() + one.create_time()
    except psutil.Error:
        return None
    before, begun = (last.seconds, last.at) if last is not None else (0.0, born)
    cpu = 100 * (seconds - before) / max(0.01, now - begun)
    return _Look(generation, one, now, seconds, Usage(max(0.0, cpu), memory))
