"""The time, as those who need it are handed it: tests hand in another one."""

from __future__ import annotations

import asyncio
import logging
import time

log = logging.getLogger("server")

_HOUR = 3600 * 1_000_000
_BELIEVED_AFTER = 86_400.0


class Clock:
    """The wall clock for what people read, the boot clock for lengths of time.

    The boot clock never jumps and is the one by which the kernel dates processes, so a length survives our own restart.
    """

    def __init__(self) -> None:
        self._seen = self.now(), self.since_boot()
        self._ahead_since: float | None = None

    def now(self) -> int:
        """Microseconds since 1970, UTC."""
        return time.time_ns() // 1000

    def since_boot(self) -> float:
        """Seconds since the machine started, sleep included."""
        return time.clock_gettime(time.CLOCK_BOOTTIME)

    def settled(self) -> int:
        """`now`, for what deletes by age. A jump forward of more than an hour counts a day later: before that it may be
        a mistake, and what was deleted by mistake does not come back.

        To be asked now and then: a length of time is told from a jump by the boot clock.
        """
        now, boot = self.now(), self.since_boot()
        expected = self._seen[0] + int((boot - self._seen[1]) * 1_000_000)
        if now <= expected + _HOUR:
            self._seen, self._ahead_since = (now, boot), None
            return now
        if self._ahead_since is None:
            self._ahead_since = boot
            hours = (now - expected) / _HOUR
            log.warning("the clock jumped %.1f hours ahead: nothing is deleted by age for a day", hours)
        if boot - self._ahead_since < _BELIEVED_AFTER:
            return expected
        self._seen, self._ahead_since = (now, boot), None
        return now

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)
