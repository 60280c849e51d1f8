"""Sessions that could not be stored because the disk is full, so that an ADMIN can log in and delete something."""

from __future__ import annotations

import secrets

from attrs import frozen

from models.accounts import accounts
from models.accounts.accounts import Credential, Password

LIFETIME_MICROSECONDS = 3_600_000_000
_MAX_SESSIONS = 100


@frozen
class _Session:
    id: int
    username: str
    password_hash: str
    expires_at: int


class MemorySessions:
    """They end after an hour, with the server, and when the account or its password changes. Their ids are negative."""

    def __init__(self) -> None:
        self._by_digest: dict[str, _Session] = {}
        self._made = 0

    def add(self, known: Password, now: int) -> str:
        """Returns the id that only the browser keeps. `known` is what the password was held against."""
        raw = secrets.token_urlsafe(32)
        self._made += 1
        session = _Session(-self._made, known.user.username, known.hash, now + LIFETIME_MICROSECONDS)
        self._by_digest[accounts.digest(raw)] = session
        while len(self._by_digest) > _MAX_SESSIONS:
            del self._by_digest[next(iter(self._by_digest))]
        return raw

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
    stored = accounts.password_of(session.username)
    if stored is None or stored.hash != session.password_hash or now >= session.expires_at:
        return None
    return Credential(stored.user, "session", session.id, "FULL")
