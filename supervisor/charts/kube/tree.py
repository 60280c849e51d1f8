"""The live objects of a release, the objects that they own, and their events, over one cluster's API."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any

from attrs import define, frozen

from models.charts import events
from models.charts.resources import Live, ManifestObject, readiness
from models.charts.responses import Event, TreeNode
from models.errors import Upstream
from models.json_format import list_of, part_of, text_of
from supervisor.charts.kube.cluster import (
    DENIED,
    MAX_CONCURRENT_READS,
    METADATA_LIST,
    OBJECT,
    Cluster,
    ObjectKind,
    find_live,
)

MAX_LEVELS = 3
MAX_OBJECTS = 500
_MAX_EVENTS = 5000
"""Events of a namespace that are read."""
_SPACE_OF_CLUSTER_SCOPED = "default"
"""Where Kubernetes keeps the events of cluster-scoped objects."""
_OWNED = (
    ("apps/v1", "ReplicaSet"), ("batch/v1", "Job"), ("v1", "Pod"), ("v1", "PersistentVolumeClaim"),
    ("discovery.k8s.io/v1", "EndpointSlice"), ("discovery.k8s.io/v1beta1", "EndpointSlice"),
)  # fmt: skip
"""What the controllers of Kubernetes create."""
_OWNED_BY_CUSTOM = (
    ("apps/v1", "Deployment"), ("apps/v1", "StatefulSet"), ("apps/v1", "DaemonSet"), ("batch/v1", "CronJob"),
    ("v1", "Service"), ("v1", "ConfigMap"), ("v1", "Secret"),
)  # fmt: skip
"""What the controllers of custom resources create in addition."""


@frozen
class Node:
    """An object of a release: of its manifest, or owned by one. `live` is `None` if it does not exist."""

    api_version: str
    kind: str
    name: str
    namespace: str | None
    ready: bool
    message: str
    owner: str | None = None
    live: Live | None = None

    @property
    def uid(self) -> str:
        return text_of(part_of(self.live or {}, "metadata"), "uid")


@define
class _Owned:
    """An object that another owns, before it is read."""

    api_version: str
    kind: str
    path: ObjectKind
    metadata: Mapping[str, Any]
    owner: str = ""


async def tree(cluster: Cluster, objects: list[ManifestObject], namespace: str) -> list[Node]:
    """The objects of a manifest in order, each followed by what it owns; at most 500. Raises `Upstream`, `TimedOut`."""
    roots = await _in_batches([_root(cluster, one, namespace) for one in objects[:MAX_OBJECTS]])
    spaces = sorted({node.namespace for node in roots if node.live is not None and node.namespace})
    has_custom = any(_is_custom(node.api_version) for node in roots)
    kinds = _OWNED + (_OWNED_BY_CUSTOM if has_custom else ())
    listed = await _in_batches([_listed(cluster, *kind, space) for space in spaces for kind in kinds])
    owned = _descendants(roots, [one for part in listed for one in part])
    read = await _in_batches([_read(cluster, one) for one in owned[: MAX_OBJECTS - len(roots)]])
    return _ordered(roots, [node for node in read if node is not None])


async def _in_batches(work: list[Any]) -> list[Any]:
    results: list[Any] = []
    for start in range(0, len(work), MAX_CONCURRENT_READS):
        results += await asyncio.gather(*work[start : start + MAX_CONCURRENT_READS])
    return results


def _is_custom(api_version: str) -> bool:
    group = api_version.rpartition("/")[0]
    return "." in group and not group.endswith(".k8s.io")


async def _root(cluster: Cluster, one: ManifestObject, namespace: str) -> Node:
    place, live, reason = await find_live(cluster, one, namespace)
    if live is None:
        return Node(one.api_version, one.kind, one.name, place, False, reason)
    return _node(one.api_version, one.kind, live, None)


def _node(api_version: str, kind: str, live: Live, owner: str | None) -> Node:
    metadata = part_of(live, "metadata")
    is_ready, message = readiness({"apiVersion": api_version, "kind": kind, **live})
    namespace = text_of(metadata, "namespace") or None
    return Node(api_version, kind, text_of(metadata, "name"), namespace, is_ready, message, owner, live)


async def _listed(cluster: Cluster, api_version: str, kind: str, namespace: str) -> list[_Owned]:
    """The objects of a kind in a namespace that have an owner; none if they may not be listed."""
    path = await cluster.kind(api_version, kind)
    if path is None:
        return []
    try:
        items = await cluster.cached(path.of(namespace, "").rstrip("/"), "", METADATA_LIST)
    except Upstream as problem:
        if problem.code != DENIED:
            raise
        return []
    metadata = (part_of(item, "metadata") for item in items if isinstance(item, dict))
    return [_Owned(api_version, kind, path, each) for each in metadata if list_of(each, "ownerReferences")]


def _descendants(roots: Iterable[Node], listed: list[_Owned]) -> list[_Owned]:
    """What the roots own, at most three levels down; each object once."""
    known = {node.uid: f"{node.kind}/{node.name}" for node in roots if node.uid}
    owners, found = dict(known), list[_Owned]()
    for _ in range(MAX_LEVELS):
        next_owners = dict[str, str]()
        for one in listed:
            uid = text_of(one.metadata, "uid")
            owner = next((owners[ref] for ref in _owner_uids(one.metadata) if ref in owners), None)
            if owner is not None and uid not in known:
                one.owner = owner
                known[uid] = next_owners[uid] = f"{one.kind}/{text_of(one.metadata, 'name')}"
                found.append(one)
        owners = next_owners
    return found


def _owner_uids(metadata: Mapping[str, Any]) -> list[str]:
    return [
        text_of(reference, "uid") for reference in list_of(metadata, "ownerReferences") if isinstance(reference, dict)
    ]


async def _read(cluster: Cluster, one: _Owned) -> Node | None:
    """The node of an owned object; `None` if it is gone. One that may not be read is not ready."""
    namespace, name = text_of(one.metadata, "namespace"), text_of(one.metadata, "name")
    try:
        live = await cluster.get(one.path.of(namespace, name), OBJECT)
    except Upstream as problem:
        if problem.code != DENIED:
            raise
        return Node(one.api_version, one.kind, name, namespace or None, False, problem.message, one.owner)
    return _node(one.api_version, one.kind, live, one.owner) if isinstance(live, dict) else None


def _ordered(roots: list[Node], owned: list[Node]) -> list[Node]:
    """Each object, then what it owns."""
    children: dict[tuple[str, str | None], list[Node]] = {}
    for node in owned:
        children.setdefault((node.owner or "", node.namespace), []).append(node)
    ordered, waiting = list[Node](), list(reversed(roots))
    while waiting:
        node = waiting.pop()
        ordered.append(node)
        mine = children.pop((f"{node.kind}/{node.name}", node.namespace), []) if node.live is not None else []
        waiting += sorted(mine, key=lambda each: (each.kind, each.name), reverse=True)
    return ordered


async def events_of(cluster: Cluster, nodes: list[Node]) -> list[Event]:
    """The events of these objects, newest first, of at most 5,000 in each namespace.

    Those of an object that does not exist are found by its name. Raises `Upstream`, `TimedOut`.
    """
    uids = {node.uid for node in nodes if node.uid}
    names = {(node.kind, node.name, node.namespace) for node in nodes if not node.uid}
    found = list[Event]()
    for space in sorted({node.namespace or _SPACE_OF_CLUSTER_SCOPED for node in nodes}):
        found += await _events_in(cluster, space, uids, names)
    return sorted(found, key=lambda event: event.last or "", reverse=True)


async def _events_in(
    cluster: Cluster, namespace: str, uids: set[str], names: set[tuple[str, str, str | None]]
) -> list[Event]:
    found, read = list[Event](), 0
    async for page in cluster.pages(f"/api/v1/namespaces/{namespace}/events", ""):
        for item in page:
            involved = part_of(item, "involvedObject")
            named = text_of(involved, "kind"), text_of(involved, "name"), text_of(involved, "namespace") or None
            if text_of(involved, "uid") in uids or named in names:
                found.append(events.event(item))
        read += len(page)
        if read >= _MAX_EVENTS:
            break
    return found


def described(nodes: list[Node], events_: Iterable[Event]) -> list[TreeNode]:
    """The nodes as they are returned, with the number of their warnings."""
    warnings = Counter((event.kind, event.name) for event in events_ if event.type == "Warning")
    return [
        TreeNode(
            kind=node.kind,
            name=node.name,
            namespace=node.namespace,
            ready=node.ready,
            message=node.message,
            owner=node.owner,
            created=text_of(part_of(node.live or {}, "metadata"), "creationTimestamp") or None,
            warnings=warnings[node.kind, node.name],
        )
        for node in nodes
    ]
