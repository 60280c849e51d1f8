"""Live objects of a release from a real API server: what they own, their events, and the permission to read them."""

from __future__ import annotations

import base64
import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from cluster import TOKEN, Cluster
from conftest import Answer, Server
from http_checks import check_problem, running_server
from release_secrets import made_release, store_release
from small_charts import FULL, KEY
from users import bearer, create_token

API = "/api/v1/releases/r"
POD = {"containers": [{"name": "web", "image": "web:1"}]}
LABELS = {"app": "web"}
TEMPLATE = {"metadata": {"labels": LABELS}, "spec": POD}


def workload(kind: str, name: str, **metadata: Any) -> dict[str, Any]:
    spec = {"replicas": 2, "selector": {"matchLabels": LABELS}, "template": TEMPLATE}
    return {"apiVersion": "apps/v1", "kind": kind, "metadata": {"name": name, **metadata}, "spec": spec}


def owned_by(owner: dict[str, Any]) -> list[dict[str, Any]]:
    return [{
        "apiVersion": owner["apiVersion"], "kind": owner["kind"], "name": owner["metadata"]["name"],
        "uid": owner["metadata"]["uid"],
    }]  # fmt: skip


def happened(space: str, name: str, about: dict[str, Any], minute: int, **facts: Any) -> dict[str, Any]:
    at = f"2026-11-27T10:{minute:02}:00Z"
    involved = {"kind": about["kind"], "name": about["metadata"]["name"], "namespace": space}
    if uid := about["metadata"].get("uid"):
        involved["uid"] = uid
    return {
        "apiVersion": "v1", "kind": "Event", "metadata": {"name": name}, "involvedObject": involved,
        "firstTimestamp": at, "lastTimestamp": at, "count": 3, "type": "Normal", "reason": "Made", "message": "made",
        **facts,
    }  # fmt: skip


SECRET = {
    "apiVersion": "v1", "kind": "Secret", "metadata": {"name": "login"},
    "data": {"password": base64.b64encode(b"open sesame").decode()},
}  # fmt: skip
MISSING = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "gone"}}


@pytest.fixture(scope="module")
def space(cluster: Cluster) -> str:
    """A namespace with a release whose Deployment owns a ReplicaSet, which owns a Pod; and with other objects."""
    name = cluster.namespace()
    manifest = yaml.safe_dump_all([workload("Deployment", "web"), SECRET, MISSING])
    store_release(cluster, made_release("r", name, manifest=manifest))
    deployment = cluster.create(name, workload("Deployment", "web"))
    cluster.create(name, SECRET)
    replicas = cluster.create(name, workload("ReplicaSet", "web-1", ownerReferences=owned_by(deployment)))
    pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "web-1-a", "ownerReferences": owned_by(replicas)}}
    pod = cluster.create(name, {**pod, "spec": POD})
    cluster.create(name, workload("ReplicaSet", "foreign"))
    for one in (
        happened(name, "e1", deployment, 1),
        happened(name, "e2", pod, 5, type="Warning", reason="BackOff", message="again\n"),
        happened(name, "e3", pod, 3, type="Warning", reason="Failed"),
        happened(name, "e4", workload("ReplicaSet", "foreign", uid="1"), 9),
        happened(name, "e5", MISSING, 2),
    ):
        cluster.create(name, one)
    return name


@pytest.fixture(scope="module")
def servers(cluster: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Server]]:
    """A server for each value of `svc.security.cluster-reads`."""
    with contextlib.ExitStack() as stack:
        found = {}
        for value in ("KEY", "OPEN", "OFF"):
            security = {**FULL["security"], "cluster-reads": value}
            svc = {"security": security, "kube": {"kubeconfig": str(cluster.kubeconfig)}}
            found[value] = stack.enter_context(running_server(tmp_path_factory.mktemp(value), svc=svc))
        yield found


@pytest.fixture(scope="module")
def server(servers: dict[str, Server]) -> Server:
    return servers["KEY"]


def ok(answer: Answer) -> Answer:
    assert answer.status == 200, answer
    return answer


def test_the_tree_has_the_objects_and_what_they_own(server: Server, space: str) -> None:
    rows = ok(server.get(f"{API}/tree?namespace={space}", **KEY)).json
    assert [(row["kind"], row["name"], row["owner"], row["warnings"]) for row in rows] == [
        ("Deployment", "web", None, 0),
        ("ReplicaSet", "web-1", "Deployment/web", 0),
        ("Pod", "web-1-a", "ReplicaSet/web-1", 2),
        ("Secret", "login", None, 0),
        ("ConfigMap", "gone", None, 0),
    ]
    assert [row["ready"] for row in rows] == [False, False, False, True, False]
    assert rows[2]["message"] == "Pending"
    assert rows[2]["created"].endswith("Z")
    assert "not found" in rows[4]["message"]
    assert rows[4]["created"] is None


def test_events_are_those_of_the_tree_newest_first(server: Server, space: str) -> None:
    path = f"{API}/events?namespace={space}"
    rows = ok(server.get(path, **KEY)).json
    assert [(row["reason"], row["kind"], row["name"]) for row in rows] == [
        ("BackOff", "Pod", "web-1-a"), ("Failed", "Pod", "web-1-a"), ("Made", "ConfigMap", "gone"),
        ("Made", "Deployment", "web"),
    ]  # fmt: skip
    assert rows[0] == {
        "type": "Warning", "reason": "BackOff", "message": "again", "count": 3, "first": "2026-11-27T10:05:00Z",
        "last": "2026-11-27T10:05:00Z", "kind": "Pod", "name": "web-1-a",
    }  # fmt: skip
    assert len(ok(server.get(f"{path}&limit=1", **KEY)).json) == 1
    assert len(ok(server.get(f"{path}&type=Warning", **KEY)).json) == 2
    assert len(ok(server.get(f"{path}&kind=Deployment&object=web", **KEY)).json) == 1
    assert server.get(f"{path}&limit=0", **KEY).status == 400


def test_an_object_is_the_live_one_without_managed_fields(server: Server, cluster: Cluster, space: str) -> None:
    path = f"{API}/objects/Pod/web-1-a?namespace={space}"
    answer = ok(server.get(path, **KEY))
    assert answer.headers["Content-Type"].startswith("text/plain")
    live = cluster.ask("GET", f"/api/v1/namespaces/{space}/pods/web-1-a")
    live["metadata"].pop("managedFields", None)
    assert yaml.safe_load(answer.text)["metadata"]["uid"] == live["metadata"]["uid"]
    assert ok(server.get(path, **KEY, Accept="application/json")).json == live
    assert ok(server.get(f"{path}&apiVersion=v1&objectNamespace={space}", **KEY)).text == answer.text


@pytest.mark.parametrize(
    "query",
    [
        "ReplicaSet/foreign?", "ConfigMap/gone?", "Pod/none?", "Pod/web-1-a?apiVersion=v2&",
        "Pod/web-1-a?objectNamespace=default&",
    ],
)  # fmt: skip
def test_only_objects_of_the_tree_are_returned(server: Server, space: str, query: str) -> None:
    path = f"{API}/objects/{query}namespace={space}"
    check_problem(server.get(path, **KEY), 404, path.partition("?")[0], has_timestamp=True)


def test_the_values_of_a_secret_are_masked_in_an_object(servers: dict[str, Server], space: str) -> None:
    path = f"{API}/objects/Secret/login?namespace={space}"
    assert ok(servers["KEY"].get(path, **KEY, Accept="application/json")).json["data"] == {"password": "(11 bytes)"}
    shown = ok(servers["KEY"].get(f"{path}&showSecrets=true", **KEY, Accept="application/json")).json
    assert shown["data"] == SECRET["data"]
    assert servers["OPEN"].get(f"{path}&showSecrets=true").status == 401


READS = ("tree", "events", "objects/Pod/web-1-a")


@pytest.mark.parametrize("read", READS)
def test_live_objects_need_the_key_or_an_admin(servers: dict[str, Server], space: str, read: str) -> None:
    path, server = f"{API}/{read}?namespace={space}", servers["KEY"]
    check_problem(server.get(path), 401, f"{API}/{read}", has_timestamp=True)
    assert server.get(path, **{"X-API-Key": "wrong"}).status == 401
    assert ok(server.get(path, **bearer(create_token(server.data, f"boss-{read[:4]}", role="ADMIN"))))
    assert server.get(path, **bearer(create_token(server.data, f"user-{read[:4]}"))).status == 401
    assert ok(servers["OPEN"].get(path))
    missing = check_problem(servers["OFF"].get(path, **KEY), 404, f"{API}/{read}", has_timestamp=True)
    assert "svc.security.cluster-reads" in missing["detail"]


def test_an_unknown_release_has_no_tree(server: Server, space: str) -> None:
    path = "/api/v1/releases/none/tree"
    check_problem(server.get(f"{path}?namespace={space}", **KEY), 404, path, has_timestamp=True)


@pytest.fixture(scope="module")
def two_contexts(cluster: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A server whose kubeconfig has a context that works, one that does not, and one that requests may not name."""
    folder = tmp_path_factory.mktemp("contexts")
    file = cluster.config({"token": "wrong"}, path=folder / "config")
    whole = yaml.safe_load(file.read_text())
    whole["users"].append({"name": "boss", "user": {"token": TOKEN}})
    for name in ("good", "hidden"):
        context = {"cluster": "here", "user": "boss", "namespace": "apps"}
        whole["contexts"].append({"name": name, "context": context})
    file.write_text(yaml.safe_dump(whole))
    svc = {**FULL, "kube": {"kubeconfig": str(file), "contexts": ["good"]}}
    with running_server(folder, svc=svc) as one:
        yield one


def test_contexts_are_listed_without_addresses_or_users(two_contexts: Server) -> None:
    answer = ok(two_contexts.get("/api/v1/contexts"))
    assert answer.json == [
        {"name": "good", "namespace": "apps", "current": False, "allowed": True},
        {"name": "hidden", "namespace": "apps", "current": False, "allowed": False},
        {"name": "main", "namespace": "default", "current": True, "allowed": False},
    ]


def test_a_request_may_name_an_allowed_context(two_contexts: Server, space: str) -> None:
    assert two_contexts.get(f"{API}?namespace={space}").status == 502
    assert ok(two_contexts.get(f"{API}?namespace={space}&context=good")).json["name"] == "r"
    assert ok(two_contexts.get(f"/api/v1/releases?namespace={space}&context=good")).json[0]["name"] == "r"
    assert ok(two_contexts.get(f"{API}/history?namespace={space}&context=good")).json
    for name in ("hidden", "none"):
        problem = check_problem(two_contexts.get(f"{API}?context={name}"), 400, API, has_timestamp=True)
        assert "svc.kube.contexts" in problem["detail"]


def test_without_a_kubeconfig_there_are_no_contexts(tmp_path: Path) -> None:
    with running_server(tmp_path, svc={"kube": {"kubeconfig": str(tmp_path / "none")}}) as one:
        assert ok(one.get("/api/v1/contexts")).json == []
