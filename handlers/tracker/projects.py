"""`/projects`: projects, their runs, their flaky tests, the history of a test, and its triage status."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from handlers.base import Base
from handlers.http.permissions import READ, SIGNED_IN
from handlers.operations import SENT, JsonBody, Operation, operation_routes
from handlers.routing import Route
from handlers.tracker import lists, serializers
from handlers.tracker.base import HistoryOfTest, answer
from handlers.tracker.lists import ListRequest, answer_array, answer_linked, answer_object, is_exported, list_operation
from handlers.tracker.responses import (
    FlakyInfo,
    ForgeInfo,
    OutcomeInfo,
    ProjectDetail,
    ProjectInfo,
    RunInfo,
    TestHistory,
    TestInsight,
    TestInsights,
    TriageInfo,
)
from handlers.tracker.triage import LongProjectList, ProjectList
from models.accounts import permissions
from models.accounts.accounts import User
from models.config import parsers
from models.errors import Invalid
from models.inputs import ID_TEXT, InputKind, body, free_text, inputs, path, query
from models.json_format import Instant, http_message, read_rfc3339
from models.paging import INT64, cut, decode_cursor, page_after
from models.tracker import queries, settings, visibility
from models.tracker.failures import first_failures, flaky, quarantine_policy
from models.tracker.failures.flaky import Triage
from models.tracker.forge_reports import report_settings
from models.tracker.forges import owners
from models.tracker.forges import project_forge as forges
from models.tracker.forges.forge_links import without_login
from models.tracker.forges.project_forge import ForgeLink, TokenChange
from models.tracker.gate import quality_gate
from models.tracker.insights import listing
from models.tracker.insights.listing import InsightQuery, SummarySource
from models.tracker.queries import OutcomeFilter
from models.tracker.settings import ProjectSettings
from models.tracker.tables import Project as ProjectRow
from models.tracker.tables import Test, reports

MAX_NOTE_CHARACTERS = 1000
MAX_URL_CHARACTERS = 1024
_DEFAULT_RUNS = 50


@http_message
class ProjectListRequest(ListRequest):
    name: str | None = query("Only the project of this name", kind=free_text("shop"))
    limit: int | None = lists.limit(
        None, f"The maximum number of items; clamped to 1 to {lists.MAX_LIMIT}, 1,000 without it"
    )


async def list_projects(handler: Base, request: ProjectListRequest) -> object:
    user = handler.caller.user

    def page(cursor: str | None, limit: int) -> lists.Page:
        after = decode_cursor(cursor, str)[0] if cursor else None
        listed = visibility.listed(user, request.name, limit + 1, after)
        shown, next_cursor = cut(listed, limit, lambda row: (row.project.name,))
        return [serializers.project_info(row) for row in shown], next_cursor

    return await answer_array(handler, request, page, ProjectInfo, "projects")


@http_message
class ProjectRequest:
    id: str = path("The project", kind=ID_TEXT)


async def get_project(handler: Base, request: ProjectRequest) -> object:
    return await answer(handler, lambda: project_detail(handler, request.id))


def project_detail(handler: Base, id: str) -> ProjectDetail:
    """A project as the caller may see it. Reads the store: for a worker."""
    project = visibility.project(handler.caller.user, id)
    return serializers.project_detail(
        queries.listed([project])[0],
        quality_gate.thresholds(project, handler.config.tracker.quality_gate),
        quarantine_policy.of_project(project, handler.config.tracker.quarantine),
        report_settings.of_project(project, handler.config.tracker.forge_reports),
        queries.branches(project.id),
        permissions.role_in(handler.caller.user, project),
    )


@http_message
class SettingsOfProject(ProjectSettings):
    id: str = path("The project", kind=ID_TEXT)


async def change_settings(handler: Base, request: SettingsOfProject) -> object:
    """Changes the settings that the request names. For an OWNER."""
    columns = settings.named(request)
    token = TokenChange(columns.pop("forge_token")) if "forge_token" in columns else None
    user, now, sources = handler.caller.user, handler.clock.now(), handler.tracker.forges
    forge_settings = handler.config.tracker.forges

    def change() -> None:
        with reports.atomic():
            project = visibility.project(user, request.id, "OWNER")
            is_admin = user is not None and user.is_admin
            forges.change(project, columns, token, sources.secrets, forge_settings, now, is_admin)
        sources.forget_refusal(project.id)

    await handler.tracker.run(change)
    handler.tracker.retention.wake()
    await handler.services.outbound.project_changed(int(request.id))
    return await answer(handler, lambda: project_detail(handler, request.id))


async def project_forge(handler: Base, request: ProjectRequest) -> ForgeInfo:
    """For members."""
    user, tracker = handler.caller.user, handler.tracker

    def read() -> tuple[int, ForgeLink]:
        project = visibility.project(user, request.id)
        visibility.check_member(user, project)
        return project.id, forges.link(project, handler.config.tracker.forges)

    id, link = await tracker.run(read)
    refusal = await handler.services.outbound.report_refusal(id)
    return serializers.forge_info(tracker.forges.state(id, link, refusal))


@http_message
class RunListRequest(ListRequest):
    limit: int | None = lists.limit(_DEFAULT_RUNS)
    id: str = path("The project", kind=ID_TEXT)
    commit: str | None = query("Only of this commit", kind=free_text("9fceb02"))
    branch: str | None = query("Only on this branch", kind=free_text("main"))
    flag: str | None = query("Only with this flag", kind=free_text("default"))


async def list_runs(handler: Base, request: RunListRequest) -> object:
    user, id = handler.caller.user, request.id
    filters = {"commit": request.commit, "branch": request.branch, "flag": request.flag}

    def page(cursor: str | None, limit: int) -> lists.Page:
        project = visibility.project(user, id)
        at, after = decode_cursor(cursor, int, int) if cursor else (INT64, INT64)
        runs = queries.listing(project.id, limit + 1, **filters, after=(at, after))
        shown, next_cursor = cut(runs, limit, lambda run: (run.created_at, run.id))
        return [serializers.run_info(run) for run in shown], next_cursor

    return await answer_array(handler, request, page, RunInfo, f"project-{id}-runs")


async def list_flaky(handler: Base, request: LongProjectList) -> object:
    user, id = handler.caller.user, request.id

    def page(cursor: str | None, limit: int) -> lists.Page:
        tests = flaky.tests(visibility.project(user, id).id)
        shown, next_cursor = page_after(cursor, tests, limit, flaky.place, int, int, str, str)
        return [serializers.flaky_info(test) for test in shown], next_cursor

    return await answer_array(handler, request, page, FlakyInfo, f"project-{id}-flaky")


@http_message
class TestHistoryRequest(ProjectList, HistoryOfTest):
    """The outcomes of one test of a project."""

    __test__ = False  # pytest must not take it for a test


async def test_history(handler: Base, request: TestHistoryRequest) -> object:
    user, id = handler.caller.user, request.id

    def read(cursor: str | None, limit: int) -> tuple[TestHistory, str | None]:
        project = visibility.project(user, id)
        history = history_of(project, request, limit, cursor)
        return history, history.next_cursor

    def page(cursor: str | None, limit: int) -> lists.Page:
        history, next_cursor = read(cursor, limit)
        return history.results, next_cursor

    if await is_exported(handler, request, page, OutcomeInfo, f"project-{id}-test"):
        return SENT
    return await answer_linked(handler, request, read)


def history_of(project: ProjectRow, wanted: HistoryOfTest, limit: int, cursor: str | None) -> TestHistory:
    """A test over its runs. Raises `NotFound`, `Invalid`. Reads the store: for a worker."""
    test = Test.get_by_id(queries.test_id(project.id, wanted.class_name, wanted.name))
    run, result = decode_cursor(cursor, int, int) if cursor else (INT64, INT64)
    only = OutcomeFilter(wanted.branch, wanted.flag)
    outcomes = queries.outcomes(test.id, limit + 1, (run, result), only)
    newest = queries.newest_run_of(test.id, only)
    first = first_failures.first_failures(newest, [test.id]).get(test.id) if newest else None
    owner = owners.of_project(project.id).of(test.file, test.class_name)
    return serializers.test_history(test, flaky.triage(project.id, test.id).value, outcomes, limit, owner, first)


@http_message
class InsightRequest(ListRequest, InsightQuery):
    id: str = path("The project", kind=ID_TEXT)


async def list_insights(handler: Base, request: InsightRequest) -> object:
    user, id, sources = handler.caller.user, request.id, list[SummarySource]()

    def found(cursor: str | None, limit: int) -> TestInsights:
        project = visibility.project(user, id)
        if not sources:  # the pages of an export are of one: it may have been computed from many results
            sources.append(listing.source(project.id, request))
        page = sources[0].page(request.sort, limit, cursor)
        known = owners.of_project(project.id)
        items = [serializers.test_insight(one, known.of(one.file, one.class_name)) for one in page.items]
        return TestInsights(items, page.next_cursor, page.runs_read, page.is_current)

    return await answer_object(handler, request, found, lambda made: made.items, TestInsight, f"project-{id}-insights")


def _text_reader(check: Callable[[str, str], Any]) -> Callable[[str, Any], Any]:
    """Reads a text of a JSON body or a form."""

    def read(name: str, value: Any) -> Any:
        if not isinstance(value, str):
            raise Invalid(f"{name} must be text")
        return check(name, value)

    return read


def _read_name(name: str, text: str) -> str:
    if not text:
        raise Invalid(f"{name} is required")
    return text


def _read_status(name: str, text: str) -> Triage:
    if text not in Triage.__members__:
        raise Invalid(f"{name} must be one of {', '.join(Triage.__members__)}")
    return Triage(text)


def _read_note(name: str, text: str) -> str | None:
    if len(text) > MAX_NOTE_CHARACTERS:
        raise Invalid(f"{name} must have at most {MAX_NOTE_CHARACTERS} characters")
    return text.strip() or None


def _read_expiry(name: str, text: str) -> int | None:
    return read_rfc3339(name, text.strip(), zone_needed=False) if text.strip() else None


def _read_issue(name: str, text: str) -> str | None:
    if not text.strip():
        return None
    if len(text) > MAX_URL_CHARACTERS:
        raise Invalid(f"{name} must have at most {MAX_URL_CHARACTERS} characters")
    try:
        return without_login(parsers.url(text.strip()))
    except parsers.ValidationError as error:
        raise Invalid(f"{name} {error}") from None


@http_message
class TriageOfTest:
    """The triage status of a test, from a JSON body or a form."""

    class_name: str = body(
        "The class of the test; empty where it has none",
        "",
        kind=InputKind({"type": ["string", "null"]}, _text_reader(lambda _, text: text)),
    )
    name: str = body(
        "Its name",
        required=True,
        kind=InputKind({"type": "string", "minLength": 1}, _text_reader(_read_name), reads_absent=True),
    )
    status: Triage = body(
        "Its triage status",
        required=True,
        kind=InputKind(
            {"type": "string", "enum": list(Triage.__members__)}, _text_reader(_read_status), reads_absent=True
        ),
    )
    note: str | None = body(
        "Why", kind=InputKind({"type": ["string", "null"], "maxLength": MAX_NOTE_CHARACTERS}, _text_reader(_read_note))
    )
    expires_at: int | None = body(
        "When a quarantine ends: a time, or a day",
        kind=InputKind({"type": ["string", "null"], "examples": ["2026-12-24"]}, _text_reader(_read_expiry)),
    )
    issue_url: str | None = body(
        "The issue about it",
        kind=InputKind({"type": ["string", "null"], "maxLength": MAX_URL_CHARACTERS}, _text_reader(_read_issue)),
    )

    def store(self, project: ProjectRow, user: User | None, now: int) -> None:
        by = user.id if user else None
        facts = self.expires_at, self.issue_url
        flaky.set_triage(project.id, self.class_name, self.name, self.status, self.note, by, now, *facts)


@http_message
class NewTriage(TriageOfTest):
    id: str = path("The project", kind=ID_TEXT)


async def set_triage(handler: Base, request: NewTriage) -> TriageInfo:
    """Sets the triage status of a test; needs WRITE."""
    user, now = handler.caller.user, handler.clock.now()

    def keep() -> None:
        with reports.atomic():
            request.store(visibility.project(user, request.id, "WRITE"), user, now)

    await handler.tracker.run(keep)
    handler.tracker.retention.wake()
    await handler.services.outbound.project_changed(int(request.id))
    end = Instant(request.expires_at) if request.expires_at and request.status is Triage.QUARANTINED else None
    return TriageInfo(request.class_name, request.name, request.status, request.note, end, request.issue_url)


_EMPTY_SETTINGS = "a JSON object of settings is required"
_SETTING_NAMES = ", ".join(declared.json_name for declared in inputs(ProjectSettings))
_NO_SETTING = f"is not a setting of a project; these are: {_SETTING_NAMES}"
OPERATIONS = [
    list_operation(
        "project_list", "/projects", "List the projects that the caller may read, by name", ProjectListRequest,
        list_projects, list[ProjectInfo], error_statuses=(), headers=lists.NEXT_LINK,
    ),
    Operation(
        None, "GET", "/projects/{id}", "Get one project", ProjectRequest, get_project, ProjectDetail,
        error_statuses=[404], name="project_detail", permission=READ,
    ),
    Operation(
        None, "PATCH", "/projects/{id}/settings", "Change a project's settings; null inherits the global one",
        SettingsOfProject, change_settings, ProjectDetail, error_statuses=[404, 409], name="project_settings",
        permission=SIGNED_IN, body=JsonBody(_EMPTY_SETTINGS, _NO_SETTING),
    ),
    Operation(
        None, "GET", "/projects/{id}/forge",
        "Get the forge of a project, and whether it can be read from and reported to", ProjectRequest, project_forge,
        ForgeInfo, error_statuses=[404], name="project_forge", permission=SIGNED_IN,
    ),
    list_operation(
        "run_list", "/projects/{id}/runs", "List the runs of a project, newest first", RunListRequest, list_runs,
        list[RunInfo], headers=lists.NEXT_LINK,
    ),
    list_operation(
        "flaky_tests", "/projects/{id}/flaky", "List the flaky tests of a project", LongProjectList, list_flaky,
        list[FlakyInfo], headers=lists.NEXT_LINK,
    ),
    Operation(
        None, "POST", "/projects/{id}/flaky/status",
        "Set the triage status of a test: quarantined, resolved or neither", NewTriage, set_triage, TriageInfo, 202,
        error_statuses=[404], name="flaky_say", permission=SIGNED_IN,
    ),
    list_operation(
        None, "/projects/{id}/tests",
        "List the outcomes of one test, newest run first, and the run since which it fails", TestHistoryRequest,
        test_history, TestHistory, name="test_history", headers=lists.NEXT_LINK,
    ),
    list_operation(
        None, "/projects/{id}/tests/insights",
        "List the tests of a project: the slowest, those that grow slower, the least reliable or those that never fail",
        InsightRequest, list_insights, TestInsights, name="test_insights",
    ),
]  # fmt: skip
routes: list[Route] = operation_routes(OPERATIONS)
