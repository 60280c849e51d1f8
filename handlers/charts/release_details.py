"""The operations that describe a release beyond what helm stores: images, differences of revisions."""

from __future__ import annotations

import asyncio
import copy
import json
from functools import partial
from typing import Any, Literal, cast

import attrs

from handlers.charts.charts import EmptyRequest
from handlers.charts.operations import CHANGE_ERRORS, TEXT, ChartOperation
from handlers.charts.releases import NamedRelease, ReleaseRequest, RevisionRequest
from models.charts import release_diff, requests, yaml_values
from models.charts.release_diff import DiffSide
from models.charts.responses import Context, Diff, Event, Image, TreeNode
from models.errors import NotFound
from models.inputs import path, query
from models.json_format import http_message
from supervisor.charts.helm import changes
from supervisor.charts.kube.tree import Node, described
from supervisor.charts.service import Work
from supervisor.charts.workers import MAX_INLINE_YAML_BYTES


@http_message
class DiffRequest(NamedRelease):
    from_: int | None = query("The earlier revision; the one before `to` by default.", low=1)
    to: int | None = query("The later revision; the newest by default.", low=1)
    what: Literal["manifest", "values", "notes", "hooks"] = query("What is compared.", "manifest")
    context: int = query("Unchanged lines around each change.", 3, low=0, high=50)
    show_secrets: bool = query("Show the values of Secrets; needs the key.", False)


async def images(work: Work, request: RevisionRequest) -> list[Image]:
    return await work.reads.images(request.namespace, request.name, request.revision)


async def diff(work: Work, request: DiffRequest) -> Diff:
    if request.show_secrets:
        work.check_key("showSecrets")
    earlier, later = request.from_, request.to
    if earlier is None or later is None:
        rows = await work.reads.history(request.namespace, request.name)
        later = later or rows[0].revision
        earlier = earlier or next((row.revision for row in rows if row.revision < (later or 0)), None)
    old, new = [await _side(work, request, revision) for revision in (earlier, later)]
    return await work.charts.workers.run_if(
        len(old.text) + len(new.text) > MAX_INLINE_YAML_BYTES,
        release_diff.compare, old, new, request.what, request.context, request.namespace, request.show_secrets,
    )  # fmt: skip


async def _side(work: Work, request: DiffRequest, revision: int | None) -> DiffSide:
    if revision is None:
        return DiffSide(None, "")
    return DiffSide(revision, await work.reads.text(request.what, request.namespace, request.name, revision))


async def diff_upgrade(work: Work, request: requests.DiffUpgradeRequest) -> Diff:
    """What an upgrade would change, by helm's dry run on the server; nothing is stored."""
    revision, text = None, ""
    try:
        current = await work.reads.release(request.namespace, request.name)
        revision, text = current.version, current.manifest
    except NotFound:
        if not request.install:
            raise
    planned = await changes.upgrade(work, attrs.evolve(cast("Any", request), dry_run=True))
    old, new = DiffSide(revision, text), DiffSide(None, planned.manifest)
    return await work.charts.workers.run_if(
        len(old.text) + len(new.text) > MAX_INLINE_YAML_BYTES,
        release_diff.compare, old, new, "manifest", request.lines, request.namespace, request.show_secrets,
    )  # fmt: skip


async def diff_upgrade_text(work: Work, request: requests.DiffUpgradeRequest) -> str:
    return (await diff_upgrade(work, request)).diff


async def diff_text(work: Work, request: DiffRequest) -> str:
    return (await diff(work, request)).diff


@http_message
class ObjectRequest(ReleaseRequest):
    kind: str = path("The kind of the object.")
    object: str = path("The name of the object.")
    api_version: str | None = query("Its API version, if several kinds have this name.")
    object_namespace: str | None = query("Its namespace; the release's by default.")
    show_secrets: bool = query("Show the values of a Secret; needs the key.", False)


@http_message
class EventsRequest(ReleaseRequest):
    kind: str | None = query("Only of objects of this kind.")
    object: str | None = query("Only of objects with this name.")
    type: str | None = query("Only events of this type, such as Warning.")
    limit: int = query("The number of events.", 200, low=1, high=5000)


async def tree(work: Work, request: ReleaseRequest) -> list[TreeNode]:
    nodes = await work.reads.tree(request.namespace, request.name)
    return described(nodes, await work.reads.events(nodes))


async def events(work: Work, request: EventsRequest) -> list[Event]:
    nodes = await work.reads.tree(request.namespace, request.name)
    found = [
        event
        for event in await work.reads.events(nodes)
        if event.kind == (request.kind or event.kind)
        and event.name == (request.object or event.name)
        and event.type == (request.type or event.type)
    ]
    return found[: request.limit]


async def _object(work: Work, request: ObjectRequest) -> dict[str, Any]:
    """The live object without its managed fields; the values of a Secret are replaced by their lengths."""
    if request.show_secrets:
        work.check_key("showSecrets")
    nodes = await work.reads.tree(request.namespace, request.name)
    found = next(filter(lambda node: _is_requested(node, request), nodes), None)
    if found is None or found.live is None:
        raise NotFound(f"release {request.name} has no object {request.kind} {request.object}")
    live = {"apiVersion": found.api_version, "kind": found.kind, **found.live}
    live["metadata"] = {name: value for name, value in live["metadata"].items() if name != "managedFields"}
    if found.kind == "Secret" and not request.show_secrets:
        live = copy.deepcopy(live)  # at most 1 MiB, in few values
        release_diff.mask_secret(live)
        live["metadata"].get("annotations", {}).pop(_LAST_APPLIED, None)
    return live


_LAST_APPLIED = "kubectl.kubernetes.io/last-applied-configuration"


def _is_requested(node: Node, request: ObjectRequest) -> bool:
    return (
        (node.kind, node.name) == (request.kind, request.object)
        and node.api_version == (request.api_version or node.api_version)
        and node.namespace in (request.object_namespace or request.namespace, None)
    )


async def object_yaml(work: Work, request: ObjectRequest) -> str:
    live = await _object(work, request)
    return await work.charts.workers.run_if(not yaml_values.is_fast(live), yaml_values.dump, live)


async def object_json(work: Work, request: ObjectRequest) -> bytes:
    live = await _object(work, request)
    return (await work.charts.workers.run_if(not yaml_values.is_fast(live), json.dumps, live)).encode()


async def contexts(work: Work, request: EmptyRequest) -> list[Context]:
    place = work.charts.clusters.kube.place(work.target.kubeconfig, work.target.context)
    if place is None or not place.files:
        return []
    found, current = await asyncio.to_thread(work.charts.clusters.kube.contexts, place)
    allowed = work.charts.svc.kube.contexts
    return [Context(name, namespace, name == current, name in allowed) for name, namespace in found]


_read = partial(ChartOperation, needs="cluster", error_statuses=(400, 404, 422, 500, 502, 503, 504))

_live = partial(_read, is_cluster_read=True)

DETAILS: list[ChartOperation] = [
    _read(
        "helm_images", "GET", "/releases/{name}/images", "List the container images of a release, its hooks too",
        RevisionRequest, images, list[Image],
    ),
    _read(
        "helm_diff", "GET", "/releases/{name}/diff", "Compare two revisions of a release, the last two by default",
        DiffRequest, diff, Diff, text_call=diff_text,
    ),
    _read(
        "helm_diff_upgrade", "POST", "/releases/{name}/diff", "Preview an upgrade as a difference; nothing is stored",
        requests.DiffUpgradeRequest, diff_upgrade, Diff, text_call=diff_upgrade_text, mutating=True,
        error_statuses=(*CHANGE_ERRORS, 413),
    ),
    _live(
        "helm_tree", "GET", "/releases/{name}/tree", "List the live objects of a release and what they own",
        ReleaseRequest, tree, list[TreeNode],
    ),
    _live(
        "helm_object", "GET", "/releases/{name}/objects/{kind}/{object}", "Get a live object of a release",
        ObjectRequest, object_yaml, TEXT, json_call=object_json,
    ),
    _live(
        "helm_events", "GET", "/releases/{name}/events", "List the events of a release's objects, newest first",
        EventsRequest, events, list[Event],
    ),
    ChartOperation(
        "helm_contexts", "GET", "/contexts", "List the contexts of the kubeconfig", EmptyRequest, contexts,
        list[Context], group="contexts", error_statuses=(500, 502),
    ),
]  # fmt: skip
