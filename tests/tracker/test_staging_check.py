"""A staging database comes from a process that reads hostile bytes: only one with the known tables is attached."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from models.storage.staged_file import BadStaging
from models.tracker.reports.staging import StagedRows, check

MAX_BYTES = 1024**2


@pytest.fixture
def rows(tmp_path: Path) -> Path:
    path = tmp_path / "rows"
    with StagedRows(path):
        pass
    return path


def test_a_staging_database_is_accepted_and_leftovers_of_a_journal_are_removed(rows: Path) -> None:
    rows.with_name("rows-journal").write_bytes(b"x" * 1000)
    check(rows, MAX_BYTES)
    assert not rows.with_name("rows-journal").exists()


@pytest.mark.parametrize(
    "statement",
    [
        "CREATE VIEW report AS SELECT 1",
        "CREATE TRIGGER t AFTER INSERT ON cases BEGIN DELETE FROM files; END",
        "CREATE TABLE account (name TEXT)",
        "CREATE INDEX i ON cases (name)",
        "CREATE VIRTUAL TABLE v USING fts5(x)",
        "DROP TABLE cases",
        "ALTER TABLE cases ADD COLUMN more TEXT",
        "DROP TABLE cases; CREATE VIEW cases AS SELECT load_extension('x') AS id",
    ],
)
def test_a_database_with_other_tables_is_refused(rows: Path, statement: str) -> None:
    with closing(sqlite3.connect(rows)) as store:
        store.executescript(statement)
    with pytest.raises(BadStaging, match="other tables"):
        check(rows, MAX_BYTES)


def test_what_is_no_database_or_no_file_or_too_large_is_refused(rows: Path) -> None:
    with pytest.raises(BadStaging, match="too large"):
        check(rows, 1000)
    link = rows.with_name("link")
    link.symlink_to(rows)
    for path in (link, rows.parent, rows.with_name("missing")):
        with pytest.raises(BadStaging):
            check(path, MAX_BYTES)
    rows.write_bytes(b"x" * 5000)
    with pytest.raises(BadStaging, match="not a database"):
        check(rows, MAX_BYTES)
