"""Replicas and environment files with real processes: reloads, adoption, and no secret in any output."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from conftest import Serve, Server, python_command, session_leaders, wait_for

PRINTS_GREETING = python_command("import os, time; print(os.environ['GREETING'], flush=True); time.sleep(1000)")
SECRET = "hunter2-in-a-file"


def template(count: int, **properties: Any) -> dict[str, Any]:
    return {"command": "sleep 1000", "auto-start": True, "numprocs": count, **properties}


def running(server: Server) -> dict[str, int]:
    return {one["name"]: one["pid"] for one in server.get("/api/v1/processes").json if one["status"] == "running"}


def reload(server: Server, processes: dict[str, Any]) -> Any:
    server.configure({"supervisor": {"processes": processes}})
    answer = server.post("/api/v1/supervisor/reload")
    assert answer.status == 200, answer
    return answer.json


def test_reload_reduces_and_increases_the_number_of_replicas(serve: Serve) -> None:
    server = serve({"worker": template(5), "web": {"command": "sleep 1000", "auto-start": True}})
    wait_for(lambda: len(running(server)) == 6)
    before = running(server)
    done = reload(server, {"worker": template(3), "web": {"command": "sleep 1000", "auto-start": True}})
    assert done["removed"] == ["worker-3", "worker-4"]
    assert (done["restarted"], done["changed"]) == ([], [])
    assert running(server) == {name: pid for name, pid in before.items() if name not in done["removed"]}
    done = reload(server, {"worker": template(5), "web": {"command": "sleep 1000", "auto-start": True}})
    assert done["started"] == ["worker-3", "worker-4"]
    after = running(server)
    assert list(after) == ["worker-0", "worker-1", "worker-2", "worker-3", "worker-4", "web"]
    assert {name: after[name] for name in ("worker-0", "worker-2", "web")} == {
        name: before[name] for name in ("worker-0", "worker-2", "web")
    }


def test_the_name_of_a_template_selects_its_replicas(serve: Serve) -> None:
    server = serve({"worker": {**template(2), "auto-start": False}, "web": {"command": "sleep 1000"}})
    started = server.post("/api/v1/processes/start?select=worker").json["results"]
    assert [(one["name"], one["outcome"]) for one in started] == [("worker-0", "started"), ("worker-1", "started")]
    assert server.get("/api/v1/processes/groups").json == [
        {"name": "worker", "members": ["worker-0", "worker-1"], "live": 2}
    ]
    stopped = server.post("/api/v1/processes/stop?select=@worker,!worker-0").json["results"]
    assert [one["name"] for one in stopped] == ["worker-1"]


def test_replicas_are_adopted(serve: Serve) -> None:
    server = serve({"worker": template(3)})
    wait_for(lambda: len(running(server)) == 3)
    before = running(server)
    server.kill()
    server.start()
    assert running(server) == before
    assert session_leaders(server.data) == {"worker-0": 1, "worker-1": 1, "worker-2": 1}


def test_changed_environment_file_is_read_again_and_restarts_its_process_on_reload(
    serve: Serve, tmp_path: Path
) -> None:
    file = tmp_path / "env"
    file.write_text("GREETING='first'\n")
    file.chmod(0o600)
    web = {"command": PRINTS_GREETING, "stdout-logfile": "web.log", "env-file": str(file)}
    server = serve({"web": web, "db": {"command": "sleep 1000"}})
    log = server.folder / "web.log"
    server.do("start", "web")
    server.do("start", "db")
    wait_for(lambda: log.read_text() == "first\n")
    file.write_text("GREETING='second'\n")
    assert reload(server, {"web": web, "db": {"command": "sleep 1000"}})["restarted"] == ["web"]
    wait_for(lambda: log.read_text() == "first\nsecond\n")
    over = {**web, "environment": {"GREETING": "third"}}
    reload(server, {"web": over, "db": {"command": "sleep 1000"}})
    wait_for(lambda: log.read_text() == "first\nsecond\nthird\n")
    assert "can be read by other users" not in server.log.read_text()


def test_adopted_child_with_a_changed_environment_file_is_reported(serve: Serve, tmp_path: Path) -> None:
    file = tmp_path / "env"
    file.write_text("GREETING=first")
    server = serve({"web": {"command": PRINTS_GREETING, "stdout-logfile": "web.log", "env-file": str(file)}})
    server.do("start", "web")
    server.kill()
    file.write_text("GREETING=second")
    server.start()
    assert "web: pid" in server.log.read_text().partition("adoption: ")[2].splitlines()[0]


def test_no_output_shows_the_password_of_an_environment_file(serve: Serve, tmp_path: Path) -> None:
    file = tmp_path / "env"
    file.write_text(f"GREETING=hello\nPASSWORD={SECRET}\n")
    file.chmod(0o644)
    server = serve({"web": {"command": PRINTS_GREETING, "stdout-logfile": "web.log", "env-file": f"-{file}"}})
    server.do("start", "web")
    seen = [server.get(path).text for path in ("/api/v1/processes", "/api/v1/processes/details", "/processes/web")]
    file.write_text(f"GREETING=hello\nPASSWORD='{SECRET}\n")
    refused = server.do("restart", "web")
    assert (refused.status, refused.json["code"]) == (400, "INVALID_PROCESS_CONFIGURATION")
    assert f"env-file {file}:2: the value of PASSWORD has no closing quote" in refused.json["message"]
    seen += [refused.text, server.log.read_text(), json.dumps(server.events("web"))]
    assert not [text for text in seen if SECRET in text]
    assert f"WARNING supervision: web: env-file {file} can be read by other users" in server.log.read_text()
    file.unlink()
    assert server.do("restart", "web").status == 200, "an optional environment file may be missing"


def test_error_in_an_included_file_is_reported_and_changes_nothing(serve: Serve) -> None:
    server = serve({"web": {"command": "sleep 1000", "auto-start": True}})
    pid = server.until("web", "running")["pid"]
    (server.folder / "conf.d").mkdir()
    included = server.folder / "conf.d" / "more.yaml"
    server.file.write_text(f"include: [conf.d/*.yaml]\n{server.file.read_text()}")
    included.write_text("supervisor:\n  processes:\n    more:\n      command: sleep 1000\n      restart: maybe\n")
    refused = server.post("/api/v1/supervisor/reload")
    assert refused.status == 400
    assert "conf.d/more.yaml:5: supervisor.processes.more.restart: 'maybe' is not one of" in refused.json["message"]
    assert (server.info("web")["pid"], len(server.get("/api/v1/processes").json)) == (pid, 1)
    included.write_text("supervisor.processes.more: {command: sleep 1000, auto-start: true}\n")
    assert server.post("/api/v1/supervisor/reload").json["started"] == ["more"]
