"""The check of a GitHub App: its contents, which check run a report updates, and the tokens of the App."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import http_checks
import pytest
import records
from attrs import evolve
from chart_servers import Reply, WebServer
from conftest import TIMEOUT_SECONDS, Serve, wait_for
from outbound_stores import LIMITS, NOW, FixedClock, in_store, run_in_thread, written
from records import FAILED, PASSED
from report_double import JSON, REPOSITORIES, App, EveryPage, ReportDouble, forge_settings
from tracker_rows import Report
from uploads import jacoco, junit, post

from models.config.settings import (
    Config,
    ForgeApp,
    ForgeReportSettings,
    ForgeSettings,
    OutboundSettings,
    ServerSettings,
    TrackerSettings,
)
from models.outbound import outbox
from models.outbound.outbox import FORGE_CHECK, FORGE_COMMENT, FORGE_STATUS, DeliveryOutcome
from models.supervision.process import Seconds
from models.tracker.coverage.line_sets import pack
from models.tracker.files.sources import CoveredFile
from models.tracker.forge_reports import check_runs, comment_text, commit_reports, waits
from models.tracker.forge_reports.commit_reports import CommitReport
from models.tracker.forges.project_forge import FileRequest
from models.tracker.project_secrets import ProjectSecrets
from models.tracker.tables import Project, Run, reports
from supervisor.charts.workers import Workers
from supervisor.tracker.forge_reports.report_follower import find_report
from supervisor.tracker.forge_reports.reporter import Reporter
from supervisor.tracker.forge_sources import ForgeSources

pytest_plugins = ["forge_fixtures"]

PUBLIC_URL = "https://pilothouse.example"
SHA = "a" * 40
API = "/api/v1"


@pytest.fixture(scope="module")
def app() -> App:
    return App()


class Checked:
    """A project whose forge has a GitHub App. Its reports are sent by hand."""

    def __init__(self, web: WebServer, app: App, tmp_path: Path, **settings: Any) -> None:
        self.double, self.app = ReportDouble(web), app
        self.double.app, self.double.tokens = app, set()
        app.given.clear()
        self.url = f"http://localhost:{web.port}"
        self.forge = ForgeSettings("github", self.url, f"{web.url}/api/v3", app=ForgeApp(app.id, app.pem()))
        reports_of = ForgeReportSettings(**{"publish": "check", "comment": "off", **settings})
        server = ServerSettings(
            data_dir=tmp_path, public_url=PUBLIC_URL, outbound=OutboundSettings(timeout=Seconds(30))
        )
        self.config = Config(
            server=server, tracker=TrackerSettings(forges={"hub": self.forge}, forge_reports=reports_of)
        )
        repo = REPOSITORIES["github"].format(port=web.port)
        self.project = records.create_project("shop", forge_repo=repo, forge_repo_by_admin=1)
        self.start()

    def start(self, forge: ForgeSettings | None = None) -> None:
        """What sends, without the tokens of the one before."""
        if forge is not None:
            self.config = evolve(self.config, tracker=evolve(self.config.tracker, forges={"hub": forge}))
        secrets = ProjectSecrets(self.config.server)
        given = self.config, FixedClock(), run_in_thread, secrets, Workers().parse_json
        self.reporter = Reporter(*given, lambda: None)

    def run(self, tests: Any = None, **facts: Any) -> Run:
        values = {"commit_sha": SHA, "branch": "topic", "trusted": True, **facts}
        return records.create_run(self.project, tests or {"A a": PASSED}, **values)

    def changed(self, run: Run, changed: dict[str, list[list[int]]], missed: dict[str, list[int]]) -> None:
        """The run has a diff of these lines, and coverage that misses some."""
        paths = json.dumps(list(changed))
        found = reports.execute_sql("SELECT run_id FROM patch WHERE run_id = ?", (run.id,)).fetchone()
        if found is None:
            reports.execute_sql(
                "INSERT INTO patch (run_id, base, head, ranges, paths) VALUES (?, ?, ?, ?, ?)",
                (run.id, "b" * 40, SHA, json.dumps(changed), paths),
            )
        report = Report.get(Report.run == run)
        for path, lines in missed.items():
            reports.execute_sql("DELETE FROM coverage WHERE run_id = ? AND path = ?", (run.id, path))
            reports.execute_sql(
                "INSERT INTO coverage (report_id, run_id, path, line_covered, line_missed, branch_covered,"
                " branch_missed, covered, missed) VALUES (?, ?, ?, ?, ?, 0, 0, ?, ?)",
                (report.id, run.id, path, 1, len(lines), pack([10**6]), pack(lines)),
            )

    def report(self) -> CommitReport:
        found = find_report(self.config, self.project.id, SHA, NOW)
        assert isinstance(found, CommitReport), found
        return found

    def kinds(self) -> list[str]:
        return [one.kind for one in commit_reports.messages(self.report())]

    def send(self, *answers: Reply | None, kind: str = FORGE_CHECK) -> DeliveryOutcome:
        """Stores the message of the commit as the outbox does, and sends it."""
        found = [one for one in commit_reports.messages(self.report()) if one.kind == kind]
        ids = written(lambda: outbox.add(found, NOW, LIMITS))
        assert len(ids) == 1
        self.double.answers = list(answers)
        outcome = asyncio.run(self.reporter.send(in_store(lambda: outbox.get(ids[0]))))
        assert self.double.differences == []
        return outcome

    @property
    def requests(self) -> list[str]:
        """The requests about checks, without the repository."""
        place = "/api/v3/repos/shop/cart/"
        return [f"{method} {path.removeprefix(place)}" for method, path, _ in self.double.web.seen if place in path]


@pytest.fixture
def checked(web: WebServer, app: App, tmp_path: Path, stores: None) -> Checked:
    return Checked(web, app, tmp_path)


def test_a_check_has_the_text_of_the_comment_and_annotations_on_changed_lines(checked: Checked) -> None:
    run = checked.run({"A a": PASSED, "A b": FAILED})
    checked.changed(run, {"src/a b.py": [[3, 9]], "src/z.py": [[1, 1]]}, {"src/a b.py": [3, 4, 7, 50], "src/z.py": [1]})
    assert checked.kinds() == [FORGE_CHECK]
    assert checked.send().status == 201
    (check,) = checked.double.checks
    assert (check["name"], check["head_sha"], check["status"], check["conclusion"]) == (
        "pilothouse/gate", SHA, "completed", "failure"
    )  # fmt: skip
    assert check["details_url"] == f"{PUBLIC_URL}/runs/{run.id}"
    assert check["title"] == "Gate failed: 1 passed, 1 failed; new-failures"
    assert check["summary"].startswith("### Gate failed: `shop`")
    assert "- `A b`, since `aaaaaaa`<br>`b is broken`" in check["summary"]
    assert [(one["path"], one["start_line"], one["end_line"]) for one in check["annotations"]] == [
        ("src/a b.py", 3, 4), ("src/a b.py", 7, 7), ("src/z.py", 1, 1)
    ]  # fmt: skip
    assert {one["annotation_level"] for one in check["annotations"]} == {"warning"}
    assert [one["message"] for one in check["annotations"]][:2] == [
        "Lines 3 to 4 are not covered", "Line 7 is not covered"
    ]  # fmt: skip


def test_a_later_report_updates_the_check_run_and_equal_content_is_not_sent_twice(checked: Checked) -> None:
    run = checked.run(expected_uploads=2, state="PENDING")
    checked.changed(run, {"a.py": [[1, 9]]}, {"a.py": [1, 2]})
    checked.send()
    (check,) = checked.double.checks
    assert (check["status"], "conclusion" in check, check["annotations"]) == ("in_progress", False, [])
    assert check["title"] == check["summary"] == "Gate pending: waiting for more uploads"
    Run.update(state="COMPLETE").execute()
    assert checked.send().status == 200
    assert (check["status"], check["conclusion"], len(check["annotations"])) == ("completed", "success", 1)
    assert checked.send().error == "not sent: the forge has this check already"
    checked.run({"B b": FAILED}, flag="ui")
    assert checked.send().status == 200
    assert (check["conclusion"], len(check["annotations"])) == ("failure", 1), "annotations are not repeated"
    assert checked.requests == [
        "GET installation", "POST check-runs", *[f"PATCH check-runs/{check['id']}"] * 2
    ]  # fmt: skip


def test_a_check_run_whose_annotations_change_is_replaced(checked: Checked) -> None:
    run = checked.run()
    checked.changed(run, {"a.py": [[1, 9]]}, {"a.py": [1, 2]})
    checked.send()
    checked.changed(run, {"a.py": [[1, 9]]}, {"a.py": [2]})
    assert checked.send().status == 201
    before, after = checked.double.checks
    assert [one["start_line"] for one in (*before["annotations"], *after["annotations"])] == [1, 2]
    Run.update(expected_uploads=5, state="PENDING").execute()
    assert checked.send().status == 201
    assert checked.double.checks[-1]["status"] == "in_progress", "a completed check run cannot wait again"


@pytest.mark.parametrize(
    ("answer", "method"),
    [((200, {"Content-Length": "100"}, b"cut"), "POST"), ((502, {}, b"down"), "POST"), ((429, {}, b""), "PATCH")],
)
def test_annotations_that_may_have_been_added_are_not_added_twice(checked: Checked, answer: Reply, method: str) -> None:
    run = checked.run(expected_uploads=2, state="PENDING")
    checked.send()
    Run.update(state="COMPLETE").execute()
    checked.changed(run, {"a.py": [[1, 9]]}, {"a.py": [1, 2]})
    assert not checked.send(answer).is_delivered
    assert checked.send().is_delivered
    assert [len(one["annotations"]) for one in checked.double.checks] == ([0, 1] if method == "POST" else [1])
    assert checked.requests[-1].startswith(method)


def test_a_check_run_that_is_gone_is_made_again(checked: Checked) -> None:
    checked.run()
    checked.send()
    checked.run({"B b": FAILED}, flag="ui")
    checked.double.checks.clear()
    assert checked.send().status == 201
    (check,) = checked.double.checks
    assert check["conclusion"] == "failure"
    assert [one.split("/")[0] for one in checked.requests[1:]] == [
        "POST check-runs",
        "PATCH check-runs",
        "POST check-runs",
    ]


def test_another_app_makes_a_check_run_of_its_own(checked: Checked) -> None:
    checked.run()
    checked.send()
    other = App()
    other.id = App.id + 1
    checked.double.app = other
    checked.start(evolve(checked.forge, app=ForgeApp(other.id, other.pem())))
    checked.run({"B b": FAILED}, flag="ui")
    assert checked.send().status == 201, "only the App that made a check run may change it"
    assert [check["conclusion"] for check in checked.double.checks] == ["success", "failure"]


def test_a_check_has_at_most_50_annotations_of_the_files_that_miss_most(checked: Checked) -> None:
    run, lines = checked.run(), list(range(1, 121, 2))
    paths = {"few.py": [1], "many.py": lines, "x" * 1200 + ".py": list(range(1, 200))}
    checked.changed(run, {path: [[1, 300]] for path in paths}, paths)
    checked.send()
    (check,) = checked.double.checks
    found = [(one["path"], one["start_line"]) for one in check["annotations"]]
    assert found == [("many.py", line) for line in lines[: check_runs.MAX_ANNOTATIONS]]


LIMITED = {**JSON, "X-RateLimit-Remaining": "0", "X-RateLimit-Reset": str(int(time.time()) + 20_000)}
DENIED = b'{"message":"Resource not accessible by integration"}'


@pytest.mark.parametrize(
    ("answer", "becomes", "waits_for"),
    [
        ((403, LIMITED, b"{}"), "PENDING", (10_000, 20_001)),
        ((429, {"Retry-After": "7"}, b""), "PENDING", (7, 7)),
        ((403, JSON, b'{"message":"You have exceeded a secondary rate limit."}'), "PENDING", (60, 60)),
        ((404, JSON, b'{"message":"Not Found"}'), "DEAD", None),
        ((422, JSON, b'{"message":"No commit found for SHA"}'), "DEAD", None),
        ((502, {}, b"down"), "PENDING", None),
        ((201, {"Content-Length": "100"}, b"cut"), "PENDING", None),
        ((201, JSON, b'{"id":true}'), "PENDING", None),
        ((403, JSON, DENIED), "DEAD", None),
    ],
)
def test_what_becomes_of_a_check_by_the_answer(
    checked: Checked, answer: Reply, becomes: str, waits_for: tuple[int, int] | None
) -> None:
    checked.run()
    outcome = checked.send(None, None, answer)
    assert ("DONE" if outcome.is_delivered else "DEAD" if outcome.is_final else "PENDING") == becomes
    if waits_for is not None:
        assert outcome.retry_after is not None
        assert waits_for[0] <= outcome.retry_after <= waits_for[1]
    is_refused = b"not accessible" in answer[2]
    assert (in_store(lambda: waits.refusal(checked.project.id, FORGE_CHECK)) is not None) == is_refused
    assert in_store(lambda: waits.refusal(checked.project.id)) is None, "statuses are set on"
    assert (in_store(lambda: waits.any_refusal(checked.project.id)) is not None) == is_refused
    assert "ghs_" not in repr(outcome)
    if is_refused:
        assert checked.send().error == f"not sent: {in_store(lambda: waits.any_refusal(checked.project.id))}"


@pytest.mark.parametrize("is_pkcs8", [False, True])
def test_a_token_is_for_one_repository_and_is_used_again(
    checked: Checked, is_pkcs8: bool, caplog: pytest.LogCaptureFixture
) -> None:
    key = checked.app.pem(is_pkcs8)
    checked.start(evolve(checked.forge, app=ForgeApp(App.id, key, installation_id=App.installation)))
    checked.run()
    checked.send()
    checked.run({"B b": FAILED}, flag="ui")
    checked.send()
    (given,) = checked.app.given
    assert (given["repositories"], given["exp"] - given["iat"]) == (["cart"], 540)
    assert "GET installation" not in checked.requests, "the configuration names it"
    assert "ghs_" not in caplog.text
    assert not [path for path in checked.config.server.data_dir.iterdir() if b"ghs_" in path.read_bytes()]


def test_a_token_that_ended_early_is_replaced(checked: Checked) -> None:
    checked.run()
    checked.send()
    checked.double.tokens.clear()
    checked.run({"B b": FAILED}, flag="ui")
    outcome = checked.send()
    assert (outcome.status, outcome.is_final, outcome.holds_target) == (401, False, False)
    assert checked.send().status == 200
    assert len(checked.app.given) == 2
    assert in_store(lambda: waits.any_refusal(checked.project.id)) is None


@pytest.mark.parametrize(
    ("answers", "is_final", "is_refused"),
    [
        ([(401, JSON, b'{"message":"A JSON web token could not be decoded"}')], True, True),
        ([(404, JSON, b'{"message":"Not Found"}')], True, False),
        ([(503, {}, b"down")], False, False),
        ([(429, {"Retry-After": "9"}, b"")], False, False),
        ([(200, JSON, b'{"id":"x"}')], False, False),
        ([None, (403, JSON, DENIED)], True, True),
        ([None, (422, JSON, b'{"message":"The permissions requested are not granted"}')], True, False),
        ([None, (201, JSON, b'{"token":"a b"}')], False, False),
        ([None, (201, JSON, b"[]")], False, False),
    ],
)
def test_without_a_token_nothing_is_sent(
    checked: Checked, answers: list[Reply | None], is_final: bool, is_refused: bool
) -> None:
    checked.run()
    outcome = checked.send(*answers)
    assert (outcome.is_delivered, outcome.is_final, checked.double.checks) == (False, is_final, [])
    assert (in_store(lambda: waits.refusal(checked.project.id, FORGE_CHECK)) is not None) == is_refused


def test_a_key_that_cannot_be_used_is_named_without_its_text(checked: Checked, tmp_path: Path) -> None:
    broken = checked.app.pem().replace(checked.app.pem().splitlines()[3], "A" * 64)
    checked.start(evolve(checked.forge, app=ForgeApp(App.id, broken)))
    checked.run()
    outcome = checked.send()
    assert str(outcome.error).startswith("the private key of the App of the forge hub cannot be used: ")
    assert (outcome.is_final, "AAAA" in str(outcome.error)) == (False, False)


def test_only_an_app_makes_checks_and_else_there_is_a_status(checked: Checked, web: WebServer) -> None:
    checked.run()
    own = commit_reports.messages(checked.report())[0]
    Project.update(forge_token_at=NOW, forge_token_host=checked.url).execute()
    assert checked.kinds() == [FORGE_STATUS], "the project has a token of its own"
    ids = written(lambda: outbox.add([own], NOW, LIMITS))
    outcome = asyncio.run(checked.reporter.send(in_store(lambda: outbox.get(ids[0]))))
    assert str(outcome.error).startswith("not sent: checks are not published")
    Project.update(forge_token_at=None).execute()
    checked.start(forge_settings(web)["hub"])
    assert checked.kinds() == [FORGE_STATUS], "the forge has no App"


@pytest.mark.parametrize(
    ("publish", "kinds"),
    [("status", [FORGE_STATUS]), ("check", [FORGE_CHECK]), ("both", [FORGE_STATUS, FORGE_CHECK])],
)
def test_a_project_chooses_what_is_published(checked: Checked, publish: str, kinds: list[str]) -> None:
    checked.run()
    Project.update(forge_reports_publish=publish).execute()
    assert checked.kinds() == kinds


def test_the_token_of_an_app_sets_statuses_and_finds_its_own_comment(
    web: WebServer, app: App, tmp_path: Path, stores: None
) -> None:
    checked = Checked(web, app, tmp_path, publish="both", comment="always")
    checked.run(pr_number=7)
    assert checked.send(kind=FORGE_STATUS).status == 201
    marker = comment_text.marker(checked.project.id, PUBLIC_URL)
    checked.double.add("github", 7, f"{marker}\n\nof a person", author=5)
    own = checked.double.add("github", 7, f"{marker}\n\nof the App")
    assert checked.send(kind=FORGE_COMMENT).status == 200
    assert own["body"].startswith(f"{marker}\n\n### Gate passed")
    assert "GET user" not in checked.requests
    assert not [path for path in web.paths() if path.endswith("/user")]


def test_a_pull_request_of_a_fork_has_a_check_in_the_base_repository(web: WebServer, app: App, tmp_path: Path) -> None:
    double = ReportDouble(web)
    double.app, double.tokens = app, set()
    (tmp_path / "server").mkdir()
    (tmp_path / "key.pem").write_text(app.pem())
    url = f"http://localhost:{web.port}"
    settings = {"id": app.id, "private-key-file": str(tmp_path / "key.pem")}
    forge = {"type": "github", "url": url, "api-url": f"{web.url}/api/v3", "app": settings}
    tracker = {"forges": {"hub": forge}, "forge-reports": {"debounce": "0s", "publish": "check"}}
    with http_checks.running_server(tmp_path / "server", tracker=tracker, server={"public-url": PUBLIC_URL}) as server:
        with records.store_of(server):
            project = records.create_project("forked", forge_repo=f"{url}/shop/cart", forge_repo_by_admin=1)
            admin = records.bearer(records.create_user("chief", "ADMIN"))
        facts = {"project": "forked", "branch": "topic", "commit": SHA, "repoUrl": f"{url}/shop/cart"}
        fork = {"headRepo": f"{url}/fork/cart", "prNumber": "7"}
        diff = json.dumps({"base": "b" * 40, "head": SHA, "files": {"src/com/x/a.py": [[2, 3]]}})
        parts = [("junit", junit(3)), ("jacoco", jacoco({"a.py": {1: True, 2: True, 3: False}})), ("diff", diff)]
        assert post(server, *facts.items(), *fork.items(), *parts, **admin).status == 201
        (check,) = wait_for(lambda: double.checks)
        wait_for(lambda: double.comments)
        assert double.differences == []
        assert [path for path in web.paths() if "/fork/" in path] == []
        assert [(one["path"], one["start_line"]) for one in check["annotations"]] == [("src/com/x/a.py", 3)]
        assert check["conclusion"] == "success"
        items = server.get(f"{API}/outbox?projectId={project.id}", **admin).text
        secrets = [*(token for token in double.tokens if token.startswith("ghs_")), app.pem().splitlines()[2]]
        assert [secret for secret in secrets if secret in items or secret in server.log.read_text()] == []


def test_source_lines_are_read_with_the_token_of_the_app(web: WebServer, app: App, tmp_path: Path) -> None:
    tokens: set[str] = set()
    app.given.clear()
    seen = []

    def reply(handler: Any) -> Reply:
        path, token = handler.path.removeprefix("/api/v3"), handler.headers["Authorization"].removeprefix("Bearer ")
        if "/installation" in path:
            return app.reply(tokens, token, path, handler.body)
        seen.append(token)
        return (200, {"Content-Type": "text/plain"}, b"code") if token in tokens else (401, JSON, b"{}")

    web.pages = EveryPage(reply)
    forge = ForgeSettings(
        "github", f"http://localhost:{web.port}", f"{web.url}/api/v3", app=ForgeApp(app.id, app.pem())
    )
    config = Config(server=ServerSettings(data_dir=tmp_path), tracker=TrackerSettings(forges={"hub": forge}))
    file = CoveredFile("a", "a.py", (), (), (), [], None, None)

    def request(repository: str, name: str) -> FileRequest:
        return FileRequest(1, False, "hub", forge, f"{web.url}/api/v3/{repository}/{name}", name, SHA, repository)

    async def use() -> list[Sequence[str] | None]:
        sources = ForgeSources(config)
        wanted = [request("shop/cart", "a"), request("shop/cart", "a"), request("shop/till", "b")]
        found = [(await sources.with_text(file, one)).text for one in wanted]
        tokens.clear()
        found += [(await sources.with_text(file, request("shop/cart", name))).text for name in "cc"]
        return found

    assert asyncio.run(use()) == [["code"], ["code"], ["code"], None, ["code"]], "a refused token is replaced"
    assert [given["repositories"] for given in app.given] == [["cart"], ["till"], ["cart"]]
    assert len(seen) == 4, "a file is cached"


def test_a_server_with_an_app_does_not_start_without_the_extra(serve: Serve, app: App, tmp_path: Path) -> None:
    (tmp_path / "missing").mkdir()
    (tmp_path / "missing" / "jwt.py").write_text("raise ImportError('it is not installed')")
    forge = {"type": "github", "url": "https://github.com", "app": {"id": app.id, "private-key": app.pem()}}
    environ = {"PYTHONPATH": str(tmp_path / "missing")}
    server = serve(tracker={"forges": {"hub": forge}}, environ=environ, wait=False).launch()
    assert server.process is not None
    assert server.process.wait(TIMEOUT_SECONDS) == 1
    assert "tracker.forges.hub.app needs the extra `crypto`" in server.log.read_text()
