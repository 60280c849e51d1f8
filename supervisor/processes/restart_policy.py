"""When a process is restarted: the delays, which double, and the limit of restarts within a window."""

from __future__ import annotations

import asyncio
import random
from collections import deque
from typing import Any

from models.supervision.process import ProcessSpec


class RestartPolicy:
    """The restarts of one process since an operator last started it, and the one that waits for its delay."""

    def __init__(self) -> None:
        self.restarts = 0
        self._attempt = 0
        self._at: deque[float] = deque()
        self._due: asyncio.Task[None] | None = None

    @property
    def is_due(self) -> bool:
        """Whether the process waits for its restart."""
        return self._due is not None

    def next_delay(self, spec: ProcessSpec, uptime: float, now: float) -> float | None:
        """Seconds until the next restart, or None where `restart-limit` is reached.

        `uptime` is how many seconds the process ran; `now` is on a clock that never jumps.
        """
        if uptime >= spec.restart_reset:
            self._attempt = 0
        while self._at and self._at[0] <= now - spec.restart_window:
            self._at.popleft()
        if spec.restart_limit and len(self._at) >= spec.restart_limit:
            return None
        if spec.restart_limit:
            self._at.append(now)
        self._attempt += 1
        return delay(spec, self._attempt - 1, random.random())

    def schedule(self, restart: asyncio.Task[None]) -> None:
        """`restart` is a task that waits for the delay and then restarts the process."""
        self._due = restart

    def holds(self, restart: asyncio.Task[Any] | None) -> bool:
        """Whether that restart is still the one that is due."""
        return self._due is restart

    def release(self, restart: asyncio.Task[Any] | None) -> None:
        """That restart has begun or has failed: it is no longer due."""
        if self._due is restart:
            self._due = None

    def cancel(self) -> bool:
        """Cancels the restart that is due; returns whether one was."""
        due, self._due = self._due, None
        if due is not None:
            due.cancel()
        return due is not None

    def reset(self) -> None:
        """An operator starts the process: no restart is due, and earlier restarts do not count."""
        self.cancel()
        self._attempt = 0
        self._at.clear()


def delay(spec: ProcessSpec, attempt: int, chance: float) -> float:
    """Seconds before the restart numbered `attempt` (0 is the first after a stable run).

    The delay doubles from `restart-delay` up to `restart-max-delay`. `chance` (0 to 1) adds up to a quarter, so that
    processes that failed together do not restart together; at the maximum the quarter is subtracted.
    """
    first, longest = float(spec.restart_delay), float(max(spec.restart_max_delay, spec.restart_delay))
    wait = first * 2.0 ** min(attempt, 64)
    if wait < longest:
        return min(wait * (1 + chance / 4), longest)
    return max(first, longest * (1 - chance / 4))
