"""`/runs`, `/compare` and `/gate`: a run with its contents and its verdict, lists of its parts, two runs compared."""

from __future__ import annotations

from functools import partial

from handlers.base import Base
from handlers.http.permissions import FOLLOW_REPORTS, READ, SIGNED_IN
from handlers.operations import Operation, operation_routes
from handlers.routing import Route
from handlers.tracker import lists, serializers
from handlers.tracker.base import answer_kept
from handlers.tracker.lists import ItemList, ListRequest, answer_items, answer_object, list_operation
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
from models.inputs import FLAG, ID, ID_TEXT, InputKind, free_text, path, query
from models.json_format import http_message
from models.paging import cut, decode_cursor, page_after
from models.times import MINUTE
from models.tracker import queries, visibility
from models.tracker.coverage import file_coverage, patch
from models.tracker.coverage.patch import PatchFileInfo
from models.tracker.failures import clusters, first_failures, triage
from models.tracker.failures.clusters import ClusterInfo
from models.tracker.forges import owners
from models.tracker.gate import commit_gate
from models.tracker.gate.quality_gate import verdict
from models.tracker.reports.base import CaseStatus
from models.tracker.runs import attempts, comparison, run_tests, store
from models.tracker.runs.kept_answers import State, state_of_gate, state_of_pair, state_of_run
from models.tracker.runs.run_tests import TestFilter


@http_message
class RunRequest:
    id: str = path("The run", kind=ID_TEXT)


@http_message
class RunList(ListRequest):
    id: str = path("The run", kind=ID_TEXT)


@http_message
class LongRunList(RunList):
    limit: int | None = lists.limit(lists.MAX_LIMIT)


async def run_detail(handler: Base, request: RunRequest) -> object:
    user, id, settings = handler.caller.user, request.id, handler.config.tracker.quality_gate

    def detail() -> RunDetail:
        run, project = visibility.run(user, id)
        judged = verdict(run, project, settings)
        found = queries.detail(run.id)
        tests = [row.test_id for row in found.failures if row.test_id]
        known = serializers.KnownOfFailures(
            first_failures.first_failures(run, tests),
            owners.of_tests(project.id, tests),
            triage.rules_of(project.id),
        )
        return serializers.run_detail(run, project, judged, found, file_coverage.files(run), known)

    return await answer_kept(handler, ("run", id), lambda: state_of_run(user, id), detail)


async def delete_run(handler: Base, request: RunRequest) -> None:
    run, _ = await handler.tracker.run(lambda: visibility.run(handler.caller.user, request.id, "WRITE"))
    async with handler.services.outbound.run_deletion(run.id):
        await handler.tracker.retention.delete(run.id)


@http_message
class VerdictRequest(RunRequest):
    commit: bool = query("Whether the verdict is on all flags of the run's commit so far", False, kind=FLAG)


async def run_verdict(handler: Base, request: VerdictRequest) -> object:
    caller, id, of_commit = handler.caller, request.id, request.commit
    user, settings, now = caller.user, handler.config.tracker.quality_gate, handler.clock.now()
    late = attempts.late(handler.config.tracker.runs, now)

    def readable() -> State:
        if caller.scope == "INGEST":
            store.check_post(user, visibility.run(user, id)[1].name)
        state = state_of_run(user, id)
        return (*state, now // MINUTE) if of_commit else state

    def judged() -> RunVerdict:
        run, project = visibility.run(user, id)
        if of_commit:
            return serializers.run_verdict(run, commit_gate.of_run(run, project, settings, late).verdict)
        return serializers.run_verdict(run, verdict(run, project, settings))

    return await answer_kept(handler, ("verdict", id, of_commit), readable, judged)


async def run_patch(handler: Base, request: LongRunList) -> object:
    user, id = handler.caller.user, request.id

    def measured(cursor: str | None, limit: int) -> PatchInfo:
        run, _ = visibility.run(user, id)
        return serializers.patch_info(run, patch.coverage([run.id]), cursor, limit)

    kept = ("patch", id), lambda: state_of_run(user, id)
    return await answer_object(
        handler, request, measured, lambda info: info.files, PatchFileInfo, f"run-{id}-patch", kept
    )


async def run_attempts(handler: Base, request: LongRunList) -> object:
    user, id = handler.caller.user, request.id

    def listed(cursor: str | None, limit: int) -> RunAttempts:
        run, _ = visibility.run(user, id)
        items = page_after(cursor, attempts.listing(run), limit, attempts.place, str, int, int, int)
        return serializers.attempts_info(run, attempts.arrived([run.id]).get(run.id, 0), *items)

    kept = ("attempts", id), lambda: state_of_run(user, id)
    return await answer_object(
        handler, request, listed, lambda info: info.items, AttemptInfo, f"run-{id}-attempts", kept
    )


_REQUIRED_RUN = InputKind(ID.schema, lambda _, text: text, reads_absent=True)


@http_message
class ComparedRuns:
    base: str = query("The run that is compared with", required=True, kind=_REQUIRED_RUN)
    head: str = query("The run that is compared", required=True, kind=_REQUIRED_RUN)


async def compare_runs(handler: Base, request: ComparedRuns) -> object:
    user, base, head = handler.caller.user, request.base, request.head
    if not base or not head:
        raise Invalid("base and head are required: the ids of two runs")

    def compared() -> ComparisonInfo:
        return serializers.comparison_info(comparison.compare(*visibility.pair(user, base, head)))

    return await answer_kept(handler, ("compare", base, head), lambda: state_of_pair(user, base, head), compared)


@http_message
class GateRequest:
    project: str = query("The name of the project", required=True, kind=free_text("shop"))
    commit: str | None = query(
        "A commit, or its first 7 digits or more; with `branch`, only its runs on that branch if it has any",
        kind=free_text("9fceb02d0ae598e95dc970b74767f19372d61af8"),
    )
    branch: str | None = query(
        "The newest commit of this branch; one of `commit` and `branch` is required", kind=free_text("main")
    )
    flag: str | None = query("Only runs with this flag", kind=free_text("default"))


async def gate_verdict(handler: Base, request: GateRequest) -> object:
    user, name, commit, flag = handler.caller.user, request.project, request.commit, request.flag
    branch = request.branch
    if commit is None and branch is None:
        raise Invalid("one of commit and branch is required")
    settings, now = handler.config.tracker.quality_gate, handler.clock.now()
    late = attempts.late(handler.config.tracker.runs, now)

    def judged() -> GateVerdict:
        project = visibility.named(user, name)
        found = commit_gate.find(project, commit, branch, flag)
        judged = commit_gate.judge(found.newest, project, settings, flag is None, found.branch, late)
        return serializers.gate_verdict(project, judged)

    key = ("gate", name, commit, branch, flag)
    return await answer_kept(handler, key, lambda: state_of_gate(user, name, settings, now), judged)


@http_message
class RunTestList(RunList, TestFilter):
    """The tests of a run, filtered and sorted."""


async def list_tests(handler: Base, request: RunTestList) -> object:
    user, id = handler.caller.user, request.id

    def page(cursor: str | None, limit: int) -> lists.Page:
        run, project = visibility.run(user, id)
        by, rules = owners.of_project(project.id), triage.rules_of(project.id)
        rows, next_cursor = run_tests.page(run, request, by, rules, cursor, limit)
        failing = [row.test_id for row in rows if row.status in (CaseStatus.FAILED, CaseStatus.ERROR)]
        firsts = first_failures.first_failures(run, failing)
        return [serializers.run_test(row, firsts.get(row.test_id), project.repo_url) for row in rows], next_cursor

    return await answer_items(handler, request, page, RunTestInfo, f"run-{id}-tests")


async def list_clusters(handler: Base, request: RunList) -> object:
    user, id = handler.caller.user, request.id

    def page(cursor: str | None, limit: int) -> lists.Page:
        run, project = visibility.run(user, id)
        after = decode_cursor(cursor, int, int) if cursor else None
        found = clusters.of_run(run.id, triage.rules_of(project.id), limit + 1, after)
        return cut(found, limit, clusters.place)

    return await answer_items(handler, request, page, ClusterInfo, f"run-{id}-clusters")


_read = partial(Operation, error_statuses=[404], permission=READ)
OPERATIONS = [
    _read(
        "gate_verdict", "GET", "/gate", "Get the quality gate's verdict on the newest run of a commit or a branch",
        GateRequest, gate_verdict, GateVerdict, error_statuses=[404, 409],
    ),
    _read("run_detail", "GET", "/runs/{id}", "Get a run with its contents", RunRequest, run_detail, RunDetail),
    Operation(
        None, "DELETE", "/runs/{id}", "Delete a run", RunRequest, delete_run, None, 204, error_statuses=[404],
        name="run_delete", permission=SIGNED_IN,
    ),
    list_operation(
        None, "/runs/{id}/attempts", "List the uploads of a run by job and attempt", LongRunList, run_attempts,
        RunAttempts, name="run_attempts",
    ),
    list_operation(
        None, "/runs/{id}/patch", "Get the coverage of the changed lines of a run, by file", LongRunList, run_patch,
        PatchInfo, name="run_patch",
    ),
    list_operation(
        "run_tests", "/runs/{id}/tests", "List the tests of a run, filtered and sorted", RunTestList, list_tests,
        ItemList[RunTestInfo],
    ),
    list_operation(
        None, "/runs/{id}/clusters", "List the failure clusters of a run, most failures first", RunList, list_clusters,
        ItemList[ClusterInfo], name="run_clusters",
    ),
    _read(
        None, "GET", "/runs/{id}/quality-gate", "Get the quality gate's verdict on a run", VerdictRequest, run_verdict,
        RunVerdict, name="run_verdict", permission=FOLLOW_REPORTS,
    ),
    _read(
        None, "GET", "/compare", "Compare two runs of one project", ComparedRuns, compare_runs, ComparisonInfo,
        name="run_compare",
    ),
]  # fmt: skip
routes: list[Route] = operation_routes(OPERATIONS)
