"""The operations on a chart as a whole: show an upload, list dependencies."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Literal

from handlers.charts.operations import GZIP, TEXT, ChartOperation
from models.charts.archives import archive, dependency_status
from models.charts.refs import ChartRef, check_version
from models.charts.repositories import semver
from models.charts.responses import DependencyStatus, Download
from models.config.parsers import ValidationError
from models.inputs import body, file, form, query
from models.json_format import http_message
from supervisor.charts import packages
from supervisor.charts.service import Work

_UPLOAD_ERRORS = (400, 413, 415, 422, 500, 503)
_FETCH_ERRORS = (400, 404, 422, 500, 502, 503, 504)


@http_message(kw_only=True)
class ShowUpload:
    chart: Path = file("the chart archive")
    what: Literal["all", "chart", "values", "readme", "crds"] = form("what is shown", "all")


_SHOWN: dict[str, Callable[[Path], str]] = {
    "all": archive.show_all,
    "chart": archive.show_chart,
    "values": archive.show_values,
    "readme": archive.show_readme,
    "crds": archive.show_crds,
}


async def show(work: Work, request: ShowUpload) -> str:
    chart = await work.charts.sources.checked(request.chart)
    return await work.charts.workers.run(_SHOWN[request.what], chart.path)


@http_message(kw_only=True)
class DependencyRequest:
    chart_ref: str = query("repo/chart, repo/chart:version or oci://host/path[:tag]", required=True)
    version: str | None = query("an exact version or a range; the newest stable one by default", check=check_version)


async def dependencies(work: Work, request: DependencyRequest) -> list[DependencyStatus]:
    ref = ChartRef.parse(request.chart_ref, request.version)
    chart = await work.charts.sources.chart(ref, work.subfolder("chart"))
    statuses = await work.charts.workers.run(dependency_status.statuses, chart.path, chart.dependencies)
    return [
        DependencyStatus(one.name, one.version, one.repository, status)
        for one, status in zip(chart.dependencies, statuses, strict=True)
    ]


def _exact_version(text: str) -> None:
    if semver.version(text) is None:
        raise ValidationError("is not a semantic version", text)


@http_message(kw_only=True)
class PackageRequest:
    chart: Path = file("the chart archive")
    version: str | None = body("the version of the package instead of the chart's own", check=_exact_version)
    app_version: str | None = body("the version of the application instead of the chart's own")
    dependency_update: bool = body("resolve and fetch the dependencies first", False)
    sign: bool = body("sign it with the operator's key; needs the key of the charts", False)


async def package(work: Work, request: PackageRequest) -> Download:
    if request.sign:
        work.check_change()
    return await packages.package(
        work, request.chart, request.version, request.app_version, request.dependency_update, request.sign
    )


@http_message(kw_only=True)
class BuildRequest:
    chart: Path = file("the chart archive")
    update: bool = body("resolve the dependencies again instead of using the chart's lock", False)


async def build(work: Work, request: BuildRequest) -> Download:
    return await packages.build(work, request.chart, request.update)


PACKAGING: list[ChartOperation] = [
    ChartOperation(
        None, "POST", "/charts/package", "Package an uploaded chart, optionally signed", PackageRequest, package, GZIP,
        group="charts", needs="helm", error_statuses=(*_UPLOAD_ERRORS, 404, 502, 504), name="helm_package",
        also={packages.TAR: bytes},
    ),
    ChartOperation(
        None, "POST", "/dependencies/build", "Fetch the dependencies of an uploaded chart into its charts/",
        BuildRequest, build, GZIP, group="dependencies", error_statuses=(*_UPLOAD_ERRORS, 404, 502, 504),
        name="helm_dependency_build",
    ),
    ChartOperation(
        None, "POST", "/charts/show/upload", "Show an uploaded chart", ShowUpload, show, TEXT, group="charts",
        error_statuses=_UPLOAD_ERRORS, name="helm_show_upload",
    ),
    ChartOperation(
        "helm_dependency_list", "GET", "/dependencies", "List a chart's dependencies and whether charts/ has them",
        DependencyRequest, dependencies, list[DependencyStatus], group="dependencies", error_statuses=_FETCH_ERRORS,
    ),
]  # fmt: skip
