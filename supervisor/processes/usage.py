"""CPU and memory usage of each process, read on request and off the loop."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping
from weakref import WeakKeyDictionary

import psutil
from attrs import frozen

from supervisor.clock import Clock
from supervisor.processes.process import Process

_MAX_AGE_SECONDS = 1.0
"""How long a sample is reused: over less time a share of the processor means little."""


@frozen
class Usage:
    """Usage of one process without its children. `cpu` is percent of one processor since the sample before, or since
    its start; `memory` is its resident set in bytes."""

    cpu: float
    memory: int


@frozen
class _Sample:
    """One sample of an instance. `seconds` is the processor time that it had used by then."""

    generation: int
    process: psutil.Process
    at: float
    seconds: float
    usage: Usage


class Meter:
    def __init__(self, clock: Clock | None = None) -> None:
        self._clock = clock or Clock()
        self._samples: WeakKeyDictionary[Process, _Sample] = WeakKeyDictionary()
        self._lock = asyncio.Lock()

    async def read(self, processes: Iterable[Process]) -> Mapping[str, Usage]:
        """The usage of all that are live, by name; a process that ends meanwhile is left out."""
        live = [process for process in processes if process.live and process.record.pid]
        async with self._lock:
            oldest = self._clock.since_boot() - _MAX_AGE_SECONDS
            due = [process for process in live if (last := self._last(process)) is None or last.at < oldest]
            if due:
                clock = self._clock
                arguments = [(process.record.pid, process.record.generation, self._last(process)) for process in due]
                samples = await asyncio.to_thread(lambda: [_sample(clock, *each) for each in arguments])
                for process, sample in zip(due, samples, strict=True):
                    if sample is None:
                        self._samples.pop(process, None)
                    else:
                        self._samples[process] = sample
        return {process.name: last.usage for process in live if (last := self._last(process)) is not None}

    def _last(self, process: Process) -> _Sample | None:
        """The last sample of the present instance."""
        sample = self._samples.get(process)
        return sample if sample is not None and sample.generation == process.record.generation else None


def _sample(clock: Clock, pid: int | None, generation: int, last: _Sample | None) -> _Sample | None:
    """None: it has ended."""
    try:
        process = last.process if last is not None else psutil.Process(pid)
        with process.oneshot():
            now, times, memory = clock.since_boot(), process.cpu_times(), process.memory_info().rss
            seconds = times.user + times.system
            started = now - clock.now() / 1_000_000 + process.create_time()
    except psutil.Error:
        return None
    before, since = (last.seconds, last.at) if last is not None else (0.0, started)
    cpu = 100 * (seconds - before) / max(0.01, now - since)
    return _Sample(generation, process, now, seconds, Usage(max(0.0, cpu), memory))
