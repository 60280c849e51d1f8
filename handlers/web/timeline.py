"""One timeline of this host: status changes of processes, releases and runs of tests beside each other."""

from __future__ import annotations

from collections.abc import Iterable

from attrs import frozen

from handlers.base import HtmlPage, write_page
from handlers.charts.base_page import micros, release_kind, release_state
from handlers.charts.release_list import release_url
from handlers.http.permissions import READ
from handlers.routing import Route
from handlers.supervision.process_table import process_url
from handlers.web import layout
from models.errors import Invalid
from models.json_format import read_rfc3339
from models.paging import Paging
from models.supervision.events import Filter
from models.times import SECOND
from models.tracker import search

RANGES = {"10m": 600, "1h": 3600, "6h": 21_600, "24h": 86_400, "7d": 604_800, "30d": 2_592_000}
_DEFAULT_RANGE = "24h"
_MAX_ROWS = 200
"""Entries of each kind, the newest."""
_WIDTH = 900
_KINDS = {"process": "Processes", "release": "Releases", "project": "Runs"}


@frozen
class Happening:
    """Something that changed. `href` is below the prefix, `state` is HTML, `level` is a class of states."""

    kind: str
    name: str
    href: str
    state: str
    level: str
    at: int


class Timeline(HtmlPage):
    """The changes up to `until` (now by default) within `range`, filtered by names."""

    permission = READ
    missing_releases = ""
    """Why the releases of the cluster are not shown; empty where they are."""

    async def get(self) -> None:
        query, ignored = self.query(), list[str]()
        shown, end = query.get("range") or _DEFAULT_RANGE, self.clock.now()
        if shown not in RANGES:
            ignored.append(f"range {shown}")
            shown = _DEFAULT_RANGE
        until = query.get("until", "")
        try:
            end = read_rfc3339("until", until) if until else end
        except Invalid:
            ignored.append(f"until {until}")
            until = ""
        start = max(0, end - RANGES[shown] * SECOND)
        names = {kind: query.get(kind, "").strip() for kind in _KINDS}
        wanted = [kind for kind in _KINDS if names[kind]] or list(_KINDS)
        entries = await self._entries(start, end, names, wanted)
        write_page(
            self,
            "web/timeline.html",
            entries=entries,
            lanes=[(label, [entry for entry in entries if entry.kind == kind]) for kind, label in _KINDS.items()],
            place=lambda at: round((at - start) * _WIDTH / (end - start), 1),
            start=start,
            end=end,
            until=until,
            range=shown,
            ranges=RANGES,
            names=names,
            is_filtered=any(names.values()),
            ignored=ignored,
            missing_releases=self.missing_releases,
            most=_MAX_ROWS,
            width=_WIDTH,
        )

    async def _entries(self, start: int, end: int, names: dict[str, str], wanted: Iterable[str]) -> list[Happening]:
        """The newest changes first. A filter by one kind's name leaves the other kinds out, unless they have one."""
        found = list[Happening]()
        if "process" in wanted:
            found += await self._processes(start, end, names["process"])
        if "release" in wanted:
            found += await self._releases(start, end, names["release"])
        if "project" in wanted:
            found += await self._runs(start, end, names["project"])
        return sorted(found, key=lambda entry: -entry.at)

    async def _processes(self, start: int, end: int, text: str) -> list[Happening]:
        await self.supervision.event_writer.stored_soon()
        which = Filter(text=text, since=start, until=end)
        page = await self.supervision.history.page(Paging(size=_MAX_ROWS), which)
        return [
            Happening(
                "process", entry.process, process_url(entry.process), layout.status_of(entry.new),
                layout.kind_of(entry.new), entry.at,
            )
            for entry in page.content
        ]  # fmt: skip

    async def _releases(self, start: int, end: int, text: str) -> list[Happening]:
        """The newest revisions, of what is known already: never waits for a cluster."""
        work = self.charts.work(self.request)
        if not self.charts.has_cluster(work.target):
            return []
        known = await self.charts.overview.lately(work.reads)
        if known is None or known.problem is not None:
            self.missing_releases = known.problem.message if known and known.problem else "it has not answered yet"
            return []
        named = (release for release in known.releases if text.lower() in release.name.lower())
        dated = [(release, micros(release.updated)) for release in named if release.updated]
        shown = sorted((pair for pair in dated if start <= pair[1] <= end), key=lambda pair: -pair[1])
        return [
            Happening(
                "release", f"{release.name} in {release.namespace}", release_url(release.namespace, release.name),
                release_state(release.status), release_kind(release.status), at,
            )
            for release, at in shown[:_MAX_ROWS]
        ]  # fmt: skip

    async def _runs(self, start: int, end: int, text: str) -> list[Happening]:
        user = self.caller.user
        found = await self.tracker.run(lambda: search.runs_between(user, start, end, text, _MAX_ROWS))
        return [
            Happening(
                "project", f"{run.project}, run {run.id}", f"/runs/{run.id}",
                layout.state(f"tests {run.status.lower()}", level := "good" if run.status == "PASSED" else "bad"),
                level, run.at,
            )
            for run in found
        ]  # fmt: skip


routes: list[Route] = [(r"/history/timeline", Timeline)]
