"""The status of the projects that a caller may read, cached until the store changes, and its rows on the list."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping, Sequence

from attrs import field, frozen

from handlers.base import Base
from handlers.tracker.base import in_snapshot
from handlers.web import layout, svg
from handlers.web.layout import FragmentCache
from models.accounts.accounts import User
from models.config.settings import QualityGate
from models.tracker.gate import project_status
from models.tracker.gate.project_status import ProjectHealth, ProjectStatus, Trend
from models.tracker.tables import reports
from supervisor.single_flight import SingleFlight
from supervisor.tracker.service import Tracker

_KINDS = {
    ProjectHealth.FAILING: "bad",
    ProjectHealth.AT_RISK: "warn",
    ProjectHealth.HEALTHY: "good",
    ProjectHealth.NO_RUNS: "",
}
_MAX_CALLERS = 8
_SPARK_WIDTH, _SPARK_HEIGHT = 90, 20


@frozen(eq=False)
class ProjectStatuses:
    """The projects that a caller may read, worst first, at one version of the store."""

    version: object
    statuses: list[ProjectStatus]
    trends: dict[int, Trend] = field(factory=dict)
    """The trends of the projects that pages have shown, by the id of the run that is judged."""
    counts: list[tuple[ProjectHealth, int]] = field(init=False)
    """The number of projects of each verdict, worst first."""

    @counts.default
    def _count(self) -> list[tuple[ProjectHealth, int]]:
        return [(verdict, sum(status.health is verdict for status in self.statuses)) for verdict in ProjectHealth]


class ProjectStatusCache:
    """The project statuses of the latest callers. Concurrent requests of one caller share one reading."""

    def __init__(self, tracker: Tracker, quality_gate: QualityGate) -> None:
        """`quality_gate` has the defaults of all projects."""
        self._tracker = tracker
        self._quality_gate = quality_gate
        self._cache: OrderedDict[object, ProjectStatuses] = OrderedDict()
        self._readings: SingleFlight[ProjectStatuses] = SingleFlight()

    async def of(self, user: User | None) -> ProjectStatuses:
        """The statuses at the present version of the store."""
        caller = None if user is None else "ADMIN" if user.is_admin else user.id
        cached = self._cache.get(caller)
        if cached is not None and cached.version == await self._tracker.read_fast(reports.version):
            return cached
        return await self._readings.run(caller, lambda: self._read(caller, user))

    async def _read(self, caller: object, user: User | None) -> ProjectStatuses:
        version, settings = await self._tracker.read_fast(reports.version), self._quality_gate
        found = await self._tracker.run(lambda: in_snapshot(lambda: project_status.visible_to(user, settings)))
        statuses = self._cache[caller] = ProjectStatuses(version, found)
        self._cache.move_to_end(caller)
        if len(self._cache) > _MAX_CALLERS:
            self._cache.popitem(last=False)
        return statuses


async def trends_of(page: Base, statuses: ProjectStatuses, shown: Sequence[ProjectStatus]) -> Mapping[int, Trend]:
    """The trends of these projects."""
    missing = [status.run.id for status in shown if status.run is not None and status.run.id not in statuses.trends]
    if missing:
        found = await page.tracker.run(lambda: in_snapshot(lambda: project_status.trends(missing)))
        statuses.trends.update({id: found.get(id, ()) for id in missing})
    return statuses.trends


def sparkline(values: Sequence[float | None]) -> str:
    """Percentages as SVG on an axis of at least 5 points; nothing for less than two."""
    known = [value for value in values if value is not None]
    if len(known) < 2:
        return ""
    low, high = svg.axis_of(known)
    points = " ".join(
        f"{place * _SPARK_WIDTH / (len(values) - 1):.0f},"
        f"{_SPARK_HEIGHT - 1 - (value - low) / (high - low) * (_SPARK_HEIGHT - 2):.0f}"
        for place, value in enumerate(values)
        if value is not None
    )
    return (
        f'<svg class="spark" viewBox="0 0 {_SPARK_WIDTH} {_SPARK_HEIGHT}" preserveAspectRatio="none"'
        f' aria-hidden="true"><title>the last {len(values)} runs</title><polyline points="{points}"/></svg>'
    )


def render_rows(page: Base, statuses: Sequence[ProjectStatus], trends: Mapping[int, Trend]) -> bytes:
    """Renders the rows of the project list. Runs in a worker."""
    cache: FragmentCache = page.settings["fragments"]
    helpers = {"base": page.prefix, "health": health, "change": layout.change, **layout.template_helpers()}

    def row(status: ProjectStatus) -> bytes:
        project, change = status.project, status.verdict and status.verdict.coverage_delta
        shown = project.id, project.name, project.visibility, status.health, status.reason
        trend = tuple(trends.get(status.run.id, ())) if status.run else ()
        return cache.get(
            ("project", page.prefix, change, *shown, status.run, status.newest, status.failing, trend),
            lambda: page.render_string(
                "tracker/project_row.html",
                status=status,
                passes=sparkline([passed for passed, _ in trend]),
                coverage=sparkline([covered for _, covered in trend]),
                **helpers,
            ),
        )

    return b"".join(map(row, statuses))


async def projects_of(page: Base) -> ProjectStatuses:
    """The statuses of the projects that the caller of this page may read."""
    cache: ProjectStatusCache = page.settings["project_statuses"]
    return await cache.of(page.caller.user)


def health(verdict: ProjectHealth) -> str:
    """Renders the verdict on a project."""
    return layout.state(verdict.value, _KINDS[verdict])
