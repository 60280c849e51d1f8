"""The charts and versions that the form of an upgrade offers."""

from __future__ import annotations

import contextlib
import re

from models.charts.responses import HistoryRow
from models.errors import Problem
from supervisor.charts.repositories import Repositories

_MAX_OFFERS = 20
_CHART_AND_VERSION = re.compile(r"(.+?)-(v?[0-9]+\.[0-9]+\.[0-9]+.*)")
_EXACT = re.compile(r"v?[0-9]+\.[0-9]+\.[0-9]+(?:[-+][0-9A-Za-z.+-]+)?")


async def offers(repositories: Repositories, row: HistoryRow) -> list[tuple[str, str]]:
    """Charts of the same name in the repositories, each with its newest stable version."""
    found = []
    chart = _CHART_AND_VERSION.fullmatch(row.chart)
    for source in repositories.all()[:_MAX_OFFERS]:
        if chart is None:
            break
        with contextlib.suppress(Problem):
            newest = await repositories.find(source, chart[1], "")
            found.append((f"{source.name}/{chart[1]}", newest.version))
    return found


async def target(repositories: Repositories, chart_ref: str, wanted: str) -> str:
    """The version that an upgrade to `wanted` installs; empty where it is not known."""
    if _EXACT.fullmatch(wanted):
        return wanted
    name, _, chart = chart_ref.partition("/")
    source = next((one for one in repositories.all() if one.name == name), None)
    if source is not None:
        with contextlib.suppress(Problem):
            return (await repositories.find(source, chart, wanted)).version
    return ""
