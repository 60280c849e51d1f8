"""A new configuration is taken over while everything runs: by POST, and by SIGHUP."""

from __future__ import annotations

import asyncio
import ctypes
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from conftest import ROOT, Answer, Serve, Server, children_of, is_alive, wait_for

from models.config.settings import Config, Supervisor
from models.config.settings import Server as ServerSettings
from models.supervision.process import ProcessSpec
from supervisor.services import open_services

SLEEPER = {"command": "sleep 1000"}
OTHER = {"command": "sleep 2000"}


def processes(server: Server, specs: dict[str, Any], /, **sections: Any) -> None:
    server.configure({**sections, "supervisor": {"processes": specs}})


def post(server: Server) -> None:
    assert server.post("/api/v1/supervisor/reload").status == 200


def hang_up(server: Server) -> None:
    assert server.process is not None
    result = server.log.read_text().count("reload: ")
    server.process.send_signal(signal.SIGHUP)
    wait_for(lambda: server.log.read_text().count("reload: ") > result)


@pytest.fixture(params=[post, hang_up], ids=["POST", "SIGHUP"])
def reload(request: pytest.FixtureRequest) -> Any:
    return request.param


Reload = Callable[[Server], None]


def test_a_configuration_that_is_the_same_changes_nothing(serve: Serve, reload: Reload) -> None:
    server = serve({"web": SLEEPER, "db": SLEEPER | {"auto-start": True}, "off": SLEEPER})
    server.do("start", "web")
    server.until("db", "running")
    before = [{**one, "processRuntime": "", "processUptime": ""} for one in server.get("/api/v1/processes").json]
    reload(server)
    after = [{**one, "processRuntime": "", "processUptime": ""} for one in server.get("/api/v1/processes").json]
    assert after == before


def test_each_process_gets_what_its_change_calls_for(serve: Serve, reload: Reload) -> None:
    before = dict.fromkeys(["same", "removed", "changed", "changed-off", "removed-off", "same-off"], SLEEPER)
    server = serve(before)
    for name in ("same", "removed", "changed"):
        server.do("start", name)
    pids = {name: server.info(name)["pid"] for name in ("same", "removed", "changed")}
    processes(
        server,
        {
            "new-auto": SLEEPER | {"auto-start": True},
            "changed-off": OTHER | {"auto-start": True},
            "changed": OTHER,
            "same-off": SLEEPER,
            "new": SLEEPER,
            "same": SLEEPER,
        },
    )
    reload(server)
    server.until("new-auto", "running")
    listing = {one["name"]: one for one in server.get("/api/v1/processes").json}
    assert list(listing) == ["new-auto", "changed-off", "changed", "same-off", "new", "same"]
    assert {name: one["status"] for name, one in listing.items()} == {
        "new-auto": "running",
        "changed-off": "not_started",
        "changed": "running",
        "same-off": "not_started",
        "new": "not_started",
        "same": "running",
    }
    assert listing["same"]["pid"] == pids["same"]
    assert server.new_statuses("same") == ["starting", "running"]
    assert command(listing["changed"]["pid"]) == ["sleep", "2000"]
    assert server.new_statuses("changed") == ["starting", "running", "stopping", "stopped", "starting", "running"]
    assert not is_alive(pids["removed"])
    assert server.new_statuses("removed") == ["starting", "running", "stopping", "stopped"]
    assert server.get("/api/v1/processes/info/removed").status == 404
    assert server.get("/api/v1/events/by-process/removed").status == 200
    assert server.get("/api/v1/events/by-process/removed-off").status == 404
    assert sorted(children_of(server.data)) == sorted(one["pid"] for one in listing.values() if one["pid"])
    server.do("start", "changed-off")
    assert command(server.info("changed-off")["pid"]) == ["sleep", "2000"]


def command(pid: int) -> list[str]:
    """What a process runs; the kernel shows it a moment after the exec."""
    words = wait_for(lambda: Path(f"/proc/{pid}/cmdline").read_text().rstrip("\0"))
    return str(words).split("\0")


def test_the_answer_lists_what_was_done(serve: Serve) -> None:
    server = serve({"same": SLEEPER, "removed": SLEEPER, "changed": SLEEPER, "changed-off": SLEEPER})
    for name in ("same", "removed", "changed"):
        server.do("start", name)
    processes(
        server,
        {
            "same": SLEEPER,
            "changed": OTHER,
            "changed-off": OTHER,
            "new": SLEEPER,
            "auto": SLEEPER | {"auto-start": True},
            "broken": {"command": "/nonexistent/program", "auto-start": True},
        },
    )
    answer = server.post("/api/v1/supervisor/reload")
    assert answer.status == 200
    done = answer.json
    assert done["added"] == ["new", "auto", "broken"]
    assert done["removed"] == ["removed"]
    assert done["changed"] == ["changed", "changed-off"]
    assert done["restarted"] == ["changed"]
    assert done["started"] == ["auto"]
    assert len(done["failed"]) == 1
    assert "broken" in done["failed"][0]
    assert done["needRestart"] == []
    assert server.status("broken") == "failed_to_start"


def test_a_bad_file_changes_nothing_and_all_its_faults_are_reported(serve: Serve) -> None:
    server = serve({"web": SLEEPER})
    server.do("start", "web")
    pid = server.info("web")["pid"]
    processes(
        server,
        {
            "web": OTHER | {"restart": "sometimes"},
            "db": {"comand": "sleep 1"},
            "new": SLEEPER | {"depends-on": ["nobody"]},
        },
        server={"port": "high"},
    )
    answer = server.post("/api/v1/supervisor/reload")
    assert answer.status == 400
    for path in ("supervisor.processes.web.restart", "supervisor.processes.db", "depends-on", "server.port"):
        assert path in answer.json["message"]
    assert [one["name"] for one in server.get("/api/v1/processes").json] == ["web"]
    assert server.info("web")["pid"] == pid
    server.do("restart", "web")
    assert command(server.info("web")["pid"]) == ["sleep", "1000"]


@pytest.mark.parametrize("content", ["supervisor: [", "- a\n- b\n", "\x00", None])
def test_a_file_that_cannot_be_read_is_reported_and_changes_nothing(serve: Serve, content: str | None) -> None:
    server = serve({"web": SLEEPER})
    server.do("start", "web")
    pid = server.info("web")["pid"]
    if content is None:
        server.file.unlink()
    else:
        server.file.write_text(content)
    answer = server.post("/api/v1/supervisor/reload")
    assert answer.status == 400
    assert answer.json["code"]
    hang_up(server)
    assert "ERROR" in server.log.read_text()
    assert server.info("web")["pid"] == pid
    assert "Traceback" not in server.log.read_text()


def test_what_needs_a_restart_is_named_and_left_as_it_is(serve: Serve) -> None:
    server = serve({"web": SLEEPER}, server={"port": 1, "stream-replay": 5})
    processes(server, {"web": SLEEPER}, server={"port": 2, "stream-replay": 6}, svc={"security": {"mode": "FULL"}})
    answer = server.post("/api/v1/supervisor/reload")
    assert answer.status == 200
    assert set(answer.json["needRestart"]) == {"server.stream-replay", "svc.security.mode"}  # --port wins over the file
    assert server.get("/healthz").status == 200
    again = server.post("/api/v1/supervisor/reload")
    assert again.json["needRestart"] == answer.json["needRestart"]


class FromFile(Server):
    """Takes its port and its data directory from the file, not from the command line."""

    def launch(self) -> Server:
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(
                [sys.executable, str(ROOT / "run.py")], cwd=self.folder, stdout=log, stderr=log
            )
        self.log_begins = 0
        return self


def test_a_changed_port_is_named_as_needing_a_restart(tmp_path: Path) -> None:
    server = FromFile(tmp_path, {"server": {"port": 0}, "supervisor": {"processes": {"web": SLEEPER}}}, {}, [])
    try:
        server.start()
        processes(server, {"web": SLEEPER, "new": SLEEPER}, server={"port": 4711})
        answer = server.post("/api/v1/supervisor/reload")
        assert answer.json["needRestart"] == ["server.port"]
        assert answer.json["added"] == ["new"]
        assert server.get("/healthz").status == 200
        hang_up(server)
        wait_for(lambda: "need a restart of pilothouse: server.port" in server.log.read_text())
        assert server.stop() == 0
    finally:
        server.close()


def test_the_description_of_the_supervisor_is_taken_over_at_once(serve: Serve) -> None:
    server = serve({}, supervisor={"description": "old", "node-name": "one"})
    server.configure({"supervisor": {"description": "new", "node-name": "two"}})
    post(server)
    info = server.get("/api/v1/supervisor/info").json
    assert (info["description"], info["nodeName"]) == ("new", "two")


def test_a_process_that_waits_for_its_restart_takes_the_new_configuration(serve: Serve) -> None:
    failing = {"command": "false", "restart": "on-failure", "restart-delay": "500ms"}
    server = serve({"web": failing})
    server.do("start", "web")
    server.until("web", "failed")
    processes(server, {"web": OTHER})
    post(server)
    assert command(server.until("web", "running")["pid"]) == ["sleep", "2000"]


def test_the_restart_of_a_removed_process_is_called_off(serve: Serve) -> None:
    server = serve({"web": {"command": "false", "restart": "on-failure", "restart-delay": "200ms"}, "db": SLEEPER})
    server.do("start", "web")
    server.until("web", "failed")
    processes(server, {"db": SLEEPER})
    post(server)
    events = len(server.events("web"))
    processes(server, {"db": SLEEPER, "late": SLEEPER | {"start-seconds": "500ms"}})
    post(server)
    assert server.do("start", "late").status == 200  # longer than the restart would have taken
    assert len(server.events("web")) == events


def test_a_process_that_was_removed_and_comes_back_can_be_started(serve: Serve) -> None:
    server = serve({"web": SLEEPER})
    server.do("start", "web")
    processes(server, {})
    post(server)
    assert server.get("/api/v1/processes").json == []
    processes(server, {"web": SLEEPER})
    post(server)
    assert server.status("web") == "not_started"
    assert server.do("start", "web").status == 200
    assert len(children_of(server.data)) == 1
    assert server.new_statuses("web") == ["starting", "running", "stopping", "stopped", "starting", "running"]


def test_a_removed_dependency_stops_no_process_that_no_longer_needs_it(serve: Serve) -> None:
    server = serve({"db": SLEEPER, "web": SLEEPER | {"depends-on": ["db"]}})
    server.do("start", "web")
    processes(server, {"web": SLEEPER})
    answer = server.post("/api/v1/supervisor/reload")
    assert answer.json["removed"] == ["db"]
    assert server.until("web", "running")["pid"]
    assert len(children_of(server.data)) == 1


def test_what_was_reloaded_is_what_a_killed_server_finds_again(serve: Serve) -> None:
    server = serve({"web": SLEEPER})
    server.do("start", "web")
    processes(server, {"web": OTHER, "new": SLEEPER | {"auto-start": True}})
    post(server)
    pids = {one["name"]: one["pid"] for one in server.get("/api/v1/processes").json}
    server.kill()
    server.start()
    assert {one["name"]: one["pid"] for one in server.get("/api/v1/processes").json} == pids


def test_two_reloads_at_once_come_to_one_result(serve: Serve) -> None:
    server = serve({"web": SLEEPER})
    server.do("start", "web")
    processes(server, {"web": OTHER, "new": SLEEPER | {"auto-start": True}})
    answers: list[Answer] = []
    threads = [
        threading.Thread(target=lambda: answers.append(server.post("/api/v1/supervisor/reload"))) for _ in range(4)
    ]
    for thread in threads:
        thread.start()
    hang_up(server)
    for thread in threads:
        thread.join()
    assert [answer.status for answer in answers] == [200] * 4
    wait_for(lambda: server.log.read_text().count("reload: ") == 1)
    assert sum("web" in answer.json["restarted"] for answer in answers) <= 1
    assert server.new_statuses("web") == ["starting", "running", "stopping", "stopped", "starting", "running"]
    assert server.new_statuses("new") == ["starting", "running"]
    assert len(children_of(server.data)) == 2


def test_a_reload_while_a_process_takes_its_time_to_stop_delays_no_other(serve: Serve, tmp_path: Path) -> None:
    ready = tmp_path / "ready"
    mule = {"command": ["sh", "-c", f"trap '' TERM; : > {ready}; exec sleep 1000"], "stop-timeout": "1s"}
    server = serve({"mule": mule, "web": SLEEPER})
    server.do("start", "mule")
    wait_for(ready.exists)
    processes(server, {"web": SLEEPER})
    thread = threading.Thread(target=post, args=(server,))
    thread.start()
    server.until("mule", "stopping")
    assert server.do("start", "web").status == 200
    assert server.status("mule") == "stopping"
    thread.join()
    assert server.get("/api/v1/processes/info/mule").status == 404
    assert server.new_statuses("mule")[-1] == "aborted"


def test_of_two_reloads_at_once_the_newer_file_wins(tmp_path: Path) -> None:
    """The first read takes longer than the second."""
    read = threading.Event()
    configs = [Config(supervisor=Supervisor(processes={name: ProcessSpec(name, ("true",))})) for name in ("old", "new")]
    reads = iter([lambda: read.wait(1), read.set])

    def read_config() -> Config:
        config = configs.pop(0)
        next(reads)()
        return config

    async def life() -> list[str]:
        settings = Config(server=ServerSettings(data_dir=tmp_path / "data"))
        async with open_services(settings, read_config) as services:
            await asyncio.gather(services.reload(), services.reload())
            return [process.name for process in services.supervision.fleet]

    try:
        assert asyncio.run(life()) == ["new"]
    finally:
        ctypes.CDLL(None).prctl(36, 0, 0, 0, 0)  # this process is no supervisor any more
