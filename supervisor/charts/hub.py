"""Searches the packages of Artifact Hub through the guarded HTTP client."""

from __future__ import annotations

import json
from collections import OrderedDict
from typing import Any
from urllib.parse import quote

from attrs import evolve

from models.charts.responses import HubItem
from models.errors import Upstream
from models.json_format import text_of
from supervisor.charts.fetcher import Fetcher
from supervisor.clock import Clock
from supervisor.http import urls
from supervisor.http.client import Request
from supervisor.http.urls import Url

_HELM_PACKAGE_KIND = "0"
"""Artifact Hub's package kind for helm charts."""
_MAX_RESPONSE_BYTES = 4 * 1024**2
CACHE_SECONDS = 300.0
MAX_CACHED_SEARCHES = 100


class Hub:
    def __init__(self, fetcher: Fetcher, url: str, clock: Clock) -> None:
        self._clock = clock
        self._fetcher = fetcher
        self._url = url
        self._cache: OrderedDict[tuple[str, int], tuple[float, list[HubItem]]] = OrderedDict()

    async def search(self, keyword: str, limit: int) -> list[HubItem]:
        """Charts that match `keyword`, most relevant first. Results are cached for five minutes.

        Raises `Invalid` if the hub's address is refused, `Upstream`, `TimedOut`.
        """
        queried_at, items = self._cache.get((keyword, limit), (0.0, []))
        if not queried_at or self._clock.since_boot() - queried_at > CACHE_SECONDS:
            items = await self._query(keyword, limit)
            self._cache[keyword, limit] = (self._clock.since_boot(), items)
            self._cache.move_to_end((keyword, limit))
            while len(self._cache) > MAX_CACHED_SEARCHES:
                self._cache.popitem(last=False)
        return items

    async def _query(self, keyword: str, limit: int) -> list[HubItem]:
        base = urls.parse(self._url, "svc.hub.url")
        url = evolve(base, path=f"{base.path.rstrip('/')}/api/v1/packages/search")
        parameters = {
            "ts_query_web": keyword,
            "kind": _HELM_PACKAGE_KIND,
            "limit": str(limit),
            "offset": "0",
            "facets": "false",
        }
        request = Request(
            url.with_query(**parameters, sort="relevance"),
            max_bytes=_MAX_RESPONSE_BYTES,
            unpack=True,
            headers={"Accept": "application/json"},
        )
        response = await self._fetcher.fetch(request)
        if not response.is_good:
            raise Upstream(f"the hub {base} answered {response.status}")
        try:
            packages = json.loads(response.body)["packages"]
            return [_item(package, base) for package in packages or ()][:limit]
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
            raise Upstream(f"the hub {base} answered with something other than packages") from None


def _item(package: dict[str, Any], base: Url) -> HubItem:
    repository = package.get("repository") or {}
    name, repository_name = text_of(package, "normalized_name") or text_of(package, "name"), text_of(repository, "name")
    return HubItem(
        name=text_of(package, "name"),
        version=text_of(package, "version"),
        app_version=text_of(package, "app_version"),
        repo_name=repository_name,
        repo_url=text_of(repository, "url"),
        description=text_of(package, "description"),
        url=f"{str(base).rstrip('/')}/packages/helm/{quote(repository_name, safe='')}/{quote(name, safe='')}",
    )
