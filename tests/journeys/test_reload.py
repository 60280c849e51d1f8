"""A running server applies a new configuration, by POST and by SIGHUP."""

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

from models.config.settings import Config, ServerSettings, SupervisorSettings
from models.supervision.process import ProcessSpec
from supervisor.services import open_services

SLEEPER = {"command": "sleep 1000"}
OTHER = {"command": "sleep 2000"}


def configure_processes(server: Server, specs: dict[str, Any], /, **sections: Any) -> None:
    server.configure({**sections, "supervisor": {"processes": specs}})


def post(server: Server) -> None:
    assert server.post("/api/v1/supervisor/reload").status == 200


def send_sighup(server: Server) -> None:
    assert server.process is not None
    result = server.log.read_text().count("reload: ")
    server.process.send_signal(signal.SIGHUP)
    wait_for(lambda: server.log.read_text().count("reload: ") > result)


@pytest.fixture(params=[post, send_sighup], ids=["POST", "SIGHUP"])
def reload(request: pytest.FixtureRequest) -> Any:
    return request.param


Reload = Callable[[Server], None]


def test_reload_of_an_unchanged_file_changes_nothing(serve: Serve, reload: Reload) -> None:
    server = serve({"web": SLEEPER, "db": SLEEPER | {"auto-start": True}, "off": SLEEPER})
    server.do("start", "web")
    server.until("db", "running")
    before = [{**one, "processRuntime": "", "processUptime": ""} for one in server.get("/api/v1/processes").json]
    reload(server)
    after = [{**one, "processRuntime": "", "processUptime": ""} for one in server.get("/api/v1/processes").json]
    assert after == before


def test_reload_starts_stops_and_restarts_processes_as_they_changed(serve: Serve, reload: Reload) -> None:
    before = dict.fromkeys(["same", "removed", "changed", "changed-off", "removed-off", "same-off"], SLEEPER)
    server = serve(before)
    for name in ("same", "removed", "changed"):
        server.do("start", name)
    pids = {name: server.info(name)["pid"] for name in ("same", "removed", "changed")}
    configure_processes(
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
    """The command line of a process. The kernel shows it a moment after the exec."""
    arguments = wait_for(lambda: Path(f"/proc/{pid}/cmdline").read_text().rstrip("\0"))
    return str(arguments).split("\0")


def test_reload_response_lists_the_changes(serve: Serve) -> None:
    server = serve({"same": SLEEPER, "removed": SLEEPER, "changed": SLEEPER, "changed-off": SLEEPER})
    for name in ("same", "removed", "changed"):
        server.do("start", name)
    configure_processes(
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


def test_invalid_file_changes_nothing_and_all_its_errors_are_reported(serve: Serve) -> None:
    server = serve({"web": SLEEPER})
    server.do("start", "web")
    pid = server.info("web")["pid"]
    configure_processes(
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
    send_sighup(server)
    assert "ERROR" in server.log.read_text()
    assert server.info("web")["pid"] == pid
    assert "Traceback" not in server.log.read_text()


def test_settings_that_need_a_restart_are_named_and_not_applied(serve: Serve) -> None:
    server = serve({"web": SLEEPER}, server={"port": 1, "stream-replay": 5})
    configure_processes(
        server, {"web": SLEEPER}, server={"port": 2, "stream-replay": 6}, svc={"security": {"mode": "FULL"}}
    )
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
        configure_processes(server, {"web": SLEEPER, "new": SLEEPER}, server={"port": 4711})
        answer = server.post("/api/v1/supervisor/reload")
        assert answer.json["needRestart"] == ["server.port"]
        assert answer.json["added"] == ["new"]
        assert server.get("/healthz").status == 200
        send_sighup(server)
        wait_for(lambda: "need a restart of pilothouse: server.port" in server.log.read_text())
        assert server.stop() == 0
    finally:
        server.close()


def test_description_and_node_name_are_applied_by_a_reload(serve: Serve) -> None:
    server = serve({}, supervisor={"description": "old", "node-name": "one"})
    server.configure({"supervisor": {"description": "new", "node-name": "two"}})
    post(server)
    info = server.get("/api/v1/supervisor/info").json
    assert (info["description"], info["nodeName"]) == ("new", "two")


def test_process_that_waits_for_its_restart_gets_the_new_configuration(serve: Serve) -> None:
    failing = {"command": "false", "restart": "on-failure", "restart-delay": "500ms"}
    server = serve({"web": failing})
    server.do("start", "web")
    server.until("web", "failed")
    configure_processes(server, {"web": OTHER})
    post(server)
    assert command(server.until("web", "running")["pid"]) == ["sleep", "2000"]


def test_pending_restart_of_a_removed_process_is_cancelled(serve: Serve) -> None:
    server = serve({"web": {"command": "false", "restart": "on-failure", "restart-delay": "200ms"}, "db": SLEEPER})
    server.do("start", "web")
    server.until("web", "failed")
    configure_processes(server, {"db": SLEEPER})
    post(server)
    events = len(server.events("web"))
    configure_processes(server, {"db": SLEEPER, "late": SLEEPER | {"start-seconds": "500ms"}})
    post(server)
    assert server.do("start", "late").status == 200  # longer than the restart would have taken
    assert len(server.events("web")) == events


def test_process_that_is_removed_and_added_again_can_be_started(serve: Serve) -> None:
    server = serve({"web": SLEEPER})
    server.do("start", "web")
    configure_processes(server, {})
    post(server)
    assert server.get("/api/v1/processes").json == []
    configure_processes(server, {"web": SLEEPER})
    post(server)
    assert server.status("web") == "not_started"
    assert server.do("start", "web").status == 200
    assert len(children_of(server.data)) == 1
    assert server.new_statuses("web") == ["starting", "running", "stopping", "stopped", "starting", "running"]


def test_a_removed_dependency_stops_no_process_that_no_longer_needs_it(serve: Serve) -> None:
    server = serve({"db": SLEEPER, "web": SLEEPER | {"depends-on": ["db"]}})
    server.do("start", "web")
    configure_processes(server, {"web": SLEEPER})
    answer = server.post("/api/v1/supervisor/reload")
    assert answer.json["removed"] == ["db"]
    assert server.until("web", "running")["pid"]
    assert len(children_of(server.data)) == 1


def test_processes_of_a_reloaded_configuration_are_adopted_after_a_kill(serve: Serve) -> None:
    server = serve({"web": SLEEPER})
    server.do("start", "web")
    configure_processes(server, {"web": OTHER, "new": SLEEPER | {"auto-start": True}})
    post(server)
    pids = {one["name"]: one["pid"] for one in server.get("/api/v1/processes").json}
    server.kill()
    server.start()
    assert {one["name"]: one["pid"] for one in server.get("/api/v1/processes").json} == pids


def test_concurrent_reloads_change_each_process_once(serve: Serve) -> None:
    server = serve({"web": SLEEPER})
    server.do("start", "web")
    configure_processes(server, {"web": OTHER, "new": SLEEPER | {"auto-start": True}})
    answers: list[Answer] = []
    threads = [
        threading.Thread(target=lambda: answers.append(server.post("/api/v1/supervisor/reload"))) for _ in range(4)
    ]
    for thread in threads:
        thread.start()
    send_sighup(server)
    for thread in threads:
        thread.join()
    assert [answer.status for answer in answers] == [200] * 4
    wait_for(lambda: server.log.read_text().count("reload: ") == 1)
    assert sum("web" in answer.json["restarted"] for answer in answers) <= 1
    assert server.new_statuses("web") == ["starting", "running", "stopping", "stopped", "starting", "running"]
    assert server.new_statuses("new") == ["starting", "running"]
    assert len(children_of(server.data)) == 2


def test_reload_that_waits_for_a_slow_stop_delays_no_other_request(serve: Serve, tmp_path: Path) -> None:
    ready = tmp_path / "ready"
    mule = {"command": ["sh", "-c", f"trap '' TERM; : > {ready}; exec sleep 1000"], "stop-timeout": "5s"}
    server = serve({"mule": mule, "web": SLEEPER})
    server.do("start", "mule")
    wait_for(ready.exists)
    configure_processes(server, {"web": SLEEPER})
    thread = threading.Thread(target=post, args=(server,))
    thread.start()
    server.until("mule", "stopping")
    assert server.do("start", "web").status == 200
    assert server.status("mule") == "stopping"
    thread.join()
    assert server.get("/api/v1/processes/info/mule").status == 404
    assert server.new_statuses("mule")[-1] == "aborted"


def test_of_two_concurrent_reloads_the_newer_file_is_applied(tmp_path: Path) -> None:
    """The first read takes longer than the second."""
    read = threading.Event()
    configs = [
        Config(supervisor=SupervisorSettings(processes={name: ProcessSpec(name, ("true",))})) for name in ("old", "new")
    ]
    reads = iter([lambda: read.wait(1), read.set])

    def read_config() -> Config:
        config = configs.pop(0)
        next(reads)()
        return config

    async def run_reloads() -> list[str]:
        settings = Config(server=ServerSettings(data_dir=tmp_path / "data"))
        async with open_services(settings, read_config) as services:
            await asyncio.gather(services.reload(), services.reload())
            return [process.name for process in services.supervision.fleet]

    try:
        assert asyncio.run(run_reloads()) == ["new"]
    finally:
        ctypes.CDLL(None).prctl(36, 0, 0, 0, 0)  # this process is no longer a subreaper
