"""Failure clusters: signatures, counts over uploads, retries and deletions, triage rules, and the search."""

from __future__ import annotations

import json
import time
from typing import Any
from urllib.parse import quote, urlencode

import pytest
import records
from conftest import Answer, Server
from uploads import query_store, upload

from models.errors import Conflict, Invalid
from models.json_format import Instant
from models.tracker.failures import clusters, signatures, triage
from models.tracker.failures import run_failures as failures
from models.tracker.failures.signatures import MAX_CHARACTERS, signature
from models.tracker.failures.triage import TriageRuleInfo
from models.tracker.tables import reports

pytest_plugins = ["shared_server"]

API = "/api/v1"


def report(**messages: str) -> str:
    """A JUnit report of failed tests with these messages."""
    cases = (
        f"<testcase classname='A' name='{name}'><failure type='E' message='{text}'>E\n\tat a.B.c(B.java:7)</failure>"
        "</testcase>"
        for name, text in messages.items()
    )
    return f"<testsuite name='s'>{''.join(cases)}<testcase classname='A' name='fine'/></testsuite>"


def read(server: Server, path: str, status: int = 200, **headers: str) -> Any:
    answer = server.get(f"{API}/{path}", **headers)
    assert answer.status == status, answer
    return answer.json


def send(server: Server, method: str, path: str, body: Any, **headers: str) -> Answer:
    data = None if body is None else json.dumps(body).encode()
    return server.ask(method, f"{API}/{path}", data, headers={"Content-Type": "application/json", **headers})


def counts(server: Server, run: Any, query: str = "") -> list[tuple[int, int, int, int]]:
    items = read(server, f"projects/{run['projectId']}/clusters{query}")["items"]
    return [(row["tests"], row["occurrences"], row["firstRunId"], row["lastRunId"]) for row in items]


SAME_SIGNATURE = {
    "numbers": ("got 12 of 1,024.5", "got 3 of 7"),
    "quoted values": ("no key 'abc' in \"x y\"", "no key 'd' in \"\""),
    "expected values": ("expected:<a> but", "expected:<b c> but"),
    "paths": ("cannot open /home/ci/b-1/x.txt", "cannot open C:\\work\\y.txt"),
    "relative paths": ("src/a/b_test.py:12: Error", "src/c/d_test.py:7: Error"),
    "addresses": ("no route to http://10.0.0.1:80/x?y=1", "no route to https://example.com/"),
    "uuids": ("id 3f2504e0-4f89-11d3-9a0c-0305e82c3301", "id 9f2504e0-4f89-11d3-9a0c-0305e82c3309"),
    "objects": ("Foo@1a2b3c is null", "Foo@99 is null"),
    "hexadecimal": ("at 0xdeadBEEF", "at 0x1"),
    "times": ("until 2026-11-01T10:00:00.123Z", "until 2025-01-02T03:04:05+02:00"),
    "durations": ("timeout after 30 s", "timeout after 1.5 ms"),
    "white space": ("a  b", "a\tb"),
    "later lines": ("one\ntwo", "\n one\nthree"),
}
DIFFERENT_SIGNATURE = {
    "words": ("connection refused", "connection reset"),
    "an apostrophe is no quote": ("can't open it, don't", "can't close it, don't"),
    "no path": ("and/or", "either/or"),
}


@pytest.mark.parametrize("texts", SAME_SIGNATURE.values(), ids=list(SAME_SIGNATURE))
def test_values_that_vary_between_runs_are_not_in_a_signature(texts: tuple[str, str]) -> None:
    assert signature("E", texts[0], None) == signature("E", texts[1], None) != signature("E", "", None)


@pytest.mark.parametrize("texts", DIFFERENT_SIGNATURE.values(), ids=list(DIFFERENT_SIGNATURE))
def test_different_messages_have_different_signatures(texts: tuple[str, str]) -> None:
    assert signature("E", texts[0], None) != signature("E", texts[1], None)


def test_a_signature_has_the_type_the_first_line_and_the_top_frame() -> None:
    stack = "java.lang.E: x\n\tat a.B.c(B.java:12)\n\tat d.E.f(E.java:3)\n"
    assert signature("java.lang.E", "\n\n x 1\ny", stack) == "java.lang.E | x # | at a.B.c(B.java:#)"
    assert signature(None, None, "\n E   assert 1\n") == " |  | E assert #"
    assert len(signature("E", "word " * 1000, None)) == MAX_CHARACTERS


def test_failures_of_one_signature_are_one_cluster_across_tests_and_runs(server: Server, project: str) -> None:
    first = upload(server, ("project", project), ("branch", "main"), ("junit", report(a="no 1", b="no 2", c="other")))
    assert counts(server, first) == [(2, 2, first["runId"], first["runId"]), (1, 1, first["runId"], first["runId"])]
    last = upload(server, ("project", project), ("branch", "side"), ("junit", report(b="no 5", d="no 6")))
    id = first["runId"]
    assert counts(server, first) == [(3, 4, id, last["runId"]), (1, 1, id, id)]
    assert counts(server, first, "?branch=main") == [(2, 2, id, id), (1, 1, id, id)]
    assert counts(server, first, "?since=2999-01-01") == []
    assert counts(server, first, "?branch=side&since=2020-01-01T00:00:00Z") == [(2, 2, last["runId"], last["runId"])]
    (row,) = read(server, f"runs/{last['runId']}/clusters")["items"]
    assert (row["signature"], row["type"], row["message"]) == ("E | no # | at a.B.c(B.java:#)", "E", "no 1")
    assert (row["category"], row["tests"], row["occurrences"]) == ("untriaged", 2, 2)
    assert read(server, f"projects/{first['projectId']}/clusters?since=soon", 400)["message"].startswith(
        "since must be"
    )


def test_a_file_that_is_sent_again_is_not_counted_again(server: Server, project: str) -> None:
    parts = [("project", project), ("runKey", project), ("junit", report(a="no", b="no"))]
    upload(server, *parts)
    run = upload(server, *parts)
    shard = upload(server, *parts[:2], ("junit", report(a="no", c="no")))
    assert (shard["runId"], counts(server, run)) == (run["runId"], [(3, 4, run["runId"], run["runId"])])


@pytest.mark.parametrize("order", [(1, 2), (2, 1)], ids=["in order", "the earlier comes late"])
def test_the_failures_of_a_superseded_attempt_do_not_count(
    server: Server, project: str, order: tuple[int, int]
) -> None:
    sent = {1: report(a="no", b="no"), 2: report(b="no")}
    other = upload(server, ("project", project), ("runKey", project), ("jobKey", "lint"), ("junit", report(z="other")))
    for attempt in order:
        job = ("runKey", project), ("jobKey", "unit"), ("attempt", str(attempt))
        upload(server, ("project", project), *job, ("junit", sent[attempt]))
    assert counts(server, other) == [(1, 1, other["runId"], other["runId"])] * 2


def test_a_deleted_run_takes_its_failures_from_the_clusters(
    server: Server, project: str, admin_header: dict[str, str]
) -> None:
    first = upload(server, ("project", project), ("junit", report(a="no", b="no", c="gone")))
    last = upload(server, ("project", project), ("junit", report(b="no")))
    assert server.ask("DELETE", f"{API}/runs/{first['runId']}", headers=admin_header).status == 204
    assert counts(server, first) == [(1, 1, last["runId"], last["runId"])]
    assert server.ask("DELETE", f"{API}/runs/{last['runId']}", headers=admin_header).status == 204
    assert query_store(server, "SELECT count(*) FROM cluster WHERE project_id = ?", first["projectId"]) == [(0,)]


def test_clusters_are_paginated(server: Server, project: str) -> None:
    words = "abcdefg"
    run = upload(server, ("project", project), ("junit", report(**{name: f"{name} {name}" for name in words})))
    path = f"projects/{run['projectId']}/clusters?limit=3"
    page = read(server, path)
    found = [row["id"] for row in page["items"]]
    while page["nextCursor"]:
        page = read(server, f"{path}&cursor={page['nextCursor']}")
        found += [row["id"] for row in page["items"]]
    assert (len(found), len(set(found))) == (7, 7)
    assert read(server, f"{path}&cursor=WzFd", 400)["message"] == "cursor is not one of this list"
    exported = server.get(f"{API}/projects/{run['projectId']}/clusters?format=ndjson").text.splitlines()
    assert [json.loads(line)["id"] for line in exported] == found


def test_failures_of_an_earlier_version_are_counted_in_batches(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(clusters, "_BACKFILL_BATCH", 2)
    with records.store_of(server):
        project = records.create_project("upgraded")
        tests = {f"A t{n}": records.FAILED for n in range(5)}
        run, retried = records.create_run(project, tests), records.create_run(project, tests)
        last = reports.execute_sql("SELECT max(result_id) FROM failure").fetchone()[0]
        reports.execute_sql("INSERT INTO backfill (name, position) VALUES ('clusters', ?)", (last,))
        reports.execute_sql("UPDATE run SET superseded_by = ? WHERE id = ?", (run.id, retried.id))
        while clusters.backfill():
            pass
        (cluster,) = clusters.of_run(run.id, (), 10)
        assert (cluster.tests, cluster.occurrences) == (5, 5)
        assert cluster.signature == "AssertionError | t# is broken | at line #"
        assert clusters.listing(project.id, (), 10) == [cluster]


# Triage


def rule(pattern: str, field: Any = "any", category: str = "found") -> TriageRuleInfo:
    return TriageRuleInfo(1, "r", category, pattern, field, 100, Instant(0))


@pytest.mark.parametrize(
    ("pattern", "field", "matches"),
    [
        ("refused", "any", True),
        ("REFUSED", "message", True),
        ("connection*db-1", "any", True),
        ("db-1*connection", "any", False),
        ("IOError*refused", "any", True),
        ("refused", "type", False),
        ("ioerror", "type", True),
        ("at net.", "stack", True),
        ("c.nn", "any", False),
        ("*", "any", True),
    ],
)  # fmt: skip
def test_triage_pattern_has_star_wildcards_and_ignores_case(pattern: str, field: str, matches: bool) -> None:
    found = triage.category([rule(pattern, field)], "IOError", "Connection to DB-1 refused", "at net.Socket")
    assert found == ("found" if matches else "untriaged")


def test_the_first_rule_wins_and_only_the_first_16_kib_are_searched() -> None:
    rules = [rule("needle", category="one"), rule("hay", category="two")]
    assert triage.category(rules, None, "hay needle", None) == "one"
    assert triage.category(rules, None, "hay " + "x" * 16 * 1024 + "needle", None) == "two"


def test_a_pattern_of_500_stars_takes_milliseconds() -> None:
    text, begin = "ab" * 8 * 1024, time.process_time()
    assert triage.category([rule("*" * 500)], None, text, None) == "found"
    assert triage.category([rule("a*" * 249 + "c")], None, text, None) == "untriaged"
    assert time.process_time() - begin < 1


def test_triage_rules_are_added_tried_by_priority_and_deleted(
    server: Server, project: str, admin_header: dict[str, str]
) -> None:
    run = upload(server, ("project", project), ("junit", report(a="no route to host", b="assert 1")))
    path = f"projects/{run['projectId']}/triage-rules"
    later = send(server, "POST", path, {"name": "all", "category": "bug", "pattern": "*"}, **admin_header)
    assert (later.status, later.json["field"], later.json["priority"]) == (201, "any", 100)
    first = {"name": "net", "category": "network", "pattern": "NO route", "field": "message", "priority": 5}
    assert send(server, "POST", path, first, **admin_header).status == 201
    assert [row["name"] for row in read(server, path)["items"]] == ["net", "all"]
    items = read(server, f"projects/{run['projectId']}/clusters")["items"]
    assert {row["message"]: row["category"] for row in items} == {"no route to host": "network", "assert 1": "bug"}
    page = read(server, f"{path}?limit=1")
    assert [row["name"] for row in read(server, f"{path}?limit=1&cursor={page['nextCursor']}")["items"]] == ["all"]
    other = upload(server, ("project", f"{project} other"), ("junit", report(a="no")))
    foreign = f"projects/{other['projectId']}/triage-rules/{later.json['id']}"
    assert send(server, "DELETE", foreign, None, **admin_header).status == 404
    assert send(server, "DELETE", f"{path}/{later.json['id']}", None).status == 401
    assert send(server, "DELETE", f"{path}/{later.json['id']}", None, **admin_header).status == 204
    assert len(read(server, path)["items"]) == 1


VALID_RULE = {"name": "n", "category": "c", "pattern": "p"}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"name": ""}, "name is required"),
        ({"category": "c" * 65}, "category must have at most 64"),
        ({"pattern": "p" * 501}, "pattern must have at most 500"),
        ({"field": "title"}, "field must be one of any, type, message, stack"),
        ({"priority": 1.5}, "priority must be a whole number"),
        ({"regex": True}, "regex is not a field"),
    ],
)
def test_invalid_triage_rule_is_refused_with_its_field(change: dict[str, Any], message: str) -> None:
    with pytest.raises(Invalid, match=message):
        triage.read({**VALID_RULE, **change})


def test_a_project_has_at_most_200_rules(server: Server) -> None:
    with records.store_of(server):
        id = records.create_project("many rules").id
        for _ in range(triage.MAX_RULES):
            triage.add(id, triage.read(VALID_RULE), 0)
        with pytest.raises(Conflict):
            triage.add(id, triage.read(VALID_RULE), 0)


# Search


def test_the_search_finds_tests_and_failures_by_words(server: Server, project: str) -> None:
    run = upload(server, ("project", project), ("junit", report(buy="card declined", sell="out of stock")))
    path = f"projects/{run['projectId']}/search"
    found = read(server, f"{path}?q=BU")
    assert found == {
        "items": [{"className": "A", "name": "buy", "file": None, "owner": None}], "nextCursor": None, "partial": False,
    }  # fmt: skip
    assert [row["message"] for row in read(server, f"{path}?q=declined%20card&in=failures")["items"]] == [
        "card declined"
    ]
    page = read(server, f"{path}?q=a&limit=1")
    rest = read(server, f"{path}?q=a&limit=5&cursor={quote(page['nextCursor'])}")
    assert [row["name"] for row in page["items"] + rest["items"]] == ["buy", "sell", "fine"]
    for query in ("", "?q=", "?q=a&in=runs", "?q=a&cursor=x"):
        assert read(server, path + query, 400)["status"] == 400
    assert read(server, "projects/999999/search?q=a", 404)["status"] == 404


# Pages


def page(server: Server, path: str, **headers: str) -> str:
    answer = server.get(path, Accept="text/html", **headers)
    assert answer.status == 200, answer
    return answer.text


def test_the_pages_show_clusters_tests_rules_owners_and_search(
    server: Server, project: str, admin_header: dict[str, str]
) -> None:
    evil = "&lt;script&gt;no 1"
    run = upload(server, ("project", project), ("branch", "main"), ("junit", report(a=evil, b=evil)))
    base = f"/projects/{run['projectId']}"
    rules = {"name": "net", "category": "network", "pattern": "script"}
    assert send(server, "POST", base[1:] + "/triage-rules", rules, **admin_header).status == 201
    assert "2 failures" in page(server, f"/runs/{run['runId']}")
    assert "category <bdi>network</bdi>" in page(server, f"/runs/{run['runId']}")
    for path in (f"{base}/clusters?branch=main", f"{base}/search?q=no&in=failures"):
        assert "&lt;script&gt;no # | at a.B.c" in page(server, path)
    assert ">A b</a>" in page(server, f"{base}/search?q=b")
    assert ">A b</a>" in page(server, f"/runs/{run['runId']}/tests?status=failed&sort=name")
    assert "<code>script</code>" in page(server, f"{base}/triage")
    assert "Without an owner" in page(server, f"{base}/owners")


def test_rules_and_owners_are_changed_by_forms(server: Server, project: str) -> None:
    with records.store_of(server):
        owner, user = records.create_project(project), records.create_user("writer")
        records.add_member(owner, user, "WRITE")
        token = records.bearer(user)

    def post(path: str, **fields: str) -> Answer:
        headers = {"Content-Type": "application/x-www-form-urlencoded", **token}
        return server.ask("POST", f"/projects/{owner.id}{path}", urlencode(fields).encode(), headers)

    assert post("/triage", name="n", category="c", pattern="p", field="any", priority="7").status == 303
    assert post("/triage", name="n", category="c", pattern="p", field="any", priority="x").status == 400
    (rule,) = read(server, f"projects/{owner.id}/triage-rules")["items"]
    assert (rule["priority"], rule["pattern"]) == (7, "p")
    assert post(f"/triage/{rule['id']}/delete").status == 303
    assert read(server, f"projects/{owner.id}/triage-rules")["items"] == []
    assert post("/owners", codeowners="* @all\r\n").status == 303
    assert read(server, f"projects/{owner.id}/owners")["codeowners"] == "* @all\r\n"


@pytest.mark.parametrize(
    ("signature", "title"),
    [
        ("E | no # | at shop.Cart.total", "E | no # | at shop.Cart.total"),
        ("AssertionError | no # | Traceback (most recent call last):", "AssertionError | no #"),
        (" |  | ", "Failures without a message"),
    ],
)
def test_cluster_title_has_only_the_informative_parts_of_the_signature(signature: str, title: str) -> None:
    assert failures._title(signature) == title


CHARACTERS = "@+~/:\"'.-_a0"


@pytest.mark.parametrize("first", CHARACTERS)
def test_a_signature_takes_linear_time(first: str) -> None:
    """The expression itself takes 4 ms of 8,000 characters; the quadratic one took 0.5 s of runs of `@`."""
    for second in CHARACTERS:
        began = time.process_time()
        signature("E", (first + second) * 50_000, (first + second) * 50_000)
        signatures._VARIABLE.sub(signatures._replace, (first + second) * 4000)
        signatures._VARIABLE.sub(signatures._replace, (first * 50 + second) * 160)
        assert time.process_time() - began < 0.3, second


def test_a_signature_is_of_the_first_4096_characters() -> None:
    assert signature("E", "\n" * 4095 + "a\nb", None) == "E | a | "
    assert signature("E", "\n" * 4096 + "a", None) == "E |  | "
