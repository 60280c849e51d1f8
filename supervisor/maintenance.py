"""What is looked after every few seconds, all at one beat so that an idle house seldom wakes.

How late the loop is, log files that have grown, zombies, the write-ahead logs of the stores.
"""

from __future__ import annotations

import asyncio
import logging
import time
from pathlib import Path

from models.supervision.tables import database
from models.tracker.tables import reports
from supervisor.processes.event_writer import EventWriter
from supervisor.processes.log_files import Logs
from supervisor.processes.orphans import Orphans

log = logging.getLogger("server")

_BEAT = 2.5
_STALLED = 1.0
_ROTATE_EVERY = 2
_BURY_EVERY = 4
_CHECKPOINT_EVERY = 24
_LARGE_WAL = 16 * 1024 * 1024
_MANY_COMMITS, _TOO_MANY_COMMITS = 1000, 10_000
_STORM = 100


class Maintenance:
    def __init__(self, orphans: Orphans, event_writer: EventWriter, logs: Logs, reports_wal: Path) -> None:
        """`reports_wal` is the write-ahead log of the tracker's store, which one report can make large."""
        self.lag = 0.0
        """How late the loop was at the last beat, in seconds."""
        self._worst = [0.0] * 4
        self._strays = orphans
        self._journal = event_writer
        self._logs = logs
        self._reports_wal = reports_wal
        self._wal_written = 0
        self._commits = 0

    @property
    def is_stalled(self) -> bool:
        """Whether the loop was held up for more than a second within the last ten."""
        return max(self._worst) > _STALLED

    async def watch(self) -> None:
        """Looks every two and a half seconds, for ever."""
        beats = 0
        while True:
            due = time.monotonic() + _BEAT
            await asyncio.sleep(_BEAT)
            self.lag = time.monotonic() - due
            beats += 1
            self._worst[beats % len(self._worst)] = self.lag
            try:
                await self._tidy(beats)
            except Exception as error:
                log.warning("the house could not be tidied: %s", error)

    async def _tidy(self, beats: int) -> None:
        if beats % _BURY_EVERY == 0:
            self._strays.bury()
        if beats % _ROTATE_EVERY == 0:
            await self._logs.rotate()
        if self._is_due(beats, self._journal.commits):
            self._commits = self._journal.commits = 0
            await asyncio.to_thread(database.checkpoint, begin=True)
        if beats % _CHECKPOINT_EVERY == 0 or (beats % _BURY_EVERY == 0 and self._wal_has_grown()):
            await asyncio.to_thread(reports.checkpoint)
            await asyncio.to_thread(reports.limit_log)

    def _is_due(self, beats: int, commits: int) -> bool:
        """Whether the journal's log is to be moved: now and then, and when it is long; in a storm it waits its turn."""
        lately, self._commits = commits - self._commits, commits
        if lately > _STORM:
            return commits >= _TOO_MANY_COMMITS
        return commits >= _MANY_COMMITS or (beats % _CHECKPOINT_EVERY == 0 and commits > 0)

    def _wal_has_grown(self) -> bool:
        """Whether it is large and was written to: a report of a hundred thousand cases makes a large one at once."""
        try:
            wal = self._reports_wal.stat()
        except FileNotFoundError:
            return False
        written, self._wal_written = self._wal_written, wal.st_mtime_ns
        return wal.st_size > _LARGE_WAL and wal.st_mtime_ns != written
