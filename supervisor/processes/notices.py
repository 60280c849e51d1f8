"""Posts notices: logs and publishes each at once, and stores it soon; a failing store blocks no caller."""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from itertools import islice
from typing import Any

import peewee

from models.paging import Page, Paging
from models.supervision import notices
from models.supervision.notices import Notice
from supervisor.clock import Clock
from supervisor.processes.history import off_loop
from supervisor.pubsub import PubSub

log = logging.getLogger("notices")

_FIRST_RETRY_SECONDS, _LAST_RETRY_SECONDS = 0.05, 5.0
_MAX_WAITING = 10_000
_BATCH = 200


class Notices:
    def __init__(self, clock: Clock) -> None:
        """Reads the last id. Raises `peewee.PeeweeException`."""
        self.published: PubSub[Notice] = PubSub()
        self.last_id = notices.last_id()
        self._clock = clock
        self._waiting: deque[Notice] = deque(maxlen=_MAX_WAITING)
        self._flush: asyncio.Handle | None = None
        self._retry = 0.0

    def post(self, name: str, process: str | None, message: str, **facts: Any) -> Notice:
        """Logs, publishes and stores a notice; returns it. It never waits and never fails."""
        self.last_id += 1
        notice = Notice(self.last_id, self._clock.now(), name, process, message, facts)
        log.warning("%s: %s", name, message)
        self._waiting.append(notice)
        self._flush_later(0.0)
        self.published.publish(notice)
        return notice

    async def page(self, paging: Paging, name: str | None, process: str | None) -> Page[Notice]:
        """Returns one page, including all notices posted until now. Raises `TimedOut`."""
        self.write()
        return await off_loop(lambda: notices.page(paging, name, process))

    async def prune(self, most: int) -> int:
        """Deletes some of the oldest beyond `most`; returns how many. Raises `peewee.PeeweeException`, `TimedOut`."""
        return await off_loop(lambda: notices.prune(most))

    def _flush_later(self, seconds: float) -> None:
        if self._flush is None:
            self._flush = asyncio.get_running_loop().call_later(seconds, self.write)

    def write(self) -> None:
        """Stores some of the waiting notices; if the store fails, retries later."""
        if self._flush is not None:
            self._flush.cancel()
            self._flush = None
        batch = list(islice(self._waiting, _BATCH))
        if not batch:
            return
        try:
            notices.append(batch)
        except peewee.PeeweeException as error:
            if not self._retry:
                log.error("notices cannot be stored (%s): %d wait", error, len(self._waiting))
            self._retry = min(max(2 * self._retry, _FIRST_RETRY_SECONDS), _LAST_RETRY_SECONDS)
            self._flush_later(self._retry)
            return
        self._retry = 0.0
        for _ in batch:
            self._waiting.popleft()
        if self._waiting:
            self._flush_later(0.0)
