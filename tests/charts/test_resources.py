"""The objects of a manifest and their readiness: the rules alone, and on a real API server."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from cluster import Cluster
from conftest import Server, wait_for
from http_checks import running_server
from release_secrets import made_release, store_release

from models.charts.resources import ManifestObject, named, readiness

API = "/api/v1/releases"

# Objects of a manifest


def test_objects_of_a_manifest_are_listed_in_order() -> None:
    manifest = """---
# Source: a
apiVersion: apps/v1
kind: Deployment
metadata: {name: a, namespace: n}
---
# nothing but a comment
---
apiVersion: v1
kind: ConfigMap
metadata:
  name: "12"
data: {eq: =, when: 2020-01-01, tag: !odd x}
---
apiVersion: v1
kind: ConfigMap
metadata: {name: "12"}
"""
    assert named(manifest) == [
        ManifestObject("apps/v1", "Deployment", "a", "n"),
        ManifestObject("v1", "ConfigMap", "12", None),
        ManifestObject("v1", "ConfigMap", "12", None),
    ]


def test_the_items_of_a_list_are_separate_objects() -> None:
    manifest = """
apiVersion: v1
kind: List
items:
- {apiVersion: v1, kind: Secret, metadata: {name: a}}
- {apiVersion: v1, kind: ConfigMapList, items: [{apiVersion: v1, kind: ConfigMap, metadata: {name: b}}]}
"""
    assert [(one.kind, one.name) for one in named(manifest)] == [("Secret", "a"), ("ConfigMap", "b")]


@pytest.mark.parametrize(
    "manifest", ["", "---\n---\n", "just text", "- a list", "kind: X", "apiVersion: v1", "kind: [a]"]
)
def test_documents_without_an_object_are_skipped(manifest: str) -> None:
    assert named(manifest) == []


FAULTY_DOCUMENTS: list[tuple[str, ManifestObject]] = [
    ("a: [", ManifestObject("", "", "", None, "the document is not YAML (line 2)")),
    ("\x00", ManifestObject("", "", "", None, "the document is not YAML")),
    (
        "# Source: c/a.yaml\napiVersion: v1\nkind: Secret\nmetadata:\n  name: 'a'\n  namespace: n\ndata: x: y\n",
        ManifestObject("v1", "Secret", "a", "n", "c/a.yaml: the document is not YAML (line 7)"),
    ),
    (
        "\napiVersion: v1\nkind: ConfigMap\nmetadata:\n  name: a\ndata:\n  k: 1\n  l: 2\n  k: 1\n",
        ManifestObject("v1", "ConfigMap", "a", None, 'the key "k" is given twice (line 9)'),
    ),
    ("a: [{b: 1, b: 2}]", ManifestObject("", "", "", None, 'the key "b" is given twice (line 1)')),
    ("a: *b", ManifestObject("", "", "", None, "the document is not YAML (line 1)")),
]


@pytest.mark.parametrize(("document", "expected"), FAULTY_DOCUMENTS)
def test_a_faulty_document_is_one_object_beside_the_others(document: str, expected: ManifestObject) -> None:
    good = "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: NAME}\n"
    first, second = (ManifestObject("v1", "ConfigMap", name, None) for name in ("x", "y"))
    manifest = f"---\n{good.replace('NAME', 'x')}---\n{document}\n--- # more\n{good.replace('NAME', 'y')}"
    assert named(manifest) == [first, expected, second]


# Readiness rules


def live(api_version: str, kind: str, status: dict[str, Any] | None = None, **spec: Any) -> dict[str, Any]:
    about = {"name": "x", "generation": 2}
    return {"apiVersion": api_version, "kind": kind, "metadata": about, "spec": spec, "status": status or {}}


SEEN: dict[str, Any] = {"observedGeneration": 2}
COUNTED = SEEN | {"readyReplicas": 2, "updatedReplicas": 2, "availableReplicas": 2}
COMPLETE, UNREADY = {"type": "Complete", "status": "True"}, {"type": "Ready", "status": "False"}
STUCK = {"type": "Progressing", "status": "False", "reason": "ProgressDeadlineExceeded"}
CRD = "apiextensions.k8s.io/v1"
NO_ADDRESS = "the load balancer has no address yet"


def ok(kind: str) -> dict[str, str]:
    return {"type": kind, "status": "True"}


ROLLING = {"updateRevision": "b", "currentRevision": "a"}


@pytest.mark.parametrize(
    ("what", "is_ready", "message"),
    [
        (live("apps/v1", "Deployment", COUNTED, replicas=2), True, "ready"),
        (live("apps/v1", "Deployment", COUNTED, replicas=3), False, "2/3 replicas updated"),
        (live("apps/v1", "Deployment", COUNTED | {"updatedReplicas": 1}, replicas=2), False, "1/2 replicas updated"),
        (
            live("apps/v1", "Deployment", COUNTED | {"availableReplicas": 0}, replicas=2), False,
            "0/2 replicas available",
        ),
        (live("apps/v1", "Deployment", COUNTED | {"observedGeneration": 1}), False, "waiting for rollout"),
        (live("apps/v1", "Deployment"), False, "waiting for rollout"),
        (live("apps/v1", "Deployment", SEEN), False, "0/1 replicas updated"),
        (live("apps/v1", "Deployment", SEEN, replicas=0), True, "ready"),
        (live("apps/v1", "ReplicaSet", SEEN | {"readyReplicas": 1}), True, "ready"),
        (live("apps/v1", "ReplicaSet", SEEN | {"readyReplicas": 1}, replicas=2), False, "1/2 replicas ready"),
        (live("apps/v1", "ReplicaSet"), False, "waiting for rollout"),
        (live("apps/v1", "StatefulSet", SEEN | {"readyReplicas": 2}, replicas=2), True, "ready"),
        (live("apps/v1", "StatefulSet", SEEN | {"readyReplicas": 1}, replicas=2), False, "1/2 replicas ready"),
        (live("apps/v1", "StatefulSet", {"readyReplicas": 2}, replicas=2), False, "waiting for rollout"),
        (
            live("apps/v1", "StatefulSet", COUNTED | ROLLING | {"updatedReplicas": 1}, replicas=2),
            False,
            "1/2 replicas updated, b is not yet the current revision",
        ),
        (
            live(
                "apps/v1",
                "StatefulSet",
                COUNTED | ROLLING | {"updatedReplicas": 1},
                replicas=2,
                updateStrategy={"type": "RollingUpdate", "rollingUpdate": {"partition": 1}},
            ),
            True,
            "ready",
        ),
        (
            live(
                "apps/v1", "StatefulSet", COUNTED | ROLLING | {"updatedReplicas": 0}, replicas=2,
                updateStrategy={"type": "OnDelete"},
            ),
            True,
            "ready",
        ),
        (
            live(
                "apps/v1", "DaemonSet",
                SEEN | {"desiredNumberScheduled": 3, "updatedNumberScheduled": 3, "numberAvailable": 3},
            ),
            True,
            "ready",
        ),
        (
            live(
                "apps/v1", "DaemonSet",
                SEEN | {"desiredNumberScheduled": 3, "updatedNumberScheduled": 3, "numberAvailable": 1},
            ),
            False,
            "1/3 available",
        ),
        (
            live("apps/v1", "DaemonSet", SEEN | {"desiredNumberScheduled": 3, "numberAvailable": 3}),
            False,
            "0/3 updated",
        ),
        (
            live(
                "apps/v1", "DaemonSet", SEEN | {"desiredNumberScheduled": 3, "numberAvailable": 3},
                updateStrategy={"type": "OnDelete"},
            ),
            True,
            "ready",
        ),
        (live("apps/v1", "DaemonSet"), False, "waiting for rollout"),
        (live("batch/v1", "Job", {"succeeded": 1}), True, "complete"),
        (live("batch/v1", "Job", {"succeeded": 1}, completions=3), False, "succeeded=1/3"),
        (live("batch/v1", "Job", {"failed": 2}, completions=1), False, "failed=2, succeeded=0/1"),
        (live("batch/v1", "Job", {"conditions": [COMPLETE]}, completions=3), True, "complete"),
        (
            live("batch/v1", "Job", {"conditions": [{"type": "Failed", "status": "True", "reason": "TooOften"}]}),
            False,
            "failed: TooOften",
        ),
        (live("v1", "Pod", {"phase": "Succeeded"}), True, "ready"),
        (live("v1", "Pod", {"phase": "Running"}), False, "Running"),
        (live("v1", "Pod", {"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]}), True, "ready"),
        (live("v1", "Pod", {"phase": "Running", "conditions": [UNREADY]}), False, "Running"),
        (
            live(
                "v1", "Pod",
                {"phase": "Pending", "containerStatuses": [{}, {"state": {"waiting": {"reason": "ImagePullBackOff"}}}]},
            ),
            False,
            "Pending: ImagePullBackOff",
        ),
        (live("v1", "Pod", {"phase": "Failed"}), False, "Failed"),
        (live("v1", "Pod"), False, "Unknown"),
        (live("v1", "PersistentVolumeClaim", {"phase": "Bound"}), True, "ready"),
        (live("v1", "PersistentVolumeClaim", {"phase": "Lost"}), False, "Lost"),
        (live("v1", "PersistentVolumeClaim"), False, "Pending"),
        (live("v1", "ConfigMap"), True, "ready"),
        (
            live("apps/v1", "Deployment", COUNTED | {"replicas": 3}, replicas=2), False,
            "1 old replicas are pending termination",
        ),
        (
            live("apps/v1", "Deployment", COUNTED | {"conditions": [STUCK]}, replicas=2), False,
            "the rollout exceeded its progress deadline",
        ),
        (
            live("apps/v1", "StatefulSet", COUNTED | ROLLING, replicas=2), False,
            "2/2 replicas updated, b is not yet the current revision",
        ),
        (live("v1", "Service", type="ExternalName"), True, "ready"),
        (live("v1", "Service", clusterIP="None"), True, "ready"),
        (live("v1", "Service"), False, "it has no cluster IP"),
        (live("v1", "Service", type="LoadBalancer", clusterIP="10.0.0.1"), False, NO_ADDRESS),
        (live("v1", "Service", type="LoadBalancer", clusterIP="10.0.0.1", externalIPs=["10.0.0.2"]), True, "ready"),
        (
            live("v1", "Service", {"loadBalancer": {"ingress": [{"ip": "10.0.0.2"}]}}, type="LoadBalancer",
                 clusterIP="10.0.0.1"),
            True, "ready",
        ),
        (live("batch/v1", "Job", suspend=True), False, "suspended"),
        (
            live("v1", "Pod", {"phase": "Running", "conditions": [UNREADY], "containerStatuses": [
                {"state": {"running": {}}, "restartCount": 1},
                {
                    "state": {"waiting": {"reason": "CrashLoopBackOff"}}, "restartCount": 7,
                    "lastState": {"terminated": {"exitCode": 1, "reason": "Error"}},
                },
            ]}),
            False, "Running: CrashLoopBackOff, 7 restarts, exit code 1",
        ),
        (live(CRD, "CustomResourceDefinition"), False, "not yet Established, NamesAccepted"),
        (live(CRD, "CustomResourceDefinition", {"conditions": [ok("Established")]}), False, "not yet NamesAccepted"),
        (
            live(CRD, "CustomResourceDefinition", {"conditions": [ok("Established"), ok("NamesAccepted")]}), True,
            "ready",
        ),
        (live("apiregistration.k8s.io/v1", "APIService", {"conditions": [ok("Available")]}), True, "ready"),
        (live("apiregistration.k8s.io/v1", "APIService"), False, "not yet Available"),
        (live("example.com/v1", "Database", {"conditions": [UNREADY | {"message": "no disk"}]}), False, "no disk"),
        (live("example.com/v1", "Database", {"conditions": [ok("Ready")]}), True, "ready"),
        (live("example.com/v1", "Deployment"), True, "ready"),
    ],
)  # fmt: skip
def test_readiness_of_each_kind_of_object(what: dict[str, Any], is_ready: bool, message: str) -> None:
    assert readiness(what) == (is_ready, message)


def test_an_object_that_is_being_deleted_is_not_ready() -> None:
    gone = live("v1", "ConfigMap")
    gone["metadata"]["deletionTimestamp"] = "2026-11-21T12:00:00Z"
    assert readiness(gone) == (False, "being deleted")


# On a real API server

PODS: dict[str, Any] = {
    "metadata": {"labels": {"app": "x"}},
    "spec": {"containers": [{"name": "c", "image": "nothing:1"}]},
}
SELECTOR = {"matchLabels": {"app": "x"}}
RUNS_ONCE: dict[str, Any] = {**PODS, "spec": {**PODS["spec"], "restartPolicy": "Never"}}

OBJECTS: list[tuple[str, str, dict[str, Any], dict[str, Any] | None]] = [
    ("apps/v1", "Deployment", {"replicas": 2, "selector": SELECTOR, "template": PODS},
     {"observedGeneration": 1, "replicas": 2, "readyReplicas": 2, "updatedReplicas": 2, "availableReplicas": 2}),
    ("apps/v1", "StatefulSet", {"serviceName": "x", "selector": SELECTOR, "template": PODS},
     {"observedGeneration": 1, "replicas": 1, "readyReplicas": 1, "updatedReplicas": 1}),
    ("apps/v1", "DaemonSet", {"selector": SELECTOR, "template": PODS},
     {"observedGeneration": 1, "desiredNumberScheduled": 1, "currentNumberScheduled": 1, "numberAvailable": 1,
      "updatedNumberScheduled": 1, "numberMisscheduled": 0}),
    ("apps/v1", "ReplicaSet", {"selector": SELECTOR, "template": PODS},
     {"observedGeneration": 1, "replicas": 1, "readyReplicas": 1}),
    ("batch/v1", "Job", {"template": RUNS_ONCE}, {"succeeded": 1}),
    ("v1", "Pod", PODS["spec"], {"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]}),
    ("v1", "PersistentVolumeClaim",
     {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}}, {"phase": "Bound"}),
    ("v1", "ServiceAccount", {}, None),
]  # fmt: skip


@pytest.fixture(scope="module")
def server(cluster: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with running_server(
        tmp_path_factory.mktemp("server"), svc={"kube": {"kubeconfig": str(cluster.kubeconfig)}}
    ) as one:
        yield one


def resources(server: Server, space: str, name: str = "rel") -> list[dict[str, Any]]:
    answer = server.get(f"{API}/{name}/resources?namespace={space}")
    assert answer.status == 200, answer
    return list(answer.json)


@pytest.mark.parametrize(("api_version", "kind", "spec", "status"), OBJECTS, ids=[kind for _, kind, *_ in OBJECTS])
def test_an_object_becomes_ready_with_its_status_in_the_cluster(
    server: Server, cluster: Cluster, api_version: str, kind: str, spec: dict[str, Any], status: dict[str, Any] | None
) -> None:
    space = cluster.namespace()
    store_release(
        cluster,
        made_release("rel", space, manifest=f"apiVersion: {api_version}\nkind: {kind}\nmetadata: {{name: x}}\n"),
    )
    (missing,) = resources(server, space)
    assert list(missing) == ["kind", "name", "namespace", "ready", "message"]
    assert (missing["kind"], missing["name"], missing["namespace"], missing["ready"]) == (kind, "x", space, False)
    assert "not found" in missing["message"]
    cluster.create(space, {"apiVersion": api_version, "kind": kind, "metadata": {"name": "x"}, "spec": spec})
    if status is None:
        assert resources(server, space)[0]["ready"]
        return
    (waiting,) = resources(server, space)
    assert not waiting["ready"]
    assert waiting["message"]
    cluster.patch_status(space, api_version, kind, "x", status)
    (done,) = resources(server, space)
    assert (done["ready"], done["message"]) == (True, "complete" if kind == "Job" else "ready")


def test_resources_are_listed_in_order_for_all_namespaces_and_scopes(server: Server, cluster: Cluster) -> None:
    space, other = cluster.namespace(), cluster.namespace()
    manifest = f"""---
apiVersion: v1
kind: Namespace
metadata: {{name: {other}}}
---
apiVersion: v1
kind: ConfigMap
metadata: {{name: there, namespace: {other}}}
---
apiVersion: example.com/v1
kind: Gadget
metadata: {{name: g}}
---
apiVersion: v1
kind: Nothing
metadata: {{name: n}}
---
apiVersion: v1
kind: ConfigMap
metadata: {{name: here}}
"""
    cluster.create(other, {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "there"}})
    store_release(cluster, made_release("rel", space, manifest=manifest))
    result = [(one["kind"], one["namespace"], one["ready"]) for one in resources(server, space)]
    assert result == [
        ("Namespace", None, True),
        ("ConfigMap", other, True),
        ("Gadget", space, False),
        ("Nothing", space, False),
        ("ConfigMap", space, False),
    ]
    messages = [one["message"] for one in resources(server, space)]
    assert "Gadget" in messages[2]
    assert "example.com/v1" in messages[2]


def test_a_kind_that_is_defined_later_is_found(server: Server, cluster: Cluster) -> None:
    space = cluster.namespace()
    store_release(
        cluster, made_release("rel", space, manifest="apiVersion: later.example/v1\nkind: Late\nmetadata: {name: x}\n")
    )
    assert not resources(server, space)[0]["ready"]
    schema = {"openAPIV3Schema": {"type": "object"}}
    cluster.ask(
        "POST",
        "/apis/apiextensions.k8s.io/v1/customresourcedefinitions",
        {
            "metadata": {"name": "lates.later.example"},
            "spec": {
                "group": "later.example",
                "scope": "Namespaced",
                "names": {"kind": "Late", "plural": "lates", "singular": "late"},
                "versions": [{"name": "v1", "served": True, "storage": True, "schema": schema}],
            },
        },
    )
    wait_for(lambda: "not found" in resources(server, space)[0]["message"], about="the kind to be discovered again")


def test_a_release_without_a_manifest_has_no_resources(server: Server, cluster: Cluster) -> None:
    space = cluster.namespace()
    store_release(cluster, made_release("rel", space))
    assert resources(server, space) == []


def test_a_faulty_document_is_not_ready_and_the_others_are_reported(server: Server, cluster: Cluster) -> None:
    space = cluster.namespace()
    cluster.ask("POST", f"/api/v1/namespaces/{space}/configmaps", {"metadata": {"name": "good"}})
    good = "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: good}\n"
    twice = "apiVersion: v1\nkind: ConfigMap\nmetadata:\n  name: twice\nkind: ConfigMap\n"
    store_release(cluster, made_release("rel", space, manifest=f"{good}---\na: [\n---\n{twice}---\n{good}"))
    found = [(one["kind"], one["name"], one["ready"], one["message"]) for one in resources(server, space)]
    assert found == [
        ("ConfigMap", "good", True, "ready"),
        ("", "", False, "the document is not YAML (line 2)"),
        ("ConfigMap", "twice", False, 'the key "kind" is given twice (line 5)'),
        ("ConfigMap", "good", True, "ready"),
    ]


def test_many_objects_are_all_reported(server: Server, cluster: Cluster) -> None:
    space = cluster.namespace()
    objects = [f"apiVersion: v1\nkind: ConfigMap\nmetadata: {{name: m{index}}}\n" for index in range(150)]
    store_release(cluster, made_release("rel", space, manifest="---\n".join(objects)))
    assert [one["name"] for one in resources(server, space)] == [f"m{index}" for index in range(150)]


WIDGETS = {
    "metadata": {"name": "widgets.ready.example"},
    "spec": {
        "group": "ready.example",
        "scope": "Namespaced",
        "names": {"kind": "Widget", "plural": "widgets", "singular": "widget"},
        "versions": [
            {"name": "v1", "served": True, "storage": True, "schema": {"openAPIV3Schema": {"type": "object"}}}
        ],
    },
}
SERVED_ELSEWHERE = {
    "metadata": {"name": "v1.elsewhere.example"},
    "spec": {
        "group": "elsewhere.example", "version": "v1", "groupPriorityMinimum": 1, "versionPriority": 1,
        "insecureSkipTLSVerify": True, "service": {"namespace": "default", "name": "nothing", "port": 443},
    },
}  # fmt: skip


def manifest_of(*objects: tuple[str, str, str]) -> str:
    """A manifest of objects, given by apiVersion, kind and name."""
    return "".join(
        f"---\napiVersion: {api_version}\nkind: {kind}\nmetadata: {{name: {name}}}\n"
        for api_version, kind, name in objects
    )


def test_what_a_service_a_pod_and_other_objects_lack_in_the_cluster(server: Server, cluster: Cluster) -> None:
    space, node = cluster.namespace(), "ready-node"
    crd = ("apiextensions.k8s.io/v1", "CustomResourceDefinition", "widgets.ready.example")
    outside = ("apiregistration.k8s.io/v1", "APIService", "v1.elsewhere.example")
    kinds = [("v1", "Service", "x"), ("v1", "Pod", "x"), ("v1", "Node", node), crd, outside]
    store_release(cluster, made_release("rel", space, manifest=manifest_of(*kinds)))

    def found() -> dict[str, tuple[bool, str]]:
        return {row["kind"]: (row["ready"], row["message"]) for row in resources(server, space)}

    assert not any(is_ready for is_ready, _ in found().values())
    cluster.ask("POST", "/apis/apiextensions.k8s.io/v1/customresourcedefinitions", WIDGETS)
    cluster.ask("POST", "/apis/apiregistration.k8s.io/v1/apiservices", SERVED_ELSEWHERE)
    wait_for(lambda: found()["CustomResourceDefinition"] == (True, "ready"), about="the API server to serve widgets")
    assert found()["APIService"] == (False, "not yet Available")

    ports = {"type": "LoadBalancer", "ports": [{"port": 80, "protocol": "TCP"}]}
    cluster.create(space, {"apiVersion": "v1", "kind": "Service", "metadata": {"name": "x"}, "spec": ports})
    cluster.create(space, {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "x"}, "spec": PODS["spec"]})
    cluster.ask("POST", "/api/v1/nodes", {"metadata": {"name": node}})
    assert (found()["Service"], found()["Node"]) == ((False, NO_ADDRESS), (True, "ready"))

    ended = {"exitCode": 1, "reason": "Error"}
    crashed = {
        "name": "c", "image": "nothing:1", "imageID": "", "ready": False, "restartCount": 7,
        "state": {"waiting": {"reason": "CrashLoopBackOff"}}, "lastState": {"terminated": ended},
    }  # fmt: skip
    cluster.patch_status(space, "v1", "Pod", "x", {"phase": "Running", "containerStatuses": [crashed]})
    cluster.patch_status(space, "v1", "Service", "x", {"loadBalancer": {"ingress": [{"ip": "10.0.0.9"}]}})
    conditions = {"status": {"conditions": [UNREADY | {"message": "no disk"}]}}
    cluster.ask("PATCH", f"/api/v1/nodes/{node}/status", conditions, "application/merge-patch+json")
    assert {kind: row for kind, row in found().items() if kind in ("Service", "Pod", "Node")} == {
        "Service": (True, "ready"),
        "Pod": (False, "Running: CrashLoopBackOff, 7 restarts, exit code 1"),
        "Node": (False, "no disk"),
    }
    cluster.ask("DELETE", f"/api/v1/nodes/{node}")
