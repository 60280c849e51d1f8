"""Begun logins that could not be stored because the disk is full, so that an ADMIN can log in and delete something."""

from __future__ import annotations

from collections import Counter

from models.accounts.login_attempts import LoginAttempt
from models.errors import Throttled

MAX_ATTEMPTS, MAX_ATTEMPTS_OF_CALLER = 500, 20


class MemoryAttempts:
    """They end with the server. `models.accounts.login_attempts` keeps those that can be stored."""

    def __init__(self) -> None:
        self._by_state: dict[str, LoginAttempt] = {}  # oldest first

    def begin(self, attempt: LoginAttempt, now: int) -> None:
        """Keeps a login that was begun; of too many in all, the oldest of the caller with the most goes.

        Raises `Throttled` where the caller has begun too many.
        """
        self._by_state = {state: one for state, one in self._by_state.items() if one.expires_at > now}
        counts = Counter(one.caller for one in self._by_state.values())
        if counts[attempt.caller] >= MAX_ATTEMPTS_OF_CALLER:
            raise Throttled("too many logins were begun and not finished; try again later", 60)
        if len(self._by_state) >= MAX_ATTEMPTS:
            ((most, _),) = counts.most_common(1)
            del self._by_state[next(state for state, one in self._by_state.items() if one.caller == most)]
        self._by_state[attempt.state] = attempt

    def take(self, state: str, browser: str, now: int) -> str | None:
        """Ends a login that this browser has begun; returns where it leads to, or None if there is none."""
        attempt = self._by_state.get(state)
        if attempt is None or attempt.browser != browser or attempt.expires_at <= now:
            return None
        del self._by_state[state]
        return attempt.target
