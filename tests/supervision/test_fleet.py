"""A stop or restart of all processes overtakes starts that were requested before it."""

from __future__ import annotations

import asyncio
import random
import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, cast

import pytest
from attrs import evolve
from conftest import Answer, Serve, Server, children_of, tags_by_pid, wait_for

from models.supervision.process import Dependency, ProcessSpec
from supervisor.processes.fleet import Fleet
from supervisor.processes.process.attempts import StartCalledOff, next_request
from supervisor.processes.process.process import Process

if TYPE_CHECKING:
    from supervisor.processes.process.context import SupervisionContext

SLEEPER: dict[str, Any] = {"command": "sleep 1000"}


class Call(threading.Thread):
    """A request in a thread of its own."""

    def __init__(self, request: Callable[[], Answer]) -> None:
        super().__init__(daemon=True)
        self._request = request
        self._response: Answer | None = None
        self.start()

    def run(self) -> None:
        self._response = self._request()

    @property
    def response(self) -> Answer:
        self.join(60)
        assert self._response is not None
        return self._response


def live(server: Server) -> list[str]:
    return [info["name"] for info in server.get("/api/v1/processes").json if info["pid"] is not None]


@pytest.mark.parametrize("path", ["group/stop", "stop?select=all"])
def test_group_stop_overtakes_a_group_start(serve: Serve, path: str) -> None:
    chance = random.Random(f"overtake {path}")
    specs = {f"p{number}": {**SLEEPER, "order": number % 3, "limits": {"core": 0}} for number in range(60)}
    server = serve(specs)
    overtaken = 0
    for _ in range(8):
        start = Call(lambda: server.post("/api/v1/processes/group/start"))
        if "select" in path:
            wait_for(lambda: live(server))  # with nothing to stop the response is 200 too
        time.sleep(chance.uniform(0.0, 0.3))
        stop = server.post(f"/api/v1/processes/{path}")
        running = live(server)
        response = start.response
        if stop.status == 404:  # the stop came before the start, which goes on after it
            assert server.post("/api/v1/processes/group/stop").status == 200
        else:
            assert live(server) == running == []
            if response.status != 200:
                overtaken += 1
                assert (response.status, response.json["code"]) == (500, "START_FAILED")
                assert "stopped" in response.json["message"]
        known, own = tags_by_pid(), children_of(server.data)  # other servers have processes of these names too
        names = {known[pid].split(":", 2)[2] for pid in own if pid in known} & specs.keys()
        assert not [name for name in names if server.status(name) != "stopped"]
    assert overtaken > 0


@pytest.mark.parametrize("verb", ["stop", "restart"])
def test_group_commands_reach_a_process_that_waits_for_its_dependency(serve: Serve, verb: str) -> None:
    check = {"exec": {"command": "test -e well"}, "interval": "20ms", "failure-threshold": 1}
    server = serve({
        "base": {**SLEEPER, "health-check": check},
        "web": {**SLEEPER, "depends-on": [{"process": "base", "condition": "healthy"}]},
    })  # fmt: skip
    start = Call(lambda: server.do("start", "web"))
    wait_for(lambda: server.get("/api/v1/processes/details?select=web").json[0]["waitingFor"] == "dependency")
    call = Call(lambda: server.post(f"/api/v1/processes/group/{verb}"))
    assert start.response.status == 409
    assert "web was stopped before it started" in start.response.json["message"]
    (server.folder / "well").touch()
    assert call.response.status == 200
    assert server.status("web") == ("not_started" if verb == "stop" else "running")


def test_a_failed_process_waits_for_nothing_while_a_group_start_goes_on(serve: Serve) -> None:
    server = serve({
        "bad": {"command": "/no/such/program"},
        "slow": {"type": "notify", "command": "sleep 1000", "ready-timeout": 0},
    })  # fmt: skip
    start = Call(lambda: server.post("/api/v1/processes/group/start"))
    server.until("bad", "failed_to_start")
    server.until("slow", "starting")
    waits = {one["name"]: one["waitingFor"] for one in server.get("/api/v1/processes/details").json}
    assert waits == {"bad": None, "slow": "ready"}
    assert server.do("stop", "slow").status == 200
    assert start.response.status == 500


def test_group_stop_is_200_while_only_a_restart_is_pending(serve: Serve) -> None:
    """The stop is not 404, although no process is live: a restart is due."""
    server = serve({"web": {"command": "/no/such/program", "restart": "always", "restart-delay": 60}})
    assert server.do("start", "web").status == 500
    assert server.post("/api/v1/processes/group/stop").status == 200
    assert server.post("/api/v1/processes/group/stop").status == 404


# First starts that fail before the spawn


def test_automatic_start_without_its_directory_fails_and_is_retried(serve: Serve) -> None:
    server = serve({
        "base": {**SLEEPER, "directory": "here", "restart": "on-failure", "restart-delay": "50ms",
                 "restart-max-delay": "50ms", "restart-limit": 0, "auto-start": True},
        "web": {**SLEEPER, "depends-on": ["base"], "auto-start": True},
    })  # fmt: skip
    server.until("base", "failed_to_start")
    assert "there is no directory" in server.info("base")["failedErrorLog"]
    assert server.status("web") == "not_started"  # it waits for its dependency
    (server.folder / "here").mkdir()
    server.until("base", "running")
    server.until("web", "running")
    statuses = server.new_statuses("base")
    assert statuses[:2] == ["starting", "failed_to_start"]
    assert statuses[-2:] == ["starting", "running"]


def test_start_by_name_without_its_directory_is_400_and_is_not_retried(serve: Serve) -> None:
    server = serve({
        "web": {**SLEEPER, "directory": "here", "restart": "always", "restart-delay": "10ms"},
    })  # fmt: skip
    assert server.do("start", "web").status == 400
    assert server.events("web") == []
    (server.folder / "here").mkdir()
    server.kill()
    server.start()
    time.sleep(0.1)  # ten times the delay
    assert server.events("web") == []


def test_start_that_failed_for_a_late_dependency_is_retried(serve: Serve) -> None:
    server = serve({
        "base": {**SLEEPER, "start-seconds": "400ms"},
        "web": {**SLEEPER, "depends-on": ["base"], "start-timeout": "100ms", "restart": "on-failure",
                "restart-delay": "50ms", "restart-max-delay": "50ms", "restart-limit": 0},
    })  # fmt: skip
    assert server.do("start", "web").status == 500
    assert server.new_statuses("web")[:2] == ["starting", "failed_to_start"]
    server.until("web", "running")


def test_dependency_stopped_after_the_start_request_is_not_started() -> None:
    async def start() -> None:
        specs = {
            "base": ProcessSpec("base", ("sleep", "1000")),
            "web": ProcessSpec("web", ("sleep", "1000"), depends_on=(Dependency("base"),)),
        }
        fleet = Fleet(specs, cast("SupervisionContext", None), {})  # nothing is started
        request = next_request()
        fleet.get("base").call_off(next_request())
        with pytest.raises(StartCalledOff, match="base was stopped"):
            await fleet._start_dependencies("web", request)

    asyncio.run(start())


def test_process_added_again_after_a_failed_removal_gets_the_new_configuration() -> None:
    """Its stop failed, so the fleet still has the process."""
    old, new = ProcessSpec("web", ("old",)), ProcessSpec("web", ("new",))
    fleet = Fleet({"web": old}, cast("SupervisionContext", None), {})  # nothing is started
    fleet._take_over({}, [])
    plan = fleet.preview({"web": new}, auto_start=True)
    assert (plan.added, plan.changed) == ([], ["web"])


@pytest.mark.parametrize("reverse", [False, True])
def test_a_reload_that_changes_orders_meanwhile_leaves_out_no_process(reverse: bool) -> None:
    specs = {name: ProcessSpec(name, ("true",), order=order) for name, order in (("a", 1), ("b", 2), ("c", 3))}
    fleet = Fleet(specs, cast("SupervisionContext", None), {})  # nothing is started
    seen: list[str] = []

    async def start(process: Process) -> str:
        seen.append(process.name)
        for other in fleet:
            other.state.spec = evolve(other.spec, order=2 if other.name == "a" else 1)
        return "done"

    results = asyncio.run(fleet.results(list(fleet), start, reverse))
    assert seen == [process.name for process, _ in results] == (["c", "b", "a"] if reverse else ["a", "b", "c"])
