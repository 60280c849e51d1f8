"""The operations that read releases. None of them costs a helm, unless the kubeconfig needs it."""

from __future__ import annotations

import asyncio

from attrs import frozen

from handlers import wire
from handlers.charts.operations import TEXT, Operation
from models.charts import names, plainyaml
from models.charts.fields import path, query
from models.charts.shapes import HistoryRow, Hook, ListRow, Release, Resource
from supervisor.charts.service import Work

_MANY = 500
"""Rows whose JSON takes the loop too long."""
_FAILS = (400, 404, 500, 502, 503, 504)


@frozen
class OfNamespace:
    namespace: str = query("The namespace of the releases.", "default", check=names.namespace)


@frozen
class OfRelease:
    name: str = path("The release.", names.release)
    namespace: str = query("The namespace of the release.", "default", check=names.namespace)


@frozen
class ValuesOfRelease:
    name: str = path("The release.", names.release)
    namespace: str = query("The namespace of the release.", "default", check=names.namespace)
    all: bool = query("Whether the chart's own values come with those that were given.", False)


async def listing(work: Work, ask: OfNamespace) -> list[ListRow] | bytes:
    rows = await work.reads.rows(ask.namespace)
    return await asyncio.to_thread(wire.encoded, rows) if len(rows) > _MANY else rows


async def status(work: Work, ask: OfRelease) -> Release:
    return await work.reads.release(ask.namespace, ask.name)


async def history(work: Work, ask: OfRelease) -> list[HistoryRow]:
    return await work.reads.history(ask.namespace, ask.name)


async def values(work: Work, ask: ValuesOfRelease) -> str:
    reads = work.reads
    found = await (reads.all_values if ask.all else reads.values)(ask.namespace, ask.name)
    return plainyaml.dump(found) if plainyaml.is_quick(found) else await asyncio.to_thread(plainyaml.dump, found)


async def manifest(work: Work, ask: OfRelease) -> str:
    return await work.reads.manifest(ask.namespace, ask.name)


async def notes(work: Work, ask: OfRelease) -> str:
    return await work.reads.notes(ask.namespace, ask.name)


async def hooks(work: Work, ask: OfRelease) -> list[Hook]:
    return await work.reads.hooks(ask.namespace, ask.name)


async def resources(work: Work, ask: OfRelease) -> list[Resource]:
    return await work.reads.resources(ask.namespace, ask.name)


operations: list[Operation] = [
    Operation(
        "helm_list", "GET", "/releases", "The newest revision of each release of a namespace",
        OfNamespace, listing, list[ListRow], needs="cluster", fails=_FAILS,
    ),
    Operation(
        "helm_status", "GET", "/releases/{name}", "A release: its newest revision", OfRelease, status, Release,
        needs="cluster", fails=_FAILS,
    ),
    Operation(
        "helm_history", "GET", "/releases/{name}/history", "The revisions of a release, newest first", OfRelease,
        history, list[HistoryRow], needs="cluster", fails=_FAILS,
    ),
    Operation(
        "helm_get_values", "GET", "/releases/{name}/values", "The values that were given, or all, as YAML",
        ValuesOfRelease, values, TEXT, needs="cluster", fails=_FAILS,
    ),
    Operation(
        "helm_get_manifest", "GET", "/releases/{name}/manifest", "The rendered manifest", OfRelease, manifest, TEXT,
        needs="cluster", fails=_FAILS,
    ),
    Operation(
        "helm_get_notes", "GET", "/releases/{name}/notes", "The notes; empty where there are none", OfRelease, notes,
        TEXT, needs="cluster", fails=_FAILS,
    ),
    Operation(
        "helm_get_hooks", "GET", "/releases/{name}/hooks", "The hooks", OfRelease, hooks, list[Hook], needs="cluster",
        fails=_FAILS,
    ),
    Operation(
        "helm_get_resources", "GET", "/releases/{name}/resources",
        "What is there of each object of the manifest, and whether it is ready", OfRelease, resources, list[Resource],
        needs="cluster", fails=_FAILS,
    ),
]  # fmt: skip
