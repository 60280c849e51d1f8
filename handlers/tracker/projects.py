"""`/projects`: projects, their runs, their flaky tests, the history of a test, and its triage status."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, ClassVar

from handlers.http.permissions import READ, SIGNED_IN
from handlers.openapi.describe import Body, Endpoint, Field, Parameter, free_text, number
from handlers.openapi.describe import whole as whole_number
from handlers.routing import Route
from handlers.tracker import lists, serializers
from handlers.tracker.base import Tracked, test_argument
from handlers.tracker.lists import ListHandler
from handlers.tracker.responses import (
    FlakyInfo,
    ForgeInfo,
    OutcomeInfo,
    ProjectDetail,
    ProjectInfo,
    RunInfo,
    TestHistory,
    TriageInfo,
)
from models.accounts import permissions
from models.config.secret_files import MAX_TOKEN_CHARACTERS
from models.errors import Invalid
from models.json_format import camel_case
from models.paging import INT64, cut, decode_cursor, page_after
from models.tracker import queries, settings, visibility
from models.tracker.failures import first_failures, flaky
from models.tracker.failures.flaky import Triage
from models.tracker.forges import owners
from models.tracker.forges import project_forge as forges
from models.tracker.forges.project_forge import TokenChange
from models.tracker.gate import quality_gate
from models.tracker.tables import Project as ProjectRow
from models.tracker.tables import Test, reports

MAX_NOTE_CHARACTERS = 1000
_DEFAULT_RUNS = 50


_OR_NULL = {"type": ["string", "null"]}
_ID = number("id", "The project")
_NAME = Parameter("name", "The name of a test", {"type": "string", "examples": ["adds"]}, required=True)
_CLASS = free_text("className", "Its class; empty where it has none", "com.example.ShopTest")


class Projects(ListHandler):
    permission = READ
    endpoints: ClassVar = {
        "GET": Endpoint(
            "List the projects that the caller may read, by name",
            list[ProjectInfo],
            query=[
                free_text("name", "Only the project of this name", "shop"),
                whole_number(
                    "limit", "The maximum number of items; clamped to 1 to 500, 1,000 without it", None, -INT64, INT64
                ),
                lists.CURSOR,
                lists.FORMAT,
            ],
            tool="project_list",
            headers=lists.NEXT_LINK,
            also=lists.EXPORTS,
        )
    }

    def page_arguments(self) -> tuple[str | None, int]:
        cursor, limit = super().page_arguments()
        return cursor, limit if self.arguments("limit")["limit"] else visibility.MAX_PROJECTS

    async def get(self) -> None:
        name = self.arguments("name")["name"]

        def page(cursor: str | None, limit: int) -> lists.Page:
            after = decode_cursor(cursor, str)[0] if cursor else None
            listed = visibility.listed(self.user, name, limit + 1, after)
            shown, next_cursor = cut(listed, limit, lambda row: (row.project.name,))
            return [serializers.project_info(row) for row in shown], next_cursor

        await self.answer_array(page, ProjectInfo, "projects")


class Project(Tracked):
    permission = READ
    endpoints: ClassVar = {
        "GET": Endpoint("Get one project", ProjectDetail, path=[_ID], fails=[404], name="project_detail")
    }

    async def get(self, id: str) -> None:
        await self.answer(lambda: project_detail(self, id))


def project_detail(handler: Tracked, id: str) -> ProjectDetail:
    """A project as the caller may see it. Reads the store: for a worker."""
    project = visibility.project(handler.user, id)
    return serializers.project_detail(
        queries.listed([project])[0],
        quality_gate.thresholds(project, handler.config.tracker.quality_gate),
        queries.branches(project.id),
        permissions.role_in(handler.user, project),
    )


_PERCENT = {"type": ["number", "null"], "minimum": 0, "maximum": 100}
_BOOLEAN = {"type": ["boolean", "null"]}
_SETTINGS = (
    Field("baseBranch", "The branch whose newest complete run is the baseline", _OR_NULL),
    Field("repoUrl", "The URL of the repository", _OR_NULL),
    Field("minLineCoverage", "Less fails the gate", _PERCENT),
    Field("maxCoverageDropPct", "Percentage points that coverage may drop", _PERCENT),
    Field("failOnNewFailures", "Whether new failures fail the gate", _BOOLEAN),
    Field("minPatchCoverage", "Less coverage of the changed lines fails the gate", _PERCENT),
    Field("minPatchLines", "Fewer changed lines than this pass", {"type": ["integer", "null"], "minimum": 0}),
    Field("failOnNoTests", "Whether a run without tests fails the gate", _BOOLEAN),
    Field("failOnMissingCoverage", "Whether a run without coverage fails the gate", _BOOLEAN),
    Field("aggregateFlags", "Whether all flags of a commit must pass", _BOOLEAN),
    Field(
        "carryForwardFlags",
        "Flags whose coverage is carried forward; `*`: all",
        {"type": ["array", "null"], "items": {"type": "string"}},
    ),
    Field(
        "carryForwardMaxAge", "In seconds; older coverage is not carried", {"type": ["number", "null"], "minimum": 0}
    ),
    Field(
        "perfMaxLatencyIncreasePct",
        "A larger increase of the 95th percentile fails the gate",
        {"type": ["number", "null"], "minimum": 0, "maximum": settings.MAX_INCREASE_PCT},
    ),
    Field("perfMaxThroughputDropPct", "A larger drop of the throughput fails the gate", _PERCENT),
    Field("perfMaxErrorPct", "More errors of a label fail the gate", _PERCENT),
    Field(
        "sourceMode",
        "Where source lines come from",
        {"type": ["string", "null"], "enum": [*settings.SOURCE_MODES, None]},
    ),
    Field("forgeRepo", "The repository on a forge from which source files are read for members", _OR_NULL),
    Field(
        "forgeToken",
        "The token for that forge; it is never shown",
        _OR_NULL | {"writeOnly": True, "maxLength": MAX_TOKEN_CHARACTERS},
    ),
)
_COLUMNS = {field.name: re.sub("[A-Z]", lambda match: f"_{match[0].lower()}", field.name) for field in _SETTINGS}


class ProjectSettings(Tracked):
    """`PATCH` changes the settings that it names; null inherits the global one. For an OWNER."""

    permission = SIGNED_IN
    endpoints: ClassVar = {
        "PATCH": Endpoint(
            "Change a project's settings; null inherits the global one",
            ProjectDetail,
            path=[_ID],
            body=Body("application/json", _SETTINGS),
            fails=[404, 409],
            name="project_settings",
        )
    }

    async def patch(self, id: str) -> None:
        if not self.request.body:
            raise Invalid("a JSON object of settings is required")
        body = self.body_object()
        if unknown := sorted(set(body) - set(_COLUMNS)):
            raise Invalid(f"{unknown[0]} is not a setting of a project; these are: {', '.join(_COLUMNS)}")
        token = TokenChange(settings.read_token(body.pop("forgeToken"))) if "forgeToken" in body else None
        try:
            columns = settings.read_json({_COLUMNS[name]: value for name, value in body.items()})
        except Invalid as error:
            column = error.message.partition(" ")[0].rstrip(":")
            raise Invalid(error.message.replace(column, camel_case(column), 1)) from None
        await self.tracker.run(lambda: self._change(id, columns, token))
        await self.answer(lambda: project_detail(self, id))

    def _change(self, id: str, columns: Mapping[str, Any], token: TokenChange | None) -> None:
        now, sources = self.clock.now(), self.tracker.forges
        with reports.atomic():
            project = visibility.project(self.user, id, "OWNER")
            is_admin = self.user is not None and self.user.is_admin
            forges.change(project, columns, token, sources.secrets, now, is_admin)
        sources.forget_refusal(project.id)


class ProjectForge(Tracked):
    """For members."""

    permission = SIGNED_IN
    endpoints: ClassVar = {
        "GET": Endpoint(
            "Get the forge of a project, and whether source files can be read from it",
            ForgeInfo,
            path=[_ID],
            fails=[404],
            name="project_forge",
        )
    }

    async def get(self, id: str) -> None:
        def read() -> ForgeInfo:
            project = visibility.project(self.user, id)
            visibility.check_member(self.user, project)
            link = forges.link(project, self.config.tracker.forges)
            return serializers.forge_info(self.tracker.forges.state(project.id, link))

        await self.answer(read)


class Runs(ListHandler):
    permission = READ
    default_limit = _DEFAULT_RUNS
    endpoints: ClassVar = {
        "GET": Endpoint(
            "List the runs of a project, newest first",
            list[RunInfo],
            path=[_ID],
            query=[
                lists.limit_parameter(_DEFAULT_RUNS),
                free_text("commit", "Only of this commit", "9fceb02"),
                free_text("branch", "Only on this branch", "main"),
                free_text("flag", "Only with this flag", "default"),
                lists.CURSOR,
                lists.FORMAT,
            ],
            fails=[404],
            tool="run_list",
            headers=lists.NEXT_LINK,
            also=lists.EXPORTS,
        )
    }

    async def get(self, id: str) -> None:
        filters = self.arguments("commit", "branch", "flag")

        def page(cursor: str | None, limit: int) -> lists.Page:
            project = visibility.project(self.user, id)
            at, after = decode_cursor(cursor, int, int) if cursor else (INT64, INT64)
            runs = queries.listing(project.id, limit + 1, **filters, after=(at, after))
            shown, next_cursor = cut(runs, limit, lambda run: (run.created_at, run.id))
            return [serializers.run_info(run) for run in shown], next_cursor

        await self.answer_array(page, RunInfo, f"project-{id}-runs")


class Flaky(ListHandler):
    permission = READ
    default_limit = lists.MAX_LIMIT
    endpoints: ClassVar = {
        "GET": lists.list_endpoint(
            "List the flaky tests of a project",
            list[FlakyInfo],
            _ID,
            limit=lists.MAX_LIMIT,
            tool="flaky_tests",
            headers=lists.NEXT_LINK,
        )
    }

    async def get(self, id: str) -> None:
        def page(cursor: str | None, limit: int) -> lists.Page:
            tests = flaky.tests(visibility.project(self.user, id).id)
            shown, next_cursor = page_after(cursor, tests, limit, flaky.place, int, int, str, str)
            return [serializers.flaky_info(test) for test in shown], next_cursor

        await self.answer_array(page, FlakyInfo, f"project-{id}-flaky")


class TestOutcomes(ListHandler):
    __test__ = False  # pytest must not take it for a test
    permission = READ
    endpoints: ClassVar = {
        "GET": lists.list_endpoint(
            "List the outcomes of one test, newest run first, and the run since which it fails",
            TestHistory,
            _ID,
            _CLASS,
            _NAME,
            name="test_history",
            headers=lists.NEXT_LINK,
        )
    }

    async def get(self, id: str) -> None:
        class_name, name = test_argument(self)

        def read(cursor: str | None, limit: int) -> tuple[TestHistory, str | None]:
            history = history_of(visibility.project(self.user, id), class_name, name, limit, cursor)
            return history, history.next_cursor

        def page(cursor: str | None, limit: int) -> lists.Page:
            history, next_cursor = read(cursor, limit)
            return history.results, next_cursor

        if not await self.is_exported(page, OutcomeInfo, f"project-{id}-test"):
            await self.answer_linked(read)


def history_of(project: ProjectRow, class_name: str, name: str, limit: int, cursor: str | None) -> TestHistory:
    """A test over its runs. Raises `NotFound`, `Invalid`. Reads the store: for a worker."""
    test = Test.get_by_id(queries.test_id(project.id, class_name, name))
    run, result = decode_cursor(cursor, int, int) if cursor else (INT64, INT64)
    outcomes = queries.outcomes(test.id, limit + 1, (run, result))
    newest = queries.newest_run_of(test.id)
    first = first_failures.first_failures(newest, [test.id]).get(test.id) if newest else None
    owner = owners.of_project(project.id).of(test.file, class_name)
    return serializers.test_history(test, flaky.triage(project.id, test.id).value, outcomes, limit, owner, first)


_TRIAGE_FIELDS = (
    Field("className", "The class of the test; empty where it has none", _OR_NULL),
    Field("name", "Its name", {"type": "string", "minLength": 1}, required=True),
    Field("status", "Its triage status", {"type": "string", "enum": list(Triage.__members__)}, required=True),
    Field("note", "Why", _OR_NULL | {"maxLength": MAX_NOTE_CHARACTERS}),
)


class FlakyStatus(Tracked):
    """`POST {className,name,status,note}`: sets the triage status of a test; needs WRITE."""

    permission = SIGNED_IN
    endpoints: ClassVar = {
        "POST": Endpoint(
            "Set the triage status of a test: quarantined, resolved or neither",
            TriageInfo,
            202,
            path=[_ID],
            body=Body("application/json", _TRIAGE_FIELDS),
            fails=[404],
            name="flaky_say",
        )
    }

    async def post(self, id: str) -> None:
        triage = read_triage(self.body_object())
        await self.tracker.run(lambda: self.keep(id, *triage))
        self.set_status(202)
        class_name, name, status, note = triage
        self.reply(TriageInfo(class_name, name, status, note))

    def keep(self, id: str, class_name: str, name: str, status: Triage, note: str | None) -> None:
        user = self.user
        with reports.atomic():
            project = visibility.project(user, id, "WRITE")
            by = user.id if user else None
            flaky.set_triage(project.id, class_name, name, status, note, by, self.clock.now())


def read_triage(fields: Mapping[str, Any]) -> tuple[str, str, Triage, str | None]:
    """Class, name, status and note of a test, from a JSON body or a form. Raises `Invalid`, which names the field."""
    texts = {}
    for field in ("className", "name", "status", "note"):
        value = fields.get(field)
        if not isinstance(value, str | None):
            raise Invalid(f"{field} must be text")
        texts[field] = value or ""
    if not texts["name"]:
        raise Invalid("name is required")
    if texts["status"] not in Triage.__members__:
        raise Invalid(f"status must be one of {', '.join(Triage.__members__)}")
    if len(texts["note"]) > MAX_NOTE_CHARACTERS:
        raise Invalid(f"note must have at most {MAX_NOTE_CHARACTERS} characters")
    return texts["className"], texts["name"], Triage(texts["status"]), texts["note"].strip() or None


routes: list[Route] = [
    (r"/projects", Projects),
    (r"/projects/([^/]+)", Project),
    (r"/projects/([^/]+)/settings", ProjectSettings),
    (r"/projects/([^/]+)/forge", ProjectForge),
    (r"/projects/([^/]+)/runs", Runs),
    (r"/projects/([^/]+)/flaky", Flaky),
    (r"/projects/([^/]+)/flaky/status", FlakyStatus),
    (r"/projects/([^/]+)/tests", TestOutcomes),
]
