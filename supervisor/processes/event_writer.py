"""Writes status changes: numbers them, stores them in one transaction per iteration of the loop, then publishes them.

A store that cannot be written (locked, full, gone) blocks nothing: changes are kept in order and written later.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections import deque
from collections.abc import Callable
from itertools import islice
from typing import Any

import peewee

from models.errors import Unavailable
from models.storage.sqlite import is_disk_full
from models.supervision import events, log_marks, runs
from models.supervision import record as supervised
from models.supervision.events import StatusEvent
from models.supervision.log_marks import LogMark
from models.supervision.process import Status
from models.supervision.record import Record
from models.supervision.runs import JobRun, ScheduleState
from models.supervision.tables import database

log = logging.getLogger("events")

_FIRST_RETRY_SECONDS, _LAST_RETRY_SECONDS = 0.002, 2.0
_FAILING_AFTER_SECONDS = 0.1
_STORED_SOON_SECONDS = 0.2
_COMMIT_INTERVAL_SECONDS = 0.002
_EAGER_FLUSH_ENTRIES = 24
_MAX_ENTRIES_PER_COMMIT = 1000
_ENSURE_STORED_SECONDS = 5.0


class EventWriter:
    """`record` and `note` never wait and never fail; `stored_within` waits until everything is stored."""

    def __init__(self, publish: Callable[[StatusEvent], None], keep: int = 50_000) -> None:
        """`keep` is how many changes may wait for a failing store; beyond that the oldest are lost."""
        self._publish = publish
        self._entries: deque[StatusEvent] = deque(maxlen=keep)
        self._records: dict[str, Record | None] = {}
        self._runs: dict[int, JobRun] = {}
        self._schedules: dict[str, ScheduleState | None] = {}
        self._log_marks: dict[int, LogMark] = {}
        self._rotated_marks: dict[str, int] = {}
        self.retained_runs = 100
        """How many runs of each job are kept."""
        self._last_id = events.last_id()
        self._flush_at: asyncio.Handle | None = None
        self._flushed = -math.inf  # a machine may have been up for less than the interval
        self._is_delayed = False
        self._written: asyncio.Future[None] | None = None
        self._retry = 0.0
        self._is_reported = False
        self._is_disk_full = False
        self.commits = 0
        """Number of commits; maintenance resets it."""

    @property
    def failing(self) -> bool:
        """Whether the store could not be written for more than a tenth of a second."""
        return self._retry > _FAILING_AFTER_SECONDS

    @property
    def waiting(self) -> int:
        """How many changes are not stored yet."""
        return len(self._entries)

    def record(self, record: Record, old: Status, at: int, uptime: int) -> None:
        """One status change of one process, `old` to `record.status`, at `at`."""
        self._last_id += 1
        self._entries.append(
            StatusEvent(
                self._last_id, at, record.name, record.pid, record.start, record.end, record.exit_code,
                record.status, old, uptime,
            )
        )  # fmt: skip
        self.note(record)

    def note(self, record: Record) -> None:
        """Stores the record of a process, without an event."""
        self._records[record.name] = record
        self._flush_soon()

    def note_run(self, run: JobRun) -> None:
        """Stores a run of a job."""
        self._runs[run.id] = run
        self._flush_soon()

    def note_schedule(self, state: ScheduleState) -> None:
        """Stores the state of a schedule."""
        self._schedules[state.process] = state
        self._flush_soon()

    def forget_schedule(self, name: str) -> None:
        """Deletes the state of a schedule that is no longer configured."""
        self._schedules[name] = None
        self._flush_soon()

    def note_log_mark(self, mark: LogMark) -> None:
        """Stores where a process started or ended in a log file."""
        self._log_marks[mark.id] = mark
        self._flush_soon()

    def forget_log_marks(self, path: str, last: int) -> None:
        """Deletes the marks of a file that was rotated, up to the id `last`."""
        self._log_marks = {id: mark for id, mark in self._log_marks.items() if mark.path != path or id > last}
        self._rotated_marks[path] = last
        self._flush_soon()

    def forget(self, name: str) -> None:
        """Deletes the record of a process that is no longer configured; its events stay."""
        self._records[name] = None
        self._flush_soon()

    def _flush_soon(self) -> None:
        """Flushes in the third iteration from here, so that an exit and the restart that it causes share a commit.

        A flush that nothing waits for keeps an interval to the commit before, so that many changes share a commit.
        """
        if self._flush_at is None:
            loop = asyncio.get_running_loop()
            wait = self._flushed + _COMMIT_INTERVAL_SECONDS - loop.time()
            if wait <= 0 or self._written is not None:
                self._flush_at = loop.call_soon(loop.call_soon, loop.call_soon, self._flush)
            else:
                self._flush_at = loop.call_later(wait, self._flush)
                self._is_delayed = True
        elif len(self._entries) >= _EAGER_FLUSH_ENTRIES:
            self._hurry()  # a larger commit would hold the loop

    def _hurry(self) -> None:
        """A caller waits for the flush."""
        if self._is_delayed and self._flush_at is not None:
            self._flush_at.cancel()
            loop = asyncio.get_running_loop()
            self._flush_at = loop.call_soon(loop.call_soon, self._flush)
            self._is_delayed = False

    def _flush(self) -> None:
        self._flush_at, self._is_delayed = None, False
        self._flushed = asyncio.get_running_loop().time()
        entries = list(islice(self._entries, _MAX_ENTRIES_PER_COMMIT))
        try:
            self._write(entries)
        except peewee.PeeweeException as error:
            self._retry_later(error)
            return
        except Exception:  # one bad row must not block the rest
            log.exception("unexpected error while storing changes")
            entries = [entry for entry in entries if self._can_write(entry)]
            self._clear()  # one of them may be the bad one: it must not be retried for ever
        for _ in range(min(_MAX_ENTRIES_PER_COMMIT, len(self._entries))):
            self._entries.popleft()
        self._on_written(len(entries))
        for entry in entries:
            self._publish(entry)

    def _write(self, entries: list[StatusEvent]) -> None:
        with database.atomic():
            events.append(entries)
            supervised.save([record for record in self._records.values() if record is not None])
            supervised.forget([name for name, record in self._records.items() if record is None])
            runs.save(self._runs.values(), self.retained_runs)
            runs.save_states(self._schedules)
            log_marks.forget(self._rotated_marks)
            log_marks.save(self._log_marks.values())
        self._clear()

    @property
    def _changes(self) -> tuple[dict[Any, Any], ...]:
        """What waits to be stored besides the events."""
        return self._records, self._runs, self._schedules, self._log_marks, self._rotated_marks

    def _clear(self) -> None:
        for changes in self._changes:
            changes.clear()

    def _can_write(self, entry: StatusEvent) -> bool:
        """Writes one entry alone; logs it where it cannot be stored."""
        try:
            with database.atomic():
                events.append([entry])
        except Exception as error:
            log.error("%s was lost: %s", entry, error)
            return False
        return True

    def _retry_later(self, error: Exception) -> None:
        self._is_disk_full = is_disk_full(error)
        self._retry = min(max(self._retry * 2, _FIRST_RETRY_SECONDS), _LAST_RETRY_SECONDS)
        if self._retry > _FAILING_AFTER_SECONDS and not self._is_reported:
            self._is_reported = True
            log.error(
                "the store cannot be written (%s): supervision continues, %d changes are waiting", error, self.waiting
            )
        self._flush_at = asyncio.get_running_loop().call_later(self._retry, self._flush)

    def _on_written(self, count: int) -> None:
        self.commits += 1
        if self._is_reported:
            log.warning("the store can be written again, %d changes were stored", count)
        self._retry, self._is_reported, self._is_disk_full = 0.0, False, False
        if self._entries or any(self._changes):
            self._flush_soon()
            return
        if self._written is not None and not self._written.done():
            self._written.set_result(None)
        self._written = None

    async def stored_within(self, seconds: float) -> bool:
        """Waits up to `seconds` until all that was recorded is stored; returns whether it is."""
        if self._flush_at is None:
            return True
        self._hurry()
        if self._written is None:
            self._written = asyncio.get_running_loop().create_future()
        done, _ = await asyncio.wait({self._written}, timeout=seconds)
        return bool(done)

    async def stored_soon(self, name: str | None = None) -> None:
        """Waits a moment until the changes of all processes, or of the named one, are stored.

        Called before a spawn, between reading a status and sending it, and before a page reads the history. Returns at
        once while the store is failing: the tag of a child covers that case (`supervisor/processes/adoption.py`).
        """
        if not self.failing and (name is None or self._waits(name)):
            await self.stored_within(_STORED_SOON_SECONDS)

    def _waits(self, name: str) -> bool:
        return name in self._records or any(entry.process == name for entry in self._entries)

    async def ensure_stored(self) -> None:
        """Called before a response. Raises `Unavailable` where the store fails for five seconds.

        A full disk is reported at once: a lock ends soon, but that does not.
        """
        if await self.stored_within(_STORED_SOON_SECONDS):
            return
        if self._is_disk_full or not await self.stored_within(_ENSURE_STORED_SECONDS - _STORED_SOON_SECONDS):
            why = "because the disk is full" if self._is_disk_full else "now"
            raise Unavailable(f"the operation was done, but the store cannot be written {why}, so it may be lost")
