"""Which versions a chart's dependencies mean, from indexes and registries that were reached through the guard."""

from __future__ import annotations

from pathlib import Path

from models.charts import metadata, repositories, semver
from models.charts.archive import ChartArchive, Dependency
from models.charts.metadata import Locked
from models.charts.refs import OCI, ChartRef, check_version
from models.errors import Invalid
from supervisor.charts.oci import Registries
from supervisor.charts.repositories import Repositories

_NAMED = ("@", "alias:")


class Dependencies:
    def __init__(self, known: Repositories, registries: Registries) -> None:
        self._repositories = known
        self._registries = registries

    async def lock(self, chart: ChartArchive, generated: str, folder: Path) -> str:
        """The lock document of a chart; all of its dependencies are in it, be there conditions or not.

        Raises `Invalid` (`file://`, a refused address, a bad range), `NotFound`, `Upstream`, `TimedOut`.
        """
        locked = [await self._locked(chart, one, folder) for one in chart.dependencies]
        return metadata.document(locked, generated)

    async def _locked(self, chart: ChartArchive, one: Dependency, folder: Path) -> Locked:
        where = one.repository
        try:
            wanted = check_version(one.version)
            if not where:
                _check_vendored(chart, one, wanted)
                return Locked(one, one.version, "")
            if where.startswith(_NAMED):
                source = repositories.named(next(where.removeprefix(word) for word in _NAMED if where.startswith(word)))
                where = source.url
            elif where.startswith(OCI):
                ref = ChartRef.parse(f"{where.rstrip('/')}/{one.name}", wanted, "its repository")
                return Locked(one, await self._registries.version(ref), where)
            else:
                source = await self._repositories.of_url(where, folder)
            found = await self._repositories.find(source, one.name, wanted)
        except Invalid as problem:
            raise Invalid(f"the dependency {one.name}: {problem.message}") from None
        return Locked(one, found.version, where)


def _check_vendored(chart: ChartArchive, one: Dependency, wanted: str) -> None:
    """What has no repository must be in the chart's charts/. Raises `Invalid`."""
    allowed = semver.range_of(wanted)
    own = [semver.version(text) for name, text in chart.vendored if name == one.name]
    if not any(found and (allowed.allows(found) or found == semver.version(wanted)) for found in own):
        raise Invalid("it has no repository, and the chart does not bring it with it")
