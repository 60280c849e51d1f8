"""The search over the indexes of all repositories."""

from __future__ import annotations

from handlers.charts.operations import ChartOperation, Warned
from handlers.http import serializers
from models.charts.refs import check_version
from models.charts.repositories import ranking
from models.charts.responses import ChartItem
from models.inputs import query
from models.json_format import http_message
from supervisor.charts.service import Work
from supervisor.charts.workers import MAX_INLINE_BYTES


@http_message(kw_only=True)
class RepositorySearchRequest:
    keyword: str = query("part of a name, description or keyword; all charts by default", "")
    versions: bool = query("every version instead of the newest one", False)
    devel: bool = query("prereleases too", False)
    version: str | None = query("only versions in this range", check=check_version)
    limit: int = query("the number of charts", 50, low=1, high=500)


async def search(work: Work, request: RepositorySearchRequest) -> Warned:
    wanted = request.version or (ranking.WITH_PRERELEASES if request.devel else ranking.STABLE)
    keyword = request.keyword.lower()
    charts = await work.charts.repositories.search(keyword)
    is_large = sum(len(chart.listing) for chart in charts) > MAX_INLINE_BYTES
    found, total = await work.charts.workers.run_if(
        is_large, ranking.best, charts, keyword, wanted, request.versions, request.limit
    )
    return Warned(serializers.encoded(found), headers={"X-Total-Count": str(total)})


SEARCH: list[ChartOperation] = [
    ChartOperation(
        "helm_search_repo", "GET", "/repos/search", "Search the charts of all repositories, best match first",
        RepositorySearchRequest, search, list[ChartItem], group="repositories", error_statuses=(400, 422, 500, 503),
        headers={"X-Total-Count": "The number of charts without limit"},
    ),
]  # fmt: skip
