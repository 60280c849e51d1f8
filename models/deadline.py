"""A time limit for CPU-bound work in a worker thread: long loops call `checkpoint`, which raises when time is over."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

from models.errors import Unprocessable


class Deadline:
    """The end of one piece of work; `cancel` ends it early."""

    def __init__(self, seconds: float, reason: str) -> None:
        self._ends = time.monotonic() + seconds
        self._reason = reason
        self._is_cancelled = False

    def cancel(self) -> None:
        self._is_cancelled = True

    def check(self) -> None:
        """Raises `Unprocessable` if the time is over or the work was cancelled."""
        if self._is_cancelled or time.monotonic() > self._ends:
            raise Unprocessable(self._reason)


_current = threading.local()


@contextmanager
def applied(deadline: Deadline) -> Iterator[None]:
    """Applies a deadline to the checkpoints of this thread."""
    _current.deadline = deadline
    try:
        yield
    finally:
        _current.deadline = None


def checkpoint() -> None:
    """Raises `Unprocessable` if this thread's work has passed its deadline; without a deadline it does nothing."""
    deadline: Deadline | None = getattr(_current, "deadline", None)
    if deadline is not None:
        deadline.check()
