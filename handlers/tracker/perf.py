"""`/runs/{id}/perf` and `/projects/{id}/perf`: the performance of a run, and of the runs of a flag over time."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from handlers.http.permissions import READ
from handlers.http.serializers import Instant
from handlers.openapi.describe import Endpoint, number, word
from handlers.openapi.describe import whole as whole_number
from handlers.routing import Route
from handlers.tracker import serializers
from handlers.tracker.base import Tracked
from handlers.tracker.detail_responses import PerfHistory, PerfHistoryEntry, RunPerf
from handlers.tracker.pages import ReadPage
from models.errors import Invalid
from models.paging import INT64, whole
from models.tracker import perf, quality_gate, queries, visibility
from models.tracker.kept_answers import state_of_run
from models.tracker.perf import MAX_HISTORY, Compared
from models.tracker.tables import Project

_DEFAULT_RUNS = 30
_MAX_LABELS_OF_HISTORY = 50
"""Labels of each run of a history without `label`."""


class RunPerformance(Tracked):
    permission = READ
    endpoints: ClassVar = {
        "GET": Endpoint(
            "The performance of a run by label, against the median of its baselines", RunPerf, path=["id"],
            query=[number("id", "The run")], fails=[404], name="run_perf",
        )
    }  # fmt: skip

    async def get(self, id: str) -> None:
        def measured() -> RunPerf:
            run, project = visibility.run(self.user, id)
            limits = quality_gate.thresholds(project, self.config.tracker.quality_gate)
            bases = perf.baselines(run.id, limits.base_branch)
            rows = perf.compared(run.id, bases)
            return RunPerf(run.id, run.flag, bases, [serializers.perf_info(row) for row in rows])

        await self.answer_kept(("perf", id), lambda: state_of_run(self.user, id), measured)


def history(project: Project, query: Mapping[str, str | None]) -> PerfHistory:
    """The runs of a flag with their points, newest first. Raises `Invalid`."""
    limit = whole("limit", query.get("limit") or str(_DEFAULT_RUNS), 1, MAX_HISTORY)
    try:
        before = whole("cursor", query.get("cursor") or str(INT64), 1, INT64)
    except Invalid:
        raise Invalid("cursor is not one of this list") from None
    flags, label = perf.flags(project.id), query.get("label") or ""
    flag = query.get("flag") or (flags[0] if flags and "perf" not in flags else "perf")
    ids = perf.history(project.id, flag, label, before, limit)
    runs, points = queries.runs_by_id(ids), perf.points(ids)
    items = []
    for id in ids:
        shown = [point for point in points[id] if not label or point.label == label][:_MAX_LABELS_OF_HISTORY]
        run, infos = runs[id], [serializers.perf_info(Compared(point)) for point in shown]
        items.append(PerfHistoryEntry(id, run.branch, run.commit_sha, Instant(run.created_at), infos))
    return PerfHistory(flag, flags, items, str(ids[-1]) if len(ids) == limit else None)


class ProjectPerformance(Tracked):
    permission = READ
    endpoints: ClassVar = {
        "GET": Endpoint(
            "The performance of the runs of a flag, newest first", PerfHistory, path=["id"],
            query=[
                number("id", "The project"),
                word("flag", "The flag of the runs; `perf` if absent", "perf"),
                word("label", "Only this label", "GET /cart"),
                whole_number("limit", "The maximum number of runs", _DEFAULT_RUNS, 1, MAX_HISTORY),
                whole_number("cursor", "`nextCursor` of the page before", 1, 1, INT64),
            ],
            fails=[404], name="project_perf",
        )
    }  # fmt: skip

    async def get(self, id: str) -> None:
        query = self.arguments("flag", "label", "limit", "cursor")
        await self.answer(lambda: history(visibility.project(self.user, id), query))


class PerformancePage(ReadPage):
    """The newest runs with performance reports: of one label over time, or of all labels."""

    async def get(self, id: str) -> None:
        query = {name: text.strip() for name, text in self.query().items()}
        await self.show("tracker/perf.html", **await self.read(lambda: self._values(id, query)))

    def _values(self, id: str, query: Mapping[str, str]) -> dict[str, Any]:
        project = visibility.project(self.caller.user, id)
        found = history(project, query)
        newest = perf.points([found.items[0].run_id]) if found.items else {}
        labels = [point.label for points in newest.values() for point in points]
        return {"project": project, "perf": found, "labels": labels, "label": query.get("label", "")}


routes: list[Route] = [(r"/runs/([^/]+)/perf", RunPerformance), (r"/projects/([^/]+)/perf", ProjectPerformance)]
pages: list[Route] = [(r"/projects/([0-9]{1,18})/perf", PerformancePage)]
