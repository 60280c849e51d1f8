"""Adds, removes and updates chart repositories. This server keeps its own list of them, not helm's.

An index is fetched into a file, parsed in a worker, and replaces the previous one in one transaction. Listings are
stored as they will be sent.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar
from weakref import WeakValueDictionary

import peewee
from attrs import asdict, evolve, frozen
from tornado.httputil import HTTPHeaders

from models.charts.repositories import staged_index
from models.charts.repositories import stored as repositories
from models.charts.repositories.stored import FoundVersion, RepositorySource, StoredChart, catalogue
from models.charts.responses import RepositoryDetails
from models.errors import Conflict, Failed, Invalid, NotFound, Problem, Unavailable, Upstream
from models.json_format import rfc3339
from models.storage.staged_file import BadStaging
from models.times import MINUTE
from supervisor.charts.fetcher import Fetcher
from supervisor.charts.workers import Workers
from supervisor.clock import Clock
from supervisor.http import urls
from supervisor.http.client import Request, Response
from supervisor.http.tls import TlsCredentials, credentials_of
from supervisor.http.urls import OriginLogin, Url

log = logging.getLogger("charts")

Result = TypeVar("Result")

STORE_TIMEOUT_SECONDS = 300.0
_MAX_CONCURRENT_UPDATES = 4
_MAX_INDEX_SECONDS = 300
_MAX_INLINE_BYTES = 2 * 1024**2
_UNNAMED_FRESH = MINUTE
"""How long the index of a repository that is not configured is used without a new fetch."""


def login(source: RepositorySource) -> OriginLogin | None:
    return OriginLogin(source.username, source.password) if source.username or source.password else None


def with_credentials(source: RepositorySource, pem: TlsCredentials) -> RepositorySource:
    """The source with the certificates for its origin. Raises `Invalid` unless it is reached by https."""
    if urls.parse(source.url).scheme != "https":
        raise Invalid("ca, certificate and key need an https URL")
    return evolve(source, **asdict(pem))


def configured(name: str, url: str, username: str = "", password: str = "") -> RepositorySource:
    """The source for a request; a login in the URL becomes its login. Raises `Invalid`."""
    parsed = urls.parse(url)
    if "#" in url:
        raise Invalid("url is refused: it has a fragment")
    if parsed.login:
        username, password = username or parsed.login.username, password or parsed.login.password
        url = str(parsed)
    return RepositorySource(name, url, username, password)


@frozen
class IndexFault:
    """Why an index could not be updated, and since when (microseconds since 1970)."""

    message: str
    since: int


class Repositories:
    def __init__(self, fetcher: Fetcher, clock: Clock, workers: Workers) -> None:
        self._fetcher = fetcher
        self._workers = workers
        self._clock = clock
        self._locks: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()
        self._reading = asyncio.Lock()
        """One index at a time is read, so that it leaves workers for others."""
        self.faults: dict[str, IndexFault] = {}
        """The repositories whose index could not be updated, in this run of the server."""

    def _lock(self, name: str) -> asyncio.Lock:
        """Serializes changes of one repository."""
        return self._locks.setdefault(name, asyncio.Lock())

    async def stored(self, work: Callable[[], Result]) -> Result:
        """Runs a long read or a write in a worker. Raises `Unavailable` if the database does not answer."""
        try:
            return await asyncio.to_thread(catalogue.run_with_timeout, work, STORE_TIMEOUT_SECONDS)
        except peewee.OperationalError as error:
            raise Unavailable(f"the database of the repositories does not answer: {error}") from None

    async def _write(self, work: Callable[[], None]) -> None:
        """Writes, then checkpoints the write-ahead log in the worker."""
        await self.stored(work)
        await asyncio.to_thread(catalogue.checkpoint)

    # Reads

    def all(self) -> list[RepositorySource]:
        return repositories.all_named()

    async def details(self) -> list[RepositoryDetails]:
        """The configured repositories with the state of their indexes."""
        sizes = await self.stored(repositories.sizes)
        return [self._details(source, *sizes.get(source.id, (0, 0))) for source in self.all()]

    def _details(self, source: RepositorySource, charts: int, versions: int) -> RepositoryDetails:
        fault = self.faults.get(source.name or "")
        return RepositoryDetails(
            source.name or "",
            source.url,
            has_login=bool(source.username or source.password),
            has_ca=bool(source.authority),
            has_certificate=bool(source.certificate),
            fetched=rfc3339(source.fetched_at) if source.fetched_at else None,
            charts=charts,
            versions=versions,
            problem=fault.message if fault else None,
        )

    async def charts(self, name: str) -> bytes:
        """Its charts as JSON. Raises `NotFound`."""
        return await self._read(lambda max_bytes: repositories.listing(name, max_bytes))

    async def versions(self, name: str, chart: str) -> bytes:
        """A chart's versions as JSON, newest first. Raises `NotFound`."""
        return await self._read(lambda max_bytes: repositories.chart_listing(name, chart, max_bytes))

    async def _read(self, read: Callable[[int | None], bytes | None]) -> bytes:
        """Large listings are read in a worker."""
        listing = read(_MAX_INLINE_BYTES)
        return listing if listing is not None else await self.stored(lambda: read(None) or b"[]")

    async def search(self, keyword: str) -> list[StoredChart]:
        """The charts that may have a keyword (in lower case); an empty one is in all."""
        return await self.stored(lambda: repositories.charts_matching(keyword))

    async def find(self, source: RepositorySource, chart: str, wanted: str) -> FoundVersion:
        """The version that helm would choose for `wanted`. Raises `NotFound`, `Invalid`."""
        return await self.stored(lambda: repositories.find(source, chart, wanted))

    async def version_to_lock(self, source: RepositorySource, chart: str, wanted: str) -> str:
        """The version that helm would write to a lock. Raises `NotFound`, `Invalid`."""
        return await self.stored(lambda: repositories.version_to_lock(source, chart, wanted))

    # Changes

    async def add(self, requested: RepositorySource, folder: Path, force: bool = False) -> None:
        """Adds a repository after fetching its index. Adding the same URL again changes nothing.

        Raises `Conflict` if the name has another URL or other settings, unless `force`; `Invalid`, `Upstream` and
        `TimedOut` of its index.
        """
        name = requested.name or ""
        async with self._lock(name):
            try:
                existing = repositories.named(name)
            except NotFound:
                await self._refresh(requested, folder)
                self.faults.pop(name, None)
                return
            is_same = _comparable_url(existing.url) == _comparable_url(requested.url)
            if not force:
                if is_same and (
                    requested.is_like(evolve(existing, url=requested.url))
                    or requested == RepositorySource(name, requested.url)
                ):
                    return
                difference = "other settings" if is_same else "another URL"
                raise Conflict(f"the repository {name} exists already with {difference} (forceUpdate replaces it)")
            await self._refresh(evolve(requested, id=existing.id), folder)
            self.faults.pop(name, None)

    async def remove(self, name: str) -> None:
        """Removes a repository. Raises `NotFound`."""
        async with self._lock(name):
            repositories.named(name)
            await self._write(lambda: repositories.remove(name))
            self.faults.pop(name, None)

    async def update(self, name: str, folder: Path) -> None:
        """Fetches its index if it has changed. Raises `NotFound`, and the errors of the fetch."""
        async with self._lock(name):
            source = repositories.named(name)
            try:
                await self._refresh(source, folder)
            except Problem as problem:
                since = self.faults[name].since if name in self.faults else self._clock.now()
                self.faults[name] = IndexFault(problem.message, since)
                raise
            self.faults.pop(name, None)

    async def update_all(self, folder: Path) -> list[str]:
        """Updates all repositories; one line per failure. Raises `Upstream` if all failed."""
        slots = asyncio.Semaphore(_MAX_CONCURRENT_UPDATES)

        async def update_one(source: RepositorySource) -> str | None:
            try:
                async with slots:
                    await self.update(source.name or "", folder)
            except NotFound:
                return None  # removed meanwhile
            except Problem as problem:
                return f"{source.name}: {problem.message}"
            return None

        sources = self.all()
        failures = [line for line in await asyncio.gather(*map(update_one, sources)) if line]
        if sources and len(failures) == len(sources):
            raise Upstream("; ".join(failures))
        return failures

    async def of_url(self, url: str, folder: Path) -> RepositorySource:
        """The repository of a dependency's URL: a configured one, or one whose index is fetched now."""
        url = str(urls.parse(url, "the repository of a dependency"))
        for source in self.all():
            if _comparable_url(source.url) == _comparable_url(url):
                return source
        async with self._lock(url):
            stored_ = repositories.unnamed(url)
            if stored_ is None or not 0 <= self._clock.now() - stored_.fetched_at <= _UNNAMED_FRESH:
                await self._refresh(stored_ or RepositorySource(None, url), folder)
                await self.stored(repositories.forget_unnamed)
                stored_ = repositories.unnamed(url)
        if stored_ is None:
            raise Unavailable("the database of the repositories does not answer")
        return stored_

    async def _refresh(self, source: RepositorySource, folder: Path) -> None:
        """Fetches an index unless the stored one is current, and stores it."""
        url = index_url(source)
        conditions = {"If-None-Match": source.etag, "If-Modified-Since": source.modified}
        file = folder / f"index-{source.id}"
        rows = folder / f"{file.name}.db"
        request = Request(
            url,
            max_bytes=self._fetcher.limits.max_index,
            headers={name: value for name, value in conditions.items() if value},
            into=file,
            login=login(source),
            pass_login=source.pass_login,
            verify=not source.insecure,
            tls=credentials_of(source),
            unpack=True,
        )
        try:
            response = await self._fetcher.fetch(request)
            now = self._clock.now()
            if response.status == 304 and request.headers:
                await self._write(lambda: repositories.touch(evolve(source, fetched_at=now)))
                return
            check_index(response)
            etag, modified = _validators(response.headers)
            updated = evolve(source, fetched_at=now, etag=etag, modified=modified)
            async with self._reading:
                await self._workers.run_within(_MAX_INDEX_SECONDS, staged_index.stage, file, rows, source.name)
            await self._write(lambda: repositories.replace(updated, rows))
        except BadStaging as error:
            log.error("the index of %s was not stored: its staged rows are not valid: %s", url, error)
            raise Failed(f"the index of {url} could not be stored: an error in the server") from None
        finally:
            file.unlink(missing_ok=True)
            rows.unlink(missing_ok=True)


def index_url(source: RepositorySource) -> Url:
    url = urls.parse(source.url)
    return evolve(url, path=f"{url.path.rstrip('/')}/index.yaml")


def check_index(response: Response) -> None:
    """Raises `Invalid` if there is no index, `Upstream` if the server failed."""
    if response.status in (404, 410):
        raise Invalid(f"{response.url} was not found: this is not a chart repository")
    if not response.is_good:
        raise Upstream(f"{response.url} answered {response.status}")


def _validators(headers: HTTPHeaders) -> tuple[str, str]:
    return headers.get("ETag", "")[:1000], headers.get("Last-Modified", "")[:100]


def _comparable_url(url: str) -> str:
    """Equal for two spellings of the same URL."""
    return str(urls.parse(url)).rstrip("/")
