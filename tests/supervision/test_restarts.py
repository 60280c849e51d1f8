"""Restarts of ended processes: conditions, delays, and cancellation."""

from __future__ import annotations

import asyncio
import ctypes
import os
import re
import signal
import time
from collections.abc import Awaitable, Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest
from attrs import evolve
from conftest import Serve, Server, wait_for

from models.config.settings import Config, ServerSettings, SupervisorSettings
from models.supervision.process import ProcessSpec, Restart, Seconds
from supervisor.children.child import Child, Children, Launch
from supervisor.processes.event_writer import EventWriter
from supervisor.processes.process.restart_policy import RestartPolicy, delay
from supervisor.services import open_services

# The delay


def spec(first: float = 1, most: float = 60, limit: int = 10, window: float = 300, reset: float = 30) -> ProcessSpec:
    return ProcessSpec(
        "p", ("true",), restart_delay=Seconds(first), restart_max_delay=Seconds(most), restart_limit=limit,
        restart_window=Seconds(window), restart_reset=Seconds(reset),
    )  # fmt: skip


@pytest.mark.parametrize(
    ("first", "most", "attempt", "least", "longest"),
    [
        (1, 60, 0, 1, 1.25),
        (1, 60, 1, 2, 2.5),
        (1, 60, 2, 4, 5),
        (1, 60, 5, 32, 40),
        (1, 60, 6, 60, 45),  # at the cap the jitter is subtracted
        (1, 60, 7, 60, 45),
        (1, 60, 10_000, 60, 45),
        (50, 60, 0, 50, 60),
        (0.5, 60, 1, 1, 1.25),
        (0, 60, 0, 0, 0),
        (0, 60, 9, 0, 0),
        (0, 0, 3, 0, 0),
        (5, 1, 0, 5, 5),  # restart-max-delay below restart-delay
        (5, 1, 9, 5, 5),
        (5, 5, 9, 5, 5),
    ],
)
def test_delay_doubles_with_up_to_a_quarter_of_jitter_and_is_capped(
    first: float, most: float, attempt: int, least: float, longest: float
) -> None:
    assert delay(spec(first, most), attempt, 0) == least
    assert delay(spec(first, most), attempt, 1) == longest
    for chance in (0.1, 0.5, 0.9):
        assert min(least, longest) <= delay(spec(first, most), attempt, chance) <= max(least, longest)


def test_a_long_uptime_resets_the_delays_and_a_short_one_does_not() -> None:
    policy, rule = RestartPolicy(), spec(1, 1000, limit=0)
    waits = [policy.next_delay(rule, uptime, now) for now, uptime in enumerate([0, 1, 29.9, 30, 0, 1000])]
    assert [
        wait is not None and 2**power <= wait <= 1.25 * 2**power
        for wait, power in zip(waits, (0, 1, 2, 0, 1, 0), strict=True)
    ] == [True] * 6


@pytest.mark.parametrize(
    ("limit", "window", "at", "granted"),
    [
        (3, 10, (0, 1, 2, 3, 9), (True, True, True, False, False)),
        (3, 10, (0, 1, 2, 9.9, 10, 11, 12, 13), (True, True, True, False, True, True, True, False)),
        (1, 10, (0, 5, 10, 15, 20), (True, False, True, False, True)),
        (0, 10, range(100), (True,) * 100),
    ],
)
def test_no_more_restarts_are_granted_within_the_window_than_the_limit(
    limit: int, window: float, at: Any, granted: tuple[bool, ...]
) -> None:
    policy = RestartPolicy()
    assert tuple(policy.next_delay(spec(limit=limit, window=window), 0, now) is not None for now in at) == granted


def test_delays_of_processes_that_failed_together_differ() -> None:
    assert len({RestartPolicy().next_delay(spec(), 0, 0) for _ in range(50)}) > 40


def test_every_spawn_waits_until_the_intent_is_stored(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[str] = []
    spawn, stored_soon = Children.spawn, EventWriter.stored_soon

    def recording_spawn(children: Children, launch: Launch) -> Child:
        calls.append(launch.argv[0])  # the search for helm spawns a process, too
        return spawn(children, launch)

    def recording_wait(event_writer: EventWriter, name: str | None = None) -> Awaitable[None]:
        calls.append(f"wait for {name}")
        return stored_soon(event_writer, name)

    monkeypatch.setattr(Children, "spawn", recording_spawn)
    monkeypatch.setattr(EventWriter, "stored_soon", recording_wait)
    web = ProcessSpec("web", ("sleep", "1000"), restart=Restart.ALWAYS, restart_delay=Seconds(0))

    of_web = ("wait for web", "sleep")

    async def work() -> None:
        config = Config(server=ServerSettings(data_dir=tmp_path), supervisor=SupervisorSettings(processes={"web": web}))
        async with open_services(config, lambda: config) as services:
            await services.supervision.fleet.start("web")
            process = services.supervision.fleet.get("web")
            assert [one for one in calls if one in of_web] == ["wait for web", "sleep"]
            os.kill(process.record.pid or 0, signal.SIGKILL)
            await process.until(lambda one: one.restarts == 1 and one.live)
            assert [one for one in calls if one in of_web] == ["wait for web", "sleep"] * 2

    try:
        asyncio.run(work())
    finally:
        ctypes.CDLL(None).prctl(36, 0, 0, 0, 0)  # this process is no longer a subreaper


# The policy and the cause of the exit

CAUSES = {
    "exit-0": "finished", "exit-1": "failed", "TERM": "stopped", "INT": "stopped", "KILL": "aborted", "SEGV": "aborted",
    "failed-exec": "failed_to_start", "died-early": "failed_to_start", "stop": "stopped", "killed-by-stop": "aborted",
}  # fmt: skip
POLICIES = {
    "never": set[str](),
    "on-failure": {"exit-1", "KILL", "SEGV", "failed-exec", "died-early"},
    "always": {"exit-0", "exit-1", "TERM", "INT", "KILL", "SEGV", "failed-exec", "died-early"},
}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    folder = tmp_path_factory.mktemp("restarts")
    codes = {"exit-0": "exit 0", "exit-1": "exit 1", "died-early": "exit 1"}
    processes: dict[str, Any] = {}
    for policy in POLICIES:
        for cause in CAUSES:
            name = f"{policy}-{cause}"
            after = "exec sleep 1000"
            if cause == "killed-by-stop":
                after = f"trap '' TERM; : > {folder}/{name}.up; while :; do sleep 0.02; done"
            again = f"test -e {folder}/{name}.again && exec sleep 1000; : > {folder}/{name}.again; "
            processes[name] = {
                "command": ["sh", "-c", f"{again}{codes[cause]}" if cause in codes else after],
                "restart": policy, "restart-delay": "20ms",
            }  # fmt: skip
            if cause == "killed-by-stop":
                processes[name]["stop-timeout"] = "100ms"  # others end by SIGTERM, under load later than that
            if cause == "failed-exec":
                processes[name]["command"] = [f"{folder}/{name}.program"]
            if cause == "died-early":
                processes[name]["start-seconds"] = "2s"  # it ends before, also under load
    server = Server(folder, {"supervisor": {"processes": processes}}, {}, [])
    server.start()
    yield server
    server.close()


@pytest.mark.parametrize("cause", CAUSES)
@pytest.mark.parametrize("policy", POLICIES)
def test_restart_depends_on_the_policy_and_the_cause_of_the_exit(server: Server, policy: str, cause: str) -> None:
    name = f"{policy}-{cause}"
    answer = server.do("start", name)
    assert answer.status == (500 if cause in ("failed-exec", "died-early") else 200)
    match cause:
        case "TERM" | "INT" | "KILL" | "SEGV":
            os.kill(server.info(name)["pid"], signal.Signals[f"SIG{cause}"])
        case "killed-by-stop":
            wait_for((server.folder / f"{name}.up").exists)
            server.do("stop", name)
        case "stop":
            server.do("stop", name)
    if cause == "failed-exec":
        program = server.folder / f"{name}.program"
        program.write_text("#!/bin/sh\nexec sleep 1000\n")
        program.chmod(0o755)
    wait_for(lambda: CAUSES[cause] in server.new_statuses(name))
    if cause in POLICIES[policy]:

        def following() -> list[str]:
            statuses = server.new_statuses(name)
            return statuses[statuses.index(CAUSES[cause]) + 1 :]

        wait_for(lambda: following()[-2:] == ["starting", "running"], about="a restart")
    else:
        time.sleep(0.1)  # five times the delay: no restart may follow
        assert server.new_statuses(name)[-1] == CAUSES[cause] == server.status(name)


def test_restart_delay_grows_and_leaves_the_status_unchanged(serve: Serve) -> None:
    server = serve({
        "crashing": {"command": "false", "restart": "on-failure", "restart-delay": "100ms", "restart-limit": 3},
    })  # fmt: skip
    server.do("start", "crashing")
    wait_for(lambda: server.new_statuses("crashing").count("failed") == 4)
    events = server.events("crashing")
    assert [event["newStatus"] for event in events] == ["starting", "running", "failed"] * 4
    waits = [
        (at(starting) - at(failed)).total_seconds()
        for failed, starting in zip(events[2:-1:3], events[3::3], strict=True)
    ]
    planned = [float(seconds) for seconds in re.findall(r"crashing: restart in (\S+) s", server.log.read_text())]
    for wait, plan, least in zip(waits, planned, (0.1, 0.2, 0.4), strict=True):
        assert least <= wait  # how much longer it takes depends on the machine
        assert least <= plan <= round(1.25 * least + 0.05, 3)  # logged with one digit


def at(event: dict[str, Any]) -> datetime:
    return datetime.fromisoformat(event["eventTime"])


def test_process_at_its_restart_limit_stays_failed_until_a_start_by_name(serve: Serve) -> None:
    server = serve({"crashing": {"command": "false", "restart": "always", "restart-delay": 0, "restart-limit": 5}})
    for round in (1, 2):  # a start by name resets the limit
        server.do("start", "crashing")
        wait_for(lambda: server.log.read_text().count("restart limit reached") == round)  # noqa: B023 (called at once)
        assert server.new_statuses("crashing").count("starting") == 6 * round
        assert server.status("crashing") == "failed"
    assert server.do("stop", "crashing").json["message"] == "crashing is not running"


def test_process_without_a_restart_limit_is_always_restarted(serve: Serve) -> None:
    server = serve({"crashing": {"command": "false", "restart": "always", "restart-delay": 0, "restart-limit": 0}})
    server.do("start", "crashing")
    wait_for(lambda: server.get("/api/v1/events/count").json.get("failed", 0) > 200, 120)
    assert server.do("stop", "crashing").status == 200
    assert "restart limit reached" not in server.log.read_text()


def test_failed_starts_in_a_row_are_limited_apart_from_restarts() -> None:
    policy, once = RestartPolicy(), evolve(spec(limit=0), start_retries=2)
    ended = [True, True, False, True, True, True]
    assert [policy.next_delay(once, 0, 0, failed) is None for failed in ended] == [False] * 5 + [True]
    assert policy.reached(once) == "3 failed starts in a row"
    policy.reset()
    assert policy.next_delay(once, 0, 0, True) is not None


def test_worker_that_ends_normally_is_restarted_beyond_its_start_retries(serve: Serve) -> None:
    """Only failed starts in a row count, as with `startretries` of supervisord."""
    restart = {"restart": "always", "restart-delay": 0, "restart-limit": 0, "start-retries": 1}
    server = serve({"worker": {"command": ["sleep", "0.02"], "start-seconds": "1ms", **restart}})
    server.do("start", "worker")
    wait_for(lambda: server.new_statuses("worker").count("finished") > 3)
    assert "process.gave_up" not in server.log.read_text()


@pytest.mark.parametrize(("restart", "retries", "starts"), [("always", 2, 3), ("never", 1, 2), ("on-failure", 0, 1)])
def test_process_stays_failed_to_start_after_its_start_retries(
    serve: Serve, restart: str, retries: int, starts: int
) -> None:
    server = serve({
        "p": {"command": "false", "start-seconds": 5, "restart": restart, "restart-delay": 0, "restart-limit": 0,
              "start-retries": retries},
    })  # fmt: skip
    for round in (1, 2):  # a start by name begins the count anew
        server.do("start", "p")
        wait_for(lambda: server.log.read_text().count("restart limit reached") == round or not retries)  # noqa: B023
        wait_for(lambda: server.new_statuses("p").count("failed_to_start") == starts * round)  # noqa: B023
        assert server.status("p") == "failed_to_start"
    if retries:
        assert f"p: restart limit reached ({starts} failed starts in a row)" in server.log.read_text()


@pytest.mark.parametrize(("verb", "second"), [("restart", "restart"), ("start", "stop")])
def test_start_that_a_later_call_ends_is_a_conflict(serve: Serve, verb: str, second: str) -> None:
    server = serve({"slow": {"command": ["sleep", "60"], "start-seconds": 30}})
    with ThreadPoolExecutor() as pool:
        first = pool.submit(server.do, verb, "slow")
        wait_for(lambda: server.status("slow") == "starting" and server.info("slow")["pid"])
        last = pool.submit(server.do, second, "slow")
        answer = first.result(30)
        assert (answer.status, answer.json["message"]) == (409, "slow was stopped while it was starting")
        server.do("stop", "slow")
        last.result(30)
    statuses = server.get("/v3/api-docs").json["paths"][f"/api/v1/processes/{verb}/{{name}}"]["post"]["responses"]
    assert "409" in statuses


WAITING = {"command": "false", "restart": "on-failure", "restart-delay": "300ms", "restart-max-delay": "300ms"}


@pytest.mark.parametrize("path", ["stop/waiting", "group/stop"])
def test_stop_cancels_a_pending_restart_without_an_event(serve: Serve, path: str) -> None:
    server = serve({"waiting": {**WAITING, "restart-delay": 60, "restart-max-delay": 60}})
    server.do("start", "waiting")
    server.until("waiting", "failed")
    details = "/api/v1/processes/details?select=waiting"
    assert server.get(details).json[0]["waitingFor"] == "restart"
    before = server.events("waiting")
    assert server.post(f"/api/v1/processes/{path}").status == 200
    assert server.post("/api/v1/processes/group/stop").status == 404
    assert [server.get(details).json[0][key] for key in ("waitingFor", "nextRestart")] == [None, None]
    assert server.events("waiting") == before
    assert server.status("waiting") == "failed"


@pytest.mark.parametrize("verb", ["start", "restart"])
def test_start_during_the_restart_delay_starts_the_process_at_once(serve: Serve, verb: str) -> None:
    server = serve({
        "waiting": {**WAITING, "command": ["sh", "-c", "test -e on && exec sleep 1000; exit 1"], "restart-delay": 60},
    })  # fmt: skip
    server.do("start", "waiting")
    server.until("waiting", "failed")
    (server.folder / "on").touch()
    assert server.do(verb, "waiting").status == 200
    assert server.new_statuses("waiting") == ["starting", "running", "failed", "starting", "running"]


def test_group_start_during_the_restart_delay_is_200(serve: Serve) -> None:
    server = serve({
        "waiting": {**WAITING, "command": ["sh", "-c", "test -e on && exec sleep 1000; exit 1"], "restart-delay": 60},
    })  # fmt: skip
    server.do("start", "waiting")
    server.until("waiting", "failed")
    (server.folder / "on").touch()
    assert server.post("/api/v1/processes/group/start").status == 200
    assert server.status("waiting") == "running"


def test_stopped_process_is_not_restarted_by_its_policy(serve: Serve) -> None:
    server = serve({"kept": {"command": "sleep 1000", "restart": "always", "restart-delay": 0}})
    server.do("start", "kept")
    os.kill(server.info("kept")["pid"], signal.SIGTERM)
    wait_for(lambda: server.new_statuses("kept").count("running") == 2)
    server.do("stop", "kept")
    before = server.new_statuses("kept")
    time.sleep(0.1)
    assert server.new_statuses("kept") == before
    assert before[-2:] == ["stopping", "stopped"]
