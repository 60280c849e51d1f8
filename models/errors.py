"""The failures that a caller is told of, by kind. `handlers/base.py` alone knows which status code each kind is."""

from __future__ import annotations


class Problem(Exception):
    """A failure with words for whoever asked.

    `code` is a stable upper-case word per cause (supervision.md, ErrorResponse `code`); `None` leaves it to the kind.
    """

    def __init__(self, message: str, code: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.code = code


class Invalid(Problem):
    """The request, or the configuration that it concerns, cannot be right."""


class Unauthenticated(Problem):
    """An account is needed and none, or a bad credential, came with the request."""


class LoginNeeded(Unauthenticated):
    """A page that only an account may see; `at` is the path of the login that leads back to it."""

    def __init__(self, at: str) -> None:
        super().__init__("an account is needed here")
        self.at = at


class Denied(Problem):
    """The caller is known, or does not matter, and may not do this."""


class NotFound(Problem):
    """There is no such thing, or none that this caller may know of."""


class WrongMethod(Problem):
    """The path exists, the method does not; `allowed` are those that do."""

    def __init__(self, message: str, allowed: tuple[str, ...]) -> None:
        super().__init__(message)
        self.allowed = allowed


class SlowRequest(Problem):
    """The request was not complete when its memory was needed."""


class Conflict(Problem):
    """The request is right, but not in the state that things are in."""


class TooLarge(Problem):
    """The body is larger than its limit."""


class Unsupported(Problem):
    """The body is of a media type that is not taken here."""


class Misdirected(Problem):
    """The Host header names somebody else (DNS rebinding)."""


class Unprocessable(Problem):
    """The request is well formed, and what it asks for cannot be made of what it brings."""


class Throttled(Problem):
    """Too many tries; `again` is after how many seconds the next one may be made."""

    def __init__(self, message: str, again: int) -> None:
        super().__init__(message)
        self.again = again


class Failed(Problem):
    """We tried and it did not work."""


class Upstream(Problem):
    """Somebody whom we asked on the caller's behalf (cluster, repository, registry) failed."""


class Unavailable(Problem):
    """Not now: stopping, a full house, or a store that cannot be written."""


class TimedOut(Problem):
    """It took longer than its bound."""


class CannotUse(Exception):
    """The configuration asks for what this installation cannot do, in one line for the operator."""
