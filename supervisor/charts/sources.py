"""Resolves chart references to archives on disk (fetched through the guarded client, checked, optionally verified),
and the versions of a chart's dependencies.
"""

from __future__ import annotations

import asyncio
from pathlib import Path
from urllib.parse import unquote

from attrs import evolve

from models.charts import helm_errors
from models.charts.archives import archive, metadata
from models.charts.archives.archive import ChartArchive, ChartDependency
from models.charts.archives.metadata import ResolvedDependency
from models.charts.archives.tar_reader import ArchiveLimits
from models.charts.refs import OCI, ChartRef, check_version
from models.charts.repositories import semver
from models.charts.repositories import stored as repositories
from models.charts.repositories.stored import FoundVersion, RepositorySource
from models.errors import Invalid, NotFound, Upstream
from supervisor.charts.fetcher import Fetcher
from supervisor.charts.helm.runner import Bounds
from supervisor.charts.helm.slots import Helm
from supervisor.charts.oci import Registries, digest_of
from supervisor.charts.repositories import Repositories, login
from supervisor.charts.workers import Workers
from supervisor.http import urls
from supervisor.http.client import Request, Response
from supervisor.http.tls import credentials_of
from supervisor.http.urls import Url

_MAX_PROVENANCE_BYTES = 1024**2
_MAX_FILE_NAME_BYTES = 250
"""With `.prov` a file's name has at most 255 bytes."""


class Sources:
    def __init__(self, fetcher: Fetcher, repositories_: Repositories, registries: Registries, workers: Workers) -> None:
        self._workers = workers
        self._fetcher = fetcher
        self._repositories = repositories_
        self._registries = registries
        self._bounds = ArchiveLimits(packed=fetcher.limits.max_archive)

    async def chart(
        self,
        ref: ChartRef,
        folder: Path,
        proven: bool = False,
        is_safe_only: bool = False,
        is_evaluated: bool = False,
    ) -> ChartArchive:
        """Fetches and checks a chart in `folder`; with `proven` also its provenance file (`.prov`).

        With `is_safe_only` a malformed chart is returned too, as `archive.check` does. With `is_evaluated`, for what
        helm does with values, its schemas may not refer to other documents.

        Raises `NotFound`, `Invalid` (a refused address or archive), `Upstream`, `TimedOut`.
        """
        if ref.is_oci:
            path = await self._registries.pull(ref, folder, proven)
            return await self.checked(path, is_safe_only, is_evaluated)
        source = repositories.named(ref.repository)
        return await self.of_source(source, ref, folder, proven, is_safe_only, is_evaluated)

    async def of_source(
        self,
        source: RepositorySource,
        ref: ChartRef,
        folder: Path,
        proven: bool = False,
        is_safe_only: bool = False,
        is_evaluated: bool = False,
    ) -> ChartArchive:
        """As `chart`, from a repository that need not be configured; `ref.repository` does not count."""
        version_ = await self._repositories.find(source, ref.chart, ref.version)
        url: Url | str = version_.url
        if version_.url.startswith(OCI):
            path = await self._pulled(source, version_, folder, proven)
        else:
            url, name = _archive_url(source, version_), f"{ref.name}-{version_.version}.tgz"
            path = folder / (_file_name(url, name) if proven else name)
            await self._fetched(source, url, version_.digest, path)
            if proven:
                await self._provenance(source, url, path)
        chart = await self.checked(path, is_safe_only, is_evaluated)
        if not chart.name:
            return chart
        if chart.name != ref.name or semver.version(chart.version) != semver.version(version_.version):
            raise Upstream(f"{url} does not match the index of {source.name}: it is {chart.name} {chart.version}")
        return chart

    async def _pulled(self, source: RepositorySource, version_: FoundVersion, folder: Path, proven: bool) -> Path:
        """Pulls from the registry that the index names."""
        ref = ChartRef.parse(version_.url, field=f"the URL in the index of {source.name}")
        if not ref.tag:
            ref = evolve(ref, tag=version_.version.replace("+", "_"))
        path = await self._registries.pull(ref, folder, proven)
        if version_.digest and await asyncio.to_thread(digest_of, path) != f"sha256:{version_.digest}":
            raise Upstream(f"{version_.url} does not match the digest in the index of {source.name}")
        return path

    async def checked(self, path: Path, is_safe_only: bool = False, is_evaluated: bool = False) -> ChartArchive:
        """Checks an archive on disk; its schemas only if helm evaluates them. Raises `Invalid`."""
        return await self._workers.run(archive.check, path, self._bounds, is_safe_only, is_evaluated)

    async def _fetched(self, source: RepositorySource, url: Url, digest: str, path: Path) -> None:
        response = await self._get(source, url, path, self._fetcher.limits.max_archive)
        if response.status in (404, 410):
            raise NotFound(f"{url} was not found, although the index of {source.name} names it")
        if not response.is_good:
            raise Upstream(f"{url} answered {response.status}")
        if digest and digest != response.sha256:
            raise Upstream(f"{url} does not match the digest in the index of {source.name}")

    async def _provenance(self, source: RepositorySource, url: Url, path: Path) -> None:
        """As helm: the archive's URL with `.prov` appended. Raises `Invalid` if it is missing, else `Upstream`."""
        prov_url = urls.parse(f"{url.scheme}://{url.authority}{url.path}.prov{f'?{url.query}' if url.query else ''}")
        response = await self._get(source, prov_url, path.with_name(f"{path.name}.prov"), _MAX_PROVENANCE_BYTES)
        if response.status in (404, 410):
            raise Invalid(f"the chart cannot be verified: {prov_url} answered {response.status}")
        if not response.is_good:
            raise Upstream(f"{prov_url} answered {response.status}")

    async def _get(self, source: RepositorySource, url: Url, into: Path, max_bytes: int) -> Response:
        """Fetches a URL of the repository, with its login only for the same origin."""
        if url.login:
            raise Invalid(f"{url} is refused: an index may not contain a login")
        repository_url = urls.parse(source.url)
        is_own = url.origin == repository_url.origin
        may_send_login = is_own or (
            source.pass_login and not (repository_url.scheme == "https" and url.scheme == "http")
        )
        request = Request(
            url,
            max_bytes=max_bytes,
            into=into,
            login=login(source) if may_send_login else None,
            pass_login=source.pass_login,
            verify=not source.insecure,
            tls=credentials_of(source) if is_own else None,
        )
        return await self._fetcher.fetch(request)


def _archive_url(source: RepositorySource, version_: FoundVersion) -> Url:
    """Raises `Invalid`."""
    if not version_.url:
        raise Invalid(f"the index of {source.name} names no URL for version {version_.version}")
    return urls.parse(source.url).below(version_.url)


def _file_name(url: Url, default: str) -> str:
    """The last part of the URL's path, by which a provenance file names its archive; else `default`."""
    name = unquote(url.path).rstrip("/").rpartition("/")[2]
    is_safe = name.isprintable() and name not in ("", ".", "..") and len(name.encode()) <= _MAX_FILE_NAME_BYTES
    return name if is_safe else default


_NAME_PREFIXES = ("@", "alias:")


class Dependencies:
    """Resolves the dependencies of a chart to versions, using indexes and registries reached through the guard."""

    def __init__(self, repositories_: Repositories, registries: Registries, workers: Workers) -> None:
        self._workers = workers
        self._repositories = repositories_
        self._registries = registries

    async def lock(self, chart: ChartArchive, generated: str, folder: Path) -> str:
        """The lock document of a chart, with all dependencies whatever their conditions.

        Raises `Invalid` (`file://`, a refused address, a bad range or alias), `NotFound`, `Upstream`, `TimedOut`.
        """
        locked = await self.resolved(chart, folder)
        return await self._workers.run(metadata.lock_document, locked, generated)

    async def resolved(self, chart: ChartArchive, folder: Path) -> list[ResolvedDependency]:
        """The newest allowed version of each dependency. Raises as `lock`."""
        chart.check_dependencies()
        return [await self._locked(chart, dependency, folder) for dependency in chart.dependencies]

    async def _locked(self, chart: ChartArchive, dependency: ChartDependency, folder: Path) -> ResolvedDependency:
        repository = dependency.repository
        try:
            wanted = check_version(dependency.version)
            if not wanted:
                raise Invalid("it has no version")
            if not repository:
                _check_vendored(chart, dependency, wanted)
                return ResolvedDependency(dependency, dependency.version, "")
            if repository.startswith(_NAME_PREFIXES):
                source = _named(repository)
                repository = source.url
            elif repository.startswith(OCI):
                ref = ChartRef.parse(f"{repository.rstrip('/')}/{dependency.name}", wanted, "its repository")
                return ResolvedDependency(dependency, await self._registries.version(ref), repository)
            else:
                source = await self._repositories.of_url(repository, folder)
            chosen = await self._repositories.version_to_lock(source, dependency.name, wanted)
        except Invalid as problem:
            raise Invalid(f"the dependency {dependency.name}: {problem.message}", problem.code) from None
        return ResolvedDependency(dependency, chosen, repository)


def _named(repository: str) -> RepositorySource:
    """The configured repository that `@name` or `alias:name` stands for. Raises `NotFound`."""
    return repositories.named(
        next(repository.removeprefix(prefix) for prefix in _NAME_PREFIXES if repository.startswith(prefix))
    )


def repository_url(repository: str) -> str:
    """The repository of a dependency, with the URL instead of `@name`. Raises `NotFound`."""
    return _named(repository).url if repository.startswith(_NAME_PREFIXES) else repository


def _check_vendored(chart: ChartArchive, dependency: ChartDependency, wanted: str) -> None:
    """A dependency without a repository must be in charts/. Raises `Invalid`."""
    allowed = semver.range_of(wanted)
    versions = [semver.version(text) for name, text in chart.vendored if name == dependency.name]
    if not any(version_ and (allowed.allows(version_) or version_ == semver.version(wanted)) for version_ in versions):
        raise Invalid("it has no repository and is not in charts/")


_VERIFY_TIMEOUT_SECONDS = 30.0


def check_keyring(keyring: Path | None) -> Path:
    """The operator's keyring. Raises `Invalid` if none is configured or the file is missing."""
    if keyring is None:
        raise Invalid("verify needs a keyring (svc.fetch.keyring)")
    if not keyring.is_file():
        raise Invalid("verify: the keyring of svc.fetch.keyring does not exist")
    return keyring.absolute()


async def verify_provenance(helm: Helm, chart: ChartArchive, keyring: Path, folder: Path) -> None:
    """Verifies a chart against the provenance file next to it. `folder` is an empty folder for helm.

    Raises `Invalid` if no key in the keyring signed it, or the archive was changed.
    """
    arguments = ["verify", f"--keyring={keyring}", "--", str(chart.path)]
    output = await helm.run(arguments, folder, Bounds(_VERIFY_TIMEOUT_SECONDS, f"{_VERIFY_TIMEOUT_SECONDS:g} s"))
    if not output.ok:
        raise Invalid(f"the chart cannot be verified: {helm_errors.verification_reason(output.stderr)}")
