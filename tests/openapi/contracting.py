"""A server with data of every kind, to be compared with its OpenAPI document."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import charting
import people
import places
import posting
from attrs import frozen
from conftest import ROOT, Server, python
from talk import running_server

from handlers.app import served
from handlers.openapi.document import Document
from handlers.openapi.pages import shared_endpoints
from models.config.settings import Config

KEY = "the-key-of-the-charts"
REPOSITORY, CHART, RELEASE = "here", "tint", "painted"
CHARTED = charting.chart(CHART, values="colour: red\n", templates__map=charting.MAP, templates__NOTES="painted\n")
"""A chart without tests, which would run until their time is over: nothing runs a Pod here."""

METHODS = ("get", "post", "put", "patch", "delete")
STREAMS = ("process_stream", "run_stream", "live_stream")
"""They do not end by themselves."""

Json = dict[str, Any]


@frozen
class Stage:
    """A server, and what is on it: processes, a repository with charts, a project with runs, and a cluster or none."""

    server: Server
    web: places.Web
    admin: str
    """A token of an ADMIN."""
    poster: str
    """One of scope INGEST."""
    project: int
    runs: Sequence[int]

    def document(self, prefix: str = "") -> Json:
        return dict(self.server.get(f"{prefix}/v3/api-docs").json)


def operations(document: Json) -> list[tuple[str, str, Json]]:
    """Path, method and operation, of all."""
    return [(path, method, result) for path, methods in document["paths"].items() for method, result in methods.items()]


def written(has_cluster: bool = True, **settings: Any) -> Json:
    """The document of a server that does not run, with a configuration of these sections."""
    config = Config(**settings)
    services = served(config)
    return Document(config, [*services, shared_endpoints(services[0])], has_cluster).write()


@contextlib.contextmanager
def stage(folder: Path, kubeconfig: Path | None = None) -> Iterator[Stage]:
    """A prepared server. Its hub is a page of the tests that has one package."""
    with places.web() as web:
        web.serve((CHART, "0.1.0", CHARTED), (CHART, "0.2.0", charting.chart(CHART, "0.2.0")))
        web.pages["/api/v1/packages/search"] = json.dumps({"packages": []}).encode()
        binary = ROOT / ".tools" / "helm"
        svc = {
            "security": {"mode": "FULL", "api-key": KEY, "allowed-hosts": [web.place]},
            "hub": {"url": web.url},
            "kube": {"kubeconfig": str(kubeconfig or folder / "none")},
            "helm": {"timeout": "20s", **({"binary": str(binary)} if binary.exists() else {})},
        }
        talking = {"command": python("print('here', flush=True); import time; time.sleep(1000)")}
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


def _prepared(server: Server, web: places.Web, has_cluster: bool) -> Stage:
    key = {"X-API-Key": KEY}
    added = server.ask("POST", "/api/v1/repos", json.dumps({"name": REPOSITORY, "url": web.url}).encode(), key)
    assert added.status == 201, added
    if has_cluster:
        requested = {"chartRef": f"{REPOSITORY}/{CHART}", "version": "0.1.0", "releaseName": RELEASE}
        installed = server.ask("POST", "/api/v1/releases", json.dumps(requested).encode(), key)
        assert installed.status == 201, installed
    runs = [
        posting.stored(
            server,
            ("project", "shop"),
            ("branch", "main"),
            ("commit", f"c{number}"),
            ("junit", posting.cases(2, number)),
            ("jacoco", posting.jacoco({"A.java": {1: True, 2: number == 0}})),
        )
        for number in range(2)
    ]
    admin = people.token_of(server.data, "boss", role="ADMIN")
    poster = people.token_of(server.data, "ci", scope="INGEST")
    return Stage(server, web, admin, poster, runs[0]["projectId"], [run["runId"] for run in runs])
