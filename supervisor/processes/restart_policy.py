"""When a process that keeps ending is started again, and when no more."""

from __future__ import annotations

import random
from collections import deque

from attrs import Factory, define

from models.supervision.process import ProcessSpec


@define
class Backoff:
    """The restarts that one process has had since somebody last started it by hand."""

    attempt: int = 0
    _at: deque[float] = Factory(deque)

    def next(self, spec: ProcessSpec, lived: float, now: float) -> float | None:
        """Seconds to wait before the restart that is due now, or None where `restart-limit` is reached.

        `lived` is how many seconds the life took that has just ended; `now` is on a clock that never jumps.
        """
        if lived >= spec.restart_reset:
            self.attempt = 0
        while self._at and self._at[0] <= now - spec.restart_window:
            self._at.popleft()
        if spec.restart_limit and len(self._at) >= spec.restart_limit:
            return None
        if spec.restart_limit:
            self._at.append(now)
        self.attempt += 1
        return delay(spec, self.attempt - 1, random.random())


def delay(spec: ProcessSpec, attempt: int, chance: float) -> float:
    """Seconds before the restart numbered `attempt` (0 is the first after a stable life).

    Doubles from `restart-delay`, with up to a quarter more by `chance` (0 to 1) so that a fleet that fell together does
    not rise together, and never above `restart-max-delay`, where the quarter is taken off instead.
    """
    first, most = float(spec.restart_delay), float(max(spec.restart_max_delay, spec.restart_delay))
    wait = first * 2.0 ** min(attempt, 64)
    if wait < most:
        return min(wait * (1 + chance / 4), most)
    return max(first, most * (1 - chance / 4))
