"""Mails to accounts, by what they have chosen in their profiles."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import records
from conftest import Serve, Server, wait_for
from mailboxes import Mailbox, open_mailbox
from outbound_stores import LIMITS, NOW, SECOND, FixedClock, in_store, open_outbox
from receivers import Admin
from records import FAILED, PASSED
from uploads import junit, upload
from users import FormClient, create_session

from models.accounts import accounts, mail_settings, permissions
from models.accounts.accounts import User
from models.accounts.mail_settings import KINDS
from models.config.settings import QualityGate
from models.outbound import account_mails, events, following, outbox, owned_failures, run_verdicts
from models.outbound.tables import store
from models.tracker.failures import flaky
from models.tracker.failures.flaky import Triage
from models.tracker.forges import owners
from models.tracker.forges.owners import OwnerRuleInfo
from models.tracker.tables import Project, Run

DAY = 86_400 * SECOND


@pytest.fixture
def project(tmp_path: Path, database_url: str | None) -> Iterator[Project]:
    with records.open_store(tmp_path / "tracker.db", database_url), open_outbox(tmp_path / "outbox.db", database_url):
        yield records.create_project("shop", "PRIVATE")


def person(name: str, *kinds: str, email: str | None = "", role: accounts.Role = "USER") -> User:
    """An account that wants the mails of these kinds only."""
    user = records.create_user(name, role)
    accounts.set_profile(user.id, None, f"{name}@example.com" if email == "" else email)
    mail_settings.choose(user.id, {kind: kind in kinds for kind in KINDS})
    return user


def judge(run: Run, clock: FixedClock) -> None:
    for event in run_verdicts.judge(run.id, QualityGate(), clock.now(), has_mail=True) or ():
        in_store(lambda: following.note(event, [], clock.now()))  # noqa: B023 (called here)


def mails(clock: FixedClock) -> Counter[tuple[str, str]]:
    """The account and the line of each mail until now, with what is due in a minute."""
    clock.time += 60 * SECOND
    in_store(lambda: following.flush([], [], clock.now(), LIMITS))
    rows = in_store(lambda: outbox.listing(1000, 2**62))
    found = Counter[tuple[str, str]]()
    for row in rows:
        if (user := account_mails.recipient(row.target)) is not None:
            found.update((user.username, line["title"]) for line in row.content["data"]["lines"])
    return found


def test_the_defaults_are_those_of_the_profile(project: Project) -> None:
    user = records.create_user("maria")
    assert mail_settings.of_account(user.id) == {"gate": False, "tests": False, "tokens": True}


def test_members_get_the_failures_of_the_gate_of_the_base_branch(project: Project) -> None:
    clock = FixedClock()
    for name, kinds in (("maria", ("gate",)), ("tom", ()), ("uma", ("gate",)), ("eve", ("gate",))):
        user = person(name, *kinds, email=None if name == "uma" else "")
        if name != "eve":  # no member
            records.add_member(project, user, "READ")
    person("boss", "gate", role="ADMIN")  # may read all projects, which are not all theirs
    judge(records.create_run(project, {"A a": PASSED}, commit_sha="0" * 40), clock)
    judge(records.create_run(project, {"A a": FAILED}, commit_sha="1" * 40, branch="topic"), clock)
    assert mails(clock) == {}
    for _ in range(2):  # the second upload of a commit is no news
        judge(records.create_run(project, {"A a": FAILED}, commit_sha="2" * 40), clock)
    (found,) = mails(clock).items()
    assert (found[0][0], found[1]) == ("maria", 1)
    assert found[0][1].startswith("shop, main: gate failed (")
    judge(records.create_run(project, {"A a": PASSED}, commit_sha="3" * 40), clock)
    for _ in range(2):
        clock.time += 3600 * SECOND
        assert mails(clock).total() == 1, "that it passes again is not mailed"
    judge(records.create_run(project, {"A a": FAILED}, commit_sha="4" * 40), clock)
    assert mails(clock).total() == 2


def test_owners_get_the_tests_that_newly_fail(project: Project) -> None:
    clock = FixedClock()
    rules = [
        OwnerRuleInfo("Cart", "@Maria @org/team"),
        OwnerRuleInfo("Pay", "tom@example.com"),
        OwnerRuleInfo("x", "@eve"),
    ]
    owners.store(project.id, None, rules, NOW)
    for name in ("maria", "tom", "eve"):
        user = person(name, "tests")
        if name != "eve":  # may not read the project
            records.add_member(project, user, "READ")
    passing = {"Cart a": PASSED, "Cart b": PASSED, "Pay a": PASSED, "x a": PASSED, "Nobody a": PASSED, "Cart q": PASSED}
    judge(records.create_run(project, {**passing, "Cart b": FAILED}, commit_sha="0" * 40), clock)
    first = {("maria", "shop, main: Cart b newly fails"): 1}
    assert mails(clock) == first
    flaky.set_triage(project.id, "Cart", "q", Triage.QUARANTINED, None, None, NOW)
    failing = dict.fromkeys(passing, FAILED)
    judge(records.create_run(project, failing, commit_sha="1" * 40, branch="topic"), clock)
    for _ in range(2):
        judge(records.create_run(project, failing, commit_sha="2" * 40), clock)
    expected = {
        **first,
        ("maria", "shop, main: Cart a newly fails"): 1,
        ("tom", "shop, main: Pay a newly fails"): 1,
    }
    assert mails(clock) == expected
    judge(records.create_run(project, failing, commit_sha="3" * 40), clock)
    assert mails(clock) == expected, "they fail still"


def test_a_mail_has_at_most_500_tests_of_a_run(project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(owned_failures, "MAX_TESTS", 3)
    owners.store(project.id, None, [OwnerRuleInfo("A", "@maria")], NOW)
    records.add_member(project, person("maria", "tests"), "READ")
    clock = FixedClock()
    judge(records.create_run(project, {f"A t{number}": FAILED for number in range(5)}, commit_sha="0" * 40), clock)
    assert mails(clock).total() == 3


def test_a_token_that_ends_is_mailed_to_its_account_only(project: Project) -> None:
    clock = FixedClock()
    for user in (person("maria", "tokens"), person("tom"), person("uma", "tokens", email=None)):
        accounts.create_token(user.id, "ci", "FULL", NOW + DAY, NOW - 30 * DAY)
    for _ in range(2):
        for token in accounts.expiring_tokens(NOW)[0]:
            in_store(lambda: following.note(events.of_token(token, NOW), [], NOW))  # noqa: B023 (called here)
    (found,) = mails(clock).items()
    assert (found[0][0], found[1]) == ("maria", 1)
    assert found[0][1].startswith("the token ci of maria ends on ")


def test_who_may_not_read_a_project_any_more_gets_no_mail_of_it(project: Project) -> None:
    maria, clock = person("maria", "gate", "tests"), FixedClock()
    owners.store(project.id, None, [OwnerRuleInfo("A", "@maria")], NOW)
    records.add_member(project, maria, "READ")
    judge(records.create_run(project, {"A a": FAILED}, commit_sha="0" * 40), clock)
    assert mails(clock).total() == 2
    permissions.remove_member(project.id, maria.id)
    assert mails(clock).total() == 0


def test_what_an_account_does_not_want_any_more_is_forgotten(project: Project) -> None:
    maria, clock = person("maria", "gate"), FixedClock()
    records.add_member(project, maria, "READ")
    judge(records.create_run(project, {"A a": FAILED}, commit_sha="0" * 40), clock)
    assert mails(clock).total() == 1
    in_store(lambda: account_mails.forget(maria.id, ["tests"]))
    assert mails(clock).total() == 1
    in_store(lambda: account_mails.forget(maria.id, ["gate"]))
    assert mails(clock).total() == 0
    assert in_store(lambda: store.execute_sql("SELECT count(*) FROM notify_state").fetchone()[0]) == 0
    judge(records.create_run(project, {"A b": FAILED}, commit_sha="1" * 40), clock)
    assert mails(clock).total() == 1, "wanted again, it is news"


@pytest.fixture
def mailbox() -> Iterator[tuple[Mailbox, int]]:
    with open_mailbox() as found:
        yield found


def mailing(serve: Serve, port: int) -> Server:
    smtp = {"host": "127.0.0.1", "port": port, "tls": "none", "from": "ops@example.com"}
    return serve({}, server={"public-url": "https://pilothouse.example"}, notify={"smtp": smtp})


def send(server: Server, commit: str, **counts: Any) -> None:
    upload(server, ("project", "shop"), ("commit", commit * 40), ("branch", "main"), ("junit", junit(**counts)))


def make_member(server: Server, name: str) -> User:
    """Lets an account read the first project."""
    with records.store_of(server):
        user = accounts.user_named(name)
        assert user is not None
        permissions.grant(1, user.id, "READ", NOW)
    return user


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_profile_chooses_mails_and_the_server_sends_them(serve: Serve, mailbox: tuple[Mailbox, int]) -> None:
    box, port = mailbox
    server = mailing(serve, port)
    send(server, "a", passed=1)
    browser = FormClient(server, create_session(server.data, "maria"))
    assert "to nobody, without an e-mail address" in browser.get("/profile").text
    assert browser.send("/profile", on="/profile", email="maria@example.com").status == 303
    page = browser.get("/profile").text
    assert page.count('type="checkbox"') == 3
    assert page.count("checked") == page.count('name="tokens" value="true" checked') == 1
    assert browser.send("/profile/mails", on="/profile", gate="true").status == 303
    page = browser.get("/profile").text
    assert page.count("checked") == page.count('name="gate" value="true" checked') == 1
    maria = make_member(server, "maria")
    admin = Admin(server)
    send(server, "b", failed=1)
    (row,) = admin.until_outbox("DONE")
    assert (row["target"], row["projectId"]) == (f"account:{maria.id}:gate:1", None)
    (mail,) = box.mails
    assert (mail["To"], box.recipients) == ("maria@example.com", ["maria@example.com"])
    assert mail["Subject"].strip().startswith("[Pilothouse] shop, main: gate failed")
    assert mail.get_content().splitlines()[1:] == [
        "  https://pilothouse.example/runs/2",
        "",
        "-- ",
        "Sent because of the mails that are chosen in your profile: https://pilothouse.example/profile",
    ]


def test_a_mail_that_waits_is_not_sent_once_it_is_not_wanted(serve: Serve, mailbox: tuple[Mailbox, int]) -> None:
    box, port = mailbox
    box.is_busy = True
    server = mailing(serve, port)
    send(server, "a", passed=1)
    browser = FormClient(server, create_session(server.data, "maria"))
    browser.send("/profile", on="/profile", email="maria@example.com")
    browser.send("/profile/mails", on="/profile", gate="true")
    make_member(server, "maria")
    admin = Admin(server)
    send(server, "b", failed=1)
    wait_for(lambda: [row["status"] for row in admin.outbox()] == [452])
    assert browser.send("/profile/mails", on="/profile").status == 303
    wait_for(lambda: admin.outbox() == [])
    assert box.mails == []


def test_a_server_without_mail_shows_no_choice_of_mails(serve: Serve) -> None:
    server = serve({})
    page = FormClient(server, create_session(server.data, "maria")).get("/profile")
    assert "/profile/mails" not in page.text
    assert not (server.data / "outbox.db").exists()
