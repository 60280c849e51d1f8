"""The pages of the tracker: projects, one project, one test, one run, and the comparison of two."""

from __future__ import annotations

import asyncio
import re
import shlex
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar
from urllib.parse import quote, urlencode

from handlers.base import HtmlPage, frame_key, rendered, set_page_headers, write_long_page
from handlers.http.permissions import READ
from handlers.http.serializers import duration_text
from handlers.operations import query_of
from handlers.routing import Route
from handlers.tracker import serializers
from handlers.tracker.base import HistoryOfTest, in_snapshot, send_kept
from handlers.tracker.lists import ListRequest, limit
from handlers.tracker.pages import plots
from handlers.tracker.pages.forms import TrackedPage
from handlers.tracker.project_status import health, projects_of, render_rows, trends_of
from handlers.tracker.projects import history_of
from handlers.tracker.responses import PatchInfo
from handlers.web import svg
from handlers.web.layout import NOTHING, FragmentCache, change, template_helpers
from handlers.web.table import page_of, read_number, read_table
from models.accounts import permissions
from models.accounts.accounts import User
from models.config.settings import QualityGate
from models.errors import NotFound
from models.inputs import free_text, query, read
from models.json_format import http_message, rfc3339
from models.times import DAY
from models.tracker import queries, visibility
from models.tracker.coverage import file_coverage as coverage
from models.tracker.coverage import patch
from models.tracker.coverage.diff import MAX_DIFF_FILES
from models.tracker.failures import first_failures, flaky, quarantine, quarantine_policy, triage
from models.tracker.failures import run_failures as failures
from models.tracker.failures.flaky import Triage
from models.tracker.failures.run_failures import FailureQuery
from models.tracker.forges import owners
from models.tracker.gate import project_status, quality_gate, test_drop
from models.tracker.gate.baseline import explained
from models.tracker.gate.project_status import ProjectHealth, ProjectStatus
from models.tracker.runs import attempts, comparison, perf
from models.tracker.runs import store as runs
from models.tracker.runs.kept_answers import State, state_of_project, state_of_run
from models.tracker.tables import Project, Run

Result = TypeVar("Result")

_DEFAULT_RUNS = 20
_FAILURES_PER_PAGE = 25
_MAX_RESULTS = 100
_MAX_FILES = 10
_CHARACTER_WIDTH = 7.5
_MAX_TITLE = 160
_UNITS = (("MB", 1_000_000), ("kB", 1000))
_PROJECT_SORTS: dict[str, Callable[[ProjectStatus], Any]] = {
    "name": lambda status: status.project.name.lower(),
    "pass-rate": lambda status: status.run.pass_rate if status.run else -1.0,
    "coverage": lambda status: (status.run and status.run.line_coverage) or 0.0,
    "tests": lambda status: status.run.tests if status.run else 0,
    "updated": lambda status: status.newest.created_at if status.newest else 0,
}


def took(ms: int | None) -> str:
    """Formats a duration."""
    if ms is None:
        return NOTHING
    if ms < 1000:
        return f"{ms} ms"
    return f"{ms / 1000:.1f} s" if ms < 60_000 else duration_text(ms * 1000)


def size(count: int) -> str:
    """Formats a number of bytes."""
    return next((f"{count / scale:.1f} {unit}" for unit, scale in _UNITS if count >= scale), f"{count} bytes")


def kind(status: str) -> str:
    """The kind of state that the status of a run, a test or a verdict is, for `state`."""
    return {"PASSED": "good", "FAILED": "bad", "ERROR": "bad"}.get(status, "")


def _query(**values: Any) -> str:
    return urlencode({name: value for name, value in values.items() if value is not None})


def commit_path(commit: str | None) -> str:
    """The path of a commit's page below that of its project."""
    return f"commits/{quote(commit or '', safe='')}"


def upload_snippet(page: HtmlPage, project: str, needs_token: bool) -> str:
    """The commands of a CI job: post a report, then check the quality gate."""
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


def _shortened(text: str, width: float) -> str:
    """A name that fits into so many units of a map, cut with an ellipsis."""
    room = int((width - 16) / _CHARACTER_WIDTH)
    return text if len(text) <= room else f"{text[: max(1, room - 1)]}…"


def _one_line(text: str) -> str:
    """The first line of a message that says something, shortened."""
    line = next((line.strip() for line in text.splitlines() if line.strip()), text)
    return line if len(line) <= _MAX_TITLE else f"{line[: _MAX_TITLE - 1]}…"


_HELPERS = {
    "one_line": _one_line,
    "bar": svg.bar,
    "coverage_kind": svg.coverage_kind,
    "shortened": _shortened,
    "change": change,
    "took": took,
    "kind": kind,
    "query": _query,
    "statuses": list(Triage.__members__),
    "health": health,
    "size": size,
    "commit_path": commit_path,
    "rfc3339": rfc3339,
}


class ReadPage(TrackedPage):
    permission = READ

    async def show(self, template: str, **values: Any) -> None:
        await write_long_page(self, template, **_HELPERS, **values)

    async def show_kept(
        self, template: str, state_of: Callable[[User | None], State], values: Callable[[], dict[str, Any]]
    ) -> None:
        """Shows a page about a project or a run, which is kept until the project changes."""
        user, request = self.caller.user, self.request
        key = "page", *frame_key(self), request.host, request.protocol, self.caller.is_secure

        def state() -> State:
            project = state_of(user)
            return *project, permissions.may_write(user, project[0])

        try:
            await send_kept(
                self, key, state, lambda: rendered(self, template, {**_HELPERS, **values()}), "text/html; charset=utf-8"
            )
        except NotFound as missing:
            raise self.unseen(missing.message) from None
        set_page_headers(self)

    async def read(self, query: Callable[[], Result]) -> Result:
        """Runs `query` in the worker, within one read transaction."""
        return await self.query_store(lambda: in_snapshot(query))

    def thresholds(self, project: Project) -> QualityGate:
        return quality_gate.thresholds(project, self.config.tracker.quality_gate)

    def snippet(self, project: str, is_private: bool = False) -> str:
        security = self.config.tracker.security
        return upload_snippet(self, project, is_private or security.require_ingest_token or not security.open_mode)


class Projects(ReadPage):
    """The list of projects."""

    async def get(self) -> None:
        projects = await projects_of(self)
        verdicts = [verdict.value for verdict in ProjectHealth]
        wanted = read_table(f"{self.prefix}/projects", self.query(), _PROJECT_SORTS, verdicts)
        matches = [
            status
            for status in projects.statuses
            if wanted.q.lower() in status.project.name.lower() and wanted.status in ("", status.health.value)
        ]
        table, shown = page_of(wanted, matches, _PROJECT_SORTS)
        await self.show(
            "tracker/projects.html",
            rows=await asyncio.to_thread(render_rows, self, shown, await trends_of(self, projects, shown)),
            counts=projects.counts,
            snippet=self.snippet("my-project"),
            table=table,
            table_statuses=[(verdict.value, verdict.value, count) for verdict, count in projects.counts],
            is_empty=not projects.statuses,
        )


@http_message
class ShownRuns(ListRequest):
    limit: int | None = limit(_DEFAULT_RUNS)
    branch: str | None = query(kind=free_text())
    flag: str | None = query(kind=free_text())


class ProjectPage(ReadPage):
    """One project: verdict, trend, runs, branches, flaky tests."""

    async def get(self, id: str) -> None:
        query = self.query()
        request = read(ShownRuns, {}, {**query, "format": ""}, {})
        branch, flag, count = request.branch, request.flag, request.bounded_limit
        requested, known = query.get("range", ""), {str(length): length for length in plots.RANGES}
        shown = known.get(requested, plots.RANGES[0])
        filters = {"branch": branch, "flag": flag, "limit": count, "max_limit": queries.MAX_RUNS}
        ranges = {
            "range": shown,
            "ranges": plots.RANGES,
            "ignored": f"range {requested}" if requested not in ("", *known) else "",
        }

        def values() -> dict[str, Any]:
            values = self._values(id, branch, flag, count, shown)
            return {**filters, **ranges, **values, **self._snippets(values["project"])}

        await self.show_kept("tracker/project.html", lambda user: state_of_project(user, id), values)

    def _values(self, id: str, branch: str | None, flag: str | None, limit: int, plotted: int) -> dict[str, Any]:
        user = self.caller.user
        project = visibility.project(user, id)
        limits = self.thresholds(project)
        shown = queries.listing(project.id, limit, branch=branch, flag=flag)
        (status,) = project_status.of([project], self.config.tracker.quality_gate)
        policy = quarantine_policy.of_project(project, self.config.tracker.quarantine)
        branches, flags = queries.branches_overview(project.id, limits.base_branch), queries.flags(project.id)
        return {
            "project": project,
            "gate": limits,
            "status": status,
            "branches": branches,
            "flags": flags,
            "rows": self._rows(shown, queries.before_each(shown)),
            "shown": len(shown),
            "tests": [serializers.flaky_info(test) for test in flaky.tests(project.id)],
            "policy": policy,
            "policy_text": quarantine_policy.described(policy),
            "writes": permissions.may_write(user, project),
            **self._trend(
                project,
                branch or _if_present(limits.base_branch, [item.name for item in branches]),
                flag or _if_present(runs.DEFAULT_FLAG, flags) or (flags[0] if flags else None),
                plotted,
            ),
        }

    def _rows(self, shown: Sequence[Run], before: Mapping[int, int]) -> bytes:
        """Renders the rows of the run table; each links the comparison with the run before it.

        `shown` are the named tuples of `queries.listing`: the cache compares them by value, models by their id alone.
        """
        cache: FragmentCache = self.settings["fragments"]
        helpers = {"base": self.prefix, "kind": kind, "took": took, **template_helpers()}

        def row(run: Run) -> bytes:
            previous = before.get(run.id)
            return cache.get(
                ("run", self.prefix, previous, run),
                lambda: self.render_string(
                    "tracker/run_row.html", run=serializers.run_info(run), previous=previous, **helpers
                ),
            )

        return b"".join(map(row, shown))

    def _trend(self, project: Project, branch: str | None, flag: str | None, plotted: int) -> dict[str, Any]:
        """The plots of the runs of one flag: different flags are not comparable."""
        newest = queries.listing(project.id, plotted, branch=branch, flag=flag)
        shown = [serializers.run_info(run) for run in newest]
        trend = plots.trend(shown) if len(shown) > 1 else None
        coverage_trend = plots.coverage_trend(shown) if len(shown) > 1 else None
        return {
            "trend": trend,
            "coverage_trend": coverage_trend,
            "duration_trend": plots.duration_trend(shown) if len(shown) > 1 else None,
            "growing": comparison.growing_tests([run.id for run in newest]),
            "trend_runs": shown,
            "ticks": plots.ticks(shown),
            "trend_branch": branch,
            "trend_flag": flag,
        }

    def _snippets(self, project: Project) -> dict[str, Any]:
        is_private = project.visibility != "PUBLIC"
        origin = f"{'https' if self.caller.is_secure else self.request.protocol}://{self.request.host}{self.prefix}"
        page = f"{origin}/projects/{project.id}"
        badges = "\n".join(
            f"[![{name}]({origin}/badge/{project.id}/{name}.svg)]({page})" for name in ("pass", "coverage", "flaky")
        )
        return {"snippet": self.snippet(project.name, is_private), "badges": badges, "is_private": is_private}


def _if_present(name: str, names: Sequence[str]) -> str | None:
    return name if name in names else None


class TestPage(ReadPage):
    """The results of one test over time."""

    __test__ = False  # pytest would collect it

    async def get(self, id: str) -> None:
        test = read(HistoryOfTest, {}, query_of(self, HistoryOfTest), {})
        await self.show("tracker/test.html", **await self.read(lambda: self._values(id, test)))

    def _values(self, id: str, wanted: HistoryOfTest) -> dict[str, Any]:
        user = self.caller.user
        project = visibility.project(user, id)
        history = history_of(project, wanted, _MAX_RESULTS, None)
        test_id = queries.test_id(project.id, wanted.class_name, wanted.name)
        changes = quarantine.changes(project.id, test_id, permissions.role_in(user, project) is not None)
        end = changes[0].expires_at if changes else None
        return {
            "project": project,
            "test": history,
            "wanted": wanted,
            "flags": queries.flags(project.id),
            "note": queries.note_of(project.id, test_id),
            "classified": changes,
            "ends_on": "" if end is None else rfc3339(end + DAY - 1)[:10],  # not before the end
            "plot": plots.over_time(history.results) if len(history.results) > 1 else None,
            "writes": permissions.may_write(user, project),
        }


class RunPage(ReadPage):
    """One run: failures, quality gate, changes against the baseline, suites, coverage."""

    async def get(self, id: str) -> None:
        query = self.query()
        await self.show_kept("tracker/run.html", lambda user: state_of_run(user, id), lambda: self._values(id, query))

    def _values(self, id: str, query: Mapping[str, str]) -> dict[str, Any]:
        user = self.caller.user
        run, project = visibility.run(user, id)
        verdict = quality_gate.verdict(run, project, self.config.tracker.quality_gate)
        baseline = Run.get_or_none(Run.id == verdict.baseline_id) if verdict.baseline_id else None
        detail = queries.detail(run.id, 0)
        changes = comparison.changes(baseline, run) if baseline else None
        before, after = queries.neighbours(run)
        health, reason = project_status.judge(run, verdict)
        return {
            "project": project,
            "detail": serializers.run_detail(run, project, verdict, detail, coverage.files(run)),
            "run_health": health,
            "reason": reason,
            "baseline": baseline,
            "compared_with": explained(verdict.baseline, run.id, self.config.tracker.quality_gate.base_branch),
            "changes": changes,
            "before": before,
            "after": after,
            "max_files": _MAX_FILES,
            "perf": perf.compared(run.id, perf.baselines(run.id, self.thresholds(project).base_branch)),
            "report_warnings": queries.report_warnings(run.id),
            "drops": test_drop.warnings(run.id, verdict.baseline_id, attempts.is_waiting(run)),
            "ambiguous_keys": attempts.ambiguous_keys(run) if run.run_key is not None else (),
            "patch": patch_of(run),
            **_failures(run, project, verdict.baseline_id, query),
            "writes": permissions.may_write(user, project),
        }


def _failures(run: Run, project: Project, baseline: int | None, query: Mapping[str, str]) -> dict[str, Any]:
    """A page of the failures of a run, and what is known of their tests, by the ids of these."""
    wanted, number, ignored = _failure_query(query)
    shown = failures.page_of(run.id, baseline, wanted, number, _FAILURES_PER_PAGE)
    entries = [*shown.entries, *(entry for group in shown.groups for entry in group.entries)]
    cases = [entry.case for entry in entries if entry.case]
    rules, tests = triage.rules_of(project.id), [case.test_id for case in cases if case.test_id]
    filters = {
        "group": None if wanted.group == failures.GROUPINGS[0] else wanted.group,
        "q": wanted.q or None,
        "new": "true" if wanted.only_new else None,
        "cause": wanted.cause,
        "suite": wanted.suite,
    }
    return {
        "failures": shown,
        "wanted": wanted,
        "filters": filters,
        "ignored": ignored,
        "failures_url": lambda **changes: f"?{_query(**{**filters, **changes})}#failures",
        "owners": owners.of_tests(project.id, tests),
        "since": {
            test: serializers.since(first, project.repo_url)
            for test, first in first_failures.first_failures(run, tests).items()
        },
        "categories": {
            case.test_id: triage.category(rules, case.type, case.message, case.triaged_stack) for case in cases
        },
    }


def _failure_query(query: Mapping[str, str]) -> tuple[FailureQuery, int, list[str]]:
    """The wanted failures, the page, and the values that were not understood, which are ignored."""
    ignored: list[str] = []
    number = read_number("page", query, 0, ignored)
    group = next((name for name in failures.GROUPINGS if name == query.get("group")), None)
    if query.get("group") and group is None:
        ignored.append(f"group {query['group']}")
    if query.get("new", "") not in ("", "true", "false"):
        ignored.append(f"new {query['new']}")
    cause = query.get("cause", "")
    if cause and not re.fullmatch("-1|[0-9]{1,18}", cause):
        ignored.append(f"cause {cause}")
        cause = ""
    return (
        FailureQuery(
            q=query.get("q", "").strip(),
            only_new=query.get("new") == "true",
            group=group or failures.GROUPINGS[0],
            cause=int(cause) if cause else None,
            suite=query.get("suite"),
        ),
        number,
        ignored,
    )


def patch_of(run: Run) -> PatchInfo | None:
    """The coverage of changed lines; None if no upload of the run had a diff."""
    if run.patch_covered is None:
        return None
    return serializers.patch_info(run, patch.coverage([run.id]), None, MAX_DIFF_FILES)


routes: list[Route] = [
    (r"/projects", Projects),
    (r"/projects/([0-9]{1,18})", ProjectPage),
    (r"/projects/([0-9]{1,18})/test", TestPage),
    (r"/runs/([0-9]{1,18})", RunPage),
]
