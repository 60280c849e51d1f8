"""Schedules and runs over HTTP, by `ctl` and on pages."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest
from conftest import ROOT, Server
from http_checks import check_error, json_body

SCHEDULED = {"cron": "30 2 1 1 *", "timezone": "Europe/Berlin"}
PROCESSES: dict[str, Any] = {
    "backup": {"command": "true", "schedule": SCHEDULED},
    "failing": {"command": "false", "schedule": {"every": "366d"}},
    "import": {"command": "true", "type": "oneshot"},
    "nightly": {"command": "sleep 1000", "type": "service", "schedule": "@yearly"},
    "web": {"command": "sleep 1000"},
}
RUNS, SCHEDULE = "/api/v1/processes/runs", "/api/v1/processes/schedule"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    one = Server(tmp_path_factory.mktemp("schedules"), {"supervisor": {"processes": PROCESSES}}, {}, [])
    try:
        yield one.start()
    finally:
        one.close()


def details(server: Server, name: str) -> dict[str, Any]:
    (found,) = server.get(f"/api/v1/processes/details?select={name}").json
    return dict(found)


def ctl(server: Server, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(ROOT / "run.py"), "ctl", "--url", f"http://127.0.0.1:{server.port}", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=60)


def test_details_have_the_type_the_schedule_and_the_last_run(server: Server) -> None:
    assert {name: details(server, name)["type"] for name in PROCESSES} == {
        "backup": "oneshot", "failing": "oneshot", "import": "oneshot", "nightly": "service", "web": "service",
    }  # fmt: skip
    assert details(server, "web")["schedule"] is None
    assert details(server, "web")["lastRun"] is None
    before = details(server, "failing")["schedule"]
    assert list(before) == [
        "expression", "timezone", "nextRun", "lastRun", "lastOutcome", "paused", "missed", "skipped",
    ]  # fmt: skip
    assert (before["expression"], before["timezone"]) == ("every 366d", "UTC")
    assert (before["lastRun"], before["lastOutcome"], before["paused"]) == (None, None, False)
    backup = details(server, "backup")["schedule"]
    assert (backup["expression"], backup["timezone"]) == ("30 2 1 1 *", "Europe/Berlin")
    assert backup["nextRun"].endswith("-01-01T01:30:00.000000Z")
    server.do("start", "failing")
    server.until("failing", "failed")
    after = details(server, "failing")
    assert (after["schedule"]["lastRun"], after["schedule"]["lastOutcome"]) == (after["startTime"], "failure")
    (run,) = server.get(f"{RUNS}/failing").json["content"]
    assert after["lastRun"] == run
    assert list(run) == ["id", "trigger", "scheduledFor", "startTime", "endTime", "exitCode", "outcome"]
    assert (run["trigger"], run["scheduledFor"], run["exitCode"], run["outcome"]) == ("manual", None, 1, "failure")


def test_runs_are_paged_newest_first(server: Server) -> None:
    for number in range(3):
        server.do("start", "import")
        server.until("import", "finished")
        assert len(server.get(f"{RUNS}/import").json["content"]) == number + 1
    page = server.get(f"{RUNS}/import?size=2&page=1").json
    assert (page["totalElements"], page["totalPages"], page["numberOfElements"], page["last"]) == (3, 2, 1, True)
    newest = [run["id"] for run in server.get(f"{RUNS}/import").json["content"]]
    assert newest == sorted(newest, reverse=True)
    assert [run["id"] for run in server.get(f"{RUNS}/import?sortDirection=ASC").json["content"]] == newest[::-1]
    assert server.get(f"{RUNS}/web").json["content"] == []


@pytest.mark.parametrize(
    ("method", "path", "status", "code"),
    [
        ("GET", f"{RUNS}/nobody", 404, "PROCESS_NOT_FOUND"),
        ("GET", f"{RUNS}/import?size=101", 400, "VALIDATION_ERROR"),
        ("GET", f"{RUNS}/import?page=-1", 400, "VALIDATION_ERROR"),
        ("POST", f"{SCHEDULE}/nobody?paused=true", 404, "PROCESS_NOT_FOUND"),
        ("POST", f"{SCHEDULE}/web?paused=true", 400, "VALIDATION_ERROR"),
        ("POST", f"{SCHEDULE}/backup", 400, "VALIDATION_ERROR"),
        ("POST", f"{SCHEDULE}/backup?paused=maybe", 400, "VALIDATION_ERROR"),
    ],
)
def test_invalid_request_is_refused_with_its_error_code(
    server: Server, method: str, path: str, status: int, code: str
) -> None:
    check_error(server.ask(method, path, b"" if method == "POST" else None), status, path.partition("?")[0], code)


def test_pause_is_stored_and_ctl_shows_and_resumes_it(server: Server) -> None:
    answer = server.post(f"{SCHEDULE}/backup?paused=true")
    assert (answer.status, json_body(answer)) == (200, {"message": "the schedule of backup is paused"})
    server.kill()
    server.start()
    assert details(server, "backup")["schedule"]["paused"]
    assert details(server, "backup")["schedule"]["nextRun"] is None
    shown = ctl(server, "schedule", "backup")
    assert shown.returncode == 0
    assert [line.split("  ")[0] for line in shown.stdout.splitlines()] == ["NAME", "backup"]
    assert "paused" in shown.stdout
    resumed = json.loads(ctl(server, "schedule", "resume", "backup", "--json").stdout)
    assert [(one["name"], one["paused"]) for one in resumed] == [("backup", False)]
    assert resumed[0]["nextRun"].endswith("-01-01T01:30:00.000000Z")
    assert "none of these has a schedule" in ctl(server, "schedule", "web").stderr
    assert ctl(server, "schedule", "pause", "b*").returncode == 0
    assert details(server, "backup")["schedule"]["paused"]


def test_the_page_of_a_job_shows_its_schedule_and_runs_and_pauses_it(server: Server) -> None:
    server.do("start", "backup")
    server.until("backup", "finished")
    form = {"Content_Type": "application/x-www-form-urlencoded"}
    assert server.post("/processes/backup", b"verb=resume&to=one", **form).headers["Location"] == "/processes/backup"
    shown = server.get("/processes/backup").text
    for part in ("30 2 1 1 *", "Europe/Berlin", "01-01 01:30:00 UTC", "Pause schedule", "success", "manual"):
        assert part in shown
    server.post("/processes/backup", b"verb=pause&to=one", **form)
    assert "Resume schedule" in server.get("/processes/backup").text
    assert details(server, "backup")["schedule"]["paused"]
    assert server.post("/processes/web", b"verb=pause", **form).status == 400
    assert server.post("/processes", b"verb=pause", **form).status == 400
    assert "Schedule</h2>" not in server.get("/processes/web").text
    assert "Runs</h2>" in server.get("/processes/import").text


def test_group_commands_pause_and_resume_schedules_and_run_no_job(server: Server) -> None:
    group = "/api/v1/processes/group"
    runs = len(server.get(f"{RUNS}/backup").json["content"])
    assert server.post(f"{group}/start").status == 200
    assert server.post(f"{group}/stop").status == 200
    scheduled = ("backup", "failing", "nightly")
    assert [details(server, name)["schedule"]["paused"] for name in scheduled] == [True] * 3
    assert server.post(f"{SCHEDULE}/failing?paused=false").status == 200
    assert server.post(f"{group}/stop").status == 404
    assert [details(server, name)["schedule"]["paused"] for name in scheduled] == [True] * 3
    assert server.post(f"{group}/restart").status == 200
    assert [details(server, name)["schedule"]["paused"] for name in scheduled] == [False] * 3
    assert len(server.get(f"{RUNS}/backup").json["content"]) == runs
    assert server.status("nightly") == "running"
    assert ctl(server, "stop", "all").returncode == 0
    assert [details(server, name)["schedule"]["paused"] for name in scheduled] == [True] * 3
    started = ctl(server, "start", "all")
    assert "backup runs by its schedule" in started.stdout
    assert [details(server, name)["schedule"]["paused"] for name in scheduled] == [False] * 3
    assert server.post("/api/v1/processes/restart?select=all").status == 200
    assert len(server.get(f"{RUNS}/backup").json["content"]) == runs
    assert [run["trigger"] for run in server.get(f"{RUNS}/nightly").json["content"]] == ["manual"] * 4
