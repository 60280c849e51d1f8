"""What the answers of a forge mean for a report, when a commit is due, and what is kept of it."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest
import records
from attrs import evolve
from chart_servers import Reply, WebServer
from conftest import ROOT
from forge_double import TOKEN
from outbound_stores import LIMITS, NOW, SECOND, FixedClock, in_store, run_in_thread, written
from report_double import JSON, REPOSITORIES, ReportDouble, forge_settings

from models.config.settings import Config, ForgeReportSettings, OutboundSettings, ServerSettings, TrackerSettings
from models.outbound import outbox
from models.outbound.outbox import DeliveryOutcome
from models.supervision.process import Seconds
from models.tracker.forge_reports import commit_reports, waits
from models.tracker.forge_reports.commit_reports import CommitReport
from models.tracker.forge_reports.waits import Wait
from models.tracker.project_secrets import ProjectSecrets
from models.tracker.runs import retention
from models.tracker.tables import Project, Run
from supervisor.charts.workers import Workers
from supervisor.tracker.forge_reports.report_follower import ReportFollower, find_report
from supervisor.tracker.forge_reports.reporter import Reporter

pytest_plugins = ["forge_fixtures"]
pytestmark = pytest.mark.usefixtures("stores")

SHA = "a" * 40
TIMES = ForgeReportSettings()


class Sender:
    """A project with one trusted run, whose report is sent by hand."""

    def __init__(self, web: WebServer, tmp_path: Path, kind: str = "github", timeout: float = 30, **facts: Any) -> None:
        self.double = ReportDouble(web)
        server = ServerSettings(data_dir=tmp_path, outbound=OutboundSettings(timeout=Seconds(timeout)))
        self.config = Config(server=server, tracker=TrackerSettings(forges=forge_settings(web)))
        repo = REPOSITORIES[kind].format(port=web.port)
        self.project = records.create_project("shop", forge_repo=repo, forge_repo_by_admin=1)
        self.run = records.create_run(self.project, {"a": records.PASSED}, commit_sha=SHA, trusted=True, **facts)
        given = self.config, FixedClock(), run_in_thread, ProjectSecrets(server), Workers().parse_json
        self.reporter = Reporter(*given, lambda: None)

    def report(self) -> CommitReport | str:
        return find_report(self.config, self.project.id, SHA, NOW)

    def send(self, *answers: Reply) -> DeliveryOutcome:
        """Stores the message of the commit as the outbox does, and sends it."""
        self.double.answers = list(answers)
        found = self.report()
        assert isinstance(found, CommitReport), found
        (id,) = written(lambda: outbox.add(commit_reports.messages(found), NOW, LIMITS))
        return asyncio.run(self.reporter.send(in_store(lambda: outbox.get(id))))


RESET = {"X-RateLimit-Remaining": "0", "X-RateLimit-Reset": str(int(time.time()) + 20_000)}
LIMITED = b'{"message":"You have exceeded a secondary rate limit."}'


@pytest.mark.parametrize(
    ("kind", "answer", "becomes", "waits_for"),
    [
        ("github", (201, JSON, b"{}"), "DONE", None),
        ("github", (403, {**JSON, **RESET}, b"{}"), "PENDING", (10_000, 20_001)),
        ("github", (403, {**JSON, "Retry-After": "30"}, LIMITED), "PENDING", (30, 30)),
        ("github", (403, JSON, LIMITED), "PENDING", (60, 60)),
        ("github", (429, {"Retry-After": "7"}, b""), "PENDING", (7, 7)),
        ("gitlab", (429, {"RateLimit-Remaining": "0", "RateLimit-Reset": RESET["X-RateLimit-Reset"]}, b""), "PENDING",
         (10_000, 20_001)),
        ("forgejo", (503, {}, b"down"), "PENDING", None),
        ("forgejo", (201, {"Content-Length": "100"}, b"cut"), "PENDING", None),
        ("github", (404, JSON, b'{"message":"Not Found"}'), "DEAD", None),
        ("github", (422, JSON, b'{"message":"No commit found for SHA"}'), "DEAD", None),
        ("github", (301, {"Location": "https://elsewhere.example/"}, b""), "DEAD", None),
        ("github", (403, JSON, b'{"message":"Resource not accessible by personal access token"}'), "DEAD", None),
        ("gitlab", (400, JSON, b'{"message":"Cannot transition status via :run from :running"}'), "DONE", None),
        ("gitlab", (409, JSON, b'{"message":"Another update is in progress"}'), "PENDING", None),
        ("gitlab", (400, JSON, b'{"message":"state does not have a valid value"}'), "DEAD", None),
        ("gitlab", (404, JSON, b'{"message":"404 Commit Not Found"}'), "DEAD", None),
    ],
)  # fmt: skip
def test_what_becomes_of_a_report_by_the_answer(
    web: WebServer, tmp_path: Path, kind: str, answer: Reply, becomes: str, waits_for: tuple[int, int] | None
) -> None:
    sender = Sender(web, tmp_path, kind)
    outcome = sender.send(answer)
    found = "DONE" if outcome.is_delivered else "DEAD" if outcome.is_final else "PENDING"
    assert (found, sender.double.differences) == (becomes, [])
    if waits_for is not None:
        assert outcome.retry_after is not None
        assert waits_for[0] <= outcome.retry_after <= waits_for[1]
    is_refused = becomes == "DEAD" and answer[0] == 403
    assert (in_store(lambda: waits.refusal(sender.project.id)) is not None) == is_refused
    assert TOKEN not in repr(outcome)


def test_a_hanging_forge_is_tried_again(web: WebServer, tmp_path: Path) -> None:
    sender = Sender(web, tmp_path, timeout=1)
    released = threading.Event()
    web.pages = {f"/api/v3/repos/shop/cart/statuses/{SHA}": lambda _: (201 + released.wait(60), {}, b"{}")}
    outcome = sender.send()
    released.set()
    assert (outcome.is_delivered, outcome.is_final, outcome.status) == (False, False, None)
    assert "took longer than server.outbound.timeout" in str(outcome.error)


def test_a_commit_of_a_fork_has_no_status_in_gitlab(web: WebServer, tmp_path: Path) -> None:
    outcome = Sender(web, tmp_path, "gitlab", head_repo="fork/cart").send((404, JSON, b"{}"))
    assert (outcome.is_delivered, outcome.error) == (True, "a commit of a fork has no status in GitLab")


def test_a_rate_limit_of_a_project_with_its_own_token_delays_no_other(web: WebServer, tmp_path: Path) -> None:
    sender = Sender(web, tmp_path)
    assert sender.send((429, {"Retry-After": "30"}, b"")).holds_target
    host = f"http://localhost:{web.port}"
    ProjectSecrets(sender.config.server).set(sender.project.id, "forgeToken", "own-token", NOW)
    Project.update(forge_token_at=NOW, forge_token_host=host).execute()
    assert not sender.send((429, {"Retry-After": "30"}, b"")).holds_target


def test_a_report_that_is_not_allowed_any_more_is_not_sent(web: WebServer, tmp_path: Path) -> None:
    sender = Sender(web, tmp_path)
    found = sender.report()
    assert isinstance(found, CommitReport)
    (id,) = written(lambda: outbox.add(commit_reports.messages(found), NOW, LIMITS))
    Run.update(trusted=False).execute()
    outcome = asyncio.run(sender.reporter.send(in_store(lambda: outbox.get(id))))
    assert (outcome.is_delivered, outcome.error) == (
        True, f"not sent: an upload of the run {sender.run.id} had no credential of WRITE"
    )  # fmt: skip
    assert web.seen == []


@pytest.mark.parametrize(
    ("facts", "reason"),
    [
        ({"trusted": False}, "an upload of the run 1 had no credential of WRITE"),
        ({"repo_url": "https://evil.example/shop/cart"}, "the run 1 names another repository than the confirmed one"),
        ({}, None),
    ],
)
def test_what_is_reported(web: WebServer, tmp_path: Path, facts: dict[str, Any], reason: str | None) -> None:
    sender = Sender(web, tmp_path)
    Run.update(**facts).execute() if facts else None
    found = sender.report()
    assert (found if isinstance(found, str) else None) == (reason and reason.replace("run 1", f"run {sender.run.id}"))


def test_a_description_is_cut_and_has_the_change_of_coverage(web: WebServer, tmp_path: Path) -> None:
    sender = Sender(web, tmp_path, line_covered=843, line_missed=157)
    found = sender.report()
    assert isinstance(found, CommitReport)
    verdict = evolve(found.judged.verdict, coverage_delta=1.29)
    status = commit_reports.status(evolve(found, judged=evolve(found.judged, verdict=verdict)), "x", None)
    assert status is not None
    assert status.description == "Gate passed: 1 passed, 0 failed; coverage 84.3% (+1.2)"
    rules = [evolve(rule, passed=False, name=f"{rule.name}-{n}") for n in range(20) for rule in verdict.rules]
    verdict = evolve(verdict, rules=rules, coverage_delta=-0.05)
    status = commit_reports.status(evolve(found, judged=evolve(found.judged, verdict=verdict)), "x", None)
    assert status is not None
    assert (status.state, len(status.description), status.description[-1]) == ("failure", 140, "…")
    assert "(-0.0)" in status.description


def due(project: int = 1, commit: str = SHA) -> int | None:
    (found,) = [
        one for one in in_store(lambda: waits.listing((0, ""))) if (one.project_id, one.commit) == (project, commit)
    ]
    return found.due_at


def test_a_commit_is_due_after_the_debounce_and_at_most_the_longest_wait() -> None:
    found = []
    for seconds in (0, 10, 20, 290, 400):
        now = NOW + seconds * SECOND
        written(lambda: waits.note([(1, SHA)], now, TIMES))  # noqa: B023 (called here)
        found.append((int(due() or 0) - NOW) // SECOND)
    assert found == [15, 25, 35, 300, 300]


def test_of_two_nodes_one_reports_a_commit_and_a_newer_upload_waits_on() -> None:
    written(lambda: waits.note([(1, SHA)], NOW, TIMES))
    (wait,) = in_store(lambda: waits.candidates([(1, SHA)], NOW))
    message = outbox.Message("forge-status", "forge:hub", {}, "key", 1)
    written(lambda: waits.note([(1, SHA)], NOW, TIMES))
    assert not in_store(lambda: waits.enqueue(wait, [message], True, NOW, LIMITS))
    (wait,) = in_store(lambda: waits.candidates([(1, SHA)], NOW))
    assert in_store(lambda: waits.enqueue(wait, [message], False, NOW, LIMITS))
    (watched,) = in_store(lambda: waits.listing((0, "")))
    assert watched.due_at is None
    assert in_store(lambda: waits.enqueue(watched, [message], True, NOW, LIMITS))
    assert not in_store(lambda: waits.enqueue(watched, [message], True, NOW, LIMITS))
    rows = in_store(lambda: outbox.listing(10, 2**62))
    assert [row.state for row in rows] == ["PENDING", "SUPERSEDED"]


def test_the_list_is_read_in_parts_and_forgets_what_is_old(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(waits, "AT_ONCE", 2)
    commits = [(project, digit * 40) for project in (1, 2) for digit in "abc"]
    written(lambda: waits.note(commits, NOW, TIMES))
    found: list[tuple[int, str]] = []
    while part := in_store(lambda: waits.listing(found[-1] if found else (0, ""))):  # noqa: B023 (called here)
        found += [(one.project_id, one.commit) for one in part]
    assert found == commits
    in_store(lambda: waits.refuse(1, "no", NOW))
    assert {one.project_id for one in in_store(lambda: waits.listing((0, "")))} == {2}
    in_store(lambda: waits.record(1, "x", "hash", NOW))
    in_store(lambda: waits.forget(NOW + 25 * 3600 * SECOND, LIMITS, 2 * 3600.0))
    assert len(in_store(lambda: waits.listing((0, "")))) == 2
    in_store(lambda: waits.forget(NOW + 15 * 86_400 * SECOND, LIMITS, 2 * 3600.0))
    assert in_store(lambda: waits.next_due()) == (None, 0)
    assert in_store(lambda: waits.sent(1, "x")) is None


def test_a_commit_that_cannot_be_judged_stops_no_other(
    web: WebServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sender, added = Sender(web, tmp_path), []
    follower = ReportFollower(sender.config, FixedClock(), run_in_thread, lambda: added.append(1))
    written(lambda: waits.note([(sender.project.id, SHA), (sender.project.id, "b" * 40)], NOW - 60 * SECOND, TIMES))
    judged = follower._judged

    def failing(wait: Any, is_due: bool) -> Any:
        if wait.commit != SHA:
            raise RuntimeError("a fault")
        return judged(wait, is_due)

    monkeypatch.setattr(follower, "_judged", failing)
    in_store(follower.start)
    wait = asyncio.run(follower._round())
    assert wait is not None
    assert wait >= 4, "what fails is not tried again and again"
    (left,) = in_store(lambda: waits.listing((0, "")))
    assert (left.commit, added) == ("b" * 40, [1])


def _supersede(sender: Sender, base: Run, other: Run) -> None:
    """A later attempt of the job on the base branch passes."""
    later = records.create_run(sender.project, {"a": records.PASSED}, commit_sha="0" * 40, trusted=True)
    Run.update(superseded_by=later.id).where(Run.id == base.id).execute()


def _complete(sender: Sender, base: Run, other: Run) -> None:
    """A run of the base branch that waited is complete after the commit was reported: it is the baseline."""
    facts: dict[str, Any] = {"commit_sha": "1" * 40, "trusted": True, "created_at": NOW + 10 * SECOND}
    records.create_run(sender.project, {"a": records.PASSED}, **facts)


def _expire(sender: Sender, base: Run, other: Run) -> None:
    """Retention has deleted the run that failed of the commit."""
    while retention.delete_some(other.id):
        pass


@pytest.mark.parametrize(("change", "state"), [(_supersede, "failure"), (_complete, "failure"), (_expire, "success")])
def test_a_commit_whose_verdict_has_changed_without_an_upload_is_reported_anew(
    web: WebServer, tmp_path: Path, change: Any, state: str
) -> None:
    at, is_red_now = NOW + 20 * SECOND, state == "failure"
    sender, added = Sender(web, tmp_path, branch="topic", flag="unit", created_at=at), []
    failing = {"a": records.FAILED}
    base = records.create_run(sender.project, failing, commit_sha="0" * 40, trusted=True, created_at=NOW)
    facts: dict[str, Any] = {"commit_sha": SHA, "trusted": True, "branch": "topic", "created_at": at + SECOND}
    other = records.create_run(sender.project, failing, flag="default" if is_red_now else "ui", **facts)
    before = sender.report()
    assert isinstance(before, CommitReport)
    assert before.judged.verdict.passed == is_red_now
    clock = FixedClock()
    clock.time = NOW + 3600 * SECOND

    def follow() -> list[tuple[str, int | None]]:
        """A round of a server that has just started; returns what waits afterwards."""
        follower = ReportFollower(sender.config, clock, run_in_thread, lambda: added.append(1))
        in_store(follower.start)
        asyncio.run(follower._round())
        return [(one.commit, one.due_at) for one in in_store(lambda: waits.listing((0, "")))]

    written(lambda: waits.note([(sender.project.id, SHA)], NOW, TIMES))
    assert follow() == []
    assert (follow(), added) == ([], [1]), "an equal verdict is not reported anew"
    change(sender, base, other)
    assert follow() == [(SHA, clock.time + 15 * SECOND)]
    clock.time += 15 * SECOND
    assert (follow(), added) == ([], [1, 1])
    (newest, *_) = in_store(lambda: outbox.listing(10, 2**62, kind="forge-status"))
    asyncio.run(sender.reporter.send(newest))
    assert sender.double.contexts()[-1] == ("pilothouse/gate", state)


def test_a_verdict_that_sends_nothing_is_known_too(web: WebServer, tmp_path: Path) -> None:
    sender, clock = Sender(web, tmp_path), FixedClock()
    tracker = evolve(sender.config.tracker, forge_reports=ForgeReportSettings(untrusted="comment"))
    sender.config = evolve(sender.config, tracker=tracker)

    def follow() -> list[Wait]:
        """A round of a server that has just started; returns what waits afterwards."""
        follower = ReportFollower(sender.config, clock, run_in_thread, lambda: None)
        in_store(follower.start)
        asyncio.run(follower._round())
        return in_store(lambda: waits.listing((0, "")))

    written(lambda: waits.note([(sender.project.id, SHA)], NOW - 60 * SECOND, TIMES))
    assert follow() == []
    records.create_run(sender.project, {"a": records.FAILED}, commit_sha=SHA, flag="fork", trusted=False)
    written(lambda: waits.note([(sender.project.id, SHA)], NOW - 60 * SECOND, TIMES))
    assert follow() == [], "the base branch has no comment"
    clock.time += 600 * SECOND
    assert follow() == [], "the same verdict is not noted again and again"


def test_verdicts_are_compared_a_few_at_a_time_and_one_that_fails_stops_no_other(
    web: WebServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sender = Sender(web, tmp_path)
    for number in range(26):
        wait = Wait(sender.project.id, f"{number:040}", 1, None)
        written(lambda: waits.note([(wait.project_id, wait.commit)], NOW, TIMES))  # noqa: B023 (called here)
        at = NOW - (86_401 if number == 25 else number) * SECOND
        assert in_store(lambda: waits.enqueue(wait, [], True, at, LIMITS, "a verdict"))  # noqa: B023
    follower, compared = ReportFollower(sender.config, FixedClock(), run_in_thread, lambda: None), []

    def compare(commit: tuple[int, str]) -> None:
        compared.append(commit)
        raise RuntimeError("a fault")

    monkeypatch.setattr(follower, "_compare", compare)
    waited, found = [], []
    for _ in range(4):
        waited.append(asyncio.run(follower._compare_some()))
        found.append(len(compared))
        follower._compare_at = 0 if follower._uncompared else follower._compare_at
    assert (found, len(set(compared))) == ([10, 20, 25, 25], 25), "one was reported more than a day ago"
    assert compared[0] == (sender.project.id, f"{0:040}"), "the newest first"
    assert all(wait is not None and wait > 0 for wait in waited)


def test_the_modules_are_loaded_on_first_use() -> None:
    code = "import sys, supervisor.services, handlers.app; print([m for m in sys.argv if m in sys.modules])"
    names = ["supervisor.tracker.forge_reports.reporter", "models.tracker.forge_reports.commit_reports"]
    done = subprocess.run([sys.executable, "-c", code, *names], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
