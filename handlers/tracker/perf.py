"""`/runs/{id}/perf` and `/projects/{id}/perf`: the performance of a run, and of the runs of a flag over time."""

from __future__ import annotations

from typing import Any

from handlers.base import Base
from handlers.operations import operation_routes
from handlers.routing import Route
from handlers.tracker import lists, serializers
from handlers.tracker.detail_responses import PerfHistory, PerfHistoryEntry, PerfInfo, RunPerf
from handlers.tracker.lists import ListRequest, answer_object, list_operation
from handlers.tracker.pages.tracker_pages import ReadPage
from handlers.tracker.runs import LongRunList
from models.inputs import ID_TEXT, free_text, path, query, read
from models.json_format import Instant, http_message
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


async def run_perf(handler: Base, request: LongRunList) -> object:
    user, id, settings = handler.caller.user, request.id, handler.config.tracker.quality_gate

    def measured(cursor: str | None, limit: int) -> RunPerf:
        run, project = visibility.run(user, id)
        bases = perf.baselines(run.id, quality_gate.thresholds(project, settings).base_branch)
        rows = sorted(perf.compared(run.id, bases), key=lambda row: row.point.label)
        shown, next_cursor = page_after(cursor, rows, limit, lambda row: (row.point.label,), str)
        return RunPerf(run.id, run.flag, bases, [serializers.perf_info(row) for row in shown], next_cursor)

    kept = ("perf", id), lambda: state_of_run(user, id)
    return await answer_object(handler, request, measured, lambda info: info.items, PerfInfo, f"run-{id}-perf", kept)


@http_message
class PerfHistoryRequest(ListRequest):
    limit: int | None = lists.limit(_DEFAULT_RUNS)
    flag: str | None = query("The flag of the runs; `perf` if absent", kind=free_text("perf"))
    label: str | None = query("Only this label", kind=free_text("GET /cart"))


@http_message
class ProjectPerfHistory(PerfHistoryRequest):
    id: str = path("The project", kind=ID_TEXT)


def history(project: Project, request: PerfHistoryRequest, cursor: str | None, limit: int) -> PerfHistory:
    """The runs of a flag with their points, newest first. Raises `Invalid`."""
    before = decode_cursor(cursor, int)[0] if cursor else INT64
    flags, label = perf.flags(project.id), request.label or ""
    flag = request.flag or (flags[0] if flags and "perf" not in flags else "perf")
    ids, next_cursor = cut(perf.history(project.id, flag, label, before, limit + 1), limit, lambda id: (id,))
    runs, points = queries.runs_by_id(ids), perf.points(ids)
    items = []
    for id in ids:
        shown = [point for point in points[id] if not label or point.label == label][:_MAX_LABELS_OF_HISTORY]
        run, infos = runs[id], [serializers.perf_info(Compared(point)) for point in shown]
        items.append(PerfHistoryEntry(id, run.branch, run.commit_sha, Instant(run.created_at), infos))
    return PerfHistory(flag, flags, items, next_cursor)


async def project_perf(handler: Base, request: ProjectPerfHistory) -> object:
    user, id = handler.caller.user, request.id

    def listed(cursor: str | None, limit: int) -> PerfHistory:
        return history(visibility.project(user, id), request, cursor, limit)

    kept = ("project-perf", id, request.flag, request.label), lambda: state_of_project(user, id)
    name = f"project-{id}-perf"
    return await answer_object(handler, request, listed, lambda info: info.items, PerfHistoryEntry, name, kept)


class PerformancePage(ReadPage):
    """The newest runs with performance reports: of one label over time, or of all labels."""

    async def get(self, id: str) -> None:
        request = read(PerfHistoryRequest, {}, {**self.query(), "format": ""}, {})
        await self.show("tracker/perf.html", **await self.read(lambda: self._values(id, request)))

    def _values(self, id: str, request: PerfHistoryRequest) -> dict[str, Any]:
        project = visibility.project(self.caller.user, id)
        found = history(project, request, request.cursor, request.bounded_limit)
        newest = perf.points([found.items[0].run_id]) if found.items else {}
        labels = [point.label for points in newest.values() for point in points]
        return {"project": project, "perf": found, "labels": labels, "label": request.label or ""}


OPERATIONS = [
    list_operation(
        None, "/runs/{id}/perf", "Get the performance of a run by label, compared with the median of its baselines",
        LongRunList, run_perf, RunPerf, name="run_perf",
    ),
    list_operation(
        None, "/projects/{id}/perf", "List the performance of the runs of a flag, newest first", ProjectPerfHistory,
        project_perf, PerfHistory, name="project_perf",
    ),
]  # fmt: skip
routes: list[Route] = operation_routes(OPERATIONS)
pages: list[Route] = [(r"/projects/([0-9]{1,18})/perf", PerformancePage)]
