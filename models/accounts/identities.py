"""Identities at an OpenID provider.

An identity is an issuer and a subject; it belongs to one account. Its name and e-mail address never find an account,
because people can change both. Times are microseconds since 1970.
"""

from __future__ import annotations

import peewee
from attrs import frozen

from models.accounts import accounts, group_roles
from models.accounts.accounts import Password, Role, User
from models.accounts.tables import database as reports
from models.errors import Conflict, Denied, Invalid, NotFound

MAX_IDENTITIES_OF_ACCOUNT = 20
MAX_SUBJECT_LENGTH = 255

_IDENTITY = "SELECT id, issuer, subject, created_at FROM identity"


@frozen
class Identity:
    id: int
    issuer: str
    subject: str
    created_at: int


# Accounts of identities


def enter(
    issuer: str, subject: str, name: str, role: Role | None, creates: bool, now: int
) -> tuple[Password, bool, bool]:
    """Returns the account of an identity, whether it was created, and whether its role changed.

    Raises `Denied` where the identity has no account and `creates` is False, `Conflict` where the name is an account's
    to which the identity is not linked, `Invalid` for a name that is not allowed.
    """
    with reports.atomic(of="accounts"):
        known, is_new = user_of_identity(issuer, subject), False
        if known is None:
            known, is_new = _new_user(subject, name, role or "USER", creates, now), True
            _insert(known.id, issuer, subject, now)
        user = group_roles.with_role(known, role)
        password = accounts.password_of(user.username)
        assert password is not None
        return password, is_new, user.role != known.role


def _new_user(subject: str, name: str, role: Role, creates: bool, now: int) -> User:
    """Raises `Denied`, `Conflict`, `Invalid`."""
    if not creates:
        raise Denied(f"no account is linked to you; an ADMIN can link one to the subject {subject}")
    accounts.check_username(name)
    if reports.execute_sql("SELECT 1 FROM account WHERE lower(username) = lower(?)", (name,)).fetchone():
        raise Conflict(
            f"the user name {name} is taken by an account that is not linked to you;"
            f" an ADMIN can link it to the subject {subject}"
        )
    return accounts.create_user(name, group_roles.NO_PASSWORD, role, now)


def user_of_identity(issuer: str, subject: str) -> User | None:
    query = "SELECT account_id FROM identity WHERE issuer = ? AND subject = ?"
    row = reports.execute_sql(query, (issuer, subject)).fetchone()
    return accounts.user_by_id(row[0]) if row else None


def withdraw(issuer: str, subject: str, role: Role | None) -> User | None:
    """Ends the sessions of an identity's account and sets its role, unless it is None; returns the account."""
    with reports.atomic(of="accounts"):
        known = user_of_identity(issuer, subject)
        if known is None:
            return None
        reports.execute_sql("DELETE FROM session WHERE account_id = ?", (known.id,))
        return group_roles.with_role(known, role)


# Links


def identities_of(user_id: int) -> list[Identity]:
    """Returns the identities of an account, oldest first."""
    return [Identity(*row) for row in reports.execute_sql(f"{_IDENTITY} WHERE account_id = ? ORDER BY id", (user_id,))]


def all_identities() -> dict[int, list[Identity]]:
    """Returns the identities of each account that has any, by the account's id."""
    found: dict[int, list[Identity]] = {}
    for account, *row in reports.execute_sql("SELECT account_id, id, issuer, subject, created_at FROM identity"):
        found.setdefault(account, []).append(Identity(*row))
    return found


def link(user_id: int, issuer: str, subject: str, now: int) -> Identity:
    """Raises `NotFound` for the account, `Invalid` for the subject, `Conflict` for one that is linked already."""
    subject = subject.strip()
    if not 1 <= len(subject) <= MAX_SUBJECT_LENGTH or not subject.isprintable():
        raise Invalid(f"a subject has 1 to {MAX_SUBJECT_LENGTH} printable characters")
    with reports.atomic(of="accounts"):
        accounts.user_by_id(user_id)
        if (other := user_of_identity(issuer, subject)) is not None:
            raise Conflict(f"this subject is linked to {other.username} already")
        if len(identities_of(user_id)) >= MAX_IDENTITIES_OF_ACCOUNT:
            raise Conflict(f"this account has {MAX_IDENTITIES_OF_ACCOUNT} identities already")
        return _insert(user_id, issuer, subject, now)


def unlink(user_id: int, identity_id: int) -> None:
    """Removes an identity and ends the sessions of its account. Raises `NotFound`."""
    with reports.atomic(of="accounts"):
        done = reports.execute_sql("DELETE FROM identity WHERE id = ? AND account_id = ?", (identity_id, user_id))
        if not done.rowcount:
            raise NotFound("no such identity")
        reports.execute_sql("DELETE FROM session WHERE account_id = ?", (user_id,))


def _insert(user_id: int, issuer: str, subject: str, now: int) -> Identity:
    statement = "INSERT INTO identity (account_id, issuer, subject, created_at) VALUES (?, ?, ?, ?) RETURNING id"
    try:
        ((id,),) = reports.execute_sql(statement, (user_id, issuer, subject, now)).fetchall()
    except peewee.IntegrityError:
        raise Conflict("this subject is linked to another account already") from None
    return Identity(id, issuer, subject, now)
