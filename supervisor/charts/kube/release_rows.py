"""The rows of releases: what a list says of each. One is read once, and is right until its revision is rewritten."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections import OrderedDict
from collections.abc import Iterable, Mapping
from typing import Any, TypeVar
from urllib.parse import quote

from models.charts import releases
from models.charts.releases import BadRelease, Brief, Revision, Stored
from models.charts.responses import ListRow
from supervisor.charts.kube.cluster import METADATA_LIST, OBJECT, Cluster
from supervisor.single_flight import SingleFlight

log = logging.getLogger("charts")

Item = TypeVar("Item")

_REMEMBERED = 10_000
_NAMESPACES = 1000
_AT_ONCE = 80
_TOGETHER = 20
_BIG = 64 * 1024
_MANY = 32
_NOT_SUPERSEDED = f"{releases.SELECTOR},status!={releases.SUPERSEDED}"


class Rows:
    """Reads the lists of one cluster. Raises `Upstream`."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        self._rows: OrderedDict[str, ListRow] = OrderedDict()
        """By what changes with each write of a revision, so that a row is right as long as it is found."""
        self._known: set[str] = set()
        """The namespaces that were listed."""
        self._listing: SingleFlight[list[ListRow]] = SingleFlight()

    async def of(self, namespace: str) -> list[ListRow]:
        """The newest revision of each release, whatever its status, by name."""
        return await self._listing.ask(namespace, lambda: self._list(namespace))

    async def everywhere(self) -> list[Brief]:
        """The newest revision of each release of all namespaces, as the API server remembers them."""
        items = await self.cluster.remembered("/api/v1/secrets", releases.SELECTOR, METADATA_LIST)
        return await asyncio.to_thread(releases.briefs, items) if len(items) > _MANY else releases.briefs(items)

    async def described(self, some: list[Brief]) -> list[ListRow]:
        """What else there is to say of a few releases; one that is gone meanwhile is told of by its labels."""
        unknown: dict[str, list[Revision]] = {}
        for one in some:
            if one.revision.version not in self._rows:
                unknown.setdefault(one.namespace, []).append(one.revision)
        parts = [(place, few) for place, all_ in unknown.items() for few in _slices(all_, _TOGETHER)]
        await asyncio.gather(*(self._remember_some(place, list(few)) for place, few in parts))
        rows = [self._rows.get(one.revision.version) or releases.plain_row(one) for one in some]
        while len(self._rows) > _REMEMBERED:
            self._rows.popitem(last=False)
        return rows

    async def _list(self, namespace: str) -> list[ListRow]:
        """While the API server looks what there is now, we read what we do not know of what it remembers."""
        path = secrets(namespace)
        items, _ = await asyncio.gather(self.cluster.metadata(path, releases.SELECTOR), self._prepare(namespace))
        newest = await self._learn(namespace, items)
        if len(self._known) >= _NAMESPACES:
            self._known.clear()
        self._known.add(namespace)
        rows = [self._rows[one.version] for one in newest if one.version in self._rows]
        for one in newest:
            if one.version in self._rows:
                self._rows.move_to_end(one.version)
        while len(self._rows) > max(_REMEMBERED, len(rows)):
            self._rows.popitem(last=False)
        return rows

    async def _prepare(self, namespace: str) -> None:
        if namespace not in self._known:
            items = await self.cluster.remembered(secrets(namespace), _NOT_SUPERSEDED, METADATA_LIST)
            await self._learn(namespace, items)

    async def _learn(self, namespace: str, items: list[Mapping[str, Any]]) -> list[Revision]:
        """Reads those of the newest revisions that we have not seen; returns all of them, by name."""
        newest = sorted(releases.latest(releases.revisions(items)).values(), key=lambda one: one.release)
        unknown = [one for one in newest if one.version not in self._rows]
        for some in _slices(unknown, _AT_ONCE):
            await asyncio.gather(*(self._remember_some(namespace, few) for few in _slices(some, _TOGETHER)))
        return newest

    async def _remember_some(self, namespace: str, some: list[Revision]) -> None:
        """Reads some that we have not seen: in one go what the API server remembers just as it is, else one by one."""
        wanted = {one.version: one for one in some}
        if len(some) > 1:
            selector = f"{_NOT_SUPERSEDED},name in ({','.join(one.release for one in some)})"
            things = await self.cluster.remembered(secrets(namespace), selector, OBJECT)
            found = await asyncio.to_thread(_read, things, set(wanted))
            self._rows.update(found)
        for version in wanted.keys() - self._rows.keys():
            await self._remember(namespace, wanted[version])

    async def _remember(self, namespace: str, one: Revision) -> None:
        """Reads one that we have not seen. One that is gone meanwhile, or is no release, is not listed: as in helm."""
        secret = await secret_of(self.cluster, namespace, one.key)
        if secret is None:
            return
        try:
            self._rows[one.version] = releases.list_row(await unpacked(secret))
        except BadRelease as bad:
            log.warning("release %s/%s, revision %d: %s", namespace, one.release, one.number, bad)


async def secret_of(cluster: Cluster, namespace: str, key: str, accept: str = OBJECT) -> Mapping[str, Any] | None:
    """One Secret, by its name."""
    found = await cluster.get(f"{secrets(namespace)}/{quote(key, safe='')}", accept)
    return found if isinstance(found, dict) else None


async def unpacked(secret: Mapping[str, Any]) -> Stored:
    """What a Secret holds; a large one is unpacked by a worker. Raises `BadRelease`."""
    size = len((secret.get("data") or {}).get("release") or "")
    return await asyncio.to_thread(releases.unpacked, secret) if size > _BIG else releases.unpacked(secret)


def _read(things: list[Mapping[str, Any]], wanted: set[str]) -> dict[str, ListRow]:
    """The rows of those Secrets that are wanted, and are releases."""
    rows = {}
    for secret in things:
        for one in releases.revisions([secret]):
            if one.version in wanted:
                with contextlib.suppress(BadRelease):  # it is read alone then, and told of
                    rows[one.version] = releases.list_row(releases.unpacked(secret))
    return rows


def secrets(namespace: str) -> str:
    """The path of the Secrets of a namespace."""
    return f"/api/v1/namespaces/{quote(namespace, safe='')}/secrets"


def _slices(items: list[Item], size: int) -> Iterable[list[Item]]:
    return (items[start : start + size] for start in range(0, len(items), size))
