"""Commits and pull requests: lists and details with all flags, as JSON and as pages."""

from __future__ import annotations

from typing import Any
from urllib.parse import quote

import pytest
import records
from conftest import Serve, Server
from http_checks import check_problem
from uploads import jacoco, junit, upload

from models.tracker.tables import Run

pytest_plugins = ["shared_server"]

API = "/api/v1"
SHAS = [f"{letter * 7}1234" for letter in "abcdef"]
REPOSITORY = "https://github.com/o/r"


def post(server: Server, project: str, commit: str, flag: str, *reports: tuple[str, str | bytes], **parts: str) -> Any:
    known = {"project": project, "commit": commit, "flag": flag, "branch": "main", "repoUrl": REPOSITORY, **parts}
    return upload(server, *(reports or [("junit", junit(2))]), *known.items())


def get(server: Server, run: Any, path: str) -> Any:
    answer = server.get(f"{API}/projects/{run['projectId']}/{path}")
    assert answer.status == 200, answer
    return answer.json


def page(server: Server, run: Any, path: str) -> str:
    answer = server.get(f"/projects/{run['projectId']}/{path}", Accept="text/html")
    assert answer.status == 200, answer
    return answer.text


def test_commits_are_listed_once_with_the_verdict_on_all_flags(server: Server, project: str) -> None:
    post(server, project, SHAS[0], "unit")
    post(server, project, SHAS[1], "unit")
    run = post(server, project, SHAS[1], "ui", ("junit", junit(1, 1)))
    post(server, project, SHAS[2], "unit", branch="topic")
    items = get(server, run, "commits")["items"]
    assert [(one["commit"], one["status"], one["tests"], one["failures"]) for one in items] == [
        (SHAS[2], "PASSED", 2, 0), (SHAS[1], "FAILED", 4, 1), (SHAS[0], "PASSED", 2, 0),
    ]  # fmt: skip
    assert [(flag["flag"], flag["passed"]) for flag in items[1]["flags"]] == [("ui", False), ("unit", True)]
    assert items[0]["url"] == f"{REPOSITORY}/commit/{SHAS[2]}"
    assert [one["commit"] for one in get(server, run, "commits?branch=main")["items"]] == [SHAS[1], SHAS[0]]
    for one in items:
        verdict = server.get(f"{API}/gate?project={project.replace(' ', '%20')}&commit={one['commit']}").json
        assert {name: verdict[name] for name in ("status", "complete", "flags", "coverage", "runId")} == {
            name: one[name] for name in ("status", "complete", "flags", "coverage", "runId")
        }
    shown = page(server, run, "commits")
    assert [shown.count(f'<code title="{sha}">') for sha in SHAS[:4]] == [1, 1, 1, 0]
    assert "No commit on nothing" in page(server, run, "commits?branch=nothing")


def test_commits_are_paginated(server: Server, project: str) -> None:
    run, *_ = [post(server, project, sha, "unit") for sha in (*SHAS, SHAS[0])]
    found, cursor = [], ""
    while cursor is not None:
        part = get(server, run, f"commits?limit=2&cursor={cursor}")
        found += [one["commit"] for one in part["items"]]
        cursor = part["nextCursor"]
    assert found == [SHAS[0], *reversed(SHAS[1:])], "a commit that was run again comes once, by its newest run"


def test_a_commit_has_its_flags_baseline_attempts_and_what_is_new(server: Server, project: str) -> None:
    covered = ("jacoco", jacoco({"A.java": {1: True, 2: False}}))
    base = post(server, project, SHAS[0], "unit", ("junit", junit(3)), covered)
    known = {"runKey": f"{project} key", "jobKey": "unit"}
    post(server, project, SHAS[1], "unit", ("junit", junit(1, 2)), **known, attempt="1")
    diff = ("diff", f'{{"base":"{SHAS[0]}","head":"{SHAS[1]}","files":{{"com/x/A.java":[[1,2]]}}}}')
    run = post(server, project, SHAS[1], "unit", ("junit", junit(2, 1)), covered, diff, **known, attempt="2")
    found = get(server, run, f"commits/{SHAS[1][:7]}")
    assert (found["commit"], found["status"], found["branches"]) == (SHAS[1], "FAILED", ["main"])
    assert found["baseline"]["runId"] == base["runId"]
    assert found["compared"] == f"Compared with {SHAS[0][:7]} of main, where its branch begins"
    assert found["compareUrl"] == f"{REPOSITORY}/compare/{SHAS[0]}...{SHAS[1]}"
    (changes,) = found["changes"]
    assert changes["newFailures"] == {"named": [{"className": "A", "name": "c2"}], "count": 1}
    assert [(one["attempt"], one["superseded"]) for one in changes["attempts"]] == [(1, True), (2, False)]
    assert (found["patch"]["covered"], found["patch"]["missed"], found["patch"]["fileCount"]) == (1, 1, 1)
    shown = page(server, run, f"commits/{SHAS[1]}")
    for text in ("What is new in unit", "Newly failing in unit: 1", "A c2", "Coverage of changed lines", "all"):
        assert text in shown
    assert f"/compare/{SHAS[0]}...{SHAS[1]}" in shown
    assert f"/projects/{run['projectId']}/commits/{SHAS[1]}" in page_of_run(server, run)


def page_of_run(server: Server, run: Any) -> str:
    return str(server.get(run["runPath"], Accept="text/html").text)


def test_the_page_of_a_commit_says_where_carried_coverage_is_from(serve: Serve) -> None:
    server = serve(tracker={"quality-gate": {"carry-forward-flags": ["unit"]}})
    covered = ("jacoco", jacoco({"A.java": {1: True, 2: False}}))
    post(server, "p", SHAS[0], "unit", ("junit", junit(1)), covered)
    run = post(server, "p", SHAS[1], "ui", ("junit", junit(1)), ("jacoco", jacoco({"B.java": {1: True}})))
    with records.store_of(server):
        day = 86_400 * records.SECOND
        Run.update(created_at=Run.created_at - 3 * day).where(Run.commit_sha == SHAS[0]).execute()
    assert f"ui; unit carried from {SHAS[0][:7]}, 3 days" in page(server, run, f"commits/{SHAS[1]}")
    assert get(server, run, f"commits/{SHAS[1]}")["coverage"]["flags"] == ["ui", "unit"]


def test_pull_requests_are_judged_by_their_newest_commit(server: Server, project: str) -> None:
    post(server, project, SHAS[0], "unit")
    facts = {"branch": "fork:topic", "prNumber": "7", "headRepo": "fork/r", "baseBranch": "main"}
    post(server, project, SHAS[1], "unit", **facts)
    post(server, project, SHAS[2], "unit", ("junit", junit(1, 1)), **facts)
    run = post(server, project, SHAS[1], "unit", **facts)
    post(server, project, SHAS[3], "unit", branch="other", prNumber="9")
    items = get(server, run, "pulls")["items"]
    assert [(one["number"], one["head"]["commit"], one["head"]["status"], one["headRepo"]) for one in items] == [
        (9, SHAS[3], "PASSED", None), (7, SHAS[2], "FAILED", "fork/r"),
    ]  # fmt: skip
    assert items[1]["url"] == f"{REPOSITORY}/pull/7"
    found = get(server, run, "pulls/7")
    assert (found["head"]["commit"], found["head"]["status"]) == (SHAS[2], "FAILED")
    assert [one["commit"] for one in found["commits"]] == [SHAS[1], SHAS[2]], "that with the newest run first"
    shown = page(server, run, "pulls/7")
    assert "Commits of this pull request" in shown
    assert f"{REPOSITORY}/pull/7" in shown
    assert "from fork/r" in page(server, run, "pulls")


def test_the_changed_files_with_the_most_missed_lines_come_first(server: Server, project: str) -> None:
    lines = {f"A{number:03}.java": {1: True} for number in range(105)} | {"Z.java": {1: False, 2: False}}
    files = ",".join(f'"com/x/{name}":[[1,2]]' for name in lines)
    diff = ("diff", f'{{"base":"{SHAS[1]}","head":"{SHAS[0]}","files":{{{files}}}}}')
    run = post(server, project, SHAS[0], "unit", ("junit", junit(1)), ("jacoco", jacoco(lines)), diff)
    found = get(server, run, f"commits/{SHAS[0]}")["patch"]
    assert (found["fileCount"], len(found["files"]), found["files"][0]["path"]) == (106, 100, "com/x/Z.java")
    shown = page(server, run, f"commits/{SHAS[0]}")
    assert "those with the most missed lines first: 100 of 106" in shown
    assert "com/x/Z.java" in shown


def test_a_pull_request_is_judged_on_its_own_branch(server: Server, project: str) -> None:
    facts = {"branch": "topic", "prNumber": "7", "baseBranch": "main"}
    post(server, project, SHAS[0], "unit", ("junit", junit(1, 1)), **facts)
    post(server, project, SHAS[0], "ui", **facts)
    run = post(server, project, SHAS[0], "unit", branch="other")
    (pull,) = get(server, run, "pulls")["items"]
    found = get(server, run, "pulls/7")
    for one in (pull["head"], found["head"], *found["commits"]):
        assert (one["status"], [flag["passed"] for flag in one["flags"]]) == ("FAILED", [True, False])
    assert get(server, run, f"commits/{SHAS[0]}")["status"] == "PASSED", "the newest of each flag on any branch"


@pytest.mark.parametrize("commit", ["a%2Fb", "a%b", "a b"])
def test_the_page_of_a_commit_of_any_name(server: Server, project: str, commit: str) -> None:
    run = post(server, project, commit, "unit")
    quoted = quote(commit, safe="")
    assert get(server, run, f"commits/{quoted}")["commit"] == commit
    assert "Commit <code>" in page(server, run, f"commits/{quoted}")


@pytest.mark.parametrize("path", ["commits/0123456789", "commits/none", "pulls/404"])
def test_an_unknown_commit_or_pull_request_is_404(server: Server, project: str, path: str) -> None:
    run = post(server, project, SHAS[0], "unit")
    whole = f"{API}/projects/{run['projectId']}/{path}"
    check_problem(server.get(whole), 404, whole, has_timestamp=False)
    shown = server.get(f"/projects/{run['projectId']}/{path}", Accept="text/html")
    assert (shown.status, shown.headers["Location"].startswith("/login")) == (302, True), "as for any unknown page"


def test_an_ambiguous_commit_is_409(server: Server, project: str) -> None:
    run, _ = [post(server, project, f"abcdef0{end}", "unit") for end in ("1", "2")]
    path = f"{API}/projects/{run['projectId']}/commits/abcdef0"
    assert "abcdef01, abcdef02" in check_problem(server.get(path), 409, path, has_timestamp=False)["detail"]


def test_a_project_without_commits_and_pull_requests_says_so(server: Server, project: str) -> None:
    run = upload(server, ("project", project), ("junit", junit(1)))
    assert get(server, run, "commits") == get(server, run, "pulls") == {"items": [], "nextCursor": None}
    assert "no run names its commit" in page(server, run, "commits")
    assert "No run names its pull request" in page(server, run, "pulls")
