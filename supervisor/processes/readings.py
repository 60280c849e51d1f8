"""What the kernel reports of supervised processes and of the members of their groups, read from /proc in a worker.

A reading costs one `pread` of `schedstat` for a process that has not run since the reading before: its descriptor is
kept. Only what has run is read whole. The time in `schedstat` is that of the first thread, so that a process with
several threads is always read.
"""

from __future__ import annotations

import contextlib
import os
import resource
from collections import Counter
from collections.abc import Mapping, Set
from typing import NamedTuple

from attrs import Factory, define, frozen

from supervisor.children.proc import ticks_per_second
from supervisor.clock import Clock

MEMBERS_SECONDS = 30.0
"""How often the members of groups are looked for, and everything is read whole."""
TICKS_PER_SECOND = ticks_per_second()
_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
_SCHEDSTAT_BYTES, _STAT_BYTES = 128, 1024
_DESCRIPTOR_SHARE = 4
"""The part of the limit of open files that is used for descriptors: one in so many."""


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
    threads: int = 1


@frozen
class Reading:
    """The processes of some sessions at one moment, and what their groups have used since the reading before."""

    at: float = 0.0
    times: Mapping[int, ProcessTimes] = Factory(dict)
    used: Mapping[int, int] = Factory(dict)
    """Processor time of each group of which a member has run, begun or ended, in ticks."""
    memory: Mapping[int, int] = Factory(dict)
    """Resident memory of each group."""


@define(eq=False)
class _Known:
    """A process that was read: its last figures, and its kept `schedstat`."""

    times: ProcessTimes
    descriptor: int | None
    schedstat: bytes

    def close(self) -> None:
        if self.descriptor is not None:
            os.close(self.descriptor)
            self.descriptor = None

    def __del__(self) -> None:
        with contextlib.suppress(OSError):
            self.close()


class GroupReader:
    """Reads the processes of the sessions of leaders: each supervised process leads a session and its first group.

    For use in one thread at a time.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._known: dict[int, _Known] = {}
        self._scanned_at = -MEMBERS_SECONDS
        self._read_at = 0.0
        self._max_descriptors = resource.getrlimit(resource.RLIMIT_NOFILE)[0] // _DESCRIPTOR_SHARE
        self._leaders: Set[int] = frozenset()

    def read(self, leaders: Set[int]) -> Reading:
        """The reading of now. Members that began since the last search are found by the next one, unless their leader
        is new."""
        now = self._clock.since_boot()
        before = {pid: known.times for pid, known in self._known.items()}
        is_due = now - self._scanned_at >= MEMBERS_SECONDS or not leaders <= self._leaders
        wanted = self._members(leaders) if is_due else self._known.keys() & self._present(leaders)
        if is_due:
            self._scanned_at, self._leaders = now, leaders
        for pid in self._known.keys() - wanted:
            self._known.pop(pid).close()
        changed = {pid for pid in wanted if self._read_one(pid, is_due)}
        after = {pid: known.times for pid, known in self._known.items()}
        memory = Counter[int]()
        for one in after.values():
            memory[one.group] += one.memory
        used = group_ticks(before, after, changed, self._read_at * TICKS_PER_SECOND)
        self._read_at = self._clock.since_boot()
        return Reading(self._read_at, after, used, memory)

    def close(self) -> None:
        for known in self._known.values():
            known.close()
        self._known.clear()

    def _present(self, leaders: Set[int]) -> Set[int]:
        """What is read again without a search: all, but what belonged to leaders that are no longer wanted."""
        if leaders == self._leaders:
            return self._known.keys()
        return {pid for pid in self._known if _session(pid) in leaders}

    def _members(self, leaders: Set[int]) -> set[int]:
        """The pids of the sessions: by a system call for each process, which opens no file."""
        if not leaders:
            return set()
        entries = os.listdir("/proc")  # noqa: PTH208 (a hundred times cheaper)
        return {pid for entry in entries if entry.isdigit() and _session(pid := int(entry)) in leaders}

    def _read_one(self, pid: int, is_whole: bool) -> bool:
        """Reads a process, unless it has not run; returns whether its figures have changed, or it is new or gone."""
        known = self._known.get(pid)
        if known is None:
            return self._begin(pid)
        now = _schedstat(known.descriptor)
        has_not_run = now is not None and now == known.schedstat
        if has_not_run and known.times.threads == 1 and not is_whole:
            return False
        times = read_times(pid)
        if times is None or times.start != known.times.start:
            self._known.pop(pid).close()
            if times is not None:
                self._begin(pid)
            return True
        has_changed = times != known.times
        known.times, known.schedstat = times, now or b""
        return has_changed

    def _begin(self, pid: int) -> bool:
        """Begins to read a process; returns whether it is there."""
        descriptor = None
        if len(self._known) < self._max_descriptors:
            with contextlib.suppress(OSError):
                descriptor = os.open(f"/proc/{pid}/schedstat", os.O_RDONLY | os.O_CLOEXEC)
        schedstat = _schedstat(descriptor) or b""  # before the times: what runs in between is read again
        times = read_times(pid)
        known = None if times is None else _Known(times, descriptor, schedstat)
        if known is not None:
            self._known[pid] = known
        elif descriptor is not None:
            os.close(descriptor)
        return known is not None


def _schedstat(descriptor: int | None) -> bytes | None:
    """The time that the first thread has run, with its waits; `None` where that is not known, or it has ended."""
    if descriptor is None:
        return None
    try:
        return os.pread(descriptor, _SCHEDSTAT_BYTES, 0) or None
    except OSError:
        return None


def read_times(pid: int) -> ProcessTimes | None:
    """Reads one process; `None` if it has ended."""
    try:
        with open(f"/proc/{pid}/stat", "rb", buffering=0) as file:  # noqa: PTH123 (for each process at each sample)
            text = file.read(_STAT_BYTES)
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
        threads=int(fields[17]),
    )


def _session(pid: int) -> int | None:
    try:
        return os.getsid(pid)
    except OSError:
        return None  # it has ended


def group_ticks(
    before: Mapping[int, ProcessTimes], after: Mapping[int, ProcessTimes], changed: Set[int], since: float = 0
) -> Counter[int]:
    """The processor time that each group of a `changed` process has used between two readings, in ticks.

    A process that has ended always counts as changed. A member of a known group that began before `since`, the time of
    the first reading, and is found only now, counts from now on: when it has used its time is not known.

    The time of a child that ended is found in its parent once that has waited for the child; what the child had used by
    `before` is counted already. A child that left the session is not known: when it ends, its whole time counts.
    """
    used, used_by_living = Counter[int](), Counter[int]()
    for pid in changed & after.keys():
        times = after[pid]
        last = same(before.get(pid), times.start)
        if last is None and times.group in before and times.start < since:
            last = times
        used[times.group] += times.used + times.waited - (last.used + last.waited if last else 0)
        used_by_living[times.group] += times.used - (last.used if last else 0)
    for pid, last in before.items():
        if after.get(pid) is not last and same(after.get(pid), last.start) is None:
            parent = after.get(last.parent)
            used[last.group] += 0  # its memory has changed
            if parent and same(before.get(last.parent), parent.start):
                used[parent.group] -= last.used + last.waited
    return Counter({group: max(used[group], used_by_living[group]) for group in used})


def same(times: ProcessTimes | None, start: int) -> ProcessTimes | None:
    """The times, unless the pid was reused."""
    return times if times is not None and times.start == start else None
