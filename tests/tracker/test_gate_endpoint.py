"""`GET /api/v1/gate`: selection of the run, and responses."""

from __future__ import annotations

from collections.abc import Iterator
from urllib.parse import quote

import http_checks
import pytest
import records
from conftest import Answer, Server
from records import FAILED, NOW, PASSED

from models.tracker.tables import Project

FIELDS = [
    "project", "branch", "commit", "flag", "runId", "status", "passed", "coverageDelta", "rules", "runPath", "complete",
    "patchCoveragePct", "flags", "baseline", "coverage",
]  # fmt: skip


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with http_checks.running_server(tmp_path_factory.mktemp("gate")) as one, records.store_of(one):
        yield one


@pytest.fixture
def project(server: Server, request: pytest.FixtureRequest) -> Project:
    return records.create_project(request.node.name)


def get_gate(server: Server, project: Project, query: str) -> Answer:
    return server.get(f"/api/v1/gate?project={quote(project.name, safe='')}&{query}")


def gate_run_id(server: Server, project: Project, query: str) -> int:
    answer = get_gate(server, project, query)
    assert answer.status == 200, answer
    return int(answer.json["runId"])


def test_verdict_has_the_specified_fields_in_order(server: Server, project: Project) -> None:
    records.create_run(project, coverage=(80, 20))
    run = records.create_run(project, {"c.A a": FAILED}, coverage=(70, 30), branch="x", commit_sha="abc", flag="unit")
    base = records.create_run(project, coverage=(80, 20), flag="unit", created_at=NOW)
    baseline = {"runId": base.id, "commit": None, "branch": "main", "reason": "BRANCH", "behind": 0}
    answer = get_gate(server, project, "commit=abc")
    outcome = http_checks.json_body(answer)
    assert list(outcome) == FIELDS
    assert outcome == {
        "project": project.name, "branch": "x", "commit": "abc", "flag": "unit", "runId": run.id, "status": "FAILED",
        "passed": False, "coverageDelta": -10.0,
        "rules": [
            {"name": "coverage-drop", "passed": False,
             "detail": "70.0% vs baseline 80.0% (drop 10.0pp, max 1.0pp)", "flag": None},
            {"name": "new-failures", "passed": False, "detail": "1 new failure(s): c.A a", "flag": "unit"},
        ],
        "runPath": f"/runs/{run.id}", "complete": True, "patchCoveragePct": None,
        "flags": [
            {"flag": "unit", "runId": run.id, "state": "COMPLETE", "passed": False, "lineCoveragePct": 70.0,
             "carriedFrom": None, "baseline": baseline},
        ],
        "baseline": baseline, "coverage": {"covered": 70, "missed": 30, "pct": 70.0, "flags": ["unit"]},
    }  # fmt: skip
    assert server.get(outcome["runPath"]).status == 200


def test_a_shell_client_finds_the_verdict_by_its_text(server: Server, project: Project) -> None:
    records.create_run(project, {"c.A a": PASSED})
    text = get_gate(server, project, "branch=main").text
    assert '"status":"PASSED"' in text
    assert text.index('"passed":true') < text.index('"rules"')


def test_a_run_without_branch_commit_or_coverage_has_null_there(server: Server, project: Project) -> None:
    records.create_run(project, branch=None, commit_sha="only")
    outcome = get_gate(server, project, "commit=only").json
    assert (outcome["branch"], outcome["coverageDelta"]) == (None, None)
    records.create_run(project)
    assert get_gate(server, project, "branch=main").json["commit"] is None


def test_commit_takes_precedence_over_the_branch(server: Server, project: Project) -> None:
    of_commit = records.create_run(project, branch="x", commit_sha="abc")
    records.create_run(project, branch="y", commit_sha="def")
    assert gate_run_id(server, project, "commit=abc&branch=y") == of_commit.id
    assert get_gate(server, project, "commit=none&branch=y").status == 404


def test_newest_run_is_judged_and_ties_are_broken_by_id(server: Server, project: Project) -> None:
    runs = [records.create_run(project, created_at=at, commit_sha="abc") for at in (NOW + 5, NOW + 9, NOW + 9, NOW + 1)]
    assert gate_run_id(server, project, "branch=main") == runs[2].id
    assert gate_run_id(server, project, "commit=abc") == runs[2].id


def test_without_a_flag_any_matches(server: Server, project: Project) -> None:
    unit = records.create_run(project, flag="unit")
    default = records.create_run(project)
    assert gate_run_id(server, project, "branch=main") == default.id
    assert gate_run_id(server, project, "branch=main&flag=unit") == unit.id
    assert gate_run_id(server, project, "branch=main&flag=default") == default.id
    assert get_gate(server, project, "branch=main&flag=other").status == 404


@pytest.mark.parametrize("blank", ["", "%20", "%20%09"])
def test_blank_parameters_count_as_absent(server: Server, blank: str) -> None:
    project = records.create_project(f"blanks-{quote(blank)}-")
    run = records.create_run(project, commit_sha="abc")
    assert gate_run_id(server, project, f"commit={blank}&branch=main&flag={blank}") == run.id
    assert get_gate(server, project, f"commit={blank}&branch={blank}").status == 400
    assert server.get(f"/api/v1/gate?project={blank}&branch=main").status == 400


def test_parameters_are_trimmed(server: Server, project: Project) -> None:
    run = records.create_run(project, commit_sha="abc")
    assert gate_run_id(server, project, "commit=%20abc%20") == run.id


@pytest.mark.parametrize("query", ["", "?project=nothing", "?commit=abc", "?branch=main", "?project=&commit=&branch="])
@pytest.mark.parametrize("prefix", ["", "/tracker"])
def test_missing_parameters_are_400(server: Server, prefix: str, query: str) -> None:
    path = f"{prefix}/api/v1/gate"
    http_checks.check_problem(server.get(path + query), 400, path, has_timestamp=False)


@pytest.mark.parametrize("prefix", ["", "/tracker"])
def test_unknown_project_or_branch_is_404(server: Server, project: Project, prefix: str) -> None:
    path = f"{prefix}/api/v1/gate"
    http_checks.check_problem(server.get(f"{path}?project=nothing&branch=main"), 404, path, has_timestamp=False)
    name = quote(project.name, safe="")
    http_checks.check_problem(server.get(f"{path}?project={name}&branch=main"), 404, path, has_timestamp=False)


def test_names_are_compared_exactly(server: Server, project: Project) -> None:
    records.create_run(project, commit_sha="abc")
    assert server.get(f"/api/v1/gate?project={project.name.upper()}&branch=main").status == 404
    assert get_gate(server, project, "branch=Main").status == 404
    assert get_gate(server, project, "commit=ab").status == 404


@pytest.mark.parametrize("query", ["project=a%00&branch=b", "project=a&branch=%ff"])
def test_parameters_that_are_not_valid_text_are_400(server: Server, query: str) -> None:
    assert server.get(f"/api/v1/gate?{query}").status == 400


def test_a_verdict_is_computed_when_it_is_read(server: Server, project: Project) -> None:
    records.create_run(project, {"c.A a": FAILED})
    assert not get_gate(server, project, "branch=main").json["passed"]
    Project.update(fail_on_new_failures=False).where(Project.id == project.id).execute()
    assert get_gate(server, project, "branch=main").json["passed"]


def test_head_answers_without_a_body_and_other_methods_are_405(server: Server, project: Project) -> None:
    records.create_run(project)
    answer = server.ask("HEAD", f"/api/v1/gate?project={project.name}&branch=main")
    assert (answer.status, answer.body) == (200, b"")
    refused = server.post("/api/v1/gate")
    assert (refused.status, refused.headers["Allow"]) == (405, "GET, HEAD, OPTIONS")


def test_a_branch_is_about_its_newest_commit_and_its_own_runs(server: Server, project: Project) -> None:
    red = records.create_run(project, {"c.A a": FAILED}, commit_sha="c2")
    records.create_run(project, {"c.A a": PASSED}, commit_sha="c2", branch="release")
    answer = get_gate(server, project, "branch=main").json
    assert (answer["runId"], answer["status"]) == (red.id, "FAILED")
    assert get_gate(server, project, "commit=c2&branch=main").json["runId"] == red.id
    assert get_gate(server, project, "commit=c2").json["status"] == "PASSED"


def test_an_old_commit_that_is_uploaded_again_is_not_the_newest(server: Server, project: Project) -> None:
    records.create_run(project, {"c.A a": PASSED}, commit_sha="old")
    red = records.create_run(project, {"c.A a": FAILED}, commit_sha="new")
    records.create_run(project, {"c.A a": PASSED}, commit_sha="old")
    assert gate_run_id(server, project, "branch=main") == red.id


def test_the_branch_of_another_commit_is_named_by_the_verdict(server: Server, project: Project) -> None:
    run = records.create_run(project, commit_sha="abc", branch="x")
    answer = get_gate(server, project, "commit=abc&branch=main").json
    assert (answer["runId"], answer["branch"]) == (run.id, "x")


def test_a_commit_may_be_given_by_its_first_digits(server: Server, project: Project) -> None:
    commits = ("9fceb02d0ae598e95dc970b74767f19372d61af8", "9fceb02aaae598e95dc970b74767f19372d61af8")
    first, second = (records.create_run(project, commit_sha=commit) for commit in commits)
    assert gate_run_id(server, project, "commit=9FCEB02D") == first.id
    assert gate_run_id(server, project, f"commit={commits[1].upper()}") == second.id
    answer = get_gate(server, project, "commit=9fceb02")
    assert answer.status == 409
    assert all(commit in answer.json["detail"] for commit in commits)
    assert get_gate(server, project, "commit=9fceb0").status == 404
    assert get_gate(server, project, "commit=9fceb03").status == 404


def test_runs_of_forks_are_not_on_a_branch_that_has_others(server: Server, project: Project) -> None:
    own = records.create_run(project, commit_sha="a")
    records.create_run(project, {"c.A a": FAILED}, commit_sha="b", head_repo="someone/shop")
    assert gate_run_id(server, project, "branch=main") == own.id
    fork = records.create_run(project, commit_sha="c", branch="patch-1", head_repo="someone/shop")
    assert gate_run_id(server, project, "branch=patch-1") == fork.id
