"""Searches the packages of Artifact Hub through the guarded HTTP client."""

from __future__ import annotations

from collections import OrderedDict

from attrs import evolve

from models.charts import hub
from models.charts.responses import HubItem
from models.errors import Invalid, Upstream
from supervisor.charts.fetcher import Fetcher
from supervisor.charts.workers import MAX_INLINE_BYTES, Workers
from supervisor.clock import Clock
from supervisor.http import urls
from supervisor.http.client import Request

_HELM_PACKAGE_KIND = "0"
"""Artifact Hub's package kind for helm charts."""
_MAX_RESPONSE_BYTES = 4 * 1024**2
CACHE_SECONDS = 300.0
MAX_CACHED_SEARCHES = 100


class Hub:
    def __init__(self, fetcher: Fetcher, url: str, clock: Clock, workers: Workers) -> None:
        self._clock = clock
        self._workers = workers
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
            root = str(base).rstrip("/")
            is_large = len(response.body) > MAX_INLINE_BYTES
            return await self._workers.run_if(is_large, hub.items, response.body, root, limit)
        except Invalid:
            raise Upstream(f"the hub {base} answered with something other than packages") from None
