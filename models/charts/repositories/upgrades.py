"""Newer versions of charts in the stored indexes, and the references with which this server installed releases."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import cast

import peewee
from attrs import frozen

from models.charts.repositories import semver
from models.charts.repositories.stored import CatalogueTable, Chart, ChartVersion, RepositoryRow, catalogue
from models.charts.responses import Upgrade

_APP_VERSIONS = """
    SELECT json_extract(value, '$.chartVersion'), json_extract(value, '$.appVersion')
    FROM json_each((SELECT CAST(listing AS TEXT) FROM chart WHERE id = ?))"""
"""SQLite reads the listing, which may be large, without the interpreter's lock."""
_CHART = re.compile(r"v?[0-9]+\.[0-9]+\.[0-9]+\S*")


class ReleaseSource(CatalogueTable):
    """The reference with which this server installed or upgraded a release last, without its version."""

    cluster = peewee.TextField()
    namespace = peewee.TextField()
    release = peewee.TextField()
    chart_ref = peewee.TextField()

    class Meta:
        table_name = "release_source"
        primary_key = peewee.CompositeKey("cluster", "namespace", "release")


def remember_source(cluster: str, namespace: str, release: str, chart_ref: str | None) -> None:
    """Stores the reference of a release; without one forgets it."""
    with catalogue.atomic():
        if chart_ref is None:
            place = (ReleaseSource.cluster == cluster) & (ReleaseSource.namespace == namespace)
            ReleaseSource.delete().where(place & (ReleaseSource.release == release)).execute()
        else:
            values = {"cluster": cluster, "namespace": namespace, "release": release, "chart_ref": chart_ref}
            ReleaseSource.insert(**values).on_conflict_replace().execute()


def sources(cluster: str) -> dict[tuple[str, str], str]:
    """The reference of each release of a cluster, by namespace and name."""
    rows = ReleaseSource.select().where(ReleaseSource.cluster == cluster)
    return {(row.namespace, row.release): row.chart_ref for row in rows}


@frozen
class Wanted:
    """The chart of a release as its list row has it (`name-version`), and the reference it came from, if known."""

    chart: str
    chart_ref: str | None = None


def newer_versions(wanted: Wanted) -> list[Upgrade]:
    """The versions in stored indexes that are newer than a release's, newest first; prereleases only for a prerelease.

    From the repository of its reference, else from every repository that has its chart name and version.
    """
    for name, version in named_versions(wanted.chart):
        found = list(_newer(name, version, wanted.chart_ref))
        if found:
            order = semver.newest_first(dict.fromkeys(upgrade.version for upgrade in found))
            places = {text: place for place, text in enumerate(order)}
            return sorted(found, key=lambda upgrade: (places[upgrade.version], upgrade.chart_ref))
    return []


def named_versions(chart: str) -> Iterator[tuple[str, str]]:
    """The names and versions that `name-version` may stand for, the shortest name first."""
    at = chart.find("-")
    while at > 0:
        if _CHART.fullmatch(chart[at + 1 :]) and semver.version(chart[at + 1 :]):
            yield chart[:at], chart[at + 1 :]
        at = chart.find("-", at + 1)


def _newer(name: str, version: str, chart_ref: str | None) -> Iterator[Upgrade]:
    query = Chart.select(RepositoryRow.name, Chart.id).join(RepositoryRow)
    query = query.where(RepositoryRow.name.is_null(False), Chart.name == name).order_by(RepositoryRow.id)
    for repository, id in cast("list[tuple[str, int]]", list(query.tuples())):
        ref = f"{repository}/{name}"
        if chart_ref is not None and ref != chart_ref:
            continue
        rows = ChartVersion.select(ChartVersion.version).where(ChartVersion.chart == id).order_by(ChartVersion.rank)
        versions = [row.version for row in rows]
        if chart_ref is None and version not in versions:
            continue
        newer = later(version, versions)
        if newer:
            described = dict(catalogue.execute_sql(_APP_VERSIONS, (id,)))
            yield from (Upgrade(ref, text, described.get(text)) for text in newer)


def later(version: str, versions: Sequence[str]) -> list[str]:
    """Those of the versions that are newer, in their order; prereleases only if `version` is one."""
    current = semver.version(version)
    if current is None:
        return []
    parsed = ((text, semver.version(text)) for text in versions)
    return [text for text, each in parsed if each and current < each and (current.pre or not each.pre)]
