"""Projects as programs read them: their runs, their flaky tests, one test's history; and what is said of a test."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from handlers.gates import account_holders, readers
from handlers.routing import Route
from handlers.tracker import shaping
from handlers.tracker.shapes import FlakyInfo, ProjectDetail, RunInfo, TestHistory
from handlers.tracker.tracked import Tracked, test_asked_for
from models.errors import Invalid
from models.paging import INT64, whole
from models.tracker import access, flaky, gate, history, visible
from models.tracker.flaky import Said
from models.tracker.schema import reports

LONGEST_NOTE = 1000
_RUNS = 50
_OUTCOMES = 100


def bounded(limit: str | None, usual: int) -> int:
    """How many are asked for; what lies outside of 1 to 500 is brought there. Raises `Invalid`."""
    return min(max(1, whole("limit", limit or str(usual), -INT64, INT64)), history.MOST_RUNS)


class Projects(Tracked):
    gate = staticmethod(readers)

    async def get(self) -> None:
        name = self.asked("name")["name"]
        await self.answer(lambda: [shaping.project_info(one) for one in visible.listed(self.user, name)])


class Project(Tracked):
    gate = staticmethod(readers)

    async def get(self, id: str) -> None:
        await self.answer(lambda: self._detail(id))

    def _detail(self, id: str) -> ProjectDetail:
        project = visible.project(self.user, id)
        return shaping.project_detail(
            history.listed([project])[0],
            gate.thresholds(project, self.services.config.tracker.quality_gate),
            history.branches(project.id),
            access.role_in(self.user, project),
        )


class Runs(Tracked):
    gate = staticmethod(readers)

    async def get(self, id: str) -> None:
        asked = self.asked("limit", "commit", "branch", "flag")
        limit = bounded(asked.pop("limit"), _RUNS)

        def found() -> list[RunInfo]:
            project = visible.project(self.user, id)
            return [shaping.run_info(run) for run in history.listing(project.id, limit, **asked)]

        await self.answer(found)


class Flaky(Tracked):
    gate = staticmethod(readers)

    async def get(self, id: str) -> None:
        def found() -> list[FlakyInfo]:
            return [shaping.flaky_info(test) for test in flaky.tests(visible.project(self.user, id).id)]

        await self.answer(found)


class TestOutcomes(Tracked):
    __test__ = False  # pytest must not take it for a test
    gate = staticmethod(readers)

    async def get(self, id: str) -> None:
        class_name, name = test_asked_for(self)
        limit = bounded(self.asked("limit")["limit"], _OUTCOMES)

        def found() -> TestHistory:
            project = visible.project(self.user, id)
            test = history.test_id(project.id, class_name, name)
            said = flaky.said(project.id, test).value
            return shaping.test_history(class_name, name, said, history.outcomes(test, limit))

        await self.answer(found)


class FlakyStatus(Tracked):
    """`POST {className,name,status,note}`: what somebody with WRITE says of a test."""

    gate = staticmethod(account_holders)

    async def post(self, id: str) -> None:
        said = read_said(self.body_object())
        await self.services.tracked(lambda: self.keep(id, *said))
        self.set_status(202)
        class_name, name, status, note = said
        self.reply({"className": class_name, "name": name, "status": status.value, "note": note})

    def keep(self, id: str, class_name: str, name: str, status: Said, note: str | None) -> None:
        user = self.user
        with reports.atomic():
            project = visible.project(user, id, "WRITE")
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
