"""The overview: the host, the processes, the releases, the projects, and the latest changes of all of them."""

from __future__ import annotations

import os
import platform
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from heapq import nlargest

from attrs import frozen
from tornado.httputil import HTTPServerRequest

from handlers.base import HtmlPage, write_page
from handlers.charts.base_page import micros, release_state
from handlers.charts.release_list import release_url
from handlers.http.permissions import READ
from handlers.routing import Route
from handlers.supervision import process_metrics
from handlers.supervision.process_metrics import MetricsWindow
from handlers.supervision.process_table import process_url, row_of, status_counts
from handlers.tracker.project_status import health, projects_of
from handlers.web import layout
from handlers.web.first_steps import first_steps
from models.charts.releases import Brief
from models.paging import Paging
from models.supervision.events import StatusEvent
from models.supervision.process import TROUBLE
from models.times import SECOND
from models.tracker.gate.project_status import ProjectHealth, ProjectStatus
from supervisor import host
from supervisor.charts.service import Charts

_MAX_CHANGES = 8
_SHORT_SECONDS = 600
_PROBLEMS = (ProjectHealth.FAILING, ProjectHealth.AT_RISK)
_MAX_TROUBLED = 8
_MAX_FAILED_RELEASES = 5
_EVENTS_READ = 50
"""Events read for the latest changes: only the newest of each process is shown, so that one that fails repeatedly
does not push out the others."""


@frozen
class RecentChange:
    """Something that changed: the path of its page, its name, its new state as HTML, and the time."""

    href: str
    name: str
    state: str
    at: int


@frozen
class ReleaseSummary:
    """Releases by state. `problem` is the reason where the releases are not known."""

    states: Mapping[str, int]
    failed: list[tuple[Brief, str]]
    """Failed releases, each with the path of its page."""
    latest: Sequence[tuple[Brief, str, int]] = ()
    """The releases that changed last, each with the path of its page and the time in microseconds since 1970."""
    problem: str = ""
    is_loading: bool = False
    """Whether the cluster has not answered since the start of the server."""


class OverviewPage(HtmlPage):
    permission = READ

    async def get(self) -> None:
        await self.supervision.event_writer.stored_soon()
        fleet = list(self.supervision.fleet)
        troubled = [process for process in fleet if process.status in TROUBLE]
        events = await self.supervision.history.page(Paging(size=_EVENTS_READ))
        projects = await projects_of(self)
        releases = await release_summary(self.charts, self.request)
        changes = [
            *_process_changes(events.content),
            *_run_changes(projects.statuses),
            *_release_changes(releases),
        ]
        has_answered = not (releases.problem or releases.is_loading)
        write_page(
            self,
            "web/home.html",
            steps=first_steps(self, bool(fleet), bool(projects.statuses), bool(releases.states), has_answered),
            name=self.config.supervisor.node_name or platform.node(),
            description=self.config.supervisor.description,
            machine=host.read(),
            size=host.size,
            load=os.getloadavg(),
            uptime=self.clock.since_boot(),
            states=status_counts(fleet),
            status_of=layout.status_of,
            trouble=[row_of(process, self.supervision.context.prober) for process in troubled[:_MAX_TROUBLED]],
            trouble_count=len(troubled),
            projects=len(projects.statuses),
            verdicts=projects.counts,
            worst=[project for project in projects.statuses[:_MAX_TROUBLED] if project.health in _PROBLEMS],
            health=health,
            releases=releases,
            release_state=release_state,
            host_plots=_host_plots(self),
            has_problems=bool(troubled or releases.failed or any(one.health in _PROBLEMS for one in projects.statuses)),
            changes=nlargest(_MAX_CHANGES, changes, key=lambda change: change.at),
        )


def _host_plots(page: HtmlPage) -> list[process_metrics.Plot]:
    """CPU and memory of the host over the last hour, or over ten minutes while there is less."""
    now, series = page.clock.now() // SECOND, page.supervision.metrics.host
    hour = process_metrics.window(MetricsWindow(), now)
    has_older = series.points(hour.start, now - _SHORT_SECONDS, hour.step)
    shown = hour if has_older else process_metrics.window(MetricsWindow(), now, 600)
    points = [point.alone for point in series.points(shown.start, shown.end, shown.step)]
    return process_metrics.plots(points, [], shown)


async def release_summary(charts: Charts, request: HTTPServerRequest) -> ReleaseSummary:
    """Counts the releases by state from what is known already. Never waits for a cluster."""
    work = charts.work(request)
    if not charts.has_cluster(work.target):
        return ReleaseSummary({}, [], problem="No cluster is configured (svc.kube.kubeconfig).")
    known = await charts.overview.lately(work.reads)
    if known is None:
        return ReleaseSummary({}, [], is_loading=True)
    if known.problem is not None:
        return ReleaseSummary({}, [], problem=f"The cluster does not answer: {known.problem.message}.")
    failed = [release for release in known.releases if release.status == "failed"][:_MAX_FAILED_RELEASES]
    states = Counter(release.status for release in known.releases)
    newest = nlargest(_MAX_CHANGES, known.releases, key=lambda release: release.updated or "")
    latest = [(release, _url(release), micros(release.updated)) for release in newest if release.updated]
    return ReleaseSummary(dict(sorted(states.items())), [(release, _url(release)) for release in failed], latest)


def _url(release: Brief) -> str:
    return release_url(release.namespace, release.name)


def _process_changes(events: Iterable[StatusEvent]) -> Iterator[RecentChange]:
    seen = set[str]()
    for event in events:
        if event.process in seen or len(seen) == _MAX_CHANGES:
            continue
        seen.add(event.process)
        yield RecentChange(process_url(event.process), event.process, layout.status_of(event.new), event.at)


def _run_changes(statuses: Iterable[ProjectStatus]) -> Iterator[RecentChange]:
    runs = ((status.newest, status.project.name) for status in statuses if status.newest is not None)
    for run, name in nlargest(_MAX_CHANGES, runs, key=lambda pair: pair[0].created_at):
        state = layout.state(f"tests {run.status.lower()}", "good" if run.status == "PASSED" else "bad")
        yield RecentChange(f"/runs/{run.id}", f"{name}, run {run.id}", state, run.created_at)


def _release_changes(summary: ReleaseSummary) -> Iterator[RecentChange]:
    for release, href, at in summary.latest:
        yield RecentChange(href, f"{release.name} in {release.namespace}", release_state(release.status), at)


routes: list[Route] = [(r"/?", OverviewPage)]
