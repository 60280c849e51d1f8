"""What is known of the chart repositories: their settings, and what their indexes say.

A worker writes; the loop reads what is one row, or asks a worker.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import peewee
from attrs import evolve, field, frozen

from models.charts import semver
from models.charts.repository_index import IndexChart, IndexVersion
from models.charts.tables import Chart, ChartVersion, Repository, catalogue
from models.errors import NotFound

_KEPT_UNNAMED = 32
_MANY = 1000


@frozen
class Source:
    """A repository as it is configured. `name` is None where only a chart's dependency names its URL."""

    name: str | None
    url: str
    username: str = ""
    password: str = field(default="", repr=False)
    insecure: bool = False
    pass_login: bool = False
    etag: str = ""
    modified: str = ""
    fetched_at: int = 0
    id: int = 0

    def is_like(self, other: Source) -> bool:
        """Whether the settings are the same, whatever is known of the index."""
        return evolve(self, etag="", modified="", fetched_at=0, id=0) == evolve(
            other, etag="", modified="", fetched_at=0, id=0
        )


@frozen
class Found:
    """Where a version of a chart is: a URL, or a path relative to that of its repository."""

    version: str
    url: str
    digest: str


def _source(row: Repository) -> Source:
    return Source(
        name=row.name,
        url=row.url,
        username=row.username,
        password=row.password,
        insecure=row.insecure,
        pass_login=row.pass_login,
        etag=row.etag,
        modified=row.modified,
        fetched_at=row.fetched_at,
        id=row.id,
    )


_SETTINGS = [one for name, one in Repository._meta.fields.items() if name != "listing"]


def all_named() -> list[Source]:
    """Those that are configured, in the order in which they were added."""
    query = Repository.select(*_SETTINGS).where(Repository.name.is_null(False)).order_by(Repository.id)
    return [_source(row) for row in query]


def named(name: str) -> Source:
    """Raises `NotFound`."""
    row = Repository.select(*_SETTINGS).where(Repository.name == name).first()
    if row is None:
        raise NotFound(f"there is no repository {name}")
    return _source(row)


def unnamed(url: str) -> Source | None:
    """The one of this URL that is not configured, if its index is kept."""
    row = Repository.select(*_SETTINGS).where(Repository.name.is_null() & (Repository.url == url)).first()
    return _source(row) if row else None


def listing(name: str, most: int | None = None) -> bytes | None:
    """The charts of a repository as JSON; None where they are more than `most` bytes. Raises `NotFound`."""
    return _bounded(Repository.listing, Repository.select().where(Repository.name == name), most, name, None)


def chart_listing(name: str, chart: str, most: int | None = None) -> bytes | None:
    """The versions of a chart as JSON, newest first; None where they are more than `most` bytes. Raises `NotFound`."""
    of_chart = Chart.select().join(Repository).where((Repository.name == name) & (Chart.name == chart))
    return _bounded(Chart.listing, of_chart, most, name, chart)


def _bounded(column: Any, query: Any, most: int | None, name: str, chart: str | None) -> bytes | None:
    wanted = column if most is None else peewee.Case(None, [(peewee.fn.LENGTH(column) <= most, column)])
    row = query.select(wanted).tuples().first()
    if row is None:
        named(name)
        raise NotFound(f"there is no chart {chart} in the repository {name}")
    return None if row[0] is None else bytes(row[0])


def find(source: Source, chart: str, wanted: str) -> Found:
    """The version that helm would take for `wanted` (a version, a range, or empty). Raises `NotFound`, `Invalid`."""
    with catalogue.atomic("DEFERRED"):  # another index may take its place meanwhile
        return _found(source, chart, wanted)


def _found(source: Source, chart: str, wanted: str) -> Found:
    of_chart = ChartVersion.select().join(Chart).where((Chart.repository == source.id) & (Chart.name == chart))
    row = of_chart.where(ChartVersion.version == wanted).first() if wanted else None
    if row is None:
        known = [one.version for one in of_chart.select(ChartVersion.version).order_by(ChartVersion.rank)]
        text = semver.chosen(wanted, known)
        label = source.name or source.url
        if not known:
            raise NotFound(f"there is no chart {chart} in the repository {label}")
        if text is None:
            raise NotFound(f"there is no version {wanted or 'that is stable'} of {chart} in the repository {label}")
        row = of_chart.where(ChartVersion.version == text).get()
    return Found(row.version, row.url, row.digest)


# Writing


def replace(source: Source, charts: Iterable[IndexChart]) -> None:
    """Puts an index in the place of the one that was there, and the repository itself, whole or not at all.

    Until it was read to its end it lies in a table that only this connection sees, and nobody waits for it.
    Raises `Invalid` of the index; `NotFound` where the repository (`id` not 0) was removed meanwhile.
    """
    _stage(source, charts)
    items = catalogue.execute_sql("SELECT item FROM staged_chart WHERE item != '' ORDER BY lower(name), name")
    whole = f"[{','.join(item for (item,) in items)}]".encode()
    with catalogue.atomic():
        id = _put(source, whole)
        Chart.delete().where(Chart.repository == id).execute()
        first = (Chart.select(peewee.fn.MAX(Chart.id)).scalar() or 0) + 1
        catalogue.execute_sql(
            "INSERT INTO chart (id, repository_id, name, listing) SELECT ? + id, ?, name, listing FROM staged_chart",
            (first, id),
        )
        catalogue.execute_sql(
            "INSERT INTO version (chart_id, version, rank, url, digest)"
            " SELECT ? + chart_id, version, rank, url, digest FROM staged_version ORDER BY chart_id, version",
            (first,),
        )


def _stage(source: Source, charts: Iterable[IndexChart]) -> None:
    for statement in (
        "DROP TABLE IF EXISTS temp.staged_chart",
        "DROP TABLE IF EXISTS temp.staged_version",
        "CREATE TEMP TABLE staged_chart (id INTEGER PRIMARY KEY, name TEXT, item TEXT, listing BLOB)",
        "CREATE TEMP TABLE staged_version (chart_id INTEGER, version TEXT, rank INTEGER, url TEXT, digest TEXT)",
    ):
        catalogue.execute_sql(statement)
    with catalogue.atomic("DEFERRED"):  # which takes no lock: nothing but what is ours alone is written
        for id, chart in enumerate(charts):
            items = [_item(source, chart, one) for one in chart.versions]
            stable = chart.stable
            item = _item(source, chart, stable) if stable else ""
            row = (id, chart.name, item, f"[{','.join(items)}]".encode())
            catalogue.write_many("INSERT INTO staged_chart VALUES (?, ?, ?, ?)", [row])
            catalogue.write_many("INSERT INTO staged_version VALUES (?, ?, ?, ?, ?)", _rows(id, chart.versions))


def _rows(id: int, found: Sequence[IndexVersion]) -> Iterator[tuple[Any, ...]]:
    return ((id, one.version, rank, one.url, one.digest) for rank, one in enumerate(found))


def _item(source: Source, chart: IndexChart, one: IndexVersion) -> str:
    """A chart item of the seed, kept as it will be sent."""
    item = {
        "name": f"{source.name}/{chart.name}",
        "chartVersion": one.version,
        "appVersion": one.app_version,
        "description": one.description,
    }
    return json.dumps(item, separators=(",", ":"), ensure_ascii=False)


def _put(source: Source, whole: bytes) -> int:
    """Writes the repository's own row; its id."""
    values = {
        "name": source.name, "url": source.url, "username": source.username, "password": source.password,
        "insecure": source.insecure, "pass_login": source.pass_login, "etag": source.etag, "modified": source.modified,
        "fetched_at": source.fetched_at, "listing": whole,
    }  # fmt: skip
    if not source.id:
        return int(Repository.insert(**values).execute())
    if not Repository.update(**values).where(Repository.id == source.id).execute():
        raise NotFound(f"the repository {source.name} was removed meanwhile")
    return source.id


def touch(source: Source) -> None:
    """Notes that the index that is kept is still the newest."""
    Repository.update(fetched_at=source.fetched_at).where(Repository.id == source.id).execute()


def remove(name: str) -> None:
    """Raises `NotFound`."""
    with catalogue.atomic():
        if not Repository.delete().where(Repository.name == name).execute():
            raise NotFound(f"there is no repository {name}")


def forget_unnamed() -> None:
    """Keeps only the newest of those that no one has configured."""
    with catalogue.atomic():
        old = Repository.select(Repository.id).where(Repository.name.is_null())
        old = old.order_by(Repository.fetched_at.desc()).offset(_KEPT_UNNAMED).limit(_MANY)
        Repository.delete().where(Repository.id.in_(old)).execute()
