"""Logins by an OpenID provider that were begun and are not finished. Times are microseconds since 1970."""

from __future__ import annotations

import re
import secrets

from attrs import frozen

from models.accounts.tables import database as reports
from models.errors import Throttled

ATTEMPT_SECONDS = 600
MAX_ATTEMPTS, MAX_ATTEMPTS_OF_CALLER = 5_000, 100
"""In all, and of one account or address."""

_RANDOM = re.compile(r"[A-Za-z0-9_-]{43}")


@frozen
class LoginAttempt:
    """A login that a browser has begun. `state` and `browser` are digests, `caller` the account or address."""

    state: str
    browser: str
    target: str
    caller: str
    expires_at: int


@frozen
class Callback:
    """What the provider sends by the browser."""

    state: str
    code: str
    issuer: str | None
    error: str


def random_text() -> str:
    """Returns 256 random bits: the state of a login, or the value of the browser's cookie."""
    return secrets.token_urlsafe(32)


def is_random_text(text: str | None) -> bool:
    """Whether a text can be one of `random_text`."""
    return text is not None and _RANDOM.fullmatch(text) is not None


def begin(attempt: LoginAttempt, now: int) -> None:
    """Stores a login that was begun; of too many in all, the oldest of the caller with the most goes.

    Raises `Throttled` where the caller has begun too many.
    """
    with reports.atomic(of="accounts"):
        reports.execute_sql("DELETE FROM login_attempt WHERE expires_at <= ?", (now,))
        count = "SELECT count(*) FROM login_attempt"
        of_caller = reports.execute_sql(f"{count} WHERE caller = ?", (attempt.caller,)).fetchone()[0]
        if of_caller >= MAX_ATTEMPTS_OF_CALLER:
            raise Throttled("too many logins were begun and not finished; try again later", 60)
        if reports.execute_sql(count).fetchone()[0] >= MAX_ATTEMPTS:
            reports.execute_sql(
                "DELETE FROM login_attempt WHERE state = (SELECT state FROM login_attempt WHERE caller ="
                " (SELECT caller FROM login_attempt GROUP BY caller ORDER BY count(*) DESC LIMIT 1)"
                " ORDER BY expires_at LIMIT 1)"
            )
        row = (attempt.state, attempt.browser, attempt.target, attempt.caller, attempt.expires_at)
        reports.execute_sql(
            "INSERT INTO login_attempt (state, browser, target, caller, expires_at) VALUES (?, ?, ?, ?, ?)", row
        )


def take(state: str, browser: str, now: int) -> str | None:
    """Ends a login that this browser has begun; returns where it leads to, or None if there is none."""
    own = "SELECT target FROM login_attempt WHERE state = ? AND browser = ? AND expires_at > ?"
    if reports.execute_sql(own, (state, browser, now)).fetchone() is None:
        return None  # without a write, which anybody could cause
    rows = reports.execute_sql("DELETE FROM login_attempt WHERE state = ? RETURNING target", (state,)).fetchall()
    return str(rows[0][0]) if rows else None
