"""The permissions of an account in a project: its membership is OWNER, WRITE or READ.

An ADMIN is OWNER of every project; a PUBLIC project is readable without an account.
"""

from __future__ import annotations

from typing import Any, Literal, Protocol, cast

import peewee

from models.accounts.accounts import USER_COLUMNS, User, user_of
from models.accounts.tables import database as reports

ProjectRole = Literal["OWNER", "WRITE", "READ"]

PROJECT_ROLES: tuple[ProjectRole, ...] = ("OWNER", "WRITE", "READ")
"""Each includes the permissions of those after it."""

_JOINED = "(SELECT project_id FROM membership WHERE account_id = ?)"
_ROLE = "SELECT role FROM membership WHERE project_id = ? AND account_id = ?"
_GRANT = (
    "INSERT INTO membership (project_id, account_id, role, created_at) VALUES (?, ?, ?, ?)"
    " ON CONFLICT (project_id, account_id) DO UPDATE SET role = excluded.role"
)
_MEMBERS = (
    f"SELECT m.role, {USER_COLUMNS} FROM membership AS m JOIN account AS a ON a.id = m.account_id"  # noqa: S608 (ours)
    " WHERE m.project_id = ? ORDER BY a.username"
)
_REMOVE = "DELETE FROM membership WHERE project_id = ? AND account_id = ?"


class GuardedProject(Protocol):
    """A row of the table `project`."""

    @property
    def id(self) -> Any: ...

    @property
    def visibility(self) -> Any: ...


def role_in(user: User | None, project: GuardedProject | int) -> ProjectRole | None:
    """The role of `user` in a project, which is given as a row or by its id."""
    if user is None:
        return None
    if user.is_admin:
        return "OWNER"
    id = project if isinstance(project, int) else project.id
    row = reports.execute_sql(_ROLE, (id, user.id)).fetchone()
    return cast("ProjectRole", row[0]) if row else None


def may_read(user: User | None, project: GuardedProject) -> bool:
    return project.visibility == "PUBLIC" or role_in(user, project) is not None


def may_write(user: User | None, project: GuardedProject | int) -> bool:
    return role_in(user, project) in ("OWNER", "WRITE")


def may_own(user: User | None, project: GuardedProject | int) -> bool:
    return role_in(user, project) == "OWNER"


def readable(user: User | None, table: Any) -> Any:
    """The condition, for a `where` on the model of the table `project`, that selects the projects `user` may read."""
    if user is not None and user.is_admin:
        return peewee.SQL("1 = 1")
    is_public = table.visibility == "PUBLIC"
    return is_public if user is None else is_public | table.id.in_(peewee.SQL(_JOINED, (user.id,)))


def grant(project_id: int, user_id: int, role: ProjectRole, now: int) -> None:
    """Makes an account a member, or changes its role."""
    reports.execute_sql(_GRANT, (project_id, user_id, role, now))


def members_of(project_id: int) -> list[tuple[User, ProjectRole]]:
    """By name."""
    return [(user_of(row[1:]), row[0]) for row in reports.execute_sql(_MEMBERS, (project_id,))]


def remove_member(project_id: int, user_id: int) -> bool:
    """Returns False if the account was not a member."""
    return bool(reports.execute_sql(_REMOVE, (project_id, user_id)).rowcount)
