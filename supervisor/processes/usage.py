"""CPU and memory of processes and of their process groups, read from /proc off the loop, and `max-memory`."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterable, Mapping
from concurrent.futures import Executor
from weakref import WeakKeyDictionary

from attrs import define, frozen

from models.supervision.process import UP
from supervisor.children.orphans import descendants
from supervisor.clock import Clock
from supervisor.processes.process.process import Process
from supervisor.processes.readings import TICKS_PER_SECOND, GroupReader, ProcessTimes, Reading, read_times, same

_MAX_AGE_SECONDS = 1.0
"""How long a sample is reused: over less time a share of the processor means little."""
_MIN_SPAN_SECONDS = 0.01
_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
_MAX_PERCENT = 100.0 * (os.cpu_count() or 1)


@frozen
class Usage:
    """Usage of one process without its children, or of a process group. `cpu` is percent of one processor since the
    sample before, or since the start; `memory` is the resident set in bytes."""

    cpu: float
    memory: int


@define
class _Sample:
    """The last sample of an instance. `used` is the processor time that it had used by then, in ticks."""

    generation: int
    at: float
    used: int
    usage: Usage
    is_quiet: bool = False
    """Whether nothing of its group had run since the sample before."""


class Meter:
    def __init__(self, clock: Clock | None = None) -> None:
        self._clock = clock or Clock()
        self._samples: WeakKeyDictionary[Process, _Sample] = WeakKeyDictionary()
        self._lock = asyncio.Lock()
        self._reading = Reading()
        self._reader: GroupReader | None = None

    async def read(self, processes: Iterable[Process]) -> Mapping[str, Usage]:
        """The usage of all that are live, by name; a process that ends meanwhile is left out."""
        live = [process for process in processes if process.live]
        async with self._lock:
            oldest = self._clock.since_boot() - _MAX_AGE_SECONDS
            due = [process for process in live if (last := self._last(process)) is None or last.at < oldest]
            if due:
                instances = _instances(due)
                times = await asyncio.to_thread(lambda: [read_times(pid) for _, pid, _ in instances])
                now = self._clock.since_boot()
                for (process, _, generation), one in zip(instances, times, strict=True):
                    self._keep(process, generation, one, now)
        return {process.name: last.usage for process in live if (last := self._last(process)) is not None}

    async def sample(
        self, processes: Iterable[Process], executor: Executor | None = None
    ) -> tuple[Mapping[str, tuple[Usage, Usage]], list[str]]:
        """The usage of all that are live and of their process groups, by name, since the call before; and the names of
        those whose usage is what it was at the call before, for which nothing is made.

        Uses a thread of `executor` only where a process is live.
        """
        instances = _instances(process for process in processes if process.live)
        leaders, before = {pid for _, pid, _ in instances}, self._reading
        self._reading = reading = await self._read(leaders, executor)
        usage, unchanged = dict[str, tuple[Usage, Usage]](), list[str]()
        for process, pid, generation in instances:
            times, has_changed = reading.times.get(pid), pid in reading.used
            last = self._samples.get(process)
            if not has_changed and last is not None and last.is_quiet and last.generation == generation:
                last.at = reading.at
                unchanged.append(process.name)
                continue
            self._keep(process, generation, times, reading.at)
            if times is not None:
                self._samples[process].is_quiet = not has_changed
                usage[process.name] = _usage(times, before.times.get(pid), pid, before, reading)
        return usage, unchanged

    async def _read(self, leaders: set[int], executor: Executor | None) -> Reading:
        self._reader = self._reader or GroupReader(self._clock)
        if leaders:
            return await asyncio.get_running_loop().run_in_executor(executor, self._reader.read, leaders)
        self._reader.close()
        return Reading()

    def _keep(self, process: Process, generation: int, times: ProcessTimes | None, now: float) -> None:
        """Keeps a sample of an instance; `None`: it has ended."""
        if times is None:
            self._samples.pop(process, None)
            return
        last = self._samples.get(process)
        if last is None or last.generation != generation:
            used, since = 0, times.start / TICKS_PER_SECOND
        else:
            used, since = last.used, last.at
        usage = Usage(_percent(times.used - used, now - since), times.memory)
        self._samples[process] = _Sample(generation, now, times.used, usage)

    def _last(self, process: Process) -> _Sample | None:
        """The last sample of the present instance."""
        sample = self._samples.get(process)
        return sample if sample is not None and sample.generation == process.record.generation else None


def _usage(
    times: ProcessTimes, last: ProcessTimes | None, pid: int, before: Reading, reading: Reading
) -> tuple[Usage, Usage]:
    """The usage of a process and of its group since the reading before, or since it was started."""
    last = same(last, times.start)
    span = reading.at - (before.at if last else times.start / TICKS_PER_SECOND)
    own = Usage(_percent(times.used - (last.used if last else 0), span), times.memory)
    return own, Usage(min(_percent(reading.used.get(pid, 0), span), _MAX_PERCENT), reading.memory[pid])


def _instances(processes: Iterable[Process]) -> list[tuple[Process, int, int]]:
    """Each process with the pid and the generation of its present instance, which may change while a worker reads."""
    return [(process, process.record.pid, process.record.generation) for process in processes if process.record.pid]


def _percent(ticks: int, seconds: float) -> float:
    return max(0.0, 100 * ticks / TICKS_PER_SECOND / max(_MIN_SPAN_SECONDS, seconds))


class MemoryLimits:
    """`max-memory`: the resident memory of a process with all its descendants."""

    def __init__(self, processes: Iterable[Process]) -> None:
        self._processes = processes

    async def check(self, executor: Executor | None = None) -> None:
        """Reports the memory of each running process that has a limit."""
        limited = [
            instance
            for process in self._processes
            if process.spec.max_memory is not None and process.status in UP and (instance := process.instance)
        ]
        if limited:
            pids = [instance.child.pid for instance in limited]
            loop = asyncio.get_running_loop()
            sizes = await loop.run_in_executor(executor, lambda: [tree_bytes(pid) for pid in pids])
            for instance, size in zip(limited, sizes, strict=True):
                instance.on_memory(size)


def tree_bytes(pid: int) -> int:
    """The resident memory of a process and its descendants. What several of them share counts for each."""
    return sum(_resident_bytes(one) for one in (pid, *descendants(pid)))


def _resident_bytes(pid: int) -> int:
    try:
        with open(f"/proc/{pid}/statm", "rb", buffering=0) as file:  # noqa: PTH123 (for each process of each tree)
            return int(file.readall().split()[1]) * _PAGE_BYTES
    except (OSError, IndexError):
        return 0
