"""All lists of the tracker: `limit`, `cursor` and `format` mean the same on each."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Mapping
from typing import Any
from urllib.parse import quote

import pytest
import records
from conftest import Server
from test_run_tests import API, read
from uploads import FORM, INGEST, body, jacoco, part

from handlers.tracker.lists import csv_text
from models.paging import encode_cursor
from models.tracker.failures import flaky, triage
from models.tracker.failures.flaky import Triage
from models.tracker.tables import reports

pytest_plugins = ["shared_server"]

PROJECT = "=all lists"
LISTS = [
    "projects?name={name}",
    "projects/{id}/runs",
    "projects/{id}/flaky",
    "projects/{id}/tests?className=A&name==red",
    "projects/{id}/clusters",
    "projects/{id}/tests/insights?sort=unreliable",
    "projects/{id}/triage-rules",
    "projects/{id}/owners",
    "projects/{id}/quarantine",
    "projects/{id}/quarantine/changes",
    "projects/{id}/search?q=red",
    "projects/{id}/search?q=cmd&in=failures",
    "projects/{id}/perf",
    "runs/{run}/tests",
    "runs/{run}/clusters",
    "runs/{run}/attempts",
    "runs/{run}/attachments",
    "runs/{run}/patch",
    "runs/{run}/perf",
]
ELSEWHERE = {"open-projects", "projects/{id}/commits", "projects/{id}/pulls"}
"""Tried in test_open_projects and test_commits, whose projects have such rows."""
TESTS = """<testsuite name='s'><testcase classname='A' name='=red'><failure message='=cmd()'/></testcase>
<testcase classname='A' name='red'><error type='E' message='+cmd {}'/></testcase>
<testcase classname='A' name='moody'><flakyFailure/></testcase>
<testcase classname='B' name='moody'><flakyFailure/></testcase></testsuite>"""
PERF = "timeStamp,elapsed,label,success\n1,2,=GET,true\n2,3,@POST,true\n"


@pytest.fixture(scope="module")
def ids(server: Server) -> Mapping[str, Any]:
    """Ids of a project and its newest run, with two rows at least in each list of a project and of a run."""
    texts = {"project": PROJECT, "diff": json.dumps({"files": {"=b.java": [[1, 1]], "com/x/=a.java": [[1, 2]]}})}
    runs: list[Any] = []
    for number in range(2):
        for job in ("=unit", "@load"):
            parts = [part(name, text) for name, text in (*texts.items(), ("runKey", f"k{number}"), ("jobKey", job))]
            parts += [
                part("jacoco", jacoco({"=a.java": {1: True, 2: False}}), "c.xml"),
                part("perf", PERF, "p.jtl"),
            ]
            parts += [
                part("junit", TESTS.format(job), "a.xml"),
                part("attachment", f"of {job}", f"={job}.txt"),
            ]
            answer = server.post(INGEST, body(parts), Content_Type=FORM)
            assert answer.status == 201, answer
            runs.append(answer.json)
    id = runs[-1]["projectId"]
    with records.store_of(server):
        for name in ("=rule", "-rule"):
            triage.add(id, triage.read({"name": name, "category": "c", "pattern": "x"}), records.NOW)
        reports.execute_sql(
            "INSERT INTO owners (project_id, codeowners, rules, updated_at) VALUES (?, NULL, ?, 0)",
            (id, json.dumps([["B", "=owner"], ["A", "@other"]])),
        )
        for name in ("=red", "red"):
            flaky.set_triage(id, "A", name, Triage.QUARANTINED, "=why", None, records.NOW)
        reports.execute_sql("UPDATE run SET branch = 'main', flag = 'perf' WHERE project_id = ?", (id,))
    return {"name": quote(PROJECT), "id": id, "run": runs[-1]["runId"]}


def rows_of(answer: Any) -> list[Any]:
    names = ("results", "files", "items")
    return answer if isinstance(answer, list) else next(answer[name] for name in names if name in answer)


def paged(server: Server, path: str, limit: int) -> list[Any]:
    """All items of a list, page by page."""
    found, separator = list[Any](), "&" if "?" in path else "?"
    address = first = f"{API}/{path}{separator}limit={limit}"
    for _ in range(100):
        answer = server.get(address)
        assert answer.status == 200, answer
        assert len(rows_of(answer.json)) <= limit
        found += rows_of(answer.json)
        if isinstance(answer.json, list):
            link = answer.headers.get("Link")
            address = link[1 : link.index(">")] if link else ""
        else:
            cursor = answer.json["nextCursor"]
            address = f"{first}&cursor={quote(cursor)}" if cursor else ""
        if not address:
            return found
    raise AssertionError("the pages do not end")


NO_EXPORT = {f"{API}/outbox"}
"""Messages are read page by page; they are no data that a spreadsheet or a script collects."""


def test_every_operation_with_a_limit_has_a_cursor_and_a_format(server: Server) -> None:
    places = {known.partition("?")[0] for known in LISTS}
    listed = set[str]()
    for path, methods in server.get("/tracker/v3/api-docs").json["paths"].items():
        parameters = {item["name"] for item in methods.get("get", {}).get("parameters", [])}
        if {"limit", "cursor", "format"} & parameters and path not in NO_EXPORT:
            assert {"limit", "cursor", "format"} <= parameters, path
            listed.add(path.removeprefix(API).strip("/").replace("runs/{id}", "runs/{run}"))
    assert listed - ELSEWHERE == places, "each list has a line in LISTS"


@pytest.mark.parametrize("path", LISTS)
def test_pages_of_a_list_have_all_its_items_in_order(server: Server, ids: Mapping[str, Any], path: str) -> None:
    address = path.format(**ids)
    whole = rows_of(read(server, address))
    assert len(whole) > (0 if path.startswith("projects?") else 1)
    assert paged(server, address, 1) == whole
    separator = "&" if "?" in address else "?"
    assert read(server, f"{address}{separator}limit=501") == read(server, f"{address}{separator}limit=500")
    assert rows_of(read(server, f"{address}{separator}limit=-3")) == whole[:1]
    assert rows_of(read(server, f"{address}{separator}limit=0")) == whole[:1]
    assert rows_of(read(server, f"{address}{separator}limit=")) == whole
    for limit in ("x", "1.5", "1e2", "0x10", str(2**63)):
        message = read(server, f"{address}{separator}limit={limit}", 400)["message"]
        assert message.startswith("limit must be ")
    for cursor in ("x", "W10", "WzEsMl0x", "W251bGxd", encode_cursor("\0"), quote("Ä")):
        message = read(server, f"{address}{separator}cursor={cursor}", 400)["message"]
        assert message == "cursor is not one of this list"


@pytest.mark.parametrize("path", LISTS)
def test_every_list_is_exported_with_the_rows_and_fields_of_its_json(
    server: Server, ids: Mapping[str, Any], path: str
) -> None:
    address = path.format(**ids)
    rows, join = rows_of(read(server, address)), "&" if "?" in address else "?"
    answer = server.get(f"{API}/{address}{join}format=ndjson")
    assert [json.loads(line) for line in answer.text.splitlines()] == rows
    assert answer.headers["Content-Type"] == "application/x-ndjson"
    exported = server.get(f"{API}/{address}{join}format=CSV")
    assert exported.headers["Content-Type"] == "text/csv; charset=utf-8"
    assert exported.headers["Content-Disposition"].endswith('.csv"')
    head, *cells = csv.reader(io.StringIO(exported.text))
    assert (head, len(cells)) == (list(rows[0]), len(rows))
    assert not [cell for row in cells for cell in row if cell.startswith(("=", "+", "@"))]
    names = ", names" if path.endswith("/quarantine") else ""
    assert (
        read(server, f"{address}{join}format=xls", 400)["message"] == f"format must be one of json, csv, ndjson{names}"
    )


def test_csv_export_of_a_search_without_a_match_has_only_the_header(server: Server, ids: Mapping[str, Any]) -> None:
    exported = server.get(f"{API}/projects/{ids['id']}/search?q=nothing&format=csv")
    assert exported.text == "className,name,file,owner\r\n"


@pytest.mark.parametrize("text", ["=a", "+a", "-a", "@a", "\ta", "\ra"])
def test_csv_cell_that_is_a_formula_begins_with_an_apostrophe(text: str) -> None:
    assert next(csv.reader(io.StringIO(csv_text(["a"], [{"a": text}], False), newline=""))) == [f"'{text}"]
    assert csv_text(["a"], [{"a": -1}], False) == "-1\r\n"


def linked(server: Server, path: str, limit: int) -> list[Any]:
    """All items of an array, page by page along the header Link."""
    found, address = [], f"{API}/{path}{'&' if '?' in path else '?'}limit={limit}"
    while True:
        answer = server.get(address)
        assert answer.status == 200, answer
        found += answer.json["results"] if isinstance(answer.json, dict) else answer.json
        link = answer.headers.get("Link")
        if link is None:
            return found
        assert link.endswith('>; rel="next"')
        address = link[1 : link.index(">")]


def test_array_responses_link_their_next_page(server: Server, project: str) -> None:
    with records.store_of(server):
        owner = records.create_project(project)
        for n in range(5):
            run = records.create_run(owner, {"A a": records.PASSED}, created_at=records.NOW + n // 2)
            reports.execute_sql("UPDATE result SET flaky = 1 WHERE run_id = ?", (run.id,))
            records.create_run(owner, {f"A b{n}": records.FAILED}, commit_sha=f"c{n}")
            records.create_run(owner, {f"A b{n}": records.PASSED}, commit_sha=f"c{n}")
    base = f"projects/{owner.id}"
    runs = read(server, f"{base}/runs", limit=500)
    assert linked(server, f"{base}/runs", 4) == runs
    assert len(runs) == 15
    assert linked(server, f"{base}/flaky", 2) == read(server, f"{base}/flaky")
    assert (
        linked(server, f"{base}/tests?name=a&className=A", 2)
        == read(server, f"{base}/tests", name="a", className="A")["results"]
    )
    assert [row["id"] for row in linked(server, "projects", 1)] == [row["id"] for row in read(server, "projects")]
