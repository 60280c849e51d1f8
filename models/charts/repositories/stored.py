"""Chart repositories in the database `charts.db`: their settings and logins, and the contents of their indexes.

An index is stored as it is queried: the JSON of each listing, and the archive URL of each version. Writes run in a
worker; the event loop reads single rows.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast

import peewee
from attrs import asdict, evolve, field, frozen

from models.charts.repositories import semver, staged_index
from models.errors import NotFound
from models.storage.sqlite import SqliteStore
from models.storage.staged_file import BadStaging, check_file

catalogue = SqliteStore(
    [
        [
            "CREATE TABLE repository (id INTEGER PRIMARY KEY AUTOINCREMENT, name TEXT UNIQUE, url TEXT NOT NULL,"
            " username TEXT NOT NULL, password TEXT NOT NULL, insecure INTEGER NOT NULL, pass_login INTEGER NOT NULL,"
            " etag TEXT NOT NULL, modified TEXT NOT NULL, fetched_at INTEGER NOT NULL, listing BLOB NOT NULL)",
            "CREATE TABLE chart (id INTEGER PRIMARY KEY,"
            " repository_id INTEGER NOT NULL REFERENCES repository ON DELETE CASCADE,"
            " name TEXT NOT NULL, listing BLOB NOT NULL, UNIQUE (repository_id, name))",
            "CREATE TABLE version (chart_id INTEGER NOT NULL REFERENCES chart ON DELETE CASCADE,"
            " version TEXT NOT NULL, rank INTEGER NOT NULL, url TEXT NOT NULL, digest TEXT NOT NULL,"
            " PRIMARY KEY (chart_id, version)) WITHOUT ROWID",
        ],
        [
            "ALTER TABLE version ADD COLUMN keywords TEXT NOT NULL DEFAULT ''",
            "UPDATE repository SET etag = '', modified = ''",  # the next update reads the keywords
        ],
        [
            "CREATE TABLE release_source (cluster TEXT NOT NULL, namespace TEXT NOT NULL, release TEXT NOT NULL,"
            " chart_ref TEXT NOT NULL, PRIMARY KEY (cluster, namespace, release)) WITHOUT ROWID",
        ],
        [
            "CREATE TABLE registry (host TEXT PRIMARY KEY, username TEXT NOT NULL, password TEXT NOT NULL)"
            " WITHOUT ROWID",
        ],
        [
            f"ALTER TABLE {table} ADD COLUMN {column} TEXT NOT NULL DEFAULT ''"
            for table in ("repository", "registry")
            for column in ("authority", "certificate", "private_key")
        ],
        [
            "ALTER TABLE version ADD COLUMN created INTEGER NOT NULL DEFAULT 0",
            "UPDATE repository SET etag = '', modified = ''",  # the next update reads the dates
        ],
    ]
)


class CatalogueTable(peewee.Model):
    """The base of every table in `charts.db`."""

    class Meta:
        database = catalogue


class RepositoryRow(CatalogueTable):
    """A repository. One without a name is not configured: a chart's dependency named its URL.

    `etag` and `modified` are the validators of the stored index; `listing` is its charts as JSON, each with its newest
    stable version. `fetched_at` is microseconds since 1970. `authority`, `certificate` and `private_key` are PEM.
    """

    id = peewee.AutoField()
    name = peewee.TextField(unique=True, null=True)
    url = peewee.TextField()
    username = peewee.TextField()
    password = peewee.TextField()
    insecure = peewee.BooleanField()
    pass_login = peewee.BooleanField()
    etag = peewee.TextField()
    modified = peewee.TextField()
    fetched_at = peewee.BigIntegerField()
    listing = peewee.BlobField()
    authority = peewee.TextField(default="")
    certificate = peewee.TextField(default="")
    private_key = peewee.TextField(default="")

    class Meta:
        table_name = "repository"


class Chart(CatalogueTable):
    """A chart of a repository; `listing` is its versions as JSON, newest first."""

    id = peewee.AutoField()
    repository = peewee.ForeignKeyField(RepositoryRow, on_delete="CASCADE")
    name = peewee.TextField()
    listing = peewee.BlobField()

    class Meta:
        table_name = "chart"


class ChartVersion(CatalogueTable):
    """The archive of a chart's version. `rank` 0 is the newest; `digest` (SHA-256, hex) may be empty.

    `created` is microseconds since 1970, 0 where the index has none.
    """

    chart = peewee.ForeignKeyField(Chart, on_delete="CASCADE")
    version = peewee.TextField()
    rank = peewee.IntegerField()
    url = peewee.TextField()
    digest = peewee.TextField()
    keywords = peewee.TextField(default="")
    created = peewee.BigIntegerField(default=0)

    class Meta:
        table_name = "version"
        primary_key = peewee.CompositeKey("chart", "version")


_MAX_TIME = 253_402_300_799_999_999
"""The end of the year 9999."""
_MAX_UNNAMED_REPOSITORIES = 32
_DELETE_BATCH = 1000


@frozen
class RepositorySource:
    """A repository's configuration. `name` is None if only a chart's dependency names its URL."""

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
    authority: str = field(default="", repr=False)
    certificate: str = field(default="", repr=False)
    private_key: str = field(default="", repr=False)

    def is_like(self, other: RepositorySource) -> bool:
        """Whether the settings are equal, ignoring the index."""
        return evolve(self, etag="", modified="", fetched_at=0, id=0) == evolve(
            other, etag="", modified="", fetched_at=0, id=0
        )


@frozen
class FoundVersion:
    """The archive of a chart's version: a URL, or a path relative to the repository's URL."""

    version: str
    url: str
    digest: str


def _sources() -> Any:
    """A query for all columns but the listing; its rows are made `RepositorySource`."""
    columns = (column for name, column in RepositoryRow._meta.fields.items() if name != "listing")
    return RepositoryRow.select(*columns).objects(RepositorySource)


def all_named() -> list[RepositorySource]:
    """The configured repositories in the order in which they were added."""
    return list(_sources().where(RepositoryRow.name.is_null(False)).order_by(RepositoryRow.id))


def named(name: str) -> RepositorySource:
    """The configured repository with this name. Raises `NotFound`."""
    source: RepositorySource | None = _sources().where(RepositoryRow.name == name).first()
    if source is None:
        raise NotFound(f"there is no repository {name}")
    return source


def sizes() -> dict[int, tuple[int, int]]:
    """The number of charts and of versions in the index of each repository that has any, by its id."""
    query = Chart.select(
        Chart.repository, peewee.fn.COUNT(Chart.id.distinct()), peewee.fn.COUNT(ChartVersion.version)
    ).join(ChartVersion, peewee.JOIN.LEFT_OUTER)
    rows = cast("list[tuple[int, int, int]]", list(query.group_by(Chart.repository).tuples()))
    return {id: (charts, versions) for id, charts, versions in rows}


def unnamed(url: str) -> RepositorySource | None:
    """The repository of this URL that is not configured, if its index is stored."""
    source: RepositorySource | None = (
        _sources().where(RepositoryRow.name.is_null() & (RepositoryRow.url == url)).first()
    )
    return source


def listing(name: str, max_bytes: int | None = None) -> bytes | None:
    """The charts of a repository as JSON; None if longer than `max_bytes`. Raises `NotFound`."""
    return _bounded(
        RepositoryRow.listing, RepositoryRow.select().where(RepositoryRow.name == name), max_bytes, name, None
    )


def chart_listing(name: str, chart: str, max_bytes: int | None = None) -> bytes | None:
    """The versions of a chart as JSON, newest first; None if longer than `max_bytes`. Raises `NotFound`."""
    of_chart = Chart.select().join(RepositoryRow).where((RepositoryRow.name == name) & (Chart.name == chart))
    return _bounded(Chart.listing, of_chart, max_bytes, name, chart)


def _bounded(column: Any, query: Any, max_bytes: int | None, name: str, chart: str | None) -> bytes | None:
    wanted = column if max_bytes is None else peewee.Case(None, [(peewee.fn.LENGTH(column) <= max_bytes, column)])
    row = query.select(wanted).tuples().first()
    if row is None:
        named(name)
        raise NotFound(f"there is no chart {chart} in the repository {name}")
    return None if row[0] is None else bytes(row[0])


def dates(name: str, chart: str, most: int) -> dict[str, int]:
    """When each of the newest versions of a chart was made, where that is known: microseconds since 1970."""
    query = ChartVersion.select(ChartVersion.version, ChartVersion.created).join(Chart).join(RepositoryRow)
    query = query.where((RepositoryRow.name == name) & (Chart.name == chart)).order_by(ChartVersion.rank).limit(most)
    rows = cast("list[tuple[str, int]]", list(query.tuples()))
    return {version: at for version, at in rows if 0 < at <= _MAX_TIME}


def charts_named(text: str, limit: int) -> list[tuple[str, str]]:
    """The repository and name of charts whose name contains the text, in the order of their names."""
    query = Chart.select(RepositoryRow.name, Chart.name).join(RepositoryRow)
    query = query.where(RepositoryRow.name.is_null(False), Chart.name.contains(text)).order_by(Chart.name)
    return cast("list[tuple[str, str]]", list(query.limit(limit).tuples()))


@frozen
class StoredChart:
    """A chart of a configured repository: its versions as JSON, newest first, and their keywords by version."""

    repository: str
    name: str
    listing: bytes
    keywords: Mapping[str, str]


def charts_matching(keyword: str) -> list[StoredChart]:
    """The charts of all configured repositories that may have a keyword in a name, description or list of keywords.

    The keyword is in lower case; an empty one matches all charts. A superset: SQLite lowers ASCII letters only.
    """
    query = Chart.select(RepositoryRow.name, Chart.name, Chart.listing, Chart.id).join(RepositoryRow)
    query = query.where(RepositoryRow.name.is_null(False)).order_by(RepositoryRow.id, Chart.name)
    if keyword.isascii():
        quoted = json.dumps(keyword)[1:-1]
        lower, instr = peewee.fn.LOWER, peewee.fn.INSTR
        has_keyword = ChartVersion.select().where(
            (ChartVersion.chart == Chart.id) & (instr(lower(ChartVersion.keywords), keyword) > 0)
        )
        query = query.where(
            (instr(lower(RepositoryRow.name.concat("/").concat(Chart.name)), keyword) > 0)
            | (instr(lower(Chart.listing.cast("TEXT")), quoted) > 0)
            | peewee.fn.EXISTS(has_keyword)
        )
    found = []
    for repository, name, listing_, id in cast("list[tuple[str, str, bytes, int]]", list(query.tuples())):
        versions = ChartVersion.select(ChartVersion.version, ChartVersion.keywords)
        versions = versions.where(ChartVersion.chart == id, ChartVersion.keywords != "")
        keywords = dict(cast("list[tuple[str, str]]", list(versions.tuples())))
        found.append(StoredChart(repository, name, bytes(listing_), keywords))
    return found


def find(source: RepositorySource, chart: str, wanted: str) -> FoundVersion:
    """The version that helm would choose for `wanted` (a version, a range, or empty). Raises `NotFound`, `Invalid`."""
    with catalogue.atomic("DEFERRED"):  # a concurrent update may replace the index
        return _found(source, chart, wanted)


def _found(source: RepositorySource, chart: str, wanted: str) -> FoundVersion:
    of_chart = ChartVersion.select().join(Chart).where((Chart.repository == source.id) & (Chart.name == chart))
    row = of_chart.where(ChartVersion.version == wanted).first() if wanted else None
    if row is None:
        versions = [row_.version for row_ in of_chart.select(ChartVersion.version).order_by(ChartVersion.rank)]
        text = semver.chosen(wanted, versions)
        if text is None:
            raise _no_version(source, chart, wanted, bool(versions))
        row = of_chart.where(ChartVersion.version == text).get()
    return FoundVersion(row.version, row.url, row.digest)


def _no_version(source: RepositorySource, chart: str, wanted: str, has_chart: bool) -> NotFound:
    label = source.name or source.url
    if not has_chart:
        return NotFound(f"there is no chart {chart} in the repository {label}")
    return NotFound(f"there is no version {wanted or 'that is stable'} of {chart} in the repository {label}")


def version_to_lock(source: RepositorySource, chart: str, wanted: str) -> str:
    """The version that helm would write to a lock: the newest in range that has a URL. Raises `NotFound`, `Invalid`.

    Unlike `find`, it does not prefer the version whose text is `wanted`: `1.0.0+b` also allows 1.0.0.
    """
    query = ChartVersion.select(ChartVersion.version, ChartVersion.url).join(Chart)
    query = query.where((Chart.repository == source.id) & (Chart.name == chart)).order_by(ChartVersion.rank)
    versions = cast("list[tuple[str, str]]", list(query.tuples()))
    chosen = semver.first_allowed(wanted, (row[0] for row in versions if row[1]))
    if chosen is None:
        raise _no_version(source, chart, wanted, bool(versions))
    return chosen


# Writing


def replace(source: RepositorySource, rows: Path) -> None:
    """Replaces a stored index and its repository's row in one transaction, by a file of `staged_index`.

    Only for a connection of `run_with_timeout`. Raises `NotFound` if the repository (`id` not 0) was removed meanwhile,
    and `BadStaging`.
    """
    check_file(rows, staged_index.MAX_BYTES, staged_index.TABLES)
    catalogue.execute_sql("ATTACH DATABASE ? AS staged", (str(rows),))
    try:
        with catalogue.atomic():
            _copy(source)
    except peewee.IntegrityError as error:
        raise BadStaging(str(error)) from None
    finally:
        catalogue.execute_sql("DETACH DATABASE staged")


def _copy(source: RepositorySource) -> None:
    """Copies the rows of the staged file, each as its column's type; a version belongs to a chart of the same file."""
    listings = catalogue.execute_sql("SELECT CAST(charts AS BLOB) FROM staged.listing WHERE charts IS NOT NULL")
    if (row := listings.fetchone()) is None:
        raise BadStaging("it has no listing")
    ids = catalogue.execute_sql("SELECT 1 FROM staged.charts WHERE id NOT BETWEEN 0 AND ?", (staged_index.MAX_BYTES,))
    if ids.fetchone() is not None:
        raise BadStaging("a chart has a number that none is given")
    id = _put(source, bytes(row[0]))
    Chart.delete().where(Chart.repository == id).execute()
    first = (Chart.select(peewee.fn.MAX(Chart.id)).scalar() or 0) + 1
    catalogue.execute_sql(
        "INSERT INTO chart (id, repository_id, name, listing)"
        " SELECT ? + id, ?, CAST(name AS TEXT), CAST(listing AS BLOB) FROM staged.charts",
        (first, id),
    )
    catalogue.execute_sql(
        "INSERT INTO version (chart_id, version, rank, url, digest, keywords, created)"
        " SELECT ? + c.id, CAST(v.version AS TEXT), CAST(v.rank AS INTEGER), CAST(v.url AS TEXT),"
        " CAST(v.digest AS TEXT), CAST(v.keywords AS TEXT), CAST(v.created AS INTEGER)"
        " FROM staged.versions v JOIN staged.charts c ON c.id = v.chart ORDER BY v.chart, v.version",
        (first,),
    )


def _put(source: RepositorySource, whole: bytes) -> int:
    """Writes the repository's row and returns its id."""
    values = {**asdict(source, filter=lambda field, _: field.name != "id"), "listing": whole}
    if not source.id:
        return int(RepositoryRow.insert(**values).execute())
    if not RepositoryRow.update(**values).where(RepositoryRow.id == source.id).execute():
        raise NotFound(f"the repository {source.name} was removed meanwhile")
    return source.id


def touch(source: RepositorySource) -> None:
    """Records that the stored index is still current."""
    RepositoryRow.update(fetched_at=source.fetched_at).where(RepositoryRow.id == source.id).execute()


def remove(name: str) -> None:
    """Removes a repository. Raises `NotFound`."""
    with catalogue.atomic():
        if not RepositoryRow.delete().where(RepositoryRow.name == name).execute():
            raise NotFound(f"there is no repository {name}")


def forget_unnamed() -> None:
    """Deletes all but the most recent repositories that are not configured."""
    with catalogue.atomic():
        old = RepositoryRow.select(RepositoryRow.id).where(RepositoryRow.name.is_null())
        old = old.order_by(RepositoryRow.fetched_at.desc()).offset(_MAX_UNNAMED_REPOSITORIES).limit(_DELETE_BATCH)
        RepositoryRow.delete().where(RepositoryRow.id.in_(old)).execute()
