"""The clock. It is handed to every part that needs the time, so that tests can replace it."""

from __future__ import annotations

import asyncio
import logging
import time

from models.times import DAY, HOUR, SECOND

log = logging.getLogger("server")

_TRUSTED_AFTER_SECONDS = 86_400.0


class Clock:
    """The wall clock for timestamps, the boot clock for durations.

    The boot clock never jumps. The kernel dates processes by it, so a duration stays valid when the server restarts.
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
        """`now`, for deletion by age. A jump forward of more than an hour counts only a day later: it may be a mistake.

        Call it regularly: a jump is detected by comparing the wall clock with the boot clock since the last call.
        """
        now, boot = self.now(), self.since_boot()
        expected = self._seen[0] + int((boot - self._seen[1]) * SECOND)
        if now <= expected + HOUR:
            self._seen, self._ahead_since = (now, boot), None
            return now
        if self._ahead_since is None:
            self._ahead_since = boot
            hours = (now - expected) / HOUR
            log.warning("the clock jumped %.1f hours ahead: nothing is deleted by age for a day", hours)
        if boot - self._ahead_since < _TRUSTED_AFTER_SECONDS:
            return expected
        self._seen, self._ahead_since = (now, boot), None
        return now

    def expired_before(self, days: int) -> int:
        """What is dated before this is more than so many days old, by `settled`; 1970 at the earliest."""
        return max(0, self.settled() - days * DAY)

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)
