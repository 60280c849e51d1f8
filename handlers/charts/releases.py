"""The operations that change releases."""

from __future__ import annotations

import asyncio

from attrs import frozen

from handlers.charts.operations import CHANGE_FAILS, TEXT, Operation
from handlers.http import serializers
from models.charts import refs, requests, yaml_values
from models.charts.parameters import path, query
from models.charts.responses import HistoryRow, Hook, ListRow, Release, Resource, TestResult
from supervisor.charts.helm import changes
from supervisor.charts.service import Work

_INSTALL_FAILS = (*CHANGE_FAILS, 413)
_UPLOAD_FAILS = (*_INSTALL_FAILS, 415)

CHANGES: list[Operation] = [
    Operation(
        "helm_install", "POST", "/releases", "Install a chart from a reference", requests.Install, changes.install,
        Release, status=201, mutating=True, needs="cluster", fails=_INSTALL_FAILS,
    ),
    Operation(
        None, "POST", "/releases/upload", "Install an uploaded chart", requests.InstallUpload, changes.install,
        Release, status=201, mutating=True, needs="cluster", fails=_UPLOAD_FAILS, name="helm_install_upload",
    ),
    Operation(
        "helm_upgrade", "PUT", "/releases/{name}", "Upgrade a release from a reference", requests.Upgrade,
        changes.upgrade, Release, mutating=True, needs="cluster", fails=_INSTALL_FAILS,
    ),
    Operation(
        None, "POST", "/releases/{name}/upgrade/upload", "Upgrade a release from an uploaded chart",
        requests.UpgradeUpload, changes.upgrade, Release, mutating=True, needs="cluster", fails=_UPLOAD_FAILS,
        name="helm_upgrade_upload",
    ),
    Operation(
        "helm_uninstall", "DELETE", "/releases/{name}", "Uninstall a release", requests.Uninstall, changes.uninstall,
        None, status=204, mutating=True, needs="cluster", fails=CHANGE_FAILS,
    ),
    Operation(
        "helm_rollback", "POST", "/releases/{name}/rollback", "Go back to an earlier revision", requests.Rollback,
        changes.rollback, None, status=204, mutating=True, needs="cluster", fails=(*CHANGE_FAILS, 413),
    ),
    Operation(
        "helm_test", "POST", "/releases/{name}/test", "Run the tests of a release; 200 also where some fail",
        requests.Test, changes.test, list[TestResult], mutating=True, needs="cluster", fails=CHANGE_FAILS,
    ),
]  # fmt: skip


_MANY = 500
"""Rows whose JSON takes the loop too long."""
_FAILS = (400, 404, 500, 502, 503, 504)


@frozen
class OfNamespace:
    namespace: str = query("The namespace of the releases.", "default", check=refs.namespace)


@frozen
class OfRelease:
    name: str = path("The release.", refs.release)
    namespace: str = query("The namespace of the release.", "default", check=refs.namespace)


@frozen
class ValuesOfRelease:
    name: str = path("The release.", refs.release)
    namespace: str = query("The namespace of the release.", "default", check=refs.namespace)
    all: bool = query("Whether the chart's own values come with those that were given.", False)


async def listing(work: Work, ask: OfNamespace) -> list[ListRow] | bytes:
    rows = await work.reads.rows(ask.namespace)
    return await asyncio.to_thread(serializers.encoded, rows) if len(rows) > _MANY else rows


async def status(work: Work, ask: OfRelease) -> Release:
    return await work.reads.release(ask.namespace, ask.name)


async def history(work: Work, ask: OfRelease) -> list[HistoryRow]:
    return await work.reads.history(ask.namespace, ask.name)


async def values(work: Work, ask: ValuesOfRelease) -> str:
    reads = work.reads
    found = await (reads.all_values if ask.all else reads.values)(ask.namespace, ask.name)
    return yaml_values.dump(found) if yaml_values.is_quick(found) else await asyncio.to_thread(yaml_values.dump, found)


async def manifest(work: Work, ask: OfRelease) -> str:
    return await work.reads.manifest(ask.namespace, ask.name)


async def notes(work: Work, ask: OfRelease) -> str:
    return await work.reads.notes(ask.namespace, ask.name)


async def hooks(work: Work, ask: OfRelease) -> list[Hook]:
    return await work.reads.hooks(ask.namespace, ask.name)


async def resources(work: Work, ask: OfRelease) -> list[Resource]:
    return await work.reads.resources(ask.namespace, ask.name)


READS: list[Operation] = [
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
