"""Statuses of commits on forges: when they are sent, with what, to which repository, and what becomes of answers."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from typing import Any

import http_checks
import pytest
import records
from chart_servers import WebServer
from conftest import Answer, Serve, Server, wait_for
from forge_double import TOKEN
from receivers import until_states
from report_double import REPOSITORIES, EveryPage, ReportDouble, forges
from uploads import jacoco, junit, post

from models.json_format import rfc3339

pytest_plugins = ["forge_fixtures"]

API = "/api/v1"
PUBLIC_URL = "https://pilothouse.example"


@pytest.fixture
def double(web: WebServer) -> Iterator[ReportDouble]:
    double = ReportDouble(web)
    yield double
    assert double.differences == [], "requests differ from the descriptions of the APIs"


@pytest.fixture(scope="module")
def server(web: WebServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    tracker = {"forges": forges(web), "forge-reports": {"debounce": "0s", "comment": "off"}}
    settings = {"public-url": PUBLIC_URL, "outbound": {"timeout": "30s"}}
    with http_checks.running_server(tmp_path_factory.mktemp("reports"), tracker=tracker, server=settings) as server:
        yield server


class Reported:
    """A project with a confirmed repository, its ADMIN, and uploads to it."""

    def __init__(self, server: Server, double: ReportDouble, name: str, kind: str = "github", **settings: Any) -> None:
        self.server, self.name = server, name
        self.double = double
        self.repo = REPOSITORIES[kind].format(port=double.web.port)
        with records.store_of(server):
            self.id = records.create_project(name).id
            self.admin = records.bearer(records.create_user(f"admin-{self.id}", "ADMIN"))
        assert self.patch(forgeRepo=self.repo, **settings).status == 200

    def patch(self, **settings: Any) -> Answer:
        path, headers = f"{API}/projects/{self.id}/settings", {"Content-Type": "application/json", **self.admin}
        return self.server.ask("PATCH", path, json.dumps(settings).encode(), headers)

    def upload(self, commit: str, *reports: tuple[str, str | bytes], by: Any = None, **parts: str) -> Any:
        texts = {"project": self.name, "branch": "topic", "commit": commit, "repoUrl": self.repo, **parts}
        found = [(name, value) for name, value in texts.items() if value]
        answer = post(self.server, *found, *(reports or [("junit", junit(3))]), **(self.admin if by is None else by))
        assert answer.status == 201, answer
        return answer.json

    def ask(self, method: str, path: str, **body: Any) -> Answer:
        headers = {"Content-Type": "application/json", **self.admin}
        return self.server.ask(method, f"{API}{path}", json.dumps(body).encode() if body else None, headers)

    def quarantine(self, name: str, **more: Any) -> bool:
        fields = {"className": "A", "name": name, "status": "QUARANTINED", **more}
        return self.ask("POST", f"/projects/{self.id}/flaky/status", **fields).status == 202

    def outbox(self) -> list[dict[str, Any]]:
        answer = self.server.get(f"{API}/outbox?kind=forge-status&projectId={self.id}", **self.admin)
        assert answer.status == 200, answer
        return list(answer.json["items"])

    def until_outbox(self, *states: str) -> list[dict[str, Any]]:
        """Waits until the messages of the project, newest first, have these states."""
        return until_states(self.outbox, *states)

    def until_quiet(self) -> None:
        """Waits until no message of the project waits."""

        def is_quiet() -> bool:
            answer = self.server.get(f"{API}/outbox?state=PENDING&projectId={self.id}", **self.admin)
            return list(answer.json["items"]) == []

        wait_for(is_quiet)

    def forge(self) -> Any:
        return self.server.get(f"{API}/projects/{self.id}/forge", **self.admin).json


def sha(digit: str) -> str:
    return digit * 40


@pytest.mark.parametrize("kind", REPOSITORIES)
def test_a_run_sets_the_status_of_its_commit(server: Server, double: ReportDouble, kind: str) -> None:
    project = Reported(server, double, f"status on {kind}", kind)
    reports = ("junit", junit(3)), ("jacoco", jacoco({"a.py": {1: True, 2: True, 3: False}}))
    facts = {"ciProvider": "gitlab", "runKey": "gitlab-4711", "complete": "true"} if kind == "gitlab" else {}
    run = project.upload(sha("a"), *reports, **facts)["runId"]
    ((_, commit, body),) = wait_for(lambda: double.statuses)
    name = "name" if kind == "gitlab" else "context"
    expected = {
        name: "pilothouse/gate",
        "state": "success",
        "description": "Gate passed: 3 passed, 0 failed; coverage 66.6%",
        "target_url": f"{PUBLIC_URL}/runs/{run}",
    }
    more = {"coverage": pytest.approx(200 / 3), "pipeline_id": 4711} if kind == "gitlab" else {}
    assert (commit, body) == (sha("a"), {**expected, **more})
    (row,) = project.until_outbox("DONE")
    assert (row["kind"], row["target"]) == (
        "forge-status", f"forge:{ {'github': 'hub', 'gitlab': 'lab', 'forgejo': 'tea'}[kind]}"
    )  # fmt: skip
    assert (row["title"], row["status"]) == ("status pilothouse/gate of aaaaaaa", 201)


def test_a_failed_gate_is_a_failure_with_its_rules_and_several_flags_lead_to_the_commit(
    server: Server, double: ReportDouble
) -> None:
    project = Reported(server, double, "failure", failOnAnyFailure=True, forgeReportsContext="ci/tests")
    project.upload(sha("b"), flag="unit")
    wait_for(lambda: double.contexts() == [("ci/tests", "success")])
    project.upload(sha("b"), ("junit", junit(5, failed=2)), flag="ui")
    wait_for(lambda: double.contexts()[1:] == [("ci/tests", "failure")])
    body = double.statuses[-1][2]
    assert body["description"] == "Gate failed: 8 passed, 2 failed; new-failures; no-failures"
    assert body["target_url"] == f"{PUBLIC_URL}/projects/{project.id}/commits/{sha('b')}"


@pytest.mark.parametrize(
    ("statuses", "expected"),
    [
        ("flags", {"pilothouse/gate/unit": "success", "pilothouse/gate/ui": "failure"}),
        ("both", {"pilothouse/gate": "failure", "pilothouse/gate/unit": "success", "pilothouse/gate/ui": "failure"}),
    ],
)
def test_each_flag_may_have_its_own_status(
    server: Server, double: ReportDouble, statuses: str, expected: dict[str, str]
) -> None:
    project = Reported(server, double, f"flags {statuses}", failOnAnyFailure=True, forgeReportsStatuses=statuses)
    project.upload(sha("c"), flag="unit")
    run = project.upload(sha("c"), ("junit", junit(failed=1)), flag="ui")["runId"]
    wait_for(lambda: dict(double.contexts()) == expected)
    (link,) = {body["target_url"] for _, _, body in double.statuses if body["context"] == "pilothouse/gate/ui"}
    assert link == f"{PUBLIC_URL}/runs/{run}"


def test_expected_uploads_are_pending_and_20_shards_of_3_flags_make_two_statuses_and_one_comment(
    server: Server, double: ReportDouble
) -> None:
    project = Reported(server, double, "shards", forgeReportsComment="always")
    shards = [(f"flag{number % 3}", str(number)) for number in range(20)]
    for flag, shard in shards:
        expected = {"expectedUploads": str(sum(one == flag for one, _ in shards)), "runKey": flag, "flag": flag}
        reports = ("junit", junit(1, prefix=f"s{shard}-"))
        project.upload(sha("d"), reports, jobKey=shard, prNumber="7", **expected)
        if shard == "0":
            wait_for(lambda: double.contexts() == [("pilothouse/gate", "pending")])
            assert double.statuses[0][2]["description"] == "Gate pending: waiting for more uploads"
    wait_for(lambda: double.contexts()[1:] == [("pilothouse/gate", "success")])
    assert double.statuses[-1][2]["description"] == "Gate passed: 20 passed, 0 failed"
    wait_for(lambda: double.comments)
    project.until_quiet()
    (written,) = double.writes
    assert "**Tests:** 20 passed, 0 failed" in written[2]


def test_a_run_that_is_closed_is_reported_without_another_upload(server: Server, double: ReportDouble) -> None:
    project = Reported(server, double, "closed")
    project.upload(sha("e"), expectedUploads="3", runKey="r")
    wait_for(lambda: double.contexts() == [("pilothouse/gate", "pending")])
    body = json.dumps({"project": "closed", "runKey": "r"}).encode()
    headers = {"Content-Type": "application/json", **project.admin}
    assert server.ask("POST", f"{API}/runs/finish", body, headers).status == 200
    wait_for(lambda: double.contexts()[1:] == [("pilothouse/gate", "failure")])
    assert double.statuses[-1][2]["description"] == "Gate failed: 3 passed, 0 failed; complete-run"


def test_a_commit_that_waits_for_a_required_flag_is_pending(server: Server, double: ReportDouble) -> None:
    project = Reported(server, double, "required", requiredFlags=["unit", "ui"])
    project.upload(sha("f"), flag="unit")
    wait_for(lambda: double.contexts() == [("pilothouse/gate", "pending")])
    assert double.statuses[0][2]["description"] == "Gate pending: waiting for ui"
    project.upload(sha("f"), flag="ui")
    wait_for(lambda: double.contexts()[1:] == [("pilothouse/gate", "success")])


def test_only_trusted_runs_of_the_confirmed_repository_are_reported(server: Server, double: ReportDouble) -> None:
    silent = Reported(server, double, "silent")
    silent.upload(sha("1"), by={})
    silent.upload(sha("2"), repoUrl=f"http://localhost:{double.web.port}/evil/cart")
    silent.upload(sha("3"), flag="unit")
    silent.upload("abcdef1")
    silent.upload("")
    wait_for(lambda: double.contexts() == [("pilothouse/gate", "success")])
    silent.upload(sha("3"), flag="ui", by={})  # one flag of the commit is anonymous now
    assert silent.patch(forgeReportsEnabled=False).status == 200
    silent.upload(sha("4"))
    other = Reported(server, double, "heard")
    other.upload(sha("5"))
    wait_for(lambda: double.contexts()[1:])
    assert [commit for _, commit, _ in double.statuses] == [sha("3"), sha("5")]
    (row,) = silent.outbox()
    assert row["state"] == "DONE"


@pytest.mark.parametrize(
    "repo", ["http://localhost.evil.example:{port}/shop/cart", "http://evil.example/localhost/cart", None]
)
def test_a_token_goes_to_no_other_host(server: Server, double: ReportDouble, repo: str | None) -> None:
    project = Reported(server, double, f"host {repo}")
    named = repo and repo.format(port=double.web.port)
    assert project.patch(forgeRepo=named).status == 200
    project.upload(sha("1"), repoUrl=named or project.repo)
    assert project.forge()["state"] == ("UNCONFIRMED" if repo is None else "UNKNOWN_HOST")
    other = Reported(server, double, f"after {repo}")
    other.upload(sha("2"))
    wait_for(lambda: double.statuses)
    assert ([commit for _, commit, _ in double.statuses], project.outbox()) == ([sha("2")], [])


def test_equal_content_is_not_sent_twice_and_changed_settings_report_anew(server: Server, double: ReportDouble) -> None:
    project = Reported(server, double, "anew", failOnNewFailures=False)
    project.upload(sha("6"), ("junit", junit(2, failed=1)))
    wait_for(lambda: double.contexts() == [("pilothouse/gate", "success")])
    assert project.patch(minPatchLines=3).status == 200
    rows = project.until_outbox("DONE", "DONE")
    assert (rows[0]["error"], rows[0]["status"]) == ("not sent: the forge has this status already", None)
    assert project.patch(failOnAnyFailure=True).status == 200
    wait_for(lambda: double.contexts()[1:] == [("pilothouse/gate", "failure")])
    path, headers = f"{API}/projects/{project.id}/flaky/status", {"Content-Type": "application/json", **project.admin}
    body = json.dumps({"className": "A", "name": "c2", "status": "QUARANTINED"}).encode()
    assert server.ask("POST", path, body, headers).status == 202
    wait_for(lambda: double.contexts()[2:] == [("pilothouse/gate", "success")])


def test_the_end_of_a_quarantine_is_reported_without_another_upload(server: Server, double: ReportDouble) -> None:
    project = Reported(server, double, "expiry", failOnAnyFailure=True)
    project.upload(sha("a"), ("junit", junit(2, failed=1)))
    wait_for(lambda: double.contexts() == [("pilothouse/gate", "failure")])
    assert project.quarantine("c2")
    wait_for(lambda: [state for _, state in double.contexts()][1:] == ["success"])
    wait_for(lambda: project.quarantine("c2", expiresAt=rfc3339(time.time_ns() // 1000 + 2_000_000)))
    wait_for(lambda: [state for _, state in double.contexts()][1:] == ["success", "failure"])


def test_a_quarantine_by_the_policy_is_reported(server: Server, double: ReportDouble) -> None:
    project = Reported(server, double, "policy", failOnAnyFailure=True)
    for failed in (0, 1):
        project.upload(sha("a"), ("junit", junit(30 - failed, failed=failed)))
    wait_for(lambda: double.contexts()[-1:] == [("pilothouse/gate", "failure")])
    assert project.patch(quarantineAfterFlaky=1).status == 200
    wait_for(lambda: double.contexts()[-1:] == [("pilothouse/gate", "success")])
    assert "quarantined" not in double.statuses[-1][2]["description"]


def test_a_deleted_run_is_reported(server: Server, double: ReportDouble) -> None:
    project = Reported(server, double, "deleted run", failOnAnyFailure=True)
    project.upload(sha("a"), flag="unit")
    run = project.upload(sha("a"), ("junit", junit(2, failed=1)), flag="ui")["runId"]
    wait_for(lambda: double.contexts()[-1:] == [("pilothouse/gate", "failure")])
    assert project.ask("DELETE", f"/runs/{run}").status == 204
    wait_for(lambda: double.contexts()[-1:] == [("pilothouse/gate", "success")])


def sections(web: WebServer, **tracker: Any) -> dict[str, Any]:
    reports = {"forges": forges(web), "forge-reports": {"debounce": "0s", "comment": "off"}}
    return {"tracker": {**reports, **tracker}, "server": {"public-url": PUBLIC_URL, "outbound": {"timeout": "30s"}}}


def test_a_start_with_another_gate_reports_anew_once(serve: Serve, web: WebServer, double: ReportDouble) -> None:
    lenient = {"fail-on-new-failures": False}
    server = serve(**sections(web, **{"quality-gate": lenient}))
    project = Reported(server, double, "gate")
    project.upload(sha("a"), ("junit", junit(2, failed=1)), branch="main")
    project.until_outbox("DONE")
    assert double.contexts() == [("pilothouse/gate", "success")]
    server.kill()
    server.configure(sections(web, **{"quality-gate": {**lenient, "fail-on-any-failure": True}}))
    server.start()
    wait_for(lambda: double.contexts()[1:] == [("pilothouse/gate", "failure")])
    project.until_outbox("DONE", "DONE")
    server.kill()
    server.start()
    project.upload(sha("b"), branch="main")
    wait_for(lambda: [commit for _, commit, _ in double.statuses][2:] == [sha("b")])
    assert len(project.outbox()) == 3, "the same settings report nothing anew"


def test_a_killed_server_reports_each_commit_once_or_twice_with_one_id(
    serve: Serve, web: WebServer, double: ReportDouble
) -> None:
    """Killed before, while and after the forge answers."""
    server = serve(**sections(web))
    project = Reported(server, double, "killed")
    begun, released = threading.Event(), threading.Event()

    def hold(handler: Any) -> Any:
        if sha("b") in handler.path:
            begun.set()
            released.wait(60)
        return double.reply(handler)

    double.web.pages = EveryPage(hold)
    begun_ids: dict[str, str] = {}
    for digit, moment in zip("abc", ("before", "while", "after"), strict=True):
        project.upload(sha(digit))
        if moment == "while":
            assert begun.wait(60)
            begun_ids = {row["title"]: row["messageId"] for row in project.outbox()}
        elif moment == "after":
            wait_for(lambda: sha("c") in [commit for _, commit, _ in double.statuses])
        server.kill()
        if moment == "while":
            released.set()
        server.start()
    titles = [f"status pilothouse/gate of {digit * 7}" for digit in "abc"]
    wait_for(lambda: {row["title"] for row in project.outbox() if row["state"] == "DONE"} == set(titles))
    rows = project.outbox()
    assert sorted(row["title"] for row in rows) == titles, "one message of each commit"
    assert {row["title"]: row["messageId"] for row in rows}.items() >= begun_ids.items()
    sent = [commit for _, commit, _ in double.statuses]
    assert set(sent) == {sha("a"), sha("b"), sha("c")}
    assert all(sent.count(commit) <= 2 for commit in set(sent))


def test_a_refused_token_pauses_the_reports_until_it_is_changed(server: Server, double: ReportDouble) -> None:
    double.tokens = {"another-token"}
    project = Reported(server, double, "refused")
    project.upload(sha("7"))
    (row,) = project.until_outbox("DEAD")
    assert row["error"] == 'the forge hub answered 401: {"message":"Bad credentials"}'
    found = project.forge()
    assert (found["state"], found["repository"]) == ("REFUSED", "shop/cart")
    assert found["reason"].startswith("the token was refused: the forge hub answered 401")
    seen = len(double.web.seen)
    project.upload(sha("8"))
    double.tokens.add(TOKEN)
    other = Reported(server, double, "not refused")
    other.upload(sha("9"))
    wait_for(lambda: double.statuses)
    assert len(double.web.seen) == seen + 1, "the project with the refused token is paused"
    assert project.patch(forgeToken="another-token").status == 200
    wait_for(lambda: {commit for _, commit, _ in double.statuses} == {sha("7"), sha("8"), sha("9")})
    assert project.forge()["state"] == "OK"
    assert TOKEN not in json.dumps(project.outbox())
    assert TOKEN not in server.log.read_text()


def test_a_retry_by_hand_ends_the_pause(server: Server, double: ReportDouble) -> None:
    double.answers = [(403, {"Content-Type": "application/json"}, b'{"message":"Resource not accessible"}')]
    project = Reported(server, double, "by hand")
    project.upload(sha("a"))
    (row,) = project.until_outbox("DEAD")
    project.upload(sha("b"))
    assert server.ask("POST", f"{API}/outbox/{row['id']}/retry", headers=project.admin).status == 202
    wait_for(lambda: {commit for _, commit, _ in double.statuses} == {sha("a"), sha("b")})
    assert project.forge()["state"] == "OK"


def test_a_forge_that_hangs_delays_no_upload(server: Server, double: ReportDouble) -> None:
    released, usual = threading.Event(), double.web.pages
    double.web.pages = {
        f"/api/v1/repos/shop/cart/statuses/{sha('c')}": lambda _: (201 + 0 * released.wait(60), {}, b"{}")
    }
    slow = Reported(server, double, "hangs", "forgejo")
    try:
        slow.upload(sha("c"))
        wait_for(lambda: double.web.seen)
        assert slow.upload(sha("d"))["gateStatus"] == "PASSED"
        assert slow.forge()["state"] == "OK"
    finally:
        double.web.pages = usual
        released.set()
    wait_for(lambda: sha("d") in [commit for _, commit, _ in double.statuses])


@pytest.mark.parametrize(
    ("settings", "field"),
    [
        ({"forgeReportsStatuses": "all"}, "forgeReportsStatuses"),
        ({"forgeReportsComment": "never"}, "forgeReportsComment"),
        ({"forgeReportsPublish": "none"}, "forgeReportsPublish"),
        ({"forgeReportsUntrusted": True}, "forgeReportsUntrusted"),
        ({"forgeReportsEnabled": "yes"}, "forgeReportsEnabled"),
        ({"forgeReportsContext": ""}, "forgeReportsContext"),
        ({"forgeReportsContext": "x" * 101}, "forgeReportsContext"),
        ({"forgeReportsContext": "a\nb"}, "forgeReportsContext"),
    ],
)
def test_a_bad_setting_is_named(server: Server, double: ReportDouble, settings: dict[str, Any], field: str) -> None:
    answer = Reported(server, double, f"bad {settings}").patch(**settings)
    assert (answer.status, answer.json["message"].split()[0]) == (400, field)


def test_null_inherits_the_setting_of_the_server(server: Server, double: ReportDouble) -> None:
    own = {"enabled": False, "comment": "always", "statuses": "both", "context": "ci", "untrusted": "comment"}
    own["publish"] = "both"
    names = [f"forgeReports{name.title()}" for name in own]
    project = Reported(server, double, "inherits")
    found = project.patch(**dict(zip(names, own.values(), strict=True)))
    assert found.json["forgeReports"] == own
    assert '"enabled":false' in found.text, "not 0"
    inherited = {
        "enabled": True, "comment": "off", "statuses": "aggregate", "context": "pilothouse/gate", "untrusted": "none",
        "publish": "status",
    }  # fmt: skip
    assert project.patch(**dict.fromkeys(names)).json["forgeReports"] == inherited
