"""Sessions that could not be stored because the disk is full, so that an ADMIN can log in and delete something."""

from __future__ import annotations

import secrets

from attrs import frozen

from models.accounts import accounts
from models.accounts.accounts import Credential, Password, SessionInfo, User
from models.errors import NotFound
from models.times import HOUR

LIFETIME = HOUR
_MAX_SESSIONS = 100
_MAX_SESSIONS_OF_ACCOUNT = 5


@frozen
class _Session:
    id: int
    user: User
    password_hash: str
    created_at: int
    expires_at: int


class MemorySessions:
    """They end after an hour at most, with the server, and when the account or its password changes.

    Their ids are negative.
    """

    def __init__(self) -> None:
        self._by_digest: dict[str, _Session] = {}
        self._made = 0

    def add(self, known: Password, lifetime: int, now: int) -> str:
        """Returns the id that only the browser keeps. `known` is what the password was held against.

        `lifetime` is that of stored sessions, in microseconds. An account's sixth session ends its oldest; of too many
        sessions in all the oldest ends that is no ADMIN's.
        """
        raw = secrets.token_urlsafe(32)
        self._made += 1
        session = _Session(-self._made, known.user, known.hash, now, now + min(lifetime, LIFETIME))
        self._by_digest[accounts.digest(raw)] = session
        of_account = [one.id for one in self._by_digest.values() if one.user.id == known.user.id]
        for id in of_account[:-_MAX_SESSIONS_OF_ACCOUNT]:
            self.drop(id)
        if len(self._by_digest) > _MAX_SESSIONS:
            self.drop(min(self._by_digest.values(), key=lambda one: (one.user.is_admin, -one.id)).id)
        return raw

    def of_account(self, user: User, now: int) -> list[SessionInfo]:
        """Those that have not ended, newest first. Raises `peewee.PeeweeException`."""
        own = [
            one for one in tuple(self._by_digest.values()) if one.user.id == user.id
        ]  # the loop may add one meanwhile
        known = [one for one in own if _credential(one, now) is not None]
        return [SessionInfo(one.id, one.created_at, one.expires_at) for one in reversed(known)]

    def end(self, user: User, id: int) -> None:
        """Raises `NotFound` where this user has no such session."""
        if not any(one.id == id and one.user.id == user.id for one in self._by_digest.values()):
            raise NotFound("no such session")
        self.drop(id)

    def end_all(self, user: User) -> None:
        """Ends all sessions of this user."""
        self._by_digest = {digest: one for digest, one in self._by_digest.items() if one.user.id != user.id}

    def find(self, raw: str, now: int) -> Credential | None:
        """The credential of a session that has not ended. Raises `peewee.PeeweeException`."""
        session = self._by_digest.get(accounts.digest(raw)) if self._by_digest else None
        return None if session is None else _credential(session, now)

    def refresh(self, id: int, now: int) -> Credential | None:
        """As `find`, by the id of the credential."""
        session = next((one for one in self._by_digest.values() if one.id == id), None)
        return None if session is None else _credential(session, now)

    def drop(self, id: int) -> None:
        self._by_digest = {digest: one for digest, one in self._by_digest.items() if one.id != id}


def _credential(session: _Session, now: int) -> Credential | None:
    stored = accounts.password_of(session.user.username)
    if stored is None or stored.hash != session.password_hash or now >= session.expires_at:
        return None
    return Credential(stored.user, "session", session.id, "FULL")
