"""Releases read straight from the Secrets in which helm keeps them: what costs a helm 40 ms and more costs us a few."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections import OrderedDict
from collections.abc import Iterable, Mapping
from typing import Any, TypeVar
from urllib.parse import quote

from models.charts import briefs, releases
from models.charts.briefs import Brief
from models.charts.releases import BadRelease, Revision, Stored
from models.charts.resources import named
from models.charts.shapes import HistoryRow, ListRow, Resource
from models.errors import NotFound, Upstream
from supervisor.charts.cluster import METADATA, METADATA_LIST, OBJECT, Cluster
from supervisor.charts.readiness import resources
from supervisor.charts.together import Together

log = logging.getLogger("charts")

Item = TypeVar("Item")
Key = TypeVar("Key")
Value = TypeVar("Value")

_REMEMBERED = 10_000
_NAMESPACES = 1000
_AT_ONCE = 80
_TOGETHER = 20
_BIG = 64 * 1024
_MANY = 32
_SUPERSEDED = "superseded"
_PAGE = 20


class Native:
    """Reads the releases of one cluster. Raises `NotFound` for what is not there, and `Upstream`."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        self._rows: OrderedDict[str, ListRow] = OrderedDict()
        """By what changes with each write of a revision, so that a row is right as long as it is found."""
        self._past: OrderedDict[str, HistoryRow] = OrderedDict()
        """As `_rows`, for revisions that were superseded."""
        self._numbers: OrderedDict[tuple[str, str], int] = OrderedDict()
        """Which revision of a release was the newest when it was last read."""
        self._known: set[str] = set()
        """The namespaces that were listed."""
        self._listing: Together[list[ListRow]] = Together()
        self._reading: Together[Stored] = Together()

    def close(self) -> None:
        self.cluster.close()

    async def rows(self, namespace: str) -> list[ListRow]:
        """The newest revision of each release, whatever its status, by name."""
        return await self._listing.ask(namespace, lambda: self._list(namespace))

    async def newest(self, namespace: str, name: str) -> Stored:
        """What is stored of a release's newest revision."""
        return await self._reading.ask((namespace, name), lambda: self._newest(namespace, name))

    async def history(self, namespace: str, name: str) -> list[HistoryRow]:
        """All revisions of a release, the newest first."""
        rows = await self._history(namespace, name)
        if not rows:
            raise _unknown(namespace, name)
        return sorted(rows, key=lambda row: row.revision, reverse=True)

    async def all_values(self, namespace: str, name: str) -> dict[str, Any]:
        return releases.all_values(await self.newest(namespace, name))

    async def resources(self, namespace: str, name: str) -> list[Resource]:
        manifest = releases.manifest(await self.newest(namespace, name))
        try:
            objects = await asyncio.to_thread(named, manifest) if len(manifest) > _BIG // 8 else named(manifest)
        except ValueError as bad:
            raise Upstream(f"release {name}: {bad}") from None
        return await resources(self.cluster, objects, namespace)

    async def everywhere(self) -> list[Brief]:
        """The newest revision of each release of all namespaces, as the API server remembers them."""
        items = await self.cluster.remembered("/api/v1/secrets", briefs.SELECTOR, METADATA_LIST)
        return await asyncio.to_thread(briefs.briefs, items) if len(items) > _MANY else briefs.briefs(items)

    async def described(self, some: list[Brief]) -> list[ListRow]:
        """What else there is to say of a few releases; one that is gone meanwhile is told of by its labels."""
        unknown: dict[str, list[Revision]] = {}
        for one in some:
            if one.revision.version not in self._rows:
                unknown.setdefault(one.namespace, []).append(one.revision)
        parts = [(place, few) for place, all_ in unknown.items() for few in _slices(all_, _TOGETHER)]
        await asyncio.gather(*(self._remember_some(place, list(few)) for place, few in parts))
        rows = [self._rows.get(one.revision.version) or briefs.plain_row(one) for one in some]
        while len(self._rows) > _REMEMBERED:
            self._rows.popitem(last=False)
        return rows

    async def revision(self, namespace: str, name: str, number: int) -> Stored:
        """What is stored of one revision. Raises `NotFound`."""
        secret = await self._secret(namespace, releases.key(name, number))
        if secret is None:
            raise NotFound(f"release {name} in namespace {namespace} has no revision {number}")
        return await self._understood(secret, name)

    # The list

    async def _list(self, namespace: str) -> list[ListRow]:
        """While the API server looks what there is now, we read what we do not know of what it remembers."""
        path = _secrets(namespace)
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
            items = await self.cluster.remembered(_secrets(namespace), releases.SELECTOR, METADATA_LIST)
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
            selector = f"{releases.SELECTOR},status!=superseded,name in ({','.join(one.release for one in some)})"
            secrets = await self.cluster.remembered(_secrets(namespace), selector, OBJECT)
            found = await asyncio.to_thread(_rows, secrets, set(wanted))
            self._rows.update(found)
        for version in wanted.keys() - self._rows.keys():
            await self._remember(namespace, wanted[version])

    async def _remember(self, namespace: str, one: Revision) -> None:
        """Reads one that we have not seen. One that is gone meanwhile, or is no release, is not listed: as in helm."""
        secret = await self._secret(namespace, one.key)
        if secret is None:
            return
        try:
            self._rows[one.version] = releases.list_row(await _unpacked(secret))
        except BadRelease as bad:
            log.warning("release %s/%s, revision %d: %s", namespace, one.release, one.number, bad)

    # One release

    async def _newest(self, namespace: str, name: str) -> Stored:
        seen = await self._seen(namespace, name)
        if seen is not None:
            return await self._understood(seen[1], name)
        found = releases.latest(await self._revisions(namespace, name)).get(name)
        secret = await self._secret(namespace, found.key) if found is not None else None
        if secret is None:
            raise _unknown(namespace, name)
        return await self._understood(secret, name)

    async def _seen(self, namespace: str, name: str) -> tuple[list[Revision], Mapping[str, Any]] | None:
        """All revisions as the API server remembers them and the newest as it is now; `None` if it remembers wrongly.

        A label selector makes an API server read all Secrets of the namespace, unless it may use what it remembers. So
        its memory says which revision is the newest, and the store is asked for that one, and for the one after it:
        at once for the one that was the newest last time.
        """
        guess = self._numbers.get((namespace, name))
        revisions, pair = await asyncio.gather(
            self._revisions(namespace, name, is_hint=True), self._pair(namespace, name, guess)
        )
        newest = releases.latest(revisions).get(name)
        if newest is None:
            return None
        if newest.number != guess:
            pair = await self._pair(namespace, name, newest.number)
        _put(self._numbers, (namespace, name), newest.number)
        secret, following = pair
        return (revisions, secret) if secret is not None and following is None else None

    async def _pair(
        self, namespace: str, name: str, number: int | None
    ) -> tuple[Mapping[str, Any] | None, Mapping[str, Any] | None]:
        """A revision, and what is known of the one after it."""
        if number is None:
            return None, None
        secret, following = await asyncio.gather(
            self._secret(namespace, releases.key(name, number)),
            self._secret(namespace, releases.key(name, number + 1), METADATA),
        )
        return secret, following

    async def _history(self, namespace: str, name: str) -> list[HistoryRow]:
        """One that was superseded stays so: it is read once. Many that we have not read are read page by page."""
        seen = await self._seen(namespace, name)
        if seen is not None:
            revisions, secret = seen
            newest = releases.history_row(await self._understood(secret, name))
            older = [one for one in revisions if one.number != newest.revision]
            if sum(one.version not in self._past for one in older) <= _MANY:
                rows = await asyncio.gather(*(self._past_row(namespace, name, one) for one in older))
                return [newest, *(row for row in rows if row is not None)]
        found = []
        async for page in self.cluster.pages(_secrets(namespace), _selector(name), OBJECT, _PAGE):
            for secret in page:
                row = releases.history_row(await self._understood(secret, name))
                found.append(row)
                for one in releases.revisions([secret]):
                    self._keep_past(one, row)
        return found

    async def _past_row(self, namespace: str, name: str, one: Revision) -> HistoryRow | None:
        if one.version in self._past:
            return self._past[one.version]
        secret = await self._secret(namespace, one.key)
        if secret is None:
            return None
        row = releases.history_row(await self._understood(secret, name))
        for now in releases.revisions([secret]):
            self._keep_past(now, row)
        return row

    def _keep_past(self, one: Revision, row: HistoryRow) -> None:
        if one.status == _SUPERSEDED == row.status:
            _put(self._past, one.version, row)

    async def _revisions(self, namespace: str, name: str, is_hint: bool = False) -> list[Revision]:
        path, selector = _secrets(namespace), _selector(name)
        if is_hint:
            found = await self.cluster.remembered(path, selector, METADATA_LIST)
        else:
            found = await self.cluster.metadata(path, selector)
        return [one for one in releases.revisions(found) if one.release == name]

    async def _secret(self, namespace: str, key: str, accept: str = OBJECT) -> Mapping[str, Any] | None:
        found = await self.cluster.get(f"{_secrets(namespace)}/{quote(key, safe='')}", accept)
        return found if isinstance(found, dict) else None

    async def _understood(self, secret: Mapping[str, Any], name: str) -> Stored:
        try:
            return await _unpacked(secret)
        except BadRelease as bad:
            raise Upstream(f"what the cluster keeps of release {name} cannot be read: {bad}") from None


async def _unpacked(secret: Mapping[str, Any]) -> Stored:
    size = len((secret.get("data") or {}).get("release") or "")
    return await asyncio.to_thread(releases.unpacked, secret) if size > _BIG else releases.unpacked(secret)


def _rows(secrets: list[Mapping[str, Any]], wanted: set[str]) -> dict[str, ListRow]:
    """The rows of those Secrets that are wanted, and are releases."""
    rows = {}
    for secret in secrets:
        for one in releases.revisions([secret]):
            if one.version in wanted:
                with contextlib.suppress(BadRelease):  # it is read alone then, and told of
                    rows[one.version] = releases.list_row(releases.unpacked(secret))
    return rows


def _put(cache: OrderedDict[Key, Value], key: Key, value: Value) -> None:
    """Keeps it, and lets go of the oldest of too many."""
    cache[key] = value
    if len(cache) > _REMEMBERED:
        cache.popitem(last=False)


def _secrets(namespace: str) -> str:
    return f"/api/v1/namespaces/{quote(namespace, safe='')}/secrets"


def _selector(name: str) -> str:
    return f"{releases.SELECTOR},name={name}"


def _slices(items: list[Item], size: int) -> Iterable[list[Item]]:
    return (items[start : start + size] for start in range(0, len(items), size))


def _unknown(namespace: str, name: str) -> NotFound:
    return NotFound(f"there is no release {name} in namespace {namespace}")
