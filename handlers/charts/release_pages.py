"""The page of one release, by tabs with the forms that change it, and the page that installs a chart."""

from __future__ import annotations

import asyncio
import contextlib
import re
from typing import Any, cast
from urllib.parse import urlencode

from attrs import evolve, frozen

from handlers.base import STATUS
from handlers.charts.base_page import ChartPage, cut, integer
from handlers.charts.release_list import release_url
from handlers.charts.release_objects import Opened, opened
from handlers.charts.release_versions import offers, target
from handlers.http.permissions import READ, READ_CLUSTER, admit
from handlers.routing import Route
from models.charts import release_diff
from models.charts.diff import ManifestDifference, by_object, documents
from models.charts.repositories.listings import versions as listed_versions
from models.charts.repositories.stored import dates
from models.charts.responses import HistoryRow, Release
from models.errors import Denied, Invalid, Problem
from models.json_format import rfc3339
from models.paging import whole
from supervisor.charts.workers import MAX_INLINE_BYTES, MAX_INLINE_YAML_BYTES

_MAX_VERSIONS = 50
_DAY_CHARACTERS = len("2026-01-31")
_MAX_DOCUMENTS = 200
_CUT = "\n# The rest is not shown here.\n"
_PLACE = re.compile(r"\(line (\d+), column \d+\)")
TABS = {
    "overview": "Overview", "history": "History", "values": "Values", "manifest": "Manifest", "hooks": "Hooks",
    "change": "Change",
}  # fmt: skip
CHANGES = {"upgrade": "Upgrade", "rollback": "Roll back", "test": "Test", "uninstall": "Uninstall"}
_STRATEGIES = {
    "DEFAULT": "these values; without any, the values of the release",
    "RESET": "these values over the defaults of the chart",
    "REUSE": "these values over the values of the release",
    "RESET_THEN_REUSE": "these values over the values of the release, over the defaults of the new chart",
}


@frozen
class Preview:
    """The result of a dry run: a difference of manifests, or a text."""

    title: str
    difference: ManifestDifference | None = None
    text: str = ""


def yaml_parts(text: str) -> tuple[list[tuple[str, str]], bool]:
    """The documents of a manifest that a page shows, each with its title, and whether the manifest was cut."""
    shown, is_cut = cut(text)
    parts = documents(shown)
    return parts[:_MAX_DOCUMENTS], is_cut or len(parts) > _MAX_DOCUMENTS


class _ManifestPage(ChartPage):
    async def _shown(self, manifest: str, shows_secrets: bool) -> tuple[str, bool]:
        """A manifest as a page shows it, and whether values of Secrets are hidden."""
        if shows_secrets:
            return manifest, False
        return await self.in_worker(len(manifest) > MAX_INLINE_YAML_BYTES, release_diff.masked, manifest)


class OneRelease(_ManifestPage):
    """A release by tabs, with the forms that change it."""

    back = "/releases"

    async def get(self, namespace: str, name: str) -> None:
        await self._page(namespace, name, self.query().get("show") or "overview")

    async def post(self, namespace: str, name: str) -> None:
        verb, is_preview = self.field("verb"), bool(self.field("preview"))
        actions = {
            "upgrade": self._upgrade,
            "rollback": self._rollback,
            "uninstall": self._uninstall,
            "test": self._test,
        }
        if verb in ("reveal", "open"):
            await self._show_with_key(namespace, name, verb)
            return
        try:
            if verb not in actions:
                raise Invalid("verb must be upgrade, rollback, uninstall, test, reveal or open")
            outcome = await actions[verb](namespace, name, is_preview)
        except Problem as problem:
            await self._page(namespace, name, "change", failure=self.failed(problem), failed=verb, form=self.form())
            return
        if outcome is None:
            is_gone = verb == "uninstall" and not self.field("keepHistory")
            text = await self._done(verb, namespace, name)
            self.redirect_done("/releases" if is_gone else release_url(namespace, name), text)
        else:
            await self._page(namespace, name, "change", failed=verb, **{"form": self.form(), **outcome})

    async def _show_with_key(self, namespace: str, name: str, verb: str) -> None:
        """What the key reveals: the values of Secrets in the manifest, or what an object owns."""
        outcome: dict[str, Any] = {}
        try:
            if verb == "open":
                admit(self.keyed_caller, READ_CLUSTER, self.config)
            else:
                self.check_key()
        except Problem as problem:
            outcome = {"failure": self.failed(problem), "failed": verb}
        await self._page(namespace, name, "overview" if verb == "open" else "manifest", **outcome)

    @property
    def _reveals(self) -> bool:
        return self.request.method == "POST" and bool(self.field("showSecrets")) and self.has_key

    async def _done(self, verb: str, namespace: str, name: str) -> str:
        """What a change has done, for the page after it."""
        if verb == "uninstall":
            return f"{name} uninstalled from {namespace}"
        with contextlib.suppress(Problem):
            newest = (await self.run("helm_history", {"name": name}, {"namespace": namespace}))[0]
            if verb == "rollback":
                target = self.field("revision")
                return f"{name} rolled back to revision {target}: revision {newest.revision}, {newest.status}"
            return f"{name} upgraded to {newest.chart}: revision {newest.revision}, {newest.status}"
        return f"{name} {'rolled back' if verb == 'rollback' else 'upgraded'}"

    # Changes

    async def _upgrade(self, namespace: str, name: str, is_preview: bool) -> dict[str, Any] | None:
        try:
            values = await self.values(self.field("values"))
        except Invalid as problem:
            return {"failure": self.failed(problem), "values_fault": problem.message}
        chart, version = self.field("chartRef"), self.field("version")
        planned = await target(self.charts.repositories, chart, version) if is_preview else ""
        body: dict[str, Any] = {
            "chartRef": chart,
            "version": planned or version,
            "values": values,
            "valueStrategy": self.field("valueStrategy") or None,
            "description": self.field("description"),
            "timeout": integer(self.field("timeout")),
            "dryRun": is_preview,
            **self.flags("wait", "atomic"),
        }
        path, query = {"name": name}, {"namespace": namespace}
        release = await self.run("helm_upgrade", path, query, body)
        if not is_preview:
            return None
        current = await self.run("helm_get_manifest", path, query)
        changed, _ = await self._changed(current, release.manifest)
        return {
            "preview": Preview("Changes of the manifest by the upgrade", changed),
            "planned": planned,
            "form": {**self.form(), "version": planned or version},  # what is shown is what the next step installs
        }

    async def _rollback(self, namespace: str, name: str, is_preview: bool) -> dict[str, Any] | None:
        revision = integer(self.field("revision"))
        body: dict[str, Any] = {
            "revision": revision,
            "timeout": integer(self.field("timeout")),
            "dryRun": is_preview,
            **self.flags("wait", "noHooks", "force", "cleanupOnFail"),
        }
        path, query = {"name": name}, {"namespace": namespace}
        await self.run("helm_rollback", path, query, body)
        if not is_preview or not isinstance(revision, int):
            return None
        current = await self.run("helm_get_manifest", path, query)
        changed, _ = await self._changed(current, await self._manifest(namespace, name, revision))
        return {"preview": Preview(f"Changes of the manifest by the rollback to revision {revision}", changed)}

    async def _uninstall(self, namespace: str, name: str, is_preview: bool) -> dict[str, Any] | None:
        flags = dict.fromkeys(self.flags("keepHistory", "noHooks", "wait"), "true")
        query = {"namespace": namespace, "dryRun": str(is_preview).lower(), "timeout": self.field("timeout"), **flags}
        await self.run("helm_uninstall", {"name": name}, query)
        if not is_preview:
            return None
        resources = await self.run("helm_get_resources", {"name": name}, {"namespace": namespace})
        lines = "\n".join(f"{resource.kind} {resource.name}" for resource in resources)
        return {"preview": Preview("Resources that would be deleted", text=lines or "none: the manifest is empty")}

    async def _test(self, namespace: str, name: str, is_preview: bool) -> dict[str, Any]:
        query = {"namespace": namespace, "timeoutSeconds": self.field("timeoutSeconds")}
        return {"tests": await self.run("helm_test", {"name": name}, query)}

    async def _changed(self, old: str, new: str) -> tuple[ManifestDifference, bool]:
        """The difference, and whether values of Secrets are hidden: unless the request, with the key, reveals them."""
        is_large = len(old) + len(new) > MAX_INLINE_YAML_BYTES
        if self._reveals:
            return await self.in_worker(is_large, by_object, old, new), False
        return await self.in_worker(is_large, release_diff.masked_by_object, old, new)

    async def _manifest(self, namespace: str, name: str, revision: int) -> str:
        work = self.charts.work(self.request)
        return await work.reads.manifest(namespace, name, revision)

    # The page

    async def _page(self, namespace: str, name: str, tab: str, **outcome: Any) -> None:
        path, query = {"name": name}, {"namespace": namespace}
        if tab not in TABS:
            raise Invalid(f"show must be one of {', '.join(TABS)}")
        try:
            release, history, newer = await asyncio.gather(
                self.run("helm_status", path, query), self.run("helm_history", path, query), self._newer(path, query)
            )
        except Problem as problem:
            if "failure" not in outcome:
                raise
            failure = outcome["failure"]
            self.show(
                "charts/release_gone.html", name=name, namespace=namespace, failure=failure, reason=problem.message
            )
            return
        values = {
            "failure": "", "failed": "", "form": {}, "preview": None, "tests": None, "is_side": False, "side_url": "",
            "values_fault": "", "planned": "",
            **await self._tab_values(release, history, tab), **outcome,
        }  # fmt: skip
        self.show(
            "charts/release.html",
            release=release,
            history=history,
            newest=history[0],
            newer=newer,
            tab=tab,
            tabs=TABS,
            href=release_url(namespace, name),
            strategies=_STRATEGIES,
            cut=cut,
            yaml_parts=yaml_parts,
            is_cut=False,
            is_sent=self.request.method == "POST",
            **values,
        )

    async def _tab_values(self, release: Release, history: list[HistoryRow], tab: str) -> dict[str, Any]:
        """The values of one tab, apart from the release and its history."""
        path, query = {"name": release.name}, {"namespace": release.namespace}
        if tab == "overview":
            resources, row = await asyncio.gather(self._resources(path, query), self._opened(release))
            return {**resources, "opened": row, "has_chart_key": bool(self.config.svc.security.api_key)}
        if tab == "hooks":
            return {"hooks": await self.run("helm_get_hooks", path, query)}
        if tab == "values":
            show_all = self.query().get("all") == "true"
            query["all"] = str(show_all).lower()
            return {"show_all": show_all, "values": await self.run("helm_get_values", path, query)}
        if tab == "manifest":
            return await self._manifest_or_difference(release)
        if tab == "change":
            return await self._change_values(path, query, history)
        return {}

    async def _change_values(
        self, path: dict[str, str], query: dict[str, str], history: list[HistoryRow]
    ) -> dict[str, Any]:
        """The values of the form of one change: of the one that was sent, or that `do` names."""
        revision = self.query().get("revision", "")
        do = self.form().get("verb") or self.query().get("do") or ("rollback" if revision else "upgrade")
        if do not in CHANGES:
            raise Invalid(f"do must be one of {', '.join(CHANGES)}")
        found: dict[str, Any] = {"do": do, "changes": CHANGES, "target_revision": revision}
        if do == "upgrade":
            values = await self.run("helm_get_values", path, query)
            offered = await offers(self.charts.repositories, history[0])
            ref = self.form().get("chartRef") or (offered[0][0] if len(offered) == 1 else "")
            found["values"] = "" if values.strip() == "{}" else values
            found |= {"offers": offered, "versions": await self._versions(ref)}
        return found

    async def _versions(self, chart_ref: str) -> list[dict[str, Any]]:
        """The newest versions of `repository/chart`, each with the day it was `made`; none for other references."""
        name, _, chart = chart_ref.partition("/")
        with contextlib.suppress(Problem):
            listing = await self.run("helm_repo_versions", {"name": name, "chart": chart})
            is_large = len(listing) > MAX_INLINE_BYTES
            found = await self.in_worker(is_large, listed_versions, listing, None, _MAX_VERSIONS)
            made = await self.charts.repositories.stored(lambda: dates(name, chart, _MAX_VERSIONS))
            days = {version: rfc3339(at)[:_DAY_CHARACTERS] for version, at in made.items()}
            return [{**row, "made": days.get(row["chartVersion"], "")} for row in found.rows]
        return []

    async def _newer(self, path: dict[str, str], query: dict[str, str]) -> str:
        """The newest version of the release's chart that is later than its own; empty where none is known."""
        with contextlib.suppress(Problem):
            found = await self.run("helm_upgrades", path, query)
            return next((upgrade.version for upgrade in found), "")
        return ""

    async def _resources(self, path: dict[str, str], query: dict[str, str]) -> dict[str, Any]:
        try:
            return {"resources": await self.run("helm_get_resources", path, query), "resources_problem": ""}
        except Problem as problem:
            return {"resources": [], "resources_problem": problem.message}

    async def _opened(self, release: Release) -> Opened | None:
        """What the object of the parameter `open` owns."""
        wanted, reads = self.query().get("open", ""), self.reads()
        if not wanted or reads is None:
            return None
        return await opened(reads, release.namespace, release.name, wanted, self.keyed_caller, self.config)

    async def _manifest_or_difference(self, release: Release) -> dict[str, Any]:
        """The manifest of a revision, or the difference between two."""
        query = self.query()
        shown = {name: query[name] for name in ("to", "of", "layout") if query.get(name)}
        address = {"reveal_query": urlencode({"show": "manifest", **shown})}
        of = whole("of", query.get("of") or str(release.version), 1, 2**31 - 1)
        base = whole("to", query["to"], 1, 2**31 - 1) if query.get("to") else None
        is_newest = of == release.version
        new = release.manifest if is_newest else await self._manifest(release.namespace, release.name, of)
        if base is None:
            new, hides = await self._shown(new, self._reveals)
            return {"of": of, "base_revision": None, "manifest": new, "changed": None, "hides": hides, **address}
        old = await self._manifest(release.namespace, release.name, base)
        changed, hides = await self._changed(old, new)
        is_side = query.get("layout") == "side"
        layout = {} if is_side else {"layout": "side"}
        path = self.prefix + release_url(release.namespace, release.name)
        url = f"{path}?{urlencode({'show': 'manifest', 'to': base, 'of': of, **layout})}"
        return {
            "of": of, "base_revision": base, "manifest": new, "changed": changed, "is_side": is_side, "side_url": url,
            "hides": hides, **address,
        }  # fmt: skip


class NewRelease(_ManifestPage):
    """The form of an installation, and its preview."""

    back = "/releases"

    async def get(self) -> None:
        names = ("chartRef", "version", "releaseName", "namespace", "values")
        query = self.query()
        await self._page({name: query.get(name, "") for name in names})

    async def post(self) -> None:
        is_preview = bool(self.field("preview"))
        try:
            release = await self._install(is_preview)
        except Problem as problem:
            await self._page(self.form(), failure=self.failed(problem))
            return
        if is_preview:
            shown, _ = await self._shown(release.manifest, bool(self.field("showSecrets")))
            await self._page(self.form(), preview=evolve(cast("Any", release), manifest=shown))
            return
        text = f"{release.name} installed in {release.namespace}: revision {release.version}, {release.info.status}"
        self.redirect_done(release_url(release.namespace, release.name), text)

    async def _install(self, is_preview: bool) -> Release:
        if self.closed:
            raise Denied(self.closed)
        body: dict[str, Any] = {
            **{name: self.field(name) for name in ("chartRef", "version", "releaseName", "namespace", "description")},
            "values": await self.values(self.field("values")),
            "timeout": integer(self.field("timeout")),
            "dryRun": is_preview,
            **self.flags("wait", "atomic", "createNamespace"),
        }
        release: Release = await self.run("helm_install", body=body)
        return release

    async def _page(self, form: dict[str, str], failure: str = "", preview: Release | None = None) -> None:
        known = None
        if reads := self.reads():
            known = await self.charts.overview.lately(reads)
        namespaces = {release.namespace for release in known.releases} if known else set()
        self.show(
            "charts/release_new.html",
            has_cluster=reads is not None,
            form=form,
            failure=failure,
            preview=preview,
            namespaces=sorted(namespaces | {"default"}),
            cut=cut,
            yaml_parts=yaml_parts,
        )


class ValuesCheck(ChartPage):
    """For the editor of values: the default values of a chart, and a check while values are typed. Changes nothing."""

    permission_to_change = READ

    def check_xsrf_cookie(self) -> None:
        """It changes nothing, and other sites are refused by their origin."""

    async def get(self) -> None:
        """The default values of a chart as text, or why there are none."""
        try:
            text = await self.run("helm_show_values", query=self._chart())
        except Problem as problem:
            self.set_status(STATUS[type(problem)])
            text = problem.message
        shown, is_cut = cut(text)
        self.send(f"{shown}{_CUT if is_cut else ''}".encode(), "text/plain; charset=utf-8")

    async def post(self) -> None:
        """Parses the values as helm does; then, where a chart is named, lints it with them."""
        text = self.request.body.decode("utf-8", "replace")
        try:
            values = await self.values(text)
        except Invalid as problem:
            place = _PLACE.search(problem.message)
            self.reply({"message": problem.message, "line": int(place[1]) if place else None, "findings": []})
            return
        chart = self._chart()
        findings = await self._findings({**chart, "values": values}) if chart.get("chartRef") else []
        self.reply({"message": None, "line": None, "findings": findings})

    def _chart(self) -> dict[str, str]:
        query = self.query()
        return {name: query[name].strip() for name in ("chartRef", "version") if query.get(name, "").strip()}

    async def _findings(self, request: dict[str, Any]) -> list[dict[str, str]]:
        """What lint finds with these values, or why the chart cannot be checked."""
        try:
            found = await self.run("helm_lint", body=request)
        except Problem as problem:
            return [{"level": "unknown", "text": f"not checked against the chart: {problem.message}"}]
        return [
            {"level": level, "text": text}
            for level, texts in (("error", found.errors), ("warning", found.warnings))
            for text in texts
        ]


routes: list[Route] = [
    (r"/releases/new", NewRelease),
    (r"/releases/check", ValuesCheck),
    (r"/releases/([^/]+)/([^/]+)", OneRelease),
]
