"""`/runs/{id}/tests` and `/runs/{id}/clusters`: all tests of a run, and the clusters of its failures."""

from __future__ import annotations

from typing import ClassVar

from handlers.http.permissions import READ
from handlers.openapi.describe import Parameter, choice, free_text, number, whole
from handlers.routing import Route
from handlers.tracker import lists, serializers
from handlers.tracker.lists import ItemList, ListHandler
from handlers.tracker.responses import RunTestInfo
from models.paging import INT64, cut, decode_cursor
from models.tracker import clusters, first_failures, owners, run_tests, triage, visibility
from models.tracker.clusters import ClusterInfo
from models.tracker.reports.base import CaseStatus

ID = number("id", "The run")
FILTERS = (
    free_text(
        "status", f"Some of {', '.join(CaseStatus.__members__)}, in any case, with commas between", "failed,error"
    ),
    free_text("q", "Only tests whose class and name contain this", "checkout"),
    free_text("class", "Only tests of this class", "com.example.ShopTest"),
    free_text("file", "Only tests of this source file", "src/test/java/com/example/ShopTest.java"),
    free_text("owner", "Only tests of this owner", "@example/shop"),
    free_text("category", "Only failures of this category of triage", "infrastructure"),
    Parameter("flaky", "Only tests that are flaky in the run, or not", {"type": "boolean"}),
    whole("minMs", "Only tests that took so many milliseconds", None, 0, INT64),
    choice("sort", "By class and name, or the longest first; else in the order of the reports", run_tests.SORTS),
)
FILTER_NAMES = [parameter.name for parameter in FILTERS]


class RunTests(ListHandler):
    permission = READ
    endpoints: ClassVar = {
        "GET": lists.list_endpoint(
            "List the tests of a run, filtered and sorted", ItemList[RunTestInfo], ID, *FILTERS, tool="run_tests"
        )
    }

    async def get(self, id: str) -> None:
        filter = run_tests.read_filter(self.arguments(*FILTER_NAMES))

        def page(cursor: str | None, limit: int) -> lists.Page:
            run, project = visibility.run(self.user, id)
            by, rules = owners.of_project(project.id), triage.rules_of(project.id)
            rows, next_cursor = run_tests.page(run, filter, by, rules, cursor, limit)
            failing = [row.test_id for row in rows if row.status in (CaseStatus.FAILED, CaseStatus.ERROR)]
            firsts = first_failures.first_failures(run, failing)
            return [serializers.run_test(row, firsts.get(row.test_id), project.repo_url) for row in rows], next_cursor

        await self.answer_items(page, RunTestInfo, f"run-{id}-tests")


class RunClusters(ListHandler):
    permission = READ
    endpoints: ClassVar = {
        "GET": lists.list_endpoint(
            "List the failure clusters of a run, most failures first", ItemList[ClusterInfo], ID, name="run_clusters"
        )
    }

    async def get(self, id: str) -> None:
        def page(cursor: str | None, limit: int) -> lists.Page:
            run, project = visibility.run(self.user, id)
            after = decode_cursor(cursor, int, int) if cursor else None
            found = clusters.of_run(run.id, triage.rules_of(project.id), limit + 1, after)
            return cut(found, limit, clusters.place)

        await self.answer_items(page, ClusterInfo, f"run-{id}-clusters")


routes: list[Route] = [(r"/runs/([^/]+)/tests", RunTests), (r"/runs/([^/]+)/clusters", RunClusters)]
