"""Channels, rules and the outbox by API and page: who may, what is refused, and the events of a project."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
import records
import uploads
import users
from chart_servers import WebServer, web_server
from conftest import ROOT, Serve, Server, wait_for
from http_checks import running_server
from receivers import FAST_RULE, Admin, allowing, titles, webhook

from models.accounts import accounts
from models.config.loader import load

JUNIT = '<testsuite name="s"><testcase classname="c" name="{name}">{inner}</testcase></testsuite>'


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with running_server(tmp_path_factory.mktemp("shared")) as server:
        yield server


@pytest.fixture
def receiver() -> Iterator[WebServer]:
    with web_server() as one:
        one.pages["/hook"] = (204, {}, b"")
        yield one


def channel(name: str, **more: Any) -> dict[str, Any]:
    return {"name": name, "type": "slack", "url": "https://chat.example/hook", **more}


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("GET", "/outbox"), ("GET", "/notify/channels"), ("POST", "/notify/channels"), ("GET", "/notify/rules"),
        ("POST", "/notify/rules"), ("POST", "/notify/channels/x/test"), ("DELETE", "/notify/channels/x"),
    ],
)  # fmt: skip
def test_what_belongs_to_the_server_is_for_an_admin(shared: Server, method: str, path: str) -> None:
    body = {**channel("x"), "channels": ["x"], "events": ["*"]} if path.endswith(("channels", "rules")) else None
    if body and path.endswith("rules"):
        body = {"name": "x", "channels": ["x"], "events": ["*"]}
    elif body:
        body = channel("x")
    user = Admin(shared, "joe", "USER")
    assert user.ask(method, path, None if method == "GET" else body).status == 403
    assert shared.ask(method, f"/api/v1{path}", json.dumps(body).encode()).status == 401


def test_an_owner_has_the_channels_of_a_project_and_nobody_else(shared: Server) -> None:
    owner, other = Admin(shared, "owner", "USER"), Admin(shared, "other", "USER")
    with records.store_of(shared):
        project = records.create_project("shop")
        records.add_member(project, users_named("owner"), "OWNER")
        records.add_member(project, users_named("other"), "WRITE")
    path = f"/projects/{project.id}/notify"
    made = owner.ask("POST", f"{path}/channels", channel("team"))
    assert (made.status, made.json["projectId"]) == (201, project.id)
    id = made.json["id"]
    rule = owner.ask("POST", f"{path}/rules", {"name": "gates", "channels": ["team"], "events": ["gate.*"]})
    assert (rule.status, rule.json["channels"], rule.json["quiet"]) == (201, [id], 900)
    assert owner.ask("DELETE", f"{path}/channels/{id}").status == 409, "a rule uses it"
    assert other.ask("GET", f"{path}/channels").status == 403
    assert other.ask("POST", f"{path}/channels/{id}/test").status == 403
    assert owner.ask("GET", f"/outbox?projectId={project.id}").json == {"items": [], "nextCursor": None}
    assert owner.ask("GET", f"/notify/channels/{id}").status == 403
    assert Admin(shared).ask("GET", f"/notify/channels/{id}").status == 404, "it is the project's"
    foreign = {"name": "x", "channels": [id], "events": ["*"]}
    assert Admin(shared).ask("POST", "/notify/rules", foreign).status == 400
    assert owner.ask("DELETE", f"{path}/rules/{rule.json['id']}").status == 204
    assert owner.ask("DELETE", f"{path}/channels/{id}").status == 204


@pytest.mark.parametrize(
    ("url", "host"),
    [
        ("https://[2001:DB8::1]:8443/hook", "https://[2001:db8::1]:8443"),
        ("https://[2001:db8::1]/hook", "https://[2001:db8::1]"),
        ("https://joe:pw@Chat.example:443/hook", "https://chat.example"),
        ("http://chat.example:443/hook", "http://chat.example:443"),
    ],
)
def test_the_host_of_a_channel_is_shown_as_in_an_address(shared: Server, url: str, host: str) -> None:
    made = Admin(shared).ask("POST", "/notify/channels", channel(url, url=url))
    assert (made.status, made.json["host"]) == (201, host)


def test_ids_of_messages_show_nothing_to_callers_without_the_permission(serve: Serve, receiver: WebServer) -> None:
    """Also to a member of the message's project: the answer is that for a message that does not exist."""
    receiver.pages["/hook"] = (404, {}, b"")
    server = serve({"boom": {"command": ["sh", "-c", "exit 3"], "restart": "never"}}, server=allowing(receiver))
    admin, owner, writer = Admin(server), Admin(server, "owner", "USER"), Admin(server, "writer", "USER")
    with records.store_of(server):
        project = records.create_project("shop")
        records.add_member(project, users_named("owner"), "OWNER")
        records.add_member(project, users_named("writer"), "WRITE")
    of_project = f"/projects/{project.id}/notify"
    for one, path, events in ((admin, "/notify", "process.crashed"), (owner, of_project, "gate.failed")):
        assert one.ask("POST", f"{path}/channels", channel("team", url=f"{receiver.url}/hook")).status == 201
        rule = {"name": "all", "channels": ["team"], "events": [events], "groupWait": 0}
        assert one.ask("POST", f"{path}/rules", rule).status == 201
    server.do("start", "boom")
    upload(server, "a" * 40, "<failure/>")
    rows = wait_for(lambda: [row["id"] for row in admin.until_outbox("DEAD", "DEAD")])
    id_of_project = owner.outbox(f"?projectId={project.id}")[0]["id"]
    for method, end in (("POST", "/retry"), ("DELETE", "")):
        for caller, id in (
            (writer, rows[0]),
            (writer, rows[1]),
            (owner, next(id for id in rows if id != id_of_project)),
        ):
            refused, absent = (caller.ask(method, f"/outbox/{number}{end}") for number in (id, 99))
            assert (refused.status, absent.status) == (404, 404)
            assert refused.json["detail"].replace(str(id), "99") == absent.json["detail"]
    assert owner.ask("DELETE", f"/outbox/{id_of_project}").status == 204


def users_named(name: str) -> Any:
    return accounts.user_named(name)


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        ({"type": "slack", "url": "https://a.example"}, "name is required"),
        ({"name": "a", "type": "slack"}, "url is required"),
        ({"name": "a", "type": "irc"}, "type must be one of webhook, slack, teams, email, post"),
        ({"name": "a", "type": "slack", "url": "ftp://secret.example"}, "url is not an http or https URL with a host"),
        ({"name": "a", "type": "email"}, "to must have at least one address"),
        ({"name": "a", "type": "email", "to": ["a@b\r\nBcc: c@d"]}, "to has an item that is no text"),
        ({"name": "a", "type": "email", "to": ["Joe <a@b>"]}, "to 'Joe <a@b>' is not a mail address"),
        ({"name": "a", "type": "webhook", "url": "https://a.example", "secret": "x"}, "secret must be whsec_"),
        ({"name": "a\nb", "type": "slack", "url": "https://a.example"}, "name must be a text"),
        ({"name": "a", "type": "slack", "url": "https://a.example", "colour": 1}, "colour is not a field of a channel"),
    ],
)
def test_a_channel_that_cannot_be_used_is_refused(shared: Server, body: dict[str, Any], reason: str) -> None:
    answer = Admin(shared).ask("POST", "/notify/channels", body)
    assert (answer.status, answer.headers["Content-Type"]) == (400, "application/problem+json")
    assert reason in answer.json["detail"]
    assert "secret.example" not in answer.text


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"events": ["process.exploded"]}, "events 'process.exploded' is not one of process.crashed"),
        ({"channels": ["nowhere"]}, "channels: there is no channel nowhere"),
        ({"quiet": -1}, "quiet must be a number of seconds"),
        ({"maxPerHour": 0}, "maxPerHour must be a whole number from 1"),
    ],
)
def test_a_rule_that_cannot_be_used_is_refused(shared: Server, changes: dict[str, Any], reason: str) -> None:
    admin = Admin(shared)
    admin.ask("POST", "/notify/channels", channel("known"))
    rule = {"name": "r", "channels": ["known"], "events": ["*"], **changes}
    answer = admin.ask("POST", "/notify/rules", rule)
    assert answer.status == 400, answer
    assert reason in answer.json["detail"]


def test_names_are_unique_and_what_is_configured_is_read_only(serve: Serve) -> None:
    notify = {"channels": {"team": webhook("https://hooks.example/x")}, "rules": [FAST_RULE]}
    admin = Admin(serve({}, notify=notify))
    assert admin.ask("POST", "/notify/channels", channel("one")).status == 201
    assert admin.ask("POST", "/notify/channels", channel("one")).status == 409
    taken = admin.ask("POST", "/notify/channels", channel("team"))
    assert (taken.status, taken.json["detail"]) == (409, "there is another channel named team, in the configuration")
    assert admin.ask("PUT", "/notify/channels/config:team", channel("team")).status == 409
    assert admin.ask("DELETE", "/notify/channels/config:team").status == 409
    assert admin.ask("DELETE", "/notify/rules/config:all").status == 409
    assert admin.ask("GET", "/notify/rules/config:all").json["source"] == "config"
    assert admin.ask("GET", "/notify/channels/config:team").json["secret"] == {"set": True, "updatedAt": None}
    rule = {"name": "own", "channels": ["team"], "events": ["run.incomplete"]}
    id = admin.ask("POST", "/notify/rules", rule).json["id"]
    changed = admin.ask("PUT", f"/notify/rules/{id}", {**rule, "quiet": 5, "branches": ["release/*"]})
    assert (changed.json["quiet"], changed.json["branches"]) == (5, ["release/*"])


def test_five_tests_in_a_minute(shared: Server) -> None:
    admin = Admin(shared)
    id = admin.ask("POST", "/notify/channels", channel("throttled", url="https://127.0.0.1:9/")).json["id"]
    answers = [admin.ask("POST", f"/notify/channels/{id}/test") for _ in range(6)]
    assert [answer.status for answer in answers] == [200] * 5 + [429]
    assert int(answers[5].headers["Retry-After"]) <= 61


def upload(server: Server, commit: str, inner: str = "", branch: str = "main") -> None:
    report = JUNIT.format(name="t", inner=inner)
    uploads.upload(server, ("project", "shop"), ("commit", commit), ("branch", branch), ("junit", report))


def test_a_gate_that_fails_and_passes_again(serve: Serve, receiver: WebServer) -> None:
    notify = {"channels": {"team": webhook(f"{receiver.url}/hook")}, "rules": [FAST_RULE]}
    server = serve({}, server=allowing(receiver), notify=notify)
    upload(server, "a" * 40)
    upload(server, "b" * 40, "<failure/>", branch="topic")
    upload(server, "c" * 40, "<failure/>")
    text = "shop, main: gate failed (new-failures: "
    wait_for(lambda: len(titles(receiver)) == 1)
    assert titles(receiver)[0].startswith(text), titles(receiver)
    message = json.loads(receiver.bodies[0])
    assert re.fullmatch(r"https://pilothouse\.example/runs/\d+", message["data"]["lines"][0]["link"])
    upload(server, "d" * 40)
    wait_for(lambda: titles(receiver)[1:] == ["shop, main: gate passed, 1 tests passed"])


def test_the_page_shows_channels_rules_and_deliveries_and_tests_a_channel(serve: Serve, receiver: WebServer) -> None:
    receiver.pages["/dead"] = (404, {}, b"<b>no hook</b>")
    notify = {"channels": {"team": webhook(f"{receiver.url}/dead")}, "rules": [FAST_RULE]}
    boom = {"command": ["sh", "-c", "exit 3"], "restart": "never"}
    server = serve({"boom": boom}, server=allowing(receiver), notify=notify)
    server.do("start", "boom")
    admin = Admin(server)
    (row,) = admin.until_outbox("DEAD")
    page = server.ask("GET", "/notifications", headers=admin.headers)
    assert page.status == 200
    for text in (
        "boom ended with exit code 3",
        "&lt;b&gt;no hook&lt;/b&gt;",
        "process.crashed",
        "Send a test",
        "Retry",
    ):
        assert text in page.text, text
    assert "/dead" not in page.text
    tested = server.ask("POST", "/notifications/channels/config%3Ateam/test", b"", admin.headers)
    assert "Not delivered" in tested.text
    receiver.pages["/dead"] = (204, {}, b"")
    answer = server.ask("POST", f"/notifications/{row['id']}/retry", b"", admin.headers)
    assert (answer.status, answer.headers["Location"]) == (303, "/notifications")
    admin.until_outbox("DONE")
    assert server.ask("GET", "/notifications").status == 302
    assert server.ask("GET", "/notifications", headers=Admin(server, "joe", "USER").headers).status == 403


def test_users_of_other_roles_see_no_message(serve: Serve) -> None:
    server = serve({})
    session = users.create_session(server.data, "joe")
    assert server.get("/api/v1/outbox", **users.cookie(server, session)).status == 403


def test_the_demo_sends_to_a_chat_of_its_own(tmp_path: Path) -> None:
    """`make demo` appends one file to the other."""
    names = ("pilothouse.yaml", "demo.yaml")
    (tmp_path / "demo.yaml").write_text("".join((ROOT / "examples" / name).read_text() for name in names))
    config = load(tmp_path / "demo.yaml", {})
    assert {"crasher", "chat"} <= config.supervisor.processes.keys()
    assert config.notify.rules[0].channels == ("chat",)
    host = urlsplit(config.notify.channels["chat"].url or "").netloc
    assert config.server.outbound.allowed_hosts == (host,)
    assert f'("127.0.0.1", {host.partition(":")[2]})' in config.supervisor.processes["chat"].command[2]
