"""The parts of stored listings that pages show. The listings may be large: call these in a worker then."""

from __future__ import annotations

import json
from typing import Any

from attrs import frozen


@frozen
class ListingPage:
    """A page of a list, and how many rows there are in all."""

    rows: list[dict[str, Any]]
    total: int


def matching(listing: bytes, text: str, first: int, most: int) -> ListingPage:
    """At most so many charts that have `text` (in lower case) in their name or description, from the `first`."""
    charts: list[dict[str, Any]] = json.loads(listing)
    if text:
        charts = [chart for chart in charts if text in f"{chart['name']} {chart['description'] or ''}".lower()]
    return ListingPage(charts[first : first + most], len(charts))


@frozen
class VersionsOfChart:
    """The newest versions of a chart, how many more there are, and the one that is shown."""

    rows: list[dict[str, Any]]
    more: int
    version: str
    chosen: dict[str, Any] | None


def versions(listing: bytes, wanted: str | None, most: int) -> VersionsOfChart:
    """At most so many versions; without a wanted version the newest stable one is shown, else the newest."""
    rows: list[dict[str, Any]] = json.loads(listing)
    newest = next((row["chartVersion"] for row in rows if "-" not in row["chartVersion"]), "")
    version = wanted or newest or (rows[0]["chartVersion"] if rows else "")
    chosen = next((row for row in rows if row["chartVersion"] == version), None)
    return VersionsOfChart(rows[:most], max(0, len(rows) - most), version, chosen)
