"""The page of all releases."""

from __future__ import annotations

from collections import Counter
from urllib.parse import quote, urlencode

from handlers.charts.base_page import ChartPage
from models.charts import releases
from models.charts.releases import Brief
from models.charts.responses import ListRow
from models.errors import Problem, Upstream
from models.paging import whole
from supervisor.charts.kube.cluster import DENIED
from supervisor.charts.release_reads import Reads

_ROWS = 50


def url_of(namespace: str, name: str) -> str:
    """The page of a release, below the prefix."""
    return f"/releases/{quote(namespace, safe='')}/{quote(name, safe='')}"


class Releases(ChartPage):
    """All releases, or those of a namespace, a state, or with a word in the name."""

    async def get(self) -> None:
        query, reads = self.query(), self.reads()
        if reads is None:
            self.show("charts/releases.html", has_cluster=False)
            return
        namespace = query.get("namespace", "").strip()
        found, problem = await self._found(reads, namespace)
        word, state = query.get("q", "").strip().lower(), query.get("state", "")
        of_space = [one for one in found if not namespace or one.namespace == namespace]
        states = Counter(one.status for one in of_space)
        wanted = [one for one in of_space if word in one.name and state in ("", one.status)]
        number = whole("page", query.get("page") or "0", 0, 100_000)
        shown = wanted[number * _ROWS : (number + 1) * _ROWS]
        self.show(
            "charts/releases.html",
            has_cluster=True,
            problem=problem,
            rows=[(row, url_of(row.namespace, row.name)) for row in await described(reads, shown)],
            spaces=sorted(Counter(one.namespace for one in found).items()),
            namespace=namespace,
            states=sorted(states.items()),
            total=len(wanted),
            of_all=len(of_space),
            number=number,
            pages=-(-len(wanted) // _ROWS),
            query=query,
            url=lambda **changes: f"{self.prefix}/releases?{urlencode({**query, **changes})}",
        )

    async def _found(self, reads: Reads, namespace: str) -> tuple[list[Brief], str]:
        """What there is, or why that cannot be told. Who may read but one namespace is shown that."""
        known = await self.services.charts.overview.newest(reads)
        if known.problem is None:
            return known.releases, ""
        if known.problem.code == DENIED:
            try:
                rows = await self.ask("helm_list", query={"namespace": namespace})
                return [releases.of_row(row) for row in rows if isinstance(row, ListRow)], ""
            except Problem as problem:
                return [], problem.message
        return [], known.problem.message


async def described(reads: Reads, some: list[Brief]) -> list[ListRow]:
    """Their rows; what a cluster does not tell just now is left open."""
    try:
        return await reads.described(some)
    except Upstream:
        return [releases.plain_row(one) for one in some]
