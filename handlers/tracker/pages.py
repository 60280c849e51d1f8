"""Projects and runs as people read them."""

from __future__ import annotations

import asyncio
import shlex
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar
from urllib.parse import quote, urlencode

from handlers.base import Page, write_long_page
from handlers.http import serializers
from handlers.http.permissions import READ
from handlers.routing import Route
from handlers.tracker import plots
from handlers.tracker import serializers as shaping
from handlers.tracker.base import in_snapshot, test_argument
from handlers.tracker.forms import TrackedPage
from handlers.tracker.project_status import board_of, health, rows
from handlers.tracker.projects import bounded
from handlers.tracker.responses import OutcomeInfo, RunInfo
from handlers.web.layout import NOTHING, Kept, change, words
from models.accounts import permissions
from models.tracker import comparison, coverage, flaky, project_status, quality_gate, queries, runs, visibility
from models.tracker import queries as overview
from models.tracker.comparison import Comparison
from models.tracker.flaky import Triage
from models.tracker.quality_gate import Thresholds
from models.tracker.tables import Project, Run

Result = TypeVar("Result")

_RUNS = 20
_FAILURES = 50
_OUTCOMES = 100
_FILES = 100


def took(ms: int | None) -> str:
    """A length of time as people say it."""
    if ms is None:
        return NOTHING
    if ms < 1000:
        return f"{ms} ms"
    return f"{ms / 1000:.1f} s" if ms < 60_000 else serializers.spoken(ms * 1000)


def kind(status: str) -> str:
    """How a page shows the status of a run, a test or a verdict."""
    return {"PASSED": "good", "FAILED": "bad", "ERROR": "bad"}.get(status, "")


def _query(**values: Any) -> str:
    return urlencode({name: value for name, value in values.items() if value is not None})


def upload_snippet(page: Page, project: str, needs_token: bool) -> str:
    """The commands of a CI job, ready to copy: post a report, then ask the gate."""
    origin = f"{'https' if page.caller.is_secure else page.request.protocol}://{page.request.host}"
    api = origin + ("/tracker" if page.prefix == "/tracker" else "") + "/api/v1"
    token = ' -H "Authorization: Bearer $PILOTHOUSE_TOKEN"' if needs_token else ""
    return (
        f"curl -fsS{token} \\\n"
        f"  --form-string {shlex.quote(f'project={project}')} \\\n"
        '  -F branch="$(git branch --show-current)" -F commit="$(git rev-parse HEAD)" \\\n'
        "  -F junit=@junit.xml -F jacoco=@coverage.xml \\\n"
        f"  {api}/ingest\n"
        f"curl -fsS{token} \\\n"
        f'  "{api}/gate?project={quote(project, safe="")}&commit=$(git rev-parse HEAD)" \\\n'
        '  | grep \'"status":"PASSED"\''
    )


class ReadPage(TrackedPage):
    permission = READ

    async def show(self, template: str, **facts: Any) -> None:
        own = {"change": change, "took": took, "kind": kind, "query": _query, "statuses": list(Triage.__members__)}
        await write_long_page(self, template, health=health, **own, **facts)

    async def read(self, query: Callable[[], Result]) -> Result:
        """As `seen`, of one moment."""
        return await self.seen(lambda: in_snapshot(query))

    def thresholds(self, project: Project) -> Thresholds:
        return quality_gate.thresholds(project, self.services.config.tracker.quality_gate)

    def snippet(self, project: str, is_private: bool = False) -> str:
        security = self.services.config.tracker.security
        return upload_snippet(self, project, is_private or security.require_ingest_token or not security.open_mode)


class Projects(ReadPage):
    """The board."""

    async def get(self) -> None:
        found = await board_of(self)
        drawn = await asyncio.to_thread(rows, self, found.standings)
        await self.show("tracker/projects.html", rows=drawn, counts=found.counts, snippet=self.snippet("my-project"))


class ProjectPage(ReadPage):
    async def get(self, id: str) -> None:
        query = self.query()
        branch, flag, limit = (query.get(name, "").strip() or None for name in ("branch", "flag", "limit"))
        most = bounded(limit, _RUNS)
        facts = await self.read(lambda: self._facts(id, branch, flag, most))
        asked = {"branch": branch, "flag": flag, "limit": most, "most": queries.MAX_RUNS}
        await self.show("tracker/project.html", **asked, **facts, **self._snippets(facts["project"]))

    def _facts(self, id: str, branch: str | None, flag: str | None, limit: int) -> dict[str, Any]:
        user = self.caller.user
        project = visibility.project(user, id)
        limits = self.thresholds(project)
        shown = queries.listing(project.id, limit, branch=branch, flag=flag)
        (standing,) = project_status.of([project], self.services.config.tracker.quality_gate)
        branches, flags = overview.branches_overview(project.id, limits.base_branch), overview.flags(project.id)
        return {
            "project": project,
            "gate": limits,
            "standing": standing,
            "branches": branches,
            "flags": flags,
            "rows": self._rows([shaping.run_info(run) for run in shown], overview.before_each(shown)),
            "shown": len(shown),
            "tests": [shaping.flaky_info(test) for test in flaky.tests(project.id)],
            "writes": permissions.may_write(user, project),
            **self._trend(project, branch or _usual(limits.base_branch, [one.name for one in branches]), flag, flags),
        }

    def _rows(self, shown: Sequence[RunInfo], before: Mapping[int, int]) -> bytes:
        """Of the table of runs; each links the run before it."""
        kept: Kept = self.settings["kept"]
        facts = {"base": self.prefix, "kind": kind, "took": took, **words()}

        def row(run: RunInfo) -> bytes:
            last = before.get(run.id)
            return kept.piece(
                ("run", self.prefix, last, run),
                lambda: self.render_string("tracker/run_row.html", run=run, last=last, **facts),
            )

        return b"".join(map(row, shown))

    def _trend(self, project: Project, branch: str | None, flag: str | None, flags: Sequence[str]) -> dict[str, Any]:
        """The trend is of one flag: runs of several would be compared with each other."""
        flag = flag or (_usual(runs.DEFAULT_FLAG, flags) or (flags[0] if flags else None))
        found = [shaping.run_info(run) for run in queries.listing(project.id, plots.SHOWN, branch=branch, flag=flag)]
        drawn = plots.trend(found) if len(found) > 1 else None
        return {"trend": drawn, "trend_runs": found, "trend_branch": branch, "trend_flag": flag}

    def _snippets(self, project: Project) -> dict[str, Any]:
        is_private = project.visibility != "PUBLIC"
        here = f"{'https' if self.caller.is_secure else self.request.protocol}://{self.request.host}{self.prefix}"
        page = f"{here}/projects/{project.id}"
        badges = "\n".join(
            f"[![{name}]({here}/badge/{project.id}/{name}.svg)]({page})" for name in ("pass", "coverage", "flaky")
        )
        return {"snippet": self.snippet(project.name, is_private), "badges": badges, "is_private": is_private}


def _usual(wanted: str, there: Sequence[str]) -> str | None:
    return wanted if wanted in there else None


class TestPage(ReadPage):
    """One test over time."""

    __test__ = False  # pytest must not take it for a test

    async def get(self, id: str) -> None:
        class_name, name = test_argument(self)
        await self.show("tracker/test.html", **await self.read(lambda: self._facts(id, class_name, name)))

    def _facts(self, id: str, class_name: str, name: str) -> dict[str, Any]:
        user = self.caller.user
        project = visibility.project(user, id)
        test = queries.test_id(project.id, class_name, name)
        said = flaky.triage(project.id, test).value
        told = shaping.test_history(class_name, name, said, queries.outcomes(test, _OUTCOMES))
        return {
            "project": project,
            "test": told,
            "note": overview.note_of(project.id, test),
            "picture": plots.over_time(told.results) if len(told.results) > 1 else None,
            "first": first_failing(told.results),
            "writes": permissions.may_write(user, project),
        }


def first_failing(results: Sequence[OutcomeInfo]) -> tuple[OutcomeInfo, int] | None:
    """Of a test that fails on the branch that it was heard of last: the first of these failures, and their number."""
    if not results:
        return None
    row = []
    for one in results:
        if (one.branch, one.flag) == (results[0].branch, results[0].flag):
            if one.status not in ("FAILED", "ERROR"):
                break
            row.append(one)
    return (row[-1], len({one.run_id for one in row})) if row else None


class RunPage(ReadPage):
    async def get(self, id: str) -> None:
        await self.show("tracker/run.html", **await self.read(lambda: self._facts(id)))

    def _facts(self, id: str) -> dict[str, Any]:
        user = self.caller.user
        run, project = visibility.run(user, id)
        verdict = quality_gate.verdict(run, project, self.services.config.tracker.quality_gate)
        baseline = Run.get_or_none(Run.id == verdict.baseline_id) if verdict.baseline_id else None
        detail = queries.detail(run.id, _FAILURES)
        changes = comparison.changes(baseline, run) if baseline else None
        before, after = overview.beside(run)
        judged, reason = project_status.judge(run, verdict)
        return {
            "project": project,
            "told": shaping.run_detail(run, project, verdict, detail, coverage.files(run)),
            "judged": judged,
            "reason": reason,
            "baseline": baseline,
            "changes": changes,
            "fresh": {(one.class_name, one.name) for one in changes.failing.named} if changes else set(),
            "before": before,
            "after": after,
            "files_shown": _FILES,
            "writes": permissions.may_write(user, project),
        }


class ComparePage(ReadPage):
    async def get(self) -> None:
        query = self.query()
        base, head = (query.get(name, "").strip() for name in ("base", "head"))
        if not base and not head:
            await self.show("tracker/compare.html", found=None, project=None)
            return
        found, project = await self.read(lambda: self._facts(base, head))
        await self.show("tracker/compare.html", found=shaping.comparison_info(found), project=project)

    def _facts(self, base: str, head: str) -> tuple[Comparison, Project]:
        one, other = visibility.pair(self.caller.user, base, head)
        return comparison.compare(one, other), queries.project(one.project_id)


routes: list[Route] = [
    (r"/projects", Projects),
    (r"/projects/([0-9]{1,18})", ProjectPage),
    (r"/projects/([0-9]{1,18})/test", TestPage),
    (r"/runs/([0-9]{1,18})", RunPage),
    (r"/compare", ComparePage),
]
