"""Newer versions of releases' charts, and previews of upgrades, with a real API server and helm."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import pytest
from chart_servers import WebServer, chart_archive, index_entry, index_file, run_helm, running_registry, web_server
from cluster import Cluster
from conftest import Answer, Server, wait_for
from http_checks import check_problem, running_server
from release_secrets import made_release, store_release
from small_charts import FULL, KEY, helm_path, post_chart, send_json

from models.charts.repositories.upgrades import later, named_versions

API = "/api/v1"
VERSIONS = ("0.1.0", "0.2.0", "0.10.0", "1.0.0-rc.1")
TEMPLATE = "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: map}\ndata: {size: {{ .Values.replicas | quote }}}\n"


def tint(version: str) -> bytes:
    return chart_archive(
        "tint", version, {"templates/map.yaml": TEMPLATE + f"# {version}\n"}, appVersion=f"app-{version}"
    )


class Lab:
    def __init__(self, server: Server, cluster: Cluster, registry: str) -> None:
        self.server, self.cluster, self.registry = server, cluster, registry
        self.space = cluster.namespace()

    def install(self, name: str, ref: str, version: str | None) -> None:
        fields = {"chartRef": ref, "version": version, "releaseName": name, "namespace": self.space}
        answer = send_json(self.server, "POST", f"{API}/releases", fields)
        assert answer.status == 201, answer

    def get(self, path: str, query: str = "") -> Answer:
        return self.server.get(f"{API}{path}?namespace={self.space}{query}")

    def upgrades(self, name: str) -> list[str]:
        answer = self.get(f"/releases/{name}/upgrades")
        assert answer.status == 200, answer
        return [f"{row['chartRef']} {row['version']}" for row in answer.json]

    def newest(self) -> dict[str, Any]:
        answer = self.get("/releases", "&upgrades=true")
        assert answer.status == 200, answer
        return {row["name"]: row["upgrade"] for row in answer.json}


@pytest.fixture(scope="module")
def lab(cluster: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    """A server with two repositories that have the chart, and a registry with two versions of it."""
    folder = tmp_path_factory.mktemp("lab")
    with contextlib.ExitStack() as stack:
        web: WebServer = stack.enter_context(web_server())
        registry = stack.enter_context(running_registry(folder))
        for name, versions in (("a", VERSIONS), ("b", ("0.2.0", "0.3.0"))):
            web.serve(*(("tint", version, tint(version)) for version in versions), folder=f"/{name}")
            entries = [index_entry("tint", version, appVersion=f"app-{version}") for version in versions]
            web.pages[f"/{name}/index.yaml"] = index_file(*entries)
        for version in ("0.1.0", "0.5.0", "0.6.0-beta"):
            (folder / "tint.tgz").write_bytes(tint(version))
            run_helm(folder, "push", "--plain-http", "tint.tgz", f"oci://{registry}/charts")
        svc = {
            "security": {**FULL["security"], "allowed-hosts": [web.host_port, registry]},
            "helm": {"binary": helm_path("helm")},
            "kube": {"kubeconfig": str(cluster.kubeconfig)},
        }
        server = stack.enter_context(running_server(folder, svc=svc))
        for name in ("a", "b"):
            assert send_json(server, "POST", f"{API}/repos", {"name": name, "url": f"{web.url}/{name}"}).status == 201
        yield Lab(server, cluster, registry)


@pytest.fixture
def space(lab: Lab) -> Lab:
    lab.space = lab.cluster.namespace()
    return lab


def test_every_newer_version_of_the_installed_reference_is_listed(space: Lab) -> None:
    space.install("r", "a/tint", "0.1.0")
    assert space.upgrades("r") == ["a/tint 0.10.0", "a/tint 0.2.0"]
    assert space.newest() == {"r": {"chartRef": "a/tint", "version": "0.10.0", "appVersion": "app-0.10.0"}}
    assert "upgrade" not in space.get("/releases").json[0]
    path = f"{API}/releases/r?namespace={space.space}"
    assert send_json(space.server, "PUT", path, {"chartRef": "a/tint", "version": "0.10.0"}).status == 200
    assert space.upgrades("r") == []
    assert space.newest() == {"r": None}


def test_without_a_reference_every_repository_with_the_version_counts(space: Lab) -> None:
    release: dict[str, Any] = {"chart": {"metadata": {"name": "tint", "version": "0.2.0", "apiVersion": "v2"}}}
    store_release(space.cluster, made_release("other", space.space, **release))
    assert space.upgrades("other") == ["a/tint 0.10.0", "b/tint 0.3.0"]
    unknown: dict[str, Any] = {"chart": {"metadata": {"name": "tint", "version": "0.1.5", "apiVersion": "v2"}}}
    store_release(space.cluster, made_release("unknown", space.space, **unknown))
    assert space.upgrades("unknown") == []


def test_an_upload_forgets_the_reference(space: Lab) -> None:
    space.install("r", "a/tint", "0.1.0")
    request = {"values": {"replicas": 2}}
    path = f"{API}/releases/r/upgrade/upload?namespace={space.space}"
    assert post_chart(space.server, path, KEY, chart=tint("0.2.0"), request=request).status == 200
    assert space.upgrades("r") == ["a/tint 0.10.0", "b/tint 0.3.0"]


def test_tags_of_a_registry_are_fetched_in_the_background(space: Lab) -> None:
    ref = f"oci://{space.registry}/charts/tint"
    space.install("r", ref, "0.1.0")
    space.upgrades("r")  # begins the fetch
    wait_for(lambda: space.upgrades("r"))
    assert space.newest() == {"r": {"chartRef": ref, "version": "0.5.0", "appVersion": None}}


def test_an_unknown_release_has_no_upgrades(space: Lab) -> None:
    path = f"{API}/releases/none/upgrades"
    check_problem(space.get("/releases/none/upgrades"), 404, path, has_timestamp=True)


def preview(space: Lab, query: str = "", headers: dict[str, str] | None = None, **fields: Any) -> Answer:
    path = f"{API}/releases/r/diff?namespace={space.space}{query}"
    return send_json(space.server, "POST", path, {"chartRef": "a/tint", **fields}, **(headers or {}))


def test_an_upgrade_is_previewed_and_nothing_is_stored(space: Lab) -> None:
    space.install("r", "a/tint", "0.1.0")
    answer = preview(space, version="0.2.0", values={"replicas": 5})
    assert answer.status == 200, answer
    found = answer.json
    assert (found["from"], found["to"]) == (1, None)
    assert [(one["change"], one["kind"], one["name"]) for one in found["objects"]] == [("CHANGED", "ConfigMap", "map")]
    assert '-data: {size: "1"}' in found["diff"]
    assert '+data: {size: "5"}' in found["diff"]
    text = preview(space, version="0.2.0", values={"replicas": 5}, headers={"Accept": "text/plain"})
    assert text.text == found["diff"]
    assert len(space.get("/releases/r/history").json) == 1
    live = space.cluster.ask("GET", f"/api/v1/namespaces/{space.space}/configmaps/map")
    assert live["data"] == {"size": "1"}


def test_a_preview_needs_the_permission_to_change_charts(space: Lab) -> None:
    path = f"{API}/releases/r/diff"
    assert check_problem(space.server.post(path, b"{}"), 401, path, has_timestamp=True)
    check_problem(preview(space), 404, path, has_timestamp=True)


def test_a_chart_and_its_version_are_told_apart() -> None:
    assert list(named_versions("cert-manager-v1.2.3")) == [("cert-manager", "v1.2.3")]
    assert list(named_versions("a-1.0.0-2.0.0")) == [("a", "1.0.0-2.0.0"), ("a-1.0.0", "2.0.0")]
    assert list(named_versions("MISSING")) == []


def test_prereleases_are_newer_only_for_a_prerelease() -> None:
    versions = ["2.0.0-rc.1", "1.1.0", "1.0.0", "0.9.0"]
    assert later("1.0.0", versions) == ["1.1.0"]
    assert later("1.0.0-rc.1", versions) == ["2.0.0-rc.1", "1.1.0", "1.0.0"]
