"""The objects in a manifest, and whether a live object is ready. Nothing here queries a cluster."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import yaml
from attrs import frozen

from models.charts import yaml_values
from models.json_format import number_of, part_of

Live = Mapping[str, Any]
"""An object as the cluster returns it."""

_MAX_LIST_DEPTH = 5


@frozen
class ManifestObject:
    """An object that a manifest names."""

    api_version: str
    kind: str
    name: str
    namespace: str | None
    fault: str = ""
    """Why its document cannot be read; then kind and name are those of its text, or empty."""


def named(manifest: str) -> list[ManifestObject]:
    """The objects of a manifest in order; those in lists one by one. Raises `Invalid` for YAML beyond its bounds.

    A document that is not YAML, or has a key twice, is one object with a fault.
    """
    return [found for text in yaml_values.split_documents(manifest) for found in _of_document(text)]


def _of_document(text: str) -> Iterator[ManifestObject]:
    """Raises `Invalid` if the YAML is beyond its bounds."""
    loader: Any = getattr(yaml, "CBaseLoader", yaml.BaseLoader)  # every scalar stays text
    try:
        yaml_values.check(text, loader, "the manifest")
        nodes = list(yaml.compose_all(text, loader))
        fault = next(filter(None, map(_repeated_key, nodes)), "")
        documents = [loader("").construct_document(node) for node in nodes]
    except (yaml.YAMLError, UnicodeError, TypeError, RecursionError) as error:
        mark = getattr(error, "problem_mark", None)
        documents, fault = [], f"the document is not YAML{f' (line {mark.line + 1})' if mark else ''}"
    if not fault:
        for document in documents:
            yield from _named(document, 0)
        return
    if source := _SOURCE.search(text):
        fault = f"{source[1]}: {fault}"
    api_version, kind, name, namespace = (_scalar(pattern, text) for pattern in _IDENTITY)
    yield ManifestObject(api_version, kind, name, namespace or None, fault)


_SOURCE = re.compile(r"^# Source: (\S{1,500})", re.MULTILINE)
_IDENTITY = tuple(
    re.compile(rf"^{name}:[ \t]+[\"']?([\w./:-]{{1,253}})", re.MULTILINE)
    for name in ("apiVersion", "kind", "  name", "  namespace")
)


def _scalar(pattern: re.Pattern[str], text: str) -> str:
    match = pattern.search(text)
    return match[1] if match else ""


def _repeated_key(root: yaml.Node | None) -> str:
    """Names the first key that a mapping has twice; an empty text if there is none."""
    waiting = [root]
    while waiting:
        node = waiting.pop()
        if isinstance(node, yaml.SequenceNode):
            waiting += reversed(node.value)
        elif isinstance(node, yaml.MappingNode):
            keys: set[str] = set()
            for key, value in node.value:
                if isinstance(key, yaml.ScalarNode):
                    if key.value in keys:
                        return f"the key {json.dumps(key.value[:200])} is given twice (line {key.start_mark.line + 1})"
                    keys.add(key.value)
                waiting.append(value)
    return ""


def _named(document: Any, depth: int) -> Iterator[ManifestObject]:
    if not isinstance(document, dict) or depth > _MAX_LIST_DEPTH:
        return
    kind, api_version = document.get("kind"), document.get("apiVersion")
    if not isinstance(kind, str) or not isinstance(api_version, str):
        return
    if kind.endswith("List") and isinstance(document.get("items"), list):
        for item in document["items"]:
            yield from _named(item, depth + 1)
        return
    metadata = part_of(document, "metadata")
    yield ManifestObject(
        api_version, kind, str(metadata.get("name") or ""), str(metadata.get("namespace") or "") or None
    )


def readiness(live: Live) -> tuple[bool, str]:
    """Whether a live object is ready, with a message."""
    if part_of(live, "metadata").get("deletionTimestamp"):
        return False, "being deleted"
    group = str(live.get("apiVersion") or "").rpartition("/")[0]
    rule = _RULES.get((group, str(live.get("kind"))))
    return (rule or _other)(live)


_NOT_OBSERVED = (False, "waiting for rollout")


def _deployment(live: Live) -> tuple[bool, str]:
    spec, status = part_of(live, "spec"), part_of(live, "status")
    if not _is_observed(live):
        return _NOT_OBSERVED
    progressing = _condition_of(status, "Progressing")
    if progressing.get("reason") == "ProgressDeadlineExceeded":
        return False, "the rollout exceeded its progress deadline"
    wanted, updated = number_of(spec, "replicas", 1), number_of(status, "updatedReplicas")
    if updated < wanted:
        return False, f"{updated}/{wanted} replicas updated"
    if (old := number_of(status, "replicas") - updated) > 0:
        return False, f"{old} old replicas are pending termination"
    return _counted(number_of(status, "availableReplicas"), updated, "replicas available")


def _replica_set(live: Live) -> tuple[bool, str]:
    if not _is_observed(live):
        return _NOT_OBSERVED
    wanted = number_of(part_of(live, "spec"), "replicas", 1)
    return _counted(number_of(part_of(live, "status"), "readyReplicas"), wanted, "replicas ready")


def _stateful_set(live: Live) -> tuple[bool, str]:
    spec, status = part_of(live, "spec"), part_of(live, "status")
    if not _is_observed(live):
        return _NOT_OBSERVED
    wanted, strategy = number_of(spec, "replicas", 1), part_of(spec, "updateStrategy")
    is_ready, message = _counted(number_of(status, "readyReplicas"), wanted, "replicas ready")
    if not is_ready or strategy.get("type", "RollingUpdate") != "RollingUpdate":
        return is_ready, message
    partition, updated = part_of(strategy, "rollingUpdate").get("partition"), number_of(status, "updatedReplicas")
    if isinstance(partition, int):  # the API server fills in 0
        return _counted(updated, wanted - partition, "replicas updated")
    if (revision := status.get("updateRevision")) != status.get("currentRevision"):
        return False, f"{updated}/{wanted} replicas updated, {revision} is not yet the current revision"
    return True, "ready"


def _daemon_set(live: Live) -> tuple[bool, str]:
    spec, status = part_of(live, "spec"), part_of(live, "status")
    if not _is_observed(live):
        return _NOT_OBSERVED
    wanted, updated = number_of(status, "desiredNumberScheduled"), number_of(status, "updatedNumberScheduled")
    if part_of(spec, "updateStrategy").get("type", "RollingUpdate") == "RollingUpdate" and updated < wanted:
        return False, f"{updated}/{wanted} updated"
    return _counted(number_of(status, "numberAvailable"), wanted, "available")


def _service(live: Live) -> tuple[bool, str]:
    spec = part_of(live, "spec")
    if spec.get("type") == "ExternalName":
        return True, "ready"
    if not spec.get("clusterIP"):
        return False, "it has no cluster IP"
    has_address = spec.get("externalIPs") or part_of(part_of(live, "status"), "loadBalancer").get("ingress")
    if spec.get("type") == "LoadBalancer" and not has_address:
        return False, "the load balancer has no address yet"
    return True, "ready"


def _job(live: Live) -> tuple[bool, str]:
    spec, status = part_of(live, "spec"), part_of(live, "status")
    done, failed = number_of(status, "succeeded"), number_of(status, "failed")
    wanted = number_of(spec, "completions", 1)
    if _condition(status, "Complete") or done >= wanted:
        return True, "complete"
    if _condition(status, "Failed"):
        return False, f"failed: {_condition(status, 'Failed').get('reason') or 'no reason given'}"
    if spec.get("suspend") is True:
        return False, "suspended"
    counted = f"succeeded={done}/{wanted}"
    return False, f"failed={failed}, {counted}" if failed else counted


def _pod(live: Live) -> tuple[bool, str]:
    status = part_of(live, "status")
    phase = str(status.get("phase") or "Unknown")
    if phase == "Succeeded" or (phase == "Running" and _condition(status, "Ready")):
        return True, "ready"
    listed = [*(status.get("initContainerStatuses") or []), *(status.get("containerStatuses") or [])]
    states = [_container(container) for container in listed if isinstance(container, dict)]
    worst = max(filter(None, states), default=None)
    return False, f"{phase}: {worst[1]}" if worst else phase


def _container(container: Mapping[str, Any]) -> tuple[int, str] | None:
    """How bad a container's state is, with its description; `None` if it runs or has succeeded."""
    waiting = part_of(part_of(container, "state"), "waiting")
    ended = part_of(part_of(container, "state"), "terminated") or part_of(part_of(container, "lastState"), "terminated")
    reason = waiting.get("reason") or (ended.get("reason") if number_of(ended, "exitCode") else None)
    if not reason:
        return None
    texts = [str(reason)]
    if restarts := number_of(container, "restartCount"):
        texts.append(f"{restarts} {'restart' if restarts == 1 else 'restarts'}")
    if ended:
        texts.append(f"exit code {number_of(ended, 'exitCode')}")
    return restarts + (1000 if ended else 0), ", ".join(texts)


def restarts(pod: Live) -> int:
    """How often the containers of a pod were started again."""
    listed = part_of(pod, "status").get("containerStatuses") or []
    return sum(number_of(container, "restartCount") for container in listed if isinstance(container, dict))


def _claim(live: Live) -> tuple[bool, str]:
    phase = str(part_of(live, "status").get("phase") or "Pending")
    return (True, "ready") if phase == "Bound" else (False, phase)


def _conditions(live: Live, *kinds: str) -> tuple[bool, str]:
    missing = [kind for kind in kinds if not _condition(part_of(live, "status"), kind)]
    return (False, f"not yet {', '.join(missing)}") if missing else (True, "ready")


def _other(live: Live) -> tuple[bool, str]:
    """Ready once it exists, unless it has a condition `Ready` that is False."""
    ready = _condition_of(part_of(live, "status"), "Ready")
    if ready.get("status") == "False":
        return False, str(ready.get("message") or ready.get("reason") or "not ready")
    return True, "ready"


_RULES: dict[tuple[str, str], Callable[[Live], tuple[bool, str]]] = {
    ("apps", "Deployment"): _deployment,
    ("apps", "StatefulSet"): _stateful_set,
    ("apps", "DaemonSet"): _daemon_set,
    ("apps", "ReplicaSet"): _replica_set,
    ("batch", "Job"): _job,
    ("", "Pod"): _pod,
    ("", "PersistentVolumeClaim"): _claim,
    ("", "Service"): _service,
    ("apiextensions.k8s.io", "CustomResourceDefinition"): lambda live: _conditions(
        live, "Established", "NamesAccepted"
    ),
    ("apiregistration.k8s.io", "APIService"): lambda live: _conditions(live, "Available"),
}
"""By group and kind."""


def _is_observed(live: Live) -> bool:
    """Whether the controller has seen the current generation."""
    return number_of(part_of(live, "status"), "observedGeneration") >= number_of(
        part_of(live, "metadata"), "generation"
    )


def _counted(actual: int, wanted: int, what: str) -> tuple[bool, str]:
    return (True, "ready") if actual >= wanted else (False, f"{actual}/{wanted} {what}")


def _condition(status: Mapping[str, Any], kind: str) -> Mapping[str, Any]:
    """The condition of a kind if it is true."""
    condition = _condition_of(status, kind)
    return condition if condition.get("status") == "True" else {}


def _condition_of(status: Mapping[str, Any], kind: str) -> Mapping[str, Any]:
    conditions = status.get("conditions")
    for condition in conditions if isinstance(conditions, list) else []:
        if isinstance(condition, dict) and condition.get("type") == kind:
            return condition
    return {}
