"""Starting, stopping and restarting all processes at once."""

from __future__ import annotations

from typing import Any

import pytest
from conftest import Serve, Server, is_alive
from http_checks import check_error, json_body

SLEEP = {"command": "sleep 1000"}
ABSENT = {"command": "no-such-program-anywhere"}
CRASHES = {"command": "false", "restart": "on-failure", "restart-delay": "1h", "restart-max-delay": "1h"}


def group(server: Server, verb: str, prefix: str = "") -> Any:
    return server.post(f"{prefix}/api/v1/processes/group/{verb}")


def statuses(server: Server) -> list[str]:
    return [process["status"] for process in server.get("/api/v1/processes").json]


@pytest.mark.parametrize("prefix", ["", "/supervision"])
def test_group_commands_start_restart_and_stop_all_processes(serve: Serve, prefix: str) -> None:
    server = serve({"one": SLEEP, "two": SLEEP})
    for verb, status in (("start", "running"), ("restart", "running"), ("stop", "stopped")):
        answer = group(server, verb, prefix)
        assert (answer.status, set(json_body(answer))) == (200, {"message"})
        assert statuses(server) == [status] * 2
    assert server.new_statuses("one") == ["starting", "running", "stopping", "stopped"] * 2


def test_a_group_start_with_some_live_is_409_naming_them_and_starts_the_others(serve: Serve) -> None:
    server = serve({"early": SLEEP, "other": SLEEP, "third": SLEEP})
    server.do("start", "early")
    pid = server.info("early")["pid"]
    path = "/api/v1/processes/group/start"
    outcome = check_error(group(server, "start"), 409, path, "PROCESSES_ALREADY_RUNNING")
    assert "early" in outcome["message"]
    assert "third" not in outcome["message"]
    assert statuses(server) == ["running"] * 3
    assert server.info("early")["pid"] == pid


def test_group_start_with_a_failure_is_500_rather_than_409(serve: Serve) -> None:
    server = serve({"live": SLEEP, "absent": ABSENT, "fine": SLEEP})
    server.do("start", "live")
    outcome = check_error(group(server, "start"), 500, "/api/v1/processes/group/start", "START_FAILED")
    assert "absent" in outcome["message"]
    assert "fine" not in outcome["message"]
    assert statuses(server) == ["running", "failed_to_start", "running"]


def test_group_start_follows_the_order(serve: Serve) -> None:
    server = serve({"last": {**SLEEP, "order": 2}, "first": {**SLEEP, "order": -1}, "middle": {**SLEEP, "order": 1}})
    group(server, "start")
    events = server.get("/api/v1/events?sortDirection=asc").json["content"]
    assert [e["processName"] for e in events if e["newStatus"] == "running"] == ["first", "middle", "last"]


def test_a_group_stop_stops_dependents_first(serve: Serve) -> None:
    server = serve({"db": SLEEP, "web": {**SLEEP, "depends-on": ["db"]}})
    group(server, "start")
    assert group(server, "stop").status == 200
    events = server.get("/api/v1/events?sortDirection=asc").json["content"]
    assert [e["processName"] for e in events if e["newStatus"] == "stopped"] == ["web", "db"]


def test_a_group_stop_with_nothing_live_is_404(serve: Serve) -> None:
    server = serve({"one": SLEEP})
    path = "/supervision/api/v1/processes/group/stop"
    check_error(group(server, "stop", "/supervision"), 404, path, "NO_RUNNING_PROCESSES")
    assert server.new_statuses("one") == []


def test_group_stop_cancels_a_pending_restart(serve: Serve) -> None:
    server = serve({"crashes": CRASHES})
    server.do("start", "crashes")
    server.until("crashes", "failed")
    assert group(server, "stop").status == 200
    check_error(group(server, "stop"), 404, "/api/v1/processes/group/stop", "NO_RUNNING_PROCESSES")


def test_group_restart_also_starts_processes_that_were_not_live(serve: Serve) -> None:
    server = serve({"live": SLEEP, "idle": SLEEP})
    server.do("start", "live")
    pid = server.info("live")["pid"]
    assert group(server, "restart").status == 200
    assert not is_alive(pid)
    assert statuses(server) == ["running", "running"]
    assert server.new_statuses("idle") == ["starting", "running"]


def test_a_group_restart_that_fails_is_500_naming_the_failures(serve: Serve) -> None:
    server = serve({"fine": SLEEP, "absent": ABSENT, "homeless": {**SLEEP, "directory": "/nowhere/at/all"}})
    outcome = check_error(group(server, "restart"), 500, "/api/v1/processes/group/restart", "START_FAILED")
    assert "absent" in outcome["message"]
    assert "homeless" in outcome["message"]
    assert "fine" not in outcome["message"]
    assert statuses(server) == ["running", "failed_to_start", "failed_to_start"]


@pytest.mark.parametrize(("verb", "status"), [("start", 200), ("restart", 200), ("stop", 404)])
def test_group_commands_work_without_processes(serve: Serve, verb: str, status: int) -> None:
    answer = group(serve(), verb)
    assert answer.status == status
    assert json_body(answer)["message"]
