"""The operation on the public chart hub: a search."""

from __future__ import annotations

from attrs import frozen

from handlers.charts.operations import Operation
from models.charts.fields import query
from models.charts.shapes import HubItem
from supervisor.charts.service import Work


@frozen(kw_only=True)
class Search:
    keyword: str = query("what to look for", required=True)
    max_results: int = query("how many at most", 20, low=1, high=60)


async def search(work: Work, ask: Search) -> list[HubItem]:
    return await work.charts.hub.search(ask.keyword, ask.max_results)


operations: list[Operation] = [
    Operation(
        "helm_search_hub", "GET", "/hub/search", "Search the public chart hub", Search, search, list[HubItem],
        group="hub", fails=(400, 500, 502, 504),
    ),
]  # fmt: skip
