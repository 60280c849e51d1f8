"""The rules of the quality gate against silence: required flags, fewer tests, and any failure."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import records
import uploads
from attrs import evolve
from conftest import Serve, Server
from records import FAILED, NOW, PASSED, SECOND, Tests

from models.config.settings import QualityGate
from models.tracker.failures import flaky
from models.tracker.failures.flaky import Triage
from models.tracker.gate import commit_gate, test_drop
from models.tracker.gate.commit_gate import CommitVerdict
from models.tracker.gate.quality_gate import RuleInfo, verdict
from models.tracker.tables import Project, Run

GATE = QualityGate()
TEN = {f"c.A t{number}": PASSED for number in range(10)}


@pytest.fixture
def project(tmp_path: Path, database_url: str | None) -> Iterator[Project]:
    with records.open_store(tmp_path / "tracker.db", database_url):
        yield records.create_project("demo")


def judged(run: Run, **settings: Any) -> dict[str, RuleInfo]:
    return {rule.name: rule for rule in verdict(run, run.project, evolve(GATE, **settings)).rules}


def judged_commit(run: Run, late: int | None = None, **settings: Any) -> CommitVerdict:
    return commit_gate.judge(Run.get_by_id(run.id), run.project, evolve(GATE, **settings), late=late)


def quarantine(project: Project, class_name: str, name: str) -> None:
    flaky.set_triage(project.id, class_name, name, Triage.QUARANTINED, None, 1, NOW)


def test_a_commit_with_more_flags_than_are_judged_fails(project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(commit_gate, "MAX_FLAGS", 2)
    runs = [records.create_run(project, TEN, commit_sha="1", flag=flag) for flag in ("a", "b")]
    assert judged_commit(runs[0]).verdict.passed
    records.create_run(project, {"c.A t": FAILED}, commit_sha="1", flag="d")
    for last in (runs[0], records.create_run(project, TEN, commit_sha="1", flag="c")):
        rules = [rule for rule in judged_commit(last).verdict.rules if rule.name == "complete-run"]
        assert rules == [RuleInfo("complete-run", False, "the commit has more than 2 flags, which are not all judged")]


# required-flags


def test_a_commit_without_a_run_of_a_required_flag_waits_for_it(project: Project) -> None:
    unit = records.create_run(project, TEN, commit_sha="1", flag="unit")
    limits: dict[str, Any] = {"required_flags": ("unit", "integration")}
    found = judged_commit(unit, **limits)
    assert found.verdict.rules[-1] == RuleInfo("required-flags", False, "waiting for integration")
    assert (found.complete, found.verdict.passed) == (False, False)
    records.create_run(project, TEN, commit_sha="1", flag="integration")
    found = judged_commit(unit, **limits)
    assert found.verdict.rules[-1] == RuleInfo("required-flags", True, "all required flags have a run")
    assert (found.complete, found.verdict.passed) == (True, True)


def test_a_required_flag_that_does_not_come_in_time_fails_for_good(project: Project) -> None:
    unit = records.create_run(project, TEN, commit_sha="1", flag="unit")
    limits: dict[str, Any] = {"required_flags": ("integration",)}
    assert not judged_commit(unit, unit.updated_at - 1, **limits).complete
    found = judged_commit(unit, unit.updated_at, **limits)
    assert found.verdict.rules[-1] == RuleInfo("required-flags", False, "no run of integration")
    assert (found.complete, found.verdict.passed) == (True, False)


def test_runs_of_other_commits_and_superseded_ones_are_no_runs_of_a_required_flag(project: Project) -> None:
    records.create_run(project, TEN, commit_sha="0", flag="ui", coverage=(1, 1))
    unit = records.create_run(project, TEN, commit_sha="1", flag="unit")
    records.create_run(project, TEN, commit_sha="1", flag="ui", superseded_by=unit.id)
    found = judged_commit(unit, required_flags=("ui",), carry_forward_flags=("*",))
    assert [flag.flag for flag in found.flags if flag.verdict is None] == ["ui"], "its coverage is carried forward"
    assert not found.verdict.passed


def test_a_run_without_a_commit_has_its_own_flag_only(project: Project) -> None:
    records.create_run(project, TEN, flag="ui")
    unit = records.create_run(project, TEN, flag="unit")
    assert judged_commit(unit, required_flags=("unit",)).verdict.passed
    assert not judged_commit(unit, required_flags=("ui",)).verdict.passed


@pytest.mark.parametrize("aggregate", [True, False])
def test_required_flags_stand_before_the_rules_on_tests(project: Project, aggregate: bool) -> None:
    run = records.create_run(project, TEN, commit_sha="1")
    limits: dict[str, Any] = {"required_flags": ("a",), "max_test_drop_pct": 0.0, "fail_on_any_failure": True}
    found = judged_commit(run, aggregate_flags=aggregate, fail_on_no_tests=True, **limits)
    assert [rule.name for rule in found.verdict.rules] == [
        "new-failures", "no-tests", "required-flags", "test-drop", "no-failures",
    ]  # fmt: skip
    without = commit_gate.judge(found.newest, project, evolve(GATE, **limits), aggregate=False)
    assert "required-flags" not in [rule.name for rule in without.verdict.rules], "one flag is judged alone"


# test-drop


@pytest.mark.parametrize(
    ("tests", "limit", "passes"),
    [
        (9, 10.0, True),
        (8, 10.0, False),
        (9, 9.9, False),
        (10, 0.0, True),
        (0, 99.9, False),
        (0, 100.0, True),
    ],
)
def test_a_larger_share_of_missing_tests_than_the_limit_fails(
    project: Project, tests: int, limit: float, passes: bool
) -> None:
    records.create_run(project, TEN, commit_sha="1")
    run = records.create_run(project, dict(list(TEN.items())[:tests]), commit_sha="2")
    assert judged(run, max_test_drop_pct=limit)["test-drop"].passed is passes
    assert "test-drop" not in judged(run)


def test_the_drop_names_both_numbers(project: Project) -> None:
    first = records.create_run(project, TEN, commit_sha="1")
    run = records.create_run(project, dict(list(TEN.items())[:8]), commit_sha="2")
    detail = "8 tests vs baseline 10 (2 missing, 20.0%, max 10.0%)"
    assert judged(run, max_test_drop_pct=10.0)["test-drop"] == RuleInfo("test-drop", False, detail)
    assert judged(first, max_test_drop_pct=10.0)["test-drop"] == RuleInfo("test-drop", True, "no baseline")


def test_quarantined_and_renamed_tests_are_not_missing(project: Project) -> None:
    records.create_run(project, TEN, commit_sha="1")
    kept = dict(list(TEN.items())[2:])
    run = records.create_run(project, {**kept, "c.B t0": PASSED}, commit_sha="2")
    assert not judged(run, max_test_drop_pct=0.0)["test-drop"].passed, "t1 is missing"
    quarantine(project, "c.A", "t1")
    assert judged(run, max_test_drop_pct=0.0)["test-drop"].passed


def test_a_quarantined_test_that_is_still_there_does_not_hide_a_missing_one(project: Project) -> None:
    records.create_run(project, TEN, commit_sha="1")
    run = records.create_run(project, dict(list(TEN.items())[1:]), commit_sha="2")
    quarantine(project, "c.A", "t9")
    assert not judged(run, max_test_drop_pct=0.0)["test-drop"].passed


# no-failures


def test_a_known_failure_fails_with_fail_on_any_failure(project: Project) -> None:
    tests: Tests = {"c.A a": FAILED, "c.A b": PASSED}
    records.create_run(project, tests, commit_sha="1")
    run = records.create_run(project, tests, commit_sha="2")
    found = judged(run, fail_on_any_failure=True)
    assert found["new-failures"].passed
    assert found["no-failures"] == RuleInfo("no-failures", False, "1 failing test(s): c.A a")
    assert "no-failures" not in judged(run)
    quarantine(project, "c.A", "a")
    assert judged(run, fail_on_any_failure=True)["no-failures"] == RuleInfo("no-failures", True, "no failing tests")


# Settings


def test_a_project_overrides_the_settings_of_the_server(project: Project) -> None:
    records.create_run(project, TEN, commit_sha="1")
    run = records.create_run(project, {"c.A t0": FAILED}, commit_sha="2")
    of_server: dict[str, Any] = {"required_flags": ("a",), "max_test_drop_pct": 0.0, "fail_on_any_failure": True}
    Project.update(required_flags=(), max_test_drop_pct=100.0, fail_on_any_failure=False).execute()
    found = {rule.name: rule.passed for rule in judged_commit(Run.get_by_id(run.id), **of_server).verdict.rules}
    assert found == {"new-failures": False, "test-drop": True}
    Project.update(required_flags=("b",), max_test_drop_pct=1.0, fail_on_any_failure=True).execute()
    found = {rule.name: rule.passed for rule in judged_commit(Run.get_by_id(run.id)).verdict.rules}
    assert found == {"new-failures": False, "required-flags": False, "test-drop": False, "no-failures": False}
    Project.update(required_flags=None, max_test_drop_pct=None, fail_on_any_failure=None).execute()
    assert not judged_commit(Run.get_by_id(run.id), required_flags=("a",)).verdict.rules[-1].passed


def upload(server: Server, flag: str) -> None:
    with records.store_of(server):
        at = round(time.time()) * SECOND
        records.create_run(records.ensure_project("p"), TEN, commit_sha="c1", flag=flag, created_at=at)


def test_the_gate_answers_when_a_required_flag_comes(serve: Serve) -> None:
    server = serve(tracker={"quality-gate": {"required-flags": ["unit", "ui"]}})
    upload(server, "unit")
    found = server.get("/api/v1/gate?project=p&commit=c1").json
    assert (found["status"], found["complete"]) == ("FAILED", False)
    assert found["rules"][-1] == {
        "name": "required-flags", "passed": False, "detail": "waiting for ui", "flag": None,
    }  # fmt: skip
    assert server.get("/api/v1/gate?project=p&commit=c1&flag=unit").json["status"] == "PASSED"
    upload(server, "ui")
    found = server.get("/api/v1/gate?project=p&commit=c1").json
    assert (found["status"], found["complete"]) == ("PASSED", True)


def test_a_required_flag_is_late_after_incomplete_after(serve: Serve) -> None:
    server = serve(tracker={"runs": {"incomplete-after": "1h"}, "quality-gate": {"required-flags": ["ui"]}})
    with records.store_of(server):
        at = round(time.time() - 3700) * SECOND
        records.create_run(records.ensure_project("p"), TEN, commit_sha="c1", flag="unit", created_at=at)
    found = server.get("/api/v1/gate?project=p&commit=c1").json
    assert (found["status"], found["complete"], found["rules"][-1]["detail"]) == ("FAILED", True, "no run of ui")


# Warnings of fewer tests


def many(count: int) -> Tests:
    return {f"c.A t{number}": PASSED for number in range(count)}


@pytest.mark.parametrize(("before", "now", "warns"), [(20, 9, True), (20, 10, False), (19, 0, False), (100, 49, True)])
def test_fewer_than_half_of_the_tests_are_a_warning(project: Project, before: int, now: int, warns: bool) -> None:
    first = records.create_run(project, many(before), commit_sha="1")
    run = records.create_run(project, many(now), commit_sha="2")
    text = f"{now} tests are less than half of the {before} of the baseline, run {first.id}"
    assert test_drop.warnings(run.id, first.id, is_waiting=False) == ([text] if warns else [])
    assert test_drop.warnings(run.id, first.id, is_waiting=True) == []
    assert test_drop.warnings(run.id, None, is_waiting=False) == []


def test_quarantined_tests_are_not_missed_by_the_warning(project: Project) -> None:
    first = records.create_run(project, many(20), commit_sha="1")
    run = records.create_run(project, many(9), commit_sha="2")
    quarantine(project, "c.A", "t19")
    assert test_drop.warnings(run.id, first.id, is_waiting=False) == []


def post_job(server: Server, tests: int, **parts: str) -> Any:
    known = {"project": "p", "commit": "c1", "branch": "main", "runKey": "k", "jobKey": "unit", **parts}
    return uploads.upload(server, ("junit", uploads.junit(tests)), *known.items())


def test_a_later_attempt_with_fewer_tests_is_a_warning_and_judged_by_test_drop(serve: Serve) -> None:
    server = serve(tracker={"quality-gate": {"max-test-drop-pct": 20}})
    assert post_job(server, 10, attempt="1")["warnings"] == []
    assert post_job(server, 2, jobKey="lint")["warnings"] == []
    found = post_job(server, 9, attempt="2")
    text = "attempt 2 of the job unit has 9 tests, attempt 1 had 10"
    assert (found["warnings"], found["gateStatus"]) == ([text], "PASSED")
    assert f"A{text[1:]}." in server.get(found["runPath"], Accept="text/html").text
    found = post_job(server, 7, attempt="3")
    assert found["warnings"] == ["attempt 3 of the job unit has 7 tests, attempt 1 had 10"]
    (rule,) = [
        rule
        for rule in server.get(f"/api/v1/runs/{found['runId']}/quality-gate").json["rules"]
        if rule["name"] == "test-drop"
    ]
    assert (rule["passed"], rule["detail"]) == (False, found["warnings"][0]), "3 of 12 are gone"
    assert post_job(server, 11, attempt="4")["warnings"] == []


def test_an_upload_with_far_fewer_tests_than_the_baseline_is_warned_of(serve: Serve) -> None:
    server = serve()
    first = post_job(server, 30, commit="c0", runKey="0", complete="true")
    found = post_job(server, 5, expectedUploads="2")
    assert found["warnings"] == [], "more is expected"
    found = post_job(server, 6, jobKey="other", expectedUploads="2")
    text = f"11 tests are less than half of the 30 of the baseline, run {first['runId']}"
    assert found["warnings"] == [text]
    assert f"{text}." in server.get(found["runPath"], Accept="text/html").text
