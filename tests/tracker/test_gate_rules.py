"""The verdict of the quality gate on a run, and the choice of the baseline."""

from __future__ import annotations

from collections.abc import Iterator
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest
import records
from attrs import evolve
from records import ERROR, FAILED, NOW, PASSED, SECOND, SKIPPED
from tracker_rows import Report, Suite

from models.config.settings import QualityGate
from models.tracker.failures import flaky
from models.tracker.failures.flaky import Triage
from models.tracker.gate import baseline
from models.tracker.gate.baseline import Baseline
from models.tracker.gate.quality_gate import RuleInfo, rules, verdict
from models.tracker.runs import retention
from models.tracker.tables import Project, Run

LIMITS = GATE = QualityGate()


@pytest.fixture
def project(tmp_path: Path, database_url: str | None) -> Iterator[Project]:
    with records.open_store(tmp_path / "tracker.db", database_url):
        yield records.create_project("demo")


def judged(run: Run, **settings: Any) -> dict[str, RuleInfo]:
    return {rule.name: rule for rule in verdict(run, run.project, evolve(GATE, **settings)).rules}


# The rules, on values


def test_without_coverage_minimum_or_baseline_only_new_failures_are_checked() -> None:
    assert rules(LIMITS, None, None, []) == [RuleInfo("new-failures", True, "no new failures")]


def test_rules_are_in_a_fixed_order() -> None:
    found = rules(evolve(LIMITS, min_line_coverage=80.0), Fraction(75), Fraction(90), ["a b"])
    assert [rule.name for rule in found] == ["min-coverage", "coverage-drop", "new-failures"]
    assert not any(rule.passed for rule in found)


def test_failures_do_not_count_where_the_setting_disables_them() -> None:
    assert rules(evolve(LIMITS, fail_on_new_failures=False), None, None, ["a b"]) == []


@pytest.mark.parametrize(("covered", "passes"), [("79.99999", False), ("80", True), ("80.00001", True)])
def test_coverage_equal_to_the_minimum_passes(covered: str, passes: bool) -> None:
    (rule, _) = rules(evolve(LIMITS, min_line_coverage=80.0), Fraction(covered), None, [])
    assert rule.passed is passes


def test_missing_coverage_passes_the_minimum() -> None:
    (rule, _) = rules(evolve(LIMITS, min_line_coverage=80.0), None, Fraction(90), [])
    assert rule == RuleInfo("min-coverage", True, "no coverage reported")


@pytest.mark.parametrize(
    ("before", "now", "maximum", "passes"),
    [
        ("80", "79", 1.0, True),
        ("80", "78.999999", 1.0, False),
        ("80", "95", 1.0, True),
        ("80.3", "80", 0.3, True),  # as floats 80.3 - 80 is more than 0.3
        ("80.7", "80", 0.7, True),
        ("80.1", "80", 0.0, False),
        ("80", "80", 0.0, True),
    ],
)
def test_coverage_drop_equal_to_the_maximum_passes(before: str, now: str, maximum: float, passes: bool) -> None:
    (rule, _) = rules(evolve(LIMITS, max_coverage_drop_pct=maximum), Fraction(now), Fraction(before), [])
    assert rule.passed is passes


def test_detail_of_a_coverage_drop() -> None:
    (rule, _) = rules(LIMITS, Fraction(75), Fraction(80), [])
    assert rule.detail == "75.0% vs baseline 80.0% (drop 5.0pp, max 1.0pp)"
    (rule, _) = rules(LIMITS, Fraction(85), Fraction(80), [])
    assert rule.detail == "85.0% vs baseline 80.0% (drop 0.0pp, max 1.0pp)"


def test_detail_has_enough_digits_to_distinguish_its_values() -> None:
    (rule, _) = rules(LIMITS, Fraction("78.98"), Fraction(80), [])
    assert rule.detail.endswith("(drop 1.02pp, max 1.00pp)")
    (rule, _) = rules(evolve(LIMITS, min_line_coverage=80.0), Fraction("79.999"), None, [])
    assert rule.detail == "79.9% line coverage (minimum 80.0%)"
    (rule, _) = rules(evolve(LIMITS, min_line_coverage=79.9999), Fraction("79.9991"), None, [])
    assert rule.detail == "79.9991% line coverage (minimum 79.9999%)"


def test_the_first_five_failures_by_name_are_reported() -> None:
    (rule,) = rules(LIMITS, None, None, [f"com.x.G {letter}" for letter in "gfedcba"])
    assert rule.detail == "7 new failure(s): com.x.G a, com.x.G b, com.x.G c, com.x.G d, com.x.G e"


# New failures


def test_without_a_baseline_every_failure_is_new(project: Project) -> None:
    run = records.create_run(project, {"c.A b": FAILED, "c.A a": ERROR, "c.A c": PASSED, "c.A d": SKIPPED})
    assert judged(run)["new-failures"] == RuleInfo("new-failures", False, "2 new failure(s): c.A a, c.A b")


def test_failure_of_the_baseline_is_not_new(project: Project) -> None:
    records.create_run(project, {"c.A a": FAILED, "c.A b": PASSED})
    run = records.create_run(project, {"c.A a": ERROR, "c.A b": PASSED}, branch="feature")
    found = verdict(run, project, GATE)
    assert (run.status, found.status, found.passed) == ("FAILED", "PASSED", True)
    assert judged(records.create_run(project, {"c.A a": FAILED, "c.A b": FAILED}))["new-failures"].detail.endswith(
        ": c.A b"
    )


def test_the_same_name_in_another_class_is_another_test(project: Project) -> None:
    records.create_run(project, {"c.A a": FAILED})
    assert not judged(records.create_run(project, {"c.B a": FAILED}))["new-failures"].passed


def test_a_test_without_a_class_is_reported_by_its_name(project: Project) -> None:
    assert judged(records.create_run(project, {"alone": FAILED}))["new-failures"].detail == "1 new failure(s): alone"


def test_quarantined_test_does_not_fail_the_gate_until_it_is_active_again(project: Project) -> None:
    run = records.create_run(project, {"c.A a": FAILED})
    for status, passes in ((Triage.QUARANTINED, True), (Triage.RESOLVED, False), (Triage.QUARANTINED, True)):
        flaky.set_triage(project.id, "c.A", "a", status, None, 1, NOW)
        assert judged(run)["new-failures"].passed is passes
    flaky.set_triage(project.id, "c.A", "a", Triage.ACTIVE, None, 1, NOW)
    assert not judged(run)["new-failures"].passed


def test_quarantine_applies_to_one_project(project: Project) -> None:
    other = records.create_project("other")
    records.create_run(other, {"c.A a": FAILED})
    flaky.set_triage(other.id, "c.A", "a", Triage.QUARANTINED, None, 1, NOW)
    assert not judged(records.create_run(project, {"c.A a": FAILED}))["new-failures"].passed


def test_failed_suite_without_a_failed_case_is_a_failure_named_after_the_suite(project: Project) -> None:
    def broken(name: str) -> Run:
        run = records.create_run(project, {"c.A a": PASSED}, failed=2, status="FAILED")
        counts = {"tests": 3, "failed": 2, "errors": 0, "skipped": 0, "duration_ms": 0}
        Suite.create(report=records.report_of_run(run), run_id=run.id, name=name, **counts)
        return run

    assert judged(broken("by attributes"))["new-failures"].detail == "1 new failure(s): by attributes"
    assert judged(broken("by attributes"))["new-failures"].passed
    assert not judged(broken("another"))["new-failures"].passed


# The baseline


def test_the_baseline_is_the_newest_earlier_run_of_the_base_branch(project: Project) -> None:
    records.create_run(project, coverage=(10, 90))
    newest = records.create_run(project, coverage=(80, 20))
    run = records.create_run(project, coverage=(70, 30), branch="feature")
    records.create_run(project, coverage=(20, 80))
    found = verdict(run, project, GATE)
    assert (found.baseline_id, found.coverage_delta) == (newest.id, -10.0)


def test_a_run_of_the_base_branch_has_the_one_before_it_as_baseline(project: Project) -> None:
    first = records.create_run(project)
    second = records.create_run(project)
    assert verdict(second, project, GATE).baseline_id == first.id
    assert verdict(first, project, GATE).baseline_id is None


def test_of_runs_with_equal_times_the_higher_id_is_newer(project: Project) -> None:
    first, second, third = (records.create_run(project, created_at=NOW) for _ in range(3))
    assert verdict(second, project, GATE).baseline_id == first.id
    assert verdict(third, project, GATE).baseline_id == second.id


def test_creation_time_takes_precedence_over_the_id(project: Project) -> None:
    late = records.create_run(project, created_at=NOW + 9 * SECOND)
    early = records.create_run(project, created_at=NOW)
    run = records.create_run(project, created_at=NOW + 5 * SECOND, branch="feature")
    assert verdict(run, project, GATE).baseline_id == early.id
    assert verdict(late, project, GATE).baseline_id == early.id


def test_a_baseline_has_the_same_flag(project: Project) -> None:
    unit = records.create_run(project, flag="unit")
    records.create_run(project, flag="e2e")
    assert verdict(records.create_run(project, flag="unit"), project, GATE).baseline_id == unit.id
    assert verdict(records.create_run(project, flag="new"), project, GATE).baseline_id is None


def test_a_baseline_is_of_the_same_project(project: Project) -> None:
    records.create_run(records.create_project("other"))
    assert verdict(records.create_run(project), project, GATE).baseline_id is None


def test_base_branch_is_that_of_the_run_else_the_project_else_the_settings(project: Project) -> None:
    runs = {branch: records.create_run(project, branch=branch) for branch in ("main", "develop", "release")}
    plain, own = (
        records.create_run(project, branch="x"),
        records.create_run(project, branch="x", base_branch="release"),
    )
    assert verdict(plain, project, GATE).baseline_id == runs["main"].id
    assert verdict(plain, project, evolve(GATE, base_branch="develop")).baseline_id == runs["develop"].id
    project.base_branch = "develop"
    project.save()
    assert verdict(plain, project, GATE).baseline_id == runs["develop"].id
    assert verdict(own, project, GATE).baseline_id == runs["release"].id


# Coverage


def test_without_coverage_on_either_side_there_is_no_delta_and_no_rule(project: Project) -> None:
    records.create_run(project)
    found = verdict(records.create_run(project, coverage=(1, 1)), project, GATE)
    assert found.coverage_delta is None
    assert [rule.name for rule in found.rules] == ["new-failures"]
    assert verdict(records.create_run(project), project, GATE).coverage_delta is None


def test_report_without_coverable_lines_has_no_coverage(project: Project) -> None:
    records.create_run(project, coverage=(1, 1))
    assert verdict(records.create_run(project, coverage=(0, 0)), project, GATE).coverage_delta is None


def test_coverage_delta_has_no_floating_point_noise(project: Project) -> None:
    records.create_run(project, coverage=(803, 197))
    assert verdict(records.create_run(project, coverage=(800, 200)), project, GATE).coverage_delta == -0.3


def test_project_overrides_each_threshold_separately(project: Project) -> None:
    records.create_run(project, coverage=(80, 20))
    run = records.create_run(project, {"c.A a": FAILED}, coverage=(75, 25))
    assert {name: rule.passed for name, rule in judged(run, min_line_coverage=70.0).items()} == {
        "min-coverage": True, "coverage-drop": False, "new-failures": False,
    }  # fmt: skip
    Project.update(min_line_coverage=76, max_coverage_drop_pct=5).execute()
    assert {name: rule.passed for name, rule in judged(Run.get_by_id(run.id), min_line_coverage=70.0).items()} == {
        "min-coverage": False, "coverage-drop": True, "new-failures": False,
    }  # fmt: skip
    Project.update(min_line_coverage=0, max_coverage_drop_pct=0, fail_on_new_failures=False).execute()
    assert {name: rule.passed for name, rule in judged(Run.get_by_id(run.id), min_line_coverage=70.0).items()} == {
        "min-coverage": True, "coverage-drop": False,
    }  # fmt: skip


def test_a_verdict_with_no_rule_passes(project: Project) -> None:
    found = verdict(records.create_run(project, {"c.A a": FAILED}), project, evolve(GATE, fail_on_new_failures=False))
    assert (found.rules, found.passed, found.status) == ([], True, "PASSED")


# The order of commits


def test_a_red_commit_that_is_uploaded_again_stays_red(project: Project) -> None:
    green = records.create_run(project, {"c.A a": PASSED}, commit_sha="1")
    records.create_run(project, {"c.A a": FAILED}, commit_sha="2")
    again = records.create_run(project, {"c.A a": FAILED}, commit_sha="2")
    assert verdict(again, project, GATE).baseline_id == green.id
    assert not judged(again)["new-failures"].passed


def test_an_old_commit_that_is_uploaded_again_is_not_the_newest_baseline(project: Project) -> None:
    records.create_run(project, {"c.A a": FAILED}, commit_sha="1")
    fixed = records.create_run(project, {"c.A a": PASSED}, commit_sha="2")
    records.create_run(project, {"c.A a": FAILED}, commit_sha="1")
    run = records.create_run(project, {"c.A a": FAILED}, commit_sha="x", branch="feature")
    assert verdict(run, project, GATE).baseline_id == fixed.id
    assert not judged(run)["new-failures"].passed


def test_the_newest_run_of_the_commit_before_is_the_baseline(project: Project) -> None:
    records.create_run(project, commit_sha="1")
    again = records.create_run(project, commit_sha="1")
    run = records.create_run(project, commit_sha="2")
    assert verdict(run, project, GATE).baseline_id == again.id


@pytest.mark.parametrize("facts", [{"pr_number": 7}, {"head_repo": "someone/demo"}, {"state": "PENDING"}])
def test_runs_of_pull_requests_and_incomplete_runs_are_no_baselines(project: Project, facts: dict[str, Any]) -> None:
    base = records.create_run(project, commit_sha="1")
    records.create_run(project, commit_sha="2", **facts)
    run = records.create_run(project, commit_sha="x", branch="feature")
    assert verdict(run, project, GATE).baseline_id == base.id


def test_a_pull_request_is_compared_with_what_it_was_branched_from(project: Project) -> None:
    runs = [records.create_run(project, commit_sha=commit) for commit in "abcd"]
    run = records.create_run(project, commit_sha="x", branch="feature")
    records.create_base_commits(run, ["unknown", "b", "a"])
    found = verdict(run, project, GATE).baseline
    assert found == Baseline(runs[1].id, "b", "main", "MERGE_BASE", 2, False, None)
    assert baseline.explained(found, run.id, "main") == (
        "Compared with b, 2 commits behind main, where its branch begins"
    )


def test_an_unknown_base_branch_is_replaced_by_that_of_the_project(project: Project) -> None:
    base = records.create_run(project, commit_sha="a")
    run = records.create_run(project, commit_sha="x", branch="feature", base_branch="nowhere")
    assert verdict(run, project, GATE).baseline_id == base.id
    assert baseline.unknown_base_branch(run.id, "main") == ("nowhere", "main")
    assert baseline.unknown_base_branch(base.id, "main") is None
    assert baseline.explained(verdict(run, project, GATE).baseline, run.id, "main") == (
        "Compared with a of main, the latest commit before it; its base branch nowhere has no run, so main counts"
    )
    assert baseline.explained(None, base.id, "main") == (
        "No baseline: main has no complete run of this flag for an earlier commit"
    )


def test_the_place_of_a_commit_stays_when_its_first_run_is_deleted(project: Project) -> None:
    first = records.create_run(project, commit_sha="1")
    second = records.create_run(project, commit_sha="2")
    records.create_run(project, commit_sha="1")
    while retention.delete_some(first.id):
        pass
    run = records.create_run(project, commit_sha="x", branch="feature")
    assert verdict(run, project, GATE).baseline_id == second.id


def test_the_branch_of_a_run_that_is_filled_in_later_counts(project: Project) -> None:
    run = records.create_run(project, commit_sha=None, branch=None, created_at=NOW)
    Run.update(branch="main", commit_sha="1").where(Run.id == run.id).execute()
    records.create_run(project, commit_sha="2", created_at=NOW + SECOND)
    newest = records.create_run(project, commit_sha="1", created_at=NOW + 2 * SECOND)
    assert verdict(newest, project, GATE).baseline_id is None


# Failures are counted


def create_legs(project: Project, *legs: tuple[str | None, str, bool], **facts: Any) -> Run:
    """Creates a run with a result of `c.A a` in each leg, given as module, suite and whether it fails."""
    failed = sum(fails for _, _, fails in legs)
    run = records.create_run(project, failed=failed, status="FAILED" if failed else "PASSED", **facts)
    for module, name, fails in legs:
        counts = {"tests": 1, "failed": 0, "errors": 0, "skipped": 0, "duration_ms": 0}
        report = Report.create(
            run=run, kind="junit", hash=f"{run.id} {module} {name}", name="a", format="junit", module=module,
            created_at=NOW, passed=0, flaky=0, **counts,
        )  # fmt: skip
        suite = Suite.create(report=report, run_id=run.id, name=name, **counts)
        records.create_result(project, run, report, "c.A a", FAILED if fails else PASSED, suite_id=suite.id)
    return run


@pytest.mark.parametrize(
    ("before", "now", "is_new"),
    [
        ([(None, "linux", False), (None, "windows", True)], [(None, "linux", True), (None, "windows", True)], True),
        ([(None, "linux", False), (None, "windows", True)], [(None, "linux", True), (None, "windows", False)], True),
        ([(None, "linux", True), (None, "windows", True)], [(None, "linux", True), (None, "windows", False)], False),
        ([(None, "old name", True)], [(None, "new name", True)], False),
        ([("linux", "t", False), ("windows", "t", True)], [("linux", "t", True), ("windows", "t", True)], True),
        ([("linux", "t", False), ("windows", "t", True)], [("linux", "u", True), ("windows", "u", False)], True),
    ],
)
def test_a_failure_on_another_platform_is_new(project: Project, before: Any, now: Any, is_new: bool) -> None:
    create_legs(project, *before, commit_sha="1")
    assert judged(create_legs(project, *now, commit_sha="2"))["new-failures"].passed is not is_new


def test_two_failing_cases_of_one_name_where_one_failed_before_are_new(project: Project) -> None:
    records.create_run(project, {"c.A a": FAILED}, commit_sha="1")
    run = records.create_run(project, {"c.A a": FAILED}, commit_sha="2")
    assert judged(run)["new-failures"].passed
    records.create_result(project, run, records.report_of_run(run), "c.A a", FAILED)
    assert judged(run)["new-failures"].detail == "1 new failure(s): c.A a"
