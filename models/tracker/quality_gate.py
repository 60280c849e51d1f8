"""The quality gate: a run against thresholds and against its baseline. Judged when asked, so nothing is ever stale."""

from __future__ import annotations

import json
from collections.abc import Collection, Sequence
from fractions import Fraction
from functools import lru_cache
from typing import Any, Literal

from attrs import frozen

from models.config.settings import QualityGate
from models.tracker.percentages import decimal, share
from models.tracker.reports.base import CASE_STATUSES, CaseStatus
from models.tracker.tables import Project, Run, reports

Judged = Literal["PASSED", "FAILED"]

FAILING = (CASE_STATUSES.index(CaseStatus.FAILED), CASE_STATUSES.index(CaseStatus.ERROR))
"""Ranks of what has not passed; they are one range in the index of results."""

_NAMED = 5

_FAILING_CASES = f"""
    SELECT DISTINCT r.test_id FROM result r WHERE r.run_id = ? AND r.status IN {FAILING}"""  # noqa: S608
_FAILING_SUITES = f"""
    SELECT DISTINCT s.name FROM suite s WHERE s.run_id = ? AND s.failed + s.errors > 0 AND s.id NOT IN
    (SELECT r.suite_id FROM result r WHERE r.run_id = ? AND r.status IN {FAILING} AND r.suite_id IS NOT NULL)
"""  # noqa: S608
_NEWEST_BEFORE = """
    SELECT id FROM run WHERE project_id = ? AND branch = ? AND flag = ? AND (created_at, id) < (?, ?)
    ORDER BY created_at DESC, id DESC LIMIT 1"""
_NAMES = """
    SELECT class_name, name FROM test WHERE id IN (SELECT value FROM json_each(?)) AND id NOT IN
    (SELECT test_id FROM mark WHERE project_id = ? AND status = 'QUARANTINED')"""


@frozen
class Thresholds:
    """What a run is held against. `min_line_coverage` None: no minimum."""

    base_branch: str
    min_line_coverage: float | None
    max_coverage_drop_pct: float
    fail_on_new_failures: bool


@frozen
class Rule:
    """One rule's word on a run."""

    name: str
    passed: bool
    detail: str


@frozen
class Verdict:
    """`coverage_delta` in percentage points; None without a baseline, or where either has no coverage."""

    rules: Sequence[Rule]
    coverage_delta: float | None
    baseline_id: int | None

    @property
    def passed(self) -> bool:
        return all(rule.passed for rule in self.rules)

    @property
    def status(self) -> Judged:
        return "PASSED" if self.passed else "FAILED"


def thresholds(project: Project, settings: QualityGate) -> Thresholds:
    """The project's own settings, and the global ones where it has none."""
    return Thresholds(
        base_branch=_first(project.base_branch, settings.base_branch),
        min_line_coverage=_first(project.min_line_coverage, settings.min_line_coverage),
        max_coverage_drop_pct=_first(project.max_coverage_drop_pct, settings.max_coverage_drop_pct),
        fail_on_new_failures=_first(project.fail_on_new_failures, settings.fail_on_new_failures),
    )


def _first(own: Any, house: Any) -> Any:
    return house if own is None else own


def verdict(run: Run, project: Project, settings: QualityGate) -> Verdict:
    """What the gate says of a run. Reads the store: for a worker, within or without a transaction."""
    limits = thresholds(project, settings)
    base = baseline(run, limits)
    covered = share(run.line_covered, run.line_missed)
    before = share(base.line_covered, base.line_missed) if base else None
    found = rules(limits, covered, before, new_failures(run, base) if limits.fail_on_new_failures else ())
    delta = None if covered is None or before is None else float(covered - before)
    return Verdict(found, delta, base.id if base else None)


def rules(
    limits: Thresholds, covered: Fraction | None, before: Fraction | None, failing: Collection[str]
) -> list[Rule]:
    """The rules that apply, in order. `covered` and `before` (the baseline) are percents; `failing` newly fails."""
    found = []
    if limits.min_line_coverage is not None:
        found.append(_minimum(covered, limits.min_line_coverage))
    if covered is not None and before is not None:
        found.append(_drop(covered, before, limits.max_coverage_drop_pct))
    if limits.fail_on_new_failures:
        found.append(_failures(failing))
    return found


@lru_cache(1024)
def _minimum(covered: Fraction | None, least: float) -> Rule:
    if covered is None:
        return Rule("min-coverage", True, "no coverage reported")
    have, need = _shown(covered, decimal(least))
    detail = f"{have}% line coverage (minimum {need}%)"
    return Rule("min-coverage", covered >= decimal(least), detail)


@lru_cache(4096)
def _drop(covered: Fraction, before: Fraction, most: float) -> Rule:
    drop = before - covered
    now, base = _shown(covered, before)
    lost, allowed = _shown(max(drop, Fraction(0)), decimal(most))
    detail = f"{now}% vs baseline {base}% (drop {lost}pp, max {allowed}pp)"
    return Rule("coverage-drop", drop <= decimal(most), detail)


def _failures(failing: Collection[str]) -> Rule:
    if not failing:
        return Rule("new-failures", True, "no new failures")
    detail = f"{len(failing)} new failure(s): {', '.join(sorted(failing)[:_NAMED])}"
    return Rule("new-failures", False, detail)


def _shown(one: Fraction, other: Fraction) -> tuple[str, str]:
    """Both with one decimal, or with as many as it takes to tell them apart."""
    texts = "", ""
    for digits in (1, 2, 4, 6):
        texts = f"{float(one):.{digits}f}", f"{float(other):.{digits}f}"
        if one == other or texts[0] != texts[1]:
            break
    return texts


def baseline(run: Run, limits: Thresholds) -> Run | None:
    """The newest earlier run of the same flag on the branch that this one is to be merged into, else on the base."""
    branch = run.base_branch or limits.base_branch
    values = (run.project_id, branch, run.flag, run.created_at, run.id)
    row = reports.execute_sql(_NEWEST_BEFORE, values).fetchone()
    return Run.get_by_id(row[0]) if row else None


def new_failures(run: Run, base: Run | None) -> list[str]:
    """What fails now, did not in the baseline and is not quarantined, as `className name`.

    A suite that fails without saying which test is named itself: its failure would go unseen.
    """
    tests, suites = _failing(run)
    if base is not None and (tests or suites):
        tests_before, suites_before = _failing(base)
        tests, suites = tests - tests_before, suites - suites_before
    return [*_names(run.project_id, tests), *suites]


def _failing(run: Run) -> tuple[set[int], set[str]]:
    if not run.failed + run.errors:
        return set(), set()
    tests = {row[0] for row in reports.execute_sql(_FAILING_CASES, (run.id,))}
    suites = {row[0] for row in reports.execute_sql(_FAILING_SUITES, (run.id, run.id))}
    return tests, suites


def _names(project_id: int, tests: Collection[int]) -> list[str]:
    if not tests:
        return []
    rows = reports.execute_sql(_NAMES, (json.dumps(sorted(tests)), project_id))
    return [f"{class_name} {name}".strip() for class_name, name in rows]
