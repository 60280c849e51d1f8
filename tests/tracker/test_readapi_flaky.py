"""The detection of flaky tests."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import records
from records import ERROR, FAILED, NOW, PASSED, SECOND, SKIPPED
from tracker_rows import Suite

from models.errors import NotFound
from models.tracker.failures import flaky
from models.tracker.failures.flaky import FlakyTest, Triage
from models.tracker.reports.base import CaseStatus
from models.tracker.tables import Project, Run


@pytest.fixture
def project(tmp_path: Path, database_url: str | None) -> Iterator[Project]:
    with records.open_store(tmp_path / "tracker.db", database_url):
        yield records.create_project("demo")


def create_runs(project: Project, commit: str | None, *outcomes: CaseStatus) -> list[Run]:
    """Creates a run of this commit for each outcome of the test `c.A a`."""
    return [records.create_run(project, {"c.A a": outcome}, commit_sha=commit) for outcome in outcomes]


def flaky_names(project: Project) -> list[str]:
    tests = [f"{one.class_name} {one.name}".strip() for one in flaky.tests(project.id)]
    assert flaky.count(project.id) == len(tests)
    return tests


def test_a_test_that_passed_and_failed_for_one_commit_is_flaky(project: Project) -> None:
    create_runs(project, "abc", FAILED, PASSED)
    assert flaky_names(project) == ["c.A a"]


@pytest.mark.parametrize("outcomes", [(PASSED, FAILED), (PASSED, ERROR), (ERROR, SKIPPED, PASSED)])
def test_errors_count_as_failures_and_the_order_does_not_matter(
    project: Project, outcomes: tuple[CaseStatus, ...]
) -> None:
    create_runs(project, "abc", *outcomes)
    assert flaky_names(project) == ["c.A a"]


@pytest.mark.parametrize("outcomes", [(FAILED, FAILED), (PASSED, PASSED), (PASSED, SKIPPED), (FAILED, SKIPPED)])
def test_the_same_outcome_twice_is_not_flaky(project: Project, outcomes: tuple[CaseStatus, ...]) -> None:
    create_runs(project, "abc", *outcomes)
    assert flaky_names(project) == []


def test_a_change_between_commits_is_not_flaky(project: Project) -> None:
    create_runs(project, "abc", PASSED)
    create_runs(project, "def", FAILED)
    assert flaky_names(project) == []


def test_runs_without_a_commit_do_not_count(project: Project) -> None:
    create_runs(project, None, PASSED, FAILED)
    assert flaky_names(project) == []


def test_both_outcomes_within_one_run_are_not_flaky(project: Project) -> None:
    """A parametrized test may have results of one name."""
    (run,) = create_runs(project, "abc", PASSED)
    records.create_result(project, run, records.report_of_run(run), "c.A a", FAILED)
    records.create_run(project, {"c.A b": PASSED}, commit_sha="abc")
    assert flaky_names(project) == []


def test_tests_of_one_name_with_the_same_outcomes_in_each_run_are_not_flaky(project: Project) -> None:
    """For example, it always fails on one of two operating systems."""
    for run in create_runs(project, "abc", PASSED, PASSED):
        suite = Suite.get(Suite.run_id == run.id)
        records.create_result(project, run, records.report_of_run(run), "c.A a", FAILED, suite_id=suite.id)
    assert flaky_names(project) == []
    create_runs(project, "abc", PASSED)
    assert flaky_names(project) == ["c.A a"]


def test_test_that_is_flaky_in_its_report_is_flaky(project: Project) -> None:
    run = records.create_run(project, {"c.A b": PASSED}, flaky=1)
    records.create_result(project, run, records.report_of_run(run), "c.A a", PASSED, flaky=True, reruns=1)
    (test,) = flaky.tests(project.id)
    assert (test.name, test.commits, test.failures, test.results) == ("a", 0, 0, 1)
    assert flaky.count(project.id) == 1


def test_flaky_tests_are_detected_per_project(project: Project) -> None:
    other = records.create_project("other")
    create_runs(project, "abc", PASSED)
    create_runs(other, "abc", FAILED)
    assert flaky_names(project) == flaky_names(other) == []


def test_counts_of_a_flaky_test_are_of_all_recent_runs(project: Project) -> None:
    create_runs(project, "abc", FAILED, PASSED)
    create_runs(project, "def", PASSED, ERROR, PASSED)
    last = create_runs(project, "ghi", FAILED)[0]
    create_runs(project, None, PASSED)
    assert flaky.tests(project.id) == [FlakyTest("c.A", "a", 2, 7, 3, last.created_at, Triage.ACTIVE, None, None)]


def test_flaky_tests_are_sorted_by_number_of_failures(project: Project) -> None:
    for outcomes in ((FAILED, PASSED, FAILED), (PASSED, FAILED, FAILED), (FAILED, FAILED, PASSED), (PASSED,) * 3):
        tests = dict(zip(("c.A c", "c.A b", "c.A a"), outcomes, strict=True))
        records.create_run(project, tests, commit_sha="abc")
    create_runs(project, "def", FAILED)
    assert flaky_names(project) == ["c.A a", "c.A b", "c.A c"]
    assert [one.failures for one in flaky.tests(project.id)] == [3, 2, 2]


def test_only_the_newest_runs_are_considered(project: Project) -> None:
    create_runs(project, "abc", FAILED, PASSED)
    assert flaky_names(project) == ["c.A a"]
    rows = [
        {**Run.select().dicts().first(), "commit_sha": None, "created_at": NOW + (99 + number) * SECOND}
        for number in range(flaky.WINDOW)
    ]
    for row in rows:
        del row["id"]
    Run.insert_many(rows).execute()
    assert flaky_names(project) == []


def test_quarantined_test_stays_listed(project: Project) -> None:
    create_runs(project, "abc", FAILED)
    flaky.set_triage(project.id, "c.A", "a", Triage.QUARANTINED, "why", 1, NOW)
    (test,) = flaky.tests(project.id)
    assert (test.commits, test.status, test.note, test.failures) == (None, Triage.QUARANTINED, "why", 1)
    assert flaky.count(project.id) == 0
    flaky.set_triage(project.id, "c.A", "a", Triage.RESOLVED, None, 1, NOW)
    assert flaky_names(project) == []


def test_the_triage_status_of_a_flaky_test_does_not_hide_it(project: Project) -> None:
    create_runs(project, "abc", FAILED, PASSED)
    for observed in Triage:
        flaky.set_triage(project.id, "c.A", "a", observed, None, 1, NOW)
        assert flaky_names(project) == ["c.A a"]
        assert flaky.tests(project.id)[0].status is observed


def test_the_status_of_an_unknown_test_cannot_be_set(project: Project) -> None:
    create_runs(records.create_project("other"), None, PASSED)
    with pytest.raises(NotFound):
        flaky.set_triage(project.id, "c.A", "a", Triage.QUARANTINED, None, 1, NOW)


def create_leg(project: Project, outcome: CaseStatus, suite: str, **facts: Any) -> Run:
    """Creates a run of the commit `abc` with a result of `c.A a` in this suite."""
    run = records.create_run(project, commit_sha="abc", **facts)
    counts = {"tests": 1, "failed": 0, "errors": 0, "skipped": 0, "duration_ms": 0}
    made = Suite.create(report=records.report_of_run(run), run_id=run.id, name=suite, **counts)
    records.create_result(project, run, records.report_of_run(run), "c.A a", outcome, suite_id=made.id)
    return run


def test_a_test_that_fails_in_one_flag_only_is_a_failure_of_that_platform(project: Project) -> None:
    create_leg(project, PASSED, "s", flag="unit-linux")
    create_leg(project, FAILED, "s", flag="unit-windows")
    (test,) = flaky.tests(project.id)
    assert (test.commits, test.fails_only_in, flaky.count(project.id)) == (None, ["unit-windows"], 0)


def test_a_test_that_fails_in_one_suite_only_is_a_failure_of_that_platform(project: Project) -> None:
    create_leg(project, FAILED, "windows")
    create_leg(project, PASSED, "linux")
    (test,) = flaky.tests(project.id)
    assert (test.commits, test.fails_only_in, flaky.count(project.id)) == (None, ["windows"], 0)
    create_leg(project, PASSED, "windows")
    (test,) = flaky.tests(project.id)
    assert (test.commits, test.fails_only_in) == (1, None)


def test_a_test_that_fails_on_all_platforms_is_not_listed(project: Project) -> None:
    create_leg(project, FAILED, "windows")
    create_leg(project, FAILED, "linux")
    assert flaky.tests(project.id) == []
