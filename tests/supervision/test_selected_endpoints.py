"""Details, groups, and operations on selected processes, over HTTP."""

from __future__ import annotations

import json
import signal
from typing import Any
from urllib.parse import quote

import pytest
from conftest import Answer, Serve, Server, python_command, wait_for
from http_checks import check_error, json_body

SLEEP = {"command": "sleep 1000"}
ABSENT = {"command": "no-such-program-anywhere"}
CRASHES = {"command": "false", "restart": "on-failure", "restart-delay": "1h", "restart-max-delay": "1h"}
HANDLES_SIGHUP = python_command(
    "import signal, time\nsignal.signal(signal.SIGHUP, lambda *_: print('heard', flush=True))\n"
    "print('ready', flush=True)\nwhile True: time.sleep(60)"
)


def post(server: Server, verb: str, *terms: str, more: str = "") -> Answer:
    query = "&".join(f"select={quote(term)}" for term in terms)
    return server.post(f"/api/v1/processes/{verb}?{query}{more}")


def outcomes(answer: Answer) -> dict[str, str]:
    return {one["name"]: one["outcome"] for one in answer.json["results"]}


def statuses(server: Server) -> dict[str, str]:
    return {one["name"]: one["status"] for one in server.get("/api/v1/processes").json}


def details(server: Server, query: str = "") -> dict[str, Any]:
    return {one["name"]: one for one in server.get(f"/api/v1/processes/details{query}").json}


def test_selected_processes_are_started_stopped_and_restarted(serve: Serve) -> None:
    server = serve({"web": SLEEP, "w-1": SLEEP, "w-2": SLEEP})
    answer = post(server, "start", "w-*")
    assert (answer.status, set(json_body(answer))) == (200, {"message", "results"})
    assert outcomes(answer) == {"w-1": "started", "w-2": "started"}
    assert outcomes(post(server, "start", "all")) == {"web": "started", "w-1": "already", "w-2": "already"}
    before = server.info("w-1")["pid"]
    assert outcomes(post(server, "restart", "w-1")) == {"w-1": "restarted"}
    assert server.info("w-1")["pid"] != before
    assert outcomes(post(server, "stop", "all", "!web")) == {"w-1": "stopped", "w-2": "stopped"}
    assert outcomes(post(server, "stop", "web,w-1")) == {"web": "stopped", "w-1": "not_running"}
    assert statuses(server) == {"web": "stopped", "w-1": "stopped", "w-2": "stopped"}


@pytest.mark.parametrize("verb", ["start", "stop", "restart", "signal"])
def test_selector_term_without_match_is_404_and_changes_nothing(serve: Serve, verb: str) -> None:
    server = serve({"web": {**SLEEP, "auto-start": True}, "db": SLEEP})
    server.until("web", "running")
    before = server.events("web"), server.events("db")
    path = f"/api/v1/processes/{verb}"
    result = check_error(post(server, verb, "web", "dbb", more="&signal=TERM"), 404, path, "PROCESS_NOT_FOUND")
    assert "'dbb'" in result["message"]
    for missing in ("", "?select=", "?select=!web"):
        check_error(server.post(f"{path}{missing}"), 400, path, "INVALID_SELECTOR")
    assert (server.events("web"), server.events("db")) == before


def test_a_failure_is_500_with_every_result(serve: Serve) -> None:
    server = serve({"web": SLEEP, "absent": ABSENT})
    answer = post(server, "start", "all")
    assert answer.status == 500
    assert set(answer.json) == {"timestamp", "path", "error", "message", "code", "results"}
    assert answer.json["code"] == "START_FAILED"
    assert outcomes(answer) == {"web": "started", "absent": "failed"}
    assert "no-such-program-anywhere" in answer.json["message"]


def test_restart_of_a_dependency_also_restarts_its_live_dependents(serve: Serve) -> None:
    server = serve({"db": SLEEP, "web": {**SLEEP, "depends-on": ["db"]}, "idle": {**SLEEP, "depends-on": ["db"]}})
    post(server, "start", "web")
    assert outcomes(post(server, "restart", "db")) == {"db": "restarted", "web": "restarted"}
    assert statuses(server) == {"db": "running", "web": "running", "idle": "not_started"}


def test_stop_cancels_a_pending_restart(serve: Serve) -> None:
    server = serve({"crashes": CRASHES})
    server.do("start", "crashes")
    server.until("crashes", "failed")
    waiting = wait_for(lambda: (one := details(server)["crashes"])["waitingFor"] and one)
    assert waiting["waitingFor"] == "restart"
    assert waiting["nextRestart"] > waiting["endTime"]
    assert outcomes(post(server, "stop", "crashes")) == {"crashes": "stopped"}
    assert details(server)["crashes"]["waitingFor"] is None
    assert details(server)["crashes"]["nextRestart"] is None


def test_details_report_a_process_that_waits_for_a_dependency(serve: Serve) -> None:
    never = {**SLEEP, "health-check": {"exec": {"command": "false"}}}
    web = {**SLEEP, "auto-start": True, "depends-on": [{"process": "db", "condition": "healthy"}]}
    server = serve({"db": never, "web": web})
    wait_for(lambda: details(server)["web"]["waitingFor"] == "dependency")
    server.do("stop", "web")
    wait_for(lambda: details(server)["web"]["waitingFor"] is None)


def test_signal_reaches_the_main_process_and_does_not_stop_it(serve: Serve) -> None:
    server = serve({"web": {"command": HANDLES_SIGHUP, "stdout-logfile": "web.log"}, "idle": SLEEP})
    server.do("start", "web")
    log = server.folder / "web.log"
    wait_for(lambda: log.exists() and "ready" in log.read_text())
    before = server.new_statuses("web")
    answer = server.post("/api/v1/processes/signal/web?signal=HUP")
    assert (answer.status, json_body(answer)["message"].startswith("SIGHUP has been sent to web")) == (200, True)
    wait_for(lambda: "heard" in log.read_text())
    assert outcomes(post(server, "signal", "all", more="&signal=sighup&to=group")) == {
        "web": "signalled", "idle": "not_running",
    }  # fmt: skip
    wait_for(lambda: log.read_text().count("heard") == 2)
    assert server.new_statuses("web") == before


def test_exit_by_a_sent_signal_has_the_status_of_an_unrequested_exit(serve: Serve) -> None:
    server = serve({"web": SLEEP})
    server.do("start", "web")
    assert server.post(f"/api/v1/processes/signal/web?signal={int(signal.SIGKILL)}").status == 200
    assert server.until("web", "aborted")["exitCode"] == 137


@pytest.mark.parametrize(
    ("name", "query", "status", "code"),
    [
        ("web", "", 400, "VALIDATION_ERROR"),
        ("web", "?signal=NONSENSE", 400, "VALIDATION_ERROR"),
        ("web", "?signal=HUP&to=all", 400, "VALIDATION_ERROR"),
        ("none", "?signal=HUP", 404, "PROCESS_NOT_FOUND"),
        ("web", "?signal=HUP", 409, "PROCESS_NOT_RUNNING"),
    ],
)
def test_a_signal_that_cannot_be_sent_is_refused(serve: Serve, name: str, query: str, status: int, code: str) -> None:
    path = f"/api/v1/processes/signal/{name}"
    check_error(serve({"web": SLEEP}).post(path + query), status, path, code)


def test_details_have_groups_labels_and_usage(serve: Serve) -> None:
    web = {**SLEEP, "groups": ["front"], "labels": ["env=prod"], "description": "pages", "auto-start": True}
    server = serve({"web": web, "db": SLEEP}, supervisor={"groups": {"backend": ["web", "d*"], "empty": ["x*"]}})
    server.until("web", "running")
    wait_for(lambda: details(server)["web"]["memoryBytes"], about="the command to be executed")
    both = details(server)
    assert list(both["web"]) == [
        "name", "status", "pid", "type", "groups", "labels", "description", "startTime", "endTime", "exitCode",
        "restarts", "cpuPercent", "memoryBytes", "statusText", "waitingFor", "nextRestart", "schedule", "lastRun",
    ]  # fmt: skip
    web_details = both["web"]
    assert web_details["groups"] == ["backend", "front"]
    assert web_details["labels"] == ["env=prod"]
    assert web_details["description"] == "pages"
    assert web_details["type"] == "service"
    assert web_details["pid"] == server.info("web")["pid"]
    assert web_details["memoryBytes"] > 0
    assert web_details["cpuPercent"] >= 0
    assert both["db"]["memoryBytes"] is None
    assert list(details(server, "?select=env=prod")) == ["web"]
    assert [one["name"] for one in server.get("/api/v1/processes?select=@backend,!web").json] == ["db"]
    assert server.get("/api/v1/processes?select=typo").status == 404
    assert server.get("/api/v1/processes/groups").json == [
        {"name": "backend", "members": ["web", "db"], "live": 1},
        {"name": "empty", "members": [], "live": 0},
        {"name": "front", "members": ["web"], "live": 1},
    ]


def test_membership_changes_by_a_reload_without_a_restart(serve: Serve) -> None:
    server = serve({"web": {**SLEEP, "auto-start": True}})
    pid = server.until("web", "running")["pid"]
    web = {**SLEEP, "auto-start": True, "groups": ["front"], "labels": ["a=b"], "description": "new"}
    server.configure({"supervisor": {"processes": {"web": web}, "groups": {"all-of-it": ["*"]}}})
    answer = server.post("/api/v1/supervisor/reload")
    assert answer.status == 200
    assert answer.json["restarted"] == []
    assert answer.json["changed"] == ["web"]
    assert server.info("web")["pid"] == pid
    assert details(server)["web"]["groups"] == ["all-of-it", "front"]


def test_list_without_a_selector_has_only_the_specified_fields(serve: Serve) -> None:
    """Even if the process has groups and labels."""
    server = serve({"web": {**SLEEP, "groups": ["front"], "labels": ["a=b"]}})
    assert server.get("/api/v1/processes").body == (
        b'[{"name":"web","status":"not_started","pid":null,"startTime":null,"endTime":null,"exitCode":null,'
        b'"processRuntime":"PT0S","processUptime":"","stdoutLogfile":null,"stderrLogfile":null,"failedErrorLog":null}]'
    )
    assert json.loads(server.get("/api/v1/processes/info/web").body)["name"] == "web"
