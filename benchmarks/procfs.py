"""Figures of the kernel for a set of processes: memory, processor time, wakeups, threads."""

import os
import re
from collections.abc import Iterable, Iterator
from pathlib import Path

import psutil

MIB = 1024 * 1024
_MAX_WORKERS, _DESCRIPTORS_OF_A_WORKER = 4, 3
"""At most 2 processes for uploads and 2 for charts, each with a socket, a memfd and a pidfd."""


def memory(pids: Iterable[int]) -> tuple[float, float]:
    """PSS and RSS in MiB. PSS shares a page among its users, so it is the fair sum over many small processes.

    Processes that have ended meanwhile count as 0.
    """
    totals = {"Pss": 0, "Rss": 0}
    for pid in pids:
        try:
            text = Path(f"/proc/{pid}/smaps_rollup").read_text()
        except (FileNotFoundError, ProcessLookupError):
            continue
        for line in text.splitlines()[1:]:
            key, value = line.split()[:2]
            if key.rstrip(":") in totals:
                totals[key.rstrip(":")] += int(value)
    return totals["Pss"] / 1024, totals["Rss"] / 1024


def _tasks(pids: Iterable[int]) -> Iterator[Path]:
    for pid in pids:
        yield from Path(f"/proc/{pid}/task").iterdir()


def processor_seconds(pids: Iterable[int]) -> float:
    """Time on a processor, by the scheduler's nanoseconds: the 10 ms ticks of `stat` would call most idle ones zero."""
    return sum(int((task / "schedstat").read_text().split()[0]) for task in _tasks(pids)) / 1e9


def wakeups(pids: Iterable[int]) -> int:
    """Voluntary context switches: each is one time that a thread had been waiting and was woken."""
    pattern = re.compile(r"^voluntary_ctxt_switches:\s+(\d+)", re.MULTILINE)
    found = (pattern.search((task / "status").read_text()) for task in _tasks(pids))
    return sum(int(match[1]) for match in found if match)


def threads(pids: Iterable[int]) -> int:
    return sum(1 for _ in _tasks(pids))


def descriptors(pid: int, sampled: int = 0) -> int:
    """Descriptors of a server, without those that it keeps to be faster: they come with first requests and are no leak.

    These are the ones of warm worker processes, which end only after a minute without work, and the `schedstat` of
    `sampled` supervised processes. More of them than a server may have count.
    """
    workers = kept = total = 0
    for entry in Path(f"/proc/{pid}/fd").iterdir():
        try:
            target = str(entry.readlink())
        except FileNotFoundError:
            continue  # closed meanwhile
        total += 1
        workers += target.startswith("/memfd:worker")
        kept += "/schedstat" in target
    return total - _DESCRIPTORS_OF_A_WORKER * min(workers, _MAX_WORKERS) - min(kept, sampled)


def family(root: int, without: Iterable[int]) -> list[int]:
    """`root` and all that it started, without the supervised children. runit has one supervisor process for each."""
    try:
        members = psutil.Process(root).children(recursive=True)
    except psutil.NoSuchProcess:
        return []
    return [root, *sorted({member.pid for member in members} - set(without))]


def tagged_processes(mark: str) -> list[int]:
    """The processes with `mark` in their environment, whatever their parent process is."""
    wanted, found = mark.encode(), []
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit() or int(entry.name) == os.getpid():
            continue
        try:
            if wanted in (entry / "environ").read_bytes().split(b"\0"):
                found.append(int(entry.name))
        except OSError:
            continue  # gone meanwhile, or another user's
    return found
