"""The comment on a pull request: made once, kept up to date, never another's, and nothing in its text is live."""

from __future__ import annotations

import asyncio
import re
from pathlib import Path
from typing import Any

import pytest
import records
from attrs import evolve
from chart_servers import Reply, WebServer
from outbound_stores import LIMITS, NOW, SECOND, FixedClock, in_store, run_in_thread, written
from records import FAILED, PASSED
from report_double import JSON, REPOSITORIES, ReportDouble, forge_settings

from models.config.settings import Config, ForgeReportSettings, OutboundSettings, ServerSettings, TrackerSettings
from models.errors import Invalid, Problem, Unavailable, Unprocessable
from models.outbound import outbox
from models.outbound.outbox import FORGE_COMMENT, DeliveryOutcome
from models.supervision.process import Seconds
from models.tracker.forge_reports import comment_facts, comment_text, commit_reports, waits
from models.tracker.forge_reports.comment_facts import CommitFacts
from models.tracker.forge_reports.comment_text import code
from models.tracker.forge_reports.commit_reports import CommitReport
from models.tracker.forges import project_forge
from models.tracker.gate.quality_gate import RuleInfo
from models.tracker.project_secrets import ProjectSecrets
from models.tracker.tables import Project, Run
from supervisor.charts.workers import Workers
from supervisor.tracker.forge_reports import reporter
from supervisor.tracker.forge_reports.report_follower import find_report
from supervisor.tracker.forge_reports.reporter import Reporter

pytest_plugins = ["forge_fixtures"]
pytestmark = pytest.mark.usefixtures("stores")

PUBLIC_URL = "https://pilothouse.example"


def sha(digit: str) -> str:
    return digit * 40


class Pull:
    """A project with runs of pull request 7, whose reports are sent by hand."""

    def __init__(self, web: WebServer, tmp_path: Path, kind: str = "github", **settings: Any) -> None:
        self.kind = kind
        self.double = ReportDouble(web)
        server = ServerSettings(
            data_dir=tmp_path, public_url=PUBLIC_URL, outbound=OutboundSettings(timeout=Seconds(30))
        )
        tracker = TrackerSettings(forges=forge_settings(web), forge_reports=ForgeReportSettings(**settings))
        self.config = Config(server=server, tracker=tracker)
        repo = REPOSITORIES[kind].format(port=web.port)
        self.project = records.create_project("shop", forge_repo=repo, forge_repo_by_admin=1)
        given = self.config, FixedClock(), run_in_thread, ProjectSecrets(server), Workers().parse_json
        self.reporter = Reporter(*given, lambda: None)

    def run(self, commit: str, tests: Any = None, **facts: Any) -> Run:
        values = {"commit_sha": commit, "branch": "topic", "pr_number": 7, "trusted": True, **facts}
        return records.create_run(self.project, tests or {"A a": PASSED}, **values)

    def base(self, tests: Any = None) -> Run:
        return self.run(sha("0"), tests, branch="main", pr_number=None)

    def report(self, commit: str) -> CommitReport:
        found = find_report(self.config, self.project.id, commit, NOW)
        assert isinstance(found, CommitReport), found
        return found

    def send(self, commit: str, *answers: Reply | None) -> DeliveryOutcome:
        """Stores the messages of the commit as the outbox does, and sends that of the comment."""
        found = [one for one in commit_reports.messages(self.report(commit)) if one.kind == FORGE_COMMENT]
        ids = written(lambda: outbox.add(found, NOW, LIMITS))
        assert len(ids) == 1
        self.double.answers = list(answers)
        outcome = asyncio.run(self.reporter.send(in_store(lambda: outbox.get(ids[0]))))
        assert self.double.differences == []
        return outcome

    def facts(self, commit: str) -> CommitFacts:
        gate, settings, known = self.config.tracker.quality_gate, ForgeReportSettings(), self.config.tracker.forges
        link = project_forge.link(Project.get_by_id(self.project.id), known)
        found = comment_facts.find(self.project, 7, commit, link, gate, settings, known, 0)
        assert isinstance(found, CommitFacts), found
        return found

    @property
    def methods(self) -> list[str]:
        return [method for _, method, _ in self.double.writes]

    @property
    def text(self) -> str:
        (one,) = self.double.comments
        return str(one["body"])


@pytest.mark.parametrize("kind", REPOSITORIES)
def test_a_comment_is_made_once_and_kept_up_to_date(web: WebServer, tmp_path: Path, kind: str) -> None:
    pull = Pull(web, tmp_path, kind)
    pull.base()
    pull.run(sha("1"), {"A a": PASSED, "A b": FAILED}, pr_number=7)
    assert pull.send(sha("1")).status == 201
    assert pull.text.startswith("<!-- pilothouse ")
    assert "### Gate failed: `shop`" in pull.text
    assert "**Tests:** 1 passed, 1 failed, 0 skipped, 1 new failures" in pull.text
    assert "- `A b`, since `1111111`<br>`b is broken`" in pull.text
    assert f"[commit]({PUBLIC_URL}/projects/{pull.project.id}/commits/{sha('1')})" in pull.text
    assert pull.send(sha("1")).error == "not sent: the comment is the same already"
    pull.run(sha("2"), {"A a": PASSED, "A b": PASSED})
    assert pull.send(sha("2")).status == 200
    assert (pull.methods, "### Gate passed: `shop`" in pull.text) == (
        ["POST", "PUT" if kind == "gitlab" else "PATCH"], True
    )  # fmt: skip


def test_an_answer_that_cannot_be_parsed_now_is_tried_again(web: WebServer, tmp_path: Path) -> None:
    """As where no worker process is free: the comment that was made meanwhile is found then."""
    pull = Pull(web, tmp_path, comment="always")
    pull.run(sha("1"))
    parse = pull.reporter._client._parse_json

    async def unavailable(body: bytes | str) -> Any:
        if pull.double.comments:
            raise Unavailable("no worker process is free")
        return await parse(body)

    pull.reporter._client._parse_json = unavailable
    outcome = pull.send(sha("1"))
    assert (outcome.is_delivered, outcome.is_final, outcome.error) == (False, False, "no worker process is free")
    assert len(pull.double.comments) == 1
    pull.reporter._client._parse_json = parse
    assert pull.send(sha("1")).is_delivered
    assert len(pull.double.comments) == 1


@pytest.mark.parametrize("problem", [Invalid("it is not JSON"), Unprocessable("it is nested too deeply")])
def test_an_answer_that_is_never_readable_is_one_without_an_id(
    web: WebServer, tmp_path: Path, problem: Problem
) -> None:
    pull = Pull(web, tmp_path, comment="always")
    pull.run(sha("1"))

    async def unreadable(_: bytes | str) -> Any:
        raise problem

    pull.reporter._client._parse_json = unreadable
    assert pull.send(sha("1")).error == "the answer has no id of a comment"


def test_an_older_commit_never_overwrites_the_newest(web: WebServer, tmp_path: Path) -> None:
    pull = Pull(web, tmp_path, comment="always")
    pull.run(sha("1"), {"A a": FAILED})
    pull.run(sha("2"))
    pull.send(sha("1"))
    assert (f"commits/{sha('2')}" in pull.text, "Gate passed" in pull.text) == (True, True)
    pull.run(sha("1"), {"A a": FAILED}, flag="late")
    assert pull.send(sha("1")).error == "not sent: the comment is the same already"


def test_after_a_lost_answer_the_comment_is_found_by_its_marker_and_author(web: WebServer, tmp_path: Path) -> None:
    pull = Pull(web, tmp_path, comment="always")
    pull.run(sha("1"))
    marker = comment_text.marker(pull.project.id, PUBLIC_URL)
    for number in range(60):
        pull.double.add("github", 7, f"comment {number}")
    pull.double.add("github", 7, f"{marker}\n\nof another", author=5)
    pull.double.add("github", 7, f"we quote {marker}")
    own = pull.double.add("github", 7, f"{marker}\n\nours")
    pull.double.add("github", 8, f"{marker}\n\nof another pull request")
    assert pull.send(sha("1")).status == 200
    assert (pull.methods, own["body"].startswith(f"{marker}\n\n### Gate passed")) == (["PATCH"], True)


def test_a_token_that_is_nobody_s_makes_a_comment(web: WebServer, tmp_path: Path) -> None:
    pull = Pull(web, tmp_path, comment="always")
    pull.run(sha("1"))
    pull.double.is_anonymous = True
    assert pull.send(sha("1")).status == 201
    pull.run(sha("1"), {"A b": PASSED}, flag="more")
    assert (pull.send(sha("1")).status, pull.methods) == (200, ["POST", "PATCH"])


@pytest.mark.parametrize("kind", REPOSITORIES)
def test_a_comment_that_somebody_deleted_is_not_made_again(web: WebServer, tmp_path: Path, kind: str) -> None:
    pull = Pull(web, tmp_path, kind, comment="always")
    pull.run(sha("1"))
    pull.send(sha("1"))
    pull.double.comments.clear()
    for digit in ("2", "3"):
        pull.run(sha(digit), {"A a": FAILED})
        outcome = pull.send(sha(digit))
        assert (outcome.is_delivered, outcome.error) == (True, "not sent: somebody deleted the comment")
    assert pull.double.comments == []


def test_an_answer_of_404_for_all_comments_is_no_deletion(web: WebServer, tmp_path: Path) -> None:
    pull = Pull(web, tmp_path, comment="always")
    pull.run(sha("1"))
    pull.send(sha("1"))
    pull.run(sha("2"), {"A a": FAILED})
    gone: Reply = (404, JSON, b'{"message":"Not Found"}')
    outcome = pull.send(sha("2"), gone, gone)
    assert (outcome.is_delivered, outcome.is_final, outcome.status) == (False, True, 404)
    assert pull.send(sha("2")).status == 200


@pytest.mark.parametrize(
    ("mode", "made"),
    [("always", "always"), ("changes", "new fixed drop flaky missed"), ("failures", "new"), ("off", "")],
)
@pytest.mark.parametrize("what", ["nothing", "new", "fixed", "drop", "flaky"])
def test_when_a_comment_is_made(web: WebServer, tmp_path: Path, mode: str, made: str, what: str) -> None:
    pull = Pull(web, tmp_path, comment=mode)
    base = pull.base({"A a": FAILED if what == "fixed" else PASSED})
    Run.update(line_covered=1000, line_missed=0).where(Run.id == base.id).execute()
    facts = {"line_covered": 9990 if what == "drop" else 1000, "line_missed": 10 if what == "drop" else 0}
    run = pull.run(sha("1"), {"A a": FAILED if what == "new" else PASSED}, **facts)
    if what == "flaky":
        Run.update(flaky=1).where(Run.id == run.id).execute()
    messages = [one for one in commit_reports.messages(pull.report(sha("1"))) if one.kind == FORGE_COMMENT]
    assert bool(messages) == (mode != "off")
    if messages:
        outcome = pull.send(sha("1"))
        assert (outcome.status == 201) == (mode == "always" or what in made.split()), outcome


def test_a_comment_that_was_made_is_changed_although_there_is_nothing_to_say(web: WebServer, tmp_path: Path) -> None:
    pull = Pull(web, tmp_path)
    pull.base()
    pull.run(sha("1"), {"A a": FAILED})
    pull.send(sha("1"))
    pull.run(sha("2"))
    assert (pull.send(sha("2")).status, "Gate passed" in pull.text) == (200, True)


@pytest.mark.parametrize("kind", REPOSITORIES)
def test_the_open_request_whose_head_is_the_commit_is_found(web: WebServer, tmp_path: Path, kind: str) -> None:
    pull = Pull(web, tmp_path, kind, comment="always")
    number = "iid" if kind == "gitlab" else "number"
    for n, state, commit in ((5, "closed", "1"), (6, "open", "2"), (7, "open", "1")):
        state = {"open": "opened"}.get(state, state) if kind == "gitlab" else state
        facts: dict[str, Any] = {"sha": sha(commit)} if kind == "gitlab" else {"head": {"sha": sha(commit)}}
        pull.double.pulls.append({number: n, "state": state, **facts})
    pull.run(sha("1"), pr_number=None)
    assert pull.send(sha("1")).status == 201
    assert [one["number"] for one in pull.double.comments] == [7]
    pull.run(sha("3"), pr_number=None)
    assert pull.send(sha("3")).error == "not sent: no open pull request has the commit as its head"
    assert [one for one in commit_reports.messages(pull.report(sha("1"))) if one.kind == FORGE_COMMENT]
    pull.run(sha("4"), branch="main", pr_number=None)
    assert [one.kind for one in commit_reports.messages(pull.report(sha("4")))] == ["forge-status"]


def test_a_run_that_is_not_trusted_has_a_marked_comment_if_that_is_set(web: WebServer, tmp_path: Path) -> None:
    pull = Pull(web, tmp_path, comment="always", untrusted="comment")
    pull.run(sha("1"), trusted=False)
    assert [one.kind for one in commit_reports.messages(pull.report(sha("1")))] == ["forge-comment"]
    Run.update(build_url="https://ci.example/job/1").execute()
    assert pull.send(sha("1")).status == 201
    assert ("**Unverified:**" in pull.text, "ci.example" in pull.text) == (True, False)
    Run.update(repo_url="https://evil.example/shop/cart").execute()
    assert isinstance(find_report(pull.config, pull.project.id, sha("1"), NOW), str)
    silent = evolve(pull.config.tracker, forge_reports=ForgeReportSettings(comment="off", untrusted="comment"))
    Run.update(repo_url=None).execute()
    assert isinstance(find_report(evolve(pull.config, tracker=silent), pull.project.id, sha("1"), NOW), str)


def test_expected_uploads_are_waited_for(web: WebServer, tmp_path: Path) -> None:
    pull = Pull(web, tmp_path, comment="always")
    pull.run(sha("1"), state="PENDING", expected_uploads=3)
    assert pull.send(sha("1")).error == "not sent: uploads of the commit are missing"


@pytest.mark.parametrize(
    ("answer", "refused"),
    [
        ((403, JSON, b'{"message":"Resource not accessible by personal access token"}'), True),
        ((403, JSON, b'{"message":"Unable to create comment because issue is locked."}'), False),
        ((410, JSON, b'{"message":"gone"}'), False),
    ],
)
def test_a_token_that_may_make_no_comments_still_sets_statuses(
    web: WebServer, tmp_path: Path, answer: Reply, refused: bool
) -> None:
    pull = Pull(web, tmp_path, comment="always")
    pull.run(sha("1"))
    outcome = pull.send(sha("1"), None, None, answer)
    assert (outcome.is_delivered, outcome.is_final) == (False, True)
    assert (in_store(lambda: waits.refusal(pull.project.id, FORGE_COMMENT)) is not None) == refused
    assert in_store(lambda: waits.refusal(pull.project.id)) is None
    assert pull.send(sha("1")).is_delivered
    assert len(pull.double.comments) == (0 if refused else 1)


def test_a_rate_limit_of_a_search_is_waited_for(web: WebServer, tmp_path: Path) -> None:
    pull = Pull(web, tmp_path, comment="always")
    pull.run(sha("1"))
    outcome = pull.send(sha("1"), None, (429, {"Retry-After": "9"}, b""))
    assert (outcome.is_delivered, outcome.is_final, outcome.retry_after) == (False, False, 9)
    assert pull.send(sha("1"), (500, {}, b"")).is_final is False
    assert pull.send(sha("1"), None, (200, JSON, b"no json")).status == 201


HOSTILE = [
    "@everyone #1 <script>alert(1)</script> [x](javascript:y) https://evil.example",
    "``` ends the span ` and ````",
    "`",
    "</details><h1>",
    "line\n\n# heading\r\n- list",
    "\u202ereversed \x00 \x1b[31m",
    "",
    "x" * 5000,
]


@pytest.mark.parametrize("text", HOSTILE)
def test_a_code_span_is_one_line_that_nothing_in_it_ends(text: str) -> None:
    span = code(text)
    fence = re.match("`+", span)
    assert fence is not None
    inner = span[len(fence[0]) : -len(fence[0])]
    assert span == f"{fence[0]}{inner}{fence[0]}"
    assert fence[0] not in re.findall("`+", inner)
    assert len(inner) <= 302
    assert not set(inner) & set("\n\r\x00\x1b\u202e")
    assert (inner[0] != "`", inner[-1] != "`") == (True, True)


def _live(text: str) -> str:
    """What of a comment is not in a code span, and not the marker."""
    return re.sub(r"(?<!`)(`+)(?!`).*?(?<!`)\1(?!`)", "", text).partition("-->")[2]


def test_nothing_of_a_report_is_live_in_a_comment(web: WebServer, tmp_path: Path) -> None:
    pull = Pull(web, tmp_path)
    bad = "@all #1 <b>x</b> ```` ` [l](http://evil.example) | a_b*c*"
    Project.update(name=bad).execute()
    pull.project = Project.get_by_id(pull.project.id)
    pull.base({f"F {bad}": FAILED})
    pull.run(sha("1"), {f"A {bad}": FAILED, f"F {bad}": PASSED}, flag=bad, build_url="https://ci.example/1)<b>@all")
    pull.run(sha("1"), {f"B {bad}": FAILED}, flag="other", build_url="https://ci.example/job/1")
    text = comment_text.render(pull.facts(sha("1")), PUBLIC_URL)
    live = _live(text)
    assert "evil" not in live
    assert not re.search(r"@|#\d|<b>|\bA\b", live.replace("[CI job](https://ci.example/job/1)", "")), live
    assert re.findall(r"<[^>]+>", live) == re.findall(r"</?details>|</?summary>|<br>|</?sub>", live)


def test_a_comment_is_cut_by_sections_and_keeps_its_links(web: WebServer, tmp_path: Path) -> None:
    pull = Pull(web, tmp_path)
    pull.run(sha("1"), {f"A {'n' * 290}{number}": FAILED for number in range(30)})
    facts = pull.facts(sha("1"))
    assert facts.failures.new_count == 30
    assert len(facts.failures.new) == 10
    text = comment_text.render(facts, PUBLIC_URL)
    assert "- and 20 more" in text
    verdict = facts.detail.commit.judged.verdict
    rules = [RuleInfo("rule", False, "d" * 5000, "f" * 200) for _ in range(500)]
    judged = evolve(facts.detail.commit.judged, verdict=evolve(verdict, rules=rules))
    failures = evolve(facts.failures, new=[evolve(facts.failures.new[0], message="m" * 900)] * 200)
    long = evolve(
        facts, failures=failures, detail=evolve(facts.detail, commit=evolve(facts.detail.commit, judged=judged))
    )
    text = comment_text.render(long, PUBLIC_URL)
    assert len(text) <= comment_text.MAX_CHARACTERS
    assert "More is on the page of the commit." in text
    assert text.endswith("</sub>")
    assert "New failures" not in text


def test_a_comment_has_coverage_flags_and_what_is_carried(web: WebServer, tmp_path: Path) -> None:
    pull = Pull(web, tmp_path)
    gate = evolve(pull.config.tracker.quality_gate, carry_forward_flags=("*",))
    pull.config = evolve(pull.config, tracker=evolve(pull.config.tracker, quality_gate=gate))
    pull.run(sha("0"), branch="main", pr_number=None, flag="old", coverage=(5, 5))
    later = NOW + 3 * 86_400 * SECOND
    pull.run(sha("1"), flag="new", coverage=(843, 157), created_at=later)
    text = comment_text.render(pull.facts(sha("1")), None)
    assert "- `new`: 1 tests, 0 failed, coverage 84.3%" in text
    assert "- `old`: coverage 50.0%, carried from `0000000`, 3 days" in text
    assert "](http" not in text, "without a public URL there are no links to pages"


def test_the_requests_of_a_comment_end_before_the_lease_of_its_message(
    web: WebServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pull = Pull(web, tmp_path, comment="always")
    pull.run(sha("1"))
    assert reporter.MAX_SECONDS < outbox.LEASE_SECONDS
    monkeypatch.setattr(reporter, "MAX_SECONDS", 0.0)
    outcome = pull.send(sha("1"))
    assert (outcome.is_delivered, outcome.is_final) == (False, False)
    assert "took longer than" in str(outcome.error)
