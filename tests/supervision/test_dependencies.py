"""Dependencies start first and stop last; so do processes of lower `order`."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest
from conftest import Answer, Serve, Server, wait_for

SLEEPER: dict[str, Any] = {"command": "sleep 1000"}
WELL = {"exec": {"command": "test -e well"}, "interval": "20ms", "failure-threshold": 1}
BASE = {**SLEEPER, "health-check": WELL}
ON_HEALTHY = [{"process": "base", "condition": "healthy"}]


class PendingRequest(threading.Thread):
    """A request in a thread; `answer` waits for the response."""

    def __init__(self, call: Callable[..., Answer], *given: str) -> None:
        super().__init__(daemon=True)
        self._call, self._given = call, given
        self._answer: Answer | None = None
        self.start()

    def run(self) -> None:
        self._answer = self._call(*self._given)

    @property
    def answer(self) -> Answer:
        self.join(60)
        assert self._answer is not None
        return self._answer


def status_changes(server: Server) -> list[str]:
    """All status changes as `name status`, oldest first."""
    page = server.get("/api/v1/events?size=100&sortBy=eventTime&sortDirection=asc").json
    return [f"{event['processName']} {event['newStatus']}" for event in page["content"]]


def are_in_order(status_changes: list[str], *expected: str) -> bool:
    positions = [status_changes.index(one) for one in expected]
    return positions == sorted(positions)


def test_transitive_dependencies_start_first(serve: Serve) -> None:
    server = serve({
        "top": {**SLEEPER, "depends-on": ["left", "right"]},
        "left": {**SLEEPER, "depends-on": ["base"]},
        "right": {**SLEEPER, "depends-on": [{"process": "base"}]},
        "base": SLEEPER,
        "other": SLEEPER,
    })  # fmt: skip
    assert server.do("start", "top").status == 200
    result = status_changes(server)
    for side in ("left", "right"):
        assert are_in_order(
            result, "base running", f"{side} starting", f"{side} running", "top starting", "top running"
        )
    assert len(result) == 8
    assert server.status("other") == "not_started"


def test_start_waits_until_the_dependency_is_healthy(serve: Serve) -> None:
    server = serve({"base": BASE, "web": {**SLEEPER, "depends-on": ON_HEALTHY}})
    requested = PendingRequest(server.do, "start", "web")
    server.until("base", "unhealthy")
    assert server.status("web") == "not_started"
    (server.folder / "well").touch()
    assert requested.answer.status == 200
    assert are_in_order(status_changes(server), "base unhealthy", "base healthy", "web starting")


def test_error_names_a_dependency_that_does_not_start_in_time(serve: Serve) -> None:
    server = serve({
        "base": BASE,
        "slow": {**SLEEPER, "start-seconds": 60},
        "web": {**SLEEPER, "depends-on": ON_HEALTHY, "start-timeout": "200ms"},
        "page": {**SLEEPER, "depends-on": ["slow"], "start-timeout": "200ms"},
    })  # fmt: skip
    for name, needed in {"web": "base", "page": "slow"}.items():
        begun = time.monotonic()
        answer = server.do("start", name)
        assert time.monotonic() - begun >= 0.2
        assert (answer.status, answer.json["code"]) == (500, "START_FAILED")
        assert needed in answer.json["message"]
        assert server.new_statuses(name) == ["starting", "failed_to_start"]
        assert needed in server.info(name)["failedErrorLog"]
    assert server.status("slow") == "starting"  # the start of the dependency continues
    assert server.do("stop", "slow").status == 200


@pytest.mark.parametrize(
    ("base", "status"),
    [
        ({"command": "/no/such/program"}, "failed_to_start"),
        ({"command": "false", "start-seconds": 60}, "failed_to_start"),
        ({"command": "true"}, "finished"),
        ({"command": "true", "directory": "/no/such/directory"}, "failed_to_start"),
    ],
)
def test_process_is_not_started_if_its_dependency_fails(serve: Serve, base: dict[str, Any], status: str) -> None:
    server = serve({"base": {**base, "health-check": WELL}, "web": {**SLEEPER, "depends-on": ON_HEALTHY}})
    answer = server.do("start", "web")
    assert (answer.status, answer.json["code"]) == (500, "START_FAILED")
    assert "base" in answer.json["message"]
    assert server.status("base") == status
    assert server.new_statuses("web") == ["starting", "failed_to_start"]
    assert "base" in server.info("web")["failedErrorLog"]


def test_stop_of_a_dependency_stops_its_dependents_first(serve: Serve) -> None:
    names = ["base", "middle", "top"]
    server = serve({
        "base": SLEEPER,
        "top": {**SLEEPER, "depends-on": ["middle"], "restart": "always", "restart-delay": 0},
        "middle": {**SLEEPER, "depends-on": ["base"], "restart": "always", "restart-delay": 0},
    })  # fmt: skip
    server.do("start", "top")
    assert server.do("stop", "base").status == 200
    assert [server.status(name) for name in names] == ["stopped"] * 3
    assert are_in_order(
        status_changes(server),
        "top stopping",
        "top stopped",
        "middle stopping",
        "middle stopped",
        "base stopping",
        "base stopped",
    )


def test_restart_of_a_dependency_restarts_only_dependents_that_were_up(serve: Serve) -> None:
    server = serve({
        "base": SLEEPER,
        "middle": {**SLEEPER, "depends-on": ["base"]},
        "top": {**SLEEPER, "depends-on": ["middle"]},
        "idle": {**SLEEPER, "depends-on": ["base"]},
        "waiting": {
            "command": ["sh", "-c", "test -e on && exec sleep 1000; exit 1"], "restart": "on-failure",
            "restart-delay": 60, "depends-on": ["base"],
        },
    })  # fmt: skip
    assert server.do("start", "top").status == 200
    server.do("start", "waiting")
    server.until("waiting", "failed")
    (server.folder / "on").touch()
    before = {name: server.info(name)["pid"] for name in ("base", "middle", "top")}
    assert server.do("restart", "base").status == 200
    for name, pid in before.items():
        info = server.info(name)
        assert info["status"] == "running"
        assert info["pid"] != pid
    assert server.status("idle") == "not_started"
    assert server.status("waiting") == "running"
    last = status_changes(server)[-15:]
    assert are_in_order(
        last, "top stopped", "middle stopped", "base stopped", "base running", "middle running", "top running"
    )


def test_restart_with_a_missing_directory_stops_nothing(serve: Serve) -> None:
    server = serve({"base": {**SLEEPER, "directory": "here"}, "web": {**SLEEPER, "depends-on": ["base"]}}, wait=False)
    here = server.folder / "here"
    here.mkdir()
    server.start()
    server.do("start", "web")
    before = server.get("/api/v1/processes").json
    here.rmdir()
    assert server.do("restart", "base").status == 400
    after = server.get("/api/v1/processes").json
    assert [(one["status"], one["pid"]) for one in after] == [(one["status"], one["pid"]) for one in before]


def test_restart_reports_a_dependency_that_fails_to_start(serve: Serve) -> None:
    program = "test -e broken && exit 1; exec sleep 1000"
    server = serve({
        "base": {"command": ["sh", "-c", program], "start-seconds": "2s"}, "web": {**SLEEPER, "depends-on": ["base"]},
    })  # fmt: skip
    server.do("start", "web")
    (server.folder / "broken").touch()
    answer = server.do("restart", "base")
    assert (answer.status, answer.json["code"]) == (500, "START_FAILED")
    assert server.status("base") == "failed_to_start"
    assert server.status("web") == "stopped"


@pytest.mark.parametrize("path", ["stop/web", "stop/base", "group/stop"])
def test_stop_cancels_all_starts_that_wait_for_a_dependency(serve: Serve, path: str) -> None:
    server = serve({"base": BASE, "web": {**SLEEPER, "depends-on": ON_HEALTHY, "start-timeout": "1h"}})
    with contextlib.ExitStack() as stack:
        requested = [stack.enter_context(contextlib.closing(server.send("start", "web"))) for _ in range(3)]
        server.until("base", "unhealthy")
        assert server.post(f"/api/v1/processes/{path}").status == 200
        for one in requested:
            response = one.getresponse()
            answer = json.loads(response.read())
            assert (response.status, answer["code"]) == (409, "START_FAILED")
            assert "web was stopped before it started" in answer["message"]
    (server.folder / "well").touch()
    if path == "stop/web":
        server.until("base", "healthy")
    assert server.events("web") == []


def test_start_waits_for_the_automatic_restart_of_a_crashed_dependency(serve: Serve) -> None:
    server = serve({
        "base": {**SLEEPER, "restart": "always", "restart-delay": "300ms", "restart-max-delay": "300ms"},
        "web": {**SLEEPER, "depends-on": ["base"]},
    })  # fmt: skip
    server.do("start", "base")
    os.kill(server.info("base")["pid"], signal.SIGKILL)
    wait_for(lambda: "aborted" in server.new_statuses("base"))
    assert server.do("start", "web").status == 200
    assert server.new_statuses("base") == ["starting", "running", "aborted", "starting", "running"]


def test_crash_of_a_dependency_does_not_stop_its_dependents(serve: Serve) -> None:
    server = serve({"base": SLEEPER, "web": {**SLEEPER, "depends-on": ["base"]}})
    server.do("start", "web")
    os.kill(server.info("base")["pid"], signal.SIGKILL)
    server.until("base", "aborted")
    assert server.status("web") == "running"


def test_automatic_restart_starts_ended_dependencies_again(serve: Serve) -> None:
    server = serve({
        "base": SLEEPER,
        "web": {**SLEEPER, "depends-on": ["base"], "restart": "always", "restart-delay": "100ms"},
    })  # fmt: skip
    server.do("start", "web")
    for name in ("base", "web"):
        os.kill(server.info(name)["pid"], signal.SIGKILL)
    wait_for(lambda: server.new_statuses("web").count("running") == 2)
    assert server.status("base") == "running"


# The order of a group


def test_a_group_starts_lower_orders_first_and_stops_them_last(serve: Serve) -> None:
    server = serve({
        "late": {**SLEEPER, "order": 5}, "first": {**SLEEPER, "order": -1, "start-seconds": "100ms"},
        "one": SLEEPER, "two": SLEEPER,
    })  # fmt: skip
    assert server.post("/api/v1/processes/group/start").status == 200
    for name in ("one", "two"):
        assert are_in_order(
            status_changes(server), "first running", f"{name} starting", f"{name} running", "late starting"
        )
    assert server.post("/api/v1/processes/group/stop").status == 200
    for name in ("one", "two"):
        assert are_in_order(
            status_changes(server), "late stopped", f"{name} stopping", f"{name} stopped", "first stopping"
        )


def test_dependencies_take_precedence_over_order(serve: Serve) -> None:
    server = serve({"web": {**SLEEPER, "order": 1, "depends-on": ["base"]}, "base": {**SLEEPER, "order": 2}})
    assert server.post("/api/v1/processes/group/start").status == 200
    assert are_in_order(status_changes(server), "base running", "web starting")
    assert server.post("/api/v1/processes/group/stop").status == 200
    assert are_in_order(status_changes(server), "web stopped", "base stopping")
    assert len(status_changes(server)) == 8


def test_processes_of_equal_order_stop_in_parallel(serve: Serve) -> None:
    code = "trap '' TERM; : > $0; while :; do sleep 0.02; done"
    names = [f"stubborn{number}" for number in range(6)]
    server = serve({name: {"command": ["sh", "-c", code, name], "stop-timeout": "1s"} for name in names})
    server.post("/api/v1/processes/group/start")
    wait_for(lambda: all((server.folder / name).exists() for name in names), about="all to ignore SIGTERM")
    assert server.post("/api/v1/processes/group/stop").status == 200
    changes = [change.split()[1] for change in status_changes(server)]
    assert changes[-12:-6] == ["stopping"] * 6


def test_group_start_continues_after_failures_and_names_all_failed_processes(serve: Serve) -> None:
    server = serve({
        "broken": {"command": "/no/such/program"}, "astray": {**SLEEPER, "directory": "/no/such/directory"},
        "up": SLEEPER, "down": {**SLEEPER, "order": 9}, "needy": {**SLEEPER, "depends-on": ["broken"]},
    })  # fmt: skip
    server.do("start", "up")
    answer = server.post("/api/v1/processes/group/start")  # 500 takes precedence over the 409 for `up`
    assert (answer.status, answer.json["code"]) == (500, "START_FAILED")
    assert all(name in answer.json["message"] for name in ("broken", "astray", "needy"))
    assert (server.status("up"), server.status("down")) == ("running", "running")

    answer = server.post("/api/v1/processes/group/restart")
    assert answer.status == 500
    assert all(name in answer.json["message"] for name in ("broken", "astray", "needy"))
    assert (server.status("up"), server.status("down")) == ("running", "running")


def test_group_start_names_processes_already_running_and_starts_the_others(serve: Serve) -> None:
    server = serve({"up": SLEEPER, "down": SLEEPER})
    server.do("start", "up")
    answer = server.post("/api/v1/processes/group/start")
    assert (answer.status, answer.json["code"]) == (409, "PROCESSES_ALREADY_RUNNING")
    assert "up" in answer.json["message"]
    assert server.status("down") == "running"
    pids = {name: server.info(name)["pid"] for name in ("up", "down")}
    assert server.post("/api/v1/processes/group/restart").status == 200
    for name, pid in pids.items():
        assert server.info(name)["pid"] not in (None, pid)
    assert server.post("/api/v1/processes/group/stop").status == 200
    assert server.post("/api/v1/processes/group/restart").status == 200
    assert (server.status("up"), server.status("down")) == ("running", "running")


def test_reload_stops_removed_dependents_before_their_removed_dependency(serve: Serve) -> None:
    slow = {"command": ["sh", "-c", "trap 'sleep 0.3; exit 0' TERM; echo ready > ready; while :; do sleep 0.02; done"]}
    server = serve({"base": SLEEPER, "top": {**slow, "depends-on": ["base"]}})
    server.do("start", "top")
    wait_for(lambda: (server.folder / "ready").exists())
    server.configure({"server": {"port": 0}})
    assert server.post("/api/v1/supervisor/reload").status == 200
    assert are_in_order(status_changes(server), "top stopping", "top stopped", "base stopping", "base stopped")
