"""Every status and every written move, each provoked with a real process; one event for each and none for nothing."""

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

Move = tuple[str, str]
How = tuple[str, Callable[["Scene"], None]]

PUPPET = "read code < {fifo} && exit $code"
"""Ends with the code that is written into its fifo."""

STATES: dict[str, dict[str, Any]] = {
    "running": {},
    "healthy": {"health-check": {"exec": {"command": "true"}, "interval": "50ms"}},
    "unhealthy": {"health-check": {"exec": {"command": "false"}, "interval": "50ms", "failure-threshold": 1}},
}
ENDINGS = ("finished", "failed", "stopped", "aborted", "stopping", "unknown")
STUBBORN = ["sh", "-c", "trap '' TERM; echo ready; while :; do sleep 1000; done"]

NEVER_MADE = {("healthy", "running"), ("unhealthy", "running")}
"""Legal, and nothing does it: a health check, once it has answered, always has an answer."""


class Scene:
    """One server with a process for each move, and what provokes it."""

    def __init__(self, server: Server) -> None:
        self.server = server

    def up(self, name: str, *statuses: str) -> int:
        if self.server.status(name) not in statuses:
            assert self.server.do("start", name).status == 200
        return int(self.server.until(name, *statuses)["pid"])

    def end(self, name: str, code: int) -> None:
        fifo = os.open(self.server.folder / name, os.O_RDWR)  # so that it does not wait for a reader
        os.write(fifo, f"{code}\n".encode())
        self.server.until(name, "finished" if code == 0 else "failed")
        os.close(fifo)

    def moves(self, name: str) -> list[Move]:
        return [(event["oldStatus"], event["newStatus"]) for event in self.server.events(name)]


@pytest.fixture(scope="module")
def scene(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Scene]:
    folder = tmp_path_factory.mktemp("moves")
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
            processes[name] = {"command": ["sh", "-c", PUPPET.format(fifo=folder / name)], **more}
    server = Server(folder, {"supervisor": {"processes": processes}}, {}, [])
    server.start()
    yield Scene(server)
    server.close()


def ends(state: str, ending: str) -> How:
    """Brings a process to one of the statuses in which it is up, and ends it in one of the ways."""
    name = f"{state}-{ending}"

    def provoke(scene: Scene) -> None:
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

    return name, provoke


def begins_after(ended: str) -> How:
    name, end = ends("running", ended)

    def provoke(scene: Scene) -> None:
        end(scene)
        assert scene.server.do("start", name).status == 200

    return name, provoke


def starts(name: str, answer: int = 200, times: int = 1) -> How:
    def provoke(scene: Scene) -> None:
        for _ in range(times):
            assert scene.server.do("start", name).status == answer

    return name, provoke


def is_stopped_while_starting(scene: Scene) -> None:
    requested = threading.Thread(target=scene.server.do, args=("start", "slow"))
    requested.start()
    scene.server.until("slow", "starting")
    assert scene.server.do("stop", "slow").status == 200
    requested.join()


def has_to_be_killed(scene: Scene) -> None:
    scene.up("stubborn", "running")
    wait_for((scene.server.folder / "stubborn.log").read_text)
    assert scene.server.do("stop", "stubborn").status == 200


def repeated_probes(*seen: bool) -> How:
    """The answer of its health check changes so, from the start on."""

    def provoke(scene: Scene) -> None:
        scene.server.do("stop", "turning")
        for good in seen:
            well = scene.server.folder / "well"
            well.touch() if good else well.unlink(missing_ok=True)
            scene.up("turning", "healthy" if good else "unhealthy")

    return "turning", provoke


HOW: dict[Move, How] = {
    ("not_started", "starting"): starts("fresh"),
    ("starting", "running"): starts("fresh2"),
    ("starting", "failed_to_start"): starts("missing", 500),
    ("starting", "stopping"): ("slow", is_stopped_while_starting),
    ("stopping", "stopped"): ends("running", "stopping"),
    ("stopping", "aborted"): ("stubborn", has_to_be_killed),
    ("running", "healthy"): repeated_probes(True),
    ("running", "unhealthy"): repeated_probes(False),
    ("healthy", "unhealthy"): repeated_probes(True, False),
    ("unhealthy", "healthy"): repeated_probes(False, True),
    ("failed_to_start", "starting"): starts("missing2", 500, times=2),
    **{(state, ending): ends(state, ending) for state in STATES for ending in ENDINGS if ending != "unknown"},
    **{(ended, "starting"): begins_after(ended) for ended in ("finished", "failed", "stopped", "aborted")},
}

UNWATCHED: dict[Move, str] = {
    ("running", "unknown"): "running-unknown",
    ("healthy", "unknown"): "healthy-unknown",
    ("unhealthy", "unknown"): "unhealthy-unknown",
    ("starting", "unknown"): "slow-unknown",
    ("stopping", "unknown"): "stopping-unknown",
}
"""Moves made because the process ended while no server watched it."""


def test_each_written_move_is_provoked_below_but_those_that_are_never_made() -> None:
    written = {(status.value, following.value) for status in Status for following in TRANSITIONS[status]}
    assert HOW.keys() | UNWATCHED.keys() | {("unknown", "starting")} == written - NEVER_MADE


@pytest.mark.parametrize("move", HOW, ids=" to ".join)
def test_the_move_is_made_and_is_in_the_history(scene: Scene, move: Move) -> None:
    name, provoke = HOW[move]
    before = len(scene.moves(name))
    provoke(scene)
    assert move in scene.moves(name)[before:]


def test_what_ends_while_no_server_watches_is_unknown_and_can_be_started(scene: Scene) -> None:
    server = scene.server
    for (status, _), name in UNWATCHED.items():
        if status in STATES:
            scene.up(name, status)
        else:
            threading.Thread(target=without_answer, args=(server, "start", name), daemon=True).start()
            server.until(name, "starting", "running")
    wait_for(
        lambda: (
            (server.folder / "stopping-unknown.log").exists() and (server.folder / "stopping-unknown.log").read_text()
        )
    )
    threading.Thread(target=without_answer, args=(server, "stop", "stopping-unknown"), daemon=True).start()
    server.until("stopping-unknown", "stopping")
    pids = {name: server.info(name)["pid"] for name in UNWATCHED.values()}
    server.kill()
    for pid in pids.values():
        os.killpg(pid, signal.SIGKILL)
        wait_for(partial(lambda one: not is_alive(one), pid))
    server.start()

    def is_last(name: str, move: tuple[str, str]) -> bool:
        return bool(scene.moves(name)[-1] == move)

    for move, name in UNWATCHED.items():
        wait_for(partial(is_last, name, move), about=f"{name} to be {move}")
        last = server.events(name)[-1]
        assert (last["pid"], last["exitCode"]) == (pids[name], None)
        assert server.info(name)["pid"] is None
    assert server.do("start", "running-unknown").status == 200
    assert ("unknown", "starting") in scene.moves("running-unknown")


@pytest.mark.parametrize(
    "name", ["turning", "stubborn", "missing", "slow", *(f"{s}-{e}" for s in STATES for e in ENDINGS)]
)
def test_a_history_is_one_path_through_the_table(scene: Scene, name: str) -> None:
    """Whatever the tests before it did."""
    events = scene.server.events(name)
    assert events == [] or events[0]["oldStatus"] == "not_started"
    for before, after in pairwise(events):
        assert after["oldStatus"] == before["newStatus"]
        assert after["id"] > before["id"]
    for event in events:
        assert Status(event["newStatus"]) in TRANSITIONS[Status(event["oldStatus"])]


def without_answer(server: Server, verb: str, name: str) -> None:
    """The server is killed before it can answer."""
    try:
        server.do(verb, name)
    except OSError:
        return


# What an event tells


def micros(text: str) -> datetime:
    return datetime.fromisoformat(text)


def lived(text: str) -> timedelta:
    """`PT1.5S`, below a minute."""
    return timedelta(seconds=float(text.removeprefix("PT").removesuffix("S")))


def test_the_events_of_an_instance_bear_its_pid_times_code_and_length(serve: Serve) -> None:
    server = serve({"short": {"command": ["sh", "-c", "sleep 0.2; exit 7"]}})
    begun = time.monotonic()
    server.do("start", "short")
    pid = server.info("short")["pid"]
    info = server.until("short", "failed")
    starting, running, failed = server.events("short")

    assert [starting["oldStatus"], starting["newStatus"]] == ["not_started", "starting"]
    assert [starting[key] for key in ("pid", "startTime", "endTime", "exitCode")] == [None] * 4
    assert starting["processUptime"] == "PT0S"

    assert [running["pid"], running["endTime"], running["exitCode"]] == [pid, None, None]
    assert micros(starting["eventTime"]) <= micros(running["startTime"]) <= micros(running["eventTime"])

    assert [failed["pid"], failed["exitCode"], failed["startTime"]] == [pid, 7, running["startTime"]]
    elapsed = timedelta(seconds=time.monotonic() - begun)
    assert timedelta(seconds=0.2) <= lived(failed["processUptime"]) <= elapsed
    length = micros(failed["endTime"]) - micros(failed["startTime"])
    assert abs(length - lived(failed["processUptime"])) < timedelta(milliseconds=50)
    assert micros(failed["endTime"]) <= micros(failed["eventTime"])

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
    assert timedelta(0) < lived(stopping["processUptime"]) <= lived(stopped["processUptime"])


def test_a_new_instance_forgets_the_last_one(serve: Serve) -> None:
    server = serve({"short": {"command": ["sh", "-c", "exit 7"]}})
    server.do("start", "short")
    first = server.until("short", "failed")
    server.do("start", "short")
    starting, running = server.events("short")[3:5]
    assert [starting[key] for key in ("pid", "startTime", "endTime", "exitCode")] == [None] * 4
    assert micros(running["startTime"]) > micros(first["endTime"])
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


def test_why_it_could_not_be_started_is_reported_until_it_is_started_again(serve: Serve, tmp_path: Path) -> None:
    program = tmp_path / "program"
    server = serve({"late": {"command": [str(program), "x"], "directory": str(tmp_path)}})
    answer = server.do("start", "late")
    assert (answer.status, answer.json["code"]) == (500, "START_FAILED")
    why = server.info("late")["failedErrorLog"]
    assert "No such file or directory" in why
    assert f"{program} x" in why
    assert str(tmp_path) in why
    assert why in answer.json["message"]
    assert server.new_statuses("late") == ["starting", "failed_to_start"]

    program.write_text("#!/bin/sh\nexec sleep 1000\n")
    program.chmod(0o755)
    assert server.do("start", "late").status == 200
    assert server.info("late")["failedErrorLog"] is None
    server.do("stop", "late")
    assert server.info("late")["failedErrorLog"] is None
