"""The read endpoints of projects and runs."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import http_checks
import pytest
import records
from conftest import Server, wait_for
from records import ERROR, FAILED, NOW, PASSED, SECOND, SKIPPED
from tracker_rows import Coverage, Failure, Output, Report, Result, Suite

from models.tracker import tables, visibility
from models.tracker.coverage import line_sets
from models.tracker.tables import Project, Run, Test

RUN_FIELDS = {
    "id", "projectId", "branch", "flag", "commit", "buildUrl", "buildName", "ciProvider", "baseBranch", "prNumber",
    "createdAt", "total", "passed", "failed", "errors", "skipped", "flaky", "durationMs", "status", "passRate",
    "lineCoveragePct", "branchCoveragePct", "uploads", "runPath", "state", "patchCoveragePct",
    "supersededBy", "trusted",
}  # fmt: skip
PROJECT_FIELDS = {"id", "name", "repoUrl", "visibility", "createdAt", "runCount", "latestRun"}
FAILURE_FIELDS = {
    "suite", "className", "name", "status", "durationMs", "reruns", "failureType", "failureMessage", "stackTrace",
    "systemOut", "systemErr", "firstFailing", "lastPassed", "compareUrl", "attachments",
    "owner", "category",
}  # fmt: skip


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with http_checks.running_server(tmp_path_factory.mktemp("reads")) as one, records.store_of(one):
        yield one


@pytest.fixture
def project(server: Server, request: pytest.FixtureRequest) -> Project:
    return records.create_project(request.node.name)


@pytest.fixture(scope="module")
def admin(server: Server) -> dict[str, str]:
    return records.bearer(records.create_user("boss", "ADMIN"))


def read(server: Server, path: str) -> Any:
    answer = server.get(f"/api/v1/{path}")
    assert answer.status == 200, answer
    assert server.get(f"/tracker/api/v1/{path}").body == answer.body
    return http_checks.json_body(answer)


# Projects


def test_projects_are_listed_by_name_with_run_count_and_latest_run(server: Server) -> None:
    last, first = (
        records.create_project("zz listed", repo_url="https://example.com/z"),
        records.create_project("aa listed"),
    )
    records.create_run(last)
    newest = records.create_run(last, {"c.A a": FAILED}, created_at=NOW + 9_000 * SECOND)
    records.create_run(last, created_at=NOW)
    rows = read(server, "projects")
    assert all(set(row) == PROJECT_FIELDS for row in rows)
    names = [row["name"] for row in rows]
    assert names == sorted(names)
    mine = {row["name"]: row for row in rows}
    assert (mine["zz listed"]["runCount"], mine["zz listed"]["latestRun"]["id"]) == (3, newest.id)
    assert mine["zz listed"]["repoUrl"] == "https://example.com/z"
    assert mine["aa listed"] == {
        "id": first.id, "name": "aa listed", "repoUrl": None, "visibility": "PUBLIC",
        "createdAt": "2025-11-13T02:13:20.000000Z", "runCount": 0, "latestRun": None,
    }  # fmt: skip
    assert [row["id"] for row in read(server, "projects?name=aa%20listed")] == [first.id]
    assert read(server, "projects?name=aa") == []


def test_listing_takes_the_same_number_of_queries_for_many_projects(server: Server) -> None:
    def statements() -> int:
        seen: list[str] = []
        tables.reports.connection().set_trace_callback(seen.append)
        visibility.listed(None)
        tables.reports.connection().set_trace_callback(None)
        return len(seen)

    records.create_run(records.create_project("first of many"))
    before = statements()
    for number in range(20):
        records.create_run(records.create_project(f"many {number}"))
    assert statements() == before


def test_project_has_its_effective_thresholds_and_its_branches(server: Server) -> None:
    project = records.create_project("thresholds", max_coverage_drop_pct=2.5)
    for branch in ("main", "b", None, "main"):
        records.create_run(project, branch=branch)
    found = read(server, f"projects/{project.id}")
    assert set(found) == PROJECT_FIELDS | {
        "qualityGate", "quarantine", "quarantineWaiting", "branches", "role", "forgeRepo", "forgeToken",
        "forgeReports",
    }  # fmt: skip
    assert found["forgeReports"] == {
        "enabled": True, "comment": "changes", "statuses": "aggregate", "context": "pilothouse/gate",
        "untrusted": "none", "publish": "status",
    }  # fmt: skip
    assert found["branches"] == ["b", "main"]
    assert found["role"] is None
    assert found["qualityGate"] == {
        "baseBranch": "main", "minLineCoverage": None, "maxCoverageDropPct": 2.5, "failOnNewFailures": True,
        "minPatchCoverage": None, "minPatchLines": 0, "failOnNoTests": False, "failOnMissingCoverage": False,
        "aggregateFlags": True, "carryForwardFlags": [], "carryForwardMaxAge": 30 * 86_400,
        "requiredFlags": [], "maxTestDropPct": None, "failOnAnyFailure": False,
        "perfMaxLatencyIncreasePct": None, "perfMaxThroughputDropPct": None, "perfMaxErrorPct": None,
    }  # fmt: skip


def test_a_project_has_the_role_of_the_caller(server: Server, project: Project, admin: dict[str, str]) -> None:
    writer = records.create_user("w")
    records.add_member(project, writer, "WRITE")
    path = f"/api/v1/projects/{project.id}"
    assert server.ask("GET", path, headers=records.bearer(writer)).json["role"] == "WRITE"
    assert server.ask("GET", path, headers=admin).json["role"] == "OWNER"


# Runs


def test_a_run_has_its_metadata(server: Server, project: Project) -> None:
    run = records.create_run(
        project,
        {"c.A a": PASSED, "c.A b": PASSED, "c.A c": FAILED, "c.A d": ERROR, "c.A e": SKIPPED},
        coverage=(2, 1),
        commit_sha="abc",
        build_url="https://ci.example/1",
        pr_number=7,
        created_at=NOW,
        branch_covered=1,
        branch_missed=3,
    )
    (found,) = read(server, f"projects/{project.id}/runs")
    assert set(found) == RUN_FIELDS
    assert found == {
        "id": run.id, "projectId": project.id, "branch": "main", "flag": "default", "commit": "abc",
        "buildUrl": "https://ci.example/1", "buildName": None, "ciProvider": None, "baseBranch": None, "prNumber": 7,
        "createdAt": "2025-11-13T02:13:20.000000Z", "total": 5, "passed": 2, "failed": 1, "errors": 1, "skipped": 1,
        "flaky": 0, "durationMs": 50, "status": "FAILED", "passRate": 50.0, "lineCoveragePct": 200 / 3,
        "branchCoveragePct": 25.0, "uploads": 1, "runPath": f"/runs/{run.id}",
        "state": "COMPLETE", "patchCoveragePct": None, "supersededBy": None, "trusted": False,
    }  # fmt: skip
    assert found["trusted"] is False, "not 0"
    assert read(server, f"runs/{run.id}")["run"] == found


def test_run_without_executed_tests_has_pass_rate_0_and_no_coverage(server: Server, project: Project) -> None:
    records.create_run(project, {"c.A a": SKIPPED})
    (found,) = read(server, f"projects/{project.id}/runs")
    assert (found["passRate"], found["lineCoveragePct"], found["branchCoveragePct"]) == (0, None, None)


def test_runs_are_newest_first_and_filtered_by_branch_and_flag(server: Server, project: Project) -> None:
    runs = [
        records.create_run(project, branch=branch, flag=flag) for branch in ("main", "x") for flag in ("unit", "e2e")
    ]
    late = records.create_run(project, created_at=NOW - SECOND)

    def ids(query: str) -> list[int]:
        return [run["id"] for run in read(server, f"projects/{project.id}/runs{query}")]

    assert ids("") == [*[run.id for run in reversed(runs)], late.id]
    assert ids("?limit=2") == [runs[3].id, runs[2].id]
    assert ids("?branch=x") == [runs[3].id, runs[2].id]
    assert ids("?flag=unit&branch=") == [runs[2].id, runs[0].id]
    assert ids("?flag=unit&branch=main") == [runs[0].id]
    assert ids("?branch=none") == []


def test_runs_with_equal_times_are_sorted_by_id(server: Server, project: Project) -> None:
    ids = [records.create_run(project, created_at=NOW).id for _ in range(3)]
    assert [run["id"] for run in read(server, f"projects/{project.id}/runs")] == ids[::-1]


@pytest.mark.parametrize("limit", ["x", "1.5", "1e2", str(2**63)])
def test_limit_that_is_not_a_number_is_400(server: Server, project: Project, limit: str) -> None:
    path = f"/api/v1/projects/{project.id}/runs"
    http_checks.check_problem(server.get(f"{path}?limit={limit}"), 400, path, has_timestamp=False)


def test_limit_is_clamped_to_1_to_500(server: Server, project: Project) -> None:
    facts = dict(records.create_run(project).__data__)
    del facts["id"]
    Run.insert_many([facts] * 500).execute()
    for limit, outcome in (
        ("0", 1),
        ("-5", 1),
        ("1", 1),
        ("", 50),
        ("500", 500),
        ("501", 500),
        ("99999999999", 500),
    ):
        assert len(read(server, f"projects/{project.id}/runs?limit={limit}")) == outcome


PATHS = [
    "projects/{}",
    "projects/{}/runs",
    "projects/{}/flaky",
    "projects/{}/tests?name=a",
    "runs/{}",
    "runs/{}/quality-gate",
]


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize(
    ("id", "status"),
    [("0", 404), ("-1", 404), ("999999", 404), (str(2**63 - 1), 404), (str(2**63), 400), ("x", 400), ("1e3", 400)],
)
def test_unknown_id_is_404_and_invalid_id_is_400(server: Server, path: str, id: str, status: int) -> None:
    path = f"/api/v1/{path.format(id)}"
    http_checks.check_problem(server.get(path), status, path.partition("?")[0], has_timestamp=False)


# One run


def test_run_has_all_fields_of_its_failures(server: Server, project: Project) -> None:
    run = records.create_run(project, {"c.A a": PASSED, "c.A b": FAILED, "alone": ERROR})
    found = read(server, f"runs/{run.id}")
    assert list(found) == [
        "run", "project", "gate", "suiteCount", "suites", "failureCount", "failures", "slowest", "coverage",
        "attachments",
    ]  # fmt: skip
    assert found["project"] == project.name
    assert found["gate"]["status"] == "FAILED"
    assert found["suites"] == [
        {"name": "suite", "tests": 3, "failures": 1, "errors": 1, "skipped": 0, "durationMs": 30}
    ]  # fmt: skip
    assert found["failureCount"] == 2
    assert found["failures"][0] == {
        "suite": "suite", "className": "c.A", "name": "b", "status": "FAILED", "durationMs": 10, "reruns": 0,
        "failureType": "AssertionError", "failureMessage": "b is broken", "stackTrace": "at line 1",
        "systemOut": "b said this", "systemErr": None, "firstFailing": found["failures"][0]["firstFailing"],
        "lastPassed": None, "compareUrl": None, "attachments": [], "owner": None, "category": "untriaged",
    }  # fmt: skip
    assert found["failures"][0]["firstFailing"]["runId"] == run.id
    assert set(found["failures"][1]) == FAILURE_FIELDS
    assert (found["failures"][1]["className"], found["failures"][1]["status"]) == ("", "ERROR")
    assert found["coverage"] is None


def test_failures_suites_and_files_are_bounded_and_their_total_is_returned(server: Server, project: Project) -> None:
    run = records.create_run(project, {f"c.A t{number}": FAILED for number in range(501)}, coverage=(1, 501))
    report = records.report_of_run(run)
    counts = {"tests": 1, "failed": 0, "errors": 0, "skipped": 0, "duration_ms": 0}
    for number in range(501):
        Suite.create(report=report, run_id=run.id, name=f"s{number}", **counts)
        cover(report, f"f{number}", (0, 1))
    found = read(server, f"runs/{run.id}")
    assert (found["failureCount"], len(found["failures"])) == (501, 500)
    assert (found["suiteCount"], len(found["suites"])) == (502, 500)
    assert (found["coverage"]["fileCount"], len(found["coverage"]["files"])) == (501, 500)


def test_long_texts_are_truncated_with_a_note(server: Server, project: Project) -> None:
    run = records.create_run(project, {"c.A a": FAILED})
    (result,) = Result.select().where(Result.run_id == run.id)
    Failure.update(stack="first" + "s" * 9000 + "last").where(Failure.result == result.id).execute()
    Output.update(out="first" + "o" * 9000 + "last", err="e" * 8192).where(Output.result == result.id).execute()
    (found,) = read(server, f"runs/{run.id}")["failures"]
    assert found["stackTrace"].startswith("first")
    assert found["stackTrace"].endswith("s\n[... cut ...]")
    assert found["systemOut"].startswith("[... cut ...]\no")
    assert found["systemOut"].endswith("last")
    assert found["systemErr"] == "e" * 8192
    assert len(found["stackTrace"]) == len(found["systemOut"]) == 8192 + len("\n[... cut ...]")


def test_the_slowest_tests_come_first(server: Server, project: Project) -> None:
    run = records.create_run(project)
    report = records.report_of_run(run)
    for number in range(12):
        records.create_result(project, run, report, f"c.A t{number:02}", PASSED, duration_ms=number * 7 % 12)
    found = read(server, f"runs/{run.id}")["slowest"]
    assert [test["durationMs"] for test in found] == [11, 10, 9, 8, 7, 6, 5, 4, 3, 2]
    assert found[0] == {"className": "c.A", "name": "t05", "status": "PASSED", "durationMs": 11}


def cover(report: Report, path: str, counts: tuple[int, int], seen: tuple[set[int], set[int]] | None = None) -> None:
    packed = {"covered": line_sets.pack(seen[0]), "missed": line_sets.pack(seen[1])} if seen else {}
    Coverage.create(
        report=report, run_id=report.run.id, path=path, line_covered=counts[0], line_missed=counts[1],
        branch_covered=0, branch_missed=0, **packed,
    )  # fmt: skip


def test_coverage_by_file_has_the_most_missed_lines_first(server: Server, project: Project) -> None:
    run = records.create_run(project, coverage=(5, 5), branch_covered=1, branch_missed=1)
    for path, counts in (("good", (3, 0)), ("bad", (0, 4)), ("half", (1, 1)), ("empty", (0, 0))):
        cover(records.report_of_run(run), path, counts)
    found = read(server, f"runs/{run.id}")["coverage"]
    files = found.pop("files")
    assert found == {
        "linePct": 50.0, "branchPct": 50.0, "lineCovered": 5, "lineMissed": 5, "branchCovered": 1, "branchMissed": 1,
        "fileCount": 4,
    }  # fmt: skip
    assert [(file["path"], file["linePct"]) for file in files] == [
        ("bad", 0.0), ("half", 50.0), ("empty", None), ("good", 100.0),
    ]  # fmt: skip


def test_a_file_in_two_reports_is_the_union_of_its_lines(server: Server, project: Project) -> None:
    run = records.create_run(project, coverage=(3, 1))
    first = records.report_of_run(run)
    facts = {name: getattr(first, name) for name in first._meta.sorted_field_names if name not in ("id", "hash")}
    second = Report.create(hash="another", **facts)
    cover(first, "a", (2, 2), ({1, 2}, {3, 4}))
    cover(second, "a", (2, 2), ({2, 3}, {1, 4}))
    (found,) = read(server, f"runs/{run.id}")["coverage"]["files"]
    assert (found["path"], found["lineCovered"], found["lineMissed"]) == ("a", 3, 1)


def test_a_runs_verdict_names_its_baseline(server: Server, project: Project) -> None:
    base = records.create_run(project, coverage=(1, 1))
    run = records.create_run(project, {"c.A a": FAILED}, coverage=(1, 1), branch="x")
    assert read(server, f"runs/{run.id}/quality-gate") == {
        "runId": run.id, "status": "FAILED", "passed": False, "coverageDelta": 0.0, "baselineRunId": base.id,
        "rules": [
            {"name": "coverage-drop", "passed": True, "detail": "50.0% vs baseline 50.0% (drop 0.0pp, max 1.0pp)",
             "flag": None},
            {"name": "new-failures", "passed": False, "detail": "1 new failure(s): c.A a", "flag": None},
        ],
        "state": "COMPLETE",
    }  # fmt: skip


# One test


def test_a_tests_history_is_newest_first(server: Server, project: Project) -> None:
    runs = [records.create_run(project, {"c.A a": status}, commit_sha="abc") for status in (PASSED, FAILED, SKIPPED)]
    records.create_run(project, {"c.B a": FAILED, "a": PASSED})
    found = read(server, f"projects/{project.id}/tests?className=c.A&name=a")
    assert (found["className"], found["name"], found["status"]) == ("c.A", "a", "ACTIVE")
    assert [(one["runId"], one["status"]) for one in found["results"]] == [
        (runs[2].id, "SKIPPED"), (runs[1].id, "FAILED"), (runs[0].id, "PASSED")
    ]  # fmt: skip
    assert found["results"][1]["failureMessage"] == "a is broken"
    assert len(read(server, f"projects/{project.id}/tests?className=c.A&name=a&limit=1")["results"]) == 1
    assert [one["status"] for one in read(server, f"projects/{project.id}/tests?name=a")["results"]] == ["PASSED"]


def test_a_tests_history_is_filtered_by_branch_and_flag(server: Server, project: Project) -> None:
    places = [("main", "unit"), ("main", "ui"), ("side", "unit"), ("main", "unit")]
    runs = [records.create_run(project, {"c.A a": FAILED}, branch=branch, flag=flag) for branch, flag in places]
    records.create_run(project, {"c.A a": PASSED}, branch="side", flag="unit")
    path = f"projects/{project.id}/tests?className=c.A&name=a"

    def ids(more: str) -> list[int]:
        return [one["runId"] for one in read(server, path + more)["results"]]

    assert ids("&branch=main&flag=unit") == [runs[3].id, runs[0].id]
    assert ids("&branch=main") == [runs[3].id, runs[1].id, runs[0].id]
    assert ids("&flag=ui") == [runs[1].id]
    assert ids("&branch=&flag=absent") == []
    found = read(server, f"{path}&branch=main&flag=unit&limit=1")
    rest = read(server, f"{path}&branch=main&flag=unit&limit=1&cursor={found['nextCursor']}")
    assert ([one["runId"] for one in rest["results"]], rest["nextCursor"]) == ([runs[0].id], None)
    assert found["firstFailing"]["runId"] == runs[0].id, "of the branch and flag, whatever came on others"
    assert read(server, path)["firstFailing"] is None
    page = f"/projects/{project.id}/test?className=c.A&name=a"
    shown = server.get(f"{page}&branch=side&flag=", Accept="text/html").text
    assert (f"/runs/{runs[2].id}" in shown, f"/runs/{runs[3].id}" in shown) == (True, False)
    assert '<option value="unit" selected>' in server.get(f"{page}&flag=unit", Accept="text/html").text
    assert "No run matches." in server.get(f"{page}&branch=none", Accept="text/html").text


def test_unknown_test_is_404_and_missing_name_is_400(server: Server, project: Project) -> None:
    path = f"/api/v1/projects/{project.id}/tests"
    http_checks.check_problem(server.get(f"{path}?className=c.A&name=a"), 404, path, has_timestamp=False)
    http_checks.check_problem(server.get(f"{path}?className=c.A"), 400, path, has_timestamp=False)


def test_a_test_name_keeps_its_spaces(server: Server, project: Project) -> None:
    run = records.create_run(project)
    records.create_result(project, run, records.report_of_run(run), "c.A ", PASSED)
    Test.update(name=" b ").where(Test.project == project.id).execute()
    assert read(server, f"projects/{project.id}/tests?className=c.A&name=%20b%20")["name"] == " b "


# Two runs


def test_comparison_of_two_runs(server: Server, project: Project) -> None:
    base = records.create_run(project, {"c.A new": PASSED, "c.A fixed": FAILED, "c.A still": FAILED, "c.A gone": FAILED,
                                 "c.A skipped": FAILED}, coverage=(3, 1))  # fmt: skip
    head = records.create_run(project, {"c.A new": ERROR, "c.A fixed": PASSED, "c.A still": ERROR, "c.A born": FAILED,
                                 "c.A skipped": SKIPPED}, coverage=(1, 1))  # fmt: skip
    Result.update(duration_ms=500).where(Result.run_id == head.id, Result.status == 0).execute()
    found = read(server, f"compare?base={base.id}&head={head.id}")
    assert (found["base"]["id"], found["head"]["id"]) == (base.id, head.id)
    assert found["passRateDelta"] == 25.0 - 20.0
    assert (found["coverageDelta"], found["durationDeltaMs"]) == (-25.0, 0)
    for kind, expected in {
        "newFailures": ["c.A born", "c.A new"], "fixed": ["c.A fixed"], "stillFailing": ["c.A still"]
    }.items():  # fmt: skip
        assert records.full_names(found[kind]["named"]) == expected
        assert found[kind]["count"] == len(expected)
    assert found["timings"] == [{"className": "c.A", "name": "fixed", "baseMs": 10, "headMs": 500}]


def failed_suite(project: Project, *names: str, ok: str = "") -> Run:
    """A run of a passed test, and of suites that failed (`names`) or passed (`ok`) by their attributes."""
    run = records.create_run(project, {"c.A a": PASSED}, failed=len(names), status="FAILED")
    for name in filter(None, (*names, ok)):
        counts = {"tests": 3, "failed": int(name != ok), "errors": 0, "skipped": 0, "duration_ms": 0}
        Suite.create(report=records.report_of_run(run), run_id=run.id, name=name, **counts)
    return run


def test_failure_of_a_suite_is_listed_like_that_of_a_test(server: Server, project: Project) -> None:
    base, head = failed_suite(project, "still", "fixed", "gone"), failed_suite(project, "still", "new", ok="fixed")
    found = read(server, f"runs/{head.id}")
    assert found["failureCount"] == found["run"]["failed"] == 2
    assert [(row["suite"], row["className"], row["name"], row["status"]) for row in found["failures"]] == [
        ("still", "", "still", "FAILED"), ("new", "", "new", "FAILED"),
    ]  # fmt: skip
    assert "without a failed test" in found["failures"][0]["failureMessage"]
    compared = read(server, f"compare?base={base.id}&head={head.id}")
    kinds = ("newFailures", "fixed", "stillFailing")
    assert [records.full_names(compared[kind]["named"]) for kind in kinds] == [["new"], ["fixed"], ["still"]]


@pytest.mark.parametrize("query", ["", "?base=1", "?head=1", "?base=x&head=1", "?base=&head="])
def test_comparison_requires_two_run_ids(server: Server, query: str) -> None:
    http_checks.check_problem(server.get(f"/api/v1/compare{query}"), 400, "/api/v1/compare", has_timestamp=False)


def test_runs_of_two_projects_are_not_compared(server: Server, project: Project) -> None:
    one, other = (
        records.create_run(project),
        records.create_run(records.create_project("another to compare")),
    )
    assert server.get(f"/api/v1/compare?base={one.id}&head={other.id}").status == 400


# The triage status of a test


def set_triage_status(server: Server, project: Project, body: str, headers: dict[str, str]) -> Any:
    return server.ask("POST", f"/api/v1/projects/{project.id}/flaky/status", body.encode(), headers)


def test_quarantine_changes_the_verdict_at_once(server: Server, project: Project, admin: dict[str, str]) -> None:
    run = records.create_run(project, {"c.A a": FAILED})
    assert not read(server, f"runs/{run.id}/quality-gate")["passed"]
    body = '{"className":"c.A","name":"a","status":"QUARANTINED","note":" known ","more":1}'
    answer = set_triage_status(server, project, body, admin)
    assert answer.status == 202
    known = {"className": "c.A", "name": "a", "status": "QUARANTINED", "note": "known"}
    assert http_checks.json_body(answer) == known | {"expiresAt": None, "issueUrl": None}
    assert read(server, f"runs/{run.id}/quality-gate")["passed"]
    (listed,) = read(server, f"projects/{project.id}/flaky")
    assert (listed["status"], listed["note"], listed["flaky"], listed["failures"]) == ("QUARANTINED", "known", False, 1)
    assert set_triage_status(server, project, '{"className":"c.A","name":"a","status":"ACTIVE"}', admin).status == 202
    assert not read(server, f"runs/{run.id}/quality-gate")["passed"]
    assert read(server, f"projects/{project.id}/flaky") == []


@pytest.mark.parametrize(
    ("body", "status", "expected"),
    [
        ("", 400, "name"),
        ("{}", 400, "name"),
        ('{"name":"a"}', 400, "status"),
        ('{"className":"c.A","name":"a","status":"quarantined"}', 400, "status"),
        ('{"className":1,"name":"a","status":"ACTIVE"}', 400, "className"),
        ('{"className":"c.A","name":["a"],"status":"ACTIVE"}', 400, "name"),
        ('{"className":"c.A","name":"a","status":"ACTIVE","note":true}', 400, "note"),
        ('{"className":"c.A","name":"a","status":"ACTIVE","note":"' + "n" * 1001 + '"}', 400, "note"),
        ("[]", 400, "object"),
        ("{", 400, "JSON"),
        ('{"className":"c.A","name":"a\\u0000","status":"ACTIVE"}', 400, "NUL"),
        ('{"className":"c.A","name":"nothing","status":"ACTIVE"}', 404, "nothing"),
        ('{"className":null,"name":"alone","status":"ACTIVE","note":null}', 202, "alone"),
    ],
)
def test_the_triage_status_is_validated(
    server: Server, admin: dict[str, str], body: str, status: int, expected: str
) -> None:
    project = records.ensure_project("triage")
    if not Run.select().where(Run.project == project).count():
        records.create_run(project, {"c.A a": PASSED, "alone": PASSED})
    answer = set_triage_status(server, project, body, admin)
    assert answer.status == status, answer
    assert expected in answer.text


# Deleting


def test_deleted_run_is_removed_with_all_its_rows(server: Server, project: Project, admin: dict[str, str]) -> None:
    kept = records.create_run(project, {"c.A a": FAILED})
    run = records.create_run(project, {"c.A a": FAILED, "c.A b": PASSED}, coverage=(1, 1))
    cover(records.report_of_run(run), "a", (1, 1))
    answer = server.ask("DELETE", f"/api/v1/runs/{run.id}", headers=admin)
    assert (answer.status, answer.body) == (204, b"")
    assert server.get(f"/api/v1/runs/{run.id}").status == 404
    assert server.ask("DELETE", f"/api/v1/runs/{run.id}", headers=admin).status == 404
    for table in (Suite, Result, Coverage):
        assert not table.select().where(table.run_id == run.id).count()
    assert [one["id"] for one in read(server, f"projects/{project.id}/runs")] == [kept.id]
    assert read(server, f"runs/{kept.id}")["failureCount"] == 1


def test_large_run_is_deleted_in_batches(server: Server, project: Project, admin: dict[str, str]) -> None:
    run = records.create_run(project)
    report = records.report_of_run(run)
    with tables.reports.atomic():
        for number in range(4500):
            records.create_result(project, run, report, f"c.A {number}", PASSED)
    assert server.ask("DELETE", f"/api/v1/runs/{run.id}", headers=admin).status == 204
    wait_for(lambda: not Result.select().where(Result.run_id == run.id).count())
