"""Releases as helm tells them, where a kubeconfig needs what only helm can do: the same answers as `Native`, slower."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from models.charts import releases
from models.charts.releases import Brief, Stored
from models.charts.resources import Named, named
from models.charts.responses import HistoryRow, ListRow, Resource
from models.errors import Upstream
from supervisor.charts.kube.readiness import told

Ask = Callable[[list[str]], Awaitable[str]]
"""Runs helm against the cluster with these arguments; what it prints. Raises kinds of `Problem`."""

_ALL = 2**31 - 1


class ByHelm:
    """Reads the releases of one cluster. `major` is that of the helm that answers."""

    def __init__(self, ask: Ask, major: int) -> None:
        self._ask = ask
        self._major = major

    async def rows(self, namespace: str) -> list[ListRow]:
        return await self._rows(f"--namespace={namespace}")

    async def everywhere(self) -> list[Brief]:
        return [releases.of_row(row) for row in await self._rows("--all-namespaces")]

    async def described(self, some: list[Brief]) -> list[ListRow]:
        return [releases.plain_row(one) for one in some]

    async def revision(self, namespace: str, name: str, number: int) -> Stored:
        stored = await self._json(["status", f"--revision={number}", f"--namespace={namespace}"], name)
        if not isinstance(stored, dict):
            raise Upstream("helm told of a release what is none")
        return stored

    async def _rows(self, where: str) -> list[ListRow]:
        every = ["--all"] if self._major == 3 else []
        told = await self._json(["list", "--max=0", *every, where])
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
            for row in told or []
        ]

    async def newest(self, namespace: str, name: str) -> Stored:
        """As it is stored, but for the chart."""
        stored = await self._json(["status", f"--namespace={namespace}"], name)
        if not isinstance(stored, dict):
            raise Upstream("helm told of a release what is none")
        return stored

    async def history(self, namespace: str, name: str) -> list[HistoryRow]:
        told = await self._json(["history", f"--max={_ALL}", f"--namespace={namespace}"], name)
        rows = [
            HistoryRow(
                revision=int(row["revision"]),
                updated=releases.instant(row["updated"]),
                status=row["status"],
                chart=row["chart"],
                app_version=row["app_version"],
                description=row["description"],
            )
            for row in told or []
        ]
        return sorted(rows, key=lambda row: row.revision, reverse=True)

    async def all_values(self, namespace: str, name: str) -> dict[str, Any]:
        return await self._json(["get", "values", "--all", f"--namespace={namespace}"], name) or {}

    async def resources(self, namespace: str, name: str) -> list[Resource]:
        """As helm finds them: it leaves out what is not there."""
        shown = ["--show-resources"] if self._major == 3 else []
        stored = await self._json(["status", *shown, f"--namespace={namespace}"], name)
        live = _live(stored)
        found = []
        for one in named(releases.manifest(stored)):
            there = live.get((one.api_version, one.kind, one.name, one.namespace or namespace))
            there = there or live.get((one.api_version, one.kind, one.name, None))
            found.append(_resource(one, namespace, there))
        return found

    async def _json(self, arguments: list[str], *names: str) -> Any:
        said = await self._ask([*arguments, "--output=json", "--", *names])
        try:
            return json.loads(said)
        except (ValueError, RecursionError):
            raise Upstream("helm told what is no JSON") from None


Live = dict[tuple[str, str, str, str | None], Mapping[str, Any]]


def _live(stored: Mapping[str, Any]) -> Live:
    """The live objects of `info.resources`, by what names them."""
    found: Live = {}
    for items in ((stored.get("info") or {}).get("resources") or {}).values():
        for item in items:
            about = item.get("metadata") or {}
            place = (item.get("apiVersion") or "", item.get("kind") or "", about.get("name") or "")
            found[(*place, about.get("namespace"))] = item
    return found


def _resource(one: Named, namespace: str, live: Mapping[str, Any] | None) -> Resource:
    if live is None:
        where = one.namespace or namespace
        return Resource(one.kind, one.name, where, False, f"not found: there is no {one.kind} {one.name}")
    return told(one, (live.get("metadata") or {}).get("namespace"), live)
