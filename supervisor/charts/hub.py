"""The public chart hub: a search of Artifact Hub's packages, through the guard."""

from __future__ import annotations

import json
import time
from collections import OrderedDict
from typing import Any
from urllib.parse import quote

from attrs import evolve

from models.charts.responses import HubItem
from models.errors import Upstream
from supervisor.charts.http import urls
from supervisor.charts.http.client import Fetcher
from supervisor.charts.http.exchange import Request
from supervisor.charts.http.urls import Url

_CHARTS = "0"
"""Artifact Hub's kind of package that is a helm chart."""
_LARGEST = 4 * 1024**2
_FRESH = 300.0
_KEPT = 100


class Hub:
    def __init__(self, fetcher: Fetcher, url: str) -> None:
        self._fetcher = fetcher
        self._url = url
        self._known: OrderedDict[tuple[str, int], tuple[float, list[HubItem]]] = OrderedDict()

    async def search(self, keyword: str, most: int) -> list[HubItem]:
        """Charts that the hub finds for `keyword`, the most relevant first. What it said is kept for five minutes.

        Raises `Invalid` where the hub may not be reached, `Upstream`, `TimedOut`.
        """
        at, found = self._known.get((keyword, most), (0.0, []))
        if not at or time.monotonic() - at > _FRESH:
            found = await self._asked(keyword, most)
            self._known[keyword, most] = (time.monotonic(), found)
            self._known.move_to_end((keyword, most))
            while len(self._known) > _KEPT:
                self._known.popitem(last=False)
        return found

    async def _asked(self, keyword: str, most: int) -> list[HubItem]:
        base = urls.parse(self._url, "svc.hub.url")
        url = evolve(base, path=f"{base.path.rstrip('/')}/api/v1/packages/search")
        asked = {"ts_query_web": keyword, "kind": _CHARTS, "limit": str(most), "offset": "0", "facets": "false"}
        request = Request(
            url.with_query(**asked, sort="relevance"),
            most=_LARGEST,
            unpack=True,
            headers={"Accept": "application/json"},
        )
        response = await self._fetcher.fetch(request)
        if not response.is_good:
            raise Upstream(f"the hub {base} answered {response.status}")
        try:
            packages = json.loads(response.body)["packages"]
            return [_item(one, base) for one in packages or ()][:most]
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
            raise Upstream(f"the hub {base} answered with something else than packages") from None


def _item(package: dict[str, Any], base: Url) -> HubItem:
    repository = package.get("repository") or {}
    name, of = _text(package, "normalized_name") or _text(package, "name"), _text(repository, "name")
    return HubItem(
        name=_text(package, "name"),
        version=_text(package, "version"),
        app_version=_text(package, "app_version"),
        repo_name=of,
        repo_url=_text(repository, "url"),
        description=_text(package, "description"),
        url=f"{str(base).rstrip('/')}/packages/helm/{quote(of, safe='')}/{quote(name, safe='')}",
    )


def _text(facts: dict[str, Any], name: str) -> str:
    value = facts.get(name)
    return value if isinstance(value, str) else ""
