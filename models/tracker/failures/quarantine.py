"""Quarantined tests: the list, the end of their time, and who changed the status of a test and when."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

from attrs import evolve, frozen

from models.tracker.tables import reports

MAX_CHANGES = 100
"""Changes that are kept of a test, the newest."""

_LISTED = """
    SELECT t.id, t.class_name, t.name, t.file, m.note, m.expires_at, m.issue_url, m.created_at,
        (SELECT c.changed_by FROM mark_change c WHERE c.project_id = m.project_id AND c.test_id = m.test_id
         ORDER BY c.id DESC LIMIT 1)
    FROM mark m JOIN test t ON t.id = m.test_id WHERE m.project_id = ? AND m.status = 'QUARANTINED'
    ORDER BY t.class_name, t.name"""
_EXPIRED = "SELECT project_id, test_id FROM mark WHERE status = 'QUARANTINED' AND expires_at <= ?"
_END = "UPDATE mark SET status = 'ACTIVE', expires_at = NULL, created_at = ? WHERE project_id = ? AND test_id = ?"
_NEXT = "SELECT min(expires_at) FROM mark WHERE status = 'QUARANTINED' AND expires_at IS NOT NULL"
_RECORD = """
    INSERT INTO mark_change (project_id, test_id, status, note, expires_at, issue_url, changed_by, created_at)
    SELECT project_id, test_id, status, note, expires_at, issue_url, :by, created_at FROM mark
    WHERE project_id = :project AND test_id = :test"""
_ALL_CHANGES = """
    SELECT c.id, t.class_name, t.name, c.status, c.note, c.expires_at, c.issue_url, c.changed_by, c.created_at
    FROM mark_change c JOIN test t ON t.id = c.test_id WHERE c.project_id = ? AND c.id < ? ORDER BY c.id DESC LIMIT ?"""
_CHANGES = """
    SELECT status, note, expires_at, issue_url, changed_by, created_at FROM mark_change
    WHERE project_id = ? AND test_id = ? ORDER BY id DESC"""
_FORGET = """
    DELETE FROM mark_change WHERE project_id = :project AND test_id = :test AND id NOT IN (SELECT id FROM mark_change
        WHERE project_id = :project AND test_id = :test ORDER BY id DESC LIMIT :most)"""
_SINCE = """
    SELECT c.id, c.project_id, p.name, c.test_id, t.class_name, t.name, c.status,
        (SELECT b.status FROM mark_change b WHERE b.project_id = c.project_id AND b.test_id = c.test_id AND b.id < c.id
         ORDER BY b.id DESC LIMIT 1), c.note, c.expires_at, c.changed_by, c.created_at
    FROM mark_change c JOIN project p ON p.id = c.project_id JOIN test t ON t.id = c.test_id
    WHERE c.id > ? ORDER BY c.id LIMIT ?"""
_NEWEST = "SELECT coalesce(max(id), 0) FROM mark_change"
EXPIRY, POLICY = "(expiry)", "(policy)"
"""Who ended a quarantine whose time was over, and who quarantined a flaky test: no accounts."""


@frozen
class Quarantined:
    """A quarantined test; `expires_at`, None for ever, is when it counts again. `by` is as in `StatusChange`."""

    id: int
    class_name: str
    name: str
    file: str | None
    reason: str | None
    expires_at: int | None
    issue_url: str | None
    since: int
    by: str | None


@frozen
class StatusChange:
    """A change of a test's status; `by` is an account, `EXPIRY`, `POLICY`, or None where that is not known."""

    status: str
    reason: str | None
    expires_at: int | None
    issue_url: str | None
    by: str | None
    at: int


@frozen
class TestChange:
    """A change of the status of a test; `id` is its place in the list."""

    __test__ = False  # pytest must not take it for a test

    id: int
    class_name: str
    name: str
    change: StatusChange


@frozen
class FollowedChange:
    """A change of the status of a test, which was `before` before; ids grow in the order of the changes."""

    id: int
    project_id: int
    project: str
    test: int
    class_name: str
    name: str
    status: str
    before: str | None
    note: str | None
    expires_at: int | None
    by: str | None
    at: int

    @property
    def changes_gate(self) -> bool:
        """Whether the test counts again, or no more."""
        return (self.status == "QUARANTINED") != (self.before == "QUARANTINED")


Change = TypeVar("Change", Quarantined, StatusChange)


def listing(project_id: int, names_accounts: bool = True) -> list[Quarantined]:
    """The quarantined tests of a project by name. Without `names_accounts` no account is named."""
    found = [Quarantined(*row) for row in reports.execute_sql(_LISTED, (project_id,))]
    return found if names_accounts else [_anonymous(one) for one in found]


def _anonymous(one: Change) -> Change:
    return one if one.by in (EXPIRY, POLICY) else evolve(one, by=None)


def changes(project_id: int, test: int, names_accounts: bool = True) -> Sequence[StatusChange]:
    """The changes of a test's status, newest first. Without `names_accounts` no account is named."""
    found = [StatusChange(*row) for row in reports.execute_sql(_CHANGES, (project_id, test))]
    return found if names_accounts else [_anonymous(one) for one in found]


def changes_of_project(project_id: int, before: int, limit: int, names_accounts: bool = True) -> Sequence[TestChange]:
    """The changes of the statuses of all tests of a project before the id `before`, newest first, as `changes`."""
    rows = reports.execute_sql(_ALL_CHANGES, (project_id, before, limit))
    found = [TestChange(id, class_name, name, StatusChange(*change)) for id, class_name, name, *change in rows]
    return found if names_accounts else [evolve(one, change=_anonymous(one.change)) for one in found]


def since(after: int, limit: int) -> Sequence[FollowedChange]:
    """The changes of all projects after the id `after`, oldest first."""
    return [FollowedChange(*row) for row in reports.execute_sql(_SINCE, (after, limit))]


def newest() -> int:
    """The id of the newest change; 0 without any."""
    return int(reports.execute_sql(_NEWEST).fetchone()[0])


def record(project_id: int, test: int, by: str | None) -> None:
    """Keeps who has just changed the status of a test. Within a transaction."""
    values = {"project": project_id, "test": test}
    reports.execute_sql(_RECORD, values | {"by": by})
    reports.execute_sql(_FORGET, values | {"most": MAX_CHANGES})


def expire(now: int) -> int | None:
    """Ends the quarantines whose time is over: these tests count again. Returns when the next one ends."""
    if reports.execute_sql(_EXPIRED, (now,)).fetchone() is not None:
        with reports.atomic():
            for project, test in reports.execute_sql(_EXPIRED, (now,)).fetchall():
                reports.execute_sql(_END, (now, project, test))
                record(project, test, EXPIRY)
    row = reports.execute_sql(_NEXT).fetchone()
    return None if row is None or row[0] is None else int(row[0])
