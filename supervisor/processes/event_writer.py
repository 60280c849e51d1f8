"""Where status changes go: numbered here, written in one transaction per turn of the loop, published once written.

A store that cannot be written (locked, full, gone) stops nobody: what waits is kept in order and tried again.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections import deque
from collections.abc import Callable
from itertools import islice

import peewee

from models.errors import Unavailable
from models.supervision import events
from models.supervision import record as supervised
from models.supervision.events import Entry
from models.supervision.process import Status
from models.supervision.record import Record
from models.supervision.tables import database

log = logging.getLogger("events")

_FIRST_RETRY, _LAST_RETRY = 0.002, 2.0
_MOMENT = 0.1
_APART = 0.002
_TOGETHER = 24
_AT_ONCE = 1000
_ANSWER_WAITS = 5.0


class EventWriter:
    """`record` and `note` never wait and never fail; `settled` tells when all of it is in the store."""

    def __init__(self, publish: Callable[[Entry], None], keep: int = 50_000) -> None:
        """`keep` is how many changes may wait for a store in trouble; then the oldest are lost."""
        self._publish = publish
        self._entries: deque[Entry] = deque(maxlen=keep)
        self._records: dict[str, Record | None] = {}
        self._last_id = events.last_id()
        self._flush_at: asyncio.Handle | None = None
        self._flushed = -math.inf  # a machine may have been up for less than any pause
        self._is_patient = False
        self._written: asyncio.Future[None] | None = None
        self._retry = 0.0
        self._told = False
        self.commits = 0
        """How often it wrote since somebody set this to 0."""

    @property
    def failing(self) -> bool:
        """Whether the store could not be written for more than a moment."""
        return self._retry > _MOMENT

    @property
    def waiting(self) -> int:
        """How many changes are not in the store yet."""
        return len(self._entries)

    def record(self, record: Record, old: Status, at: int, uptime: int) -> None:
        """One status change of one process, `old` to `record.status`, at `at`."""
        self._last_id += 1
        self._entries.append(
            Entry(
                self._last_id, at, record.name, record.pid, record.start, record.end, record.exit_code,
                record.status, old, uptime,
            )
        )  # fmt: skip
        self.note(record)

    def note(self, record: Record) -> None:
        """What is to be known of a process, without an event."""
        self._records[record.name] = record
        self._flush_soon()

    def forget(self, name: str) -> None:
        """A process is configured no more: its history stays, what was kept beside it goes."""
        self._records[name] = None
        self._flush_soon()

    def _flush_soon(self) -> None:
        """In the third turn from here: then an exit and the restart that it causes are one commit, behind the spawn.

        What nobody waits for keeps its distance from the commit before: of hundreds of changes some share one.
        """
        if self._flush_at is None:
            loop = asyncio.get_running_loop()
            wait = self._flushed + _APART - loop.time()
            if wait <= 0 or self._written is not None:
                self._flush_at = loop.call_soon(loop.call_soon, loop.call_soon, self._flush)
            else:
                self._flush_at = loop.call_later(wait, self._flush)
                self._is_patient = True
        elif len(self._entries) >= _TOGETHER:
            self._hurry()  # more of them at once would hold the loop

    def _hurry(self) -> None:
        """Somebody waits for what is to be flushed."""
        if self._is_patient and self._flush_at is not None:
            self._flush_at.cancel()
            loop = asyncio.get_running_loop()
            self._flush_at = loop.call_soon(loop.call_soon, self._flush)
            self._is_patient = False

    def _flush(self) -> None:
        self._flush_at, self._is_patient = None, False
        self._flushed = asyncio.get_running_loop().time()
        entries = list(islice(self._entries, _AT_ONCE))
        try:
            self._write(entries)
        except peewee.PeeweeException as error:
            self._try_later(error)
            return
        except Exception:  # nothing that is written may keep the rest from being written
            log.exception("changes that cannot be stored")
            entries = [entry for entry in entries if self._can_write(entry)]
            self._records.clear()  # one of them may be what cannot be stored: it must not be tried for ever
        for _ in range(min(_AT_ONCE, len(self._entries))):
            self._entries.popleft()
        self._is_written(len(entries))
        for entry in entries:
            self._publish(entry)

    def _write(self, entries: list[Entry]) -> None:
        with database.atomic():
            events.append(entries)
            supervised.save([record for record in self._records.values() if record is not None])
            supervised.forget([name for name, record in self._records.items() if record is None])
        self._records.clear()

    def _can_write(self, entry: Entry) -> bool:
        """Writes one alone; where it is what cannot be stored, it is lost, and the log has it."""
        try:
            with database.atomic():
                events.append([entry])
        except Exception as error:
            log.error("%s is lost: %s", entry, error)
            return False
        return True

    def _try_later(self, error: Exception) -> None:
        self._retry = min(max(self._retry * 2, _FIRST_RETRY), _LAST_RETRY)
        if self._retry > _MOMENT and not self._told:
            self._told = True
            log.error("the store cannot be written (%s): supervision goes on, %d changes wait", error, self.waiting)
        self._flush_at = asyncio.get_running_loop().call_later(self._retry, self._flush)

    def _is_written(self, count: int) -> None:
        self.commits += 1
        if self._told:
            log.warning("the store can be written again, %d changes caught up", count)
        self._retry, self._told = 0.0, False
        if self._entries or self._records:
            self._flush_soon()
            return
        if self._written is not None and not self._written.done():
            self._written.set_result(None)
        self._written = None

    async def settled(self, patience: float) -> bool:
        """Waits up to `patience` seconds until all that was recorded is in the store; says whether it is."""
        if self._flush_at is None:
            return True
        self._hurry()
        if self._written is None:
            self._written = asyncio.get_running_loop().create_future()
        done, _ = await asyncio.wait({self._written}, timeout=patience)
        return bool(done)

    async def soon(self, name: str | None = None) -> None:
        """Returns when what is known is in the store: of all, or of the one that is named (others change).

        Called before a spawn that is asked for, between reading a status and telling it, and before a page reads the
        history. Where the store is in trouble, on we go: a child's mark covers that case
        (`supervisor/processes/adoption.py`).
        """
        if not self.failing and (name is None or self._waits(name)):
            await self.settled(2 * _MOMENT)

    def _waits(self, name: str) -> bool:
        return name in self._records or any(entry.process == name for entry in self._entries)

    async def answer(self) -> None:
        """Called before an answer. Raises `Unavailable` where the store stays in trouble for five seconds."""
        if not await self.settled(_ANSWER_WAITS):
            raise Unavailable("it was done, but the store cannot be written just now, so it could be forgotten")
