"""The insights of a project over HTTP: the lists, their page, and what a killed server had not counted."""

from __future__ import annotations

from typing import Any

import uploads
from conftest import Serve, Server, wait_for

from models.tracker.insights.listing import SORTS

pytest_plugins = ["shared_server"]


def test_an_upload_is_in_the_insights_of_its_project(server: Server, project: str) -> None:
    case = "<testcase classname='c' name='{}' time='{}'>{}</testcase>"
    run: Any = None
    for number, failure in enumerate(("", "<failure message='no'/>", "", "")):
        cases = case.format("a", 1 + number, failure) + case.format("b", 0.5, "")
        facts = ("project", project), ("branch", "main"), ("commit", f"{number:040}")
        run = uploads.upload(server, *facts, ("junit", f"<testsuite name='s'>{cases}</testsuite>"))
    path = f"/api/v1/projects/{run['projectId']}/tests/insights"
    slowest = server.get(path).json
    assert (slowest["nextCursor"], slowest["runsRead"], slowest["current"]) == (None, None, True)
    first, second = slowest["items"]
    assert {name: first[name] for name in ("name", "runs", "failures", "failureRatePct", "flaky", "flakyRatePct")} == {
        "name": "a", "runs": 4, "failures": 1, "failureRatePct": 25.0, "flaky": 0, "flakyRatePct": 0.0,
    }  # fmt: skip
    assert (first["medianMs"], first["growthMsPerRun"], first["neverFailed"]) == (2500.0, 1000.0, False)
    assert first["lastFailureAt"].endswith("Z")
    assert first["meanTimeToGreenMs"] >= 0
    assert (second["name"], second["neverFailed"], second["meanTimeToGreenMs"]) == ("b", True, None)
    names = {sort: [one["name"] for one in server.get(f"{path}?sort={sort}").json["items"]] for sort in SORTS}
    assert names == {"slowest": ["a", "b"], "growing": ["a"], "unreliable": ["a"], "never-failing": ["b"]}
    page = server.get(f"{path}?limit=1").json
    assert [one["name"] for one in server.get(f"{path}?cursor={page['nextCursor']}").json["items"]] == ["b"]
    assert server.get(f"{path}?branch=side").json["items"] == []
    assert server.get(f"{path}?since=2999-01-01&flag=default").json["items"] == []
    assert server.get(f"{path}?format=csv").text.count("\r\n") == 3
    for bad in ("sort=fast", "since=soon", "cursor=x"):
        assert server.get(f"{path}?{bad}").status == 400, bad


def test_the_page_has_the_four_lists(server: Server, project: str) -> None:
    run = uploads.upload(server, ("project", project), ("junit", uploads.junit(14, 2)))
    path = f"/projects/{run['projectId']}/insights"
    text = server.get(path).text
    for title in ("Slowest", "Slowest growing", "Least reliable", "Never failing"):
        assert f">{title}</h2>" in text
    assert "sort=never-failing" in text
    whole = server.get(f"{path}?sort=never-failing").text
    assert whole.count('<th scope="row"') == 14
    assert "/insights" in server.get(f"/projects/{run['projectId']}").text
    assert server.get(f"{path}?sort=fast").status == 400


def test_what_was_not_counted_when_the_server_was_killed_is_counted_once(serve: Serve) -> None:
    server = serve()
    for number in range(3):
        uploads.upload(server, ("project", "p"), ("junit", uploads.junit(30, number)))
    server.kill()
    server.start()
    query = (
        "SELECT sum(runs), sum(failures) FROM insight i JOIN insight_scope s ON s.id = i.scope_id"
        " WHERE s.project_id = ? AND s.branch IS NULL AND s.flag IS NULL"
    )
    run = uploads.upload(server, ("project", "p"), ("junit", uploads.junit(40, 0)))  # counted after all others
    counted = "SELECT (SELECT max(id) FROM result) = position FROM backfill WHERE name = 'insights'"
    wait_for(lambda: uploads.query_store(server, counted) == [(1,)])
    wait_for(lambda: uploads.query_store(server, "SELECT count(*) FROM insight_due") == [(0,)])
    assert uploads.query_store(server, query, run["projectId"]) == [(133, 3)]
