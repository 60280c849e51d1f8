"""Accounts, sessions and tokens in the store. Of a session id and a token only the SHA-256 is stored.

Reads are of one row by an index and may be made on the loop; writes belong in a worker. Times are microseconds since
1970. Passwords arrive hashed (`supervisor/accounts/passwords.py`).
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
from models.times import DAY

Role = Literal["ADMIN", "USER"]
Scope = Literal["FULL", "INGEST"]
CredentialKind = Literal["session", "token", "proxy"]

TOKEN_PREFIX = "plt_"  # noqa: S105 (no password: the prefix by which scanners find leaked tokens)
MAX_NAME_LENGTH, MAX_TEXT_LENGTH, MIN_PASSWORD_LENGTH, MAX_PASSWORD_LENGTH = 64, 255, 8, 1024
MAX_SESSIONS_OF_ACCOUNT = MAX_TOKENS_OF_ACCOUNT = 100
"""A session more ends the oldest; a token more is refused."""

EXPIRING = 7 * DAY
"""So long before its end a token is reported."""
_MAX_EXPIRING = 1_000

USER_COLUMNS = "a.id, a.username, a.display_name, a.email, a.role"
"""The columns of `account AS a` in the order of `user_of`."""

_TOKEN_PREFIX_LENGTH = len(TOKEN_PREFIX) + 6


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
    """A valid session or token, or the report of a trusted proxy, and its account."""

    user: User
    kind: CredentialKind
    id: int
    """That of the account, for one of kind proxy."""
    scope: Scope
    used_at: int | None = None
    """When the last use of a token was stored."""


@frozen
class PresentedCredential:
    """The session id or token that a request presents, or the name of the account that a trusted proxy reports."""

    kind: CredentialKind
    raw: str = field(repr=False)
    groups: tuple[str, ...] = ()
    """The groups that the proxy reports."""


@frozen
class Password:
    """An account's password hash."""

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


_ENDS = "revoked_at IS NULL AND expires_at - t.created_at > ? AND expires_at > ?"
_EXPIRING = (
    "SELECT t.id, t.name, a.username, t.expires_at,"  # noqa: S608 (our own condition)
    " CASE WHEN a.mail_tokens = 1 AND a.email IS NOT NULL THEN a.id END"
    " FROM token t JOIN account a ON a.id = t.account_id"
    f" WHERE {_ENDS} AND expires_at <= ? ORDER BY expires_at, t.id LIMIT ?"
)
_NEXT_EXPIRING = f"SELECT min(expires_at) FROM token t WHERE {_ENDS}"  # noqa: S608
_HOLDER = f"{USER_COLUMNS} FROM account AS a JOIN"
_OF_TOKEN = (
    f"SELECT t.id, t.scope, t.last_used_at, {_HOLDER} token AS t ON t.account_id = a.id"
    " WHERE t.revoked_at IS NULL AND (t.expires_at IS NULL OR t.expires_at > ?) AND "
)
_OF_ACCOUNT = f"SELECT a.id, 'FULL', NULL, {USER_COLUMNS} FROM account AS a WHERE ? > 0 AND a.id = ?"  # noqa: S608 (ours)
_OF_SESSION = f"SELECT s.id, 'FULL', NULL, {_HOLDER} session AS s ON s.account_id = a.id WHERE s.expires_at > ? AND "


def by_token(raw: str, now: int) -> Credential | None:
    """Returns the credential of a token that is neither revoked nor expired."""
    return _credential("token", _OF_TOKEN + "t.hash = ?", now, digest(raw))


def by_session(raw: str, now: int) -> Credential | None:
    """Returns the credential of a session that has not ended."""
    return _credential("session", _OF_SESSION + "s.hash = ?", now, digest(raw))


def refresh(credential: Credential, now: int) -> Credential | None:
    """Returns the credential with its account as stored now; None if it has ended."""
    if credential.kind == "token":
        return _credential("token", _OF_TOKEN + "t.id = ?", now, credential.id)
    if credential.kind == "proxy":
        return _credential("proxy", _OF_ACCOUNT, now, credential.id)
    return _credential("session", _OF_SESSION + "s.id = ?", now, credential.id)


def _credential(kind: CredentialKind, query: str, now: int, key: str | int) -> Credential | None:
    row = reports.execute_sql(query, (now, key)).fetchone()
    return Credential(user_of(row[3:]), kind, row[0], row[1], row[2]) if row else None


def user_of(row: Sequence[Any]) -> User:
    """Returns the account of a row of `USER_COLUMNS`."""
    return User(*row)


def digest(raw: str) -> str:
    """Returns the stored form of a session id or token. The time of a lookup by it reveals nothing about either."""
    return hashlib.sha256(raw.encode("utf-8", "replace")).hexdigest()


# Accounts

_USER = f"SELECT {USER_COLUMNS}, a.password_hash FROM account AS a WHERE "  # noqa: S608 (our own column names)


def user_named(username: str) -> User | None:
    password = password_of(username)
    return password.user if password else None


def password_of(username: str) -> Password | None:
    row = reports.execute_sql(_USER + "a.username = ?", (username,)).fetchone()
    return Password(user_of(row[:-1]), row[-1]) if row else None


def user_by_id(user_id: int) -> User:
    """Raises `NotFound`."""
    row = reports.execute_sql(_USER + "a.id = ?", (user_id,)).fetchone()
    if row is None:
        raise NotFound("no such account")
    return user_of(row[:-1])


def list_users() -> list[User]:
    """Returns the accounts, sorted by name."""
    return [user_of(row[:-1]) for row in reports.execute_sql(_USER + "1 = 1 ORDER BY a.username")]


def has_admin() -> bool:
    return reports.execute_sql("SELECT 1 FROM account WHERE role = 'ADMIN' LIMIT 1").fetchone() is not None


def create_user(username: str, password_hash: str, role: Role, now: int, display_name: str | None = None) -> User:
    """Raises `Invalid` for a name that is not allowed, `Conflict` for one that is taken."""
    check_username(username)
    row = (username, display_name, password_hash, role, now)
    try:
        ((id,),) = reports.execute_sql(
            "INSERT INTO account (username, display_name, password_hash, role, created_at) VALUES (?, ?, ?, ?, ?)"
            " RETURNING id",
            row,
        ).fetchall()
    except peewee.IntegrityError:
        raise Conflict(f"the user name {username} is taken") from None
    return User(id, username, display_name, None, role)


def set_profile(user_id: int, display_name: str | None, email: str | None) -> None:
    """Raises `Invalid`."""
    shown_name, mail = _text("the display name", display_name), _text("the e-mail address", email)
    if mail is not None and (mail.count("@") != 1 or mail[0] == "@" or mail[-1] == "@" or " " in mail):
        raise Invalid("the e-mail address is not valid")
    reports.execute_sql("UPDATE account SET display_name = ?, email = ? WHERE id = ?", (shown_name, mail, user_id))


def set_password(user_id: int, password_hash: str, keep_session: int | None = None) -> None:
    """Sets the password and ends the user's sessions except `keep_session`."""
    with reports.atomic(of="accounts"):
        reports.execute_sql("UPDATE account SET password_hash = ? WHERE id = ?", (password_hash, user_id))
        reports.execute_sql("DELETE FROM session WHERE account_id = ? AND id IS NOT ?", (user_id, keep_session))


def set_role(user_id: int, role: Role) -> None:
    """Raises `Conflict` for the last ADMIN."""
    with reports.atomic(of="accounts"):
        if role != "ADMIN":
            _check_other_admin(user_id)
        reports.execute_sql("UPDATE account SET role = ? WHERE id = ?", (role, user_id))


def delete_user(user_id: int) -> None:
    """Deletes the account, its sessions, tokens and memberships. Raises `Conflict` for the last ADMIN."""
    with reports.atomic(of="accounts"):
        _check_other_admin(user_id)
        reports.execute_sql("DELETE FROM account WHERE id = ?", (user_id,))


def _check_other_admin(user_id: int) -> None:
    others = reports.execute_sql("SELECT 1 FROM account WHERE role = 'ADMIN' AND id != ? LIMIT 1", (user_id,))
    if others.fetchone() is None:
        raise Conflict("this is the last ADMIN")


def check_username(username: str) -> None:
    """Raises `Invalid`."""
    if not 1 <= len(username) <= MAX_NAME_LENGTH or not username.isprintable() or " " in username:
        raise Invalid(f"a user name has 1 to {MAX_NAME_LENGTH} characters, all of them printable, none a space")


def check_password(password: str) -> None:
    """Raises `Invalid`, without the password in its message."""
    if not MIN_PASSWORD_LENGTH <= len(password) <= MAX_PASSWORD_LENGTH:
        raise Invalid(f"a password has {MIN_PASSWORD_LENGTH} to {MAX_PASSWORD_LENGTH} characters")
    if "\0" in password or any("\ud800" <= c <= "\udfff" for c in password):
        raise Invalid("a password is valid UTF-8 without NUL")


def _text(what: str, value: str | None) -> str | None:
    """Returns a single-line text of a profile; None if it is blank."""
    value = (value or "").strip()
    if len(value) > MAX_TEXT_LENGTH or not value.isprintable():
        raise Invalid(f"{what} has at most {MAX_TEXT_LENGTH} characters, all of them printable")
    return value or None


# Sessions


def log_in(known: Password, lifetime: int, now: int, new_hash: str | None = None) -> str | None:
    """Creates a session and returns its id, which only the browser keeps. `lifetime` is in microseconds.

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
            "DELETE FROM session WHERE account_id = ? AND id NOT IN"
            " (SELECT id FROM session WHERE account_id = ? ORDER BY id DESC LIMIT ?)",
            (user_id, user_id, MAX_SESSIONS_OF_ACCOUNT),
        )
    return raw


def sessions_of(user_id: int, now: int) -> list[SessionInfo]:
    """Returns the sessions that have not ended, newest first."""
    query = "SELECT id, created_at, expires_at FROM session WHERE account_id = ? AND expires_at > ? ORDER BY id DESC"
    return [SessionInfo(*row) for row in reports.execute_sql(query, (user_id, now))]


def end_session(user_id: int, session_id: int) -> None:
    """Raises `NotFound` where this user has no such session."""
    done = reports.execute_sql("DELETE FROM session WHERE id = ? AND account_id = ?", (session_id, user_id))
    if not done.rowcount:
        raise NotFound("no such session")


def drop_session(session_id: int) -> None:
    """Deletes a session, if it exists."""
    reports.execute_sql("DELETE FROM session WHERE id = ?", (session_id,))


def prune_sessions(now: int) -> int:
    """Deletes the sessions that have ended; returns their number."""
    return int(reports.execute_sql("DELETE FROM session WHERE expires_at <= ?", (now,)).rowcount)


# Tokens


def create_token(user_id: int, name: str, scope: Scope, expires_at: int | None, now: int) -> str:
    """Returns the token, which is not stored. Raises `Invalid` for the name, `Conflict` for a token too many.

    Of the revoked tokens only the newest `MAX_TOKENS_OF_ACCOUNT` stay in the list.
    """
    token_name = _text("the name of a token", name)
    if token_name is None:
        raise Invalid("a token needs a name")
    raw = TOKEN_PREFIX + secrets.token_urlsafe(32)
    with reports.atomic(of="accounts"):
        count = "SELECT count(*) FROM token WHERE account_id = ? AND revoked_at IS NULL"
        if reports.execute_sql(count, (user_id,)).fetchone()[0] >= MAX_TOKENS_OF_ACCOUNT:
            raise Conflict(f"this account has {MAX_TOKENS_OF_ACCOUNT} tokens already; revoke one first")
        reports.execute_sql(
            "INSERT INTO token (hash, account_id, name, scope, prefix, created_at, expires_at)"
            " VALUES (?, ?, ?, ?, ?, ?, ?)",
            (digest(raw), user_id, token_name, scope, raw[:_TOKEN_PREFIX_LENGTH], now, expires_at),
        )
        reports.execute_sql(
            "DELETE FROM token WHERE account_id = ? AND revoked_at IS NOT NULL AND id NOT IN"
            " (SELECT id FROM token WHERE account_id = ? AND revoked_at IS NOT NULL ORDER BY id DESC LIMIT ?)",
            (user_id, user_id, MAX_TOKENS_OF_ACCOUNT),
        )
    return raw


def tokens_of(user_id: int) -> list[TokenInfo]:
    """Returns the tokens, revoked ones too, newest first."""
    query = (
        "SELECT id, name, scope, prefix, created_at, expires_at, last_used_at, revoked_at FROM token"
        " WHERE account_id = ? ORDER BY id DESC"
    )
    return [TokenInfo(*row) for row in reports.execute_sql(query, (user_id,))]


@frozen
class ExpiringToken:
    """A token that ends at `expires_at`, and whose it is."""

    id: int
    name: str
    username: str
    expires_at: int
    mailed_account: int | None
    """The account, if it wants a mail about this."""


def expiring_tokens(now: int) -> tuple[Sequence[ExpiringToken], int | None]:
    """The valid tokens that end within `EXPIRING` of `now`, and when another one does; None if none has an end.

    Tokens that were made for no longer than that do not count.
    """
    rows = reports.execute_sql(_EXPIRING, (EXPIRING, now, now + EXPIRING, _MAX_EXPIRING))
    following = reports.execute_sql(_NEXT_EXPIRING, (EXPIRING, now + EXPIRING)).fetchone()[0]
    return [ExpiringToken(*row) for row in rows], None if following is None else int(following) - EXPIRING


def revoke_token(user_id: int, token_id: int, now: int) -> None:
    """Raises `NotFound` where this user has no such token."""
    done = reports.execute_sql(
        "UPDATE token SET revoked_at = coalesce(revoked_at, ?) WHERE id = ? AND account_id = ?",
        (now, token_id, user_id),
    )
    if not done.rowcount:
        raise NotFound("no such token")


def write_uses(uses: Iterable[tuple[int, int]]) -> None:
    """Stores when tokens were used last, as pairs of id and time."""
    with reports.atomic(of="accounts"):
        reports.write_many("UPDATE token SET last_used_at = ? WHERE id = ?", [(at, id) for id, at in uses])
