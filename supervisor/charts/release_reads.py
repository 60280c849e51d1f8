"""What may be asked of releases, and who answers: we ourselves, or helm where the kubeconfig needs it.

`Clusters` holds the connections to each cluster that was asked for; `Reads` is what an operation gets of one of them.
"""

from __future__ import annotations

import asyncio
import logging
from collections import OrderedDict
from collections.abc import Awaitable, Callable
from datetime import datetime
from pathlib import Path
from typing import Any, TypeVar

from attrs import define

from models.charts import releases
from models.charts.kubeconfig import Access, UnsupportedKubeconfig
from models.charts.releases import Brief, Stored
from models.charts.responses import HistoryRow, Hook, ListRow, Release, Resource, TestResult
from models.errors import NotFound, TimedOut
from supervisor.charts.helm.releases import ByHelm
from supervisor.charts.kube.cluster import Cluster
from supervisor.charts.kube.config import Kube, Place, Stamp, stamp
from supervisor.charts.kube.releases import Native

log = logging.getLogger("charts")

Result = TypeVar("Result")

HelmFor = Callable[[Place], Awaitable[ByHelm]]
"""helm, as one who answers for a cluster. Raises `Unavailable` where there is none."""

_CLUSTERS = 16
_WHOLE = 60.0


@define(eq=False)
class _Opened:
    """A cluster with the files that led to it; `None` where only helm knows how to reach it."""

    files: list[Path]
    stamp: Stamp
    native: Native | None


class Clusters:
    """The clusters that were asked for: a few, the oldest let go. A change of a kubeconfig opens its cluster anew."""

    def __init__(self, kube: Kube, helm: HelmFor) -> None:
        self.kube = kube
        self._helm = helm
        self._opened: OrderedDict[Place, _Opened] = OrderedDict()
        self._opening = asyncio.Lock()

    def has(self, file: Path | None = None, context: str | None = None) -> bool:
        """Whether there is a cluster just now; it need not answer. Looks at files, so that one that appears counts."""
        return self.kube.place(file, context) is not None

    def place(self, file: Path | None = None, context: str | None = None) -> Place:
        """The cluster. Raises `NotFound` where there is none."""
        place = self.kube.place(file, context)
        if place is None:
            raise NotFound("there is no cluster, so releases are not served")
        return place

    def reads(self, file: Path | None = None, context: str | None = None) -> Reads:
        """What may be asked of its releases. Raises `NotFound` where there is no cluster."""
        return Reads(self, self.place(file, context))

    async def source(self, place: Place) -> Native | ByHelm:
        """Who answers for a cluster. Raises `Upstream` where its kubeconfig cannot be used."""
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

    async def _open(self, place: Place) -> _Opened:
        files = list(place.files)
        before = stamp(files)
        try:
            access: Access | None = await asyncio.to_thread(self.kube.access, place)
        except UnsupportedKubeconfig as what:
            log.info("helm reads releases itself: %s", what)
            access = None
        if access is not None:
            before += stamp(access.files)
            files += access.files
        opened = _Opened(files, before, Native(Cluster(access)) if access is not None else None)
        self._forget(place)
        self._opened[place] = opened
        while len(self._opened) > _CLUSTERS:
            self._forget(next(iter(self._opened)))
        return opened

    def _forget(self, place: Place) -> None:
        opened = self._opened.pop(place, None)
        if opened is not None and opened.native is not None:
            opened.native.close()

    def close(self) -> None:
        for place in list(self._opened):
            self._forget(place)


class Reads:
    """What may be asked of the releases of one cluster.

    Each raises `NotFound` for a release that is not there, `Upstream` where the cluster fails, and `TimedOut`.
    """

    def __init__(self, clusters: Clusters, place: Place) -> None:
        self._clusters = clusters
        self.place = place

    async def rows(self, namespace: str) -> list[ListRow]:
        """The newest revision of each release of a namespace, whatever its status, by name."""
        return await self._within(lambda source: source.rows(namespace))

    async def release(self, namespace: str, name: str) -> Release:
        return releases.release(await self._newest(namespace, name))

    async def history(self, namespace: str, name: str) -> list[HistoryRow]:
        """The newest revision first."""
        return await self._within(lambda source: source.history(namespace, name))

    async def values(self, namespace: str, name: str) -> dict[str, Any]:
        """What the user gave."""
        return releases.values(await self._newest(namespace, name))

    async def all_values(self, namespace: str, name: str) -> dict[str, Any]:
        """What the user gave over the chart's own."""
        return await self._within(lambda source: source.all_values(namespace, name))

    async def manifest(self, namespace: str, name: str) -> str:
        return releases.manifest(await self._newest(namespace, name))

    async def notes(self, namespace: str, name: str) -> str:
        return releases.notes(await self._newest(namespace, name))

    async def hooks(self, namespace: str, name: str) -> list[Hook]:
        return releases.hooks(await self._newest(namespace, name))

    async def test_results(self, namespace: str, name: str, since: datetime) -> list[TestResult]:
        """What a run that began then has found of each test."""
        return releases.test_results(await self._newest(namespace, name), since)

    async def resources(self, namespace: str, name: str) -> list[Resource]:
        """What is there of each object of the manifest, in its order."""
        return await self._within(lambda source: source.resources(namespace, name))

    async def everywhere(self) -> list[Brief]:
        """The newest revision of each release of all namespaces."""
        return await self._within(lambda source: source.everywhere())

    async def described(self, some: list[Brief]) -> list[ListRow]:
        """What else there is to say of a few of them."""
        return await self._within(lambda source: source.described(some))

    async def manifest_of(self, namespace: str, name: str, number: int) -> str:
        """The manifest of one revision. Raises `NotFound` for one that is not there."""
        return releases.manifest(await self._within(lambda source: source.revision(namespace, name, number)))

    async def _newest(self, namespace: str, name: str) -> Stored:
        return await self._within(lambda source: source.newest(namespace, name))

    async def _within(self, ask: Callable[[Native | ByHelm], Awaitable[Result]]) -> Result:
        whole = asyncio.timeout(_WHOLE)
        try:
            async with whole:
                return await ask(await self._clusters.source(self.place))
        except TimeoutError:
            if not whole.expired():
                raise
            raise TimedOut(f"the cluster took longer than {_WHOLE:g} s") from None
