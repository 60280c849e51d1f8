"""The page of a project's insights: four lists of tests, or one of them in full."""

from __future__ import annotations

from typing import Any

from handlers.routing import Route
from handlers.tracker.pages.failure_pages import FailurePage
from handlers.tracker.serializers import failure_rate, flaky_rate
from models.errors import Invalid
from models.inputs import read
from models.tracker import queries, visibility
from models.tracker.insights import listing
from models.tracker.insights.listing import SORTS, InsightFilter

_ROWS, _ALL_ROWS = 10, 100


class InsightPage(FailurePage):
    async def get(self, id: str) -> None:
        filters, cursor = self.filters("branch", "flag", "since", "sort")
        wanted, sort = read(InsightFilter, {}, self.query(), {}), filters["sort"]
        if sort is not None and sort not in SORTS:
            raise Invalid(f"sort must be one of {', '.join(SORTS)}")

        def values() -> dict[str, Any]:
            project = visibility.project(self.caller.user, id)
            source = listing.source(project.id, wanted)
            shown = SORTS if sort is None else (sort,)
            rows = _ROWS if sort is None else _ALL_ROWS
            lists = {each: source.page(each, rows, cursor if sort else None) for each in shown}
            return {"project": project, "lists": lists, "flags": queries.flags(project.id), "source": source}

        rates = {"failure_rate": failure_rate, "flaky_rate": flaky_rate}
        await self.show("tracker/insights.html", filters=filters, sort=sort, **rates, **await self.read(values))


routes: list[Route] = [(r"/projects/([0-9]{1,18})/insights", InsightPage)]
