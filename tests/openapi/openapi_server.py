"""A server with data of every service, whose responses are compared with its OpenAPI document."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import chart_servers
import small_charts
import uploads
import users
from attrs import frozen
from conftest import ROOT, Server, python_command
from http_checks import running_server

from handlers.app import served
from handlers.openapi.document import InterfaceDocument
from handlers.openapi.pages import shared_endpoints
from models.config.settings import Config

KEY = "the-key-of-the-charts"
REPOSITORY, CHART, RELEASE = "here", "tint", "painted"
CHART_ARCHIVE = small_charts.chart_archive(
    CHART, values="colour: red\n", templates__map=small_charts.MAP, templates__NOTES="painted\n"
)
"""A chart without tests: the cluster runs no Pods, so they would last until their timeout."""

METHODS = ("get", "post", "put", "patch", "delete")
STREAMS = ("process_stream", "run_stream", "live_stream")
"""Endpoints whose responses do not end."""

Json = dict[str, Any]


@frozen
class PreparedServer:
    """A server with processes, a repository with charts, a project with runs, and a cluster or none."""

    server: Server
    web: chart_servers.WebServer
    admin: str
    """A token of an ADMIN."""
    poster: str
    """One of scope INGEST."""
    project: int
    runs: Sequence[int]

    def document(self, prefix: str = "") -> Json:
        return dict(self.server.get(f"{prefix}/v3/api-docs").json)


def operations(document: Json) -> list[tuple[str, str, Json]]:
    """All operations: path, method, operation."""
    return [(path, method, result) for path, methods in document["paths"].items() for method, result in methods.items()]


def document_for(has_cluster: bool = True, **settings: Any) -> Json:
    """The document for a configuration with these sections, without a server."""
    config = Config(**settings)
    services = served(config)
    return InterfaceDocument(config, [*services, shared_endpoints(services[0])], has_cluster).write()


@contextlib.contextmanager
def prepared_server(folder: Path, kubeconfig: Path | None = None) -> Iterator[PreparedServer]:
    """Runs a server with data. Its hub is a web server of the test."""
    with chart_servers.web_server() as web:
        web.serve((CHART, "0.1.0", CHART_ARCHIVE), (CHART, "0.2.0", small_charts.chart_archive(CHART, "0.2.0")))
        web.pages["/api/v1/packages/search"] = json.dumps({"packages": []}).encode()
        binary = ROOT / ".tools" / "helm"
        svc = {
            "security": {"mode": "FULL", "api-key": KEY, "allowed-hosts": [web.host_port]},
            "hub": {"url": web.url},
            "kube": {"kubeconfig": str(kubeconfig or folder / "none")},
            "helm": {"timeout": "20s", **({"binary": str(binary)} if binary.exists() else {})},
        }
        talking = {"command": python_command("print('here', flush=True); import time; time.sleep(1000)")}
        processes = {
            "web": {**talking, "stdout-logfile": str(folder / "web.log"), "auto-start": True},
            "idle": {"command": ["true"]},
        }
        with running_server(folder, processes, svc=svc) as server:
            try:
                yield _prepared(server, web, kubeconfig is not None)
            finally:  # the cluster is of all tests: the next stage installs a release of this name too
                if kubeconfig is not None:
                    server.ask("DELETE", f"/api/v1/releases/{RELEASE}", headers={"X-API-Key": KEY})
            assert "Traceback" not in server.log.read_text()


def _prepared(server: Server, web: chart_servers.WebServer, has_cluster: bool) -> PreparedServer:
    key = {"X-API-Key": KEY}
    added = server.ask("POST", "/api/v1/repos", json.dumps({"name": REPOSITORY, "url": web.url}).encode(), key)
    assert added.status == 201, added
    if has_cluster:
        requested = {"chartRef": f"{REPOSITORY}/{CHART}", "version": "0.1.0", "releaseName": RELEASE}
        installed = server.ask("POST", "/api/v1/releases", json.dumps(requested).encode(), key)
        assert installed.status == 201, installed
    runs = [
        uploads.upload(
            server,
            ("project", "shop"),
            ("branch", "main"),
            ("commit", f"c{number}"),
            ("junit", uploads.junit(2, number)),
            ("jacoco", uploads.jacoco({"A.java": {1: True, 2: number == 0}})),
        )
        for number in range(2)
    ]
    admin = users.create_token(server.data, "boss", role="ADMIN")
    poster = users.create_token(server.data, "ci", scope="INGEST")
    return PreparedServer(server, web, admin, poster, runs[0]["projectId"], [run["runId"] for run in runs])
