"""The order in which `helm search repo` reports charts."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from operator import itemgetter
from typing import Any

from models.charts.repositories import semver
from models.charts.repositories.semver import Range
from models.charts.repositories.stored import StoredChart

_SEPARATOR = "\v"
STABLE, WITH_PRERELEASES = ">0.0.0", ">0.0.0-0"

Item = Mapping[str, Any]


def best(
    charts: Iterable[StoredChart], keyword: str, wanted: str, all_versions: bool, most: int
) -> tuple[list[dict[str, Any]], int]:
    """At most so many items as `ranked` has them, and how many it has. Raises as `ranked`."""
    found = ranked(charts, keyword, wanted, all_versions)
    return list(map(dict, found[:most])), len(found)


def ranked(charts: Iterable[StoredChart], keyword: str, wanted: str, all_versions: bool) -> list[Item]:
    """The chart items with a keyword, best first: in the name, the reference, the description, the keywords.

    `keyword` is in lower case; `wanted` is a range of versions. Without `all_versions` each chart has one item.
    CPU-bound: call it in a worker. Raises `Invalid` for a bad range.
    """
    allowed = semver.range_of(wanted)
    found = list[tuple[int, str, int, Item]]()
    for chart in charts:
        found += _of_chart(chart, keyword, allowed, all_versions)
    return [item for _, _, _, item in sorted(found, key=itemgetter(0, 1, 2))]


def _of_chart(chart: StoredChart, keyword: str, allowed: Range, all_versions: bool) -> list[tuple[int, str, int, Item]]:
    """The items of one chart with their scores and ranks; of a chart's items the best score counts first."""
    scored = sorted(_scored(chart, keyword), key=itemgetter(0, 1))
    found = list[tuple[int, str, int, Item]]()
    for score, rank, item in scored:
        version = semver.version(item["chartVersion"])
        if version is not None and allowed.allows(version):
            found.append((score, item["name"], rank, item))
            if not all_versions:
                break
    return found


def _scored(chart: StoredChart, keyword: str) -> Iterator[tuple[int, int, Item]]:
    """The score, rank and item of each version that has the keyword; the score is the number of parts before it."""
    head = f"{chart.name}{_SEPARATOR}{chart.repository}/{chart.name}{_SEPARATOR}"
    for rank, item in enumerate(json.loads(chart.listing)):
        line = f"{head}{item['description'] or ''}{_SEPARATOR}{chart.keywords.get(item['chartVersion'], '')}".lower()
        at = line.find(keyword)
        if at >= 0:
            yield line.count(_SEPARATOR, 0, at), rank, item
