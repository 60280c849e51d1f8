"""Accounts whose name and groups another server reports: an identity provider, or a proxy that authenticates."""

from __future__ import annotations

from collections.abc import Collection

from attrs import evolve

from models.accounts import accounts
from models.accounts.accounts import Role, User
from models.accounts.tables import database as reports
from models.errors import Denied

NO_PASSWORD = "!"  # noqa: S105 (no password has this hash)


def role_of_groups(groups: Collection[str], admin_groups: Collection[str]) -> Role | None:
    """Returns the role; None where groups do not determine roles."""
    if not admin_groups:
        return None
    return "USER" if set(groups).isdisjoint(admin_groups) else "ADMIN"


def ensure_reported_user(name: str, role: Role | None, creates: bool, now: int) -> tuple[User, bool]:
    """Returns the account of this name with this role, and whether it was created. The last ADMIN can lose the role.

    Raises `Denied` where it does not exist and `creates` is False, `Invalid` for a name that is not allowed.
    """
    with reports.atomic(of="accounts"):
        known = accounts.user_named(name)
        if known is not None:
            return with_role(known, role), False
        if not creates:
            raise Denied(f"there is no account {name}; an ADMIN makes it (tracker.security.proxy-login.auto-create)")
        return accounts.create_user(name, NO_PASSWORD, role or "USER", now), True


def with_role(user: User, role: Role | None) -> User:
    """Stores a role, unless it is None, and returns the account with it."""
    if role is None or role == user.role:
        return user
    reports.execute_sql("UPDATE account SET role = ? WHERE id = ?", (role, user.id))
    return evolve(user, role=role)
