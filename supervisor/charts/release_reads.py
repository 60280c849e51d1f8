"""Reads of releases: directly from the cluster, or by helm if only helm can use the kubeconfig.

`Clusters` holds the connections to each cluster in use; `Reads` is what an operation gets for one of them.
`ReleasesOverview` caches the releases of a whole cluster for pages.
"""

from __future__ import annotations

import asyncio
import logging
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any, TypeVar

from attrs import define, frozen

from models.charts import images, releases, yaml_values
from models.charts.kubeconfig import Access, UnsupportedKubeconfig
from models.charts.release_diff import What
from models.charts.releases import Brief, Stored
from models.charts.responses import Event, HistoryRow, Hook, Image, ListRow, Release, Resource, TestResult
from models.errors import Invalid, NotFound, Problem, TimedOut, Upstream
from supervisor.charts.helm.releases import ByHelm
from supervisor.charts.kube.cluster import DENIED, Cluster
from supervisor.charts.kube.config import ConfiguredCluster, Kube, Stamp, stamp
from supervisor.charts.kube.releases import Native
from supervisor.charts.kube.tree import Node
from supervisor.charts.workers import MAX_INLINE_YAML_BYTES, Workers
from supervisor.clock import Clock
from supervisor.single_flight import SingleFlight

log = logging.getLogger("charts")

Result = TypeVar("Result")

HelmFor = Callable[[ConfiguredCluster], Awaitable[ByHelm]]
"""Returns a reader that runs helm for a cluster. Raises `Unavailable` without helm."""

_MAX_CLUSTERS = 16
_READ_TIMEOUT_SECONDS = 60.0


@define(eq=False)
class _Opened:
    """A cluster with the files it depends on; `native` is `None` if only helm can connect."""

    files: list[Path]
    stamp: Stamp
    native: Native | None


class Clusters:
    """The clusters in use: the least recently used is closed. A changed kubeconfig reopens its cluster."""

    def __init__(
        self, kube: Kube, helm: HelmFor, clock: Clock, workers: Workers, namespaces: Sequence[str] = ()
    ) -> None:
        """`namespaces` are listed one by one if the account may not list all of them."""
        self.namespaces = namespaces
        self._clock = clock
        self.workers = workers
        self.kube = kube
        self._helm = helm
        self._opened: OrderedDict[ConfiguredCluster, _Opened] = OrderedDict()
        self._opening = asyncio.Lock()

    def has(self, file: Path | None = None, context: str | None = None) -> bool:
        """Whether a cluster is configured now; it may be unreachable. Checks files, so a new one counts at once."""
        return self.kube.place(file, context) is not None

    def place(self, file: Path | None = None, context: str | None = None) -> ConfiguredCluster:
        """The configured cluster. Raises `NotFound` without one."""
        place = self.kube.place(file, context)
        if place is None:
            raise NotFound("there is no cluster, so releases are not served")
        return place

    def reads(self, file: Path | None = None, context: str | None = None) -> Reads:
        """Reads of its releases. Raises `NotFound` without a cluster."""
        return Reads(self, self.place(file, context))

    async def source(self, place: ConfiguredCluster) -> Native | ByHelm:
        """The reader for a cluster. Raises `Upstream` if its kubeconfig cannot be used."""
        if self.kube.driver:
            return await self._helm(place)
        opened = self._opened.get(place)
        if opened is None or opened.stamp != stamp(opened.files):
            async with self._opening:
                opened = self._opened.get(place)
                if opened is None or opened.stamp != stamp(opened.files):
                    opened = await self._open(place)
        self._opened.move_to_end(place)
        return opened.native or await self._helm(place)

    async def _open(self, place: ConfiguredCluster) -> _Opened:
        files = list(place.files)
        before = stamp(files)
        try:
            access: Access | None = await asyncio.to_thread(self.kube.access, place)
        except UnsupportedKubeconfig as reason:
            log.info("releases are read by helm: %s", reason)
            access = None
        if access is not None:
            before += stamp(access.files)
            files += access.files
        opened = _Opened(
            files, before, Native(Cluster(access, self._clock, self.workers)) if access is not None else None
        )
        self._forget(place)
        self._opened[place] = opened
        while len(self._opened) > _MAX_CLUSTERS:
            self._forget(next(iter(self._opened)))
        return opened

    def _forget(self, place: ConfiguredCluster) -> None:
        opened = self._opened.pop(place, None)
        if opened is not None and opened.native is not None:
            opened.native.close()

    def close(self) -> None:
        for place in list(self._opened):
            self._forget(place)


class Reads:
    """Reads of the releases of one cluster.

    Each raises `NotFound` for a missing release, `Upstream` if the cluster fails, and `TimedOut`.
    """

    def __init__(self, clusters: Clusters, place: ConfiguredCluster) -> None:
        self._clusters = clusters
        self.place = place

    async def rows(self, namespace: str | None, selector: str | None = None) -> list[ListRow]:
        """The newest revision of each release of a namespace, sorted by name; of all namespaces if it is `None`."""
        if namespace is not None:
            return await self._within(lambda source: source.rows(namespace, selector))
        try:
            return await self._within(lambda source: source.all_rows(selector))
        except Upstream as problem:
            if problem.code != DENIED:
                raise
        namespaces = sorted(self._clusters.namespaces)
        if not namespaces:
            raise Upstream("the cluster does not authorize listing all namespaces (svc.kube.namespaces)", DENIED)
        return [row for each in namespaces for row in await self.rows(each, selector)]

    async def release(self, namespace: str, name: str, revision: int | None = None) -> Release:
        return releases.release(await self._stored(namespace, name, revision))

    async def row(self, namespace: str, name: str) -> ListRow:
        """The list row of the newest revision."""
        return releases.list_row(await self._stored(namespace, name, None))

    async def history(self, namespace: str, name: str) -> list[HistoryRow]:
        """The revisions, newest first."""
        return await self._within(lambda source: source.history(namespace, name))

    async def values(self, namespace: str, name: str, revision: int | None = None) -> dict[str, Any]:
        """The values that the user supplied."""
        return releases.values(await self._stored(namespace, name, revision))

    async def all_values(self, namespace: str, name: str, revision: int | None = None) -> dict[str, Any]:
        """The supplied values merged over the chart's own."""
        return await self._within(lambda source: source.all_values(namespace, name, revision))

    async def manifest(self, namespace: str, name: str, revision: int | None = None) -> str:
        return releases.manifest(await self._stored(namespace, name, revision))

    async def notes(self, namespace: str, name: str, revision: int | None = None) -> str:
        return releases.notes(await self._stored(namespace, name, revision))

    async def hooks(self, namespace: str, name: str, revision: int | None = None) -> list[Hook]:
        return releases.hooks(await self._stored(namespace, name, revision))

    async def images(self, namespace: str, name: str, revision: int | None = None) -> list[Image]:
        """The images of the manifest and of the hooks."""
        stored = await self._stored(namespace, name, revision)
        text = f"{releases.manifest(stored)}\n---\n{releases.hook_manifest(stored)}"
        try:
            return await self._clusters.workers.run_if(len(text) > MAX_INLINE_YAML_BYTES, images.images, text)
        except Invalid as problem:
            raise Upstream(f"release {name}: {problem.message}") from None

    async def text(self, what: What, namespace: str, name: str, revision: int | None = None) -> str:
        """What is compared of a revision: its manifest, values (YAML), notes, or the manifest of its hooks."""
        stored = await self._stored(namespace, name, revision)
        if what == "values":
            values = releases.values(stored)
            return await self._clusters.workers.run_if(not yaml_values.is_fast(values), yaml_values.dump, values)
        return {"manifest": releases.manifest, "notes": releases.notes, "hooks": releases.hook_manifest}[what](stored)

    async def test_results(self, namespace: str, name: str, since: datetime) -> list[TestResult]:
        """The result of each test for a run that began at `since`."""
        return releases.test_results(await self._stored(namespace, name, None), since)

    async def resources(self, namespace: str, name: str, revision: int | None = None) -> list[Resource]:
        """The live state of each object in the manifest, in order."""
        return await self._within(lambda source: source.resources(namespace, name, revision))

    async def tree(self, namespace: str, name: str) -> list[Node]:
        """The live objects of the newest revision, each followed by what it owns."""
        return await self._within(lambda source: _native(source).tree(namespace, name))

    async def events(self, nodes: list[Node]) -> list[Event]:
        """The events of these objects, newest first."""
        return await self._within(lambda source: _native(source).events(nodes))

    async def everywhere(self) -> list[Brief]:
        """The newest revision of each release of all namespaces."""
        return await self._within(lambda source: source.everywhere())

    async def described(self, briefs: list[Brief]) -> list[ListRow]:
        """The list rows of these releases."""
        return await self._within(lambda source: source.described(briefs))

    async def _stored(self, namespace: str, name: str, revision: int | None) -> Stored:
        return await self._within(lambda source: source.stored(namespace, name, revision))

    async def _within(self, read: Callable[[Native | ByHelm], Awaitable[Result]]) -> Result:
        timeout = asyncio.timeout(_READ_TIMEOUT_SECONDS)
        try:
            async with timeout:
                return await read(await self._clusters.source(self.place))
        except TimeoutError:
            if not timeout.expired():
                raise
            raise TimedOut(f"the cluster took longer than {_READ_TIMEOUT_SECONDS:g} s", "timeout") from None


def _native(source: Native | ByHelm) -> Native:
    """Raises `Upstream` if only helm can connect to the cluster: helm does not read single objects."""
    if isinstance(source, ByHelm):
        raise Upstream("the objects of this cluster cannot be read: its kubeconfig or HELM_DRIVER is for helm only")
    return source


_FRESH_SECONDS = 1.0
_STALE_SECONDS = 10.0
_PAGE_WAIT_SECONDS = 0.015
"""How long a page waits for the cluster if it has a snapshot to show."""


@frozen
class Snapshot:
    """A cluster's last response. `at` is the time of the query by the boot clock."""

    releases: list[Brief]
    problem: Problem | None
    at: float


class ReleasesOverview:
    """The releases of whole clusters for pages.

    A fresh snapshot is returned as it is unless a change was made here since. Otherwise the cluster is queried; if a
    snapshot exists, only briefly waited for.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._snapshots: OrderedDict[ConfiguredCluster, Snapshot] = OrderedDict()
        self._changed: dict[ConfiguredCluster, float] = {}
        self._queries: SingleFlight[Snapshot] = SingleFlight()
        self._tasks: set[asyncio.Task[Snapshot]] = set()

    async def newest(self, reads: Reads) -> Snapshot:
        """The current releases; for a slow cluster, those of a moment ago."""
        if (snapshot := self._younger(reads.place, _STALE_SECONDS)) is None or snapshot.problem is not None:
            return await self._begin(reads)
        if fresh := self._younger(reads.place, _FRESH_SECONDS):
            return fresh
        return await self._soon(reads, snapshot)

    async def lately(self, reads: Reads, max_age_seconds: float = _FRESH_SECONDS) -> Snapshot | None:
        """The last known releases; `None` if the cluster has never answered. Never waits long.

        The cluster is queried unless they are younger than `max_age_seconds`.
        """
        known = self._snapshots.get(reads.place)
        return self._younger(reads.place, max_age_seconds) or await self._soon(reads, known)

    def _younger(self, place: ConfiguredCluster, seconds: float) -> Snapshot | None:
        """The snapshot, if it is younger than that and than the last change that was made here."""
        snapshot, oldest = self._snapshots.get(place), self._clock.since_boot() - seconds
        is_younger = snapshot is not None and oldest < snapshot.at >= self._changed.get(place, 0)
        return snapshot if is_younger else None

    async def _soon(self, reads: Reads, known: Result) -> Snapshot | Result:
        """Queries the cluster; returns what is known if that takes long."""
        task = self._begin(reads)
        await asyncio.wait({task}, timeout=_PAGE_WAIT_SECONDS)
        return task.result() if task.done() else known

    def _begin(self, reads: Reads) -> asyncio.Task[Snapshot]:
        task = asyncio.create_task(self._queries.run(reads.place, lambda: self._query(reads)))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    def forget(self, place: ConfiguredCluster) -> None:
        """Invalidates the snapshot after a change: the next `newest` waits for the cluster."""
        self._changed[place] = self._clock.since_boot()
        if len(self._changed) > _MAX_CLUSTERS:
            self._changed.pop(next(iter(self._changed)))

    async def _query(self, reads: Reads) -> Snapshot:
        began = self._clock.since_boot()
        try:
            briefs, problem = await reads.everywhere(), None
        except Problem as problem_:
            briefs, problem = [], problem_
        snapshot = Snapshot(briefs, problem, began)
        self._snapshots[reads.place] = snapshot
        self._snapshots.move_to_end(reads.place)
        if len(self._snapshots) > _MAX_CLUSTERS:
            self._snapshots.popitem(last=False)
        return snapshot
