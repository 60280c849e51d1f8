"""Retention: which runs expire, and the deletion of all their rows."""

from __future__ import annotations

import contextlib
import itertools
import sqlite3
from collections.abc import Iterator
from pathlib import Path

import http_checks
import pytest
import records
import uploads
from conftest import Server, wait_for
from records import FAILED, NOW, PASSED, SECOND
from tracker_rows import Coverage, Failure, Output, Report, Result, Suite

from models.config.settings import QualityGate
from models.tracker.failures import flaky
from models.tracker.failures.flaky import Triage
from models.tracker.runs import retention
from models.tracker.tables import Project, Run, Test, reports, stored_bytes

GATE = QualityGate()
NEVER = 0


@pytest.fixture
def project(tmp_path: Path, database_url: str | None) -> Iterator[Project]:
    with records.open_store(tmp_path / "tracker.db", database_url):
        yield records.create_project("demo")


def expired(before: int = NEVER, keep: int = 0) -> list[int]:
    return retention.expired(before, keep, GATE)


def ids(*runs: Run) -> list[int]:
    return [run.id for run in runs]


def test_stored_bytes_follow_inserted_and_deleted_rows(project: Project) -> None:
    def add(run: Run, name: str, hash: str, size: int) -> None:
        reports.execute_sql(
            "INSERT INTO attachment (project_id, run_id, name, hash, size, type, created_at)"
            " VALUES (?, ?, ?, ?, ?, 't', 1)",
            (run.project_id, run.id, name, hash, size),
        )
        reports.execute_sql(
            "INSERT INTO source_content (hash, size, content) VALUES (?, ?, ?) ON CONFLICT DO NOTHING",
            (hash, size, b""),
        )
        reports.execute_sql(
            "INSERT INTO source (run_id, path, hash) VALUES (?, ?, ?)"
            " ON CONFLICT (run_id, path) DO UPDATE SET hash = excluded.hash",
            (run.id, name, hash),
        )

    def totals() -> tuple[int, int]:
        return stored_bytes("attachment_content"), stored_bytes("source_content")

    first, second = records.create_run(project), records.create_run(project)
    for name in ("a", "b"):
        add(first, name, "shared", 100)
    add(first, "c", "own", 10)
    add(second, "a", "shared", 100)
    assert totals() == (110, 110)
    add(first, "c", "changed", 1)
    assert totals() == (111, 101), "a replaced source is deleted, an attachment is kept"
    Run.delete().where(Run.id == first.id).execute()
    assert totals() == (100, 100)
    Run.delete().where(Run.id == second.id).execute()
    assert totals() == (0, 0)


def test_a_project_has_the_bytes_of_its_own_attachments(project: Project) -> None:
    def add(run: Run, hash: str, size: int) -> None:
        reports.execute_sql(
            "INSERT INTO attachment (project_id, run_id, name, hash, size, type, created_at)"
            " VALUES (?, ?, 'a', ?, ?, 't', 1)",
            (run.project_id, run.id, hash, size),
        )

    def used() -> list[int]:
        return [row[0] for row in reports.execute_sql("SELECT attachment_bytes FROM project ORDER BY id")]

    other = records.create_project("other")
    first, second, elsewhere = (records.create_run(of) for of in (project, project, other))
    for run in (first, first, second, elsewhere):
        add(run, "shared", 100)
    add(first, "own", 10)
    assert used() == [110, 100]
    Run.delete().where(Run.id == first.id).execute()
    assert used() == [100, 100], "the content is of the second run, too"
    Run.delete().where(Run.id == second.id).execute()
    assert used() == [0, 100]
    Project.delete().where(Project.id == other.id).execute()
    assert reports.execute_sql("SELECT count(*) FROM project_content").fetchone()[0] == 0


def test_an_upgrade_counts_the_attachments_of_each_project() -> None:
    at = next(
        number for number, step in enumerate(reports.steps) if any("attachment_by_project" in sql for sql in step)
    )
    with contextlib.closing(sqlite3.connect(":memory:")) as store:
        for sql in itertools.chain(*reports.steps[:at]):
            store.execute(sql)
        for project, hashes in ((1, "aab"), (2, "a")):
            store.execute("INSERT INTO project (name, visibility, created_at) VALUES (?, 'PUBLIC', 1)", (str(project),))
            store.execute(
                "INSERT INTO run (project_id, flag, created_at, updated_at, status, tests, passed, failed, errors,"
                " skipped, flaky, duration_ms, uploads) VALUES (?, 'f', 1, 1, 'PASSED', 0, 0, 0, 0, 0, 0, 0, 1)",
                (project,),
            )
            for hash in hashes:
                store.execute(
                    "INSERT INTO attachment (run_id, name, hash, size, type, created_at)"
                    " VALUES (?, 'n', ?, 10, 't', 1)",
                    (project, hash),
                )
        for sql in reports.steps[at]:
            store.execute(sql)
        assert store.execute("SELECT attachment_bytes FROM project ORDER BY id").fetchall() == [(20,), (10,)]
        assert store.execute("SELECT project_id FROM attachment ORDER BY id").fetchall() == [(1,), (1,), (1,), (2,)]


def test_nothing_expires_if_retention_is_disabled(project: Project) -> None:
    for _ in range(3):
        records.create_run(project, created_at=1)
    assert expired() == []


def test_runs_older_than_the_limit_expire_oldest_first(project: Project) -> None:
    second, first = (
        records.create_run(project, branch="x", created_at=NOW + 1),
        records.create_run(project, branch="x", created_at=NOW),
    )
    records.create_run(project, created_at=NOW + 2)
    records.create_run(project, created_at=NOW + 3)
    assert expired(before=NOW + 2) == ids(first, second)


def test_the_baseline_of_a_run_that_is_kept_is_kept(project: Project) -> None:
    older, base = (records.create_run(project, created_at=NOW + place) for place in (0, 1))
    records.create_run(project, created_at=NOW + 2)
    records.create_run(project, created_at=NOW + 3)
    assert expired(before=NOW + 2) == ids(older)
    assert expired(before=NOW + 3) == ids(older, base)


def test_the_newest_run_of_a_project_is_kept_however_old(project: Project) -> None:
    other = records.create_project("other")
    old = records.create_run(project, created_at=NOW, branch="x")
    records.create_run(project, created_at=NOW + 1, branch="y")
    records.create_run(other, created_at=NOW - 5)
    assert expired(before=NOW + 99) == ids(old)


def test_the_newest_of_each_flag_on_the_base_branch_is_kept(project: Project) -> None:
    old = [records.create_run(project, flag=flag, created_at=NOW) for flag in ("unit", "e2e")]
    for flag in ("unit", "e2e"):
        records.create_run(project, flag=flag, created_at=NOW + 1)
    feature = records.create_run(project, branch="x", created_at=NOW + 2)
    records.create_run(project, branch="y", created_at=NOW + 3)
    assert expired(before=NOW + 99) == ids(*old, feature)
    Project.update(base_branch="x").execute()
    assert feature.id not in expired(before=NOW + 99)


def test_a_branch_keeps_its_newest_runs(project: Project) -> None:
    runs = {branch: [records.create_run(project, branch=branch) for _ in range(4)] for branch in ("main", "x", None)}
    records.create_run(records.create_project("other"))
    oldest = [run for some in runs.values() for run in some[:2]]
    assert expired(keep=2) == ids(*(run for run in oldest if run.id != runs["main"][1].id)), "one is a baseline"
    assert expired(keep=4) == []


def test_flags_of_a_branch_are_counted_together(project: Project) -> None:
    runs = [records.create_run(project, branch="x", flag=flag) for flag in ("unit", "e2e", "unit")]
    records.create_run(project)
    assert expired(keep=2) == ids(runs[0])


def delete(run: Run, batch: int = 2) -> int:
    """Deletes a run, `batch` rows at a time; returns the number of transactions."""
    steps = 1
    while retention.delete_some(run.id, batch):
        steps += 1
    return steps


def test_deleted_run_leaves_no_rows(project: Project) -> None:
    kept = records.create_run(project, {"c.A a": FAILED, "c.A p0": PASSED})
    run = records.create_run(project, {"c.A a": FAILED, **{f"c.A p{number}": PASSED for number in range(5)}})
    counts = {"line_covered": 1, "line_missed": 0, "branch_covered": 0, "branch_missed": 0}
    for number in range(3):
        Coverage.create(report=records.report_of_run(run), run_id=run.id, path=f"f{number}", **counts)
    assert delete(run) == 3 + 2 + 1
    assert [one.id for one in Run.select()] == [kept.id]
    for table, number in ((Report, 1), (Suite, 1), (Result, 2), (Failure, 1), (Output, 1), (Coverage, 0)):
        assert table.select().count() == number, table
    if reports.is_local:  # PostgreSQL checks each row itself
        assert reports.execute_sql("PRAGMA foreign_key_check").fetchall() == []


def test_failures_are_kept_until_the_last_transaction_of_a_deletion(project: Project) -> None:
    """Otherwise verdicts on other runs would change until the deletion is complete."""
    run = records.create_run(project, {"c.A a": FAILED, "c.A b": PASSED, "c.A c": PASSED})
    assert retention.delete_some(run.id, 1)
    assert retention.delete_some(run.id, 1)
    assert Result.select().where(Result.status == 1).count() == 1
    assert Run.select().count() == 1
    assert not retention.delete_some(run.id, 1)
    assert Run.select().count() == 0


def test_deleting_a_missing_run_does_nothing(project: Project) -> None:
    records.create_run(project)
    assert not retention.delete_some(999)
    assert Run.select().count() == 1


def test_tests_without_a_run_are_deleted_unless_they_have_a_triage_status(project: Project) -> None:
    run = records.create_run(project, {"c.A gone": PASSED, "c.A marked": PASSED, "c.A kept": PASSED})
    records.create_run(project, {"c.A kept": PASSED})
    flaky.set_triage(project.id, "c.A", "marked", Triage.QUARANTINED, None, 1, NOW)
    delete(run)
    after: int | None = 0
    while after is not None:
        after = retention.forget_tests(after, 1)
    assert sorted(test.name for test in Test.select()) == ["kept", "marked"]


# The server


def remaining_runs(server: Server, project: Project) -> list[int]:
    return [run["id"] for run in server.get(f"/api/v1/projects/{project.id}/runs").json]


def test_server_deletes_expired_runs_after_its_start(tmp_path: Path) -> None:
    with http_checks.running_server(tmp_path, tracker={"retain-runs": 2}) as server:
        with records.store_of(server):
            project = records.create_project("demo")
            runs = [records.create_run(project, {f"c.A {number}": PASSED}) for number in range(5)]
        server.stop()
        server.start()
        assert wait_for(lambda: len(found := remaining_runs(server, project)) == 3 and found) == ids(*runs[:1:-1])
        with records.store_of(server):
            wait_for(lambda: Test.select().count() == 3)


def test_new_run_expires_the_oldest_run_of_its_branch(tmp_path: Path) -> None:
    with http_checks.running_server(tmp_path, tracker={"retain-runs": 2}) as server:
        made = [
            uploads.upload(server, ("project", "demo"), ("branch", "topic"), ("junit", uploads.junit(passed=1)))
            for _ in range(4)
        ]
        project = made[0]["projectId"]
        newest = [made[3]["runId"], made[2]["runId"]]
        wait_for(lambda: [run["id"] for run in server.get(f"/api/v1/projects/{project}/runs").json] == newest)
        assert server.get(f"/api/v1/runs/{made[0]['runId']}").status == 404


def test_runs_are_deleted_after_retain_days(tmp_path: Path) -> None:
    with http_checks.running_server(tmp_path, tracker={"retain-days": 30}) as server:
        with records.store_of(server):
            project = records.create_project("demo")
            records.create_run(project, branch="topic", created_at=SECOND)
            today = records.create_run(project, created_at=2_000_000_000 * SECOND)
        server.stop()
        server.start()
        assert wait_for(lambda: len(found := remaining_runs(server, project)) == 1 and found) == ids(today)
