"""`/runs/{id}/perf` and `/projects/{id}/perf`: the performance of a run, and of the runs of a flag over time."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from handlers.http.permissions import READ
from handlers.openapi.describe import free_text, number
from handlers.routing import Route
from handlers.tracker import lists, serializers
from handlers.tracker.detail_responses import PerfHistory, PerfHistoryEntry, PerfInfo, RunPerf
from handlers.tracker.lists import ListHandler, bounded
from handlers.tracker.pages.tracker_pages import ReadPage
from models.json_format import Instant
from models.paging import INT64, cut, decode_cursor, page_after
from models.tracker import queries, visibility
from models.tracker.gate import quality_gate
from models.tracker.runs import perf
from models.tracker.runs.kept_answers import state_of_project, state_of_run
from models.tracker.runs.perf import Compared
from models.tracker.tables import Project

_DEFAULT_RUNS = 30
_MAX_LABELS_OF_HISTORY = 50
"""Labels of each run of a history without `label`."""


class RunPerformance(ListHandler):
    permission = READ
    default_limit = lists.MAX_LIMIT
    endpoints: ClassVar = {
        "GET": lists.list_endpoint(
            "Get the performance of a run by label, compared with the median of its baselines",
            RunPerf,
            number("id", "The run"),
            limit=lists.MAX_LIMIT,
            name="run_perf",
        )
    }

    async def get(self, id: str) -> None:
        def measured(cursor: str | None, limit: int) -> RunPerf:
            run, project = visibility.run(self.user, id)
            limits = quality_gate.thresholds(project, self.config.tracker.quality_gate)
            bases = perf.baselines(run.id, limits.base_branch)
            rows = sorted(perf.compared(run.id, bases), key=lambda row: row.point.label)
            shown, next_cursor = page_after(cursor, rows, limit, lambda row: (row.point.label,), str)
            return RunPerf(run.id, run.flag, bases, [serializers.perf_info(row) for row in shown], next_cursor)

        kept = ("perf", id), lambda: state_of_run(self.user, id)
        await self.answer_object(measured, lambda info: info.items, PerfInfo, f"run-{id}-perf", kept)


def history(project: Project, query: Mapping[str, str | None], cursor: str | None, limit: int) -> PerfHistory:
    """The runs of a flag with their points, newest first. Raises `Invalid`."""
    before = decode_cursor(cursor, int)[0] if cursor else INT64
    flags, label = perf.flags(project.id), query.get("label") or ""
    flag = query.get("flag") or (flags[0] if flags and "perf" not in flags else "perf")
    ids, next_cursor = cut(perf.history(project.id, flag, label, before, limit + 1), limit, lambda id: (id,))
    runs, points = queries.runs_by_id(ids), perf.points(ids)
    items = []
    for id in ids:
        shown = [point for point in points[id] if not label or point.label == label][:_MAX_LABELS_OF_HISTORY]
        run, infos = runs[id], [serializers.perf_info(Compared(point)) for point in shown]
        items.append(PerfHistoryEntry(id, run.branch, run.commit_sha, Instant(run.created_at), infos))
    return PerfHistory(flag, flags, items, next_cursor)


class ProjectPerformance(ListHandler):
    permission = READ
    default_limit = _DEFAULT_RUNS
    endpoints: ClassVar = {
        "GET": lists.list_endpoint(
            "List the performance of the runs of a flag, newest first",
            PerfHistory,
            number("id", "The project"),
            free_text("flag", "The flag of the runs; `perf` if absent", "perf"),
            free_text("label", "Only this label", "GET /cart"),
            limit=_DEFAULT_RUNS,
            name="project_perf",
        )
    }

    async def get(self, id: str) -> None:
        query = self.arguments("flag", "label")

        def listed(cursor: str | None, limit: int) -> PerfHistory:
            return history(visibility.project(self.user, id), query, cursor, limit)

        kept = ("project-perf", id, *query.values()), lambda: state_of_project(self.user, id)
        await self.answer_object(listed, lambda info: info.items, PerfHistoryEntry, f"project-{id}-perf", kept)


class PerformancePage(ReadPage):
    """The newest runs with performance reports: of one label over time, or of all labels."""

    async def get(self, id: str) -> None:
        query = {name: text.strip() for name, text in self.query().items()}
        await self.show("tracker/perf.html", **await self.read(lambda: self._values(id, query)))

    def _values(self, id: str, query: Mapping[str, str]) -> dict[str, Any]:
        project = visibility.project(self.caller.user, id)
        found = history(project, query, query.get("cursor"), bounded(query.get("limit"), _DEFAULT_RUNS))
        newest = perf.points([found.items[0].run_id]) if found.items else {}
        labels = [point.label for points in newest.values() for point in points]
        return {"project": project, "perf": found, "labels": labels, "label": query.get("label", "")}


routes: list[Route] = [(r"/runs/([^/]+)/perf", RunPerformance), (r"/projects/([^/]+)/perf", ProjectPerformance)]
pages: list[Route] = [(r"/projects/([0-9]{1,18})/perf", PerformancePage)]
