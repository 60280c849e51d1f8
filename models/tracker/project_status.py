"""How projects stand: the verdict on the newest runs of each, for all of them at once, in few queries however many.

What a project is judged by: the newest run of each of its flags on its base branch, the worst of them; where that
branch has none, its newest run. A flag that has not been heard of for a month does not count any more.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from enum import Enum

from attrs import frozen

from models.accounts import permissions
from models.accounts.accounts import User
from models.config.settings import QualityGate
from models.tracker import quality_gate
from models.tracker.percentages import percent, share
from models.tracker.quality_gate import FAILING, Verdict
from models.tracker.tables import Project, Run, reports
from models.tracker.visibility import MOST_PROJECTS

GOOD_COVERAGE = 80.0
"""Percent; below it a project is at risk."""

_FORGOTTEN = 30 * 86_400 * 1_000_000

_COLUMNS = """id, project_id, branch, flag, created_at, status, tests, passed, failed, errors, skipped, flaky,
    line_covered, line_missed"""
_RUNS = f"SELECT {_COLUMNS} FROM run WHERE id IN (SELECT value FROM json_each(?))"  # noqa: S608 (our own words)
_NEWEST = """
    SELECT p.id, (SELECT r.id FROM run r WHERE r.project_id = p.id ORDER BY r.created_at DESC, r.id DESC LIMIT 1)
    FROM project p WHERE p.id IN (SELECT value FROM json_each(?))"""
# From each flag to the next by the index: a look at every run would cost what all of them cost.
_OF_FLAGS = """
    WITH RECURSIVE flags AS (
        SELECT p.id AS project_id, coalesce(p.base_branch, :base) AS branch, (SELECT min(r.flag) FROM run r
            WHERE r.project_id = p.id AND r.branch = coalesce(p.base_branch, :base)) AS flag
        FROM project p WHERE p.id IN (SELECT value FROM json_each(:projects))
        UNION ALL SELECT f.project_id, f.branch, (SELECT min(r.flag) FROM run r
            WHERE r.project_id = f.project_id AND r.branch = f.branch AND r.flag > f.flag)
        FROM flags f WHERE f.flag IS NOT NULL)
    SELECT (SELECT r.id FROM run r WHERE r.project_id = f.project_id AND r.branch = f.branch AND r.flag = f.flag
        ORDER BY r.created_at DESC, r.id DESC LIMIT 1) FROM flags f WHERE f.flag IS NOT NULL"""
_BASELINES = """
    SELECT r.id, (SELECT b.id FROM run b WHERE b.project_id = r.project_id AND b.flag = r.flag
        AND b.branch = coalesce(nullif(r.base_branch, ''), p.base_branch, ?)
        AND (b.created_at, b.id) < (r.created_at, r.id) ORDER BY b.created_at DESC, b.id DESC LIMIT 1)
    FROM run r JOIN project p ON p.id = r.project_id WHERE r.id IN (SELECT value FROM json_each(?))"""
_FAILING_TESTS = f"""
    SELECT DISTINCT run_id, test_id FROM result
    WHERE run_id IN (SELECT value FROM json_each(?)) AND status IN {FAILING}"""  # noqa: S608 (our own words)
_FAILING_SUITES = f"""
    SELECT DISTINCT s.run_id, s.name FROM suite s WHERE s.run_id IN (SELECT value FROM json_each(?1))
    AND s.failed + s.errors > 0 AND s.id NOT IN (SELECT r.suite_id FROM result r
    WHERE r.run_id IN (SELECT value FROM json_each(?1)) AND r.status IN {FAILING} AND r.suite_id IS NOT NULL)
"""  # noqa: S608
_NAMES = """
    SELECT t.id, t.class_name, t.name FROM test t WHERE t.id IN (SELECT value FROM json_each(?)) AND NOT EXISTS
    (SELECT 1 FROM mark m WHERE m.project_id = t.project_id AND m.test_id = t.id AND m.status = 'QUARANTINED')"""
_FIRST_FAILING = """
    SELECT r.id, coalesce((SELECT b.id FROM run b
        WHERE b.project_id = r.project_id AND b.branch IS r.branch AND b.flag = r.flag
        AND b.created_at > coalesce((SELECT g.created_at FROM run g
            WHERE g.project_id = r.project_id AND g.branch IS r.branch AND g.flag = r.flag AND g.status = 'PASSED'
            AND g.created_at < r.created_at ORDER BY g.created_at DESC LIMIT 1), -1)
        ORDER BY b.created_at, b.id LIMIT 1), r.id)
    FROM run r WHERE r.id IN (SELECT value FROM json_each(?))"""


class Health(Enum):
    """In words, those that need a look first."""

    FAILING = "failing"
    AT_RISK = "at risk"
    HEALTHY = "healthy"
    NO_RUNS = "no runs"


@frozen
class Glance:
    """What is looked at of a run: its columns, without the cost of a `Run`."""

    id: int
    project_id: int
    branch: str | None
    flag: str
    created_at: int
    status: str
    tests: int
    passed: int
    failed: int
    errors: int
    skipped: int
    flaky: int
    line_covered: int | None
    line_missed: int | None

    @property
    def pass_rate(self) -> float:
        return 100 * self.passed / (self.tests - self.skipped) if self.tests > self.skipped else 0.0

    @property
    def line_coverage(self) -> float | None:
        return percent(self.line_covered, self.line_missed)


@frozen
class Standing:
    """How a project stands, and why in a line. `run` is what it is judged by, `newest` the newest of any branch.

    `since` is when the first run of an unbroken row of failed ones was made; None where the run did not fail.
    """

    project: Project
    health: Health
    reason: str
    run: Glance | None
    newest: Glance | None
    verdict: Verdict | None
    since: int | None


def visible_to(user: User | None, settings: QualityGate) -> list[Standing]:
    """The projects that `user` may read, trouble first, and of what fails what has failed longest."""
    asked = Project.select().where(permissions.readable(user)).order_by(Project.name).limit(MOST_PROJECTS)
    found = of(list(asked), settings)
    order = {health: place for place, health in enumerate(Health)}
    found.sort(key=lambda one: (order[one.health], one.since or 2**62, one.project.name))
    return found


def of(projects: Sequence[Project], settings: QualityGate) -> list[Standing]:
    """The standings of `projects`, in their order."""
    newest = _newest(projects)
    judged = _judged(projects, newest, settings.base_branch)
    runs = {run.id: run for group in judged.values() for run in group}
    verdicts = _verdicts(runs, {one.id: one for one in projects}, settings)
    since = _since([run.id for run in runs.values() if run.status == "FAILED"])
    return [_standing(one, newest.get(one.id), judged[one.id], verdicts, since) for one in projects]


def _glances(ids: Iterable[int]) -> dict[int, Glance]:
    rows = reports.execute_sql(_RUNS, (json.dumps(list(ids)),))
    return {row[0]: Glance(*row) for row in rows}


def _newest(projects: Sequence[Project]) -> dict[int, Glance]:
    """By the id of the project, where it has runs."""
    rows = reports.execute_sql(_NEWEST, (json.dumps([one.id for one in projects]),))
    found = {id: run for id, run in rows if run is not None}
    runs = _glances(found.values())
    return {id: runs[run] for id, run in found.items()}


def _judged(projects: Sequence[Project], newest: Mapping[int, Glance], base_branch: str) -> dict[int, Sequence[Glance]]:
    """The runs by which each project is judged."""
    values = {"base": base_branch, "projects": json.dumps([one.id for one in projects])}
    of_flags = defaultdict[int, list[Glance]](list)
    for run in _glances(row[0] for row in reports.execute_sql(_OF_FLAGS, values)).values():
        of_flags[run.project_id].append(run)
    found: dict[int, Sequence[Glance]] = {}
    for one in projects:
        runs = of_flags[one.id] or ([newest[one.id]] if one.id in newest else [])
        last = max((run.created_at for run in runs), default=0)
        found[one.id] = [run for run in runs if run.created_at > last - _FORGOTTEN]
    return found


def _verdicts(runs: Mapping[int, Glance], projects: Mapping[int, Project], settings: QualityGate) -> dict[int, Verdict]:
    """As `gate.verdict` of each, by the run's id."""
    rows = reports.execute_sql(_BASELINES, (settings.base_branch, json.dumps(list(runs)))).fetchall()
    pairs = {run: base for run, base in rows if base is not None}
    bases = _glances(set(pairs.values()))
    limits = {id: quality_gate.thresholds(projects[run.project_id], settings) for id, run in runs.items()}
    failed = {id for id, run in runs.items() if run.status == "FAILED" and limits[id].fail_on_new_failures}
    failing = _new_failures({id: pairs.get(id) for id in failed}, bases)
    found = {}
    for id, run in runs.items():
        base = bases.get(pairs.get(id, 0))
        now, before = (share(one.line_covered, one.line_missed) if one else None for one in (run, base))
        rules = quality_gate.rules(limits[id], now, before, failing.get(id, ()))
        delta = None if now is None or before is None else float(now - before)
        found[id] = Verdict(rules, delta, base.id if base else None)
    return found


def _new_failures(pairs: Mapping[int, int | None], bases: Mapping[int, Glance]) -> dict[int, list[str]]:
    """As `gate.new_failures`, for each run that failed and its baseline."""
    if not pairs:
        return {}
    failed = {base for base in pairs.values() if base is not None and bases[base].status == "FAILED"}
    asked = (json.dumps([*pairs, *failed]),)
    tests, suites = defaultdict[int, set[int]](set), defaultdict[int, set[str]](set)
    for run, test in reports.execute_sql(_FAILING_TESTS, asked):
        tests[run].add(test)
    for run, name in reports.execute_sql(_FAILING_SUITES, asked):
        suites[run].add(name)
    fresh = {run: tests[run] - (tests[base] if base else set()) for run, base in pairs.items()}
    names = _names(set().union(*fresh.values()))
    return {
        run: [names[test] for test in fresh[run] if test in names]
        + [*(suites[run] - (suites[base] if base else set()))]
        for run, base in pairs.items()
    }


def _names(tests: Iterable[int]) -> dict[int, str]:
    """Those that are not quarantined."""
    rows = reports.execute_sql(_NAMES, (json.dumps(list(tests)),))
    return {id: f"{class_name} {name}".strip() for id, class_name, name in rows}


def _since(ids: Sequence[int]) -> dict[int, int]:
    """For each failed run, when the first of the failed runs before it, with none that passed between, was made."""
    if not ids:
        return {}
    rows = reports.execute_sql(_FIRST_FAILING, (json.dumps(ids),)).fetchall()
    first = _glances({first for _, first in rows})
    return {id: first[one].created_at for id, one in rows}


def _standing(
    project: Project,
    newest: Glance | None,
    runs: Sequence[Glance],
    verdicts: Mapping[int, Verdict],
    since: Mapping[int, int],
) -> Standing:
    if not runs:
        return Standing(project, Health.NO_RUNS, "nothing has been posted to it", None, newest, None, None)
    order = list(Health)
    told = [(run, *judge(run, verdicts[run.id])) for run in runs]
    run, health, reason = min(told, key=lambda one: (order.index(one[1]), -one[0].created_at, -one[0].id))
    if len(runs) > 1:
        reason = f"{reason} ({run.flag})"
    return Standing(project, health, reason, run, newest, verdicts[run.id], since.get(run.id))


def judge(run: Glance | Run, verdict: Verdict) -> tuple[Health, str]:
    """The word on a run, and the reason in a line."""
    broken = [rule.detail for rule in verdict.rules if not rule.passed]
    failed = run.failed + run.errors
    if broken:
        return Health.FAILING, "; ".join(broken)
    if failed:
        return Health.FAILING, f"{failed} of {run.tests} tests failed, though the gate lets them pass"
    covered = percent(run.line_covered, run.line_missed)
    doubts = []
    if run.flaky:
        doubts.append(f"{run.flaky} flaky test{'s' if run.flaky > 1 else ''}")
    if covered is not None and covered < GOOD_COVERAGE:
        doubts.append(f"{int(covered * 10) / 10} % of lines are covered, less than {GOOD_COVERAGE:g} %")
    if doubts:
        return Health.AT_RISK, "; ".join(doubts)
    passed = f"{run.passed} test{'' if run.passed == 1 else 's'} passed"
    return Health.HEALTHY, passed + (f", {run.skipped} skipped" if run.skipped else "")
