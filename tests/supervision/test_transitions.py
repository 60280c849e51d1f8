"""Every transition of the status table, caused with real processes: one event for each, none without a change."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from datetime import datetime, timedelta
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from conftest import Serve, Server, is_alive, wait_for

from models.supervision.process import TRANSITIONS, Status

Transition = tuple[str, str]
Cause = tuple[str, Callable[["Scene"], None]]

CONTROLLED = "read code < {fifo} && exit $code"
"""Exits with the code that is written to its fifo."""

STATES: dict[str, dict[str, Any]] = {
    "running": {},
    "healthy": {"health-check": {"exec": {"command": "true"}, "interval": "50ms"}},
    "unhealthy": {"health-check": {"exec": {"command": "false"}, "interval": "50ms", "failure-threshold": 1}},
}
ENDINGS = ("finished", "failed", "stopped", "aborted", "stopping", "unknown")
STUBBORN = ["sh", "-c", "trap '' TERM; echo ready; while :; do sleep 1000; done"]

NEVER_CAUSED = {("healthy", "running"), ("unhealthy", "running")}
"""Permitted but never made: after its first result a health check always has a result."""


class Scene:
    """A server with processes for all transitions, and methods that cause transitions."""

    def __init__(self, server: Server) -> None:
        self.server = server

    def up(self, name: str, *statuses: str) -> int:
        if self.server.status(name) not in statuses:
            assert self.server.do("start", name).status == 200
        return int(self.server.until(name, *statuses)["pid"])

    def end(self, name: str, code: int) -> None:
        fifo = os.open(self.server.folder / name, os.O_RDWR)  # O_RDWR does not wait for a reader
        os.write(fifo, f"{code}\n".encode())
        self.server.until(name, "finished" if code == 0 else "failed")
        os.close(fifo)

    def transitions(self, name: str) -> list[Transition]:
        return [(event["oldStatus"], event["newStatus"]) for event in self.server.events(name)]


@pytest.fixture(scope="module")
def scene(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Scene]:
    folder = tmp_path_factory.mktemp("transitions")
    processes: dict[str, dict[str, Any]] = {
        "fresh": {"command": "sleep 1000"},
        "fresh2": {"command": "sleep 1000"},
        "missing": {"command": str(folder / "missing")},
        "missing2": {"command": str(folder / "missing")},
        "slow": {"command": "sleep 1000", "start-seconds": 60},
        "slow-unknown": {"command": "sleep 1000", "start-seconds": 60},
        "stubborn": {"command": STUBBORN, "stop-timeout": "200ms", "stdout-logfile": str(folder / "stubborn.log")},
        "stopping-unknown": {
            "command": STUBBORN, "stop-timeout": 60, "stdout-logfile": str(folder / "stopping-unknown.log"),
        },
        "turning": {
            "command": "sleep 1000",
            "health-check": {
                "exec": {"command": ["test", "-e", str(folder / "well")]}, "interval": "20ms", "failure-threshold": 1,
            },
        },
    }  # fmt: skip
    for state, more in STATES.items():
        for ending in ENDINGS:
            name = f"{state}-{ending}"
            os.mkfifo(folder / name)
            processes[name] = {"command": ["sh", "-c", CONTROLLED.format(fifo=folder / name)], **more}
    server = Server(folder, {"supervisor": {"processes": processes}}, {}, [])
    server.start()
    yield Scene(server)
    server.close()


def ends(state: str, ending: str) -> Cause:
    """Brings a process to a status in which it is up, then ends it in this way."""
    name = f"{state}-{ending}"

    def cause(scene: Scene) -> None:
        pid = scene.up(name, state)
        match ending:
            case "finished":
                scene.end(name, 0)
            case "failed":
                scene.end(name, 3)
            case "stopped":
                os.kill(pid, signal.SIGTERM)
            case "aborted":
                os.kill(pid, signal.SIGKILL)
            case "stopping":
                assert scene.server.do("stop", name).status == 200
        scene.server.until(name, "stopped" if ending == "stopping" else ending)

    return name, cause


def start_after(ended: str) -> Cause:
    name, end = ends("running", ended)

    def cause(scene: Scene) -> None:
        end(scene)
        assert scene.server.do("start", name).status == 200

    return name, cause


def starts(name: str, answer: int = 200, times: int = 1) -> Cause:
    def cause(scene: Scene) -> None:
        for _ in range(times):
            assert scene.server.do("start", name).status == answer

    return name, cause


def stop_while_starting(scene: Scene) -> None:
    requested = threading.Thread(target=scene.server.do, args=("start", "slow"))
    requested.start()
    scene.server.until("slow", "starting")
    assert scene.server.do("stop", "slow").status == 200
    requested.join()


def stop_by_sigkill(scene: Scene) -> None:
    scene.up("stubborn", "running")
    wait_for((scene.server.folder / "stubborn.log").read_text)
    assert scene.server.do("stop", "stubborn").status == 200


def repeated_probes(*seen: bool) -> Cause:
    """Starts a process whose health check has these results, one after another."""

    def cause(scene: Scene) -> None:
        scene.server.do("stop", "turning")
        for good in seen:
            well = scene.server.folder / "well"
            well.touch() if good else well.unlink(missing_ok=True)
            scene.up("turning", "healthy" if good else "unhealthy")

    return "turning", cause


CAUSES: dict[Transition, Cause] = {
    ("not_started", "starting"): starts("fresh"),
    ("starting", "running"): starts("fresh2"),
    ("starting", "failed_to_start"): starts("missing", 500),
    ("starting", "stopping"): ("slow", stop_while_starting),
    ("stopping", "stopped"): ends("running", "stopping"),
    ("stopping", "aborted"): ("stubborn", stop_by_sigkill),
    ("running", "healthy"): repeated_probes(True),
    ("running", "unhealthy"): repeated_probes(False),
    ("healthy", "unhealthy"): repeated_probes(True, False),
    ("unhealthy", "healthy"): repeated_probes(False, True),
    ("failed_to_start", "starting"): starts("missing2", 500, times=2),
    **{(state, ending): ends(state, ending) for state in STATES for ending in ENDINGS if ending != "unknown"},
    **{(ended, "starting"): start_after(ended) for ended in ("finished", "failed", "stopped", "aborted")},
}

ENDED_WITHOUT_SERVER: dict[Transition, str] = {
    ("running", "unknown"): "running-unknown",
    ("healthy", "unknown"): "healthy-unknown",
    ("unhealthy", "unknown"): "unhealthy-unknown",
    ("starting", "unknown"): "slow-unknown",
    ("stopping", "unknown"): "stopping-unknown",
}
"""Transitions of processes that ended while no server was running."""


def test_every_transition_is_tested_except_those_never_caused() -> None:
    permitted = {(status.value, following.value) for status in Status for following in TRANSITIONS[status]}
    assert CAUSES.keys() | ENDED_WITHOUT_SERVER.keys() | {("unknown", "starting")} == permitted - NEVER_CAUSED


@pytest.mark.parametrize("transition", CAUSES, ids=" to ".join)
def test_transition_is_made_and_is_in_the_history(scene: Scene, transition: Transition) -> None:
    name, cause = CAUSES[transition]
    before = len(scene.transitions(name))
    cause(scene)
    assert transition in scene.transitions(name)[before:]


def test_process_that_ended_without_a_server_is_unknown_and_can_be_started(scene: Scene) -> None:
    server = scene.server
    for (status, _), name in ENDED_WITHOUT_SERVER.items():
        if status in STATES:
            scene.up(name, status)
        else:
            threading.Thread(target=send_ignoring_disconnect, args=(server, "start", name), daemon=True).start()
            server.until(name, "starting", "running")
            wait_for(partial(lambda one: server.info(one)["pid"], name), about="its spawn")
    wait_for(
        lambda: (
            (server.folder / "stopping-unknown.log").exists() and (server.folder / "stopping-unknown.log").read_text()
        )
    )
    threading.Thread(target=send_ignoring_disconnect, args=(server, "stop", "stopping-unknown"), daemon=True).start()
    server.until("stopping-unknown", "stopping")
    pids = {name: server.info(name)["pid"] for name in ENDED_WITHOUT_SERVER.values()}
    server.kill()
    for pid in pids.values():
        os.killpg(pid, signal.SIGKILL)
        wait_for(partial(lambda one: not is_alive(one), pid))
    server.start()

    def is_last(name: str, transition: tuple[str, str]) -> bool:
        return bool(scene.transitions(name)[-1] == transition)

    for transition, name in ENDED_WITHOUT_SERVER.items():
        wait_for(partial(is_last, name, transition), about=f"{name} to be {transition}")
        last = server.events(name)[-1]
        assert (last["pid"], last["exitCode"]) == (pids[name], None)
        assert server.info(name)["pid"] is None
    assert server.do("start", "running-unknown").status == 200
    assert ("unknown", "starting") in scene.transitions("running-unknown")


@pytest.mark.parametrize(
    "name", ["turning", "stubborn", "missing", "slow", *(f"{s}-{e}" for s in STATES for e in ENDINGS)]
)
def test_history_is_one_path_through_the_transition_table(scene: Scene, name: str) -> None:
    """After the transitions of all tests above."""
    events = scene.server.events(name)
    assert events == [] or events[0]["oldStatus"] == "not_started"
    for before, after in pairwise(events):
        assert after["oldStatus"] == before["newStatus"]
        assert after["id"] > before["id"]
    for event in events:
        assert Status(event["newStatus"]) in TRANSITIONS[Status(event["oldStatus"])]


def send_ignoring_disconnect(server: Server, verb: str, name: str) -> None:
    """Sends a command to a server that is killed before it responds."""
    try:
        server.do(verb, name)
    except OSError:
        return


# Fields of events


def timestamp(text: str) -> datetime:
    return datetime.fromisoformat(text)


def duration(text: str) -> timedelta:
    """Parses a duration below a minute, such as `PT1.5S`."""
    return timedelta(seconds=float(text.removeprefix("PT").removesuffix("S")))


def test_events_of_an_instance_have_its_pid_times_exit_code_and_uptime(serve: Serve) -> None:
    server = serve({"short": {"command": ["sh", "-c", "until [ -e end ]; do sleep 0.01; done; exit 7"]}})
    begun = time.monotonic()
    server.do("start", "short")
    pid = server.info("short")["pid"]
    seen = time.monotonic()
    lived = timedelta(seconds=time.monotonic() - seen)
    (server.folder / "end").touch()
    info = server.until("short", "failed")
    starting, running, failed = server.events("short")

    assert [starting["oldStatus"], starting["newStatus"]] == ["not_started", "starting"]
    assert [starting[key] for key in ("pid", "startTime", "endTime", "exitCode")] == [None] * 4
    assert starting["processUptime"] == "PT0S"

    assert [running["pid"], running["endTime"], running["exitCode"]] == [pid, None, None]
    assert timestamp(starting["eventTime"]) <= timestamp(running["startTime"]) <= timestamp(running["eventTime"])

    assert [failed["pid"], failed["exitCode"], failed["startTime"]] == [pid, 7, running["startTime"]]
    elapsed = timedelta(seconds=time.monotonic() - begun)
    assert lived <= duration(failed["processUptime"]) <= elapsed
    assert lived <= timestamp(failed["endTime"]) - timestamp(failed["startTime"]) <= elapsed
    assert timestamp(failed["endTime"]) <= timestamp(failed["eventTime"])

    assert [event["id"] for event in (starting, running, failed)] == [1, 2, 3]
    assert {event["processName"] for event in (starting, running, failed)} == {"short"}
    assert [info[key] for key in ("status", "pid", "exitCode", "endTime")] == ["failed", None, 7, failed["endTime"]]
    assert info["processRuntime"] == failed["processUptime"]


def test_the_events_of_a_stop_have_uptime_and_signal(serve: Serve) -> None:
    server = serve({"sleeper": {"command": "sleep 1000"}})
    server.do("start", "sleeper")
    pid = server.info("sleeper")["pid"]
    server.do("stop", "sleeper")
    _, _, stopping, stopped = server.events("sleeper")
    assert [stopping["pid"], stopping["endTime"], stopping["exitCode"]] == [pid, None, None]
    assert [stopped["pid"], stopped["exitCode"]] == [pid, 128 + signal.SIGTERM]
    assert timedelta(0) < duration(stopping["processUptime"]) <= duration(stopped["processUptime"])


def test_events_of_a_new_instance_have_no_values_of_the_last_one(serve: Serve) -> None:
    server = serve({"short": {"command": ["sh", "-c", "exit 7"]}})
    server.do("start", "short")
    first = server.until("short", "failed")
    server.do("start", "short")
    starting, running = server.events("short")[3:5]
    assert [starting[key] for key in ("pid", "startTime", "endTime", "exitCode")] == [None] * 4
    assert timestamp(running["startTime"]) > timestamp(first["endTime"])
    assert [running["endTime"], running["exitCode"]] == [None, None]


def test_calls_that_change_nothing_leave_no_event(serve: Serve, tmp_path: Path) -> None:
    server = serve({
        "sleeper": {"command": "sleep 1000"},
        "idle": {"command": "sleep 1000"},
        "astray": {"command": "sleep 1000", "directory": str(tmp_path / "nowhere")},
        "nobodys": {"command": "sleep 1000", "user": "no-such-user"},
        "grouped": {"command": "sleep 1000", "group": "no-such-group"},
    })  # fmt: skip
    assert server.post("/api/v1/processes/group/stop").status == 404
    server.do("start", "sleeper")
    server.until("sleeper", "running")
    pid = server.info("sleeper")["pid"]
    before = server.get("/api/v1/events/count").json["totalEvents"]

    again = server.do("start", "sleeper")
    assert (again.status, f"already running (pid {pid})" in again.json["message"]) == (200, True)
    assert server.do("stop", "idle").status == 200
    for verb in ("start", "restart"):
        for name in ("astray", "nobodys", "grouped"):
            answer = server.do(verb, name)
            assert (answer.status, answer.json["code"]) == (400, "INVALID_PROCESS_CONFIGURATION")
    assert server.do("start", "unheard-of").status == 400
    assert server.do("stop", "unheard-of").status == 404
    assert server.do("restart", "unheard-of").status == 404
    assert server.get("/api/v1/events/count").json["totalEvents"] == before
    assert server.status("astray") == "not_started"
    assert server.info("sleeper")["pid"] == pid


def test_failed_error_log_is_kept_until_a_successful_start(serve: Serve, tmp_path: Path) -> None:
    program = tmp_path / "program"
    server = serve({"late": {"command": [str(program), "x"], "directory": str(tmp_path)}})
    answer = server.do("start", "late")
    assert (answer.status, answer.json["code"]) == (500, "START_FAILED")
    reason = server.info("late")["failedErrorLog"]
    assert "No such file or directory" in reason
    assert f"{program} x" in reason
    assert str(tmp_path) in reason
    assert reason in answer.json["message"]
    assert server.new_statuses("late") == ["starting", "failed_to_start"]

    program.write_text("#!/bin/sh\nexec sleep 1000\n")
    program.chmod(0o755)
    assert server.do("start", "late").status == 200
    assert server.info("late")["failedErrorLog"] is None
    server.do("stop", "late")
    assert server.info("late")["failedErrorLog"] is None
