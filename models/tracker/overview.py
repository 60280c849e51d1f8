"""What the page of a project and of a run tell beside their own rows: branches, flags, the runs before and after."""

from __future__ import annotations

from collections.abc import Sequence

from attrs import frozen

from models.tracker import history
from models.tracker.schema import Mark, Run, reports

MOST_BRANCHES = 50

_BRANCHES = """
    SELECT b.branch, b.runs, (SELECT max(r.id) FROM run r WHERE r.project_id = :project AND r.branch = b.branch
        AND r.created_at = b.newest)
    FROM (SELECT branch, count(*) AS runs, max(created_at) AS newest, branch = :base AS is_base FROM run
        WHERE project_id = :project AND branch IS NOT NULL GROUP BY branch
        ORDER BY branch = :base DESC, max(created_at) DESC LIMIT :most) AS b
    ORDER BY b.is_base DESC, b.newest DESC"""
_FLAGS = "SELECT DISTINCT flag FROM run WHERE project_id = ? ORDER BY flag LIMIT 100"
_BESIDE = """
    SELECT id FROM run WHERE project_id = ? AND branch IS ? AND flag = ? AND (created_at, id) {than} (?, ?)
    ORDER BY created_at {way}, id {way} LIMIT 1"""
_BEFORE = _BESIDE.format(than="<", way="DESC")
_AFTER = _BESIDE.format(than=">", way="ASC")


@frozen
class Branch:
    """A branch, with the number of its runs and the newest of them."""

    name: str
    runs: int
    newest: Run


def branches(project_id: int, base: str) -> list[Branch]:
    """The base branch first, then those that were heard of last."""
    values = {"project": project_id, "base": base, "most": MOST_BRANCHES}
    rows = reports.execute_sql(_BRANCHES, values).fetchall()
    newest = history.runs_by_id(row[2] for row in rows)
    return [Branch(name, count, newest[id]) for name, count, id in rows]


def flags(project_id: int) -> list[str]:
    """The flags of a project's runs, by name."""
    return [row[0] for row in reports.execute_sql(_FLAGS, (project_id,))]


def beside(run: Run) -> tuple[int | None, int | None]:
    """The ids of the runs before and after this one, of the same branch and flag."""
    values = (run.project_id, run.branch, run.flag, run.created_at, run.id)
    before, after = (reports.execute_sql(query, values).fetchone() for query in (_BEFORE, _AFTER))
    return before[0] if before else None, after[0] if after else None


def before_each(runs: Sequence[Run]) -> dict[int, int]:
    """For runs of a project, newest first: the next older one of the same branch and flag, where it is among them."""
    found, last = {}, dict[tuple[str | None, str], int]()
    for run in reversed(runs):
        key = run.branch, run.flag
        if key in last:
            found[run.id] = last[key]
        last[key] = run.id
    return found


def note_of(project_id: int, test: int) -> str | None:
    """What people noted of a test."""
    mark = Mark.get_or_none((Mark.project == project_id) & (Mark.test == test))
    return mark.note if mark else None
