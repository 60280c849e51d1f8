"""Badges: one number of a project as a small SVG picture, for a README."""

from __future__ import annotations

from collections.abc import Callable
from html import escape

from attrs import frozen

from handlers.base import Base
from handlers.http.permissions import PUBLIC
from handlers.operations import SENT, Operation, operation_routes
from handlers.routing import Route
from handlers.tracker.base import send_kept
from models.errors import NotFound
from models.inputs import ID_TEXT, InputKind, free_text, path, query
from models.json_format import http_message
from models.percentages import rounded_down
from models.tracker import queries, visibility
from models.tracker.coverage.file_coverage import line_coverage, pass_rate
from models.tracker.failures import flaky
from models.tracker.gate import project_status, quality_gate
from models.tracker.runs.kept_answers import state_of_project
from models.tracker.tables import Project, Run

GREEN, YELLOW, RED, GREY = "#2a7d3f", "#8a6100", "#b3261e", "#5f6368"
"""Their contrast with white text passes WCAG AA."""

_LETTER, _PADDING = 6.6, 10


@frozen
class Badge:
    label: str
    value: str
    colour: str


@frozen
class RunFilter:
    """Selects the newest runs of a branch and flag; without a branch, of the base branch if that has any."""

    base_branch: str
    branch: str | None
    flag: str | None

    def runs(self, project: Project, limit: int) -> list[Run]:
        if self.branch is not None:
            return queries.listing(project.id, limit, branch=self.branch, flag=self.flag)
        base = queries.listing(project.id, limit, branch=self.base_branch, flag=self.flag)
        return base or queries.listing(project.id, limit, flag=self.flag)


_RUNS_SEARCHED = 50
"""The newest run may belong to a flag that reports no coverage."""


def _coverage(project: Project, filter: RunFilter) -> Badge:
    percentages = (line_coverage(run) for run in filter.runs(project, _RUNS_SEARCHED))
    percentage = next((value for value in percentages if value is not None), None)
    return _percent("coverage", percentage, 80, 60)


def _pass(project: Project, filter: RunFilter) -> Badge:
    runs = filter.runs(project, 1)
    badge = _percent("tests", pass_rate(runs[0]) if runs and runs[0].tests > runs[0].skipped else None, 100, 90)
    if runs and runs[0].status == "FAILED" and runs[0].branch == filter.base_branch:
        failing = project_status.failing_since([runs[0].id])[runs[0].id]
        if failing.commits > 1:
            return Badge(badge.label, f"{badge.value}, {failing.text}", badge.colour)
    return badge


def _flaky(project: Project, filter: RunFilter) -> Badge:
    if not filter.runs(project, 1):
        return Badge("flaky tests", "n/a", GREY)
    number = flaky.count(project.id)
    return Badge("flaky tests", str(number), GREEN if not number else YELLOW if number <= 3 else RED)


def _percent(label: str, figure: float | None, good: int, fair: int) -> Badge:
    if figure is None:
        return Badge(label, "n/a", GREY)
    return Badge(label, f"{rounded_down(figure, 0)}%", GREEN if figure >= good else YELLOW if figure >= fair else RED)


METRICS: dict[str, Callable[[Project, RunFilter], Badge]] = {"coverage": _coverage, "pass": _pass, "flaky": _flaky}


def picture(badge: Badge) -> bytes:
    """A flat badge as SVG; its title and label state the value as text."""
    left, right = (round(len(text) * _LETTER + _PADDING) for text in (badge.label, badge.value))
    words = escape(f"{badge.label}: {badge.value}")
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{left + right}" height="20" role="img" aria-label="{words}">'
        f"<title>{words}</title>"
        f'<clipPath id="r"><rect width="{left + right}" height="20" rx="3"/></clipPath>'
        f'<g clip-path="url(#r)"><rect width="{left}" height="20" fill="#444"/>'
        f'<rect x="{left}" width="{right}" height="20" fill="{badge.colour}"/></g>'
        '<g fill="#fff" text-anchor="middle" font-family="Verdana,Geneva,DejaVu Sans,sans-serif" font-size="11">'
        f'<text x="{left / 2:g}" y="14">{escape(badge.label)}</text>'
        f'<text x="{left + right / 2:g}" y="14">{escape(badge.value)}</text></g></svg>'
    ).encode()


def _read_metric(_: str, text: str) -> str:
    if text not in METRICS:
        raise NotFound(f"a badge is one of {', '.join(METRICS)}")
    return text


@http_message
class BadgeRequest:
    project_id: str = path("The project", kind=ID_TEXT)
    metric: str = path(
        "The metric of the badge", kind=InputKind({"type": "string", "enum": list(METRICS)}, _read_metric)
    )
    branch: str | None = query("Only runs on this branch", kind=free_text("main"))
    flag: str | None = query("Only runs with this flag", kind=free_text("default"))


async def badge(handler: Base, request: BadgeRequest) -> object:
    """Open in closed mode too, for public projects; a private project returns 404 to callers who may not read it."""
    user, id, settings = handler.caller.user, request.project_id, handler.config.tracker.quality_gate

    def drawn() -> bytes:
        project = visibility.project(user, id)
        base = quality_gate.thresholds(project, settings).base_branch
        return picture(METRICS[request.metric](project, RunFilter(base, request.branch, request.flag)))

    key = "badge", id, request.metric, request.branch, request.flag
    await send_kept(handler, key, lambda: state_of_project(user, id), drawn, "image/svg+xml")
    handler.set_header("Cache-Control", "no-cache")
    handler.set_header("Content-Security-Policy", "default-src 'none'")
    return SENT


OPERATIONS = [
    Operation(
        None, "GET", "/badge/{projectId}/{metric}.svg", "Get a badge of a project: coverage, pass rate or flaky tests",
        BadgeRequest, badge, "image/svg+xml", error_statuses=[404], name="project_badge", permission=PUBLIC,
    )
]  # fmt: skip
routes: list[Route] = operation_routes(OPERATIONS)
