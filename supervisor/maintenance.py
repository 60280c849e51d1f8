"""Periodic maintenance, all on one timer so that an idle server seldom wakes.

Measures how late the loop is, rotates log files, reads the memory of processes, reaps orphans, checkpoints the
write-ahead logs of the stores.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import peewee

from models.supervision.tables import database
from models.tracker.tables import reports
from supervisor.children.orphans import Orphans
from supervisor.processes.event_writer import EventWriter
from supervisor.processes.logs.growth import LogGrowth
from supervisor.processes.usage import MemoryLimits
from supervisor.scheduling import retrieve_exception
from supervisor.tracker.disk_space import DiskSpace

log = logging.getLogger("server")

INTERVAL_SECONDS = 2.5
_STALLED_AFTER_SECONDS = 1.0
_ROTATE_EVERY_ROUNDS = 2
_ROTATION_SECONDS = 1.0
_REAP_EVERY_ROUNDS = 4
_MEMORY_EVERY_ROUNDS = 4
_CHECKPOINT_EVERY_ROUNDS = 24
_LARGE_WAL_BYTES = 16 * 1024 * 1024
_LOW_DISK_WAL_BYTES = 256 * 1024
_CHECKPOINT_COMMITS, _CHECKPOINT_COMMITS_UNDER_LOAD = 1000, 10_000
_LOAD_COMMITS_PER_ROUND = 100


def _shrink_logs() -> None:
    """Empties the write-ahead logs: what they hold is in the stores then. For a worker."""
    for store in (database, reports.obj):
        with contextlib.suppress(peewee.PeeweeException):  # a full disk may have no room in the store
            store.limit_log(_LOW_DISK_WAL_BYTES)


class Maintenance:
    def __init__(
        self,
        orphans: Orphans,
        event_writer: EventWriter,
        log_growth: LogGrowth,
        memory_limits: MemoryLimits,
        check_clock: Callable[[], None],
        reports_wal: Path,
        disk: DiskSpace,
    ) -> None:
        """`check_clock` is called in each round.

        `reports_wal` is the write-ahead log of the tracker's store, which one report can make large.
        """
        self.lag = 0.0
        """How late the loop was in the last round, in seconds."""
        self._worst = [0.0] * 4
        self._orphans = orphans
        self._event_writer = event_writer
        self._log_growth = log_growth
        self._memory_limits = memory_limits
        self._check_clock = check_clock
        self._reports_wal = reports_wal
        self._disk = disk
        self._wal_written = 0
        self._commits = 0
        self._round_end: asyncio.Future[None] | None = None
        self._rotation: asyncio.Task[None] | None = None
        self.executor = ThreadPoolExecutor(1, "periodic")
        """For what is read in each round. Idle threads of the shared pool would wake each other for each call."""

    @property
    def is_stalled(self) -> bool:
        """Whether the loop was late by more than a second within the last ten."""
        return max(self._worst) > _STALLED_AFTER_SECONDS

    async def round_end(self) -> None:
        """Returns when the next round has ended: what is periodic elsewhere needs no timer of its own."""
        if self._round_end is None:
            self._round_end = asyncio.get_running_loop().create_future()
        await asyncio.shield(self._round_end)

    def close(self) -> None:
        if self._rotation is not None:
            self._rotation.cancel()
        self.executor.shutdown(wait=False, cancel_futures=True)

    async def watch(self) -> None:
        """Runs a round every two and a half seconds."""
        rounds, now = 0, asyncio.get_running_loop().time
        while True:
            due = now() + INTERVAL_SECONDS
            await asyncio.sleep(INTERVAL_SECONDS)
            self.lag = now() - due
            rounds += 1
            self._worst[rounds % len(self._worst)] = self.lag
            try:
                await self._run_round(rounds)
            except Exception as error:
                log.warning("maintenance failed: %s", error)
            if self._round_end is not None:
                self._round_end.set_result(None)
                self._round_end = None

    async def _run_round(self, rounds: int) -> None:
        self._check_clock()
        with contextlib.suppress(OSError):  # the rest is due none the less
            await asyncio.get_running_loop().run_in_executor(self.executor, self._disk.maintain)
        if rounds % _REAP_EVERY_ROUNDS == 0:
            self._orphans.reap()
        if rounds % _ROTATE_EVERY_ROUNDS == 0:
            await self._rotate()
        if rounds % _MEMORY_EVERY_ROUNDS == 0:
            await self._memory_limits.check(self.executor)
        if self._is_due(rounds, self._event_writer.commits):
            self._commits = self._event_writer.commits = 0
            await asyncio.to_thread(database.checkpoint, begin=True)
        if rounds % _CHECKPOINT_EVERY_ROUNDS == 0 or (rounds % _REAP_EVERY_ROUNDS == 0 and self._wal_has_grown()):
            await asyncio.to_thread(reports.checkpoint)
            await asyncio.to_thread(reports.limit_log)
        if rounds % _REAP_EVERY_ROUNDS == 0 and self._disk.is_low:
            await asyncio.to_thread(_shrink_logs)

    async def _rotate(self) -> None:
        """Begins a rotation, unless one hangs, and waits a moment for it: nothing else waits for a file system."""
        if self._rotation is None or self._rotation.done():
            self._rotation = asyncio.get_running_loop().create_task(self._log_growth.rotate_all(), name="rotation")
            await asyncio.wait({self._rotation}, timeout=_ROTATION_SECONDS)
            if self._rotation.done():
                self._rotation.result()
            else:
                self._rotation.add_done_callback(retrieve_exception)

    def _is_due(self, rounds: int, commits: int) -> bool:
        """Whether to checkpoint the event store: now and then, and when its log is long; later under load."""
        lately, self._commits = commits - self._commits, commits
        if lately > _LOAD_COMMITS_PER_ROUND:
            return commits >= _CHECKPOINT_COMMITS_UNDER_LOAD
        return commits >= _CHECKPOINT_COMMITS or (rounds % _CHECKPOINT_EVERY_ROUNDS == 0 and commits > 0)

    def _wal_has_grown(self) -> bool:
        """Whether the log of the tracker is large and was written to: one large report suffices."""
        try:
            wal = self._reports_wal.stat()
        except FileNotFoundError:
            return False
        written, self._wal_written = self._wal_written, wal.st_mtime_ns
        return wal.st_size > _LARGE_WAL_BYTES and wal.st_mtime_ns != written
