"""Information about the server: host, health, metrics, and the result of a reload."""

from __future__ import annotations

import platform
import re
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import psutil
import pytest
from conftest import ROOT, Serve, Server
from http_checks import STATUSES, SUPERVISOR_FIELDS, check_error, json_body, ready, running_server
from prometheus_client.parser import text_string_to_metric_families

INFO, RELOAD = "/api/v1/supervisor/info", "/api/v1/supervisor/reload"
SLEEP: dict[str, Any] = {"command": "sleep 1000"}
MEMORY = re.compile(r"\d{1,4}(\.[1-9])? (bytes|KB|MB|GB|TB|PB|EB)")
RELOADED = {"message", "added", "removed", "started", "restarted", "changed", "failed", "settings", "needRestart"}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    supervisor = {"node-name": "knoten ü", "description": 'the "box"'}
    folder = tmp_path_factory.mktemp("system")
    with running_server(
        folder, {"sleeper": SLEEP, 'odd "name"\\': {"command": "true"}}, supervisor=supervisor
    ) as server:
        server.do("start", "sleeper")
        yield server


@pytest.mark.parametrize("prefix", ["", "/supervision"])
def test_info_describes_the_host(server: Server, prefix: str) -> None:
    info = json_body(server.get(prefix + INFO))
    assert set(info) == SUPERVISOR_FIELDS
    assert (info["nodeName"], info["description"]) == ("knoten ü", 'the "box"')
    assert MEMORY.fullmatch(info["physicalMemory"])
    assert MEMORY.fullmatch(info["availableMemory"])
    assert type(info["physicalCpu"]) is int
    assert 1 <= info["physicalCpu"] <= (psutil.cpu_count() or 1)
    assert info["operatingSystem"].endswith(f", Linux {platform.release()} {platform.machine()}")


def test_node_name_defaults_to_the_host_name(serve: Serve) -> None:
    info = json_body(serve().get(INFO))
    assert (info["nodeName"], info["description"]) == (platform.node(), "")


@pytest.mark.parametrize("path", ["/healthz", "/readyz", "/tracker/healthz", "/charts/readyz"])
def test_health_is_up(server: Server, path: str) -> None:
    assert json_body(ready(server, path))["status"] == "UP"


# Metrics


def samples(server: Server) -> dict[tuple[str, str], float]:
    """Every sample by name and its one label's value."""
    answer = server.get("/metrics")
    assert answer.status == 200
    assert answer.headers["Content-Type"].startswith("text/plain; ")
    assert "charset=utf-8" in answer.headers["Content-Type"]
    families = list(text_string_to_metric_families(answer.text))
    assert len(families) == len({family.name for family in families})
    assert all(family.documentation for family in families)
    return {(s.name, next(iter(s.labels.values()), "")): s.value for family in families for s in family.samples}


def test_the_metrics_are_prometheus_text(server: Server) -> None:
    found = samples(server)
    assert {label for name, label in found if name == "pilothouse_processes"} == set(STATUSES)
    assert found["pilothouse_processes", "running"] == 1
    assert found["pilothouse_processes", "not_started"] == 1
    assert found["pilothouse_process_up", "sleeper"] == 1
    assert found["pilothouse_process_up", 'odd "name"\\'] == 0
    assert found["pilothouse_events_stored", ""] == server.get("/api/v1/events/count").json["totalEvents"]
    assert found["process_resident_memory_bytes", ""] > 1_000_000


def test_responses_are_counted_by_status(server: Server) -> None:
    before = samples(server)
    for _ in range(3):
        server.get("/api/v1/nope")
    after = samples(server)
    key = ("pilothouse_http_responses_total", "404")
    assert after[key] - before.get(key, 0) == 3


# Reload


@pytest.mark.parametrize("prefix", ["", "/supervision"])
def test_reload_without_changes_has_empty_lists(server: Server, prefix: str) -> None:
    outcome = json_body(server.post(prefix + RELOAD))
    assert set(outcome) == RELOADED
    assert all(outcome[name] == [] for name in RELOADED - {"message"})
    assert isinstance(outcome["message"], str)


def test_reload_lists_the_changes(serve: Serve) -> None:
    server = serve({"same": SLEEP, "changed": SLEEP, "idle": SLEEP, "removed": SLEEP})
    for name in ("same", "changed", "removed"):
        server.do("start", name)
    pid = server.info("same")["pid"]
    processes = {
        "new": SLEEP,
        "marked": {**SLEEP, "auto-start": True},
        "broken": {"command": "no-such-program-anywhere", "auto-start": True},
        "idle": {"command": "sleep 7"},
        "changed": {"command": "sleep 2000"},
        "same": SLEEP,
    }
    server.configure({"supervisor": {"processes": processes}, "server": {"max-streams": 7}})
    outcome = json_body(server.post(RELOAD))
    assert set(outcome) == RELOADED
    assert {name: sorted(outcome[name]) for name in ("added", "removed", "started", "restarted", "changed")} == {
        "added": ["broken", "marked", "new"],
        "removed": ["removed"],
        "started": ["marked"],
        "restarted": ["changed"],
        "changed": ["changed", "idle"],
    }
    assert len(outcome["failed"]) == 1
    assert "broken" in outcome["failed"][0]
    assert outcome["needRestart"] == ["server.max-streams"]
    assert [process["name"] for process in server.get("/api/v1/processes").json] == list(processes)
    assert server.info("same")["pid"] == pid


def test_reload_of_an_invalid_file_changes_nothing_and_lists_its_errors(serve: Serve) -> None:
    server = serve({"one": SLEEP})
    server.do("start", "one")
    server.configure({"supervisor": {"processes": {"one": {"commando": "x"}, "two": {**SLEEP, "order": "high"}}}})
    outcome = check_error(server.post(RELOAD), 400, RELOAD)
    assert "supervisor.processes.one.commando" in outcome["message"]
    assert "supervisor.processes.two.order" in outcome["message"]
    assert [process["name"] for process in server.get("/api/v1/processes").json] == ["one"]
    assert server.status("one") == "running"


@pytest.mark.parametrize("text", ["{", "\x00", "- a\n- b", "supervisor: [", "a: &a [*a]"])
def test_reload_of_a_file_that_is_no_configuration_is_400(serve: Serve, text: str) -> None:
    server = serve({"one": SLEEP})
    server.file.write_text(text)
    check_error(server.post(RELOAD), 400, RELOAD)
    assert server.status("one") == "not_started"


def test_reload_of_a_missing_file_is_400(serve: Serve) -> None:
    server = serve({"one": SLEEP})
    server.file.unlink()
    check_error(server.post(RELOAD), 400, RELOAD)
    assert server.status("one") == "not_started"


def test_the_log_names_the_three_base_urls(server: Server) -> None:
    for prefix in ("/supervision", "/charts", "/tracker"):
        assert f"http://127.0.0.1:{server.port}{prefix}" in server.log.read_text()


def test_the_source_lines_that_attrs_generates_are_not_kept() -> None:
    """They take 1.8 MB. The lines of real files are still found."""
    code = (
        "import run, linecache, models.errors as module\n"
        'assert linecache.getline(module.__file__, 1).startswith(\'"""\')\n'
        "print([name for name in linecache.cache if name.startswith('<attrs')])"
    )
    result = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert result.stdout == "[]\n"
