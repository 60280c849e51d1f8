"""The policy of quarantine: which flaky tests are quarantined, for how long, and when again."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import records
from attrs import evolve
from conftest import Serve, wait_for
from records import FAILED, NOW, PASSED, SECOND
from uploads import junit, upload

from models.config.settings import Quarantine, TrackerSettings
from models.errors import TimedOut
from models.supervision.process import Seconds
from models.tracker.failures import flaky, quarantine, quarantine_policy
from models.tracker.failures.flaky import Triage
from models.tracker.tables import Project, Run, Test, reports
from supervisor.clock import Clock
from supervisor.tracker import retention
from supervisor.tracker.retention import Retention

DAY = 86_400 * SECOND
LATER = NOW + DAY
POLICY = Quarantine(after_flaky=2, max_pct=100.0)


@pytest.fixture
def store(tmp_path: Path, database_url: str | None) -> Iterator[Project]:
    with records.open_store(tmp_path / "tracker.db", database_url):
        yield records.create_project("demo")


def fail_and_pass(project: Project, commit: str, *names: str, **facts: Any) -> None:
    """Makes tests flaky on a commit."""
    for outcome in (FAILED, PASSED):
        records.create_run(project, {f"c.A {name}": outcome for name in names}, commit_sha=commit, **facts)


def names(project: Project) -> list[str]:
    return [one.name for one in quarantine.listing(project.id)]


def waiting(project: Project) -> int | None:
    found: int | None = Project.get_by_id(project.id).quarantine_waiting
    return found


def test_a_test_that_is_flaky_on_enough_commits_is_quarantined_for_a_time(store: Project) -> None:
    fail_and_pass(store, "a", "x", "y")
    assert quarantine_policy.apply(store.id, POLICY, LATER) == 0
    fail_and_pass(store, "b", "x")
    assert quarantine_policy.apply(store.id, POLICY, LATER) == 1
    (found,) = quarantine.listing(store.id)
    assert (found.name, found.reason, found.by) == ("x", "flaky on 2 commits within 14d", quarantine.POLICY)
    assert (found.since, found.expires_at) == (LATER, LATER + 14 * DAY)
    assert quarantine_policy.apply(store.id, POLICY, LATER) == 0, "it is quarantined"
    (change,) = quarantine.changes_of_project(store.id, 2**62, 10)
    assert (change.name, change.change.status, change.change.by) == ("x", "QUARANTINED", quarantine.POLICY)


def test_without_the_setting_none_is_quarantined(store: Project) -> None:
    fail_and_pass(store, "a", "x")
    fail_and_pass(store, "b", "x")
    assert quarantine_policy.apply(store.id, Quarantine(), LATER) == 0
    assert quarantine_policy.states(Quarantine()) == {}
    assert list(quarantine_policy.states(POLICY)) == [store.id]


def test_commits_before_the_window_and_runs_of_forks_do_not_count(store: Project) -> None:
    fail_and_pass(store, "a", "x")
    fail_and_pass(store, "b", "x", created_at=NOW + 14 * DAY)
    fail_and_pass(store, "c", "x", created_at=NOW + 14 * DAY, head_repo="fork/r")
    assert quarantine_policy.apply(store.id, POLICY, NOW + 14 * DAY + SECOND * 5) == 0
    assert (
        quarantine_policy.apply(store.id, evolve(POLICY, within=Seconds(15 * 86_400)), NOW + 14 * DAY + SECOND * 5) == 1
    )


def test_a_passing_run_of_a_fork_makes_no_test_flaky(store: Project) -> None:
    for commit in ("a", "b"):
        for fork in (None, None, "fork/r"):
            outcome = PASSED if fork else FAILED
            records.create_run(store, {"c.A x": outcome}, commit_sha=commit, head_repo=fork)
    assert quarantine_policy.apply(store.id, POLICY, LATER) == 0
    own = Run.get(Run.head_repo.is_null())
    assert flaky.on_commit(own) == []


def test_a_pass_before_the_window_does_not_count(store: Project) -> None:
    since = LATER - 14 * DAY
    for commit in ("a", "b"):
        records.create_run(store, {"c.A x": PASSED}, commit_sha=commit, created_at=since - SECOND)
        for _ in range(2):
            records.create_run(store, {"c.A x": FAILED}, commit_sha=commit, created_at=since + SECOND)
    assert quarantine_policy.apply(store.id, POLICY, LATER) == 0
    assert quarantine_policy.apply(store.id, POLICY, LATER - SECOND) == 1


def test_runs_that_mark_a_test_as_flaky_count_by_commit(store: Project) -> None:
    for commit in ("a", "a", None):
        run = records.create_run(store, {"c.A x": PASSED}, commit_sha=commit)
        assert quarantine_policy.apply(store.id, POLICY, LATER) == 0
        reports.execute_sql("UPDATE result SET flaky = 1 WHERE run_id = ?", (run.id,))
        Run.update(flaky=1).where(Run.id == run.id).execute()
    assert quarantine_policy.apply(store.id, POLICY, LATER) == 1


@pytest.mark.parametrize("ended_by", ["expiry", "member"])
def test_after_its_end_a_test_is_quarantined_only_if_it_was_flaky_since(store: Project, ended_by: str) -> None:
    fail_and_pass(store, "a", "x")
    fail_and_pass(store, "b", "x")
    policy = evolve(POLICY, expires=Seconds(3600))
    assert quarantine_policy.apply(store.id, policy, LATER) == 1
    end = LATER + 3600 * SECOND
    if ended_by == "expiry":
        quarantine.expire(end)
    else:
        flaky.set_triage(store.id, "c.A", "x", Triage.RESOLVED, None, None, end)
    assert names(store) == []
    assert quarantine_policy.apply(store.id, policy, end + SECOND) == 0
    fail_and_pass(store, "c", "x", created_at=end + SECOND)
    assert quarantine_policy.apply(store.id, policy, end + 2 * SECOND) == 1
    (found,) = quarantine.listing(store.id)
    assert (found.reason, found.expires_at) == ("flaky on 3 commits within 14d", end + 3602 * SECOND)


def test_a_quarantine_by_hand_stays_as_it_is(store: Project) -> None:
    fail_and_pass(store, "a", "x")
    fail_and_pass(store, "b", "x")
    flaky.set_triage(store.id, "c.A", "x", Triage.QUARANTINED, "known", None, NOW, None, "https://example.com/1")
    assert quarantine_policy.apply(store.id, POLICY, LATER) == 0
    (found,) = quarantine.listing(store.id)
    assert (found.reason, found.expires_at) == ("known", None)
    flaky.set_triage(store.id, "c.A", "x", Triage.ACTIVE, None, None, NOW - DAY, None, "https://example.com/1")
    assert quarantine_policy.apply(store.id, POLICY, LATER) == 1
    assert quarantine.listing(store.id)[0].issue_url == "https://example.com/1", "the policy keeps the issue"


def test_no_more_than_a_share_of_the_tests_is_quarantined(store: Project) -> None:
    records.create_run(store, {f"c.A t{number}": PASSED for number in range(36)})
    flaky.set_triage(store.id, "c.A", "t0", Triage.QUARANTINED, None, None, NOW)
    for commit, flaky_names in (("a", "xyz"), ("b", "xyz"), ("c", "y")):
        fail_and_pass(store, commit, *flaky_names)
    fail_and_pass(store, "c2", "once")
    policy = evolve(POLICY, max_pct=5.0)
    assert Test.select().count() == 40
    assert quarantine_policy.apply(store.id, policy, LATER) == 1
    assert (names(store), waiting(store)) == (["t0", "y"], 2), "that on the most commits"
    assert list(quarantine_policy.states(Quarantine())) == [store.id], "the number must be corrected"
    assert quarantine_policy.apply(store.id, Quarantine(), LATER) == 0
    assert waiting(store) == 0
    assert quarantine_policy.apply(store.id, evolve(policy, max_pct=8.0), LATER) == 1
    assert (names(store), waiting(store)) == (["t0", "x", "y"], 1)
    assert quarantine_policy.apply(store.id, evolve(policy, max_pct=0.0), LATER) == 0
    assert len(names(store)) == 3, "none is released"


def test_a_project_overrides_the_policy(store: Project) -> None:
    assert quarantine_policy.of_project(store, POLICY) == POLICY
    own = {"after_flaky": 0, "within": 60.0, "expires": 120.0, "max_pct": 1.5}
    for name, value in own.items():
        setattr(store, f"quarantine_{name}", value)
    store.save()
    found = quarantine_policy.of_project(Project.get_by_id(store.id), POLICY)
    assert {name: getattr(found, name) for name in own} == own
    assert quarantine_policy.states(POLICY) == {}


def test_a_project_whose_tests_could_not_be_quarantined_is_judged_again(
    store: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    for commit in ("a", "b"):
        fail_and_pass(store, commit, "x")
    judged: list[int] = []

    def apply(id: int, policy: Quarantine, now: int) -> int:
        judged.append(id)
        if len(judged) == 1:
            raise TimedOut("the query took longer than 20 s")
        return 0

    async def in_store(work: Callable[[], Any]) -> Any:
        return work()

    unused: Any = None
    monkeypatch.setattr(quarantine_policy, "apply", apply)
    monkeypatch.setattr(retention, "_PAUSE_FACTOR", 0)
    one = Retention(TrackerSettings(quarantine=POLICY), Clock(), in_store, unused)
    for _ in range(3):
        asyncio.run(one._quarantine_flaky())
    assert judged == [store.id] * 2


def test_uploads_quarantine_a_test_by_the_settings_of_the_project(serve: Serve) -> None:
    server = serve()
    with records.store_of(server):
        project = records.create_project("demo")
        owner = records.create_user("owner")
        records.add_member(project, owner, "OWNER")
        headers = {"Content-Type": "application/json", **records.bearer(owner)}
    path = f"/api/v1/projects/{project.id}"

    def change(**settings: Any) -> Any:
        return server.ask("PATCH", f"{path}/settings", json.dumps(settings).encode(), headers)

    for bad in ({"quarantineAfterFlaky": -1}, {"quarantineWithin": 0}, {"quarantineExpires": "14d"}):
        assert change(**bad).status == 400, bad
    assert server.get(path).json["quarantine"] == {
        "afterFlaky": None, "within": 14 * 86_400, "expires": 14 * 86_400, "maxPct": 5.0,
    }  # fmt: skip
    answer = change(quarantineAfterFlaky=2, quarantineWithin=86_400, quarantineExpires=3_600, quarantineMaxPct=50)
    expected = {"afterFlaky": 2, "within": 86_400, "expires": 3_600, "maxPct": 50.0}
    assert (answer.json["quarantine"], answer.json["quarantineWaiting"]) == (expected, 0)
    for commit in ("a" * 40, "b" * 40):
        for report in (junit(3, 1), junit(4)):
            known = {"project": "demo", "commit": commit, "branch": "main"}
            upload(server, ("junit", report), *known.items(), Authorization=headers["Authorization"])
    wait_for(lambda: server.get(f"{path}/quarantine?format=names").text)
    (found,) = server.get(f"{path}/quarantine").json["items"]
    assert (found["by"], found["reason"]) == ("(policy)", "flaky on 2 commits within 1d")
    page = server.get(f"/projects/{project.id}", Accept="text/html").text
    assert "A test that was flaky on 2 commits within 1d is quarantined for 1h." in page
