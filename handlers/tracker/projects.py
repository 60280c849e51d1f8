"""Projects as programs read them: their runs, their flaky tests, one test's history; and what is said of a test."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from handlers.http.permissions import READ, SIGNED_IN
from handlers.openapi.describe import Body, Endpoint, Field, Parameter, number, word
from handlers.openapi.describe import whole as whole_number
from handlers.routing import Route
from handlers.tracker import serializers
from handlers.tracker.base import Tracked, test_asked_for
from handlers.tracker.responses import FlakyInfo, ProjectDetail, ProjectInfo, RunInfo, SaidInfo, TestHistory
from models.accounts import permissions
from models.errors import Invalid
from models.paging import INT64, whole
from models.tracker import flaky, quality_gate, queries, visibility
from models.tracker.flaky import Said
from models.tracker.tables import reports

LONGEST_NOTE = 1000
_RUNS = 50
_OUTCOMES = 100


def bounded(limit: str | None, usual: int) -> int:
    """How many are asked for; what lies outside of 1 to 500 is brought there. Raises `Invalid`."""
    return min(max(1, whole("limit", limit or str(usual), -INT64, INT64)), queries.MOST_RUNS)


_OR_NULL = {"type": ["string", "null"]}
_ID = number("id", "The project")
_NAME = Parameter("name", "The name of a test", {"type": "string", "examples": ["adds"]}, required=True)
_CLASS = word("className", "Its class; empty where it has none", "com.example.ShopTest")


def _limit(usual: int) -> Parameter:
    return whole_number(
        "limit", "How many at most; what lies outside of 1 to 500 is brought there", usual, -INT64, INT64
    )


class Projects(Tracked):
    permission = READ
    endpoints: ClassVar = {
        "GET": Endpoint(
            "The projects that may be seen, by name",
            list[ProjectInfo],
            query=[word("name", "Only the project of this name", "shop")],
            tool="project_list",
        )
    }

    async def get(self) -> None:
        name = self.asked("name")["name"]
        await self.answer(lambda: [serializers.project_info(one) for one in visibility.listed(self.user, name)])


class Project(Tracked):
    permission = READ
    endpoints: ClassVar = {
        "GET": Endpoint("One project", ProjectDetail, path=["id"], query=[_ID], fails=[404], name="project_detail")
    }

    async def get(self, id: str) -> None:
        await self.answer(lambda: self._detail(id))

    def _detail(self, id: str) -> ProjectDetail:
        project = visibility.project(self.user, id)
        return serializers.project_detail(
            queries.listed([project])[0],
            quality_gate.thresholds(project, self.services.config.tracker.quality_gate),
            queries.branches(project.id),
            permissions.role_in(self.user, project),
        )


class Runs(Tracked):
    permission = READ
    endpoints: ClassVar = {
        "GET": Endpoint(
            "The runs of a project, newest first",
            list[RunInfo],
            path=["id"],
            query=[
                _ID,
                _limit(_RUNS),
                word("commit", "Only of this commit", "9fceb02"),
                word("branch", "Only on this branch", "main"),
                word("flag", "Only with this flag", "default"),
            ],
            fails=[404],
            tool="run_list",
        )
    }

    async def get(self, id: str) -> None:
        asked = self.asked("limit", "commit", "branch", "flag")
        limit = bounded(asked.pop("limit"), _RUNS)

        def found() -> list[RunInfo]:
            project = visibility.project(self.user, id)
            return [serializers.run_info(run) for run in queries.listing(project.id, limit, **asked)]

        await self.answer(found)


class Flaky(Tracked):
    permission = READ
    endpoints: ClassVar = {
        "GET": Endpoint(
            "The flaky tests of a project", list[FlakyInfo], path=["id"], query=[_ID], fails=[404], tool="flaky_tests"
        )
    }

    async def get(self, id: str) -> None:
        def found() -> list[FlakyInfo]:
            return [serializers.flaky_info(test) for test in flaky.tests(visibility.project(self.user, id).id)]

        await self.answer(found)


class TestOutcomes(Tracked):
    __test__ = False  # pytest must not take it for a test
    permission = READ
    endpoints: ClassVar = {
        "GET": Endpoint(
            "What became of one test, run by run",
            TestHistory,
            path=["id"],
            query=[_ID, _CLASS, _NAME, _limit(_OUTCOMES)],
            fails=[404],
            name="test_history",
        )
    }

    async def get(self, id: str) -> None:
        class_name, name = test_asked_for(self)
        limit = bounded(self.asked("limit")["limit"], _OUTCOMES)

        def found() -> TestHistory:
            project = visibility.project(self.user, id)
            test = queries.test_id(project.id, class_name, name)
            said = flaky.said(project.id, test).value
            return serializers.test_history(class_name, name, said, queries.outcomes(test, limit))

        await self.answer(found)


_SAID = (
    Field("className", "The class of the test; empty where it has none", _OR_NULL),
    Field("name", "Its name", {"type": "string", "minLength": 1}, required=True),
    Field("status", "What is said of it", {"type": "string", "enum": list(Said.__members__)}, required=True),
    Field("note", "Why", _OR_NULL | {"maxLength": LONGEST_NOTE}),
)


class FlakyStatus(Tracked):
    """`POST {className,name,status,note}`: what somebody with WRITE says of a test."""

    permission = SIGNED_IN
    endpoints: ClassVar = {
        "POST": Endpoint(
            "Say of a test that it is quarantined, resolved or neither",
            SaidInfo,
            202,
            path=["id"],
            query=[_ID],
            body=Body("application/json", _SAID),
            fails=[404],
            name="flaky_say",
        )
    }

    async def post(self, id: str) -> None:
        said = read_said(self.body_object())
        await self.services.run_in_tracker(lambda: self.keep(id, *said))
        self.set_status(202)
        class_name, name, status, note = said
        self.reply(SaidInfo(class_name, name, status, note))

    def keep(self, id: str, class_name: str, name: str, status: Said, note: str | None) -> None:
        user = self.user
        with reports.atomic():
            project = visibility.project(user, id, "WRITE")
            by = user.id if user else None
            flaky.say(project.id, class_name, name, status, note, by, self.services.clock.now())


def read_said(fields: Mapping[str, Any]) -> tuple[str, str, Said, str | None]:
    """Class, name, status and note of a test, from a JSON body or a form. Raises `Invalid`, which names the field."""
    texts = {}
    for field in ("className", "name", "status", "note"):
        value = fields.get(field)
        if not isinstance(value, str | None):
            raise Invalid(f"{field} must be a text")
        texts[field] = value or ""
    if not texts["name"]:
        raise Invalid("name is required")
    if texts["status"] not in Said.__members__:
        raise Invalid(f"status must be one of {', '.join(Said.__members__)}")
    if len(texts["note"]) > LONGEST_NOTE:
        raise Invalid(f"note must have at most {LONGEST_NOTE} characters")
    return texts["className"], texts["name"], Said(texts["status"]), texts["note"].strip() or None


routes: list[Route] = [
    (r"/projects", Projects),
    (r"/projects/([^/]+)", Project),
    (r"/projects/([^/]+)/runs", Runs),
    (r"/projects/([^/]+)/flaky", Flaky),
    (r"/projects/([^/]+)/flaky/status", FlakyStatus),
    (r"/projects/([^/]+)/tests", TestOutcomes),
]
