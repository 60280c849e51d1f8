"""Projects that anonymous callers created: how many there may be, and which an ADMIN may delete.

A project is open while it has no member: an account that creates one is its OWNER.
"""

from __future__ import annotations

from collections.abc import Sequence

from attrs import frozen

from models.config.settings import ReportLimits
from models.errors import Denied
from models.times import HOUR
from models.tracker.tables import reports

_OPEN = "NOT EXISTS (SELECT 1 FROM membership m WHERE m.project_id = p.id)"
_COUNT = f"SELECT count(*) FROM (SELECT p.id FROM project p WHERE {_OPEN} LIMIT ?) AS found"  # noqa: S608 (constants)
_RECENT = "SELECT count(*) FROM project WHERE created_from = ? AND created_at > ?"
_LIST = f"""
    SELECT p.id, p.name, p.created_at, p.created_from, (SELECT count(*) FROM run r WHERE r.project_id = p.id) AS runs
    FROM project p WHERE {_OPEN} AND p.id > ? ORDER BY p.id LIMIT ?"""  # noqa: S608 (constants)
_RUNS = f"SELECT r.id FROM run r JOIN project p ON p.id = r.project_id WHERE p.id = ? AND {_OPEN}"  # noqa: S608
_IS_EMPTY = f"""
    SELECT 1 FROM project p WHERE p.id = ? AND {_OPEN}
    AND NOT EXISTS (SELECT 1 FROM run r WHERE r.project_id = p.id)"""  # noqa: S608 (constants)
_TESTS = "SELECT id FROM test WHERE project_id = ? LIMIT ?"
_BATCH_ROWS = 2_000


@frozen
class Creator:
    """An anonymous caller that may create a project."""

    address: str
    limits: ReportLimits
    now: int


@frozen
class OpenProject:
    id: int
    name: str
    created_at: int
    created_from: str | None
    """The address of the caller that created it; None if that was before addresses were stored."""
    runs: int


def check_creation(name: str, creator: Creator) -> None:
    """Raises `Denied` where a caller may create no more projects.

    The message is that of a project that exists and is private too, so that names cannot be guessed.
    """
    limits = creator.limits
    if 0 < limits.open_projects_per_hour <= _number(_RECENT, creator.address, creator.now - HOUR):
        limit = f"{limits.open_projects_per_hour} projects an hour (tracker.limits.open-projects-per-hour)"
    elif _number(_COUNT, limits.open_projects) >= limits.open_projects:
        limit = f"{limits.open_projects} projects (tracker.limits.open-projects)"
    else:
        return
    raise Denied(
        f"{name} cannot be created without an account, which is for at most {limit}: create it with an account"
    )


def _number(query: str, *values: object) -> int:
    return int(reports.execute_sql(query, values).fetchone()[0])


def listed(after: int, limit: int) -> Sequence[OpenProject]:
    """The open projects by id, after the id `after`."""
    return [OpenProject(*row) for row in reports.execute_sql(_LIST, (after, limit))]


def runs_of(id: int) -> list[int]:
    """The ids of the runs of an open project, oldest first; none of another project."""
    return sorted(row[0] for row in reports.execute_sql(_RUNS, (id,)))


def delete_some(id: int) -> bool | None:
    """One short transaction of deleting an open project without runs.

    Returns whether more are needed; None where it is no such project, and was not deleted.
    """
    with reports.atomic():
        if reports.execute_sql(_IS_EMPTY, (id,)).fetchone() is None:
            return None
        reports.execute_sql("DELETE FROM mark WHERE project_id = ?", (id,))
        if tests := reports.execute_sql(_TESTS, (id, _BATCH_ROWS)).fetchall():
            reports.write_many("DELETE FROM test WHERE id = ?", tests)
            return True
        reports.execute_sql("DELETE FROM project WHERE id = ?", (id,))
    return False
