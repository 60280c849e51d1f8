"""Where charts come from: a reference becomes an archive on disk, fetched through the guard, checked and proved."""

from __future__ import annotations

import asyncio
from pathlib import Path

from attrs import evolve

from models.charts import archive, repositories, semver
from models.charts.archive import ChartArchive
from models.charts.refs import OCI, ChartRef
from models.charts.repositories import Found, Source
from models.charts.tar_reader import Bounds
from models.errors import Invalid, NotFound, Upstream
from supervisor.charts.http import urls
from supervisor.charts.http.client import Fetcher
from supervisor.charts.http.exchange import Request, Response
from supervisor.charts.http.urls import Url
from supervisor.charts.oci import Registries, digest_of
from supervisor.charts.repositories import Repositories, login

_PROVENANCE = 1024**2


class Sources:
    def __init__(self, fetcher: Fetcher, known: Repositories, registries: Registries) -> None:
        self._fetcher = fetcher
        self._repositories = known
        self._registries = registries
        self._bounds = Bounds(packed=fetcher.limits.max_archive)

    async def chart(self, ref: ChartRef, folder: Path, proven: bool = False) -> ChartArchive:
        """Fetches a chart into `folder`; with its provenance beside it (`.prov`) where it is to be `proven`.

        Raises `NotFound`, `Invalid` (a refused address, an archive that may not be used), `Upstream`, `TimedOut`.
        """
        if ref.is_oci:
            path = await self._registries.pull(ref, folder, proven)
            return await self.checked(path)
        source = repositories.named(ref.repository)
        found = await self._repositories.find(source, ref.chart, ref.version)
        path = folder / f"{ref.name}-{found.version}.tgz"
        url: Url | str = found.url
        if found.url.startswith(OCI):
            path = await self._pulled(source, found, folder, proven)
        else:
            url = await self._fetched(source, found, path)
            if proven:
                await self._provenance(source, url, path)
        chart = await self.checked(path)
        if chart.name != ref.name or semver.version(chart.version) != semver.version(found.version):
            raise Upstream(f"{url} is not what the index of {source.name} says: it is {chart.name} {chart.version}")
        return chart

    async def _pulled(self, source: Source, found: Found, folder: Path, proven: bool) -> Path:
        """From the registry that the index leads to, as those of some large publishers do."""
        ref = ChartRef.parse(found.url, field=f"the URL in the index of {source.name}")
        if not ref.tag:
            ref = evolve(ref, tag=found.version.replace("+", "_"))
        path = await self._registries.pull(ref, folder, proven)
        if found.digest and await asyncio.to_thread(digest_of, path) != f"sha256:{found.digest}":
            raise Upstream(f"{found.url} is not what the index of {source.name} says: its digest is another")
        return path

    async def checked(self, path: Path) -> ChartArchive:
        """An archive on disk, whoever brought it. Raises `Invalid` where it may not be used."""
        return await asyncio.to_thread(archive.check, path, self._bounds)

    async def _fetched(self, source: Source, found: Found, path: Path) -> Url:
        if not found.url:
            raise Invalid(f"the index of {source.name} names no URL for version {found.version}")
        url = urls.parse(source.url).below(found.url)
        response = await self._get(source, url, path, self._fetcher.limits.max_archive)
        if response.status in (404, 410):
            raise NotFound(f"{url} is not there, although the index of {source.name} names it")
        if not response.is_good:
            raise Upstream(f"{url} answered {response.status}")
        if found.digest and found.digest != response.sha256:
            raise Upstream(f"{url} is not what the index of {source.name} says: its digest is another")
        return url

    async def _provenance(self, source: Source, url: Url, path: Path) -> None:
        """As helm does, from the archive's URL with `.prov` at its end. Raises `Invalid` where there is none."""
        beside = urls.parse(f"{url.scheme}://{url.authority}{url.path}.prov{f'?{url.query}' if url.query else ''}")
        response = await self._get(source, beside, path.with_name(f"{path.name}.prov"), _PROVENANCE)
        if not response.is_good:
            raise Invalid(f"the chart cannot be verified: {beside} answered {response.status}")

    async def _get(self, source: Source, url: Url, into: Path, most: int) -> Response:
        """Fetches what the repository names, with its login if that is of the same origin."""
        if url.login:
            raise Invalid(f"{url} is refused: an index may not bring a login")
        own = urls.parse(source.url)
        is_own = url.origin == own.origin
        may = is_own or (source.pass_login and not (own.scheme == "https" and url.scheme == "http"))
        request = Request(
            url,
            most=most,
            into=into,
            login=login(source) if may else None,
            pass_login=source.pass_login,
            verify=not source.insecure,
        )
        return await self._fetcher.fetch(request)
