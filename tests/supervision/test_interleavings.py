"""Concurrent random commands for one process: the responses must be consistent with one order of the commands."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import os
import random
import re
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise, permutations
from typing import Any

import pytest
from attrs import frozen
from conftest import Serve, Server, is_alive, tags_by_pid, wait_for

from models.errors import Failed
from models.supervision.process import TRANSITIONS, UP, Status
from models.supervision.runs import Cause
from supervisor.processes.process.attempts import StartAttempt, StartCalledOff, next_request

ROUNDS = 32
VERBS = ("start", "stop", "restart")

KINDS: dict[str, dict[str, Any]] = {
    "sleeper": {"command": "sleep 1000"},
    "brief": {"command": "true"},
    "stubborn": {"command": ["sh", "-c", "trap '' TERM; while :; do sleep 0.02; done"], "stop-timeout": "200ms"},
    "slow": {"command": "sleep 1000", "start-seconds": "30ms"},
    "chained": {"command": "sleep 1000", "limits": {"core": 0}},
    "needy": {"command": "sleep 1000", "depends-on": ["base"]},
    "undying": {"command": "true", "restart": "always", "restart-delay": "5ms", "restart-limit": 0},
    "hopeless": {"command": "/no/such/program", "restart": "always", "restart-delay": "5ms", "restart-limit": 0},
}
LASTING = ("sleeper", "stubborn", "slow", "chained", "needy")


@frozen
class Answer:
    verb: str
    status: int
    message: str

    @property
    def pids(self) -> list[int]:
        return [int(pid) for pid in re.findall(r"(?:pid|was) (\d+)", self.message)]


def call_concurrently(server: Server, name: str, calls: list[tuple[str, float]]) -> list[Answer]:
    """Makes these calls concurrently, each after its own delay; returns the responses."""
    result: list[Answer | None] = [None] * len(calls)

    def call(number: int, verb: str, delay: float) -> None:
        time.sleep(delay)
        answer = server.do(verb, name)
        result[number] = Answer(verb, answer.status, answer.json["message"])

    callers = [threading.Thread(target=call, args=(number, *one)) for number, one in enumerate(calls)]
    for caller in callers:
        caller.start()
    for caller in callers:
        caller.join(60)
    assert None not in result, "a call got no response"
    return [one for one in result if one is not None]


def is_consistent(result: tuple[Answer, ...], live: int | None, after: int | None) -> bool:
    """Whether these responses, in this order, lead from the pid `live` to the pid `after` (None: not running)."""
    for number, one in enumerate(result, 1):
        match one.verb, one.status:
            case "start", 200 if "already" in one.message:
                if one.pids != [live]:
                    return False
            case "start", 200:
                if live is not None:
                    return False
                live = one.pids[0]
            case "stop", 200 if one.pids:
                if one.pids != [live]:
                    return False
                live = None
            case "stop", 200:
                if live is not None:
                    return False
            case "restart", 200:
                if one.pids[1:] != ([] if live is None else [live]):
                    return False
                live = one.pids[0]
            case "start" | "restart", 409 if "was stopped while it was starting" in one.message:
                return True  # its pid is in no response
            case "start" | "restart", 409 if "was stopped before it started" in one.message:
                if one.verb == "start":
                    continue
                return any(
                    is_consistent(result[number:], state, after) for state in (live, None)
                )  # it may have stopped the process
            case _:
                return False
    return live == after


def check_history(server: Server, name: str) -> list[dict[str, Any]]:
    """Checks that the events are one path of transitions from the beginning, with one child at a time."""
    events = history(server, name)
    assert not events or events[0]["oldStatus"] == "not_started"
    for before, after in pairwise(events):
        assert before["id"] < after["id"]
        assert before["newStatus"] == after["oldStatus"]
    live: int | None = None
    for event in events:
        status, pid = Status(event["newStatus"]), event["pid"]
        assert status in TRANSITIONS[Status(event["oldStatus"])]
        if status is Status.STARTING:
            assert live is None
        elif status in UP | {Status.STOPPING}:
            assert live in (None, pid)
            live = pid
        else:
            assert live in (None, pid)
            live = None
    return events


def history(server: Server, name: str) -> list[dict[str, Any]]:
    events: list[dict[str, Any]] = []
    while True:
        path = f"/api/v1/events/by-process/{name}?size=100&sortBy=id&sortDirection=asc&page={len(events) // 100}"
        page = server.get(path).json
        events += page["content"]
        if page["last"]:
            return events


def tagged_processes(name: str) -> list[int]:
    return [pid for pid, tag in tags_by_pid().items() if tag.split(":", 2)[2] == name]


@pytest.mark.parametrize("kind", KINDS)
def test_concurrent_commands_leave_one_process_and_consistent_responses(serve: Serve, kind: str) -> None:
    chance = random.Random(f"interleavings {kind}")
    name = f"{kind}-{chance.getrandbits(32):x}"
    server = serve({"base": {"command": "sleep 1000"}, name: KINDS[kind]})
    for _ in range(ROUNDS if kind != "stubborn" else ROUNDS // 4):
        before = server.info(name)["pid"]
        calls = [(chance.choice(VERBS), chance.choice((0, 0, 0.001, 0.004, 0.03))) for _ in range(chance.randint(2, 4))]
        result = call_concurrently(server, name, calls)
        if kind in LASTING:
            after = server.info(name)["pid"]
            assert any(is_consistent(order, before, after) for order in permutations(result)), (before, result, after)
            wait_for(lambda: tagged_processes(name)[:1] == ([after] if after else []))  # noqa: B023 (the kernel shows an environment late)
            assert server.status(name) in ("not_started", "stopped", "aborted", "running")
        else:
            expected = 500 if kind == "hopeless" else 200
            assert all(
                one.status == (200 if one.verb == "stop" else expected)
                or one.message.endswith(("was stopped before it started", "was stopped while it was starting"))
                # A restart of its own may have a child that has not failed to execute yet.
                or (one.verb == "start" and one.message.startswith(f"{name} is already starting (pid "))
                for one in result
            ), result

    assert server.do("stop", name).status == 200
    status, pid = server.status(name), server.info(name)["pid"]
    assert pid is None
    wait_for(lambda: not tagged_processes(name))
    events = check_history(server, name)
    assert events[-1]["newStatus"] == status
    assert len(events) > ROUNDS // 2
    assert "Traceback" not in server.log.read_text()
    assert "IllegalMove" not in server.log.read_text()
    time.sleep(0.05)  # ten times the delay of a restart: none may come after the stop
    assert history(server, name) == events


def test_concurrent_group_and_single_commands_are_consistent(serve: Serve) -> None:
    chance = random.Random("group")
    names = [f"group{number}-{chance.getrandbits(32):x}" for number in range(5)]
    specs: dict[str, dict[str, Any]] = {name: {"command": "sleep 1000"} for name in names}
    specs[names[1]]["depends-on"] = [names[0]]
    specs[names[2]]["depends-on"] = [names[1]]
    server = serve(specs)
    for _ in range(25):
        paths = [
            f"/api/v1/processes/{path}"
            for path in (f"group/{chance.choice(VERBS)}", f"{chance.choice(VERBS)}/{chance.choice(names)}")
        ]
        with ThreadPoolExecutor() as callers:
            answers = [answer.status for answer in callers.map(server.post, paths)]
        assert set(answers) <= {200, 404, 409, 500}, (paths, answers)
        for info in server.get("/api/v1/processes").json:
            assert info["status"] in ("not_started", "stopped", "running"), (paths, info)
            assert (info["pid"] is not None) == (info["status"] == "running")
    for name in names:
        check_history(server, name)
        pid = server.info(name)["pid"]
        wait_for(lambda: tagged_processes(name) == ([pid] if pid else []))  # noqa: B023 (the kernel shows an environment late)
    assert "Traceback" not in server.log.read_text()


def test_start_of_a_dependency_completes_if_its_dependent_is_stopped(serve: Serve) -> None:
    """The dependency ends up running; it does not stay in `starting`."""
    server = serve({
        "base": {"command": "sleep 1000", "limits": {"core": 0}},
        "web": {"command": "sleep 1000", "depends-on": ["base"]},
    })  # fmt: skip
    for number in range(40):
        requested = threading.Thread(target=server.do, args=("start", "web"))
        requested.start()
        time.sleep(0.0005 * (number % 12))
        assert server.do("stop", "web").status == 200
        requested.join(60)
        if server.status("base") != "not_started":
            server.until("base", "running", "stopped")
        assert server.do("stop", "base").status == 200
        assert server.status("base") in ("stopped", "not_started")
        assert server.info("base")["pid"] is None


def test_stop_is_effective_after_an_earlier_queued_start_failed(serve: Serve) -> None:
    """The start fails and would be retried; the stop that was requested after it prevents that."""
    server = serve({
        "flaky": {
            "command": [
                "sh", "-c", "test -e on && { trap '' TERM; : > up; while test -e on; do sleep 0.02; done; }; exit 1",
            ],
            "stop-timeout": 60, "restart": "always", "restart-delay": "100ms", "restart-max-delay": "100ms",
            "start-seconds": "2s",  # the second start fails before, also under load
        },
    })  # fmt: skip
    (server.folder / "on").touch()
    assert server.do("start", "flaky").status == 200
    wait_for((server.folder / "up").exists)
    with contextlib.ExitStack() as stack:
        calls = [
            stack.enter_context(contextlib.closing(server.send(verb, "flaky"))) for verb in ("stop", "start", "stop")
        ]
        assert server.status("flaky") == "stopping"
        (server.folder / "on").unlink()
        assert [call.getresponse().status for call in calls] == [200, 409, 200]
    before = server.new_statuses("flaky")
    time.sleep(0.4)
    assert server.new_statuses("flaky") == before
    assert is_alive(server.pid)


def test_due_restart_is_not_made_after_a_requested_restart(serve: Serve) -> None:
    """The process crashes while a requested restart waits; only one of the two may start it."""
    server = serve({
        "base": {
            "command": "sleep 1000",
            "health-check": {"exec": {"command": "test -e well"}, "interval": "20ms", "failure-threshold": 1},
        },
        "web": {
            "command": ["sh", "-c", "test -e end && exit 0; exec sleep 1000"], "restart": "on-failure",
            "restart-delay": "500ms", "depends-on": [{"process": "base", "condition": "healthy"}],
        },
    })  # fmt: skip
    (server.folder / "well").touch()
    assert server.do("start", "web").status == 200
    (server.folder / "well").unlink()
    server.until("base", "unhealthy")
    requested = threading.Thread(target=server.do, args=("restart", "web"))
    requested.start()
    wait_for(lambda: server.get("/api/v1/processes/details?select=web").json[0]["waitingFor"] == "dependency")
    os.kill(server.info("web")["pid"], 9)
    server.until("web", "aborted")
    (server.folder / "end").touch()
    (server.folder / "well").touch()
    requested.join(60)
    server.until("web", "finished")
    before = server.new_statuses("web")
    time.sleep(1.0)
    assert server.new_statuses("web") == before
    assert server.do("stop", "web").json["message"] == "web is not running"


def test_a_start_that_fails_as_it_is_called_off_leaves_no_unhandled_error() -> None:
    unhandled: list[dict[str, Any]] = []

    async def call_off_and_fail(attempt: StartAttempt) -> None:
        attempt.call_off()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:  # as `gather`, where one of several has just failed
            raise Failed("db was stopped", "START_FAILED") from None

    async def start() -> None:
        asyncio.get_running_loop().set_exception_handler(lambda _, context: unhandled.append(context))
        attempt = StartAttempt("web", next_request(), Cause())
        with pytest.raises(StartCalledOff):
            await attempt.unless_called_off(call_off_and_fail(attempt))
        await asyncio.sleep(0)

    asyncio.run(start())
    gc.collect()
    assert unhandled == []
