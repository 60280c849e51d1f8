"""The failures that are reported to a caller, by kind. `handlers/base.py` maps each kind to a status code."""

from __future__ import annotations


class Problem(Exception):
    """A failure with a message for the caller.

    `code` is a stable upper-case identifier of the cause (supervision.md, ErrorResponse `code`); None: the kind's.
    """

    def __init__(self, message: str, code: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.code = code
        self.retry_after: int | None = None
        """Seconds after which a retry makes sense."""


class Invalid(Problem):
    """The request, or the configuration it refers to, is not valid."""


class Unauthenticated(Problem):
    """The request needs an account, or its credential is not valid."""


class LoginNeeded(Unauthenticated):
    """A page that needs an account; `at` is the path of the login that leads back to it."""

    def __init__(self, at: str) -> None:
        super().__init__("an account is needed here")
        self.at = at


class Denied(Problem):
    """The caller may not do this, or nobody may."""


class NotFound(Problem):
    """It does not exist, or the caller may not know whether it does."""


class WrongMethod(Problem):
    """The path exists, the method does not; `allowed` has those that do."""

    def __init__(self, message: str, allowed: tuple[str, ...]) -> None:
        super().__init__(message)
        self.allowed = allowed


class SlowRequest(Problem):
    """The request was not complete when its memory was needed."""


class Conflict(Problem):
    """The request is valid, but not in the present state."""


class TooLarge(Problem):
    """The body is larger than its limit."""


class Unsupported(Problem):
    """The media type of the body is not supported here."""


class Misdirected(Problem):
    """The Host header names a host that is not served here (DNS rebinding)."""


class Unprocessable(Problem):
    """The request is well formed, but its content cannot be processed."""


class Throttled(Problem):
    """Too many attempts; `again` is the number of seconds until the next one is allowed."""

    def __init__(self, message: str, again: int) -> None:
        super().__init__(message)
        self.again = again


class Failed(Problem):
    """The operation failed."""


class Upstream(Problem):
    """A service that was called for the caller (cluster, repository, registry) failed."""


class TooLargeResponse(Upstream):
    """As `Upstream`: the response is larger than the limit of its request."""


class Unavailable(Problem):
    """503: shutting down, at capacity, or the store is read-only. Retry later."""


class DiskFull(Unavailable):
    """As `Unavailable`: the store cannot be written because the disk is full."""


class InsufficientStorage(Problem):
    """507: too little space is free on the disk."""


class TimedOut(Problem):
    """The operation exceeded its time limit."""


class CannotUse(Exception):
    """The configuration needs what this installation lacks, in one line for the operator."""
