"""CPU and memory of processes and of their process groups, read from /proc off the loop, and `max-memory`."""

from __future__ import annotations

import asyncio
import os
from collections import Counter
from collections.abc import Iterable, Mapping, Set
from concurrent.futures import Executor
from typing import NamedTuple
from weakref import WeakKeyDictionary

from attrs import Factory, frozen

from models.supervision.process import UP
from supervisor.children.orphans import descendants
from supervisor.children.proc import ticks_per_second
from supervisor.clock import Clock
from supervisor.processes.process.process import Process

_MAX_AGE_SECONDS = 1.0
"""How long a sample is reused: over less time a share of the processor means little."""
_MIN_SPAN_SECONDS = 0.01
_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
_TICKS_PER_SECOND = ticks_per_second()
_MAX_PERCENT = 100.0 * (os.cpu_count() or 1)


@frozen
class Usage:
    """Usage of one process without its children, or of a process group. `cpu` is percent of one processor since the
    sample before, or since the start; `memory` is the resident set in bytes."""

    cpu: float
    memory: int


class ProcessTimes(NamedTuple):
    """What the kernel reports about one process. Times are in ticks, `start` since boot; memory is in bytes."""

    parent: int
    group: int
    start: int
    used: int
    """Processor time of the process itself."""
    waited: int
    """Processor time of its children that ended and were waited for, and of theirs."""
    memory: int


@frozen
class Reading:
    """The processes of some sessions at one moment, and what their groups have used since the reading before."""

    at: float = 0.0
    times: Mapping[int, ProcessTimes] = Factory(dict)
    used: Mapping[int, int] = Factory(dict)
    """Processor time of each group, in ticks."""
    memory: Mapping[int, int] = Factory(dict)
    """Resident memory of each group."""


@frozen
class _Sample:
    """One sample of an instance. `used` is the processor time that it had used by then, in ticks."""

    generation: int
    at: float
    used: int
    usage: Usage


class Meter:
    def __init__(self, clock: Clock | None = None) -> None:
        self._clock = clock or Clock()
        self._samples: WeakKeyDictionary[Process, _Sample] = WeakKeyDictionary()
        self._lock = asyncio.Lock()
        self._reading = Reading()

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
    ) -> Mapping[str, tuple[Usage, Usage]]:
        """The usage of all that are live and of their process groups, by name, since the call before.

        Uses a thread of `executor` only where a process is live.
        """
        instances = _instances(process for process in processes if process.live)
        leaders, before, clock = {pid for _, pid, _ in instances}, self._reading, self._clock
        reading = Reading()
        if instances:
            loop = asyncio.get_running_loop()
            reading = await loop.run_in_executor(executor, read_groups, leaders, before, clock)
        self._reading = reading
        usage = dict[str, tuple[Usage, Usage]]()
        for process, pid, generation in instances:
            self._keep(process, generation, times := reading.times.get(pid), reading.at)
            if times is not None:
                last = _same(before.times.get(pid), times.start)
                span = reading.at - (before.at if last else times.start / _TICKS_PER_SECOND)
                own = Usage(_percent(times.used - (last.used if last else 0), span), times.memory)
                group = Usage(min(_percent(reading.used[pid], span), _MAX_PERCENT), reading.memory[pid])
                usage[process.name] = own, group
        return usage

    def _keep(self, process: Process, generation: int, times: ProcessTimes | None, now: float) -> None:
        """Keeps a sample of an instance; `None`: it has ended."""
        if times is None:
            self._samples.pop(process, None)
            return
        last = self._samples.get(process)
        if last is None or last.generation != generation:
            used, since = 0, times.start / _TICKS_PER_SECOND
        else:
            used, since = last.used, last.at
        usage = Usage(_percent(times.used - used, now - since), times.memory)
        self._samples[process] = _Sample(generation, now, times.used, usage)

    def _last(self, process: Process) -> _Sample | None:
        """The last sample of the present instance."""
        sample = self._samples.get(process)
        return sample if sample is not None and sample.generation == process.record.generation else None


def _instances(processes: Iterable[Process]) -> list[tuple[Process, int, int]]:
    """Each process with the pid and the generation of its present instance, which may change while a worker reads."""
    return [(process, process.record.pid, process.record.generation) for process in processes if process.record.pid]


def _percent(ticks: int, seconds: float) -> float:
    return max(0.0, 100 * ticks / _TICKS_PER_SECOND / max(_MIN_SPAN_SECONDS, seconds))


def read_times(pid: int) -> ProcessTimes | None:
    """Reads one process; `None` if it has ended."""
    try:
        with open(f"/proc/{pid}/stat", "rb", buffering=0) as file:  # noqa: PTH123 (for each process at each sample)
            text = file.read(1024)
    except OSError:
        return None
    fields = text[text.rindex(b")") + 2 :].split()
    user, system, waited_user, waited_system = map(int, fields[11:15])
    return ProcessTimes(
        parent=int(fields[1]),
        group=int(fields[2]),
        start=int(fields[19]),
        used=user + system,
        waited=waited_user + waited_system,
        memory=int(fields[21]) * _PAGE_BYTES,
    )


def read_groups(leaders: Set[int], before: Reading, clock: Clock) -> Reading:
    """Reads the processes of the sessions of `leaders`: every supervised process leads a session and its first group.

    Of all other processes only the session is read, by a system call that opens no file.
    """
    times = dict[int, ProcessTimes]()
    for entry in os.listdir("/proc"):  # noqa: PTH208 (a hundred times cheaper)
        if entry.isdigit() and _session(pid := int(entry)) in leaders and (one := read_times(pid)) is not None:
            times[pid] = one
    memory = Counter[int]()
    for one in times.values():
        memory[one.group] += one.memory
    return Reading(clock.since_boot(), times, group_ticks(before.times, times), memory)


def _session(pid: int) -> int | None:
    try:
        return os.getsid(pid)
    except OSError:
        return None  # it has ended


def group_ticks(before: Mapping[int, ProcessTimes], after: Mapping[int, ProcessTimes]) -> Counter[int]:
    """The processor time that each process group has used between two readings, in ticks.

    The time of a child that ended is found in its parent once that has waited for the child; what the child had used by
    `before` is counted already. A child that left the session is not known: when it ends, its whole time counts.
    """
    used, used_by_living = Counter[int](), Counter[int]()
    for pid, times in after.items():
        last = _same(before.get(pid), times.start)
        used[times.group] += times.used + times.waited - (last.used + last.waited if last else 0)
        used_by_living[times.group] += times.used - (last.used if last else 0)
    for pid, last in before.items():
        parent = after.get(last.parent)
        if _same(after.get(pid), last.start) is None and parent and _same(before.get(last.parent), parent.start):
            used[parent.group] -= last.used + last.waited
    return Counter({group: max(used[group], used_by_living[group]) for group in used})


def _same(times: ProcessTimes | None, start: int) -> ProcessTimes | None:
    """The times, unless the pid was reused."""
    return times if times is not None and times.start == start else None


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
