"""The objects that a manifest names, and whether what is there of each is ready. Nothing here asks a cluster."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import yaml
from attrs import frozen

from models.charts import yaml_values

Live = Mapping[str, Any]
"""An object as the cluster has it."""

_LARGEST_DEPTH = 5
_DEEPEST = 500


@frozen
class Named:
    """An object that a manifest names."""

    api_version: str
    kind: str
    name: str
    namespace: str | None


def named(manifest: str) -> list[Named]:
    """The objects of a manifest, in its order; those within a list are told one by one. Raises `ValueError`."""
    loader = getattr(yaml, "CBaseLoader", yaml.BaseLoader)  # names are all we want: every scalar stays text
    try:
        for _ in yaml_values.events(manifest, loader, _DEEPEST):
            pass
        documents = list(yaml.load_all(manifest, Loader=loader))
    except (yaml.YAMLError, yaml_values.TooDeep, UnicodeError, TypeError, RecursionError):
        raise ValueError("the manifest is not YAML") from None
    return [one for document in documents for one in _named(document, 0)]


def _named(document: Any, depth: int) -> Iterator[Named]:
    if not isinstance(document, dict) or depth > _LARGEST_DEPTH:
        return
    kind, api_version = document.get("kind"), document.get("apiVersion")
    if not isinstance(kind, str) or not isinstance(api_version, str):
        return
    if kind.endswith("List") and isinstance(document.get("items"), list):
        for item in document["items"]:
            yield from _named(item, depth + 1)
        return
    about = document.get("metadata")
    about = about if isinstance(about, dict) else {}
    yield Named(api_version, kind, str(about.get("name") or ""), str(about.get("namespace") or "") or None)


def readiness(live: Live) -> tuple[bool, str]:
    """Whether an object that is there is ready, and what is to be said of it."""
    if _part(live, "metadata").get("deletionTimestamp"):
        return False, "it is being deleted"
    group = str(live.get("apiVersion") or "").rpartition("/")[0]
    rule = _RULES.get((group, str(live.get("kind"))))
    return rule(live) if rule else (True, "ready")


def _deployment(live: Live) -> tuple[bool, str]:
    spec, status = _part(live, "spec"), _part(live, "status")
    if not _is_current(live):
        return False, "waiting for rollout"
    wanted = _number(spec, "replicas", 1)
    there = min(_number(status, name) for name in ("readyReplicas", "updatedReplicas", "availableReplicas"))
    return _counted(there, wanted, "replicas ready")


def _replica_set(live: Live) -> tuple[bool, str]:
    if not _is_current(live):
        return False, "waiting for rollout"
    return _counted(
        _number(_part(live, "status"), "readyReplicas"), _number(_part(live, "spec"), "replicas", 1), "replicas ready"
    )


def _stateful_set(live: Live) -> tuple[bool, str]:
    spec, status = _part(live, "spec"), _part(live, "status")
    if not _is_current(live):
        return False, "waiting for rollout"
    wanted = _number(spec, "replicas", 1)
    strategy = _part(spec, "updateStrategy")
    is_rolling = status.get("updateRevision") != status.get("currentRevision")
    if is_rolling and strategy.get("type", "RollingUpdate") == "RollingUpdate":
        due = wanted - _number(_part(strategy, "rollingUpdate"), "partition")
        if _number(status, "updatedReplicas") < due:
            return False, f"{_number(status, 'updatedReplicas')}/{due} replicas updated"
    return _counted(_number(status, "readyReplicas"), wanted, "replicas ready")


def _daemon_set(live: Live) -> tuple[bool, str]:
    spec, status = _part(live, "spec"), _part(live, "status")
    if not _is_current(live):
        return False, "waiting for rollout"
    wanted, updated = _number(status, "desiredNumberScheduled"), _number(status, "updatedNumberScheduled")
    if _part(spec, "updateStrategy").get("type", "RollingUpdate") == "RollingUpdate" and updated < wanted:
        return False, f"{updated}/{wanted} updated"
    return _counted(_number(status, "numberReady"), wanted, "ready")


def _job(live: Live) -> tuple[bool, str]:
    spec, status = _part(live, "spec"), _part(live, "status")
    done, failed = _number(status, "succeeded"), _number(status, "failed")
    wanted = _number(spec, "completions", 1)
    if _condition(status, "Complete") or done >= wanted:
        return True, "complete"
    if _condition(status, "Failed"):
        return False, f"failed: {_condition(status, 'Failed').get('reason') or 'no reason is told'}"
    counted = f"succeeded={done}/{wanted}"
    return False, f"failed={failed}, {counted}" if failed else counted


def _pod(live: Live) -> tuple[bool, str]:
    status = _part(live, "status")
    phase = str(status.get("phase") or "Unknown")
    if phase == "Succeeded" or (phase == "Running" and _condition(status, "Ready")):
        return True, "ready"
    containers = [one for one in status.get("containerStatuses") or [] if isinstance(one, dict)]
    reasons = [_part(_part(one, "state"), "waiting").get("reason") for one in containers]
    return False, f"{phase}: {why}" if (why := next(filter(None, reasons), None)) else phase


def _claim(live: Live) -> tuple[bool, str]:
    phase = str(_part(live, "status").get("phase") or "Pending")
    return (True, "ready") if phase == "Bound" else (False, phase)


_RULES: dict[tuple[str, str], Callable[[Live], tuple[bool, str]]] = {
    ("apps", "Deployment"): _deployment,
    ("apps", "StatefulSet"): _stateful_set,
    ("apps", "DaemonSet"): _daemon_set,
    ("apps", "ReplicaSet"): _replica_set,
    ("batch", "Job"): _job,
    ("", "Pod"): _pod,
    ("", "PersistentVolumeClaim"): _claim,
}
"""By group and kind. What is not here is ready as soon as it is there."""


def _is_current(live: Live) -> bool:
    """Whether the controller has seen the object as it is now."""
    return _number(_part(live, "status"), "observedGeneration") >= _number(_part(live, "metadata"), "generation")


def _counted(there: int, wanted: int, what: str) -> tuple[bool, str]:
    return (True, "ready") if there >= wanted else (False, f"{there}/{wanted} {what}")


def _condition(status: Mapping[str, Any], kind: str) -> Mapping[str, Any]:
    """The condition of a kind, where it is true."""
    for one in status.get("conditions") or []:
        if isinstance(one, dict) and one.get("type") == kind and one.get("status") == "True":
            return one
    return {}


def _part(of: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    part = of.get(name)
    return part if isinstance(part, dict) else {}


def _number(of: Mapping[str, Any], name: str, default: int = 0) -> int:
    value = of.get(name)
    return value if isinstance(value, int) else default
