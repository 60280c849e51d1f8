"""Readiness of patched rollouts on a real API server, compared with `kubectl rollout status`."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from cluster import Cluster
from conftest import ROOT, Server
from http_checks import running_server
from release_secrets import made_release, store_release
from requirements import missing_part

PODS = {"metadata": {"labels": {"app": "x"}}, "spec": {"containers": [{"name": "c", "image": "nothing:1"}]}}
SPEC: dict[str, Any] = {"selector": {"matchLabels": {"app": "x"}}, "template": PODS}


def deployment(replicas: int, /, **status: Any) -> tuple[str, dict[str, Any], dict[str, Any]]:
    return "Deployment", {"replicas": replicas}, {"observedGeneration": 1, **status}


def stateful_set(
    replicas: int, partition: int | None = None, /, **status: Any
) -> tuple[str, dict[str, Any], dict[str, Any]]:
    strategy = {} if partition is None else {"updateStrategy": {"rollingUpdate": {"partition": partition}}}
    status = {"observedGeneration": 1, "replicas": replicas, "currentRevision": "a", "updateRevision": "b", **status}
    return "StatefulSet", {"serviceName": "x", "replicas": replicas, **strategy}, status


def daemon_set(desired: int, **status: int) -> tuple[str, dict[str, Any], dict[str, Any]]:
    counts = {"currentNumberScheduled": desired, "numberMisscheduled": 0, "desiredNumberScheduled": desired}
    return "DaemonSet", {}, {"observedGeneration": 1, **counts, **status}


def counts(replicas: int, updated: int, ready: int, available: int) -> dict[str, int]:
    return {
        "replicas": replicas, "updatedReplicas": updated, "readyReplicas": ready, "availableReplicas": available,
    }  # fmt: skip


ROLLOUT_STATUS = ("rollout", "status", "--watch=false")
LATE = [{"type": "Progressing", "status": "False", "reason": "ProgressDeadlineExceeded"}]
SLOW = [{"type": "Progressing", "status": "True", "reason": "ReplicaSetUpdated"}]

STATES: dict[str, tuple[tuple[str, dict[str, Any], dict[str, Any]], bool]] = {
    "d-done": (deployment(2, **counts(2, 2, 2, 2)), True),
    "d-not-seen": (deployment(2, **counts(2, 2, 2, 2) | {"observedGeneration": 0}), False),
    "d-without-status": (("Deployment", {}, {}), False),
    "d-partly-updated": (deployment(2, **counts(2, 1, 2, 2)), False),
    "d-old-pods": (deployment(2, **counts(3, 2, 3, 3)), False),
    "d-old-pods-of-none": (deployment(0, **counts(1, 0, 0, 0)), False),
    "d-not-available": (deployment(2, **counts(2, 2, 2, 1)), False),
    "d-scaled-to-none": (deployment(0), True),
    "d-too-late": (deployment(2, **counts(2, 2, 2, 2), conditions=LATE), False),
    "d-progressing": (deployment(2, **counts(2, 2, 2, 2), conditions=SLOW), True),
    "d-more-updated-than-wanted": (deployment(1, **counts(2, 2, 2, 2)), True),
    "s-done": (stateful_set(2, readyReplicas=2, updatedReplicas=2, currentRevision="b"), True),
    "s-not-seen": (stateful_set(2, readyReplicas=2, updatedReplicas=2, observedGeneration=0), False),
    "s-not-ready": (stateful_set(2, readyReplicas=1, updatedReplicas=2), False),
    "s-partly-updated": (stateful_set(2, readyReplicas=2, updatedReplicas=1), False),
    "s-other-revision": (stateful_set(2, readyReplicas=2, updatedReplicas=2), True),
    "s-not-counted-as-updated": (stateful_set(2, readyReplicas=2, currentRevision="b"), False),
    "s-partition": (stateful_set(3, 2, readyReplicas=3, updatedReplicas=1), True),
    "s-partition-not-updated": (stateful_set(3, 1, readyReplicas=3, updatedReplicas=1), False),
    "s-partition-above": (stateful_set(2, 5, readyReplicas=2), True),
    "s-scaled-to-none": (stateful_set(0), True),
    "n-done": (daemon_set(2, updatedNumberScheduled=2, numberAvailable=2), True),
    "n-not-seen": (daemon_set(2, updatedNumberScheduled=2, numberAvailable=2, observedGeneration=0), False),
    "n-old-pods": (daemon_set(2, updatedNumberScheduled=1, numberAvailable=2), False),
    "n-not-available": (daemon_set(2, updatedNumberScheduled=2, numberAvailable=1), False),
    "n-no-nodes": (daemon_set(0), True),
}
"""Name -> kind, spec and status; whether it is rolled out."""


@pytest.fixture(scope="module")
def kubectl() -> str:
    found = shutil.which("kubectl") or str(ROOT / ".tools" / "kubectl")
    if shutil.which(found) is None:
        missing_part("kubectl", "not in Debian: .ci/fetch_helm.py fetches it")
    return found


@pytest.fixture(scope="module")
def server(cluster: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    kube = {"kubeconfig": str(cluster.kubeconfig)}
    with running_server(tmp_path_factory.mktemp("server"), svc={"kube": kube}) as running:
        yield running


@pytest.fixture(scope="module")
def namespace(cluster: Cluster) -> str:
    """A namespace with a workload in each state, and a release whose manifest lists them."""
    space = cluster.namespace()
    for name, ((kind, spec, status), _) in STATES.items():
        thing = {"apiVersion": "apps/v1", "kind": kind, "metadata": {"name": name}, "spec": SPEC | spec}
        cluster.create(space, thing)
        cluster.patch_status(space, "apps/v1", kind, name, status)
    documents = (
        f"apiVersion: apps/v1\nkind: {kind}\nmetadata: {{name: {name}}}\n" for name, ((kind, *_), _) in STATES.items()
    )
    store_release(cluster, made_release("rel", space, manifest="---\n".join(documents)))
    return space


@pytest.fixture(scope="module")
def verdicts(cluster: Cluster, kubectl: str, namespace: str) -> dict[str, bool]:
    """Whether each workload is rolled out according to kubectl."""

    def verdict(name: str) -> bool:
        thing = f"{STATES[name][0][0].lower()}/{name}"
        process = subprocess.run(
            [kubectl, f"--kubeconfig={cluster.kubeconfig}", "-n", namespace, *ROLLOUT_STATUS, thing],
            capture_output=True, text=True,
        )  # fmt: skip
        output = process.stdout + process.stderr
        assert "aiting" in output or "exceeded" in output or process.returncode == 0, output
        return "success" in output or "roll out complete" in output or "rolling update complete" in output

    with ThreadPoolExecutor(2) as threads:
        return dict(zip(STATES, threads.map(verdict, STATES), strict=True))


@pytest.fixture(scope="module")
def answers(server: Server, namespace: str) -> dict[str, bool]:
    """Whether each workload is ready according to the server."""
    answer = server.get(f"/api/v1/releases/rel/resources?namespace={namespace}")
    assert answer.status == 200, answer
    return {one["name"]: one["ready"] for one in answer.json}


@pytest.mark.parametrize("name", STATES)
def test_readiness_of_a_rollout_equals_kubectl_rollout_status(
    name: str, answers: dict[str, bool], verdicts: dict[str, bool]
) -> None:
    assert answers[name] == verdicts[name] == STATES[name][1]
