"""The operations that change and read releases."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Coroutine
from functools import partial
from typing import Any, cast

import attrs

from handlers.charts.operations import CHANGE_ERRORS, TEXT, ChartOperation, Warned
from handlers.http import serializers
from models.charts import refs, requests, yaml_values
from models.charts.releases import check_filter, check_selector, select_rows
from models.charts.responses import (
    HistoryRow,
    Hook,
    ListRow,
    Release,
    Resource,
    TestResult,
    UpgradableRow,
    Upgrade,
)
from models.errors import Invalid
from models.inputs import path, query
from models.json_format import http_message
from supervisor.charts.helm import changes
from supervisor.charts.release_reads import Reads
from supervisor.charts.service import Work

_INSTALL_ERRORS = (*CHANGE_ERRORS, 413)
_UPLOAD_ERRORS = (*_INSTALL_ERRORS, 415)

_change = partial(ChartOperation, mutating=True, needs="cluster")

CHANGES: list[ChartOperation] = [
    _change(
        "helm_install", "POST", "/releases", "Install a chart from a reference", requests.InstallRequest,
        changes.install, Release, status=201, error_statuses=_INSTALL_ERRORS,
    ),
    _change(
        None, "POST", "/releases/upload", "Install an uploaded chart", requests.InstallUpload, changes.install,
        Release, status=201, error_statuses=_UPLOAD_ERRORS, name="helm_install_upload",
    ),
    _change(
        "helm_upgrade", "PUT", "/releases/{name}", "Upgrade a release from a reference", requests.UpgradeRequest,
        changes.upgrade, Release, error_statuses=_INSTALL_ERRORS,
    ),
    _change(
        None, "POST", "/releases/{name}/upgrade/upload", "Upgrade a release from an uploaded chart",
        requests.UpgradeUpload, changes.upgrade, Release, error_statuses=_UPLOAD_ERRORS, name="helm_upgrade_upload",
    ),
    _change(
        "helm_uninstall", "DELETE", "/releases/{name}", "Uninstall a release", requests.UninstallRequest,
        changes.uninstall, None, status=204, error_statuses=CHANGE_ERRORS,
    ),
    _change(
        "helm_rollback", "POST", "/releases/{name}/rollback", "Roll back to an earlier revision",
        requests.RollbackRequest, changes.rollback, None, status=204, error_statuses=_INSTALL_ERRORS,
    ),
    _change(
        "helm_test", "POST", "/releases/{name}/test", "Run the tests of a release; 200 even if some fail",
        requests.TestRequest, changes.test, list[TestResult], error_statuses=CHANGE_ERRORS,
    ),
]  # fmt: skip


_ROWS_AT_ONCE = 200


_CONTEXT = "One of `svc.kube.contexts`; the server's own by default."


@http_message
class NamedRelease:
    name: str = path("The release.", refs.release)
    namespace: str = query("The namespace of the release.", "default", check=refs.namespace)


@http_message
class ReleaseRequest(NamedRelease):
    context: str | None = query(_CONTEXT)


_REVISION = "The revision; the newest by default."
STATUSES = (
    "unknown", "deployed", "uninstalled", "superseded", "failed", "uninstalling", "pending-install", "pending-upgrade",
    "pending-rollback",
)  # fmt: skip


@http_message
class RevisionRequest(ReleaseRequest):
    revision: int | None = query(_REVISION, low=1)


@http_message
class ReleaseListRequest:
    namespace: str | None = query("The namespace of the releases; `default` by default.", check=refs.namespace)
    context: str | None = query(_CONTEXT)
    all_namespaces: bool = query("List the releases of all namespaces.", False)
    filter: str | None = query("Part of the name, with `^`, `$`, `.*` and `|`.", check=check_filter)
    status: tuple[str, ...] = query("Only releases with one of these statuses.", (), choices=STATUSES)
    selector: str | None = query("Labels of the release: `a=b,c!=d`.", check=check_selector)
    sort: str = query("The order.", "name", choices=("name", "updated", "-updated"))
    limit: int | None = query("The number of releases; all by default.", low=1, high=1000)
    offset: int = query("The number of releases to skip.", 0, low=0)
    upgrades: bool = query("Add the newest available version of each chart.", False)


@http_message
class ValuesRequest(ReleaseRequest):
    all: bool = query("Include the chart's own values.", False)
    revision: int | None = query(_REVISION, low=1)


async def listing(work: Work, request: ReleaseListRequest) -> Warned:
    if request.all_namespaces and request.namespace is not None:
        raise Invalid("namespace cannot be combined with allNamespaces")
    namespace = None if request.all_namespaces else request.namespace or "default"
    rows = await work.reads.rows(namespace, request.selector)
    found = select_rows(rows, request.filter, request.status, request.sort)
    end = None if request.limit is None else request.offset + request.limit
    page = found[request.offset : end]
    if request.upgrades:
        page = await _with_upgrades(work, page)
    body = await _encoded(page) if len(page) > _ROWS_AT_ONCE else page
    return Warned(body, headers={"X-Total-Count": str(len(found))})


async def _encoded(rows: list[ListRow]) -> bytes:
    """A list as JSON; the loop runs between its parts."""
    parts = []
    for start in range(0, len(rows), _ROWS_AT_ONCE):
        parts.append(serializers.encoded(rows[start : start + _ROWS_AT_ONCE])[1:-1])
        await asyncio.sleep(0)
    return b"[%b]" % b",".join(parts)


async def _with_upgrades(work: Work, rows: list[ListRow]) -> list[ListRow]:
    newer = await work.charts.upgrades.of_rows(work.place, rows)
    await work.charts.upgrades.refresh(work.place, rows)
    names = [field.name for field in attrs.fields(cast("Any", ListRow))]
    return [
        UpgradableRow(**{name: getattr(row, name) for name in names}, upgrade=found[0] if found else None)
        for row, found in zip(rows, newer, strict=True)
    ]


async def upgrades(work: Work, request: ReleaseRequest) -> list[Upgrade]:
    """The newer versions; of a registry after its tags have been fetched."""
    row = await work.reads.row(request.namespace, request.name)
    await work.charts.upgrades.refresh(work.place, [row])
    return (await work.charts.upgrades.of_rows(work.place, [row]))[0]


def _of_revision(
    read: Callable[[Reads, str, str, int | None], Coroutine[Any, Any, Any]],
) -> Callable[[Work, RevisionRequest], Coroutine[Any, Any, Any]]:
    async def call(work: Work, request: RevisionRequest) -> Any:
        return await read(work.reads, request.namespace, request.name, request.revision)

    return call


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
    return await work.charts.workers.run_if(not yaml_values.is_fast(values_), dump, values_)


_read = partial(ChartOperation, needs="cluster", error_statuses=(400, 404, 500, 502, 503, 504))

READS: list[ChartOperation] = [
    _read(
        "helm_list", "GET", "/releases", "List releases with their newest revision", ReleaseListRequest, listing,
        list[ListRow | UpgradableRow], headers={"X-Total-Count": "The number of releases without limit and offset"},
    ),
    _read(
        "helm_upgrades", "GET", "/releases/{name}/upgrades", "List newer versions of a release's chart, newest first",
        ReleaseRequest, upgrades, list[Upgrade],
    ),
    _read(
        "helm_status", "GET", "/releases/{name}", "Get a release", RevisionRequest, _of_revision(Reads.release),
        Release,
    ),
    _read(
        "helm_history", "GET", "/releases/{name}/history", "List the revisions of a release, newest first",
        ReleaseRequest, history, list[HistoryRow],
    ),
    _read(
        "helm_get_values", "GET", "/releases/{name}/values", "Get the supplied values, or all values, as YAML",
        ValuesRequest, values, TEXT, json_call=values_json,
    ),
    _read(
        "helm_get_manifest", "GET", "/releases/{name}/manifest", "Get the rendered manifest of a release",
        RevisionRequest, _of_revision(Reads.manifest), TEXT,
    ),
    _read(
        "helm_get_notes", "GET", "/releases/{name}/notes", "Get the notes of a release; empty if there are none",
        RevisionRequest, _of_revision(Reads.notes), TEXT,
    ),
    _read(
        "helm_get_hooks", "GET", "/releases/{name}/hooks", "Get the hooks of a release", RevisionRequest,
        _of_revision(Reads.hooks), list[Hook],
    ),
    _read(
        "helm_get_resources", "GET", "/releases/{name}/resources", "Get the live state of each object in the manifest",
        RevisionRequest, _of_revision(Reads.resources), list[Resource],
    ),
]  # fmt: skip
