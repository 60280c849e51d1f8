"""A pool of worker processes: started when they are needed, kept warm for a while, shared fairly between callers."""

from __future__ import annotations

import asyncio
from collections import OrderedDict, deque
from collections.abc import Mapping
from typing import TypeVar

from models.config.settings import WorkerSettings
from models.errors import Unavailable
from supervisor.children.child import Children
from supervisor.workers.process import Job, WorkerProcess

Result = TypeVar("Result")

MAX_JOBS = 200
"""After so many jobs a process is replaced."""
MAX_IDLE_BYTES = 150 * 1024**2
"""A process with more memory after a job is ended."""


class WorkerPool:
    """At most `settings.processes` worker processes; none while there is nothing to do for `settings.idle` seconds."""

    def __init__(
        self,
        settings: WorkerSettings,
        children: Children,
        instance: str,
        environ: Mapping[str, str],
        max_waiting: int,
        limited_by: str = "",
    ) -> None:
        """`instance` tags the processes; at most `max_waiting` jobs wait, by the property `limited_by`."""
        self._settings = settings
        self._children = children
        self._instance = instance
        self._environ = environ
        self._max_waiting = max_waiting
        self._limited_by = f" ({limited_by})" if limited_by else ""
        self._idle: list[WorkerProcess] = []
        self._all: set[WorkerProcess] = set()
        """Those that are idle or busy or have not ended yet."""
        self._waiting: OrderedDict[str | None, deque[asyncio.Future[None]]] = OrderedDict()
        """Waiting jobs by caller, in the order in which the callers get a process; privileged ones come first."""
        self._timers: dict[WorkerProcess, asyncio.TimerHandle] = {}
        self._used = 0
        """Processes that are busy or promised to a job."""
        self._is_closed = False

    @property
    def waiting(self) -> int:
        """Jobs that wait for a process."""
        return sum(map(len, self._waiting.values()))

    @property
    def pids(self) -> set[int]:
        """The processes."""
        return {worker.child.pid for worker in self._all}

    async def run(self, job: Job[Result], caller: str | None) -> Result:
        """Runs a job as soon as a process is free; callers take turns, and those that are privileged (None) come first.

        Raises `Unavailable` where too many jobs wait, the server stops or no process can be started, and what
        `WorkerProcess.run` raises. A cancelled job ends its process.
        """
        await self._acquire(caller)
        worker = None
        try:
            worker = self._take()
            return await worker.run(job)
        finally:
            self._release(worker)

    async def close(self) -> None:
        """Ends all processes; their jobs, and all later ones, fail with `Unavailable`."""
        self._is_closed = True
        await self.end_jobs()

    async def end_jobs(self) -> None:
        """Ends all processes; their jobs, and those that wait, fail with `Unavailable`."""
        for calls in self._waiting.values():
            for granted in calls:
                if not granted.done():
                    granted.set_exception(_stopping())
        self._waiting.clear()
        self._idle.clear()
        for timer in self._timers.values():
            timer.cancel()
        self._timers.clear()
        await asyncio.gather(*(worker.stop() for worker in list(self._all)))

    async def _acquire(self, caller: str | None) -> None:
        """Waits for the right to use a process. Raises `Unavailable`."""
        if self._is_closed:
            raise _stopping()
        if self._used < self._settings.processes and not self._waiting:
            self._used += 1
            return
        if self.waiting >= self._max_waiting:
            raise Unavailable(f"too much work is waiting for a worker process{self._limited_by}")
        granted: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(caller, deque()).append(granted)
        if caller is None:
            self._waiting.move_to_end(caller, last=False)
        try:
            await granted
        except asyncio.CancelledError:
            if granted.done() and not granted.cancelled():
                self._used -= 1
                self._grant()
            else:
                self._forget(caller, granted)
            raise

    def _forget(self, caller: str | None, granted: asyncio.Future[None]) -> None:
        calls = self._waiting.get(caller)
        if calls is not None and granted in calls:
            calls.remove(granted)
            if not calls:
                del self._waiting[caller]

    def _grant(self) -> None:
        """Gives free places to waiting jobs, one caller after the other."""
        while self._waiting and self._used < self._settings.processes:
            caller, calls = next(iter(self._waiting.items()))
            granted = calls.popleft()
            if not calls:
                del self._waiting[caller]
            elif caller is not None:
                self._waiting.move_to_end(caller)
            if not granted.done():
                self._used += 1
                granted.set_result(None)

    def _take(self) -> WorkerProcess:
        """A warm process, or a new one. Raises `Unavailable`."""
        while self._idle:
            worker = self._idle.pop()
            self._timers.pop(worker).cancel()
            if not worker.has_ended and worker.is_idle:
                return worker
        worker = WorkerProcess(self._children, self._instance, self._environ, self._all.discard)
        self._all.add(worker)
        return worker

    def _release(self, worker: WorkerProcess | None) -> None:
        self._used -= 1
        if worker is not None:
            self._keep_or_end(worker)
        self._grant()

    def _keep_or_end(self, worker: WorkerProcess) -> None:
        """Keeps a process warm that is as good as new."""
        if worker.has_ended or not worker.is_idle:
            return
        if self._is_closed or worker.jobs >= MAX_JOBS or worker.resident_bytes > MAX_IDLE_BYTES:
            worker.kill()
            return
        self._idle.append(worker)
        loop = asyncio.get_running_loop()
        self._timers[worker] = loop.call_later(self._settings.idle, self._end_idle, worker)

    def _end_idle(self, worker: WorkerProcess) -> None:
        self._timers.pop(worker, None)
        if worker in self._idle:
            self._idle.remove(worker)
            worker.kill()


def _stopping() -> Unavailable:
    return Unavailable("pilothouse is stopping")
