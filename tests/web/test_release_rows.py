"""The rows of a release's objects: they open to pods with restarts and the last event."""

from __future__ import annotations

from typing import Any

import pytest
import yaml
from browser_pages import Browser, faults_in_all_views, url_of
from cluster import Cluster
from conftest import Serve, Server
from release_secrets import made_release, store_release
from small_charts import FULL, KEY

LABELS = {"app": "web"}
POD = {"containers": [{"name": "web", "image": "web:1"}]}
SPEC = {
    "replicas": 2, "selector": {"matchLabels": LABELS}, "template": {"metadata": {"labels": LABELS}, "spec": POD},
}  # fmt: skip
DEPLOYMENT = {"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "web"}, "spec": SPEC}
MAP = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "settings"}, "data": {"a": "b"}}
FORGED = "<b id=forged>back-off</b> restarting failed container"


def owned(kind: str, name: str, owner: dict[str, Any], spec: dict[str, Any]) -> dict[str, Any]:
    reference = {key: owner["metadata"][key] for key in ("name", "uid")}
    references = [{"apiVersion": owner["apiVersion"], "kind": owner["kind"], **reference}]
    version = "v1" if kind == "Pod" else "apps/v1"
    return {
        "apiVersion": version, "kind": kind, "metadata": {"name": name, "ownerReferences": references}, "spec": spec,
    }  # fmt: skip


def event(about: dict[str, Any], space: str, reason: str, message: str) -> dict[str, Any]:
    involved = {"kind": about["kind"], "namespace": space, **{k: about["metadata"][k] for k in ("name", "uid")}}
    return {
        "apiVersion": "v1", "kind": "Event", "metadata": {"name": reason.lower()}, "involvedObject": involved,
        "lastTimestamp": "2026-11-27T10:05:00Z", "type": "Warning", "reason": reason, "message": message,
    }  # fmt: skip


@pytest.fixture
def space(cluster: Cluster) -> str:
    """A namespace with a release: a ConfigMap, and a Deployment with a pod that restarts."""
    name = cluster.namespace()
    elsewhere = {**MAP, "metadata": {"name": "settings", "namespace": "default"}}
    store_release(cluster, made_release("shop", name, manifest=yaml.safe_dump_all([MAP, DEPLOYMENT, elsewhere])))
    cluster.create(name, MAP)
    deployment = cluster.create(name, DEPLOYMENT)
    replicas = cluster.create(name, owned("ReplicaSet", "web-1", deployment, SPEC))
    pod = cluster.create(name, owned("Pod", "web-1-a", replicas, POD))
    waiting = {"name": "web", "image": "web:1", "imageID": "", "ready": False, "restartCount": 7}
    waiting["state"] = {"waiting": {"reason": "CrashLoopBackOff"}}
    cluster.patch_status(name, "v1", "Pod", "web-1-a", {"phase": "Running", "containerStatuses": [waiting]})
    cluster.create(name, event(pod, name, "BackOff", FORGED))
    cluster.create(name, event(deployment, name, "ScalingReplicaSet", "Scaled up web-1 to 2"))
    return name


def serve_charts(serve: Serve, cluster: Cluster, **security: str) -> Server:
    kube = {"kube": {"kubeconfig": str(cluster.kubeconfig)}}
    return serve({}, svc={**FULL, "security": {**FULL["security"], **security}, **kube})


def check_opened(page: Any) -> None:
    """The row of the Deployment is open."""
    row = page.locator(".owned tbody tr").first
    row.wait_for()
    page.wait_for_load_state()
    assert row.locator("th").inner_text() == "web-1-a"
    words = " ".join(row.inner_text().split())
    assert "CrashLoopBackOff, 7 restarts" in words
    assert row.locator("td.number").inner_text().removeprefix("restarts").strip() == "7"
    assert f"BackOff: {FORGED}" in words
    assert "Scaled up web-1 to 2" in page.locator(".opened").inner_text()
    assert page.locator("#forged").count() == 0


def test_a_row_opens_to_pods_with_restarts_and_the_last_event(
    serve: Serve, chromium: Browser, cluster: Cluster, space: str
) -> None:
    server = serve_charts(serve, cluster, **{"cluster-reads": "OPEN"})
    with chromium.page(url_of(server), java_script_enabled=False) as one:
        one.goto(f"/releases/{space}/shop")
        names = one.locator(".objects tbody th").all_inner_texts()
        assert [name.split()[-1] for name in names] == ["web", "default", "settings"], "what is not ready comes first"
        one.locator(".objects a", has_text="web").press("Enter")
        check_opened(one)
        one.locator(".objects a[aria-expanded=true]").press("Enter")
        one.locator(".objects a[aria-expanded=true]").wait_for(state="detached")
    with chromium.page(url_of(server)) as one:
        one.goto(f"/releases/{space}/shop?open=Deployment/web")
        check_opened(one)
        assert faults_in_all_views(one) == {}
        one.goto(f"/releases/{space}/shop?open=ConfigMap/settings")
        one.get_by_text("It owns no objects").wait_for()
        assert one.locator(".opened").count() == 1
        one.goto(f"/releases/{space}/shop?open=ConfigMap/settings/default")
        assert one.locator(".opened").count() == 1
        assert "not found" in one.locator("tr", has=one.locator("[aria-expanded=true]")).inner_text()
        one.goto(f"/releases/{space}/shop?open=ConfigMap/none")
        assert one.locator(".opened").count() == 0


def test_a_row_requires_the_key_where_live_objects_need_it(
    serve: Serve, chromium: Browser, cluster: Cluster, space: str
) -> None:
    server = serve_charts(serve, cluster)
    with chromium.page(url_of(server), allow=("401",)) as one:
        one.goto(f"/releases/{space}/shop?open=Deployment/web")
        one.get_by_text("need the key of the charts").wait_for()
        assert faults_in_all_views(one) == {}
        one.get_by_label("API key").fill("wrong")
        one.get_by_role("button", name="Show pods and events").press("Enter")
        one.locator("[name=key][aria-invalid=true]").wait_for()
        assert one.locator(":focus").get_attribute("name") == "key"
        one.get_by_label("API key").fill(KEY["X-API-Key"])
        one.get_by_role("button", name="Show pods and events").press("Enter")
        check_opened(one)
    with chromium.page(url_of(server), java_script_enabled=False) as one:
        one.goto(f"/releases/{space}/shop?open=Deployment/web")
        one.get_by_label("API key").fill(KEY["X-API-Key"])
        one.get_by_role("button", name="Show pods and events").press("Enter")
        check_opened(one)


def test_a_row_says_that_live_objects_are_not_served(serve: Serve, cluster: Cluster, space: str) -> None:
    server = serve_charts(serve, cluster, **{"cluster-reads": "OFF"})
    page = server.get(f"/releases/{space}/shop?open=Deployment/web").text
    assert "live objects are not served (svc.security.cluster-reads)" in page
    assert "web-1-a" not in page
