"""The operations on packaged charts: what they say of themselves, pulled, pushed."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

from attrs import frozen

from handlers.charts.operations import GZIP, LOCK, TEXT, Operation
from models.charts import archive, refs, requests
from models.charts.parameters import body, file, form, query
from models.charts.refs import ChartRef, check_version
from models.charts.responses import Download, HubItem, Lint
from models.json_format import rfc3339
from supervisor.charts import provenance
from supervisor.charts.helm import rendering
from supervisor.charts.service import Work

_REF = "repo/chart, repo/chart:version or oci://host/path[:tag]"
_VERSION = "an exact version, or a range of them; the newest stable one where there is none"
_FETCH_FAILS = (400, 404, 500, 502, 503, 504)


@frozen(kw_only=True)
class Show:
    chart_ref: str = query(_REF, required=True)
    version: str | None = query(_VERSION, check=check_version)


@frozen(kw_only=True)
class Pull:
    chart: str = body(_REF, required=True)
    version: str | None = body(_VERSION, check=check_version)
    verify: bool = body("only if it is signed by somebody in the operator's keyring", False)


@frozen(kw_only=True)
class Push:
    chart: Path = file("the archive of the chart")
    remote: str = form("oci://host/path, to which the chart's name and version are added", required=True)


def _shower(read: Callable[[Path], str]) -> Callable[[Work, Show], Coroutine[Any, Any, str]]:
    async def show(work: Work, ask: Show) -> str:
        chart = await work.charts.sources.chart(ChartRef.parse(ask.chart_ref, ask.version), work.subfolder("chart"))
        return await asyncio.to_thread(read, chart.path)

    return show


async def pull(work: Work, ask: Pull) -> Download:
    ref = ChartRef.parse(ask.chart, ask.version, "chart")
    keyring = provenance.check_keyring(work.charts.svc.fetch.keyring) if ask.verify else None
    chart = await work.charts.sources.chart(ref, work.subfolder("chart"), proven=ask.verify)
    if keyring is not None:
        await provenance.prove(work.charts.helm, chart, keyring, work.subfolder("helm"))
    return Download(chart.path, f"{chart.name}-{chart.version}.tgz")


async def push(work: Work, ask: Push) -> None:
    refs.remote(ask.remote, "chart", "0.0.0")  # what is wrong with it is said before the archive is read
    chart = await work.charts.sources.checked(ask.chart)
    work.begin()
    await work.charts.registries.push(refs.remote(ask.remote, chart.name, chart.version), chart)


_SHOWN: tuple[tuple[str, str, str, Callable[[Path], str]], ...] = (
    ("helm_show_all", "", "All that a chart says of itself", archive.show_all),
    ("helm_show_values", "/values", "A chart's default values", archive.show_values),
    ("helm_show_readme", "/readme", "A chart's README", archive.show_readme),
    ("helm_show_chart", "/chart", "A chart's metadata", archive.show_chart),
    ("helm_show_crds", "/crds", "A chart's custom resource definitions", archive.show_crds),
)

PACKAGES: list[Operation] = [
    *(
        Operation(tool, "GET", f"/charts/show{path}", summary, Show, _shower(read), TEXT, group="charts",
                  fails=_FETCH_FAILS)
        for tool, path, summary, read in _SHOWN
    ),
    Operation(
        "helm_pull", "POST", "/repos/pull", "Fetch a chart's archive", Pull, pull, GZIP, group="repositories",
        fails=(*_FETCH_FAILS, 413),
    ),
    Operation(
        "helm_push", "POST", "/repos/push", "Send a chart's archive to a registry", Push, push, None, mutating=True,
        group="repositories", fails=(400, 401, 403, 404, 413, 415, 500, 502, 503, 504),
    ),
]  # fmt: skip


_FAILS = (400, 404, 413, 422, 500, 502, 503, 504)

RENDERING: list[Operation] = [
    Operation(
        "helm_template", "POST", "/charts/template", "Render the templates of a chart", requests.Template,
        rendering.template, TEXT, group="charts", needs="helm", fails=_FAILS,
    ),
    Operation(
        None, "POST", "/charts/template/upload", "Render the templates of an uploaded chart", requests.TemplateUpload,
        rendering.template, TEXT, group="charts", needs="helm", fails=(*_FAILS, 415),
        name="helm_template_upload",
    ),
    Operation(
        "helm_lint", "POST", "/charts/lint", "Look a chart over for what is wrong", requests.Lint, rendering.lint, Lint,
        group="charts", needs="helm", fails=_FAILS,
    ),
    Operation(
        "helm_create", "POST", "/charts/create", "Make a new chart", requests.Create, rendering.create, GZIP,
        group="charts", needs="helm", fails=(400, 413, 422, 500, 503),
    ),
]  # fmt: skip


@frozen(kw_only=True)
class Search:
    keyword: str = query("what to look for", required=True)
    max_results: int = query("how many at most", 20, low=1, high=60)


async def search(work: Work, ask: Search) -> list[HubItem]:
    return await work.charts.hub.search(ask.keyword, ask.max_results)


HUB: list[Operation] = [
    Operation(
        "helm_search_hub", "GET", "/hub/search", "Search the public chart hub", Search, search, list[HubItem],
        group="hub", fails=(400, 500, 502, 504),
    ),
]  # fmt: skip


@frozen(kw_only=True)
class Resolve:
    chart_ref: str = body("repo/chart, repo/chart:version or oci://host/path[:tag]", required=True)
    version: str | None = body("an exact version, or a range of them", check=check_version)


async def resolve(work: Work, ask: Resolve) -> str:
    ref, folder = ChartRef.parse(ask.chart_ref, ask.version), work.subfolder("chart")
    chart = await work.charts.sources.chart(ref, folder)
    return await work.charts.dependencies.lock(chart, rfc3339(work.charts.clock.now()), folder)


DEPENDENCIES: list[Operation] = [
    Operation(
        "helm_dependency_resolve", "POST", "/dependencies/resolve", "The versions that a chart's dependencies mean",
        Resolve, resolve, LOCK, group="dependencies", fails=(400, 404, 413, 500, 502, 503, 504),
    ),
]  # fmt: skip
