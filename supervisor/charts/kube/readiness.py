"""What is really there of the objects that a release's manifest names: each is asked for, a few at a time."""

from __future__ import annotations

import asyncio

from models.charts.resources import Live, Named, readiness
from models.charts.responses import Resource
from models.errors import Upstream
from supervisor.charts.kube.cluster import DENIED, Cluster, Kind

_AT_ONCE = 32


async def resources(cluster: Cluster, objects: list[Named], namespace: str) -> list[Resource]:
    """One for each object, in order. Raises `Upstream`; what one object alone may not be asked is its own message."""
    found: list[Resource] = []
    for start in range(0, len(objects), _AT_ONCE):
        some = objects[start : start + _AT_ONCE]
        found += await asyncio.gather(*(_resource(cluster, one, namespace) for one in some))
    return found


async def _resource(cluster: Cluster, one: Named, namespace: str) -> Resource:
    try:
        kind = await cluster.kind(one.api_version, one.kind)
        if kind is None:
            return _absent(one, one.namespace or namespace, f"the cluster has no kind {one.kind} in {one.api_version}")
        within = (one.namespace or namespace) if kind.is_namespaced else None
        return _told(one, within, await _live(cluster, kind, one, within))
    except Upstream as problem:
        if problem.code != DENIED:
            raise
        return _absent(one, one.namespace or namespace, problem.message)


async def _live(cluster: Cluster, kind: Kind, one: Named, namespace: str | None) -> Live | None:
    if not all(_can_name(text) for text in (one.name, namespace or one.name)):
        return None
    found = await cluster.get(kind.of(namespace or "", one.name))
    return found if isinstance(found, dict) else None


def _can_name(text: str) -> bool:
    """Whether something can be called so: an API server refuses to be asked for anything else."""
    return text not in ("", ".", "..") and "/" not in text and "%" not in text


def _told(one: Named, namespace: str | None, live: Live | None) -> Resource:
    if live is None:
        where = f" in namespace {namespace}" if namespace else ""
        return _absent(one, namespace, f"not found: there is no {one.kind} {one.name}{where}")
    return told(one, namespace, live)


def told(one: Named, namespace: str | None, live: Live) -> Resource:
    """What is said of an object that is there."""
    is_ready, message = readiness({"apiVersion": one.api_version, "kind": one.kind, **live})
    return Resource(one.kind, one.name, namespace, is_ready, message)


def _absent(one: Named, namespace: str | None, why: str) -> Resource:
    return Resource(one.kind, one.name, namespace, False, why)
