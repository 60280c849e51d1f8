"""The operation on dependencies: which versions those of a chart mean, as a lock document."""

from __future__ import annotations

from attrs import frozen

from handlers import wire
from handlers.charts.operations import LOCK, Operation
from models.charts.fields import body
from models.charts.refs import ChartRef, check_version
from supervisor.charts.service import Work


@frozen(kw_only=True)
class Resolve:
    chart_ref: str = body("repo/chart, repo/chart:version or oci://host/path[:tag]", required=True)
    version: str | None = body("an exact version, or a range of them", check=check_version)


async def resolve(work: Work, ask: Resolve) -> str:
    ref, folder = ChartRef.parse(ask.chart_ref, ask.version), work.subfolder("chart")
    chart = await work.charts.sources.chart(ref, folder)
    return await work.charts.dependencies.lock(chart, wire.instant(work.charts.clock.now()), folder)


operations: list[Operation] = [
    Operation(
        "helm_dependency_resolve", "POST", "/dependencies/resolve", "The versions that a chart's dependencies mean",
        Resolve, resolve, LOCK, group="dependencies", fails=(400, 404, 413, 500, 502, 503, 504),
    ),
]  # fmt: skip
