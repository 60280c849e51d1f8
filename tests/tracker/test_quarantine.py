"""Quarantine: reason, end, issue, who did it and when, and the list for test runners."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import records
from conftest import Answer, Server, wait_for
from records import FAILED, NOW, PASSED, SECOND

from models.config.settings import QualityGate
from models.errors import Invalid
from models.json_format import rfc3339
from models.tracker.failures import flaky, quarantine
from models.tracker.failures.flaky import Triage
from models.tracker.gate.quality_gate import verdict
from models.tracker.tables import Project, Test

pytest_plugins = ["shared_server"]

API = "/api/v1"


@pytest.fixture
def store(tmp_path: Path, database_url: str | None) -> Iterator[Project]:
    with records.open_store(tmp_path / "tracker.db", database_url):
        yield records.create_project("demo")


def quarantined(project: Project, name: str, **facts: Any) -> None:
    flaky.set_triage(project.id, "c.A", name, Triage.QUARANTINED, "why", None, NOW, **facts)


def test_a_quarantine_ends_at_its_time_and_the_test_counts_again(store: Project) -> None:
    run = records.create_run(store, {"c.A a": FAILED, "c.A b": PASSED, "c.A c": PASSED})
    quarantined(store, "a", expires_at=NOW + 10 * SECOND, issue_url="https://example.com/1")
    quarantined(store, "b", expires_at=NOW + 20 * SECOND)
    quarantined(store, "c")
    assert verdict(run, store, QualityGate()).passed
    assert quarantine.expire(NOW + 9 * SECOND) == NOW + 10 * SECOND
    assert [one.name for one in quarantine.listing(store.id)] == ["a", "b", "c"]
    assert quarantine.expire(NOW + 10 * SECOND) == NOW + 20 * SECOND
    assert [one.name for one in quarantine.listing(store.id)] == ["b", "c"]
    assert not verdict(run, store, QualityGate()).passed
    test = Test.get(Test.name == "a").id
    assert [(one.status, one.by, one.at) for one in quarantine.changes(store.id, test)] == [
        ("ACTIVE", quarantine.EXPIRY, NOW + 10 * SECOND), ("QUARANTINED", None, NOW),
    ]  # fmt: skip
    assert quarantine.expire(NOW + 30 * SECOND) is None, "that without an end stays"
    assert [one.name for one in quarantine.listing(store.id)] == ["c"]


def test_a_quarantine_that_ended_already_is_refused(store: Project) -> None:
    records.create_run(store, {"c.A a": FAILED})
    with pytest.raises(Invalid, match="expiresAt must be in the future"):
        quarantined(store, "a", expires_at=NOW)


def test_the_list_has_reason_end_issue_owner_and_account(server: Server, project: str) -> None:
    with records.store_of(server):
        made = records.create_project(project)
        records.create_run(made, {"c.A a": FAILED, "c.B b": FAILED, "plain": FAILED, "c.A ok": PASSED})
        name = project.replace(" ", "-") + "-writer"
        writer = records.create_user(name)
        records.add_member(made, writer, "WRITE")
        token, session = records.bearer(writer), records.cookie(writer, server)
    path = f"{API}/projects/{made.id}"

    def change(**fields: Any) -> Answer:
        headers = {"Content-Type": "application/json", **token}
        return server.ask("POST", f"{path}/flaky/status", json.dumps(fields).encode(), headers)

    end = time.strftime("%Y-%m-%d", time.gmtime(time.time() + 5 * 86_400))
    first = {"className": "c.A", "name": "a", "status": "QUARANTINED", "note": "slow disk"}
    assert change(**first, expiresAt=end, issueUrl="https://user:secret@example.com/7").status == 202
    assert change(className="c.B", name="b", status="QUARANTINED").status == 202
    assert change(className="", name="plain", status="QUARANTINED").status == 202
    found = server.ask("GET", f"{path}/quarantine", headers=token).json
    assert [one["name"] for one in found["items"]] == ["plain", "a", "b"]
    entry = found["items"][1]
    assert (entry["className"], entry["reason"], entry["issueUrl"]) == ("c.A", "slow disk", "https://example.com/7")
    assert (entry["expiresAt"][:10], entry["by"], entry["owner"]) == (end, name, None)
    assert [one["by"] for one in server.get(f"{path}/quarantine").json["items"]] == [None] * 3, "for members only"
    assert [one["by"] for one in server.get(f"{path}/quarantine/changes").json["items"]] == [None] * 3
    names = server.get(f"{path}/quarantine?format=names")
    assert (names.text, names.headers["Content-Type"]) == ("plain\nc.A a\nc.B b\n", "text/plain; charset=utf-8")
    assert server.get(f"{path}/quarantine?format=csv").text.startswith("className,name,reason,expiresAt,")
    for bad in ({"expiresAt": "2020-01-01"}, {"expiresAt": "soon"}, {"issueUrl": "javascript:alert(1)"}):
        assert change(**first, **bad).status == 400, bad
    path_of_page = f"/projects/{made.id}/test?className=c.A&name=a"
    page = server.ask("GET", path_of_page, headers={"Accept": "text/html", **session}).text
    assert f"Quarantined by {name}" in page
    assert 'href="https://example.com/7"' in page
    assert f'name="expiresAt" type="date" value="{end}"' in page
    page = server.get(path_of_page, Accept="text/html").text
    assert "Quarantined <time" in page
    assert name not in page
    changes = server.ask("GET", f"{path}/quarantine/changes?limit=2", headers=token).json
    assert [(one["name"], one["by"]) for one in changes["items"]] == [("plain", name), ("b", name)]
    older = server.get(f"{path}/quarantine/changes?limit=2&cursor={changes['nextCursor']}").json
    assert ([one["name"] for one in older["items"]], older["nextCursor"]) == (["a"], None)
    assert change(**{**first, "status": "ACTIVE"}).status == 202
    assert [one["name"] for one in server.get(f"{path}/quarantine").json["items"]] == ["plain", "b"]
    page = server.ask("GET", path_of_page, headers={"Accept": "text/html", **session}).text
    assert "Changes of the classification" in page
    assert f"Quarantined by {name}" not in page


def test_a_server_ends_a_quarantine_at_its_time(server: Server, project: str) -> None:
    with records.store_of(server):
        made = records.create_project(project)
        run = records.create_run(made, {"c.A a": FAILED})
        admin = records.bearer(records.create_user(project.replace(" ", "-") + "-boss", "ADMIN"))
    path, headers = f"{API}/projects/{made.id}", {"Content-Type": "application/json", **admin}

    def quarantine_shortly() -> bool:
        end = rfc3339(time.time_ns() // 1000 + 2 * SECOND)
        fields = {"className": "c.A", "name": "a", "status": "QUARANTINED", "expiresAt": end}
        return bool(server.ask("POST", f"{path}/flaky/status", json.dumps(fields).encode(), headers).status == 202)

    assert not server.get(f"{API}/runs/{run.id}/quality-gate").json["passed"]
    wait_for(quarantine_shortly)
    wait_for(lambda: not server.get(f"{path}/quarantine").json["items"])
    assert not server.get(f"{API}/runs/{run.id}/quality-gate").json["passed"]
    changes = server.get(f"{path}/quarantine/changes").json["items"]
    assert [(one["status"], one["by"] == "(expiry)") for one in changes[:2]] == [
        ("ACTIVE", True),
        ("QUARANTINED", False),
    ]


def test_the_list_of_a_private_project_is_404(server: Server, project: str) -> None:
    with records.store_of(server):
        made = records.create_project(project, "PRIVATE")
    for query in ("", "?format=names", "?format=csv", "/changes"):
        assert server.get(f"{API}/projects/{made.id}/quarantine{query}").status == 404
