"""Finds newer versions of the charts of releases: in stored indexes, and in the tags of OCI registries.

Tags are fetched in the background, at most once in `svc.upgrades.interval` for a reference. Until then, and if that
fails, a newer version is not known.
"""

from __future__ import annotations

import asyncio
import logging
from collections import OrderedDict
from collections.abc import Sequence

from attrs import frozen

from models.charts.refs import OCI, ChartRef
from models.charts.repositories import upgrades
from models.charts.repositories.upgrades import Wanted
from models.charts.responses import ListRow, Upgrade
from models.errors import Problem
from supervisor.charts.kube.config import ConfiguredCluster
from supervisor.charts.oci import Registries
from supervisor.charts.repositories import Repositories
from supervisor.clock import Clock

log = logging.getLogger("charts")

_MAX_REFERENCES = 1000


@frozen
class _Tags:
    """The versions of a reference, newest first, and when they were requested by the boot clock."""

    versions: Sequence[str]
    at: float


class Upgrades:
    def __init__(self, repositories: Repositories, registries: Registries, clock: Clock, interval: float) -> None:
        self._repositories = repositories
        self._registries = registries
        self._clock = clock
        self._interval = interval
        self._tags: OrderedDict[str, _Tags] = OrderedDict()
        self._tasks: set[asyncio.Task[None]] = set()

    async def remember(self, place: ConfiguredCluster, namespace: str, release: str, chart_ref: str | None) -> None:
        """Stores the reference with which a release was installed; `None` for an upload or an uninstall."""
        if chart_ref is not None:
            ref = ChartRef.parse(chart_ref)
            chart_ref = str(ref)
        await self._repositories.stored(lambda: upgrades.remember_source(_key(place), namespace, release, chart_ref))

    async def of_rows(self, place: ConfiguredCluster, rows: Sequence[ListRow]) -> list[list[Upgrade]]:
        """The newer versions of each release, newest first."""
        return await self._repositories.stored(lambda: self._of_rows(place, rows))

    def _of_rows(self, place: ConfiguredCluster, rows: Sequence[ListRow]) -> list[list[Upgrade]]:
        """Runs in a worker; each chart is looked up once."""
        sources = upgrades.sources(_key(place))
        found = dict[Wanted, list[Upgrade]]()
        results = []
        for row in rows:
            wanted = Wanted(row.chart, sources.get((row.namespace, row.name)))
            if wanted not in found:
                is_oci = (wanted.chart_ref or "").startswith(OCI)
                found[wanted] = self._of_tags(wanted) if is_oci else upgrades.newer_versions(wanted)
            results.append(found[wanted])
        return results

    def _of_tags(self, wanted: Wanted) -> list[Upgrade]:
        ref = wanted.chart_ref or ""
        known = self._tags.get(ref)
        name = ref.rpartition("/")[2]
        for chart, version in upgrades.named_versions(wanted.chart):
            if known is not None and chart == name:
                return [Upgrade(ref, text, None) for text in upgrades.later(version, known.versions)]
        return []

    async def refresh(self, place: ConfiguredCluster, rows: Sequence[ListRow]) -> None:
        """Begins to fetch the tags of the rows' registries that are not known or too old; does not wait for them."""
        sources = await self._repositories.stored(lambda: upgrades.sources(_key(place)))
        for row in rows:
            ref = sources.get((row.namespace, row.name), "")
            known = self._tags.get(ref)
            now = self._clock.since_boot()
            if ref.startswith(OCI) and (known is None or now - known.at >= self._interval):
                self._tags[ref] = _Tags(known.versions if known is not None else (), now)
                task = asyncio.create_task(self._fetch(ref), name=f"tags of {ref}")
                self._tasks.add(task)
                task.add_done_callback(self._tasks.discard)
        while len(self._tags) > _MAX_REFERENCES:
            self._tags.popitem(last=False)

    async def _fetch(self, ref: str) -> None:
        began = self._clock.since_boot()
        try:
            self._tags[ref] = _Tags(await self._registries.versions(ChartRef.parse(ref)), began)
        except Problem as problem:
            log.warning("newer versions of %s are not known: %s", ref, problem.message)

    def close(self) -> None:
        for task in self._tasks:
            task.cancel()


def _key(place: ConfiguredCluster) -> str:
    """Identifies a cluster."""
    return ":".join([*map(str, place.files), place.context or ""])
