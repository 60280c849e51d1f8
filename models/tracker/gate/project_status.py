"""The status of projects: the verdict on the newest runs of each, in a fixed number of queries for all of them.

A project is judged by the newest run of each of its flags on its base branch, and by the worst of them; where that
branch has no run, by its newest run. A flag without a run for a month no longer counts.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from enum import Enum

from attrs import fields, frozen

from models.accounts import permissions
from models.accounts.accounts import User
from models.config.settings import QualityGate
from models.times import DAY
from models.tracker.coverage.file_coverage import percent
from models.tracker.gate import quality_gate
from models.tracker.gate.quality_gate import RunSummary, Verdict
from models.tracker.tables import Project, Run, reports
from models.tracker.visibility import MAX_PROJECTS

GOOD_COVERAGE = 80.0
"""Percent; below it a project is at risk."""

_FLAG_EXPIRES = 30 * DAY

_COLUMNS = ", ".join(field.name for field in fields(RunSummary))
_RUNS = f"SELECT {_COLUMNS} FROM run WHERE id IN (SELECT value FROM json_each(?))"  # noqa: S608 (constants)
_NEWEST = """
    SELECT p.id, (SELECT r.id FROM counted_run r WHERE r.project_id = p.id
        ORDER BY r.created_at DESC, r.id DESC LIMIT 1)
    FROM project p WHERE p.id IN (SELECT value FROM json_each(?))"""
# Steps from each flag to the next in the index: reading every run would cost as much as the project has runs.
_OF_FLAGS = """
    WITH RECURSIVE flags AS (
        SELECT p.id AS project_id, coalesce(p.base_branch, :base) AS branch, (SELECT min(r.flag) FROM run r
            WHERE r.project_id = p.id AND r.branch = coalesce(p.base_branch, :base)) AS flag
        FROM project p WHERE p.id IN (SELECT value FROM json_each(:projects))
        UNION ALL SELECT f.project_id, f.branch, (SELECT min(r.flag) FROM run r
            WHERE r.project_id = f.project_id AND r.branch = f.branch AND r.flag > f.flag)
        FROM flags f WHERE f.flag IS NOT NULL)
    SELECT (SELECT r.id FROM counted_run r WHERE r.project_id = f.project_id AND r.branch = f.branch AND r.flag = f.flag
        AND r.head_repo IS NULL ORDER BY r.first_at DESC, r.first_id DESC, r.created_at DESC, r.id DESC LIMIT 1)
    FROM flags f WHERE f.flag IS NOT NULL"""
_RECENT = """
    SELECT judged.id, r.passed, r.tests - r.skipped, r.line_covered, r.line_missed
    FROM run judged JOIN run r ON r.id IN (
        SELECT x.id FROM counted_run x WHERE x.project_id = judged.project_id AND x.branch IS judged.branch
        AND x.flag = judged.flag AND x.created_at <= judged.created_at
        ORDER BY x.created_at DESC, x.id DESC LIMIT 20)
    WHERE judged.id IN (SELECT value FROM json_each(?)) ORDER BY r.created_at, r.id"""
# In the order of the commits of the branch, so that a second run of an old commit changes nothing.
_LIKE_RUN = "{0}.project_id = r.project_id AND {0}.branch IS r.branch AND {0}.flag = r.flag"
_PLACE = "({0}.first_at, {0}.first_id, {0}.created_at, {0}.id)"
_FIRST_FAILING = f"""
    WITH passed AS MATERIALIZED (SELECT r.id AS run, (SELECT g.id FROM counted_run g
            WHERE {_LIKE_RUN.format("g")} AND g.status = 'PASSED' AND {_PLACE.format("g")} < {_PLACE.format("r")}
            ORDER BY g.first_at DESC, g.first_id DESC, g.created_at DESC, g.id DESC LIMIT 1) AS id
        FROM run r WHERE r.id IN (SELECT value FROM json_each(?))),
    firsts AS MATERIALIZED (SELECT p.run, (SELECT b.id FROM counted_run b WHERE {_LIKE_RUN.format("b")}
            AND (g.id IS NULL OR {_PLACE.format("b")} > {_PLACE.format("g")})
            ORDER BY b.first_at, b.first_id, b.created_at, b.id LIMIT 1) AS id
        FROM passed p JOIN run r ON r.id = p.run LEFT JOIN run g ON g.id = p.id)
    SELECT r.id, b.id, b.created_at, r.created_at, (SELECT count(*) FROM (SELECT DISTINCT c.first_at, c.first_id
        FROM counted_run c WHERE {_LIKE_RUN.format("c")} AND {_PLACE.format("c")} >= {_PLACE.format("b")}
        AND {_PLACE.format("c")} <= {_PLACE.format("r")}) AS commits)
    FROM firsts f JOIN run r ON r.id = f.run JOIN run b ON b.id = coalesce(f.id, r.id)"""  # noqa: S608 (constants)


class ProjectHealth(Enum):
    """The health of a project, worst first."""

    FAILING = "failing"
    AT_RISK = "at risk"
    HEALTHY = "healthy"
    NO_RUNS = "no runs"


@frozen
class FailingSince:
    """The first of the consecutive failed runs up to a run, and how many commits they are."""

    run_id: int
    at: int
    until: int
    """The time of the last of them."""
    commits: int

    @property
    def text(self) -> str:
        days = (self.until - self.at) // DAY
        spans = [f"{days} day{'' if days == 1 else 's'}"] if days > 0 else []
        spans.append(f"{self.commits} commit{'' if self.commits == 1 else 's'}")
        return f"failing since {self.run_id} ({', '.join(spans)})"


@frozen
class ProjectStatus:
    """The health of a project and its reason in one line. `run` is judged, `newest` is the newest of any branch.

    `failing` is None where `run` did not fail.
    """

    project: Project
    health: ProjectHealth
    reason: str
    run: RunSummary | None
    newest: RunSummary | None
    verdict: Verdict | None
    failing: FailingSince | None

    @property
    def since(self) -> int | None:
        """The time since which it fails."""
        return self.failing.at if self.failing else None


def visible_to(user: User | None, settings: QualityGate) -> list[ProjectStatus]:
    """The projects that `user` may read: the worst health first, then those that have failed longest."""
    projects = Project.select().where(permissions.readable(user, Project)).order_by(Project.name).limit(MAX_PROJECTS)
    statuses = of(list(projects), settings)
    order = {health: place for place, health in enumerate(ProjectHealth)}
    statuses.sort(key=lambda status: (order[status.health], status.since or 2**62, status.project.name))
    return statuses


Trend = Sequence[tuple[float | None, float | None]]
"""Pass rate and line coverage of runs in percent, oldest first."""


def trends(run_ids: Iterable[int]) -> dict[int, Trend]:
    """The trend of the last 20 runs of branch and flag up to each of these runs."""
    found: dict[int, list[tuple[float | None, float | None]]] = defaultdict(list)
    for id, passed, ran, covered, missed in reports.execute_sql(_RECENT, (json.dumps(list(run_ids)),)).fetchall():
        found[id].append((100 * passed / ran if ran > 0 else None, percent(covered, missed)))
    return dict(found)


def of(projects: Sequence[Project], settings: QualityGate) -> list[ProjectStatus]:
    """The statuses of `projects`, in their order."""
    newest = _newest(projects)
    judged = _judged(projects, newest, settings.base_branch)
    runs = [run for group in judged.values() for run in group]
    verdicts = quality_gate.verdicts(runs, {project.id: project for project in projects}, settings)
    since = failing_since([run.id for run in runs if run.status == "FAILED"])
    return [_status(project, newest.get(project.id), judged[project.id], verdicts, since) for project in projects]


def _summaries(ids: Iterable[int]) -> dict[int, RunSummary]:
    rows = reports.execute_sql(_RUNS, (json.dumps(list(ids)),))
    return {row[0]: RunSummary(*row) for row in rows}


def _newest(projects: Sequence[Project]) -> dict[int, RunSummary]:
    """The newest run by project, for projects with runs."""
    rows = reports.execute_sql(_NEWEST, (json.dumps([project.id for project in projects]),))
    newest = {project: run for project, run in rows if run is not None}
    runs = _summaries(newest.values())
    return {project: runs[run] for project, run in newest.items()}


def _judged(
    projects: Sequence[Project], newest: Mapping[int, RunSummary], base_branch: str
) -> dict[int, Sequence[RunSummary]]:
    """The runs by which each project is judged."""
    values = {"base": base_branch, "projects": json.dumps([project.id for project in projects])}
    of_flags = defaultdict[int, list[RunSummary]](list)
    for run in _summaries(row[0] for row in reports.execute_sql(_OF_FLAGS, values)).values():
        of_flags[run.project_id].append(run)
    judged: dict[int, Sequence[RunSummary]] = {}
    for project in projects:
        runs = of_flags[project.id] or ([newest[project.id]] if project.id in newest else [])
        last = max((run.created_at for run in runs), default=0)
        judged[project.id] = [run for run in runs if run.created_at > last - _FLAG_EXPIRES]
    return judged


def failing_since(ids: Sequence[int]) -> dict[int, FailingSince]:
    """For each failed run, since when its branch and flag fail, by the results and in the order of the commits."""
    if not ids:
        return {}
    rows = reports.execute_sql(_FIRST_FAILING, (json.dumps(ids),)).fetchall()
    return {run: FailingSince(first, at, until, commits) for run, first, at, until, commits in rows}


def _status(
    project: Project,
    newest: RunSummary | None,
    runs: Sequence[RunSummary],
    verdicts: Mapping[int, Verdict],
    since: Mapping[int, FailingSince],
) -> ProjectStatus:
    if not runs:
        return ProjectStatus(project, ProjectHealth.NO_RUNS, "no report has been posted", None, newest, None, None)
    order = list(ProjectHealth)
    judged = [(run, *judge(run, verdicts[run.id])) for run in runs]
    run, health, reason = min(judged, key=lambda item: (order.index(item[1]), -item[0].created_at, -item[0].id))
    if len(runs) > 1:
        reason = f"{reason} ({run.flag})"
    return ProjectStatus(project, health, reason, run, newest, verdicts[run.id], since.get(run.id))


def judge(run: RunSummary | Run, verdict: Verdict) -> tuple[ProjectHealth, str]:
    """The health of a run, and the reason in one line."""
    broken = [rule.detail for rule in verdict.rules if not rule.passed]
    failed = run.failed + run.errors
    if broken:
        return ProjectHealth.FAILING, "; ".join(broken)
    if failed:
        return ProjectHealth.FAILING, f"{failed} of {run.tests} tests failed, though the gate passes"
    covered = percent(run.line_covered, run.line_missed)
    doubts = []
    if run.flaky:
        doubts.append(f"{run.flaky} flaky test{'s' if run.flaky > 1 else ''}")
    if covered is not None and covered < GOOD_COVERAGE:
        doubts.append(f"{int(covered * 10) / 10} % of lines are covered, less than {GOOD_COVERAGE:g} %")
    if doubts:
        return ProjectHealth.AT_RISK, "; ".join(doubts)
    passed = f"{run.passed} test{'' if run.passed == 1 else 's'} passed"
    return ProjectHealth.HEALTHY, passed + (f", {run.skipped} skipped" if run.skipped else "")
