"""Projects and runs as people read them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar
from urllib.parse import urlencode

from handlers import wire
from handlers.base import write_page
from handlers.frame import NOTHING
from handlers.gates import readers
from handlers.routing import Route
from handlers.tracker import shaping
from handlers.tracker.forms import TrackedPage
from handlers.tracker.tracked import at_one_moment, test_asked_for
from models.tracker import access, comparing, coverage, flaky, gate, history, visible
from models.tracker.flaky import Said
from models.tracker.gate import Thresholds
from models.tracker.schema import Project, Run

Result = TypeVar("Result")

_RUNS = 50
_FAILURES = 50


def change(number: float | None) -> str:
    """A difference with its sign."""
    return NOTHING if number is None else f"{number:+.1f}"


def took(ms: int | None) -> str:
    """A length of time as people say it."""
    if ms is None:
        return NOTHING
    if ms < 1000:
        return f"{ms} ms"
    return f"{ms / 1000:.1f} s" if ms < 60_000 else wire.spoken(ms * 1000)


def kind(status: str) -> str:
    """How a page shows the status of a run, a test or a verdict."""
    return {"PASSED": "good", "FAILED": "bad", "ERROR": "bad"}.get(status, "")


def _query(**values: str) -> str:
    return urlencode(values)


class ReadPage(TrackedPage):
    gate = staticmethod(readers)

    def show(self, template: str, **facts: Any) -> None:
        words = {"change": change, "took": took, "kind": kind, "query": _query, "statuses": list(Said.__members__)}
        write_page(self, template, **words, **facts)

    async def read(self, query: Callable[[], Result]) -> Result:
        """As `seen`, of one moment."""
        return await self.seen(lambda: at_one_moment(query))

    def thresholds(self, project: Project) -> Thresholds:
        return gate.thresholds(project, self.services.config.tracker.quality_gate)


class Projects(ReadPage):
    async def get(self) -> None:
        user = self.caller.user
        found = await self.services.tracked(lambda: [shaping.project_info(one) for one in visible.listed(user)])
        self.show("projects.html", projects=found)


class ProjectPage(ReadPage):
    async def get(self, id: str) -> None:
        query = self.query()
        branch, flag = (query.get(name, "").strip() or None for name in ("branch", "flag"))
        self.show("project.html", branch=branch, flag=flag, **await self.read(lambda: self._facts(id, branch, flag)))

    def _facts(self, id: str, branch: str | None, flag: str | None) -> dict[str, Any]:
        user = self.caller.user
        project = visible.project(user, id)
        runs = history.listing(project.id, _RUNS, branch=branch, flag=flag)
        return {
            "project": project,
            "gate": self.thresholds(project),
            "branches": history.branches(project.id),
            "runs": [shaping.run_info(run) for run in runs],
            "tests": [shaping.flaky_info(test) for test in flaky.tests(project.id)],
            "writes": access.may_write(user, project),
        }


class TestPage(ReadPage):
    """One test over time."""

    __test__ = False  # pytest must not take it for a test

    async def get(self, id: str) -> None:
        class_name, name = test_asked_for(self)
        self.show("test.html", **await self.read(lambda: self._facts(id, class_name, name)))

    def _facts(self, id: str, class_name: str, name: str) -> dict[str, Any]:
        user = self.caller.user
        project = visible.project(user, id)
        test = history.test_id(project.id, class_name, name)
        said = flaky.said(project.id, test).value
        return {
            "project": project,
            "test": shaping.test_history(class_name, name, said, history.outcomes(test, 100)),
            "writes": access.may_write(user, project),
        }


class RunPage(ReadPage):
    async def get(self, id: str) -> None:
        self.show("run.html", **await self.read(lambda: self._facts(id)))

    def _facts(self, id: str) -> dict[str, Any]:
        user = self.caller.user
        run, project = visible.run(user, id)
        verdict = gate.verdict(run, project, self.services.config.tracker.quality_gate)
        baseline = Run.get_or_none(Run.id == verdict.baseline_id) if verdict.baseline_id else None
        detail = history.detail(run.id, _FAILURES)
        return {
            "project": project,
            "told": shaping.run_detail(run, project, verdict, detail, coverage.files(run)),
            "baseline": baseline,
            "changes": comparing.changes(baseline, run) if baseline else None,
            "writes": access.may_write(user, project),
        }


class ComparePage(ReadPage):
    async def get(self) -> None:
        query = self.query()
        base, head = (query.get(name, "").strip() for name in ("base", "head"))
        if not base and not head:
            self.show("compare.html", found=None)
            return
        found = await self.read(lambda: comparing.compare(*visible.pair(self.caller.user, base, head)))
        self.show("compare.html", found=shaping.comparison_info(found))


routes: list[Route] = [
    (r"/projects", Projects),
    (r"/projects/([0-9]{1,18})", ProjectPage),
    (r"/projects/([0-9]{1,18})/test", TestPage),
    (r"/runs/([0-9]{1,18})", RunPage),
    (r"/compare", ComparePage),
]
