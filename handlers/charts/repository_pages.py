"""The pages of chart repositories: the list with a search of the public hub, one repository, one chart."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any
from urllib.parse import quote, urlencode

from handlers.charts.base_page import ChartPage, cut
from handlers.charts.operations import Warned
from handlers.routing import Route
from handlers.web.table import page_of, read_table
from models import markdown
from models.charts.repositories import stored as catalogue
from models.charts.repositories.listings import matching
from models.charts.repositories.listings import versions as listed_versions
from models.charts.repositories.stored import RepositorySource
from models.charts.responses import HubItem
from models.errors import Invalid, Problem
from models.paging import whole
from supervisor.charts.workers import MAX_INLINE_BYTES

log = logging.getLogger("charts")

_PAGE_ROWS = 100
_MAX_VERSIONS = 200
_MAX_HUB_RESULTS = 30
_MAX_CHARTS = 50
_STATES = ("fetched", "failed")
_SORTS: dict[str, Callable[[RepositorySource], Any]] = {
    "name": lambda source: (source.name or "").lower(),
    "url": lambda source: source.url,
    "fetched": lambda source: source.fetched_at,
}
_TABS = {"readme": "README", "values": "Default values", "metadata": "Metadata", "crds": "CRDs"}


def repository_url(name: str) -> str:
    """The path of a repository's page, below the prefix."""
    return f"/repositories/{quote(name, safe='')}"


class RepositoriesPage(ChartPage):
    """The repositories, the form that adds one, and the search of the public hub."""

    back = "/repositories"

    async def get(self) -> None:
        query = self.query()
        form = {name: query[name] for name in ("name", "url") if query.get(name)}
        await self._page(form, keyword=query.get("hub", "").strip())

    async def post(self) -> None:
        verb = self.field("verb")
        try:
            if verb == "update":
                result = await self.run("helm_repo_update_all")
                if isinstance(result, Warned) and result.warnings:
                    await self._page({}, warnings=result.warnings)
                    return
                path, text = "/repositories", "all indexes updated"
            elif verb == "add":
                await self.run("helm_repo_add", body=self._add_request())
                path, text = repository_url(self.field("name")), f"repository {self.field('name')} added"
            else:
                raise Invalid("verb must be add or update")
        except Problem as problem:
            await self._page(self.form(), failure=self.failed(problem), failed=verb)
            return
        self.redirect_done(path, text)

    def _add_request(self) -> dict[str, Any]:
        texts = {name: self.field(name) for name in ("name", "url", "username", "password")}
        return {**texts, **self.flags("insecureSkipTlsVerify", "passCredentials", "forceUpdate")}

    async def _page(
        self,
        form: dict[str, str],
        failure: str = "",
        failed: str = "",
        warnings: tuple[str, ...] = (),
        keyword: str = "",
    ) -> None:
        results, problem = await self._search(keyword)
        repositories = self.charts.repositories
        sources, faults = repositories.all(), repositories.faults
        query = {} if keyword else self.query()
        wanted = read_table(f"{self.prefix}/repositories", query, _SORTS, _STATES, status_label="Index")
        matches = [
            source
            for source in sources
            if wanted.q.lower() in f"{source.name} {source.url}".lower()
            and wanted.status in ("", "failed" if source.name in faults else "fetched")
        ]
        table, shown = page_of(wanted, matches, _SORTS)
        self.show(
            "charts/repositories.html",
            sources=[(source, repository_url(source.name or ""), faults.get(source.name or "")) for source in shown],
            has_sources=bool(sources),
            table=table,
            table_statuses=[("fetched", "fetched", len(sources) - len(faults)), ("failed", "failed", len(faults))],
            charts=await self._charts(wanted.q),
            form=form,
            failure=failure,
            failed=failed,
            warnings=warnings,
            keyword=keyword,
            results=results,
            problem=problem,
            query=lambda **values: urlencode(values),
        )

    async def _charts(self, text: str) -> list[tuple[str, str]]:
        """The charts of all repositories whose name contains the text: the repository, and the name."""
        if not text:
            return []
        charts = self.charts.repositories
        return await charts.stored(lambda: catalogue.charts_named(text, _MAX_CHARTS))

    async def _search(self, keyword: str) -> tuple[list[HubItem], str]:
        """The matches of the hub, or the reason why they are not known."""
        if not keyword:
            return [], ""
        try:
            return await self.run(
                "helm_search_hub", query={"keyword": keyword, "maxResults": str(_MAX_HUB_RESULTS)}
            ), ""
        except Problem as problem:
            return [], problem.message


class OneRepository(ChartPage):
    back = "/repositories"

    async def get(self, name: str) -> None:
        await self._page(name)

    async def post(self, name: str) -> None:
        verb = self.field("verb")
        tools = {"update": ("helm_repo_update", repository_url(name)), "remove": ("helm_repo_remove", "/repositories")}
        try:
            if verb not in tools:
                raise Invalid("verb must be update or remove")
            tool, redirect = tools[verb]
            await self.run(tool, {"name": name})
        except Problem as problem:
            await self._page(name, failure=self.failed(problem), failed=verb)
            return
        self.redirect_done(redirect, f"index of {name} updated" if verb == "update" else f"repository {name} removed")

    async def _page(self, name: str, failure: str = "", failed: str = "") -> None:
        query, raw = self.query(), await self.run("helm_repo_charts", {"name": name})
        text = query.get("q", "").strip().lower()
        number = whole("page", query.get("page") or "0", 0, 100_000)
        found = await self.in_worker(len(raw) > MAX_INLINE_BYTES, matching, raw, text, number * _PAGE_ROWS, _PAGE_ROWS)
        source = next((repo for repo in self.charts.repositories.all() if repo.name == name), None)
        self.show(
            "charts/repository.html",
            name=name,
            source=source,
            href=repository_url(name),
            charts=[(chart, chart["name"].partition("/")[2]) for chart in found.rows],
            total=found.total,
            number=number,
            pages=-(-found.total // _PAGE_ROWS),
            query=query,
            failure=failure,
            failed=failed,
            url=lambda **changes: f"{self.prefix}{repository_url(name)}?{urlencode({**query, **changes})}",
        )


class OneChart(ChartPage):
    """The versions of a chart, and the README, values, metadata and CRDs of one version."""

    async def get(self, name: str, chart: str) -> None:
        query = self.query()
        tab = query.get("show") or "readme"
        if tab not in _TABS:
            raise Invalid(f"show must be one of {', '.join(_TABS)}")
        raw = await self.run("helm_repo_versions", {"name": name, "chart": chart})
        wanted = query.get("version")
        found = await self.in_worker(len(raw) > MAX_INLINE_BYTES, listed_versions, raw, wanted, _MAX_VERSIONS)
        made = await self.charts.repositories.stored(lambda: catalogue.dates(name, chart, _MAX_VERSIONS))
        whole_text, problem = await self._text(f"{name}/{chart}", found.version, tab)
        text, is_cut = cut(whole_text)
        self.show(
            "charts/chart.html",
            repository=name,
            chart=chart,
            href=f"{repository_url(name)}/{quote(chart, safe='')}",
            repository_href=repository_url(name),
            versions=found.rows,
            more=found.more,
            made=made,
            version=found.version,
            chosen=found.chosen,
            tab=tab,
            tabs=_TABS,
            text=text,
            html=await self._html(text) if tab == "readme" and text.strip() else "",
            is_cut=is_cut,
            problem=problem,
            query=lambda **values: urlencode(values),
        )

    async def _html(self, text: str) -> str:
        """A README as HTML; empty where it takes too long: the page shows the text then."""
        try:
            return await self.in_worker(True, markdown.to_html, text)
        except Problem as problem:
            log.info("a README is shown as text: %s", problem.message)
            return ""

    async def _text(self, ref: str, version: str, tab: str) -> tuple[str, str]:
        tool = {"readme": "readme", "values": "values", "metadata": "chart", "crds": "crds"}[tab]
        try:
            return await self.run(f"helm_show_{tool}", query={"chartRef": ref, "version": version}), ""
        except Problem as problem:
            return "", problem.message


routes: list[Route] = [
    (r"/repositories/?", RepositoriesPage),
    (r"/repositories/([^/]+)", OneRepository),
    (r"/repositories/([^/]+)/([^/]+)", OneChart),
]
