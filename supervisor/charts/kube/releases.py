"""Reads releases from the Secrets in which helm stores them: a few milliseconds instead of a helm process.

A list row is read once per revision and cached until the revision is rewritten.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, TypeVar
from urllib.parse import quote

from models.charts import releases
from models.charts.releases import BadRelease, Brief, ReleaseTooLarge, Revision, StartedChange, Stored
from models.charts.resources import ManifestObject, named
from models.charts.responses import Event, HistoryRow, ListRow, Resource
from models.errors import Invalid, NotFound, Unprocessable, Upstream
from models.times import SECOND
from supervisor.charts.kube.cluster import METADATA, METADATA_LIST, OBJECT, Cluster, resources
from supervisor.charts.kube.tree import Node, events_of, tree
from supervisor.charts.workers import MAX_INLINE_BYTES, MAX_INLINE_YAML_BYTES, Workers
from supervisor.single_flight import SingleFlight

log = logging.getLogger("charts")

Item = TypeVar("Item")
Key = TypeVar("Key")
Value = TypeVar("Value")

_MAX_CACHED_ROWS = 10_000
_MAX_KNOWN_NAMESPACES = 1000
_MAX_CONCURRENT_READS = 80
_BATCH_SIZE = 20
_MAX_INLINE_ITEMS = 32
_PAGE_SIZE = 20
_MAX_WRITE_ATTEMPTS = 3
_NOT_SUPERSEDED = f"{releases.SELECTOR},status!={releases.SUPERSEDED}"
"""The newest revision of a release never has the status superseded."""


class Rows:
    """Reads the lists of one cluster. Raises `Upstream`."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        self._rows: OrderedDict[str, ListRow] = OrderedDict()
        """By the version of a revision, which changes with each write, so a row that is found is current."""
        self._known: set[str] = set()
        """The namespaces that have been listed."""
        self._listing: SingleFlight[list[ListRow]] = SingleFlight()

    async def of(self, namespace: str) -> list[ListRow]:
        """The newest revision of each release, whatever its status, sorted by name."""
        return await self._listing.run(namespace, lambda: self._list(namespace))

    async def everywhere(self) -> list[Brief]:
        """The newest revision of each release of all namespaces, from the API server's cache."""
        path = "/api/v1/secrets"
        return await self.cluster.read_cached(path, releases.SELECTOR, METADATA_LIST, releases.briefs_of_list)

    async def described(self, briefs: list[Brief]) -> list[ListRow]:
        """The list rows of these releases; a release that is gone is described by its labels."""
        unknown: dict[str, list[Revision]] = {}
        for brief in briefs:
            if brief.revision.version not in self._rows:
                unknown.setdefault(brief.namespace, []).append(brief.revision)
        parts = [
            (namespace, batch) for namespace, revisions in unknown.items() for batch in _slices(revisions, _BATCH_SIZE)
        ]
        await asyncio.gather(*(self._read_batch(namespace, list(batch)) for namespace, batch in parts))
        rows = [self._rows.get(brief.revision.version) or releases.row_of_brief(brief) for brief in briefs]
        while len(self._rows) > _MAX_CACHED_ROWS:
            self._rows.popitem(last=False)
        return rows

    async def _list(self, namespace: str) -> list[ListRow]:
        """While the API server reads the current list, missing rows are read from its cached list."""
        path = secrets(namespace)
        items, _ = await asyncio.gather(self.cluster.metadata(path, releases.SELECTOR), self._read_cached(namespace))
        newest = await self._read_missing(namespace, items)
        if len(self._known) >= _MAX_KNOWN_NAMESPACES:
            self._known.clear()
        self._known.add(namespace)
        rows = [self._rows[revision.version] for revision in newest if revision.version in self._rows]
        for revision in newest:
            if revision.version in self._rows:
                self._rows.move_to_end(revision.version)
        while len(self._rows) > max(_MAX_CACHED_ROWS, len(rows)):
            self._rows.popitem(last=False)
        return rows

    async def _read_cached(self, namespace: str) -> None:
        if namespace not in self._known:
            items = await self.cluster.cached(secrets(namespace), _NOT_SUPERSEDED, METADATA_LIST)
            await self._read_missing(namespace, items)

    async def _read_missing(self, namespace: str, items: list[Mapping[str, Any]]) -> list[Revision]:
        """Reads the rows of newest revisions that are not cached; returns those revisions sorted by name."""
        newest = sorted(releases.latest(releases.revisions(items)).values(), key=lambda revision: revision.release)
        unknown = [revision for revision in newest if revision.version not in self._rows]
        for batch in _slices(unknown, _MAX_CONCURRENT_READS):
            await asyncio.gather(*(self._read_batch(namespace, part) for part in _slices(batch, _BATCH_SIZE)))
        return newest

    async def _read_batch(self, namespace: str, revisions: list[Revision]) -> None:
        """Reads several rows in one request from the API server's cache, and those it lacks one by one."""
        wanted = {revision.version: revision for revision in revisions}
        if len(revisions) > 1:
            selector = f"{_NOT_SUPERSEDED},name in ({','.join(revision.release for revision in revisions)})"
            path = secrets(namespace)
            read = releases.rows_of_list  # it inflates what it reads: no list is small for it
            self._rows.update(await self.cluster.read_cached(path, selector, OBJECT, read, set(wanted), max_inline=0))
        for version in wanted.keys() - self._rows.keys():
            await self._read_one(namespace, wanted[version])

    async def _read_one(self, namespace: str, revision: Revision) -> None:
        """Reads one row. A revision that is gone or cannot be unpacked is not listed, as in helm."""
        secret = await secret_of(self.cluster, namespace, revision.key)
        if secret is None:
            return
        try:
            self._rows[revision.version] = releases.list_row(await unpacked(self.cluster.workers, secret))
        except BadRelease as bad:
            log.warning("release %s/%s, revision %d: %s", namespace, revision.release, revision.number, bad)


async def secret_of(cluster: Cluster, namespace: str, key: str, accept: str = OBJECT) -> Mapping[str, Any] | None:
    """One Secret by its name."""
    secret = await cluster.get(f"{secrets(namespace)}/{quote(key, safe='')}", accept)
    return secret if isinstance(secret, dict) else None


async def unpacked(workers: Workers, secret: Mapping[str, Any]) -> Stored:
    """The release in a Secret, unpacked in a worker if it is large. Raises `BadRelease`."""
    size = len((secret.get("data") or {}).get("release") or "")
    if size <= MAX_INLINE_BYTES:
        with contextlib.suppress(ReleaseTooLarge):
            return releases.unpacked(secret, MAX_INLINE_BYTES)
    with _unpackable():
        return await workers.run(releases.for_responses, secret)


@contextlib.contextmanager
def _unpackable() -> Iterator[None]:
    """Raises `BadRelease` for a stored release that a worker could not unpack."""
    try:
        yield
    except Unprocessable as problem:
        if problem.code != releases.BAD_RELEASE:
            raise
        raise BadRelease(problem.message) from None


def secrets(namespace: str) -> str:
    """The path of the Secrets of a namespace."""
    return f"/api/v1/namespaces/{quote(namespace, safe='')}/secrets"


def _slices(items: list[Item], size: int) -> Iterable[list[Item]]:
    return (items[start : start + size] for start in range(0, len(items), size))


class Native:
    """Reads the releases of one cluster. Raises `NotFound` and `Upstream`."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        self._rows = Rows(cluster)
        self._past: OrderedDict[str, HistoryRow] = OrderedDict()
        """Rows of superseded revisions, by version."""
        self._numbers: OrderedDict[tuple[str, str], int] = OrderedDict()
        """The newest revision number of each release at its last read."""
        self._reading: SingleFlight[Stored] = SingleFlight()

    def close(self) -> None:
        self.cluster.close()

    async def rows(self, namespace: str, selector: str | None = None) -> list[ListRow]:
        """The newest revision of each release, whatever its status, sorted by name."""
        rows = await self._rows.of(namespace)
        if selector is None:
            return rows
        items = await self.cluster.metadata(secrets(namespace), releases.SELECTOR)
        selected = releases.selected(items, selector)
        return [row for row in rows if (namespace, row.name) in selected]

    async def all_rows(self, selector: str | None = None) -> list[ListRow]:
        """The newest revision of each release of all namespaces, sorted by namespace and name."""
        items = await self.cluster.metadata("/api/v1/secrets", releases.SELECTOR)
        briefs = await self.cluster.workers.run_if(len(items) > _MAX_INLINE_ITEMS, releases.briefs, items)
        if selector is not None:
            selected = releases.selected(items, selector)
            briefs = [brief for brief in briefs if (brief.namespace, brief.name) in selected]
        return await self._rows.described(briefs)

    async def everywhere(self) -> list[Brief]:
        """The newest revision of each release of all namespaces, from the API server's cache."""
        return await self._rows.everywhere()

    async def described(self, briefs: list[Brief]) -> list[ListRow]:
        """The list rows of these releases; a release that is gone is described by its labels."""
        return await self._rows.described(briefs)

    async def history(self, namespace: str, name: str) -> list[HistoryRow]:
        """All revisions of a release, newest first."""
        rows = await self._history(namespace, name)
        if not rows:
            raise unknown_release(namespace, name)
        return sorted(rows, key=lambda row: row.revision, reverse=True)

    async def stored(self, namespace: str, name: str, revision: int | None = None) -> Stored:
        """A revision as stored, the newest by default. Raises `NotFound`."""
        if revision is None:
            return await self._reading.run((namespace, name), lambda: self._newest(namespace, name))
        secret = await secret_of(self.cluster, namespace, releases.key(name, revision))
        if secret is None:
            raise unknown_release(namespace, name, revision)
        return await self._unpacked(secret, name)

    async def all_values(self, namespace: str, name: str, revision: int | None = None) -> dict[str, Any]:
        return releases.all_values(await self.stored(namespace, name, revision))

    async def resources(self, namespace: str, name: str, revision: int | None = None) -> list[Resource]:
        return await resources(self.cluster, await self._objects(namespace, name, revision), namespace)

    async def tree(self, namespace: str, name: str) -> list[Node]:
        """The live objects of the newest revision, each followed by what it owns."""
        return await tree(self.cluster, await self._objects(namespace, name, None), namespace)

    async def events(self, nodes: list[Node]) -> list[Event]:
        """The events of these objects, newest first."""
        return await events_of(self.cluster, nodes)

    async def _objects(self, namespace: str, name: str, revision: int | None) -> list[ManifestObject]:
        """The objects of a revision's manifest."""
        manifest = releases.manifest(await self.stored(namespace, name, revision))
        try:
            return await self.cluster.workers.run_if(len(manifest) > MAX_INLINE_YAML_BYTES, named, manifest)
        except Invalid as problem:
            raise Upstream(f"release {name}: {problem.message}") from None

    async def mark_failed(self, change: StartedChange, description: str) -> bool:
        """Marks a release's newest revision as failed if the change left it pending; returns whether it did."""
        for _ in range(_MAX_WRITE_ATTEMPTS):
            secret = await self._newest_secret(change.namespace, change.name)
            if secret is None:
                return False
            now = self.cluster.clock.now() / SECOND
            with _bad_release(change.name), _unpackable():
                marked = await self.cluster.workers.run(releases.marked_failed, secret, change, description, now)
            if marked is None:
                return False
            path = f"{secrets(change.namespace)}/{quote(secret['metadata']['name'], safe='')}"
            if await self.cluster.put(path, marked):
                return True
        raise Upstream("another client keeps writing it")

    # One release

    async def _newest(self, namespace: str, name: str) -> Stored:
        secret = await self._newest_secret(namespace, name)
        if secret is None:
            raise unknown_release(namespace, name)
        return await self._unpacked(secret, name)

    async def _newest_secret(self, namespace: str, name: str) -> Mapping[str, Any] | None:
        seen = await self._newest_and_revisions(namespace, name)
        if seen is not None:
            return seen[1]
        found = releases.latest(await self._revisions(namespace, name)).get(name)
        return await secret_of(self.cluster, namespace, found.key) if found is not None else None

    async def _newest_and_revisions(self, namespace: str, name: str) -> tuple[list[Revision], Mapping[str, Any]] | None:
        """All revisions from the API server's cache and the newest from the store; `None` if the cache is stale.

        With a label selector an API server reads all Secrets of the namespace unless it may answer from its cache. So
        the cache tells which revision is the newest, and the store is asked for that one and for the one after it. The
        newest revision of the last read is requested together with the cached list.
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
        _cache(self._numbers, (namespace, name), newest.number)
        secret, following = pair
        return (revisions, secret) if secret is not None and following is None else None

    async def _pair(
        self, namespace: str, name: str, number: int | None
    ) -> tuple[Mapping[str, Any] | None, Mapping[str, Any] | None]:
        """A revision, and the metadata of the one after it."""
        if number is None:
            return None, None
        secret, following = await asyncio.gather(
            secret_of(self.cluster, namespace, releases.key(name, number)),
            secret_of(self.cluster, namespace, releases.key(name, number + 1), METADATA),
        )
        return secret, following

    async def _history(self, namespace: str, name: str) -> list[HistoryRow]:
        """Superseded revisions never change and are read once. Many missing ones are read page by page."""
        seen = await self._newest_and_revisions(namespace, name)
        if seen is not None:
            revisions, secret = seen
            newest = releases.history_row(await self._unpacked(secret, name))
            older = [revision for revision in revisions if revision.number != newest.revision]
            if sum(revision.version not in self._past for revision in older) <= _MAX_INLINE_ITEMS:
                rows = await asyncio.gather(*(self._past_row(namespace, name, revision) for revision in older))
                return [newest, *(row for row in rows if row is not None)]
        rows_ = []
        async for page in self.cluster.pages(secrets(namespace), _selector(name), OBJECT, _PAGE_SIZE):
            for secret in page:
                row = releases.history_row(await self._unpacked(secret, name))
                rows_.append(row)
                for revision in releases.revisions([secret]):
                    self._keep_past(revision, row)
        return rows_

    async def _past_row(self, namespace: str, name: str, revision: Revision) -> HistoryRow | None:
        if revision.version in self._past:
            return self._past[revision.version]
        secret = await secret_of(self.cluster, namespace, revision.key)
        if secret is None:
            return None
        row = releases.history_row(await self._unpacked(secret, name))
        for current in releases.revisions([secret]):
            self._keep_past(current, row)
        return row

    def _keep_past(self, revision: Revision, row: HistoryRow) -> None:
        if revision.status == releases.SUPERSEDED == row.status:
            _cache(self._past, revision.version, row)

    async def _revisions(self, namespace: str, name: str, is_hint: bool = False) -> list[Revision]:
        path, selector = secrets(namespace), _selector(name)
        if is_hint:
            items = await self.cluster.cached(path, selector, METADATA_LIST)
        else:
            items = await self.cluster.metadata(path, selector)
        return [revision for revision in releases.revisions(items) if revision.release == name]

    async def _unpacked(self, secret: Mapping[str, Any], name: str) -> Stored:
        with _bad_release(name):
            return await unpacked(self.cluster.workers, secret)


@contextlib.contextmanager
def _bad_release(name: str) -> Iterator[None]:
    try:
        yield
    except BadRelease as bad:
        raise Upstream(f"the stored release {name} cannot be read: {bad}") from None


def _cache(cache: OrderedDict[Key, Value], key: Key, value: Value) -> None:
    """Adds to a cache and drops its oldest entry if it is full."""
    cache[key] = value
    if len(cache) > _MAX_CACHED_ROWS:
        cache.popitem(last=False)


def _selector(name: str) -> str:
    return f"{releases.SELECTOR},name={name}"


def unknown_release(namespace: str, name: str, revision: int | None = None) -> NotFound:
    """The problem of a release, or of a revision of it, that does not exist."""
    if revision is not None:
        return NotFound(f"release {name} in namespace {namespace} has no revision {revision}")
    return NotFound(f"there is no release {name} in namespace {namespace}")
