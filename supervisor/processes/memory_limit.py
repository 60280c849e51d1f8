"""`max-memory`: the resident memory of a process with all its descendants, read off the loop."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterable
from concurrent.futures import Executor
from functools import partial

from models.supervision.process import UP
from supervisor.children.orphans import descendants
from supervisor.processes.process import Process

_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")


class MemoryLimits:
    def __init__(self, processes: Iterable[Process]) -> None:
        self._processes = processes

    async def check(self, executor: Executor | None = None) -> None:
        """Reports the memory of each running process that has a limit."""
        limited = [
            (process, instance)
            for process in self._processes
            if process.spec.max_memory is not None and process.status in UP and (instance := process.instance)
        ]
        if limited:
            pids = [instance.child.pid for _, instance in limited]
            read = partial(list[int], map(tree_bytes, pids))
            sizes = await asyncio.get_running_loop().run_in_executor(executor, read)
            for (process, instance), size in zip(limited, sizes, strict=True):
                process.on_memory(instance, size)


def tree_bytes(pid: int) -> int:
    """The resident memory of a process and its descendants. What several of them share counts for each."""
    return sum(_resident_bytes(one) for one in (pid, *descendants(pid)))


def _resident_bytes(pid: int) -> int:
    try:
        with open(f"/proc/{pid}/statm", "rb", buffering=0) as file:  # noqa: PTH123 (for each process of each tree)
            return int(file.readall().split()[1]) * _PAGE_BYTES
    except (OSError, IndexError):
        return 0
