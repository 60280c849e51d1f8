"""Reads releases by running helm, for kubeconfigs that only helm can use: the same responses as `Native`, slower."""

from __future__ import annotations

import contextlib
from collections.abc import Awaitable, Callable, Iterator, Mapping
from typing import Any

from models.charts import helm_errors, releases
from models.charts.releases import Brief, Stored
from models.charts.resources import ManifestObject, named
from models.charts.responses import HistoryRow, ListRow, Resource
from models.errors import Invalid, NotFound, Upstream
from supervisor.charts.kube.cluster import describe_live
from supervisor.charts.kube.releases import unknown_release
from supervisor.charts.workers import MAX_INLINE_YAML_BYTES, Workers

RunHelm = Callable[[list[str]], Awaitable[str]]
"""Runs helm against the cluster with these arguments and returns its output. Raises kinds of `Problem`."""

_MAX_HISTORY = 2**31 - 1


class ByHelm:
    """Reads the releases of one cluster. `major` is helm's major version."""

    def __init__(self, run: RunHelm, major: int, workers: Workers) -> None:
        self._run = run
        self._major = major
        self._workers = workers

    async def rows(self, namespace: str, selector: str | None = None) -> list[ListRow]:
        return await self._rows(f"--namespace={namespace}", selector)

    async def all_rows(self, selector: str | None = None) -> list[ListRow]:
        rows = await self._rows("--all-namespaces", selector)
        return sorted(rows, key=lambda row: (row.namespace, row.name))

    async def everywhere(self) -> list[Brief]:
        return [releases.brief_of_row(row) for row in await self._rows("--all-namespaces")]

    async def described(self, briefs: list[Brief]) -> list[ListRow]:
        return [releases.row_of_brief(brief) for brief in briefs]

    async def _rows(self, namespace_flag: str, selector: str | None = None) -> list[ListRow]:
        all_flag = ["--all"] if self._major == 3 else []
        rows = await self._json(
            ["list", "--max=0", *all_flag, namespace_flag, *([f"--selector={selector}"] if selector else [])]
        )
        return [
            ListRow(
                name=row["name"],
                namespace=row["namespace"],
                revision=int(row["revision"]),
                updated=releases.instant(row["updated"]),
                status=row["status"],
                chart=row["chart"],
                app_version=row["app_version"],
            )
            for row in rows or []
        ]

    async def stored(self, namespace: str, name: str, revision: int | None = None) -> Stored:
        """A revision as stored, the newest by default, without the chart."""
        with _found(namespace, name, revision):
            stored = await self._json(["status", *_revision(revision), f"--namespace={namespace}"], name)
        if not isinstance(stored, dict):
            raise Upstream("helm did not return a release")
        return stored

    async def history(self, namespace: str, name: str) -> list[HistoryRow]:
        with _found(namespace, name):
            revisions = await self._json(["history", f"--max={_MAX_HISTORY}", f"--namespace={namespace}"], name)
        rows = [
            HistoryRow(
                revision=int(row["revision"]),
                updated=releases.instant(row["updated"]),
                status=row["status"],
                chart=row["chart"],
                app_version=row["app_version"],
                description=row["description"],
            )
            for row in revisions or []
        ]
        return sorted(rows, key=lambda row: row.revision, reverse=True)

    async def all_values(self, namespace: str, name: str, revision: int | None = None) -> dict[str, Any]:
        flags = ["--all", *_revision(revision), f"--namespace={namespace}"]
        with _found(namespace, name, revision):
            return await self._json(["get", "values", *flags], name) or {}

    async def resources(self, namespace: str, name: str, revision: int | None = None) -> list[Resource]:
        """As helm finds them: missing objects are left out by helm."""
        flags = ["--show-resources"] if self._major == 3 else []
        with _found(namespace, name, revision):
            stored = await self._json(["status", *flags, *_revision(revision), f"--namespace={namespace}"], name)
        live = _live(stored)
        resources_ = []
        manifest = releases.manifest(stored)
        for named_object in await self._workers.run_if(len(manifest) > MAX_INLINE_YAML_BYTES, named, manifest):
            live_object = live.get(
                (named_object.api_version, named_object.kind, named_object.name, named_object.namespace or namespace)
            )
            live_object = live_object or live.get(
                (named_object.api_version, named_object.kind, named_object.name, None)
            )
            resources_.append(_resource(named_object, namespace, live_object))
        return resources_

    async def _json(self, arguments: list[str], *names: str) -> Any:
        output = await self._run([*arguments, "--output=json", "--", *names])
        try:
            return await self._workers.parse_json(output)
        except Invalid:
            raise Upstream("helm did not return JSON") from None


@contextlib.contextmanager
def _found(namespace: str, name: str, revision: int | None = None) -> Iterator[None]:
    """Names the release or the revision that helm did not find, as `Native` does."""
    try:
        yield
    except NotFound as problem:
        if problem.code != helm_errors.RELEASE_NOT_FOUND:
            raise
        raise unknown_release(namespace, name, revision) from None


def _revision(revision: int | None) -> list[str]:
    return [] if revision is None else [f"--revision={revision}"]


Live = dict[tuple[str, str, str, str | None], Mapping[str, Any]]


def _live(stored: Mapping[str, Any]) -> Live:
    """The live objects of `info.resources` by their identity."""
    objects: Live = {}
    for items in ((stored.get("info") or {}).get("resources") or {}).values():
        for item in items:
            metadata = item.get("metadata") or {}
            identity = (item.get("apiVersion") or "", item.get("kind") or "", metadata.get("name") or "")
            objects[(*identity, metadata.get("namespace"))] = item
    return objects


def _resource(named_object: ManifestObject, namespace: str, live: Mapping[str, Any] | None) -> Resource:
    if named_object.fault or live is None:
        place = named_object.namespace or namespace
        reason = named_object.fault or f"not found: there is no {named_object.kind} {named_object.name}"
        return Resource(named_object.kind, named_object.name, place, False, reason)
    return describe_live(named_object, (live.get("metadata") or {}).get("namespace"), live)
