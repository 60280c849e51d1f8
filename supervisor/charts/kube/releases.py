"""Releases read straight from the Secrets in which helm keeps them: what costs a helm 40 ms and more costs us a few."""

from __future__ import annotations

import asyncio
import time
from collections import OrderedDict
from collections.abc import Mapping
from typing import Any, TypeVar
from urllib.parse import quote

from models.charts import recovery, releases
from models.charts.recovery import Change
from models.charts.releases import BadRelease, Brief, Revision, Stored
from models.charts.resources import named
from models.charts.responses import HistoryRow, ListRow, Resource
from models.errors import NotFound, Upstream
from supervisor.charts.kube.cluster import METADATA, METADATA_LIST, OBJECT, Cluster
from supervisor.charts.kube.readiness import resources
from supervisor.charts.kube.release_rows import Rows, secret_of, secrets, unpacked
from supervisor.single_flight import SingleFlight

Key = TypeVar("Key")
Value = TypeVar("Value")

_REMEMBERED = 10_000
_BIG = 64 * 1024
_MANY = 32
_PAGE = 20
_TRIES = 3


class Native:
    """Reads the releases of one cluster. Raises `NotFound` for what is not there, and `Upstream`."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        self._rows = Rows(cluster)
        self._past: OrderedDict[str, HistoryRow] = OrderedDict()
        """Of revisions that were superseded, by what changes with each write of one."""
        self._numbers: OrderedDict[tuple[str, str], int] = OrderedDict()
        """Which revision of a release was the newest when it was last read."""
        self._reading: SingleFlight[Stored] = SingleFlight()

    def close(self) -> None:
        self.cluster.close()

    async def rows(self, namespace: str) -> list[ListRow]:
        """The newest revision of each release, whatever its status, by name."""
        return await self._rows.of(namespace)

    async def everywhere(self) -> list[Brief]:
        """The newest revision of each release of all namespaces, as the API server remembers them."""
        return await self._rows.everywhere()

    async def described(self, some: list[Brief]) -> list[ListRow]:
        """What else there is to say of a few releases; one that is gone meanwhile is told of by its labels."""
        return await self._rows.described(some)

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

    async def revision(self, namespace: str, name: str, number: int) -> Stored:
        """What is stored of one revision. Raises `NotFound`."""
        secret = await secret_of(self.cluster, namespace, releases.key(name, number))
        if secret is None:
            raise NotFound(f"release {name} in namespace {namespace} has no revision {number}")
        return await self._understood(secret, name)

    async def give_up(self, change: Change, description: str) -> bool:
        """Marks a release's newest revision as failed where that change has left it half done; whether it did."""
        for _ in range(_TRIES):
            secret = await self._newest_secret(change.namespace, change.name)
            stored = await self._understood(secret, change.name) if secret is not None else {}
            if secret is None or not change.has_left(stored):
                return False
            path = f"{secrets(change.namespace)}/{quote(secret['metadata']['name'], safe='')}"
            if await self.cluster.put(path, recovery.failed(secret, stored, description, time.time())):
                return True
        raise Upstream("somebody else writes it all the time")

    # One release

    async def _newest(self, namespace: str, name: str) -> Stored:
        secret = await self._newest_secret(namespace, name)
        if secret is None:
            raise _unknown(namespace, name)
        return await self._understood(secret, name)

    async def _newest_secret(self, namespace: str, name: str) -> Mapping[str, Any] | None:
        seen = await self._seen(namespace, name)
        if seen is not None:
            return seen[1]
        found = releases.latest(await self._revisions(namespace, name)).get(name)
        return await secret_of(self.cluster, namespace, found.key) if found is not None else None

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
            secret_of(self.cluster, namespace, releases.key(name, number)),
            secret_of(self.cluster, namespace, releases.key(name, number + 1), METADATA),
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
        async for page in self.cluster.pages(secrets(namespace), _selector(name), OBJECT, _PAGE):
            for secret in page:
                row = releases.history_row(await self._understood(secret, name))
                found.append(row)
                for one in releases.revisions([secret]):
                    self._keep_past(one, row)
        return found

    async def _past_row(self, namespace: str, name: str, one: Revision) -> HistoryRow | None:
        if one.version in self._past:
            return self._past[one.version]
        secret = await secret_of(self.cluster, namespace, one.key)
        if secret is None:
            return None
        row = releases.history_row(await self._understood(secret, name))
        for now in releases.revisions([secret]):
            self._keep_past(now, row)
        return row

    def _keep_past(self, one: Revision, row: HistoryRow) -> None:
        if one.status == releases.SUPERSEDED == row.status:
            _put(self._past, one.version, row)

    async def _revisions(self, namespace: str, name: str, is_hint: bool = False) -> list[Revision]:
        path, selector = secrets(namespace), _selector(name)
        if is_hint:
            found = await self.cluster.remembered(path, selector, METADATA_LIST)
        else:
            found = await self.cluster.metadata(path, selector)
        return [one for one in releases.revisions(found) if one.release == name]

    async def _understood(self, secret: Mapping[str, Any], name: str) -> Stored:
        try:
            return await unpacked(secret)
        except BadRelease as bad:
            raise Upstream(f"what the cluster keeps of release {name} cannot be read: {bad}") from None


def _put(cache: OrderedDict[Key, Value], key: Key, value: Value) -> None:
    """Keeps it, and lets go of the oldest of too many."""
    cache[key] = value
    if len(cache) > _REMEMBERED:
        cache.popitem(last=False)


def _selector(name: str) -> str:
    return f"{releases.SELECTOR},name={name}"


def _unknown(namespace: str, name: str) -> NotFound:
    return NotFound(f"there is no release {name} in namespace {namespace}")
