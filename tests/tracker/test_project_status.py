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
from models.tracker import project_status, quality_gate
from models.tracker.project_status import Health
from models.tracker.tables import Project, Run, Test

GATE = QualityGate()
MONTH = 30 * 86_400 * SECOND


@pytest.fixture(autouse=True)
def store(tmp_path: Path, database_url: str | None) -> Iterator[None]:
    with records.open_store(tmp_path / "tracker.db", database_url):
        yield


def standing(project: Project, settings: QualityGate = GATE) -> project_status.ProjectStatus:
    (found,) = project_status.of([Project.get_by_id(project.id)], settings)
    return found


def test_nothing_posted_is_no_runs() -> None:
    found = standing(records.create_project("empty"))
    assert (found.health, found.run, found.verdict) == (Health.NO_RUNS, None, None)


@pytest.mark.parametrize(
    ("coverage", "flaky", "health"),
    [
        (None, 0, Health.HEALTHY),
        ((80, 20), 0, Health.HEALTHY),
        ((799, 201), 0, Health.AT_RISK),
        (None, 1, Health.AT_RISK),
    ],
)
def test_what_passed_is_healthy_or_at_risk(coverage: tuple[int, int] | None, flaky: int, health: Health) -> None:
    project = records.create_project("p")
    records.create_run(project, {"c.A a": PASSED}, coverage, flaky=flaky)
    assert standing(project).health is health


def test_coverage_just_below_the_minimum_is_not_rounded_up() -> None:
    project = records.create_project("p")
    records.create_run(project, {"c.A a": PASSED}, (79_999, 20_001))
    assert "79.9 %" in standing(project).reason


def test_the_base_branch_counts_and_not_what_is_tried_on_others() -> None:
    project = records.create_project("p")
    base = records.create_run(project, {"c.A a": PASSED})
    other = records.create_run(project, {"c.A a": FAILED}, branch="feature")
    found = standing(project)
    assert found.run is not None
    assert found.newest is not None
    assert (found.health, found.run.id, found.newest.id) == (Health.HEALTHY, base.id, other.id)


def test_without_a_run_on_the_base_branch_the_newest_counts() -> None:
    project = records.create_project("p")
    records.create_run(project, {"c.A a": PASSED}, branch="feature")
    run = records.create_run(project, {"c.A a": FAILED}, branch=None)
    found = standing(project)
    assert found.run is not None
    assert (found.health, found.run.id) == (Health.FAILING, run.id)


def test_a_projects_own_base_branch_counts() -> None:
    project = records.create_project("p", base_branch="trunk")
    records.create_run(project, {"c.A a": FAILED}, branch="trunk")
    records.create_run(project, {"c.A a": PASSED})
    assert standing(project).health is Health.FAILING


def test_the_worst_of_the_flags_counts_and_is_named() -> None:
    project = records.create_project("p")
    records.create_run(project, {"c.A a": FAILED}, flag="unit")
    records.create_run(project, {"c.A b": PASSED}, flag="ui")
    found = standing(project)
    assert found.health is Health.FAILING
    assert found.reason.endswith("(unit)")


def test_a_flag_that_was_not_heard_of_for_a_month_does_not_count() -> None:
    project = records.create_project("p")
    records.create_run(project, {"c.A a": FAILED}, flag="old", created_at=NOW)
    records.create_run(project, {"c.A b": PASSED}, flag="new", created_at=NOW + MONTH)
    assert standing(project).health is Health.HEALTHY


def test_of_two_runs_of_one_moment_the_later_id_counts() -> None:
    project = records.create_project("p")
    records.create_run(project, {"c.A a": FAILED}, created_at=NOW)
    records.create_run(project, {"c.A a": PASSED}, created_at=NOW)
    assert standing(project).health is Health.HEALTHY


def test_failures_have_the_run_since_which_they_fail() -> None:
    project = records.create_project("p")
    for at, status in enumerate([FAILED, PASSED, FAILED, FAILED]):
        records.create_run(project, {"c.A a": status}, created_at=NOW + at * SECOND)
    records.create_run(project, {"c.A a": PASSED}, branch="feature", created_at=NOW + 3 * SECOND)
    assert standing(project).since == NOW + 2 * SECOND


def test_a_failure_that_is_not_new_is_failing_still() -> None:
    project = records.create_project("p")
    for _ in range(2):
        records.create_run(project, {"c.A a": FAILED})
    found = standing(project)
    assert found.health is Health.FAILING
    assert found.verdict is not None
    assert found.verdict.passed


def test_trouble_comes_first_and_the_longest_trouble_before_the_rest() -> None:
    for name, at, status in (("b", 5, FAILED), ("a", 9, FAILED), ("ok", 1, PASSED)):
        records.create_run(records.create_project(name), {"c.A a": status}, created_at=NOW + at * SECOND)
    records.create_project("nothing")
    found = [one.project.name for one in project_status.visible_to(None, GATE)]
    assert found == ["b", "a", "ok", "nothing"]


def test_a_private_project_is_seen_by_its_members_alone() -> None:
    project, user = records.create_project("secret", "PRIVATE"), records.create_user("member")
    outsider = records.create_user("stranger")
    permissions.grant(project.id, user.id, "READ", NOW)
    assert [len(project_status.visible_to(who, GATE)) for who in (None, outsider, user)] == [0, 0, 1]


def test_the_verdict_is_the_gates_own() -> None:
    """Whatever happened: the batch says of each run what the gate says of it alone."""
    chance = random.Random(7)
    for number in range(12):
        project = records.create_project(
            f"p{number}",
            base_branch=chance.choice([None, "trunk"]),
            min_line_coverage=chance.choice([None, 50.0]),
            fail_on_new_failures=chance.choice([None, None, False]),
        )
        for _ in range(8):
            tests = {f"c.A t{test}": chance.choice([PASSED, PASSED, FAILED]) for test in range(4)}
            coverage = chance.choice([None, (chance.randrange(40, 60), 50)])
            place = {"branch": chance.choice(["main", "trunk"]), "flag": chance.choice(["a", "b"])}
            records.create_run(project, tests, coverage, base_branch=chance.choice([None, "main"]), **place)
        quarantined = Test.get((Test.project == project) & (Test.name == "t1"))
        Mark.create(project=project, test=quarantined, status="QUARANTINED", created_at=NOW)
        Suite.update(failed=1).where(Suite.run_id == Run.select(Run.id).order_by(Run.id.desc()).limit(1)).execute()
    found = project_status.visible_to(None, GATE)
    assert {one.verdict.passed for one in found if one.verdict} == {True, False}
    for one in found:
        assert one.run is not None
        assert one.verdict == quality_gate.verdict(Run.get_by_id(one.run.id), one.project, GATE)
