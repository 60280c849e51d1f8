"""The quality gate: judges runs against thresholds and baselines. Verdicts are computed when read, never stored."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Mapping, Sequence
from fractions import Fraction
from functools import lru_cache
from typing import Literal

from attrs import evolve, fields, frozen

from models.config.settings import QualityGate
from models.percentages import rounded_down
from models.tracker.coverage.file_coverage import decimal, percent, share
from models.tracker.gate import baseline, new_failures, test_drop
from models.tracker.gate.baseline import Baseline
from models.tracker.gate.test_drop import FewerTests, TestCount
from models.tracker.runs import perf
from models.tracker.runs.attempts import arrived
from models.tracker.tables import Project, Run, reports

Judged = Literal["PASSED", "FAILED"]

MAX_NAMED_FAILURES = 5
_MAX_NAMED_LABELS = 3
MISSING_COVERAGE = "missing-coverage"
PATCH = "min-patch-coverage"
COVERAGE_RULES = ("min-coverage", "coverage-drop", PATCH, MISSING_COVERAGE)
"""Rules that are judged for a commit as a whole: by the union of the coverage of its flags."""
_ORDER = (
    "min-coverage", "coverage-drop", "new-failures", PATCH, "no-tests", MISSING_COVERAGE, "complete-run",
    "required-flags", "test-drop", "no-failures", "perf-latency", "perf-throughput", "perf-errors",
)  # fmt: skip
NO_DIFF = "no diff was uploaded"

_NAMES = """
    SELECT t.id, t.class_name, t.name FROM test t WHERE t.id IN (SELECT value FROM json_each(?)) AND NOT EXISTS
    (SELECT 1 FROM mark m WHERE m.project_id = t.project_id AND m.test_id = t.id AND m.status = 'QUARANTINED')"""


@frozen
class RunSummary:
    """The columns of a run that a verdict and a status depend on, without the cost of a `Run`."""

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
    state: str
    expected_uploads: int | None
    partial_by: str | None
    patch_covered: int | None
    patch_missed: int | None
    patch_unknown: int | None
    patch_reason: str | None

    @property
    def pass_rate(self) -> float:
        return 100 * self.passed / (self.tests - self.skipped) if self.tests > self.skipped else 0.0

    @property
    def line_coverage(self) -> float | None:
        return percent(self.line_covered, self.line_missed)


@frozen
class RuleInfo:
    name: str
    passed: bool
    detail: str
    flag: str | None = None
    """Set where all flags of a commit are judged together; null for a rule of the commit."""


@frozen
class Verdict:
    """`coverage_delta` in percentage points; None without a baseline, or where either has no coverage."""

    rules: Sequence[RuleInfo]
    coverage_delta: float | None
    baseline: Baseline | None

    @property
    def baseline_id(self) -> int | None:
        return self.baseline.run_id if self.baseline else None

    @property
    def passed(self) -> bool:
        return all(rule.passed for rule in self.rules)

    @property
    def status(self) -> Judged:
        return "PASSED" if self.passed else "FAILED"


def thresholds(project: Project, settings: QualityGate) -> QualityGate:
    """The project's own settings, and the global ones where it has none."""
    own = {limit.name: getattr(project, limit.name) for limit in fields(QualityGate)}
    return evolve(settings, **{name: value for name, value in own.items() if value is not None})


def verdict(run: Run | RunSummary, project: Project, settings: QualityGate) -> Verdict:
    """The verdict on one run. Reads the store, within or without a transaction: for a worker."""
    return verdicts([run], {project.id: project}, settings)[run.id]


def verdicts(
    runs: Iterable[Run | RunSummary], projects: Mapping[int, Project], settings: QualityGate
) -> dict[int, Verdict]:
    """The verdicts on runs by their ids, in a fixed number of queries. `projects` has each run's project by its id."""
    by_id = {run.id: run for run in runs}
    bases = baseline.of_runs(by_id, settings.base_branch)
    limits = {id: thresholds(projects[run.project_id], settings) for id, run in by_id.items()}
    failed = {id for id, run in by_id.items() if run.status == "FAILED" and limits[id].fail_on_new_failures}
    new = _names_of_new_failures({id: bases.get(id) for id in failed})
    uploads = arrived(id for id, run in by_id.items() if run.expected_uploads is not None)
    counted = _rules_of_tests(by_id, limits, bases)
    measured = perf.with_points(id for id in by_id if judges_perf(limits[id]) or limits[id].fail_on_no_tests)
    judged = {}
    for id, run in by_id.items():
        base = bases.get(id)
        covered = share(run.line_covered, run.line_missed)
        before = base.coverage if base else None
        delta = None if covered is None or before is None else float(covered - before)
        applied = rules(limits[id], covered, before, new.get(id, ()))
        if limits[id].min_patch_coverage is not None:
            counts = run.patch_covered or 0, run.patch_missed or 0, run.patch_unknown or 0
            reason = NO_DIFF if run.patch_covered is None else run.patch_reason
            applied.append(patch_rule(limits[id], *counts, reason))
        applied += presence_rules(limits[id], run, uploads.get(id, 0), id in measured)
        applied += counted[id]
        if id in measured and judges_perf(limits[id]):
            applied += perf_rules(limits[id], settings.base_branch, id)
        judged[id] = Verdict(applied, delta, base)
    return judged


def in_order(rules: Iterable[RuleInfo]) -> list[RuleInfo]:
    """The rules in the order in which verdicts have them; those of one name stay in theirs."""
    return sorted(rules, key=lambda rule: _ORDER.index(rule.name))


def _names_of_new_failures(pairs: Mapping[int, Baseline | None]) -> dict[int, list[str]]:
    """By failed run, given with its baseline: the new failures that are not quarantined, as `className name`.

    A suite that fails without a failed test in it is named too: otherwise its failure would go unseen.
    """
    found = new_failures.of_runs({run: base.run_id if base and base.failed else None for run, base in pairs.items()})
    names = _names({test for one in found.values() for test in one.tests})
    return {run: [names[test] for test in one.tests if test in names] + list(one.suites) for run, one in found.items()}


def _names(tests: Collection[int]) -> dict[int, str]:
    """The names of the tests that are not quarantined, by id."""
    if not tests:
        return {}
    rows = reports.execute_sql(_NAMES, (json.dumps(list(tests)),))
    return {id: f"{class_name} {name}".strip() for id, class_name, name in rows}


def rules(
    limits: QualityGate, covered: Fraction | None, before: Fraction | None, new_failures: Collection[str]
) -> list[RuleInfo]:
    """The rules that apply, in order. `covered` and `before` are the line coverage of the run and its baseline."""
    applied = coverage_rules(limits, covered, before)
    if limits.fail_on_new_failures:
        applied.append(_named("new-failures", "new failure(s)", new_failures, "no new failures"))
    return applied


def coverage_rules(limits: QualityGate, covered: Fraction | None, before: Fraction | None) -> list[RuleInfo]:
    """The rules on line coverage that apply."""
    applied = []
    if limits.min_line_coverage is not None:
        applied.append(_minimum(covered, limits.min_line_coverage))
    if covered is not None and before is not None:
        applied.append(_drop(covered, before, limits.max_coverage_drop_pct))
    return applied


def patch_rule(limits: QualityGate, covered: int, missed: int, unknown: int, reason: str | None) -> RuleInfo:
    """The rule on the coverage of changed lines; `reason` is why it is unknown."""
    changed = covered + missed
    if not changed:
        is_silence = reason != "no coverable line changed"
        return RuleInfo(PATCH, not (is_silence and limits.fail_on_missing_coverage), reason or NO_DIFF)
    files = f"; no line data for {unknown} changed files" if unknown else ""
    if changed < limits.min_patch_lines:
        detail = f"{changed} changed lines, below {limits.min_patch_lines}{files}"
        return RuleInfo(PATCH, not (unknown and limits.fail_on_missing_coverage), detail)
    share_covered, minimum = Fraction(100 * covered, changed), decimal(limits.min_patch_coverage or 0.0)
    have, need = _formatted(share_covered, minimum)
    return RuleInfo(PATCH, share_covered >= minimum, f"{have}% of {changed} changed lines (minimum {need}%){files}")


def presence_rules(limits: QualityGate, run: Run | RunSummary, uploads: int, has_perf: bool = False) -> list[RuleInfo]:
    """The rules on what a run must have. `uploads`: of how many jobs an upload came."""
    applied = []
    if limits.fail_on_no_tests:
        detail = f"{run.tests} tests were reported" if run.tests else "no tests were reported"
        if has_perf and not run.tests:
            detail = "a performance report"
        applied.append(RuleInfo("no-tests", bool(run.tests) or has_perf, detail))
    if limits.fail_on_missing_coverage:
        has_coverage = share(run.line_covered, run.line_missed) is not None
        detail = "coverage was reported" if has_coverage else "no coverage was reported"
        applied.append(RuleInfo(MISSING_COVERAGE, has_coverage, detail))
    if run.expected_uploads is not None:
        detail = f"{uploads} of {run.expected_uploads} uploads"
        if run.partial_by is not None and run.state == "COMPLETE":
            detail += f", closed as partial by {run.partial_by}"
        applied.append(RuleInfo("complete-run", run.state == "COMPLETE", detail))
    return applied


def _rules_of_tests(
    runs: Mapping[int, Run | RunSummary], limits: Mapping[int, QualityGate], bases: Mapping[int, Baseline]
) -> dict[int, list[RuleInfo]]:
    """By run, the rules `test-drop` and `no-failures`, where they are set."""
    found: dict[int, list[RuleInfo]] = {id: [] for id in runs}
    drops = {id: limit for id in runs if (limit := limits[id].max_test_drop_pct) is not None}
    based = {id: bases[id].run_id for id in drops if id in bases}
    counts = test_drop.counts({*drops, *based.values()})
    attempts = test_drop.of_attempts(drops) if drops else {}
    for id, limit in drops.items():
        before = counts.get(based[id]) if id in based else None
        found[id].append(_test_drop(limit, counts[id], before, attempts.get(id, ())))
    strict = [id for id, run in runs.items() if limits[id].fail_on_any_failure]
    names = _names_of_new_failures({id: None for id in strict if runs[id].status == "FAILED"})
    for id in strict:
        found[id].append(_named("no-failures", "failing test(s)", names.get(id, ()), "no failing tests"))
    return found


def _test_drop(max_drop: float, now: TestCount, before: TestCount | None, attempts: Sequence[FewerTests]) -> RuleInfo:
    """The rule on the number of tests, against the baseline and against earlier attempts of jobs."""
    limit, texts, passed = decimal(max_drop), [], True
    if before is not None:
        missing = test_drop.missing(now, before)
        lost = test_drop.share(missing, before.tests)
        shown, allowed = _formatted(lost, limit)
        texts.append(f"{now.tests} tests vs baseline {before.tests} ({missing} missing, {shown}%, max {allowed}%)")
        passed = lost <= limit
    if attempts:
        gone = sum(fewer.earlier_tests - fewer.tests for fewer in attempts)
        passed &= test_drop.share(gone, now.tests + gone) <= limit
        texts += [fewer.text for fewer in attempts[:MAX_NAMED_FAILURES]]
    return RuleInfo("test-drop", passed, "; ".join(texts) or "no baseline")


@lru_cache(1024)
def _minimum(covered: Fraction | None, minimum: float) -> RuleInfo:
    if covered is None:
        return RuleInfo("min-coverage", True, "no coverage reported")
    have, need = _formatted(covered, decimal(minimum))
    detail = f"{have}% line coverage (minimum {need}%)"
    return RuleInfo("min-coverage", covered >= decimal(minimum), detail)


@lru_cache(4096)
def _drop(covered: Fraction, before: Fraction, max_drop: float) -> RuleInfo:
    drop = before - covered
    now, base = _formatted(covered, before)
    lost, allowed = _formatted(max(drop, Fraction(0)), decimal(max_drop))
    detail = f"{now}% vs baseline {base}% (drop {lost}pp, max {allowed}pp)"
    return RuleInfo("coverage-drop", drop <= decimal(max_drop), detail)


def _named(rule: str, what: str, names: Collection[str], none: str) -> RuleInfo:
    """The rule that there are none of these; the first are named."""
    shown = ", ".join(sorted(names)[:MAX_NAMED_FAILURES])
    return RuleInfo(rule, not names, f"{len(names)} {what}: {shown}" if names else none)


def _formatted(one: Fraction, other: Fraction) -> tuple[str, str]:
    """Both with one decimal, or with as many as make them differ."""
    texts = "", ""
    for digits in (1, 2, 4, 6):
        texts = rounded_down(one, digits), rounded_down(other, digits)
        if one == other or texts[0] != texts[1]:
            break
    return texts


def judges_perf(limits: QualityGate) -> bool:
    """Whether any rule on performance is set."""
    rules = (limits.perf_max_latency_increase_pct, limits.perf_max_throughput_drop_pct, limits.perf_max_error_pct)
    return any(limit is not None for limit in rules)


def perf_rules(limits: QualityGate, base_branch: str, run_id: int) -> list[RuleInfo]:
    """The rules on performance that are set, for a run with points."""
    bases = perf.baselines(run_id, base_branch)
    rows = perf.compared(run_id, bases)
    unknown = "no label of the baselines" if bases else "no baseline"
    found = []
    if (most := limits.perf_max_latency_increase_pct) is not None:
        slower = [
            (pct, f"{row.point.label}: {perf.latency(row.point):.4g} ms vs {row.baseline_latency:.4g} ms ({pct:+.1f}%)")
            for row in rows
            if (pct := row.latency_change_pct) is not None
        ]
        found.append(_largest_rule("perf-latency", slower, most, unknown))
    if (most := limits.perf_max_throughput_drop_pct) is not None:
        fewer = [
            (
                -pct,
                f"{row.point.label}: {row.point.throughput:.4g} /s vs {row.baseline_throughput:.4g} /s ({pct:+.1f}%)",
            )
            for row in rows
            if (pct := row.throughput_change_pct) is not None
        ]
        found.append(_largest_rule("perf-throughput", fewer, most, unknown))
    if (most := limits.perf_max_error_pct) is not None:
        errors = [
            (pct, f"{row.point.label}: {rounded_down(pct, 2)}% errors")
            for row in rows
            if (pct := row.point.error_pct) is not None
        ]
        found.append(_largest_rule("perf-errors", errors, most, "no errors are reported"))
    return found


def _largest_rule(name: str, values: Sequence[tuple[float, str]], most: float, unknown: str) -> RuleInfo:
    """The rule that none of these values, given with their texts, is above `most`."""
    if not values:
        return RuleInfo(name, True, unknown)
    ordered = sorted(values, key=lambda value: -value[0])
    failed = [text for value, text in ordered if value > most + 1e-9]
    shown = ", ".join(failed[:_MAX_NAMED_LABELS] or [ordered[0][1]])
    more = f" and {len(failed) - _MAX_NAMED_LABELS} more" if len(failed) > _MAX_NAMED_LABELS else ""
    return RuleInfo(name, not failed, f"{shown}{more} (max {most:g}%)")
