"""Attempts of jobs, completeness of runs, and the gate over all flags of a commit."""

from __future__ import annotations

import json
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import records
from conftest import Answer, Serve, Server, wait_for
from http_checks import check_problem
from uploads import jacoco, junit, post, query_store, upload

from models.tracker.tables import Run

pytest_plugins = ["shared_server"]

API = "/api/v1"


def job(server: Server, project: str, report: str, key: str | None = "unit", attempt: int = 0, **parts: Any) -> Any:
    """Uploads one report of a job; unless given, `runKey` is the same for all of the project."""
    known: dict[str, Any] = {"runKey": f"{project} run", "commit": "c1", "branch": "main", **parts}
    if key is not None:
        known |= {"jobKey": key, "attempt": attempt}
    texts = [(name, str(value)) for name, value in known.items() if value is not None]
    return upload(server, ("project", project), ("junit", report), *texts)


def attempts(server: Server, run: int) -> Any:
    answer = server.get(f"{API}/runs/{run}/attempts")
    assert answer.status == 200, answer
    return answer.json


def gate(server: Server, project: str, **query: str) -> Any:
    requested = "&".join(f"{name}={value}" for name, value in {"project": project.replace(" ", "%20"), **query}.items())
    answer = server.get(f"{API}/gate?{requested}")
    assert answer.status == 200, answer
    return answer.json


def send(server: Server, method: str, path: str, body: Any, **headers: str) -> Answer:
    data = None if body is None else json.dumps(body).encode()
    return server.ask(method, path, data, headers={"Content-Type": "application/json", **headers})


RED, GREEN = junit(1, 1), junit(2)


# Attempts


@pytest.mark.parametrize("order", [(1, 2), (2, 1)], ids=["in order", "the earlier comes late"])
def test_a_later_attempt_replaces_the_reports_of_an_earlier_one(
    server: Server, project: str, order: Sequence[int]
) -> None:
    job(server, project, junit(3, prefix="other"), "other")
    results = [job(server, project, RED if attempt == 1 else GREEN, attempt=attempt) for attempt in order]
    result = results[-1]
    assert (result["tests"], result["failures"], result["status"], result["warnings"]) == (5, 0, "PASSED", [])
    listed = attempts(server, result["runId"])["items"]
    assert [(row["jobKey"], row["attempt"], row["superseded"], row["failures"]) for row in listed] == [
        ("other", 0, False, 0), ("unit", 1, True, 1), ("unit", 2, False, 0),
    ]  # fmt: skip
    old = server.get(f"{API}/runs/{listed[1]['runId']}").json
    assert (old["run"]["total"], old["failureCount"]) == (2, 1)
    (project_id,) = {row[0] for row in query_store(server, "SELECT project_id FROM run WHERE id = ?", result["runId"])}
    runs = server.get(f"{API}/projects/{project_id}/runs").json
    assert [run["id"] for run in runs] == [result["runId"]]
    flaky = server.get(f"{API}/projects/{project_id}/flaky").json
    assert [test["name"] for test in flaky] == ["c1"], "a test that failed and passed for one commit is flaky"


def test_identical_file_moves_to_the_later_attempt(server: Server, project: str) -> None:
    first = job(server, project, GREEN, attempt=1)
    job(server, project, RED, attempt=1)
    again = job(server, project, GREEN, attempt=2)
    assert (again["runId"], again["tests"], again["failures"]) == (first["runId"], 2, 0)
    third = job(server, project, RED, attempt=3)
    assert (third["tests"], third["failures"]) == (2, 1)
    back = job(server, project, GREEN, attempt=3)
    assert (back["tests"], back["failures"]) == (4, 1)
    listed = attempts(server, back["runId"])["items"]
    assert {(row["attempt"], row["superseded"]) for row in listed} == {(1, True), (2, True), (3, False)}


def test_an_upload_that_is_sent_again_changes_nothing(server: Server, project: str) -> None:
    for _ in range(2):
        job(server, project, RED, attempt=1)
        result = job(server, project, GREEN, attempt=2)
        assert (result["tests"], result["failures"]) == (2, 0)
    result = job(server, project, RED, attempt=1)
    assert [row["reports"] for row in attempts(server, result["runId"])["items"]] == [1, 1]


def test_newest_of_concurrent_attempts_counts(server: Server, project: str) -> None:
    reports = {attempt: junit(attempt, prefix=f"a{attempt}-") for attempt in range(1, 7)}
    with ThreadPoolExecutor(6) as pool:
        done = [pool.submit(job, server, project, report, attempt=attempt) for attempt, report in reports.items()]
    (run,) = {answer.result()["runId"] for answer in done}
    assert server.get(f"{API}/runs/{run}").json["run"]["total"] == 6


@pytest.mark.parametrize("order", [("unit", "ui"), ("ui", "unit")])
def test_a_report_that_another_job_sent_too_stays_when_one_of_them_is_retried(
    server: Server, project: str, order: tuple[str, str]
) -> None:
    for key in order:
        job(server, project, RED, key, attempt=1)
    result = job(server, project, junit(5, prefix="g"), "unit", attempt=2)
    assert (result["tests"], result["failures"]) == (7, 1), "the report of the job ui"
    result = job(server, project, junit(3, prefix="h"), "ui", attempt=2)
    assert (result["tests"], result["failures"]) == (8, 0)
    listed = attempts(server, result["runId"])["items"]
    assert [(row["jobKey"], row["attempt"]) for row in listed if row["superseded"]] == [("ui", 1), ("unit", 1)]
    result = job(server, project, RED, "unit", attempt=1)
    assert (result["tests"], result["failures"]) == (8, 0), "sent again, it is still superseded"


def test_a_report_stays_that_an_upload_without_a_job_sent_too(server: Server, project: str) -> None:
    job(server, project, RED, attempt=1)
    job(server, project, RED, None)
    assert job(server, project, GREEN, attempt=2)["failures"] == 1


def test_matrix_jobs_with_the_same_job_key_do_not_replace_each_other(server: Server, project: str) -> None:
    job(server, project, RED, jobInstance="a", attempt=1)
    job(server, project, junit(1, prefix="b"), jobInstance="b", attempt=1)
    result = job(server, project, junit(1, prefix="again"), jobInstance="c", attempt=2)
    assert (result["tests"], result["failures"]) == (4, 1), "the failure still counts"
    assert "--job-key" in result["warnings"][0]


def test_page_of_a_run_names_the_ambiguous_job_keys(server: Server, project: str) -> None:
    legs = (("unit", "1"), ("unit", "2"), ("lint", "3"))
    run = [job(server, project, junit(1, prefix=leg), key, jobInstance=leg)["runId"] for key, leg in legs][-1]
    page = server.get(f"/runs/{run}", Accept="text/html").text
    assert "the job key <code>unit</code>" in page
    assert "--job-key" in page
    assert "<code>lint</code>" not in page


def test_the_last_outcome_of_a_repeated_test_counts_on_request(server: Server, project: str) -> None:
    report = "<testsuite name='s'><testcase name='a'><failure/></testcase><testcase name='a'/></testsuite>"
    assert job(server, project, report, runKey=f"{project} worst")["status"] == "FAILED"
    assert job(server, project, report, runKey=f"{project} last", reruns="last")["status"] == "PASSED"
    refused = post(server, ("project", project), ("junit", report), ("reruns", "best"))
    assert (refused.status, refused.json["message"]) == (400, "reruns must be one of worst, last")


def test_replaced_attempts_count_again_once_the_job_key_is_ambiguous(server: Server, project: str) -> None:
    job(server, project, RED, jobInstance="a", attempt=1)
    assert job(server, project, GREEN, jobInstance="b", attempt=2)["failures"] == 0
    late = job(server, project, junit(1, prefix="late"), jobInstance="c", attempt=1)
    assert (late["tests"], late["failures"]) == (5, 1)


def test_without_a_job_key_nothing_is_replaced(server: Server, project: str) -> None:
    job(server, project, RED, None)
    assert job(server, project, GREEN, None)["failures"] == 1


def test_coverage_of_a_replaced_attempt_does_not_count(server: Server, project: str) -> None:
    percentages = []
    for attempt, lines in ((1, {1: True, 2: True}), (2, {1: True, 2: False})):
        texts = {"runKey": "k", "jobKey": "j", "attempt": str(attempt)}
        parts = [("junit", GREEN), ("jacoco", jacoco({"A.java": lines})), *texts.items()]
        percentages.append(upload(server, ("project", project), *parts)["lineCoveragePct"])
    assert percentages == [100.0, 50.0]


def test_superseded_results_are_marked_and_are_not_the_newest(server: Server, project: str) -> None:
    """The runs of superseded attempts are made later, so that their ids are higher."""
    job(server, project, RED, attempt=1)
    run = job(server, project, GREEN, attempt=2)
    (superseded,) = {row["runId"] for row in attempts(server, run["runId"])["items"] if row["superseded"]}
    assert server.get(f"{API}/runs/{superseded}").json["run"]["supersededBy"] == run["runId"]
    page = server.get(f"/runs/{superseded}", Accept="text/html").text
    assert f"Run {run['runId']}</a> has those that count" in page
    assert "has those that count" not in server.get(run["runPath"], Accept="text/html").text
    path = f"projects/{run['projectId']}"
    history = server.get(f"{API}/{path}/tests?className=A&name=c1").json
    assert [(one["status"], one["supersededBy"]) for one in history["results"]] == [
        ("FAILED", run["runId"]),
        ("PASSED", None),
    ]
    assert history["firstFailing"] is None
    page = server.get(f"/{path}/test?className=A&name=c1", Accept="text/html").text
    heading = page[page.index("<h1>c1</h1>") :][:200]
    assert "passed" in heading
    assert "failed" not in heading


def test_deleting_a_run_deletes_its_replaced_attempts(server: Server, project: str) -> None:
    run = job(server, project, RED, attempt=1)["runId"]
    job(server, project, GREEN, attempt=2)
    with records.store_of(server):
        owner = records.create_user("owner-of-attempts")
        records.add_member(records.ensure_project(project), owner, "OWNER")
        token = records.bearer(owner)
    assert send(server, "DELETE", f"{API}/runs/{run}", None, **token).status == 204
    assert query_store(server, "SELECT 1 FROM run WHERE id = ? OR superseded_by = ?", run, run) == []


@pytest.mark.parametrize(
    ("part", "value"),
    [
        ("jobKey", "x" * 256), ("jobInstance", "x" * 256), ("attempt", "one"), ("attempt", str(2**63)),
        ("expectedUploads", "0"), ("expectedUploads", "10001"), ("complete", "yes"),
    ],
)  # fmt: skip
def test_invalid_part_is_400_and_named_in_the_response(server: Server, project: str, part: str, value: str) -> None:
    answer = post(server, ("project", project), ("junit", GREEN), (part, value))
    assert check_problem(answer, 400, f"{API}/ingest", has_timestamp=False)["detail"].startswith(part)


# Completeness


def test_run_is_complete_when_the_expected_uploads_have_arrived(server: Server, project: str) -> None:
    for number, state in ((1, "PENDING"), (1, "PENDING"), (2, "PENDING"), (3, "COMPLETE")):
        result = job(server, project, junit(1, prefix=f"j{number}"), f"job {number}", expectedUploads=3)
        assert result["state"] == state
    found = gate(server, project, commit="c1")
    (rule,) = [rule for rule in found["rules"] if rule["name"] == "complete-run"]
    assert (rule["passed"], rule["detail"], found["complete"]) == (True, "3 of 3 uploads", True)


def test_uploads_that_name_no_job_are_counted_by_upload(server: Server, project: str) -> None:
    found = [job(server, project, junit(number), None, expectedUploads=3) for number in (1, 1, 2, 3)]
    states = [result["state"] for result in found]
    assert states == ["PENDING", "PENDING", "PENDING", "COMPLETE"], "one that is sent again is no further one"
    listed = attempts(server, found[0]["runId"])
    assert (listed["uploads"], [row["jobInstance"] for row in listed["items"]]) == (3, [None, None, None])


def test_a_run_that_waits_for_uploads_fails_the_gate(server: Server, project: str) -> None:
    job(server, project, GREEN, expectedUploads=5)
    found = gate(server, project, commit="c1")
    (rule,) = [rule for rule in found["rules"] if rule["name"] == "complete-run"]
    assert (found["status"], rule["detail"], found["complete"]) == ("FAILED", "1 of 5 uploads", False)


def test_a_run_without_a_key_or_marked_as_complete_is_complete_at_once(server: Server, project: str) -> None:
    assert job(server, project, GREEN, None, runKey=None)["state"] == "COMPLETE"
    assert job(server, project, GREEN)["state"] == "PENDING"
    assert job(server, project, RED, complete="true")["state"] == "COMPLETE"
    assert job(server, project, junit(7), "late")["state"] == "PENDING", "a later upload reopens it"


def test_an_upload_that_is_sent_again_does_not_reopen_a_run(server: Server, project: str) -> None:
    for _ in range(2):
        job(server, project, GREEN, "one", expectedUploads=3)
    body = {"project": project, "runKey": f"{project} run", "partial": True}
    assert send(server, "POST", f"{API}/runs/finish", body).status == 200
    assert job(server, project, GREEN, "one", expectedUploads=3)["state"] == "COMPLETE"
    assert job(server, project, GREEN, "two", expectedUploads=3)["state"] == "PENDING", (
        "another job, of an equal report"
    )


def test_a_report_that_an_early_attempt_sends_again_does_not_outlive_the_attempts(server: Server, project: str) -> None:
    for attempt in (0, 1, 2):
        job(server, project, GREEN, "one", attempt)
        job(server, project, GREEN, "one", 0)  # it stays that of the latest attempt
    assert job(server, project, junit(2, prefix="other"), "one", 3)["tests"] == 2


def test_a_job_with_legs_keeps_a_report_that_another_job_has_superseded(server: Server, project: str) -> None:
    shared, other = junit(3, prefix="shared"), junit(1, prefix="other")
    job(server, project, shared, "one", 1)
    job(server, project, junit(1), "two", 3)
    job(server, project, shared, "two", 2, jobInstance="leg")
    job(server, project, other, "one", 2)
    assert job(server, project, other, "two", 2)["tests"] == 5, "two legs of one attempt: nothing is superseded"


def test_a_later_job_with_an_equal_report_reopens_a_run(server: Server, project: str) -> None:
    job(server, project, GREEN, "one")
    assert job(server, project, GREEN, "one", complete="true")["state"] == "COMPLETE"
    assert job(server, project, GREEN, "one")["state"] == "COMPLETE", "it is sent again"
    assert job(server, project, GREEN, "two")["state"] == "PENDING"


def test_an_upload_of_another_branch_or_commit_warns_that_the_run_keeps_its_own(server: Server, project: str) -> None:
    assert job(server, project, GREEN, branch="main", commit="a")["warnings"] == []
    other = job(server, project, RED, branch="topic", commit="a")
    assert other["branch"] == "main"
    assert other["warnings"] == ["branch topic was ignored: the run of this key has the branch main"]
    assert len(job(server, project, junit(9), commit="b")["warnings"]) == 1


def test_an_upload_of_another_flag_is_409_and_names_both(server: Server, project: str) -> None:
    run = job(server, project, GREEN, flag="unit")["runId"]
    perf = ("perf", "timeStamp,elapsed,label,success\n1,9,a,true\n")
    facts = (("project", project), ("runKey", f"{project} run"))
    for report in (("junit", RED), perf):
        refused = check_problem(post(server, *facts, ("flag", "ui"), report), 409, f"{API}/ingest", has_timestamp=False)
        assert refused["detail"] == (
            f"the run of the key {project} run has the flag unit, not ui: use a key for each flag"
        )
    assert server.get(f"{API}/runs/{run}").json["run"]["failed"] == 0, "nothing of it is stored"
    assert upload(server, *facts, perf)["warnings"] == [], "performance reports without a flag have none"
    assert upload(server, *facts, ("junit", RED))["runId"] == run, "nor has an upload that names none"


def test_a_run_is_finished_by_request(server: Server, project: str) -> None:
    run = job(server, project, GREEN, flag="ui")["runId"]
    body = {"project": project, "runKey": f"{project} run", "flag": "ui"}
    answer = send(server, "POST", f"{API}/runs/finish", body)
    assert (answer.status, answer.json["runId"], answer.json["state"]) == (200, run, "COMPLETE")
    assert send(server, "POST", f"{API}/runs/finish", body | {"flag": "unit"}).status == 404
    assert send(server, "POST", f"{API}/runs/finish", body | {"runKey": "another"}).status == 404
    assert send(server, "POST", f"{API}/runs/finish", {"project": project}).status == 400


def test_finish_closes_a_run_that_expects_more_and_does_not_forgive(server: Server, project: str) -> None:
    body = {"project": project, "runKey": f"{project} run"}

    def closed(**more: Any) -> tuple[str, str, bool, str]:
        answer = send(server, "POST", f"{API}/runs/finish", body | more)
        assert answer.status == 200, answer
        (rule,) = [one for one in gate(server, project, commit="c1")["rules"] if one["name"] == "complete-run"]
        return answer.json["state"], answer.json["gateStatus"], rule["passed"], rule["detail"]

    job(server, project, GREEN, "one", expectedUploads=3)
    assert closed() == ("INCOMPLETE", "FAILED", False, "1 of 3 uploads")
    by = "closed as partial by an anonymous caller"
    assert closed(partial=True) == ("COMPLETE", "PASSED", True, f"1 of 3 uploads, {by}")
    assert job(server, project, junit(3), "two", expectedUploads=3)["state"] == "PENDING", "a later upload reopens it"
    assert job(server, project, junit(4), "two", expectedUploads=3, complete="true")["state"] == "INCOMPLETE"
    assert closed(partial=True) == ("COMPLETE", "PASSED", True, f"2 of 3 uploads, {by}")
    job(server, project, junit(5), "three", expectedUploads=3)
    details = [rule["detail"] for rule in gate(server, project, commit="c1")["rules"]]
    assert "3 of 3 uploads" in details, "nothing is missing any more"
    assert closed(partial=True) == ("COMPLETE", "PASSED", True, "3 of 3 uploads")
    assert send(server, "POST", f"{API}/runs/finish", body | {"partial": "yes"}).status == 400


def test_the_rule_names_the_account_that_closed_a_run_as_partial(server: Server, project: str) -> None:
    run = job(server, project, GREEN, expectedUploads=2)
    name = project.replace(" ", "-") + "-closer"
    with records.store_of(server):
        token = records.bearer(records.create_user(name), "INGEST")
    body = {"project": project, "runKey": f"{project} run", "partial": True}
    assert send(server, "POST", f"{API}/runs/finish", body, **token).json["state"] == "COMPLETE"
    rules = server.get(f"{API}/runs/{run['runId']}/quality-gate").json["rules"]
    assert rules[-1]["detail"] == f"1 of 2 uploads, closed as partial by {name}"


def test_pending_runs_become_complete_or_incomplete_after_a_timeout(serve: Serve) -> None:
    server = serve(tracker={"runs": {"settle": "1s", "incomplete-after": "1s"}})
    settled = job(server, "p", GREEN, runKey="a")["runId"]
    waiting = job(server, "p", GREEN, runKey="b", expectedUploads=2)["runId"]
    states = {settled: "COMPLETE", waiting: "INCOMPLETE"}
    for run, state in states.items():
        wait_for(lambda: server.get(f"{API}/runs/{run}").json["run"]["state"] == state, about=state)  # noqa: B023


def test_pending_run_is_not_used_as_baseline(server: Server, project: str) -> None:
    whole = job(server, project, junit(0, 1), runKey="base 1", complete="true")["runId"]
    job(server, project, GREEN, runKey="base 2")
    head = job(server, project, junit(0, 1), runKey="head", branch="topic", commit="c9")
    assert head["gateStatus"] == "PASSED", "the complete baseline has the same failure"
    verdict = server.get(f"{API}/runs/{head['runId']}/quality-gate").json
    assert verdict["baselineRunId"] == whole


# Flags


@pytest.mark.parametrize("order", [("unit", "ui"), ("ui", "unit")])
def test_a_commit_passes_if_the_newest_run_of_each_flag_does(
    server: Server, project: str, order: Sequence[str]
) -> None:
    reports = {"unit": GREEN, "ui": junit(0, 1)}
    ids = {flag: job(server, project, reports[flag], runKey=f"{project} {flag}", flag=flag)["runId"] for flag in order}
    found = gate(server, project, commit="c1")
    assert (found["status"], found["runId"], found["flag"]) == ("FAILED", ids[order[-1]], order[-1])
    assert [(flag["flag"], flag["runId"], flag["passed"]) for flag in found["flags"]] == [
        ("ui", ids["ui"], False), ("unit", ids["unit"], True),
    ]  # fmt: skip
    assert {rule["flag"] for rule in found["rules"]} == {"unit", "ui"}
    assert gate(server, project, commit="c1", flag="unit")["status"] == "PASSED"
    assert gate(server, project, branch="main")["status"] == "FAILED"


def test_upload_and_verdict_of_a_run_are_about_all_of_the_commit_so_far(server: Server, project: str) -> None:
    red = job(server, project, junit(0, 1), runKey=f"{project} ui", flag="ui")
    green = job(server, project, GREEN, runKey=f"{project} unit", flag="unit", complete="true")
    assert (red["gateStatus"], green["gateStatus"]) == ("FAILED", "FAILED")
    path = f"{API}/runs/{green['runId']}/quality-gate"
    assert (server.get(path).json["status"], server.get(f"{path}?commit=true").json["status"]) == ("PASSED", "FAILED")
    body = {"project": project, "runKey": f"{project} unit"}
    assert send(server, "POST", f"{API}/runs/finish", body).json["gateStatus"] == "FAILED"
    fixed = job(server, project, GREEN, runKey=f"{project} ui again", flag="ui")
    assert fixed["gateStatus"] == "PASSED"
    assert server.get(f"{path}?commit=true").json["status"] == "PASSED"
    assert gate(server, project, commit="c1")["status"] == "PASSED"
    assert server.get(f"{path}?commit=perhaps").status == 400


def test_without_aggregate_flags_the_newest_run_decides(serve: Serve) -> None:
    server = serve(tracker={"quality-gate": {"aggregate-flags": False}})
    job(server, "p", junit(0, 1), runKey="ui", flag="ui")
    job(server, "p", GREEN, runKey="unit", flag="unit")
    assert gate(server, "p", commit="c1")["status"] == "PASSED"


def carry_forward_server(serve: Serve, **settings: Any) -> Server:
    return serve(
        tracker={"quality-gate": {"carry-forward-flags": ["unit"], "fail-on-missing-coverage": True, **settings}}
    )


def upload_coverage(server: Server, **texts: str) -> Any:
    parts = [("junit", GREEN), ("jacoco", jacoco({"A.java": {1: True, 2: False}})), *texts.items()]
    return upload(server, ("project", "p"), *parts)


def test_coverage_of_a_listed_flag_is_carried_forward_and_marked(serve: Serve) -> None:
    server = carry_forward_server(serve)
    old_run = upload_coverage(server, flag="unit", branch="main", commit="old")["runId"]
    upload_coverage(server, flag="other", branch="main", commit="old")
    upload(server, ("project", "p"), ("junit", GREEN), ("flag", "ui"), ("branch", "topic"), ("commit", "new"))
    found = gate(server, "p", commit="new")
    carried, own = sorted(found["flags"], key=lambda flag: flag["carriedFrom"] is None)
    assert (carried["flag"], carried["runId"], carried["passed"], carried["lineCoveragePct"]) == (
        "unit",
        None,
        None,
        50.0,
    )
    assert (carried["carriedFrom"]["runId"], carried["carriedFrom"]["commit"]) == (old_run, "old")
    assert (own["flag"], own["passed"]) == ("ui", True), "it is a rule of the commit"
    assert found["status"] == "PASSED", "carried-forward coverage counts"
    assert found["coverage"] == {"covered": 1, "missed": 1, "pct": 50.0, "flags": ["unit"]}
    assert [rule for rule in found["rules"] if rule["name"] == "missing-coverage"] == [
        {
            "name": "missing-coverage", "passed": True, "flag": None,
            "detail": "coverage of the flag unit is carried forward",
        }
    ]  # fmt: skip


def test_carried_coverage_of_a_flag_that_is_not_named_is_missing(serve: Serve) -> None:
    server = carry_forward_server(serve, **{"carry-forward-flags": ["*"]})
    upload_coverage(server, flag="unit", branch="main", commit="old")
    upload(server, ("project", "p"), ("junit", GREEN), ("flag", "ui"), ("branch", "main"), ("commit", "new"))
    found = gate(server, "p", commit="new")
    assert (found["status"], found["coverage"]["flags"]) == ("FAILED", ["unit"])


def test_a_flag_that_lost_its_coverage_does_not_get_it_carried(serve: Serve) -> None:
    server = carry_forward_server(serve)
    upload_coverage(server, flag="unit", branch="main", commit="old")
    upload(server, ("project", "p"), ("junit", GREEN), ("flag", "unit"), ("branch", "main"), ("commit", "new"))
    found = gate(server, "p", commit="new")
    assert (found["status"], found["coverage"]) == ("FAILED", None)


def test_coverage_of_a_commit_is_the_union_of_its_flags(serve: Serve) -> None:
    server = serve(tracker={"quality-gate": {"min-line-coverage": 70}})

    def post(commit: str, flag: str, lines: str) -> None:
        report = jacoco({"A.java": {number: letter == "x" for number, letter in enumerate(lines, 1)}})
        parts = {"flag": flag, "commit": commit, "branch": "main"}
        upload(server, ("project", "p"), ("junit", GREEN), ("jacoco", report), *parts.items())

    post("one", "unit", "xx..")
    assert gate(server, "p", commit="one")["status"] == "FAILED"
    post("one", "e2e", ".xx.")
    found = gate(server, "p", commit="one")
    assert found["coverage"] == {"covered": 3, "missed": 1, "pct": 75.0, "flags": ["e2e", "unit"]}
    assert (found["status"], [flag["passed"] for flag in found["flags"]]) == ("PASSED", [True, True])
    assert found["rules"][0] == {
        "name": "min-coverage", "passed": True, "detail": "75.0% line coverage (minimum 70.0%)", "flag": None,
    }  # fmt: skip
    assert gate(server, "p", commit="one", flag="unit")["status"] == "FAILED", "one flag is judged alone"
    post("two", "unit", "xx..")
    post("two", "e2e", ".x..")
    found = gate(server, "p", commit="two")
    assert [(rule["name"], rule["passed"], rule["flag"]) for rule in found["rules"]] == [
        ("min-coverage", False, None), ("coverage-drop", False, None), ("new-failures", True, "e2e"),
        ("new-failures", True, "unit"),
    ]  # fmt: skip
    assert found["coverageDelta"] == -25.0
    assert [flag["passed"] for flag in found["flags"]] == [False, False], "the coverage of the commit fails them all"


def test_carried_coverage_expires(serve: Serve) -> None:
    server = carry_forward_server(serve, **{"carry-forward-max-age": "1h"})
    old_run = upload_coverage(server, flag="unit", branch="main", commit="old")["runId"]
    with records.store_of(server):
        made = Run.get_by_id(old_run)
        Run.update(created_at=made.created_at - 2 * 3600 * records.SECOND).execute()
    upload(server, ("project", "p"), ("junit", GREEN), ("flag", "ui"), ("branch", "main"), ("commit", "new"))
    found = gate(server, "p", commit="new")
    assert [flag["flag"] for flag in found["flags"]] == ["ui"]
    assert found["status"] == "FAILED"


def test_coverage_of_a_later_run_is_not_carried_back(serve: Serve) -> None:
    server = carry_forward_server(serve)
    upload(server, ("project", "p"), ("junit", GREEN), ("flag", "ui"), ("branch", "main"), ("commit", "old"))
    before = gate(server, "p", commit="old")
    assert before["status"] == "FAILED"
    upload_coverage(server, flag="unit", branch="main", commit="new")
    assert gate(server, "p", commit="old") == before


def test_gate_fails_without_tests_if_fail_on_no_tests_is_set(serve: Serve) -> None:
    server = serve(tracker={"quality-gate": {"fail-on-no-tests": True}})
    upload(server, ("project", "p"), ("junit", "<testsuites/>"), ("commit", "c1"))
    found = gate(server, "p", commit="c1")
    (rule,) = [rule for rule in found["rules"] if not rule["passed"]]
    assert (rule["name"], rule["detail"]) == ("no-tests", "no tests were reported")


# Settings of a project


def test_settings_are_changed_by_patch_and_null_inherits(server: Server, project: str) -> None:
    job(server, project, GREEN)
    with records.store_of(server):
        made, owner = records.ensure_project(project), records.create_user(project.replace(" ", "-"))
        records.add_member(made, owner, "OWNER")
        token = records.bearer(owner)
    path = f"{API}/projects/{made.id}/settings"
    new = {
        "failOnNoTests": True, "carryForwardFlags": ["a", "b"], "minLineCoverage": 81.5, "aggregateFlags": False,
        "requiredFlags": ["unit", "ui"], "maxTestDropPct": 12.5, "failOnAnyFailure": True,
    }  # fmt: skip
    answer = send(server, "PATCH", path, new, **token)
    assert answer.status == 200, answer
    assert {name: answer.json["qualityGate"][name] for name in new} == new
    cleared = send(server, "PATCH", path, dict.fromkeys(new), **token).json["qualityGate"]
    assert [cleared[name] for name in new] == [False, [], None, True, [], None, False]
    for bad in (
        {"minLineCoverage": 101}, {"failOnNoTests": 1}, {"carryForwardFlags": ["a,b"]}, {"minPatchLines": 1.5},
        {"requiredFlags": [""]}, {"maxTestDropPct": -1}, {"failOnAnyFailure": "yes"},
    ):  # fmt: skip
        refused = send(server, "PATCH", path, bad, **token)
        assert check_problem(refused, 400, path, has_timestamp=False)["detail"].startswith(next(iter(bad)))
    assert "nonsense" in send(server, "PATCH", path, {"nonsense": 1}, **token).json["detail"]
    assert send(server, "PATCH", path, new).status == 401
