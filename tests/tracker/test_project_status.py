"""The status of projects: the judged runs, the order, and equality with the verdict on a single run."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path

import pytest
import records
from records import FAILED, NOW, PASSED, SECOND
from tracker_rows import Mark, Suite

from models.accounts import permissions
from models.config.settings import QualityGate
from models.tracker.gate import project_status, quality_gate
from models.tracker.gate.project_status import ProjectHealth
from models.tracker.tables import Project, Run, Test

GATE = QualityGate()
MONTH = 30 * 86_400 * SECOND


@pytest.fixture(autouse=True)
def store(tmp_path: Path, database_url: str | None) -> Iterator[None]:
    with records.open_store(tmp_path / "tracker.db", database_url):
        yield


def status_of(project: Project, settings: QualityGate = GATE) -> project_status.ProjectStatus:
    (found,) = project_status.of([Project.get_by_id(project.id)], settings)
    return found


def test_project_without_uploads_has_the_status_no_runs() -> None:
    found = status_of(records.create_project("empty"))
    assert (found.health, found.run, found.verdict) == (ProjectHealth.NO_RUNS, None, None)


@pytest.mark.parametrize(
    ("coverage", "flaky", "health"),
    [
        (None, 0, ProjectHealth.HEALTHY),
        ((80, 20), 0, ProjectHealth.HEALTHY),
        ((799, 201), 0, ProjectHealth.AT_RISK),
        (None, 1, ProjectHealth.AT_RISK),
    ],
)
def test_project_with_a_passed_run_is_healthy_or_at_risk(
    coverage: tuple[int, int] | None, flaky: int, health: ProjectHealth
) -> None:
    project = records.create_project("p")
    records.create_run(project, {"c.A a": PASSED}, coverage, flaky=flaky)
    assert status_of(project).health is health


def test_coverage_just_below_the_minimum_is_not_rounded_up() -> None:
    project = records.create_project("p")
    records.create_run(project, {"c.A a": PASSED}, (79_999, 20_001))
    assert "79.9 %" in status_of(project).reason


def test_status_is_of_the_base_branch_and_not_of_other_branches() -> None:
    project = records.create_project("p")
    base = records.create_run(project, {"c.A a": PASSED})
    other = records.create_run(project, {"c.A a": FAILED}, branch="feature")
    found = status_of(project)
    assert found.run is not None
    assert found.newest is not None
    assert (found.health, found.run.id, found.newest.id) == (ProjectHealth.HEALTHY, base.id, other.id)


def test_without_a_run_on_the_base_branch_the_newest_counts() -> None:
    project = records.create_project("p")
    records.create_run(project, {"c.A a": PASSED}, branch="feature")
    run = records.create_run(project, {"c.A a": FAILED}, branch=None)
    found = status_of(project)
    assert found.run is not None
    assert (found.health, found.run.id) == (ProjectHealth.FAILING, run.id)


def test_a_projects_own_base_branch_counts() -> None:
    project = records.create_project("p", base_branch="trunk")
    records.create_run(project, {"c.A a": FAILED}, branch="trunk")
    records.create_run(project, {"c.A a": PASSED})
    assert status_of(project).health is ProjectHealth.FAILING


def test_the_worst_of_the_flags_counts_and_is_named() -> None:
    project = records.create_project("p")
    records.create_run(project, {"c.A a": FAILED}, flag="unit")
    records.create_run(project, {"c.A b": PASSED}, flag="ui")
    found = status_of(project)
    assert found.health is ProjectHealth.FAILING
    assert found.reason.endswith("(unit)")


def test_flag_without_runs_for_a_month_does_not_count() -> None:
    project = records.create_project("p")
    records.create_run(project, {"c.A a": FAILED}, flag="old", created_at=NOW)
    records.create_run(project, {"c.A b": PASSED}, flag="new", created_at=NOW + MONTH)
    assert status_of(project).health is ProjectHealth.HEALTHY


def test_of_two_runs_with_equal_times_the_higher_id_counts() -> None:
    project = records.create_project("p")
    records.create_run(project, {"c.A a": FAILED}, created_at=NOW)
    records.create_run(project, {"c.A a": PASSED}, created_at=NOW)
    assert status_of(project).health is ProjectHealth.HEALTHY


def test_failing_status_has_the_time_of_the_first_failing_run() -> None:
    project = records.create_project("p")
    for at, status in enumerate([FAILED, PASSED, FAILED, FAILED]):
        records.create_run(project, {"c.A a": status}, created_at=NOW + at * SECOND)
    records.create_run(project, {"c.A a": PASSED}, branch="feature", created_at=NOW + 3 * SECOND)
    assert status_of(project).since == NOW + 2 * SECOND


def test_a_base_branch_that_stays_broken_says_since_which_run_and_for_how_many_commits() -> None:
    project, day = records.create_project("p"), 86_400 * SECOND
    red, green = {"c.A a": FAILED}, {"c.A a": PASSED}
    records.create_run(project, red, commit_sha="a", created_at=NOW)
    records.create_run(project, green, commit_sha="b", created_at=NOW + day)
    first = records.create_run(project, red, commit_sha="c", created_at=NOW + 2 * day)
    records.create_run(project, red, commit_sha="d", created_at=NOW + 4 * day)
    records.create_run(project, red, commit_sha="d", created_at=NOW + 5 * day)
    last = records.create_run(project, red, commit_sha="e", created_at=NOW + 5 * day)
    records.create_run(project, green, commit_sha="b", created_at=NOW + 6 * day)
    records.create_run(project, green, commit_sha="x", head_repo="fork/p", created_at=NOW + 7 * day)
    found = status_of(project)
    assert found.run is not None
    assert found.failing is not None
    assert found.run.id == last.id, "not the old commit that was run again, and no fork"
    assert found.failing.text == f"failing since {first.id} (3 days, 3 commits)"
    records.create_run(project, green, commit_sha="f", created_at=NOW + 8 * day)
    assert status_of(project).failing is None


def test_project_with_only_known_failures_is_failing() -> None:
    project = records.create_project("p")
    for _ in range(2):
        records.create_run(project, {"c.A a": FAILED})
    found = status_of(project)
    assert found.health is ProjectHealth.FAILING
    assert found.verdict is not None
    assert found.verdict.passed


def test_failing_projects_are_listed_first_longest_failing_before_others() -> None:
    for name, at, status in (("b", 5, FAILED), ("a", 9, FAILED), ("ok", 1, PASSED)):
        records.create_run(records.create_project(name), {"c.A a": status}, created_at=NOW + at * SECOND)
    records.create_project("nothing")
    found = [one.project.name for one in project_status.visible_to(None, GATE)]
    assert found == ["b", "a", "ok", "nothing"]


def test_private_project_is_listed_for_its_members_only() -> None:
    project, user = records.create_project("secret", "PRIVATE"), records.create_user("member")
    outsider = records.create_user("outsider")
    permissions.grant(project.id, user.id, "READ", NOW)
    assert [len(project_status.visible_to(caller, GATE)) for caller in (None, outsider, user)] == [0, 0, 1]


def test_batch_verdicts_equal_those_of_the_gate() -> None:
    """For random runs, the batch returns the verdict that the gate returns for each single run."""
    rng = random.Random(7)
    for number in range(12):
        project = records.create_project(
            f"p{number}",
            base_branch=rng.choice([None, "trunk"]),
            min_line_coverage=rng.choice([None, 50.0]),
            fail_on_new_failures=rng.choice([None, None, False]),
        )
        for _ in range(8):
            tests = {f"c.A t{test}": rng.choice([PASSED, PASSED, FAILED]) for test in range(4)}
            coverage = rng.choice([None, (rng.randrange(40, 60), 50)])
            place = {"branch": rng.choice(["main", "trunk"]), "flag": rng.choice(["a", "b"])}
            records.create_run(project, tests, coverage, base_branch=rng.choice([None, "main"]), **place)
        quarantined = Test.get((Test.project == project) & (Test.name == "t1"))
        Mark.create(project=project, test=quarantined, status="QUARANTINED", created_at=NOW)
        Suite.update(failed=1).where(Suite.run_id == Run.select(Run.id).order_by(Run.id.desc()).limit(1)).execute()
    found = project_status.visible_to(None, GATE)
    assert {one.verdict.passed for one in found if one.verdict} == {True, False}
    for one in found:
        assert one.run is not None
        assert one.verdict == quality_gate.verdict(Run.get_by_id(one.run.id), one.project, GATE)
