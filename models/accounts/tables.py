"""The tables of accounts. They lie in the tracker's store, so that a membership ends with its project.

Times are microseconds since 1970 (UTC).
"""

from __future__ import annotations

from models.storage.columns import Row, fields
from models.storage.sqlite import Either

STEPS: list[list[str]] = [
    [
        "CREATE TABLE account (id INTEGER PRIMARY KEY AUTOINCREMENT, username TEXT NOT NULL UNIQUE,"
        " display_name TEXT, email TEXT, password_hash TEXT NOT NULL, role TEXT NOT NULL,"
        " created_at INTEGER NOT NULL)",
        "CREATE TABLE session (id INTEGER PRIMARY KEY AUTOINCREMENT, hash TEXT NOT NULL UNIQUE,"
        " account_id INTEGER NOT NULL REFERENCES account ON DELETE CASCADE, created_at INTEGER NOT NULL,"
        " expires_at INTEGER NOT NULL)",
        "CREATE INDEX session_by_account ON session (account_id)",
        "CREATE TABLE token (id INTEGER PRIMARY KEY AUTOINCREMENT, hash TEXT NOT NULL UNIQUE,"
        " account_id INTEGER NOT NULL REFERENCES account ON DELETE CASCADE, name TEXT NOT NULL,"
        " scope TEXT NOT NULL,"
        " prefix TEXT NOT NULL, created_at INTEGER NOT NULL, expires_at INTEGER, last_used_at INTEGER,"
        " revoked_at INTEGER)",
        "CREATE INDEX token_by_account ON token (account_id)",
    ],
]
"""The statements of each version of the store; `models/tracker/tables.py` adds the tracker's to them."""

IDENTITIES: list[str] = [
    "CREATE TABLE identity (id INTEGER PRIMARY KEY AUTOINCREMENT,"
    " account_id INTEGER NOT NULL REFERENCES account ON DELETE CASCADE, issuer TEXT NOT NULL,"
    " subject TEXT NOT NULL, created_at INTEGER NOT NULL)",
    "CREATE UNIQUE INDEX identity_by_subject ON identity (issuer, subject)",
    "CREATE INDEX identity_by_account ON identity (account_id)",
    "CREATE TABLE login_attempt (state TEXT PRIMARY KEY, browser TEXT NOT NULL, target TEXT NOT NULL,"
    " caller TEXT NOT NULL, expires_at INTEGER NOT NULL)",
    "CREATE INDEX login_attempt_by_caller ON login_attempt (caller)",
]
"""The step of the store for logins by an identity provider, which `models/tracker/tables.py` puts in its place.

Of the state and the cookie of a login that is not finished only the SHA-256 is stored.
"""

database = Either("tracker", STEPS)
"""The store of accounts and of the tracker: `tracker.db`, or a database of PostgreSQL."""


class AccountRow(Row):  # type: ignore[misc]  # Any
    """A person or program with a password. `role` is ADMIN or USER."""

    vars().update(fields("account", STEPS, {}))

    class Meta:
        database = database
        table_name = "account"


class Session(Row):  # type: ignore[misc]  # Any
    """A login. `hash` is the SHA-256 of the random id in the cookie."""

    vars().update(fields("session", STEPS, {"account": AccountRow}))

    class Meta:
        database = database
        table_name = "session"
