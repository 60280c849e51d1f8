"""The page of one release: what there is to know of it by tabs, and the forms that change it."""

from __future__ import annotations

import asyncio
import contextlib
import re
from typing import Any

from attrs import frozen

from handlers.charts.base_page import ChartPage, cut, integer
from handlers.charts.release_list import url_of
from models.charts import typed_values
from models.charts.diff import Difference, difference
from models.charts.responses import HistoryRow, Release
from models.errors import Invalid, Problem
from models.paging import whole

_REPOSITORIES = 20
_CHART = re.compile(r"(.+?)-(v?[0-9]+\.[0-9]+\.[0-9]+.*)")
TABS = {
    "overview": "Overview", "history": "History", "values": "Values", "manifest": "Manifest", "hooks": "Hooks",
    "change": "Change",
}  # fmt: skip
_STRATEGIES = {
    "DEFAULT": "these values; where there are none, those that it has",
    "RESET": "these values over the chart's own",
    "REUSE": "these values over those that it has",
    "RESET_THEN_REUSE": "these over those that it has, over the new chart's own",
}


@frozen
class Preview:
    """What a change would do, told before it is done."""

    title: str
    what: Difference | None = None
    text: str = ""


class OneRelease(ChartPage):
    """A release by tabs, and the forms that change it."""

    back = "/releases"

    async def get(self, namespace: str, name: str) -> None:
        await self._page(namespace, name, self.query().get("show") or "overview")

    async def post(self, namespace: str, name: str) -> None:
        verb, is_preview = self.field("verb"), bool(self.field("preview"))
        deeds = {"upgrade": self._upgrade, "rollback": self._rollback, "uninstall": self._uninstall, "test": self._test}
        try:
            if verb not in deeds:
                raise Invalid("verb must be upgrade, rollback, uninstall or test")
            told = await deeds[verb](namespace, name, is_preview)
        except Problem as problem:
            await self._page(namespace, name, "change", failure=self.failed(problem), failed=verb, form=self.form())
            return
        if told is None:
            to = "/releases" if verb == "uninstall" and not self.field("keepHistory") else url_of(namespace, name)
            self.redirect(self.prefix + to, status=303)
        else:
            await self._page(namespace, name, "change", form=self.form(), failed=verb, **told)

    # Changes

    async def _upgrade(self, namespace: str, name: str, is_preview: bool) -> dict[str, Any] | None:
        body: dict[str, Any] = {
            "chartRef": self.field("chartRef"),
            "version": self.field("version"),
            "values": typed_values.parse(self.field("values")),
            "valueStrategy": self.field("valueStrategy") or None,
            "description": self.field("description"),
            "timeout": integer(self.field("timeout")),
            "dryRun": is_preview,
            **self.flags("wait", "atomic"),
        }
        path, query = {"name": name}, {"namespace": namespace}
        release = await self.ask("helm_upgrade", path, query, body)
        if not is_preview:
            return None
        now = await self.ask("helm_get_manifest", path, query)
        found = await asyncio.to_thread(difference, now, release.manifest)
        return {"preview": Preview("What the upgrade would change in the manifest", found)}

    async def _rollback(self, namespace: str, name: str, is_preview: bool) -> dict[str, Any] | None:
        revision = integer(self.field("revision"))
        body: dict[str, Any] = {
            "revision": revision,
            "timeout": integer(self.field("timeout")),
            "dryRun": is_preview,
            **self.flags("wait", "noHooks", "force", "cleanupOnFail"),
        }
        path, query = {"name": name}, {"namespace": namespace}
        await self.ask("helm_rollback", path, query, body)
        if not is_preview or not isinstance(revision, int):
            return None
        now = await self.ask("helm_get_manifest", path, query)
        found = await asyncio.to_thread(difference, now, await self._manifest(namespace, name, revision))
        return {"preview": Preview(f"What going back to revision {revision} would change in the manifest", found)}

    async def _uninstall(self, namespace: str, name: str, is_preview: bool) -> dict[str, Any] | None:
        ticked = dict.fromkeys(self.flags("keepHistory", "noHooks", "wait"), "true")
        query = {"namespace": namespace, "dryRun": str(is_preview).lower(), "timeout": self.field("timeout"), **ticked}
        await self.ask("helm_uninstall", {"name": name}, query)
        if not is_preview:
            return None
        things = await self.ask("helm_get_resources", {"name": name}, {"namespace": namespace})
        lines = "\n".join(f"{one.kind} {one.name}" for one in things) or "nothing: its manifest is empty"
        return {"preview": Preview("What would be deleted", text=lines)}

    async def _test(self, namespace: str, name: str, is_preview: bool) -> dict[str, Any]:
        query = {"namespace": namespace, "timeoutSeconds": self.field("timeoutSeconds")}
        return {"tests": await self.ask("helm_test", {"name": name}, query)}

    async def _manifest(self, namespace: str, name: str, revision: int) -> str:
        work = self.services.charts.work(self.request)
        return await work.reads.manifest_of(namespace, name, revision)

    # The page

    async def _page(self, namespace: str, name: str, tab: str, **told: Any) -> None:
        path, query = {"name": name}, {"namespace": namespace}
        if tab not in TABS:
            raise Invalid(f"show must be one of {', '.join(TABS)}")
        try:
            release, history = await asyncio.gather(
                self.ask("helm_status", path, query), self.ask("helm_history", path, query)
            )
        except Problem as problem:
            if "failure" not in told:
                raise
            self.show(
                "charts/release_gone.html", name=name, namespace=namespace, failure=told["failure"], why=problem.message
            )
            return
        facts = {
            "failure": "", "failed": "", "form": {}, "preview": None, "tests": None,
            **await self._facts(release, history, tab), **told,
        }  # fmt: skip
        self.show(
            "charts/release.html",
            release=release,
            history=history,
            newest=history[0],
            tab=tab,
            tabs=TABS,
            href=url_of(namespace, name),
            strategies=_STRATEGIES,
            cut=cut,
            **facts,
        )

    async def _facts(self, release: Release, history: list[HistoryRow], tab: str) -> dict[str, Any]:
        """What one tab shows beside the release and its history."""
        path, query = {"name": release.name}, {"namespace": release.namespace}
        if tab == "overview":
            return await self._resources(path, query)
        if tab == "hooks":
            return {"hooks": await self.ask("helm_get_hooks", path, query)}
        if tab == "values":
            every = self.query().get("all") == "true"
            query["all"] = str(every).lower()
            return {"every": every, "values": await self.ask("helm_get_values", path, query)}
        if tab == "manifest":
            return await self._compared(release)
        if tab == "change":
            values = await self.ask("helm_get_values", path, query)
            return {
                "values": "" if values.strip() == "{}" else values,
                "offers": await self._offers(history[0]),
                "wanted": self.query().get("revision", ""),
            }
        return {}

    async def _resources(self, path: dict[str, str], query: dict[str, str]) -> dict[str, Any]:
        try:
            return {"resources": await self.ask("helm_get_resources", path, query), "why_none": ""}
        except Problem as problem:
            return {"resources": [], "why_none": problem.message}

    async def _compared(self, release: Release) -> dict[str, Any]:
        """The manifest of a revision, or what is different between two."""
        query = self.query()
        of = whole("of", query.get("of") or str(release.version), 1, 2**31 - 1)
        base = whole("to", query["to"], 1, 2**31 - 1) if query.get("to") else None
        is_newest = of == release.version
        new = release.manifest if is_newest else await self._manifest(release.namespace, release.name, of)
        if base is None:
            return {"of": of, "base_revision": None, "manifest": new, "found": None}
        old = await self._manifest(release.namespace, release.name, base)
        found = await asyncio.to_thread(difference, old, new)
        return {"of": of, "base_revision": base, "manifest": new, "found": found}

    async def _offers(self, row: HistoryRow) -> list[tuple[str, str]]:
        """Charts of our repositories that are called as this one, each with its newest stable version."""
        repositories, offers = self.services.charts.repositories, []
        called = _CHART.fullmatch(row.chart)
        for source in repositories.all()[:_REPOSITORIES]:
            if called is None:
                break
            with contextlib.suppress(Problem):
                found = await repositories.find(source, called[1], "")
                offers.append((f"{source.name}/{called[1]}", found.version))
        return offers
