"""The exit codes of `ctl`, and the failures that lead to them."""

from __future__ import annotations

OK, FAILED, USAGE, NOT_RUNNING, REFUSED, UNKNOWN, AWAY, TIMED_OUT = 0, 1, 2, 3, 4, 5, 7, 124


class CtlError(Exception):
    """A failure with its message and its exit code."""

    def __init__(self, message: str, code: int = FAILED) -> None:
        super().__init__(message)
        self.code = code


class ServerAway(CtlError):
    """No server responds, or the connection to it was lost."""

    def __init__(self, message: str) -> None:
        super().__init__(message, AWAY)
