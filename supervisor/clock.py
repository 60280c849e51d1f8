"""The time, as those who need it are handed it: tests hand in another one."""

from __future__ import annotations

import asyncio
import time


class Clock:
    """The wall clock for what people read, the boot clock for lengths of time.

    The boot clock never jumps and is the one by which the kernel dates processes, so a length survives our own restart.
    """

    def now(self) -> int:
        """Microseconds since 1970, UTC."""
        return time.time_ns() // 1000

    def since_boot(self) -> float:
        """Seconds since the machine started, sleep included."""
        return time.clock_gettime(time.CLOCK_BOOTTIME)

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)
