"""The page of all releases."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any
from urllib.parse import quote

from handlers.charts.base_page import ChartPage
from handlers.charts.releases import STATUSES, ReleaseListRequest
from handlers.routing import Route
from handlers.web.table import page_of, read_table
from models.charts import releases
from models.charts.releases import Brief
from models.charts.responses import ListRow
from models.errors import Problem, TimedOut, Upstream
from models.inputs import read
from supervisor.charts.kube.cluster import DENIED
from supervisor.charts.release_reads import Reads

_SORTS: dict[str, Callable[[Brief], Any]] = {
    "name": lambda release: release.name,
    "namespace": lambda release: (release.namespace, release.name),
    "status": lambda release: release.status,
    "revision": lambda release: release.revision.number,
    "updated": lambda release: release.updated or "",
}


def urgency(status: str) -> tuple[int, str]:
    """Failed releases first, then those with an unfinished change, then all others."""
    return (0 if status == "failed" else 1 if status.startswith("pending-") or status == "uninstalling" else 2, status)


def release_url(namespace: str, name: str) -> str:
    """The path of a release's page, below the prefix."""
    return f"/releases/{quote(namespace, safe='')}/{quote(name, safe='')}"


class Releases(ChartPage):
    """All releases, filtered by namespace, status and name."""

    async def get(self) -> None:
        query, reads = self.query(), self.reads()
        if reads is None:
            self.show("charts/releases.html", has_cluster=False)
            return
        namespace = query.get("namespace", "").strip()
        known, problem = await self._list(reads, namespace)
        in_namespace = [release for release in known if not namespace or release.namespace == namespace]
        in_namespace.sort(key=lambda release: urgency(release.status)[0])
        states = Counter(release.status for release in in_namespace)
        counts = sorted(states.items(), key=lambda item: urgency(item[0]))
        wanted = read_table(f"{self.prefix}/releases", query, _SORTS, sorted(STATUSES), ("namespace",), "state")
        text = wanted.q.lower()
        matches = [one for one in in_namespace if text in one.name and wanted.status in ("", one.status)]
        table, shown = page_of(wanted, matches, _SORTS)
        rows = await described(reads, shown)
        newer = await self.charts.upgrades.of_rows(reads.place, rows)
        self.show(
            "charts/releases.html",
            has_cluster=True,
            problem=problem,
            rows=[
                (row, release_url(row.namespace, row.name), later[0].version if later else "")
                for row, later in zip(rows, newer, strict=True)
            ],
            namespaces=sorted(Counter(release.namespace for release in known).items()),
            namespace=namespace,
            states=counts,
            table=table,
            table_statuses=[(state, state, count) for state, count in counts],
            unfiltered=len(in_namespace),
        )

    async def _list(self, reads: Reads, namespace: str) -> tuple[list[Brief], str]:
        """The releases, or the reason why they are not known.

        An account that may not list Secrets of all namespaces gets the releases of `namespace`.
        """
        known = await self.charts.overview.newest(reads)
        if known.problem is None:
            return known.releases, ""
        if known.problem.code == DENIED:
            try:
                request = read(ReleaseListRequest, {}, {"namespace": namespace}, {})
                rows = await reads.rows(request.namespace or "default")
                return [releases.brief_of_row(row) for row in rows], ""
            except Problem as problem:
                return [], problem.message
        return [], known.problem.message


async def described(reads: Reads, shown: list[Brief]) -> list[ListRow]:
    """The rows of these releases; without the details if the cluster does not answer."""
    try:
        return await reads.described(shown)
    except (Upstream, TimedOut):
        return [releases.row_of_brief(release) for release in shown]


routes: list[Route] = [(r"/releases/?", Releases)]
