"""The tables of chart repositories, in a file of their own (`charts.db`): the only place where their logins are kept.

An index is kept as what is asked of it: the JSON of each listing, and of each version where its archive is.
"""

from __future__ import annotations

import peewee

from models.storage.sqlite import SqliteStore

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
    ]
)


class Table(peewee.Model):
    """The base of every table of the repositories."""

    class Meta:
        database = catalogue


class Repository(Table):
    """A repository; one without a name is not configured, but is what some chart's dependency names.

    `etag` and `modified` are what its server said of the index that is kept; `listing` is its charts as JSON, each
    with its newest stable version. `fetched_at` is microseconds since 1970.
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

    class Meta:
        table_name = "repository"


class Chart(Table):
    """A chart of a repository; `listing` is its versions as JSON, newest first."""

    id = peewee.AutoField()
    repository = peewee.ForeignKeyField(Repository, on_delete="CASCADE")
    name = peewee.TextField()
    listing = peewee.BlobField()

    class Meta:
        table_name = "chart"


class ChartVersion(Table):
    """Where a version of a chart is. `rank` 0 is the newest; `digest` (SHA-256, hex) is empty where none is known."""

    chart = peewee.ForeignKeyField(Chart, on_delete="CASCADE")
    version = peewee.TextField()
    rank = peewee.IntegerField()
    url = peewee.TextField()
    digest = peewee.TextField()

    class Meta:
        table_name = "version"
        primary_key = peewee.CompositeKey("chart", "version")
