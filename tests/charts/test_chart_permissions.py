"""Permissions of the charts: which callers may change releases and repositories."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from conftest import Serve, Server
from http_checks import check_problem, ready, running_server
from small_charts import FULL

from handlers.charts.handler import OPERATIONS
from handlers.http.permissions import chart_access
from models.config.settings import AccessInterceptorSettings, ChartSecurity, Config, RestSettings, SvcSettings

REFERENCE = {
    "GET /releases", "GET /releases/{name}", "POST /releases", "POST /releases/upload", "PUT /releases/{name}",
    "POST /releases/{name}/upgrade/upload", "DELETE /releases/{name}", "GET /releases/{name}/history",
    "POST /releases/{name}/rollback", "POST /releases/{name}/test", "GET /releases/{name}/values",
    "GET /releases/{name}/manifest", "GET /releases/{name}/notes", "GET /releases/{name}/hooks",
    "GET /releases/{name}/resources", "POST /charts/template", "POST /charts/template/upload", "POST /charts/lint",
    "POST /charts/create", "GET /charts/show", "GET /charts/show/values", "GET /charts/show/readme",
    "GET /charts/show/chart", "GET /charts/show/crds", "POST /repos", "GET /repos", "DELETE /repos/{name}",
    "POST /repos/{name}/update", "GET /repos/{name}/charts", "GET /repos/{name}/charts/{chart}/versions",
    "POST /repos/pull", "POST /repos/update-all", "POST /repos/push", "GET /hub/search", "POST /dependencies/resolve",
}  # fmt: skip
ADDED = {
    "POST /charts/lint/upload", "POST /charts/show/upload", "GET /releases/{name}/diff", "GET /releases/{name}/images",
    "GET /repos/search", "GET /dependencies", "GET /releases/{name}/tree", "GET /releases/{name}/events",
    "GET /releases/{name}/objects/{kind}/{object}", "GET /contexts", "GET /releases/{name}/upgrades",
    "POST /releases/{name}/diff", "POST /charts/package", "POST /dependencies/build", "GET /registries",
    "POST /registries", "DELETE /registries/{host}",
}  # fmt: skip
PROTECTED = {
    "POST /releases", "POST /releases/upload", "PUT /releases/{name}", "POST /releases/{name}/upgrade/upload",
    "DELETE /releases/{name}", "POST /releases/{name}/rollback", "POST /releases/{name}/test", "POST /repos",
    "DELETE /repos/{name}", "POST /repos/push", "POST /releases/{name}/diff", "POST /registries",
    "DELETE /registries/{host}",
}  # fmt: skip
CLUSTER_READS = {one for one in ADDED if one.endswith(("/tree", "/events", "/{object}"))}
"""These need the key or an ADMIN; tests/charts/test_release_objects.py tests it."""
ENDPOINTS = sorted((REFERENCE | ADDED) - CLUSTER_READS)
KEYS = {
    "none": {},
    "blank": {"X-API-Key": " "},
    "wrong": {"X-API-Key": "open sesame "[:-2]},
    "right": {"X-API-Key": "open sesame"},
}
MODES = {
    "READ_ONLY": {"security": {"api-key": "open sesame"}},
    "FULL without a key": {"security": {"mode": "FULL"}},
    "FULL with a blank key": {"security": {"mode": "FULL", "api-key": "  "}},
    "FULL with a key": FULL,
}


def method_and_path(endpoint: str) -> tuple[str, str]:
    method, path = endpoint.split()
    return method, "/api/v1" + path.replace("{name}", "nobody").replace("{chart}", "none").replace("{host}", "none")


@pytest.fixture(scope="module")
def servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Server]]:
    """A server for each mode, without a cluster."""
    import contextlib

    with contextlib.ExitStack() as stack:
        servers = {}
        for mode, svc in MODES.items():
            folder = tmp_path_factory.mktemp("gate")
            kube = {"kubeconfig": str(folder / "none")}
            servers[mode] = stack.enter_context(running_server(folder, svc={**svc, "kube": kube}))
        yield servers


def test_the_table_has_the_endpoints_of_the_reference() -> None:
    assert {f"{one.method} {one.path}" for one in OPERATIONS} == REFERENCE | ADDED
    assert {f"{one.method} {one.path}" for one in OPERATIONS if one.mutating} == PROTECTED
    assert {f"{one.method} {one.path}" for one in OPERATIONS if one.is_cluster_read} == CLUSTER_READS


def refusals(server: Server, key: str) -> dict[str, tuple[int, str]]:
    """Each endpoint that refuses this key: its status, and the detail of its problem."""
    found = {}
    for endpoint in ENDPOINTS:
        method, path = method_and_path(endpoint)
        answer = server.ask(method, path, b"" if method in ("POST", "PUT") else None, KEYS[key])
        if answer.status in (401, 403):
            assert answer.status == 403 or answer.headers["WWW-Authenticate"]
            found[endpoint] = answer.status, check_problem(answer, answer.status, path, has_timestamp=True)["detail"]
    return found


@pytest.mark.parametrize("mode", [mode for mode in MODES if mode != "FULL with a key"])
@pytest.mark.parametrize("key", KEYS)
def test_changing_endpoints_are_403_while_changes_are_disabled(servers: dict[str, Server], mode: str, key: str) -> None:
    refused = refusals(servers[mode], key)
    assert refused.keys() == PROTECTED
    assert [one for one in refused.items() if one[1][0] != 403 or "svc.security" not in one[1][1]] == []


@pytest.mark.parametrize("key", KEYS)
def test_changing_endpoints_require_the_configured_api_key(servers: dict[str, Server], key: str) -> None:
    refused = refusals(servers["FULL with a key"], key)
    assert refused.keys() == (set() if key == "right" else PROTECTED)
    assert [one for one in refused.items() if one[1][0] != 401 or "X-API-Key" not in one[1][1]] == []


@pytest.mark.parametrize("endpoint", sorted(one for one in PROTECTED if "/releases" in one))
def test_protected_endpoints_are_404_without_a_cluster(servers: dict[str, Server], endpoint: str) -> None:
    """Permissions (403, 401) and the missing cluster (404) are checked before the body (400)."""
    method, path = method_and_path(endpoint)
    answer = servers["FULL with a key"].ask(method, path, b"{", KEYS["right"])
    assert "no cluster" in check_problem(answer, 404, path, has_timestamp=True)["detail"]


@pytest.mark.parametrize("path", ["/releases", "/releases/r", "/releases/r/history", "/releases/upload"])
def test_reads_of_releases_are_404_without_a_cluster(servers: dict[str, Server], path: str) -> None:
    check_problem(servers["READ_ONLY"].get(f"/api/v1{path}"), 404, f"/api/v1{path}", has_timestamp=True)


def test_permissions_are_checked_before_the_body(servers: dict[str, Server]) -> None:
    large = b"x" * 2_000_000
    assert servers["READ_ONLY"].post("/api/v1/repos", large).status == 403
    assert servers["FULL with a key"].post("/api/v1/repos", large).status == 401
    assert servers["FULL with a key"].ask("POST", "/api/v1/repos", large, KEYS["right"]).status == 413
    assert servers["FULL with a key"].ask("POST", "/api/v1/repos", b"{}", KEYS["right"]).status == 400


def test_a_dry_run_needs_the_permission_for_changes(servers: dict[str, Server]) -> None:
    requested = b'{"chartRef":"a/b","releaseName":"r","dryRun":true}'
    assert servers["READ_ONLY"].post("/api/v1/releases", requested).status == 403


def test_unknown_routes_are_404_or_405_before_permissions_are_checked(servers: dict[str, Server]) -> None:
    assert servers["READ_ONLY"].post("/api/v1/releases/r/nothing", b"{}").status == 404
    answer = servers["READ_ONLY"].ask("PUT", "/api/v1/repos/pull", b"{}")
    assert answer.status == 405
    assert answer.headers["Allow"] == "POST, DELETE, OPTIONS"


def test_options_with_a_body_is_answered(servers: dict[str, Server]) -> None:
    answer = servers["READ_ONLY"].ask("OPTIONS", "/api/v1/charts/create", b'{"name": "0"}')
    assert (answer.status, answer.headers["Allow"]) == (204, "POST, OPTIONS")


def test_the_api_key_is_compared_as_bytes(serve: Serve) -> None:
    server = serve(svc={"security": {"mode": "FULL", "api-key": "schlüssel"}})
    sent = {"X-API-Key": "schlüssel".encode().decode("latin-1")}
    assert server.ask("POST", "/api/v1/repos", b"{}", sent).status == 400
    assert server.ask("POST", "/api/v1/repos", b"{}", {"X-API-Key": "schl\xfcssel"}).status == 401


def test_the_header_of_the_api_key_is_configurable(serve: Serve) -> None:
    server = serve(svc={"security": {**FULL["security"], "api-key-header": "X-Chart-Key"}})
    assert server.ask("POST", "/api/v1/repos", b"{}", KEYS["right"]).status == 401
    assert server.ask("POST", "/api/v1/repos", b"{}", {"x-chart-key": "open sesame"}).status == 400


def test_a_disabled_key_check_allows_anonymous_callers_on_loopback_only(serve: Serve) -> None:
    server = serve(svc={"rest": {"access-interceptor": {"enabled": "false"}}})
    assert server.post("/api/v1/repos", b"{}").status == 400
    assert server.ask("POST", "/api/v1/repos", b"{}", {"X-Forwarded-For": "10.1.1.1"}).status == 401
    assert "the API key check of the charts is disabled" in server.log.read_text()


def test_in_closed_mode_the_api_key_allows_reads_of_charts(serve: Serve) -> None:
    server = serve(svc=FULL, tracker={"security": {"open-mode": "false"}})
    assert server.get("/api/v1/repos").status == 401
    assert server.ask("GET", "/api/v1/repos", None, KEYS["wrong"]).status == 401
    assert server.ask("GET", "/api/v1/repos", None, KEYS["right"]).json == []
    assert server.ask("GET", "/api/v1/processes", None, KEYS["right"]).status == 401


def test_the_log_has_the_mode_without_the_api_key(servers: dict[str, Server]) -> None:
    result = {mode: server.log.read_text() for mode, server in servers.items()}
    assert "READ_ONLY" in result["READ_ONLY"]
    assert "svc.security.api-key" in result["FULL without a key"]
    assert "may be changed with the key" in result["FULL with a key"]
    assert not any("open sesame" in log for log in result.values())


@pytest.mark.parametrize(
    ("security", "enabled", "result"),
    [
        (ChartSecurity(), True, "READ_ONLY"),
        (ChartSecurity(mode="FULL"), True, "api-key"),
        (ChartSecurity(mode="FULL", api_key="k", api_key_header="X-K"), True, "X-K"),
        (ChartSecurity(), False, "the API key check of the charts is disabled"),
    ],
)
def test_each_mode_has_its_log_line(security: ChartSecurity, enabled: bool, result: str) -> None:
    svc = SvcSettings(security=security, rest=RestSettings(access_interceptor=AccessInterceptorSettings(enabled)))
    assert result in chart_access(Config(svc=svc))


# The base path


def test_a_base_path_moves_the_chart_endpoints_only(serve: Serve) -> None:
    server = serve(svc={"rest": {"base-path": "/helm/v2"}})
    for base in ("", "/charts"):
        assert server.get(f"{base}/helm/v2/repos").status == 200
        check_problem(
            server.get(f"{base}/helm/v2/releases/UPPER", Accept="text/html"),
            404,
            f"{base}/helm/v2/releases/UPPER",
            True,
        )
    assert server.get("/api/v1/repos").status == 404
    assert server.get("/charts/api/v1/repos").status == 404
    assert server.get("/api/v1/processes").status == 200


def test_readyz_reports_the_enabled_endpoint_groups(servers: dict[str, Server], tmp_path: Path) -> None:
    result = ready(servers["READ_ONLY"]).json["charts"]
    assert result["releases"] is False
    assert result["repositories"] is result["hub"] is result["dependencies"] is result["charts"] is True


# Extension by a host application


def test_a_host_application_can_replace_a_group_and_choose_the_cluster(tmp_path: Path) -> None:
    """Runs in a separate process, like `run.py` with two additions."""
    import subprocess
    import sys

    from conftest import ROOT

    code = """
import asyncio, sys
from pathlib import Path
from tornado.httpclient import AsyncHTTPClient
from tornado.httpserver import HTTPServer
from tornado.testing import bind_unused_port
from handlers.app import Application
from handlers.base import Base
from handlers.http.permissions import READ
from models.config import loader
from supervisor.charts.service import Target
from supervisor.services import open_services

class Mine(Base):
    permission = READ
    def get(self):
        self.reply({"mine": True})

def choose(request):
    return Target(Path(sys.argv[1]) / request.headers.get("X-Cluster", "none"))

async def main():
    read = lambda: loader.load(None, {}, {"server.data-dir": sys.argv[1] + "/data"})
    async with open_services(read(), read, choose_cluster=choose) as services:
        await use(services)

async def use(services):
    socket, port = bind_unused_port()
    server = HTTPServer(Application(services, {"hub": [("/hub/search", Mine)]}))
    server.add_socket(socket)
    async def get(path, **headers):
        url = f"http://127.0.0.1:{port}/api/v1{path}"
        answer = await AsyncHTTPClient().fetch(url, raise_error=False, headers=headers)
        return answer.code, answer.body.decode()
    print(await get("/hub/search"))
    print((await get("/releases"))[0])
    Path(sys.argv[1], "there").write_text("clusters: []")
    print((await get("/releases", **{"X-Cluster": "there"}))[0])
    print((await get("/repos"))[0])
    server.stop()

asyncio.run(main())
"""
    done = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path)], check=False, capture_output=True, cwd=ROOT, text=True
    )
    assert done.stdout.split("\n")[:4] == ["(200, '{\"mine\":true}')", "404", "502", "200"], done.stderr
