"""The pages of chart repositories: all of them with a search of the public hub, one with its charts, one chart."""

from __future__ import annotations

import asyncio
import json
from typing import Any
from urllib.parse import quote, urlencode

from handlers.charts.base_page import ChartPage, cut
from handlers.charts.operations import Warned
from models.charts.responses import HubItem
from models.errors import Invalid, Problem
from models.paging import whole

_ROWS = 100
_VERSIONS = 200
_FOUND = 30
_TABS = {"readme": "README", "values": "Default values", "metadata": "Metadata", "crds": "CRDs"}


def repository_url(name: str) -> str:
    return f"/repositories/{quote(name, safe='')}"


class Repositories(ChartPage):
    """The repositories, one more, and the public hub."""

    back = "/repositories"

    async def get(self) -> None:
        query = self.query()
        given = {name: query[name] for name in ("name", "url") if query.get(name)}
        await self._page(given, keyword=query.get("hub", "").strip())

    async def post(self) -> None:
        verb = self.field("verb")
        try:
            if verb == "update":
                done = await self.ask("helm_repo_update_all")
                if isinstance(done, Warned) and done.warnings:
                    await self._page({}, warnings=done.warnings)
                    return
                to = "/repositories"
            elif verb == "add":
                await self.ask("helm_repo_add", body=self._asked())
                to = repository_url(self.field("name"))
            else:
                raise Invalid("verb must be add or update")
        except Problem as problem:
            await self._page(self.form(), failure=self.failed(problem), failed=verb)
            return
        self.redirect(self.prefix + to, status=303)

    def _asked(self) -> dict[str, Any]:
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
        found, why_not = await self._search(keyword)
        self.show(
            "charts/repositories.html",
            sources=[(one, repository_url(one.name or "")) for one in self.services.charts.repositories.all()],
            form=form,
            failure=failure,
            failed=failed,
            warnings=warnings,
            keyword=keyword,
            found=found,
            why_not=why_not,
            query=lambda **words: urlencode(words),
        )

    async def _search(self, keyword: str) -> tuple[list[HubItem], str]:
        """What the hub has, or why that is not known."""
        if not keyword:
            return [], ""
        try:
            return await self.ask("helm_search_hub", query={"keyword": keyword, "maxResults": str(_FOUND)}), ""
        except Problem as problem:
            return [], problem.message


class OneRepository(ChartPage):
    back = "/repositories"

    async def get(self, name: str) -> None:
        await self._page(name)

    async def post(self, name: str) -> None:
        verb, path = self.field("verb"), {"name": name}
        tools = {"update": ("helm_repo_update", repository_url(name)), "remove": ("helm_repo_remove", "/repositories")}
        try:
            if verb not in tools:
                raise Invalid("verb must be update or remove")
            tool, to = tools[verb]
            await self.ask(tool, path)
        except Problem as problem:
            await self._page(name, failure=self.failed(problem), failed=verb)
            return
        self.redirect(self.prefix + to, status=303)

    async def _page(self, name: str, failure: str = "", failed: str = "") -> None:
        query, raw = self.query(), await self.ask("helm_repo_charts", {"name": name})
        word = query.get("q", "").strip().lower()
        charts = await asyncio.to_thread(_with, raw, word)
        number = whole("page", query.get("page") or "0", 0, 100_000)
        source = next((one for one in self.services.charts.repositories.all() if one.name == name), None)
        self.show(
            "charts/repository.html",
            name=name,
            source=source,
            href=repository_url(name),
            charts=[(one, one["name"].partition("/")[2]) for one in charts[number * _ROWS : (number + 1) * _ROWS]],
            total=len(charts),
            number=number,
            pages=-(-len(charts) // _ROWS),
            query=query,
            failure=failure,
            failed=failed,
            url=lambda **changes: f"{self.prefix}{repository_url(name)}?{urlencode({**query, **changes})}",
        )


def _with(raw: bytes, word: str) -> list[dict[str, Any]]:
    """The charts of a listing that have a word in their name or description."""
    found: list[dict[str, Any]] = json.loads(raw)
    return [one for one in found if word in f"{one['name']} {one['description'] or ''}".lower()] if word else found


class OneChart(ChartPage):
    """The versions of a chart, and what one of them says of itself."""

    async def get(self, name: str, chart: str) -> None:
        query = self.query()
        tab = query.get("show") or "readme"
        if tab not in _TABS:
            raise Invalid(f"show must be one of {', '.join(_TABS)}")
        raw = await self.ask("helm_repo_versions", {"name": name, "chart": chart})
        versions = await asyncio.to_thread(json.loads, raw)
        newest = next((one["chartVersion"] for one in versions if "-" not in one["chartVersion"]), "")
        version = query.get("version") or newest or (versions[0]["chartVersion"] if versions else "")
        told, why_not = await self._text(f"{name}/{chart}", version, tab)
        text, is_cut = cut(told)
        self.show(
            "charts/chart.html",
            repository=name,
            chart=chart,
            href=f"{repository_url(name)}/{quote(chart, safe='')}",
            repository_href=repository_url(name),
            versions=versions[:_VERSIONS],
            more=max(0, len(versions) - _VERSIONS),
            version=version,
            chosen=next((one for one in versions if one["chartVersion"] == version), None),
            tab=tab,
            tabs=_TABS,
            text=text,
            is_cut=is_cut,
            why_not=why_not,
            query=lambda **words: urlencode(words),
        )

    async def _text(self, ref: str, version: str, tab: str) -> tuple[str, str]:
        tool = {"readme": "readme", "values": "values", "metadata": "chart", "crds": "crds"}[tab]
        try:
            return await self.ask(f"helm_show_{tool}", query={"chartRef": ref, "version": version}), ""
        except Problem as problem:
            return "", problem.message
