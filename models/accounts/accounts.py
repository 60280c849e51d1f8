"""Accounts, their sessions and tokens, as they are kept. Of a session id or a token only the SHA-256 is.

Reads are of one row by an index and may be made on the loop; writes belong to the worker. Times are microseconds since
1970. Passwords come here hashed (`supervisor/accounts/passwords.py`).
"""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Iterable, Sequence
from typing import Any, Literal

import peewee
from attrs import field, frozen

from models.accounts.tables import database as reports
from models.errors import Conflict, Invalid, NotFound

Role = Literal["ADMIN", "USER"]
Scope = Literal["FULL", "INGEST"]

TOKEN_PREFIX = "plt_"  # noqa: S105 (no password, the mark by which a leaked token is found)
LONGEST_NAME, LONGEST_TEXT, LEAST_PASSWORD, LONGEST_PASSWORD = 64, 255, 8, 1024
MOST_SESSIONS = MOST_TOKENS = 100
"""Of one account. The oldest session goes when one more comes; a token more is refused."""

USER_COLUMNS = "a.id, a.username, a.display_name, a.email, a.role"
"""Of `account AS a`, in the order in which `user_of` takes them."""

_SHOWN = len(TOKEN_PREFIX) + 6


@frozen
class User:
    id: int
    username: str
    display_name: str | None
    email: str | None
    role: Role

    @property
    def is_admin(self) -> bool:
        return self.role == "ADMIN"


@frozen
class Credential:
    """What somebody showed that is good: a session or a token, and whose it is."""

    user: User
    kind: Literal["session", "token"]
    id: int
    scope: Scope
    used_at: int | None = None
    """When the last use of a token was written down."""


@frozen
class PresentedCredential:
    """What a request bears to tell who sent it."""

    kind: Literal["session", "token"]
    raw: str = field(repr=False)


@frozen
class Password:
    """What a login is held against; never shown."""

    user: User
    hash: str = field(repr=False)


@frozen
class SessionInfo:
    id: int
    created_at: int
    expires_at: int


@frozen
class TokenInfo:
    id: int
    name: str
    scope: Scope
    prefix: str
    created_at: int
    expires_at: int | None
    last_used_at: int | None
    revoked_at: int | None


_HOLDER = f"{USER_COLUMNS} FROM account AS a JOIN"
_OF_TOKEN = (
    f"SELECT t.id, t.scope, t.last_used_at, {_HOLDER} token AS t ON t.account_id = a.id"
    " WHERE t.revoked_at IS NULL AND (t.expires_at IS NULL OR t.expires_at > ?) AND "
)
_OF_SESSION = f"SELECT s.id, 'FULL', NULL, {_HOLDER} session AS s ON s.account_id = a.id WHERE s.expires_at > ? AND "


def by_token(raw: str, now: int) -> Credential | None:
    """The holder of a token that is known, not revoked and not expired."""
    return _credential("token", _OF_TOKEN + "t.hash = ?", now, digest(raw))


def by_session(raw: str, now: int) -> Credential | None:
    """The holder of a session that has not ended."""
    return _credential("session", _OF_SESSION + "s.hash = ?", now, digest(raw))


def still(credential: Credential, now: int) -> Credential | None:
    """The same credential as it is now, its user read anew; None if it ended."""
    if credential.kind == "token":
        return _credential("token", _OF_TOKEN + "t.id = ?", now, credential.id)
    return _credential("session", _OF_SESSION + "s.id = ?", now, credential.id)


def _credential(kind: Literal["session", "token"], query: str, now: int, key: str | int) -> Credential | None:
    row = reports.execute_sql(query, (now, key)).fetchone()
    return Credential(user_of(row[3:]), kind, row[0], row[1], row[2]) if row else None


def user_of(row: Sequence[Any]) -> User:
    """A row of `USER_COLUMNS`."""
    return User(*row)


def digest(raw: str) -> str:
    """What is kept of a session id or a token. A lookup by it tells nobody by its time how much of one was right."""
    return hashlib.sha256(raw.encode("utf-8", "replace")).hexdigest()


# Accounts

_USER = f"SELECT {USER_COLUMNS}, a.password_hash FROM account AS a WHERE "  # noqa: S608 (our own column names)


def user_named(username: str) -> User | None:
    known = password_of(username)
    return known.user if known else None


def password_of(username: str) -> Password | None:
    row = reports.execute_sql(_USER + "a.username = ?", (username,)).fetchone()
    return Password(user_of(row[:-1]), row[-1]) if row else None


def user_by_id(user_id: int) -> User:
    """Raises `NotFound`."""
    row = reports.execute_sql(_USER + "a.id = ?", (user_id,)).fetchone()
    if row is None:
        raise NotFound("there is no such account")
    return user_of(row[:-1])


def list_users() -> list[User]:
    """By name."""
    return [user_of(row[:-1]) for row in reports.execute_sql(_USER + "1 = 1 ORDER BY a.username")]


def has_admin() -> bool:
    return reports.execute_sql("SELECT 1 FROM account WHERE role = 'ADMIN' LIMIT 1").fetchone() is not None


def create_user(username: str, password_hash: str, role: Role, now: int, display_name: str | None = None) -> User:
    """Raises `Invalid` for a name that nobody can have, `Conflict` for one that somebody has."""
    check_username(username)
    row = (username, display_name, password_hash, role, now)
    try:
        ((id,),) = reports.execute_sql(
            "INSERT INTO account (username, display_name, password_hash, role, created_at) VALUES (?, ?, ?, ?, ?)"
            " RETURNING id",
            row,
        ).fetchall()
    except peewee.IntegrityError:
        raise Conflict(f"there is a user {username} already") from None
    return User(id, username, display_name, None, role)


def set_profile(user_id: int, display_name: str | None, email: str | None) -> None:
    """Raises `Invalid`."""
    shown, mail = _text("the display name", display_name), _text("the e-mail address", email)
    if mail is not None and (mail.count("@") != 1 or mail[0] == "@" or mail[-1] == "@" or " " in mail):
        raise Invalid("the e-mail address is none")
    reports.execute_sql("UPDATE account SET display_name = ?, email = ? WHERE id = ?", (shown, mail, user_id))


def set_password(user_id: int, password_hash: str, keep_session: int | None = None) -> None:
    """Sets it and ends the user's sessions, but `keep_session`."""
    with reports.atomic(of="accounts"):
        reports.execute_sql("UPDATE account SET password_hash = ? WHERE id = ?", (password_hash, user_id))
        reports.execute_sql("DELETE FROM session WHERE account_id = ? AND id IS NOT ?", (user_id, keep_session))


def set_role(user_id: int, role: Role) -> None:
    """Raises `Conflict` where nobody would be ADMIN any more."""
    with reports.atomic(of="accounts"):
        if role != "ADMIN":
            _keep_an_admin(user_id)
        reports.execute_sql("UPDATE account SET role = ? WHERE id = ?", (role, user_id))


def delete_user(user_id: int) -> None:
    """The account with its sessions, tokens and memberships. Raises `Conflict` for the last ADMIN."""
    with reports.atomic(of="accounts"):
        _keep_an_admin(user_id)
        reports.execute_sql("DELETE FROM account WHERE id = ?", (user_id,))


def _keep_an_admin(without: int) -> None:
    others = reports.execute_sql("SELECT 1 FROM account WHERE role = 'ADMIN' AND id != ? LIMIT 1", (without,))
    if others.fetchone() is None:
        raise Conflict("this is the last ADMIN")


def check_username(username: str) -> None:
    """Raises `Invalid`."""
    if not 1 <= len(username) <= LONGEST_NAME or not username.isprintable() or " " in username:
        raise Invalid(f"a user name has 1 to {LONGEST_NAME} characters, all of them printable, none a space")


def check_password(password: str) -> None:
    """Raises `Invalid`; never says what it refuses."""
    if not LEAST_PASSWORD <= len(password) <= LONGEST_PASSWORD:
        raise Invalid(f"a password has {LEAST_PASSWORD} to {LONGEST_PASSWORD} characters")
    if "\0" in password or any("\ud800" <= c <= "\udfff" for c in password):
        raise Invalid("a password is valid UTF-8 without NUL")


def _text(what: str, value: str | None) -> str | None:
    """A line of somebody's own; blank is none."""
    value = (value or "").strip()
    if len(value) > LONGEST_TEXT or not value.isprintable():
        raise Invalid(f"{what} has at most {LONGEST_TEXT} characters, all of them printable")
    return value or None


# Sessions


def log_in(known: Password, lifetime: int, now: int, new_hash: str | None = None) -> str | None:
    """A new session; returns its id, which is kept by nobody but the browser. `lifetime` in microseconds.

    `known` is what the password was held against, and `new_hash` what is kept of it from now on, where it is to change.
    None where it is not the account's any more.
    """
    raw, user_id = secrets.token_urlsafe(32), known.user.id
    with reports.atomic(of="accounts"):
        now_known = reports.execute_sql("SELECT password_hash FROM account WHERE id = ?", (user_id,)).fetchone()
        if now_known is None or now_known[0] != known.hash:
            return None
        if new_hash is not None:
            reports.execute_sql("UPDATE account SET password_hash = ? WHERE id = ?", (new_hash, user_id))
        reports.execute_sql(
            "INSERT INTO session (hash, account_id, created_at, expires_at) VALUES (?, ?, ?, ?)",
            (digest(raw), user_id, now, now + lifetime),
        )
        reports.execute_sql(
            "DELETE FROM session WHERE account_id = ? AND (expires_at <= ? OR id NOT IN"
            " (SELECT id FROM session WHERE account_id = ? ORDER BY id DESC LIMIT ?))",
            (user_id, now, user_id, MOST_SESSIONS),
        )
    return raw


def sessions_of(user_id: int, now: int) -> list[SessionInfo]:
    """The newest first."""
    query = "SELECT id, created_at, expires_at FROM session WHERE account_id = ? AND expires_at > ? ORDER BY id DESC"
    return [SessionInfo(*row) for row in reports.execute_sql(query, (user_id, now))]


def end_session(user_id: int, session_id: int) -> None:
    """Raises `NotFound` where it is not one of this user."""
    done = reports.execute_sql("DELETE FROM session WHERE id = ? AND account_id = ?", (session_id, user_id))
    if not done.rowcount:
        raise NotFound("there is no such session")


def drop_session(session_id: int) -> None:
    """Ends it, if it has not ended."""
    reports.execute_sql("DELETE FROM session WHERE id = ?", (session_id,))


def prune_sessions(now: int) -> int:
    """Removes those that have ended; returns how many."""
    return int(reports.execute_sql("DELETE FROM session WHERE expires_at <= ?", (now,)).rowcount)


# Tokens


def create_token(user_id: int, name: str, scope: Scope, expires_at: int | None, now: int) -> str:
    """Returns the token: nobody can read it again. Raises `Invalid` for the name, `Conflict` where there are too many.

    Of the revoked ones only the newest `MOST_TOKENS` stay in the list.
    """
    shown = _text("the name of a token", name)
    if shown is None:
        raise Invalid("a token needs a name")
    raw = TOKEN_PREFIX + secrets.token_urlsafe(32)
    with reports.atomic(of="accounts"):
        count = "SELECT count(*) FROM token WHERE account_id = ? AND revoked_at IS NULL"
        if reports.execute_sql(count, (user_id,)).fetchone()[0] >= MOST_TOKENS:
            raise Conflict(f"there are {MOST_TOKENS} tokens already; revoke one first")
        reports.execute_sql(
            "INSERT INTO token (hash, account_id, name, scope, prefix, created_at, expires_at)"
            " VALUES (?, ?, ?, ?, ?, ?, ?)",
            (digest(raw), user_id, shown, scope, raw[:_SHOWN], now, expires_at),
        )
        reports.execute_sql(
            "DELETE FROM token WHERE account_id = ? AND revoked_at IS NOT NULL AND id NOT IN"
            " (SELECT id FROM token WHERE account_id = ? AND revoked_at IS NOT NULL ORDER BY id DESC LIMIT ?)",
            (user_id, user_id, MOST_TOKENS),
        )
    return raw


def tokens_of(user_id: int) -> list[TokenInfo]:
    """The newest first, revoked ones too."""
    query = (
        "SELECT id, name, scope, prefix, created_at, expires_at, last_used_at, revoked_at FROM token"
        " WHERE account_id = ? ORDER BY id DESC"
    )
    return [TokenInfo(*row) for row in reports.execute_sql(query, (user_id,))]


def revoke_token(user_id: int, token_id: int, now: int) -> None:
    """For ever. Raises `NotFound` where it is not one of this user."""
    done = reports.execute_sql(
        "UPDATE token SET revoked_at = coalesce(revoked_at, ?) WHERE id = ? AND account_id = ?",
        (now, token_id, user_id),
    )
    if not done.rowcount:
        raise NotFound("there is no such token")


def write_uses(uses: Iterable[tuple[int, int]]) -> None:
    """Keeps when tokens were used last: pairs of id and time."""
    with reports.atomic(of="accounts"):
        reports.write_many("UPDATE token SET last_used_at = ? WHERE id = ?", [(at, id) for id, at in uses])
