"""Which mails an account gets, at the address of its profile."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal, get_args

from models.accounts.accounts import USER_COLUMNS, User, user_of
from models.accounts.tables import database as reports

Kind = Literal["gate", "tests", "tokens"]
KINDS: tuple[Kind, ...] = get_args(Kind)
"""Failures of the gate of the account's projects, new failures of tests that it owns, and tokens that end soon."""

MAILS = [
    "ALTER TABLE account ADD COLUMN mail_gate INTEGER NOT NULL DEFAULT 0",
    "ALTER TABLE account ADD COLUMN mail_tests INTEGER NOT NULL DEFAULT 0",
    "ALTER TABLE account ADD COLUMN mail_tokens INTEGER NOT NULL DEFAULT 1",
]
"""The step of the store, which `models/tracker/tables.py` puts in its place."""

_COLUMNS = ", ".join(f"mail_{kind}" for kind in KINDS)
_SET = f"UPDATE account SET {', '.join(f'mail_{kind} = ?' for kind in KINDS)} WHERE id = ?"  # noqa: S608 (ours)
_IS_MEMBER = "EXISTS (SELECT 1 FROM membership m WHERE m.account_id = a.id AND m.project_id = :project)"
_MAY_READ = (
    f"(a.role = 'ADMIN' OR {_IS_MEMBER}"  # noqa: S608 (ours)
    " OR EXISTS (SELECT 1 FROM project p WHERE p.id = :project AND p.visibility = 'PUBLIC'))"
)
_MAY: Mapping[Kind, str] = {"gate": _IS_MEMBER, "tests": _MAY_READ, "tokens": ":project = 0"}
_RECIPIENTS = (
    f"SELECT {USER_COLUMNS} FROM account AS a"  # noqa: S608 (ours)
    " WHERE a.mail_{kind} = 1 AND a.email IS NOT NULL AND {may} {only} ORDER BY a.id"
)


def of_account(account: int) -> dict[Kind, bool]:
    """Whether an account wants the mails of each kind."""
    row = reports.execute_sql(f"SELECT {_COLUMNS} FROM account WHERE id = ?", (account,)).fetchone()  # noqa: S608
    return {kind: bool(row and wants) for kind, wants in zip(KINDS, row or (0,) * len(KINDS), strict=True)}


def choose(account: int, wanted: Mapping[Kind, bool]) -> None:
    reports.execute_sql(_SET, (*(int(wanted[kind]) for kind in KINDS), account))


def recipients(kind: Kind, project: int) -> list[User]:
    """The accounts that get the mails of a kind about a project (0: none): they want them and have an address."""
    query = _RECIPIENTS.format(kind=kind, may=_MAY[kind], only="")
    return [user_of(row) for row in reports.execute_sql(query, {"project": project})]


def recipient(kind: Kind, project: int, account: int) -> User | None:
    """The account, if it is one of `recipients`."""
    query = _RECIPIENTS.format(kind=kind, may=_MAY[kind], only="AND a.id = :account")
    row = reports.execute_sql(query, {"project": project, "account": account}).fetchone()
    return user_of(row) if row else None
