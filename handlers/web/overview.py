"""The overview: the host, the fleet, the releases, the projects, and what changed last of all of them."""

from __future__ import annotations

import os
import platform
from collections.abc import Iterable, Iterator
from heapq import nlargest

from attrs import frozen

from handlers.base import Page, write_page
from handlers.charts.base_page import release_state
from handlers.charts.summary import Card, card
from handlers.http.permissions import READ
from handlers.routing import Route
from handlers.supervision.pages import process_url, row_of, states_of
from handlers.tracker.project_status import board_of, health
from handlers.web import layout
from models.paging import Paging
from models.supervision.events import Entry
from models.supervision.process import TROUBLE
from models.tracker.project_status import Health, ProjectStatus
from supervisor import host

_NEWEST = 8
_WORST = 8
_LOOKED_AT = 50
"""So many changes are looked at, and the newest of each process is told: one that fails all the time is told once."""


@frozen
class News:
    """Something that changed: where it is told of, what it is, what became of it (HTML), and when."""

    href: str
    what: str
    became: str
    at: int


class Home(Page):
    permission = READ

    async def get(self) -> None:
        await self.services.event_writer.stored_soon()
        fleet = list(self.services.fleet)
        trouble = [process for process in fleet if process.status in TROUBLE]
        changes = await self.services.history.page(Paging(size=_LOOKED_AT))
        projects = await board_of(self)
        releases = await card(self.services.charts, self.request)
        news = [*_of_processes(changes.content), *_of_runs(projects.standings), *_of_releases(releases)]
        write_page(
            self,
            "web/home.html",
            name=self.services.config.supervisor.node_name or platform.node(),
            description=self.services.config.supervisor.description,
            machine=host.read(),
            size=host.size,
            load=os.getloadavg(),
            up=self.services.clock.since_boot(),
            states=states_of(fleet),
            status_of=layout.status_of,
            trouble=[row_of(process) for process in trouble[:_WORST]],
            troubled=len(trouble),
            projects=len(projects.standings),
            verdicts=projects.counts,
            worst=[one for one in projects.standings[:_WORST] if one.health in (Health.FAILING, Health.AT_RISK)],
            health=health,
            releases=releases,
            release_state=release_state,
            news=nlargest(_NEWEST, news, key=lambda one: one.at),
        )


def _of_processes(changes: Iterable[Entry]) -> Iterator[News]:
    told = set[str]()
    for one in changes:
        if one.process in told or len(told) == _NEWEST:
            continue
        told.add(one.process)
        yield News(process_url(one.process), one.process, layout.status_of(one.new), one.at)


def _of_runs(standings: Iterable[ProjectStatus]) -> Iterator[News]:
    runs = ((one.newest, one.project.name) for one in standings if one.newest is not None)
    for run, name in nlargest(_NEWEST, runs, key=lambda one: one[0].created_at):
        became = layout.state(run.status.lower(), "good" if run.status == "PASSED" else "bad")
        yield News(f"/runs/{run.id}", f"{name}, run {run.id}", became, run.created_at)


def _of_releases(found: Card) -> Iterator[News]:
    for release, href, at in found.latest:
        yield News(href, f"{release.name} in {release.namespace}", release_state(release.status), at)


routes: list[Route] = [(r"/?", Home)]
