"""Deliveries of a real server: signed, at least once with one id, only to allowed hosts, none waits for another."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import sqlite3
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from chart_servers import Reply, WebServer, web_server
from conftest import ROOT, Serve, Server, wait_for
from http_checks import running_server
from outbound_stores import LIMITS, in_store, open_outbox, written
from postgresql import Postgresql
from receivers import FAST_RULE, SECRET, Admin, allowing, flooding_port, hanging_port, ids, titles, webhook
from standardwebhooks.webhooks import Webhook
from uploads import junit, upload

from models.outbound import following, outbox, rules
from models.outbound.events import SubjectEvent
from models.outbound.outbox import Message
from models.outbound.tables import store

BOOM = {"command": ["sh", "-c", "exit 3"], "restart": "never"}
STAYS = {"command": ["sleep", "1000"]}
OK: Reply = (204, {}, b"")


@pytest.fixture
def receiver() -> Iterator[WebServer]:
    with web_server() as one:
        one.pages["/hook"] = OK
        yield one


def notify(url: str, **rule: Any) -> dict[str, Any]:
    return {"channels": {"team": webhook(url)}, "rules": [{**FAST_RULE, **rule}]}


def test_a_crash_is_delivered_signed_with_a_link(serve: Serve, receiver: WebServer) -> None:
    server = serve({"boom": BOOM}, server=allowing(receiver), notify=notify(f"{receiver.url}/hook"))
    server.do("start", "boom")
    (row,) = Admin(server).until_outbox("DONE")
    assert (row["attempts"], row["status"], row["title"]) == (1, 204, "boom ended with exit code 3")
    ((_, _, headers),) = receiver.seen
    message = Webhook(SECRET).verify(receiver.bodies[0], headers)
    assert (message["type"], headers["webhook-id"]) == ("process.crashed", row["messageId"])
    assert message["data"]["lines"][0]["link"] == "https://pilothouse.example/processes/boom"


def test_good_again_after_a_crash(serve: Serve, receiver: WebServer, tmp_path: Path) -> None:
    fails = tmp_path / "fails"
    fails.touch()
    command = ["sh", "-c", f"test ! -e {fails} || exit 3; sleep 1000"]
    rule = {"events": ["process.crashed"]}
    server = serve(
        {"web": {"command": command, "restart": "never"}},
        server=allowing(receiver), notify=notify(f"{receiver.url}/hook", **rule),
    )  # fmt: skip
    server.do("start", "web")
    wait_for(lambda: titles(receiver) == ["web ended with exit code 3"])
    fails.unlink()
    server.do("start", "web")
    wait_for(lambda: titles(receiver)[1:] == ["web is running"])


def test_a_kill_at_any_moment_loses_no_message_and_keeps_its_id(serve: Serve, receiver: WebServer) -> None:
    """Killed before, while and after the receiver answers: each crash is delivered at least once."""
    expected = []
    slow = [0.0]

    def page(_: Any) -> Reply:
        time.sleep(slow[0])
        return OK

    receiver.pages["/hook"] = page
    processes = {f"boom{number}": BOOM for number in range(6)}
    server = serve(processes, server=allowing(receiver), notify=notify(f"{receiver.url}/hook"))
    for number in range(6):
        slow[0] = 0.05 * number
        server.do("start", f"boom{number}")
        expected.append(f"boom{number} ended")  # without the code where the server was killed before it stored it
        wait_for(lambda: server.status(f"boom{number}") == "failed")  # noqa: B023 (called here)
        time.sleep(0.03 * number)  # a moment of the delivery, another one each time
        server.kill()
        server.start()
    # a message whose server was killed twice while it was sent is due again after 5, then 10 s
    wait_for(lambda: all(any(line.startswith(one) for line in _lines(receiver)) for one in expected), timeout=120)
    Admin(server).until_outbox(*["DONE"] * len(Admin(server).outbox()))
    by_id: dict[str, set[bytes]] = {}
    for (_, _, headers), body in zip(receiver.seen, receiver.bodies, strict=True):
        if len(body) == int(headers["content-length"]):  # the server was killed while it sent the others
            by_id.setdefault(headers["webhook-id"], set()).add(body)
    assert all(len(bodies) == 1 for bodies in by_id.values()), "a message that is sent again is the same"
    assert sum("ended" in line for line in _lines(receiver)) <= 2 * len(expected)
    assert len(receiver.seen) <= 2 * len(set(ids(receiver)))


def test_what_happens_while_there_are_no_rules_is_not_reported_later(serve: Serve, receiver: WebServer) -> None:
    processes = {"first": BOOM, "second": BOOM, "third": BOOM}
    reports, settings = notify(f"{receiver.url}/hook", events=["process.crashed"]), allowing(receiver)
    server = serve(processes, server=settings, notify=reports)
    server.do("start", "first")
    Admin(server).until_outbox("DONE")
    for process, section in (("second", {**reports, "rules": []}), ("third", reports)):
        server.stop()
        server.configure({"supervisor": {"processes": processes}, "server": settings, "notify": section})
        server.start()
        server.do("start", process)
        wait_for(lambda: server.status(process) == "failed")  # noqa: B023 (called here)
    wait_for(lambda: "third ended with exit code 3" in _lines(receiver))
    assert "second ended with exit code 3" not in _lines(receiver)


def _lines(receiver: WebServer) -> list[str]:
    """Of the complete messages: a server that is killed may have sent a part of one."""
    found = []
    for body in receiver.bodies:
        with contextlib.suppress(ValueError):
            found += [line["title"] for line in json.loads(body)["data"]["lines"]]
    return found


def test_an_unreachable_receiver_gets_the_same_message_later(serve: Serve, receiver: WebServer) -> None:
    answers = [(503, {"Retry-After": "1"}, b"busy"), (429, {"Retry-After": "1"}, b"slow down"), OK]
    receiver.pages["/hook"] = lambda _: answers.pop(0)
    server = serve({"boom": BOOM}, server=allowing(receiver), notify=notify(f"{receiver.url}/hook"))
    server.do("start", "boom")
    (row,) = Admin(server).until_outbox("DONE")
    assert (row["attempts"], len(set(ids(receiver)))) == (3, 1)


def test_a_target_that_hangs_delays_nothing_else(serve: Serve, receiver: WebServer) -> None:
    """Other targets, processes, uploads and the stop go on within its first request."""
    with hanging_port() as (port, held):
        settings = allowing(receiver, port)
        settings["outbound"]["timeout"] = "40s"  # the first request hangs during all of this
        server = serve(MANY, server=settings, notify=two_targets(receiver, port))
        nothing_waits(server, receiver, lambda: bool(held))
        assert len(held) == 1, "one request to a target at a time"
        server.stop()


def test_a_target_that_floods_delays_nothing_else(serve: Serve, receiver: WebServer) -> None:
    """Each of its responses has no end."""
    with flooding_port() as (port, sent):
        server = serve(MANY, server=allowing(receiver, port), notify=two_targets(receiver, port))
        nothing_waits(server, receiver, lambda: bool(sent))
        admin = Admin(server)

        def error() -> str | None:
            rows = admin.outbox("?target=channel:config:bad")
            return next((row["error"] for row in rows if row["error"]), None)

        assert wait_for(error) == f"http://127.0.0.1:{port} is larger than 1048576 bytes"
        server.stop()


MANY = {**{f"boom{number}": BOOM for number in range(5)}, "web": {**STAYS, "restart": "always", "auto-start": True}}


def two_targets(receiver: WebServer, port: int) -> dict[str, Any]:
    channels = {"bad": webhook(f"http://127.0.0.1:{port}/"), "team": webhook(f"{receiver.url}/hook")}
    rule = {**FAST_RULE, "channels": ["bad", "team"], "events": ["process.crashed"], "only-on-change": False}
    return {"channels": channels, "rules": [{**rule, "quiet": "0s"}]}


def nothing_waits(server: Server, receiver: WebServer, is_busy: Callable[[], bool]) -> None:
    """Checks that messages to another target arrive, a process is restarted and reports are stored meanwhile."""
    server.do("start", "boom0")
    wait_for(is_busy)
    for number in range(1, 5):
        assert server.do("start", f"boom{number}").status == 200
        wait_for(lambda: f"boom{number} ended with exit code 3" in _lines(receiver))  # noqa: B023 (called here)
        upload(server, ("project", "shop"), ("commit", f"{number:040}"), ("junit", junit(passed=3)))
    pid = server.info("web")["pid"]
    os.kill(pid, signal.SIGKILL)
    wait_for(lambda: server.info("web")["pid"] not in (pid, None))
    assert server.get("/readyz").status == 200


def test_a_flood_is_bounded_and_hides_no_other_target(serve: Serve, receiver: WebServer) -> None:
    with hanging_port() as (port, held):
        channels = {"hangs": webhook(f"http://127.0.0.1:{port}/"), "team": webhook(f"{receiver.url}/hook")}
        flood = {**FAST_RULE, "channels": ["hangs"], "only-on-change": False, "quiet": "0s", "max-per-hour": 10000}
        one = {**FAST_RULE, "name": "one", "channels": ["team"], "processes": ["last"]}
        processes = {"boom": {**BOOM, "restart": "never"}, "last": BOOM}
        settings = allowing(receiver, port, outbox={"max-rows": 10})
        settings["outbound"]["timeout"] = "40s"  # the first request hangs during all of this
        server = serve(processes, server=settings, notify={"channels": channels, "rules": [flood, one]})
        admin = Admin(server)
        newest = 0
        for _ in range(16):
            server.do("start", "boom")
            (row,) = wait_for(lambda: (rows := admin.outbox("?limit=1")) and rows[0]["id"] > newest and rows)  # noqa: B023 (called here)
            newest = row["id"]  # the next crash is another message
        server.do("start", "last")
        wait_for(lambda: titles(receiver) == ["last ended with exit code 3"])
        rows = admin.outbox("?limit=500")
        assert len(rows) <= 12
        assert len(held) == 1, "one request to a target at a time"
        assert any(row["error"] == "the outbox was full (server.outbox.max-rows)" for row in rows)


@pytest.mark.parametrize(
    ("url", "reason"),
    [
        ("http://127.0.0.1:9/x", "its address is loopback"),
        ("http://localhost:9/x", "its address is loopback"),
        ("https://169.254.169.254/latest", "of cloud metadata"),
        ("https://[::ffff:169.254.169.254]/", "of cloud metadata"),
        ("https://10.1.2.3/", "its address is private"),
        ("https://0x7f000001/", "its address is loopback"),
        ("http://192.0.2.7/", "it is not https"),
    ],
)
def test_only_allowed_hosts_are_reached(shared: Server, url: str, reason: str) -> None:
    admin = Admin(shared)
    made = admin.ask("POST", "/notify/channels", {"name": url[:60], "type": "slack", "url": url}).json
    answer = admin.ask("POST", f"/notify/channels/{made['id']}/test").json
    assert (answer["delivered"], answer["status"]) == (False, None)
    assert reason in answer["error"]
    assert "see server.outbound.allowed-hosts" in answer["error"]


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with running_server(tmp_path_factory.mktemp("shared")) as server:
        yield server


def test_no_redirect_is_followed_and_a_refusal_is_final_until_retried(serve: Serve, receiver: WebServer) -> None:
    receiver.pages["/hook"] = (302, {"Location": f"{receiver.url}/other"}, b"")
    server = serve({"boom": BOOM}, server=allowing(receiver), notify=notify(f"{receiver.url}/hook"))
    server.do("start", "boom")
    admin = Admin(server)
    (row,) = admin.until_outbox("DEAD")
    assert (row["status"], receiver.paths()) == (302, ["/hook"])
    receiver.pages["/hook"] = OK
    assert admin.ask("POST", f"/outbox/{row['id']}/retry").status == 202
    admin.until_outbox("DONE")
    assert len(set(ids(receiver))) == 1
    assert admin.ask("POST", f"/outbox/{row['id']}/retry").status == 409
    assert admin.ask("DELETE", f"/outbox/{row['id']}").status == 204
    assert admin.ask("DELETE", f"/outbox/{row['id']}").status == 404
    assert 'pilothouse_deliveries_total{kind="notify",result="dead"} 1.0' in server.get("/metrics").text


def test_what_is_given_up_is_reported_by_another_channel(serve: Serve, receiver: WebServer) -> None:
    receiver.pages["/gone"] = (404, {}, b"<b>no such hook</b>")
    channels = {"gone": webhook(f"{receiver.url}/gone"), "team": webhook(f"{receiver.url}/hook")}
    rules = [{**FAST_RULE, "channels": ["gone"]}, {**FAST_RULE, "name": "dead", "events": ["delivery.dead"]}]
    server = serve({"boom": BOOM}, server=allowing(receiver), notify={"channels": channels, "rules": rules})
    server.do("start", "boom")
    text = "a message to gone could not be delivered: <b>no such hook</b>"
    wait_for(lambda: text in titles(receiver), about=str(titles(receiver)))


def test_no_secret_is_shown_anywhere(serve: Serve, receiver: WebServer) -> None:
    path = "/services/T00/very-secret-path"
    receiver.pages[path] = (500, {}, f"cannot post to {path} with tok-very-secret".encode())
    server = serve({"boom": BOOM}, server=allowing(receiver))
    admin = Admin(server)
    channel = {"name": "team", "type": "post", "url": f"{receiver.url}{path}", "token": "tok-very-secret"}
    made = admin.ask("POST", "/notify/channels", channel)
    assert made.status == 201, made
    rule = {"name": "all", "channels": ["team"], "events": ["process.crashed"], "groupWait": 0}
    assert admin.ask("POST", "/notify/rules", rule).status == 201
    server.do("start", "boom")
    row = wait_for(lambda: next((row for row in admin.outbox() if row["error"]), None))
    assert row["error"] == "cannot post to (hidden) with (hidden)"
    id = made.json["id"]
    shown = [admin.ask("GET", path).text for path in ("/outbox", "/notify/channels", f"/notify/channels/{id}")]
    shown += [admin.ask("POST", f"/notify/channels/{id}/test").text, server.log.read_text(), made.text]
    shown += [Path(f"/proc/{server.pid}/cmdline").read_text()]
    server.stop()
    for name in ("tracker.db", "outbox.db", "pilothouse.db"):
        with contextlib.closing(sqlite3.connect(server.data / name)) as store:
            shown.append("\n".join(store.iterdump()))
    assert not [text for text in shown if "very-secret" in text]
    assert (server.data / "secrets.db").stat().st_mode & 0o777 == 0o600
    assert (server.data / "outbox.db").stat().st_mode & 0o777 == 0o600


def test_a_webhook_that_is_gone_is_switched_off(serve: Serve, receiver: WebServer) -> None:
    receiver.pages["/hook"] = (410, {}, b"gone")
    server = serve({"boom": BOOM}, server=allowing(receiver))
    admin = Admin(server)
    made = admin.ask("POST", "/notify/channels", {"name": "t", "type": "webhook", "url": f"{receiver.url}/hook"}).json
    assert made["generatedSecret"].startswith("whsec_")
    admin.ask(
        "POST", "/notify/rules", {"name": "all", "channels": ["t"], "events": ["process.crashed"], "groupWait": 0}
    )
    server.do("start", "boom")
    admin.until_outbox("DEAD")
    found = wait_for(lambda: (one := admin.ask("GET", f"/notify/channels/{made['id']}").json)["reason"] and one)
    assert (found["enabled"], found["reason"]) == (False, "its target answered 410 (gone)")
    assert "generatedSecret" in found
    assert found["generatedSecret"] is None


def test_a_secret_that_is_rotated_signs_beside_the_old_one(serve: Serve, receiver: WebServer) -> None:
    server = serve({}, server=allowing(receiver))
    admin = Admin(server)
    channel = {"name": "t", "type": "webhook", "url": f"{receiver.url}/hook"}
    made = admin.ask("POST", "/notify/channels", channel).json
    new = "whsec_" + "bmV3LXNlY3JldC1vZi10aGUtd2ViaG9vay1vZi10ZXN0"
    changed = admin.ask("PUT", f"/notify/channels/{made['id']}", {"name": "t", "type": "webhook", "secret": new})
    assert (changed.status, changed.json["url"]["set"]) == (200, True)
    assert admin.ask("POST", f"/notify/channels/{made['id']}/test").json["delivered"] is True
    headers = receiver.seen[0][2]
    for secret in (made["generatedSecret"], new):
        Webhook(secret).verify(receiver.bodies[0], headers)
    assert len(headers["webhook-signature"].split()) == 2


@pytest.mark.parametrize(("before", "change"), [("webhook", {"secret": None}), ("slack", {})])
def test_no_webhook_is_left_without_a_secret(
    serve: Serve, receiver: WebServer, before: str, change: dict[str, Any]
) -> None:
    admin = Admin(serve({}, server=allowing(receiver)))
    made = admin.ask("POST", "/notify/channels", {"name": "t", "type": before, "url": f"{receiver.url}/hook"}).json
    path = f"/notify/channels/{made['id']}"
    changed = admin.ask("PUT", path, {"name": "t", "type": "webhook", **change}).json
    assert (changed["secret"]["set"], changed["generatedSecret"][:6]) == (True, "whsec_")
    assert admin.ask("POST", f"{path}/test").json["delivered"] is True
    Webhook(changed["generatedSecret"]).verify(receiver.bodies[0], receiver.seen[0][2])


def test_two_nodes_of_one_database_send_each_message_once(
    serve: Serve, receiver: WebServer, postgresql: Postgresql
) -> None:
    processes = {f"boom{number}": BOOM for number in range(5)}
    settings = allowing(receiver, **{"database-url": postgresql.fresh()})
    reports = notify(f"{receiver.url}/hook")
    nodes = [serve(processes, server=settings, notify=reports) for _ in range(2)]
    for number in range(5):
        for node in nodes:
            node.do("start", f"boom{number}")
    expected = Counter({f"boom{number} ended with exit code 3": 2 for number in range(5)})
    wait_for(lambda: Counter(line for line in _lines(receiver) if "ended" in line) == expected, about=str(expected))
    assert len(set(ids(receiver))) == len(receiver.seen)


def test_idle_nodes_are_notified_of_what_another_one_stores(
    serve: Serve, receiver: WebServer, postgresql: Postgresql, tmp_path: Path
) -> None:
    """A rule, a message that is due, and an event that is: here the test is the other node, which then ends."""
    url, notify = postgresql.fresh(), {"channels": {"team": webhook(f"{receiver.url}/hook")}}
    settings = allowing(receiver, **{"database-url": url})
    first, *_ = (serve({}, server=settings, notify=notify) for _ in range(2))
    with open_outbox(tmp_path / "unused", url):
        rule = {"name": "all", "channels": ["team"], "events": ["process.crashed"], "groupWait": 0}
        assert Admin(first).ask("POST", "/notify/rules", rule).status == 201
        followed = "SELECT count(*) FROM follow WHERE name LIKE 'event %'"
        wait_for(lambda: in_store(lambda: store.execute_sql(followed).fetchone()[0]) == 2, about="both read the rule")
        now = time.time_ns() // 1000
        payload = {"type": "test", "timestamp": "", "data": {"rule": "", "title": "a message", "lines": [], "more": 0}}
        written(lambda: outbox.add([Message("notify", "channel:config:team", payload)], now, LIMITS))
        wait_for(lambda: titles(receiver) == ["a message"])
        event = SubjectEvent("process.crashed", "process:web", now, "web crashed", process="web")
        in_store(lambda: following.note(event, rules.stored(), now))
        wait_for(lambda: titles(receiver) == ["a message", "web crashed"])
        Admin(first).until_outbox("DONE", "DONE")


LOADED = """
import sys
import handlers.app, supervisor.services
lazy = ("supervisor.outbound.core", "models.outbound.formats", "supervisor.outbound.mail", "smtplib", "email.mime")
print([name for name in lazy if name in sys.modules])
"""


def test_nothing_is_loaded_where_nothing_is_configured(serve: Serve) -> None:
    server = serve({})
    assert server.get("/metrics").status == 200
    assert not (server.data / "outbox.db").exists()
    found = subprocess.run([sys.executable, "-c", LOADED], capture_output=True, cwd=ROOT, text=True, check=True)
    assert found.stdout == "[]\n"
