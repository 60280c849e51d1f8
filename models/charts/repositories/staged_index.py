"""The charts of an index in an SQLite file: a worker process writes it, and the store copies its rows.

They are as they will be queried: the JSON of each listing, and the archive URL of each version.
"""

from __future__ import annotations

import contextlib
import json
import sqlite3
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from models.charts.repositories import index
from models.charts.repositories.index import IndexChart, IndexVersion

TABLES = """
    PRAGMA journal_mode = OFF;
    PRAGMA synchronous = OFF;
    CREATE TABLE listing (charts BLOB);
    CREATE TABLE charts (id INTEGER PRIMARY KEY, name TEXT, listing BLOB);
    CREATE TABLE versions (chart INTEGER, version TEXT, rank INTEGER, url TEXT, digest TEXT, keywords TEXT,
        created INTEGER);
    BEGIN;
"""
MAX_BYTES = 256 * 1024**2


def stage(file: Path, rows: Path, repository: str | None) -> None:
    """Reads the index in `file` into the SQLite file `rows`. Raises `Invalid` for a bad index."""
    write(rows, repository, index.charts(file))


def write(rows: Path, repository: str | None, charts: Iterable[IndexChart]) -> None:
    """Writes the charts of a repository; the file must not exist."""
    with contextlib.closing(sqlite3.connect(rows, isolation_level=None)) as store:
        store.executescript(TABLES)
        newest = list[tuple[str, str, str]]()
        for id, chart in enumerate(charts):
            items = [_item(repository, chart, version) for version in chart.versions]
            if (stable := chart.stable) is not None:
                newest.append((chart.name.lower(), chart.name, _item(repository, chart, stable)))
            store.execute("INSERT INTO charts VALUES (?, ?, ?)", (id, chart.name, f"[{','.join(items)}]".encode()))
            store.executemany("INSERT INTO versions VALUES (?, ?, ?, ?, ?, ?, ?)", _rows(id, chart.versions))
        whole = f"[{','.join(item for _, _, item in sorted(newest))}]".encode()
        store.execute("INSERT INTO listing VALUES (?)", (whole,))
        store.execute("COMMIT")


def _rows(id: int, versions: Sequence[IndexVersion]) -> Iterator[tuple[Any, ...]]:
    return (
        (id, version.version, rank, version.url, version.digest, version.keywords, version.created)
        for rank, version in enumerate(versions)
    )


def _item(repository: str | None, chart: IndexChart, version: IndexVersion) -> str:
    """A chart item as it will be sent."""
    item = {
        "name": f"{repository}/{chart.name}",
        "chartVersion": version.version,
        "appVersion": version.app_version,
        "description": version.description,
    }
    return json.dumps(item, separators=(",", ":"), ensure_ascii=False)
