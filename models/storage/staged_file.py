"""Checks of SQLite files that worker processes have written: nothing in them is trusted, for they read hostile input.

A store attaches such a file and copies its rows.
"""

from __future__ import annotations

import contextlib
import functools
import sqlite3
from pathlib import Path
from urllib.parse import quote


class BadStaging(Exception):
    """A file that is not what the product writes."""


@functools.cache
def _schema(tables: str) -> frozenset[tuple[str, str, str | None]]:
    """The type, name and statement of each part of a file that these statements make."""
    with contextlib.closing(sqlite3.connect(":memory:", isolation_level=None)) as store:
        store.executescript(tables)
        return frozenset(store.execute("SELECT type, name, sql FROM sqlite_master"))


def check_file(path: Path, max_bytes: int, tables: str) -> None:
    """Raises `BadStaging` unless the file at `path` has what these statements make, and nothing else."""
    if path.is_symlink() or not path.is_file() or path.stat().st_size > max_bytes:
        raise BadStaging("it is no file, or too large")
    for suffix in ("-journal", "-wal", "-shm"):  # SQLite would apply them to the file
        path.with_name(path.name + suffix).unlink(missing_ok=True)
    try:
        with contextlib.closing(sqlite3.connect(f"file:{quote(str(path))}?mode=ro", uri=True)) as store:
            store.execute("PRAGMA trusted_schema = OFF")
            store.execute("PRAGMA cell_size_check = ON")
            found = frozenset(store.execute("SELECT type, name, sql FROM sqlite_master"))
    except sqlite3.DatabaseError as error:
        raise BadStaging(str(error)) from None
    if found != _schema(tables):
        raise BadStaging("it has other tables")
