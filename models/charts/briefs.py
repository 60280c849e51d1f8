"""What the Secrets of releases are called and labelled, of all namespaces: enough for a list of names and states."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from typing import Any

from attrs import frozen

from models.charts import releases
from models.charts.releases import Revision
from models.charts.shapes import ListRow

SELECTOR = f"{releases.SELECTOR},status!=superseded"
"""The newest revision of a release is never one that was superseded."""


@frozen
class Brief:
    """A release's newest revision. `row` is what else is known of it, where that was read already."""

    namespace: str
    revision: Revision
    updated: str | None
    row: ListRow | None = None

    @property
    def name(self) -> str:
        return self.revision.release

    @property
    def status(self) -> str:
        return self.revision.status


def briefs(items: Iterable[Mapping[str, Any]]) -> list[Brief]:
    """The newest revision of each release that a list of Secrets' metadata tells of, by namespace and name."""
    newest: dict[tuple[str, str], Brief] = {}
    for item in items:
        about = item.get("metadata") or {}
        namespace = str(about.get("namespace") or "")
        for one in releases.revisions([item]):
            place = (namespace, one.release)
            if place not in newest or newest[place].revision.number < one.number:
                newest[place] = Brief(namespace, one, _updated(about))
    return [newest[place] for place in sorted(newest)]


def of_row(row: ListRow) -> Brief:
    """A release of which all is known."""
    revision = Revision(row.name, row.revision, releases.key(row.name, row.revision), "", row.status)
    return Brief(row.namespace, revision, row.updated, row)


def plain_row(one: Brief) -> ListRow:
    """The row of a release, with what is known of it."""
    return one.row or ListRow(one.name, one.namespace, one.revision.number, one.updated, one.status, "", "")


def _updated(about: Mapping[str, Any]) -> str | None:
    """When helm last wrote it; helm notes that in a label, as seconds since 1970."""
    seconds = str((about.get("labels") or {}).get("modifiedAt") or "")
    if not seconds.isdecimal() or len(seconds) > 11:
        return releases.instant(about.get("creationTimestamp"))
    return datetime.fromtimestamp(int(seconds), UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
