"""`/runs`, `/compare` and `/gate`: a run with its contents and its verdict, lists of its parts, two runs compared."""

from __future__ import annotations

from typing import ClassVar

from attrs import evolve

from handlers.http.permissions import READ, SIGNED_IN
from handlers.openapi.describe import Endpoint, Parameter, choice, free_text, number, whole
from handlers.routing import Route
from handlers.tracker import lists, serializers
from handlers.tracker.base import Tracked
from handlers.tracker.lists import ItemList, ListHandler
from handlers.tracker.responses import (
    AttemptInfo,
    ComparisonInfo,
    GateVerdict,
    PatchInfo,
    RunAttempts,
    RunDetail,
    RunTestInfo,
    RunVerdict,
)
from models.errors import Invalid
from models.paging import INT64, cut, decode_cursor, page_after
from models.tracker import queries, visibility
from models.tracker.coverage import file_coverage as coverage
from models.tracker.coverage import patch
from models.tracker.coverage.patch import PatchFileInfo
from models.tracker.failures import clusters, first_failures, triage
from models.tracker.failures.clusters import ClusterInfo
from models.tracker.forges import owners
from models.tracker.gate import commit_gate
from models.tracker.gate.quality_gate import verdict
from models.tracker.reports.base import CaseStatus
from models.tracker.runs import attempts, comparison, run_tests
from models.tracker.runs.kept_answers import state_of_pair, state_of_project_named, state_of_run

_ID = number("id", "The run")


class Run(Tracked):
    permission = READ
    permission_to_change = SIGNED_IN
    endpoints: ClassVar = {
        "GET": Endpoint("Get a run with its contents", RunDetail, path=[_ID], fails=[404], tool="run_detail"),
        "DELETE": Endpoint("Delete a run", None, 204, path=[_ID], fails=[404], name="run_delete"),
    }

    async def get(self, id: str) -> None:
        await self.answer_kept(("run", id), lambda: state_of_run(self.user, id), lambda: self._detail(id))

    async def delete(self, id: str) -> None:
        run, _ = await self.tracker.run(lambda: visibility.run(self.user, id, "WRITE"))
        await self.tracker.retention.delete(run.id)
        self.set_status(204)

    def _detail(self, id: str) -> RunDetail:
        run, project = visibility.run(self.user, id)
        judged = verdict(run, project, self.config.tracker.quality_gate)
        detail = queries.detail(run.id)
        firsts = first_failures.first_failures(run, [row.test_id for row in detail.failures if row.test_id])
        return serializers.run_detail(run, project, judged, detail, coverage.files(run), firsts)


class QualityGate(Tracked):
    permission = READ
    endpoints: ClassVar = {
        "GET": Endpoint(
            "Get the quality gate's verdict on a run",
            RunVerdict,
            path=[_ID],
            fails=[404],
            name="run_verdict",
        )
    }

    async def get(self, id: str) -> None:
        def judged() -> RunVerdict:
            run, project = visibility.run(self.user, id)
            return serializers.run_verdict(run, verdict(run, project, self.config.tracker.quality_gate))

        await self.answer_kept(("verdict", id), lambda: state_of_run(self.user, id), judged)


class Patch(ListHandler):
    permission = READ
    default_limit = lists.MAX_LIMIT
    endpoints: ClassVar = {
        "GET": lists.list_endpoint(
            "Get the coverage of the changed lines of a run, by file",
            PatchInfo,
            _ID,
            limit=lists.MAX_LIMIT,
            name="run_patch",
        )
    }

    async def get(self, id: str) -> None:
        def measured(cursor: str | None, limit: int) -> PatchInfo:
            run, _ = visibility.run(self.user, id)
            return serializers.patch_info(run, patch.coverage([run.id]), cursor, limit)

        kept = ("patch", id), lambda: state_of_run(self.user, id)
        await self.answer_object(measured, lambda info: info.files, PatchFileInfo, f"run-{id}-patch", kept)


class Attempts(ListHandler):
    permission = READ
    default_limit = lists.MAX_LIMIT
    endpoints: ClassVar = {
        "GET": lists.list_endpoint(
            "List the uploads of a run by job and attempt", RunAttempts, _ID, limit=lists.MAX_LIMIT, name="run_attempts"
        )
    }

    async def get(self, id: str) -> None:
        def listed(cursor: str | None, limit: int) -> RunAttempts:
            run, _ = visibility.run(self.user, id)
            items = page_after(cursor, attempts.listing(run), limit, attempts.place, str, int, int, int)
            return serializers.attempts_info(run, attempts.arrived([run.id]).get(run.id, 0), *items)

        kept = ("attempts", id), lambda: state_of_run(self.user, id)
        await self.answer_object(listed, lambda info: info.items, AttemptInfo, f"run-{id}-attempts", kept)


def _run(name: str, about: str) -> Parameter:
    return evolve(number(name, about), where="query")


class Compare(Tracked):
    permission = READ
    endpoints: ClassVar = {
        "GET": Endpoint(
            "Compare two runs of one project",
            ComparisonInfo,
            query=[_run("base", "The run that is compared with"), _run("head", "The run that is compared")],
            fails=[404],
            name="run_compare",
        )
    }

    async def get(self) -> None:
        arguments = self.arguments("base", "head")
        base, head = arguments["base"], arguments["head"]
        if base is None or head is None:
            raise Invalid("base and head are required: the ids of two runs")
        await self.answer_kept(
            ("compare", base, head),
            lambda: state_of_pair(self.user, base, head),
            lambda: self._compared(base, head),
        )

    def _compared(self, base: str, head: str) -> ComparisonInfo:
        return serializers.comparison_info(comparison.compare(*visibility.pair(self.user, base, head)))


_GATE_QUERY = (
    Parameter("project", "The name of the project", {"type": "string", "examples": ["shop"]}, required=True),
    free_text(
        "commit",
        "A commit, or its first 7 digits or more; with `branch`, only its runs on that branch if it has any",
        "9fceb02d0ae598e95dc970b74767f19372d61af8",
    ),
    free_text("branch", "The newest commit of this branch; one of `commit` and `branch` is required", "main"),
    free_text("flag", "Only runs with this flag", "default"),
)


class GateVerdictHandler(Tracked):
    permission = READ
    endpoints: ClassVar = {
        "GET": Endpoint(
            "Get the quality gate's verdict on the newest run of a commit or a branch",
            GateVerdict,
            query=_GATE_QUERY,
            fails=[404, 409],
            tool="gate_verdict",
        )
    }

    async def get(self) -> None:
        arguments = self.arguments("project", "commit", "branch", "flag")
        name, commit, branch = arguments["project"], arguments["commit"], arguments["branch"]
        if name is None:
            raise Invalid("project is required")
        if commit is None and branch is None:
            raise Invalid("one of commit and branch is required")
        flag = arguments["flag"]
        await self.answer_kept(
            ("gate", name, commit, branch, flag),
            lambda: state_of_project_named(self.user, name),
            lambda: self._judged(name, commit, branch, flag),
        )

    def _judged(self, name: str, commit: str | None, branch: str | None, flag: str | None) -> GateVerdict:
        project = visibility.named(self.user, name)
        found = commit_gate.find(project, commit, branch, flag)
        settings = self.config.tracker.quality_gate
        judged = commit_gate.judge(found.newest, project, settings, aggregate=flag is None, branch=found.branch)
        return serializers.gate_verdict(project, judged)


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
            "List the tests of a run, filtered and sorted", ItemList[RunTestInfo], _ID, *FILTERS, tool="run_tests"
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
            "List the failure clusters of a run, most failures first", ItemList[ClusterInfo], _ID, name="run_clusters"
        )
    }

    async def get(self, id: str) -> None:
        def page(cursor: str | None, limit: int) -> lists.Page:
            run, project = visibility.run(self.user, id)
            after = decode_cursor(cursor, int, int) if cursor else None
            found = clusters.of_run(run.id, triage.rules_of(project.id), limit + 1, after)
            return cut(found, limit, clusters.place)

        await self.answer_items(page, ClusterInfo, f"run-{id}-clusters")


routes: list[Route] = [
    (r"/gate", GateVerdictHandler),
    (r"/runs/([^/]+)", Run),
    (r"/runs/([^/]+)/attempts", Attempts),
    (r"/runs/([^/]+)/patch", Patch),
    (r"/runs/([^/]+)/tests", RunTests),
    (r"/runs/([^/]+)/clusters", RunClusters),
    (r"/runs/([^/]+)/quality-gate", QualityGate),
    (r"/compare", Compare),
]
