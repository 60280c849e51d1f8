"""All tests of a run: filters, order, pages during uploads, exports; and the cursors of the other lists."""

from __future__ import annotations

import csv
import io
import itertools
import json
import tracemalloc
from collections.abc import Mapping
from typing import Any
from urllib.parse import urlencode

import pytest
import records
from conftest import IS_PROOF, Server
from uploads import upload

from models import inputs
from models.errors import Invalid
from models.paging import decode_cursor, encode_cursor
from models.tracker.forges import owners
from models.tracker.runs import run_tests
from models.tracker.runs.run_tests import TestFilter
from models.tracker.tables import Run, reports

pytest_plugins = ["shared_server"]

API = "/api/v1"


REPORT = """<testsuite name='s'>
<testcase classname='b.B' name='slow' time='2.5' file='src/b.py'/>
<testcase classname='a.A' name='quick' time='0.001'/>
<testcase classname='a.A' name='red' time='0.1' file='src/a.py'>
<failure type='E' message='no route'>at x</failure></testcase>
<testcase classname='a.A' name='broken'><error type='F' message='boom'/></testcase>
<testcase classname='c.C' name='skipped'><skipped/></testcase>
<testcase classname='c.C' name='moody' time='0.2'><flakyFailure type='E'/></testcase>
</testsuite>"""


def read(server: Server, path: str, expected: int = 200, **query: Any) -> Any:
    answer = server.get(f"{API}/{path}{'?' if query else ''}{urlencode(query)}")
    assert answer.status == expected, answer
    return answer.json


def names(page: Mapping[str, Any]) -> list[str]:
    return [row["name"] for row in page["items"]]


ALL = ["slow", "quick", "red", "broken", "skipped", "moody"]
FILTERS: dict[str, tuple[dict[str, Any], list[str]]] = {
    "none": ({}, ALL),
    "one status": ({"status": "failed"}, ["red"]),
    "several statuses": ({"status": "Error, FAILED"}, ["red", "broken"]),
    "text": ({"q": "A.A"}, ["quick", "red", "broken"]),
    "text with a sign of LIKE": ({"q": "_"}, []),
    "class": ({"class": "c.C"}, ["skipped", "moody"]),
    "file": ({"file": "src/b.py"}, ["slow"]),
    "flaky": ({"flaky": "true"}, ["moody"]),
    "not flaky": ({"flaky": "false", "class": "c.C"}, ["skipped"]),
    "duration": ({"minMs": 200}, ["slow", "moody"]),
    "by name": ({"sort": "name"}, ["broken", "quick", "red", "slow", "moody", "skipped"]),
    "by duration": ({"sort": "duration", "limit": 4}, ["slow", "moody", "red", "quick"]),
    "untriaged": ({"category": "untriaged"}, ["broken"]),
    "triaged": ({"category": "Network"}, ["red"]),
    "owner": ({"owner": "@A"}, ["red"]),
    "by name, of an owner": ({"owner": "@all", "sort": "name"}, ["slow"]),
}


@pytest.fixture(scope="module")
def run(server: Server) -> int:
    run = upload(server, ("project", "filters"), ("junit", REPORT))
    with records.store_of(server):
        owners.store(run["projectId"], "*.py @all\nsrc/a.py @a @other", (), 0)
        reports.execute_sql(
            "INSERT INTO triage_rule (project_id, name, category, pattern, field, priority, created_at)"
            " VALUES (?, 'n', 'network', 'no route', 'any', 100, 0)",
            (run["projectId"],),
        )
    return int(run["runId"])


@pytest.mark.parametrize(("query", "found"), FILTERS.values(), ids=list(FILTERS))
def test_the_tests_of_a_run_are_filtered_and_sorted(
    server: Server, run: int, query: dict[str, Any], found: list[str]
) -> None:
    assert names(read(server, f"runs/{run}/tests", **query)) == found
    first = read(server, f"runs/{run}/tests", **{**query, "limit": 1})
    paged, cursor = names(first), first["nextCursor"]
    while cursor and len(paged) < query.get("limit", 10):
        page = read(server, f"runs/{run}/tests", **{**query, "limit": 1, "cursor": cursor})
        paged, cursor = [*paged, *names(page)], page["nextCursor"]
    assert paged == found


def test_a_test_has_the_fields_of_a_failure_without_outputs(server: Server, run: int) -> None:
    (red,) = read(server, f"runs/{run}/tests", q="red")["items"]
    assert red == {
        "suite": "s", "className": "a.A", "name": "red", "status": "FAILED", "durationMs": 100, "reruns": 0,
        "failureType": "E", "failureMessage": "no route", "stackTrace": "at x", "firstFailing": red["firstFailing"],
        "lastPassed": None, "compareUrl": None, "flaky": False, "owner": "@a @other", "category": "network",
    }  # fmt: skip
    assert red["firstFailing"]["runId"] == run
    failures = {row["name"]: row for row in read(server, f"runs/{run}")["failures"]}
    assert {
        name: value for name, value in failures["red"].items() if name not in ("systemOut", "systemErr", "attachments")
    } == {name: value for name, value in red.items() if name != "flaky"}
    (quick,) = read(server, f"runs/{run}/tests", q="quick")["items"]
    assert (quick["owner"], quick["category"], quick["failureType"]) == (None, None, None)


def test_a_rule_of_triage_finds_what_is_cut_from_a_shown_stack(server: Server) -> None:
    stack = f"{'x' * 9000} deep"
    report = f"<testsuite name='s'><testcase classname='A' name='a'><failure>{stack}</failure></testcase></testsuite>"
    run = upload(server, ("project", "deep"), ("junit", report))
    with records.store_of(server):
        reports.execute_sql(
            "INSERT INTO triage_rule (project_id, name, category, pattern, field, priority, created_at)"
            " VALUES (?, 'n', 'deep', 'x deep', 'stack', 100, 0)",
            (run["projectId"],),
        )
    (failure,) = read(server, f"runs/{run['runId']}")["failures"]
    (test,) = read(server, f"runs/{run['runId']}/tests")["items"]
    assert (failure["category"], test["category"]) == ("deep", "deep")
    assert "deep" not in failure["stackTrace"]
    assert "category <bdi>deep" in server.get(f"/runs/{run['runId']}", Accept="text/html").text


def test_texts_do_not_end_at_nul(server: Server) -> None:
    case = {"name": "t", "status": "failed", "duration": 1, "message": "a\0b", "trace": "at a\0 at b"}
    report = {"results": {"tool": {"name": "x"}, "tests": [{**case, "stdout": ["x" * 9000 + "\0the end"]}]}}
    run = upload(server, ("project", "nul"), ("junit", json.dumps(report)))
    (failure,) = read(server, f"runs/{run['runId']}")["failures"]
    assert failure["failureMessage"] == "a\ufffdb"
    assert failure["stackTrace"] == "at a\ufffd at b"
    assert failure["systemOut"].endswith("xxx\ufffdthe end")


def test_zeros_before_a_number_do_not_change_it() -> None:
    assert inputs.read(TestFilter, {}, {"minMs": "000000000000000000000000500"}, {}).min_ms == 500


@pytest.mark.parametrize(
    ("query", "message"),
    [
        ({"status": "green"}, "status must be some of"),
        ({"flaky": "maybe"}, "flaky must be"),
        ({"minMs": "-1"}, "minMs must be"),
        ({"sort": "size"}, "sort must be one of name, duration"),
    ],
)
def test_a_filter_that_is_not_valid_is_refused(query: dict[str, str], message: str) -> None:
    with pytest.raises(Invalid, match=message):
        inputs.read(TestFilter, {}, query, {})


@pytest.mark.parametrize(
    ("cursor", "kind"),
    [
        ("x", int),
        ("W10", int),
        ("WzFd", int),
        (encode_cursor("a", 1), int),
        (encode_cursor(2**70, 1), int),
        (encode_cursor("\ud800", 1), str),
    ],
)
def test_a_cursor_of_another_list_is_refused(cursor: str, kind: type) -> None:
    with pytest.raises(Invalid, match="cursor"):
        decode_cursor(cursor, kind, int)


def test_an_export_has_all_rows_and_no_formula(server: Server, run: int, project: str) -> None:
    evil = "<testsuite name='=1+1'><testcase classname='@SUM' name='a,b&quot;c' time='1'/></testsuite>"
    other = upload(server, ("project", project), ("junit", evil))["runId"]
    answer = server.get(f"{API}/runs/{other}/tests?format=csv")
    assert answer.headers["Content-Type"] == "text/csv; charset=utf-8"
    assert f'filename="run-{other}-tests.csv"' in answer.headers["Content-Disposition"]
    head, row = csv.reader(io.StringIO(answer.text))
    assert head[:5] == ["suite", "className", "name", "status", "durationMs"]
    assert row[:5] == ["'=1+1", "'@SUM", 'a,b"c', "PASSED", "1000"]
    lines = server.get(f"{API}/runs/{run}/tests?format=ndjson&sort=name&status=failed,error").text.splitlines()
    assert [json.loads(line)["name"] for line in lines] == ["broken", "red"]
    assert (
        read(server, f"runs/{run}/tests", 400, format="csv", limit="many")["message"] == "limit must be a whole number"
    )
    assert read(server, f"runs/{run}/tests", 400, format="xls")["message"] == "format must be one of json, csv, ndjson"


def test_lists_of_private_runs_and_projects_are_404(server: Server, run: int) -> None:
    with records.store_of(server):
        hidden = records.create_run(records.create_project("hidden", "PRIVATE"), {"A a": records.FAILED})
    for path in (f"runs/{hidden.id}/tests", f"runs/{hidden.id}/clusters", f"runs/{hidden.id}/tests?format=csv"):
        assert server.get(f"{API}/{path}").status == 404
    for kind in ("clusters", "triage-rules", "owners", "search?q=a"):
        assert server.get(f"{API}/projects/{hidden.project_id}/{kind}").status == 404


@pytest.mark.parametrize("sort", [None, "name"])
def test_cursor_returns_each_test_once_during_uploads(server: Server, project: str, sort: Any) -> None:
    count = (200_000 if IS_PROOF else 40_000) if sort is None else 10_000
    run = upload(
        server, ("project", project), ("runKey", project), ("junit", "<testsuite><testcase name='x'/></testsuite>")
    )
    with records.store_of(server):
        id, report = run["runId"], rows_of("SELECT max(id) FROM report")
        with reports.atomic():
            tests = ((run["projectId"], "c.K", f"t{n * 7919 % count:06}") for n in range(1, count))
            reports.write_many("INSERT INTO test (project_id, class_name, name) VALUES (?, ?, ?)", tests)
            reports.execute_sql(
                "INSERT INTO result (report_id, run_id, test_id, status, flaky, reruns)"
                " SELECT ?, ?, id, id % 4, 0, 0 FROM test WHERE project_id = ? AND class_name = 'c.K'",
                (report, id, run["projectId"]),
            )
            reports.execute_sql("UPDATE report SET tests = ? WHERE id = ?", (count, report))
    seen, cursor = list[str](), None
    for number in itertools.count():
        if number % 20 == 0:
            case = f"<testsuite><testcase classname='new' name='n{number}'/></testsuite>"
            upload(server, ("project", project), ("runKey", project), ("junit", case))
        with records.store_of(server):
            page, cursor = run_tests.page(Run.get_by_id(id), TestFilter(sort=sort), owners.NO_OWNERS, (), cursor, 500)
        seen += [row.name for row in page if row.class_name == "c.K"]
        if cursor is None:
            break
    assert (len(seen), len(set(seen))) == (count - 1, count - 1)
    assert sort is None or seen == sorted(seen)


def rows_of(query: str) -> int:
    return int(reports.execute_sql(query).fetchone()[0])


def test_a_page_of_a_large_run_takes_little_memory(server: Server) -> None:
    with records.store_of(server):
        run = Run.get_by_id(rows_of("SELECT id FROM run ORDER BY tests DESC LIMIT 1"))
        tracemalloc.start()
        try:
            page, cursor = run_tests.page(run, TestFilter(), owners.NO_OWNERS, (), None, 500)
            peak = tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()
    assert (len(page), cursor is None) == (500, False)
    assert peak < 8 * 1024 * 1024
