"""The chart repositories: added, removed, and their indexes brought up to date. The list of them is ours alone.

An index is fetched into a file, read by a worker, and takes the place of the one before whole or not at all. Listings
are read from the store as they will be sent.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar
from weakref import WeakValueDictionary

import peewee
from attrs import evolve
from tornado.httputil import HTTPHeaders

from models.charts import repositories, repository_index
from models.charts.repositories import Found, Source
from models.charts.tables import catalogue
from models.errors import Conflict, Invalid, NotFound, Problem, Unavailable, Upstream
from supervisor.charts.http import urls
from supervisor.charts.http.client import Fetcher
from supervisor.charts.http.exchange import Request, Response
from supervisor.charts.http.urls import Login, Url
from supervisor.clock import Clock

Result = TypeVar("Result")

_READING_TAKES = 300.0
_AT_ONCE = 4
_READ_AT_ONCE = 2
_SMALL = 2 * 1024**2
_FRESH = 60 * 1_000_000
"""Microseconds for which an index that nobody configured is not asked for again."""


def login(source: Source) -> Login | None:
    return Login(source.username, source.password) if source.username or source.password else None


def configured(name: str, url: str, username: str = "", password: str = "") -> Source:
    """A repository as it was asked for; a login in its URL becomes its login. Raises `Invalid`."""
    found = urls.parse(url)
    if "#" in url:
        raise Invalid("url is refused: it has a fragment, which makes it look like another than it is")
    if found.login:
        username, password = username or found.login.username, password or found.login.password
        url = str(found)
    return Source(name, url, username, password)


class Repositories:
    def __init__(self, fetcher: Fetcher, clock: Clock) -> None:
        self._fetcher = fetcher
        self._clock = clock
        self._locks: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()
        self._reading = asyncio.Semaphore(_READ_AT_ONCE)

    def _lock(self, name: str) -> asyncio.Lock:
        """One change of a repository at a time."""
        return self._locks.setdefault(name, asyncio.Lock())

    async def stored(self, work: Callable[[], Result]) -> Result:
        """Runs what reads much, or writes, in a worker. Raises `Unavailable` where the store does not answer."""
        try:
            return await asyncio.to_thread(catalogue.run_with_timeout, work, _READING_TAKES)
        except peewee.OperationalError as error:
            raise Unavailable(f"the store of the repositories does not answer: {error}") from None

    async def _changed(self, work: Callable[[], None]) -> None:
        """Writes; what was written is moved out of the write-ahead log while a worker is at it."""
        await self.stored(work)
        await asyncio.to_thread(catalogue.checkpoint)

    # What is known

    def all(self) -> list[Source]:
        return repositories.all_named()

    async def charts(self, name: str) -> bytes:
        """Its charts as JSON. Raises `NotFound`."""
        return await self._read(lambda most: repositories.listing(name, most))

    async def versions(self, name: str, chart: str) -> bytes:
        """A chart's versions as JSON, newest first. Raises `NotFound`."""
        return await self._read(lambda most: repositories.chart_listing(name, chart, most))

    async def _read(self, read: Callable[[int | None], bytes | None]) -> bytes:
        """What is large is read by a worker."""
        found = read(_SMALL)
        return found if found is not None else await self.stored(lambda: read(None) or b"[]")

    async def find(self, source: Source, chart: str, wanted: str) -> Found:
        """The version that helm would take for `wanted`. Raises `NotFound`, `Invalid`."""
        return await self.stored(lambda: repositories.find(source, chart, wanted))

    # Changes

    async def add(self, asked: Source, folder: Path, force: bool = False) -> None:
        """Adds a repository whose index can be read. With the URL that it has already, it is as it was.

        Raises `Conflict` where the name is another's, unless `force`; `Invalid`, `Upstream`, `TimedOut` of its index.
        """
        name = asked.name or ""
        async with self._lock(name):
            try:
                known = repositories.named(name)
            except NotFound:
                await self._refresh(asked, folder)
                return
            is_same = _key(known.url) == _key(asked.url)
            if not force:
                if is_same and (asked.is_like(evolve(known, url=asked.url)) or asked == Source(name, asked.url)):
                    return
                what = "other settings" if is_same else "another URL"
                raise Conflict(f"the repository {name} is there already, with {what} (forceUpdate replaces it)")
            await self._refresh(evolve(asked, id=known.id), folder)

    async def remove(self, name: str) -> None:
        """Raises `NotFound`."""
        async with self._lock(name):
            repositories.named(name)
            await self._changed(lambda: repositories.remove(name))

    async def update(self, name: str, folder: Path) -> None:
        """Fetches its index if it has changed. Raises `NotFound`, and what its index is refused for."""
        async with self._lock(name):
            await self._refresh(repositories.named(name), folder)

    async def update_all(self, folder: Path) -> list[str]:
        """Updates all of them; one line for each that could not be. Raises `Upstream` where none could."""
        turns = asyncio.Semaphore(_AT_ONCE)

        async def one(source: Source) -> str | None:
            try:
                async with turns:
                    await self.update(source.name or "", folder)
            except NotFound:
                return None  # removed meanwhile
            except Problem as problem:
                return f"{source.name}: {problem.message}"
            return None

        sources = self.all()
        failures = [line for line in await asyncio.gather(*map(one, sources)) if line]
        if sources and len(failures) == len(sources):
            raise Upstream("; ".join(failures))
        return failures

    async def of_url(self, url: str, folder: Path) -> Source:
        """The repository of a URL that a chart's dependency names: one of ours, or one whose index is fetched now."""
        url = str(urls.parse(url, "the repository of a dependency"))
        for source in self.all():
            if _key(source.url) == _key(url):
                return source
        async with self._lock(url):
            known = repositories.unnamed(url)
            if known is None or not 0 <= self._clock.now() - known.fetched_at <= _FRESH:
                await self._refresh(known or Source(None, url), folder)
                await self.stored(repositories.forget_unnamed)
                known = repositories.unnamed(url)
        if known is None:
            raise Unavailable("the store of the repositories does not answer")
        return known

    async def _refresh(self, source: Source, folder: Path) -> None:
        """Fetches an index unless what is kept is still its newest, and puts it into the store."""
        place = index_url(source)
        conditions = {"If-None-Match": source.etag, "If-Modified-Since": source.modified}
        file = folder / f"index-{source.id}"
        request = Request(
            place,
            most=self._fetcher.limits.max_index,
            headers={name: value for name, value in conditions.items() if value},
            into=file,
            login=login(source),
            pass_login=source.pass_login,
            verify=not source.insecure,
            unpack=True,
        )
        try:
            response = await self._fetcher.fetch(request)
            now = self._clock.now()
            if response.status == 304 and request.headers:
                await self._changed(lambda: repositories.touch(evolve(source, fetched_at=now)))
                return
            check_index(response)
            etag, modified = _validators(response.headers)
            new = evolve(source, fetched_at=now, etag=etag, modified=modified)
            async with self._reading:
                await self._changed(lambda: repositories.replace(new, repository_index.charts(file)))
        finally:
            file.unlink(missing_ok=True)


def index_url(source: Source) -> Url:
    url = urls.parse(source.url)
    return evolve(url, path=f"{url.path.rstrip('/')}/index.yaml")


def check_index(response: Response) -> None:
    """Raises `Invalid` where there is no index, `Upstream` where the server failed to give it."""
    if response.status in (404, 410):
        raise Invalid(f"{response.url} is not there: this is no chart repository")
    if not response.is_good:
        raise Upstream(f"{response.url} answered {response.status}")


def _validators(headers: HTTPHeaders) -> tuple[str, str]:
    return headers.get("ETag", "")[:1000], headers.get("Last-Modified", "")[:100]


def _key(url: str) -> str:
    """By which two spellings of a repository's URL are the same."""
    return str(urls.parse(url)).rstrip("/")
