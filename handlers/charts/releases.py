"""The operations that change and read releases."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from handlers.charts.operations import CHANGE_ERRORS, TEXT, Operation, Warned
from handlers.http import serializers
from models.charts import refs, requests, yaml_values
from models.charts.parameters import path, query
from models.charts.releases import check_filter, check_selector, select_rows
from models.charts.responses import HistoryRow, Hook, ListRow, Release, Resource, TestResult
from models.errors import Invalid
from models.json_format import http_message
from supervisor.charts.helm import changes
from supervisor.charts.service import Work

_INSTALL_ERRORS = (*CHANGE_ERRORS, 413)
_UPLOAD_ERRORS = (*_INSTALL_ERRORS, 415)

CHANGES: list[Operation] = [
    Operation(
        "helm_install", "POST", "/releases", "Install a chart from a reference", requests.Install, changes.install,
        Release, status=201, mutating=True, needs="cluster", error_statuses=_INSTALL_ERRORS,
    ),
    Operation(
        None, "POST", "/releases/upload", "Install an uploaded chart", requests.InstallUpload, changes.install,
        Release, status=201, mutating=True, needs="cluster", error_statuses=_UPLOAD_ERRORS, name="helm_install_upload",
    ),
    Operation(
        "helm_upgrade", "PUT", "/releases/{name}", "Upgrade a release from a reference", requests.Upgrade,
        changes.upgrade, Release, mutating=True, needs="cluster", error_statuses=_INSTALL_ERRORS,
    ),
    Operation(
        None, "POST", "/releases/{name}/upgrade/upload", "Upgrade a release from an uploaded chart",
        requests.UpgradeUpload, changes.upgrade, Release, mutating=True, needs="cluster", error_statuses=_UPLOAD_ERRORS,
        name="helm_upgrade_upload",
    ),
    Operation(
        "helm_uninstall", "DELETE", "/releases/{name}", "Uninstall a release", requests.Uninstall, changes.uninstall,
        None, status=204, mutating=True, needs="cluster", error_statuses=CHANGE_ERRORS,
    ),
    Operation(
        "helm_rollback", "POST", "/releases/{name}/rollback", "Roll back to an earlier revision", requests.Rollback,
        changes.rollback, None, status=204, mutating=True, needs="cluster", error_statuses=(*CHANGE_ERRORS, 413),
    ),
    Operation(
        "helm_test", "POST", "/releases/{name}/test", "Run the tests of a release; 200 even if some fail",
        requests.Test, changes.test, list[TestResult], mutating=True, needs="cluster", error_statuses=CHANGE_ERRORS,
    ),
]  # fmt: skip


_MAX_INLINE_ROWS = 500
"""Longer lists are encoded in a worker."""
_READ_ERRORS = (400, 404, 500, 502, 503, 504)


@http_message
class ReleaseRequest:
    name: str = path("The release.", refs.release)
    namespace: str = query("The namespace of the release.", "default", check=refs.namespace)


_REVISION = "The revision; the newest by default."
_STATUSES = (
    "unknown", "deployed", "uninstalled", "superseded", "failed", "uninstalling", "pending-install", "pending-upgrade",
    "pending-rollback",
)  # fmt: skip


@http_message
class RevisionRequest(ReleaseRequest):
    revision: int | None = query(_REVISION, low=1)


@http_message
class ListRequest:
    namespace: str | None = query("The namespace of the releases; `default` by default.", check=refs.namespace)
    all_namespaces: bool = query("List the releases of all namespaces.", False)
    filter: str | None = query("Part of the name, with `^`, `$`, `.*` and `|`.", check=check_filter)
    status: tuple[str, ...] = query("Only releases with one of these statuses.", (), choices=_STATUSES)
    selector: str | None = query("Labels of the release: `a=b,c!=d`.", check=check_selector)
    sort: str = query("The order.", "name", choices=("name", "updated", "-updated"))
    limit: int | None = query("The number of releases; all by default.", low=1, high=1000)
    offset: int = query("The number of releases to skip.", 0, low=0)


@http_message
class ValuesRequest:
    name: str = path("The release.", refs.release)
    namespace: str = query("The namespace of the release.", "default", check=refs.namespace)
    all: bool = query("Include the chart's own values.", False)
    revision: int | None = query(_REVISION, low=1)


async def listing(work: Work, request: ListRequest) -> Warned:
    if request.all_namespaces and request.namespace is not None:
        raise Invalid("namespace cannot be combined with allNamespaces")
    namespace = None if request.all_namespaces else request.namespace or "default"
    rows = await work.reads.rows(namespace, request.selector)
    found = select_rows(rows, request.filter, request.status, request.sort)
    end = None if request.limit is None else request.offset + request.limit
    page = found[request.offset : end]
    body = await work.charts.workers.run(serializers.encoded, page) if len(page) > _MAX_INLINE_ROWS else page
    return Warned(body, headers={"X-Total-Count": str(len(found))})


async def status(work: Work, request: RevisionRequest) -> Release:
    return await work.reads.release(request.namespace, request.name, request.revision)


async def history(work: Work, request: ReleaseRequest) -> list[HistoryRow]:
    return await work.reads.history(request.namespace, request.name)


async def values(work: Work, request: ValuesRequest) -> str:
    return await _values(work, request, yaml_values.dump)


async def values_json(work: Work, request: ValuesRequest) -> bytes:
    return (await _values(work, request, json.dumps)).encode()


async def _values(work: Work, request: ValuesRequest, dump: Callable[[Any], str]) -> str:
    """Large values are written in a worker."""
    reads = work.reads
    values_ = await (reads.all_values if request.all else reads.values)(
        request.namespace, request.name, request.revision
    )
    return dump(values_) if yaml_values.is_fast(values_) else await work.charts.workers.run(dump, values_)


async def manifest(work: Work, request: RevisionRequest) -> str:
    return await work.reads.manifest(request.namespace, request.name, request.revision)


async def notes(work: Work, request: RevisionRequest) -> str:
    return await work.reads.notes(request.namespace, request.name, request.revision)


async def hooks(work: Work, request: RevisionRequest) -> list[Hook]:
    return await work.reads.hooks(request.namespace, request.name, request.revision)


async def resources(work: Work, request: RevisionRequest) -> list[Resource]:
    return await work.reads.resources(request.namespace, request.name, request.revision)


READS: list[Operation] = [
    Operation(
        "helm_list", "GET", "/releases", "List releases with their newest revision",
        ListRequest, listing,
        list[ListRow], needs="cluster", error_statuses=_READ_ERRORS,
        headers={"X-Total-Count": "The number of releases without limit and offset"},
    ),
    Operation(
        "helm_status", "GET", "/releases/{name}", "Get a release", RevisionRequest, status, Release,
        needs="cluster", error_statuses=_READ_ERRORS,
    ),
    Operation(
        "helm_history", "GET", "/releases/{name}/history", "List the revisions of a release, newest first",
        ReleaseRequest, history, list[HistoryRow], needs="cluster", error_statuses=_READ_ERRORS,
    ),
    Operation(
        "helm_get_values", "GET", "/releases/{name}/values", "Get the supplied values, or all values, as YAML",
        ValuesRequest, values, TEXT, needs="cluster", error_statuses=_READ_ERRORS, json_call=values_json,
    ),
    Operation(
        "helm_get_manifest", "GET", "/releases/{name}/manifest", "Get the rendered manifest of a release",
        RevisionRequest, manifest, TEXT, needs="cluster", error_statuses=_READ_ERRORS,
    ),
    Operation(
        "helm_get_notes", "GET", "/releases/{name}/notes", "Get the notes of a release; empty if there are none",
        RevisionRequest, notes, TEXT, needs="cluster", error_statuses=_READ_ERRORS,
    ),
    Operation(
        "helm_get_hooks", "GET", "/releases/{name}/hooks", "Get the hooks of a release", RevisionRequest, hooks,
        list[Hook], needs="cluster", error_statuses=_READ_ERRORS,
    ),
    Operation(
        "helm_get_resources", "GET", "/releases/{name}/resources",
        "Get the live state of each object in the manifest", RevisionRequest, resources, list[Resource],
        needs="cluster", error_statuses=_READ_ERRORS,
    ),
]  # fmt: skip
