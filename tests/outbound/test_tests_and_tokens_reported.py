"""Notifications of flaky tests, of quarantines that begin and end, and of tokens that end soon."""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import records
from chart_servers import WebServer, web_server
from conftest import Serve, Server, wait_for
from outbound_stores import NOW, SECOND, FixedClock, in_store, open_outbox, run_in_thread
from receivers import FAST_RULE, Admin, allowing, webhook
from records import FAILED, PASSED
from uploads import junit, upload

from models.accounts import accounts
from models.config.settings import Config, NotifyRuleSettings
from models.json_format import rfc3339
from models.outbound import events, following, run_verdicts
from models.outbound.channels import Channel, StoredSettings
from models.outbound.outbox import listing
from models.outbound.rules import SERVER, Rule
from models.supervision.process import Seconds
from models.tracker.failures import flaky, quarantine
from models.tracker.failures.flaky import Triage
from models.tracker.tables import Project, reports
from supervisor.outbound.follower import STATUSES, EventFollower

DAY = 86_400 * SECOND


class Notifier:
    rules = {"r": Rule("r", SERVER, NotifyRuleSettings("all", ("ch",), ("test.*", "token.*"), group_wait=Seconds(0)))}
    channels = {"ch": Channel("ch", SERVER, "team", StoredSettings("slack"))}
    is_used, has_mail = True, False


def node(clock: FixedClock) -> EventFollower:
    notifier: Any = Notifier()
    return EventFollower(Config(), clock, "node", run_in_thread, notifier, dict, lambda: None)


@pytest.fixture
def project(tmp_path: Path, database_url: str | None) -> Iterator[Project]:
    with records.open_store(tmp_path / "tracker.db", database_url), open_outbox(tmp_path / "outbox.db", database_url):
        yield records.create_project("shop")


def lines(clock: FixedClock) -> Counter[str]:
    """What has been reported until now, with what is due."""
    in_store(lambda: node(clock)._flush())
    rows = in_store(lambda: listing(1000, 2**62))
    return Counter(line["title"] for row in rows for line in row.content["data"]["lines"])


def judge(run: Any, clock: FixedClock) -> None:
    found = run_verdicts.judge(run.id, Config().tracker.quality_gate, clock.now())
    for event in found or ():
        in_store(lambda: following.note(event, list(Notifier.rules.values()), clock.now()))  # noqa: B023 (called here)


def test_a_test_is_reported_as_flaky_once_until_it_was_not_for_a_month(project: Project) -> None:
    clock = FixedClock()
    for commit in ("a", "b"):
        for status in (PASSED, FAILED):
            judge(records.create_run(project, {"A a": status, "A b": PASSED}, commit_sha=commit * 40), clock)
    assert lines(clock) == {"shop, main: A a is flaky": 1}
    clock.time += 40 * DAY
    assert lines(clock).total() == 1  # and forgets
    for status in (FAILED, PASSED):
        judge(records.create_run(project, {"A a": status}, commit_sha="c" * 40), clock)
    assert lines(clock) == {"shop, main: A a is flaky": 2}


def test_what_is_no_flaky_test_of_the_project(project: Project) -> None:
    """Another flag, a fork, and a test that is quarantined."""
    clock = FixedClock()
    records.create_run(project, {"A a": FAILED}, commit_sha="a" * 40, flag="ui")
    records.create_run(project, {"A b": FAILED}, commit_sha="b" * 40, head_repo="https://github.com/fork/shop")
    records.create_run(project, {"A c": FAILED}, commit_sha="c" * 40)
    flaky.set_triage(project.id, "A", "c", Triage.QUARANTINED, None, None, NOW)
    for commit in "abc":
        run = records.create_run(project, {f"A {commit}": PASSED}, commit_sha=commit * 40)
        assert flaky.on_commit(run) == []
        judge(run, clock)
    assert lines(clock) == {}


def test_two_nodes_report_a_quarantine_once(project: Project) -> None:
    records.create_run(project, {"A a": FAILED, "A b": FAILED}, commit_sha="a" * 40)
    clock = FixedClock()
    one, two = node(clock), node(clock)
    in_store(lambda: following.start(STATUSES, 0))
    end = NOW + 3 * DAY
    for note in ("slow disk", "another note"):  # the second changes no status
        flaky.set_triage(project.id, "A", "a", Triage.QUARANTINED, note, None, NOW, end)
    for status in (Triage.QUARANTINED, Triage.ACTIVE):
        flaky.set_triage(project.id, "A", "b", status, None, None, NOW)
    for follower in (one, two):
        in_store(lambda: follower._follow(STATUSES, quarantine.since, events.of_status_change, reports))  # noqa: B023
    begun = {f"shop: A a was quarantined until {rfc3339(end)[:10]}: slow disk": 1, "shop: A b was quarantined": 1}
    assert lines(clock) == begun
    quarantine.expire(end)
    clock.time = end
    for follower in (two, one):
        in_store(lambda: follower._follow(STATUSES, quarantine.since, events.of_status_change, reports))  # noqa: B023
    assert lines(clock) == {**begun, "shop: A a counts again: its quarantine has expired": 1}


def token(name: str, end: int | None, made: int) -> None:
    user = accounts.user_named("maria") or records.create_user("maria")
    accounts.create_token(user.id, name, "FULL", end, made)


def test_a_token_is_reported_once_seven_days_before_its_end(project: Project) -> None:
    clock, month_ago = FixedClock(), NOW - 30 * DAY
    token("endless", None, month_ago)
    token("ended", NOW - SECOND, month_ago)
    token("revoked", NOW + DAY, month_ago)
    reports.execute_sql("UPDATE token SET revoked_at = 1 WHERE name = 'revoked'")
    token("short", NOW + DAY, NOW - DAY)
    token("ci", NOW + 7 * DAY, month_ago)
    token("later", NOW + 7 * DAY + 60 * SECOND, month_ago)
    one, two = node(clock), node(clock)
    assert in_store(one._note_tokens) == pytest.approx(60)
    in_store(two._note_tokens)
    report = f"the token ci of maria ends on {rfc3339(NOW + 7 * DAY)[:10]}"
    assert lines(clock) == {report: 1}
    clock.time += 60 * SECOND
    for again in (one, two, node(clock)):
        assert in_store(again._note_tokens) == 3600, "no token ends later"
    assert lines(clock) == {report: 1, f"the token later of maria ends on {rfc3339(clock.time + 7 * DAY)[:10]}": 1}


def test_a_token_that_is_made_later_is_reported_within_the_hour(project: Project) -> None:
    clock = FixedClock()
    one = node(clock)
    assert in_store(one._note_tokens) == 3600
    token("ci", NOW + 7 * DAY + SECOND, NOW)
    clock.time += 3600 * SECOND
    assert in_store(one._note_tokens) == 3600
    assert lines(clock) == {f"the token ci of maria ends on {rfc3339(NOW + 7 * DAY)[:10]}": 1}


@pytest.fixture
def receiver() -> Iterator[WebServer]:
    with web_server() as one:
        one.pages["/hook"] = (204, {}, b"")
        yield one


def watched(serve: Serve, receiver: WebServer) -> tuple[Server, Admin]:
    rule = {**FAST_RULE, "events": ["test.*", "token.expiring"]}
    notify = {"channels": {"team": webhook(f"{receiver.url}/hook")}, "rules": [rule]}
    server = serve({}, server=allowing(receiver), notify=notify)
    upload(server, ("project", "shop"), ("commit", "a" * 40), ("branch", "main"), ("junit", junit(passed=6)))
    return server, Admin(server)


def set_status(admin: Admin, name: str, **more: Any) -> bool:
    fields = {"className": "A", "name": name, "status": "QUARANTINED", **more}
    return bool(admin.ask("POST", "/projects/1/flaky/status", fields).status == 202)


def reported(admin: Admin) -> list[str]:
    return sorted(row["title"] for row in admin.outbox())


def test_a_server_reports_a_flaky_test_and_the_begin_and_end_of_a_quarantine(serve: Serve, receiver: WebServer) -> None:
    server, admin = watched(serve, receiver)
    upload(server, ("project", "shop"), ("commit", "a" * 40), ("branch", "main"), ("junit", junit(failed=1)))
    wait_for(lambda: reported(admin) == ["shop, main: A c0 is flaky"])

    assert set_status(admin, "c1")
    wait_for(lambda: "shop: A c1 was quarantined" in reported(admin))

    def quarantine_shortly() -> bool:
        return set_status(admin, "c1", expiresAt=rfc3339(time.time_ns() // 1000 + 2 * SECOND))

    wait_for(quarantine_shortly)
    wait_for(lambda: "shop: A c1 counts again: its quarantine has expired" in reported(admin))
    assert len(reported(admin)) == 3
    admin.until_outbox("DONE", "DONE", "DONE")
    (link,) = (line["link"] for line in json.loads(receiver.bodies[0])["data"]["lines"])
    assert link == "https://pilothouse.example/projects/1/test?className=A&name=c0"


def test_a_server_that_is_killed_reports_each_quarantine_once(serve: Serve, receiver: WebServer) -> None:
    server, admin = watched(serve, receiver)
    names = [f"c{number}" for number in range(4)]
    for number, name in enumerate(names):
        before = {f"shop: A {each} was quarantined" for each in names[:number]}
        wait_for(lambda: set(reported(admin)) >= before)  # noqa: B023 (called here): else two are one message
        assert set_status(admin, name)
        if number % 2:
            wait_for(lambda: f"shop: A {name} was quarantined" in reported(admin))  # noqa: B023 (called here)
        server.kill()
        server.start()
    expected = [f"shop: A {name} was quarantined" for name in names]
    wait_for(lambda: set(reported(admin)) >= set(expected), about=str(expected))
    assert reported(admin) == expected


def test_a_server_reports_a_token_once_over_restarts(serve: Serve, receiver: WebServer) -> None:
    server, admin = watched(serve, receiver)
    now = time.time_ns() // 1000
    with records.store_of(server):
        token("ci", now + 3 * DAY, now - 30 * DAY)
    expected = [f"the token ci of maria ends on {rfc3339(now + 3 * DAY)[:10]}"]
    for _ in range(2):
        server.kill()
        server.start()
        wait_for(lambda: reported(admin) == expected)
    assert set_status(admin, "c0")  # in the round that follows the tokens were looked at again
    wait_for(lambda: len(reported(admin)) > 1)
    assert reported(admin) == ["shop: A c0 was quarantined", *expected]
