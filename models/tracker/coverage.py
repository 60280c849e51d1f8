"""The coverage of a run, file by file, those with most missed lines first."""

from __future__ import annotations

from collections.abc import Sequence

from attrs import frozen

from models.tracker import runs
from models.tracker.tables import Run, reports

MOST = 500
"""So many files are told; their number is told whole."""

_FILES = """
    SELECT c.path, r.module, count(*), max(c.line_covered), max(c.line_missed), max(c.branch_covered),
    max(c.branch_missed) FROM coverage c JOIN report r ON r.id = c.report_id WHERE c.run_id = ?
    GROUP BY c.path, r.module ORDER BY 5 DESC, c.path, r.module LIMIT ?"""
_COUNT = """
    SELECT count(*) FROM (SELECT DISTINCT c.path, r.module FROM coverage c JOIN report r ON r.id = c.report_id
    WHERE c.run_id = ?) AS files"""
_TOLD = """
    SELECT c.path, r.module, c.line_covered, c.line_missed, c.branch_covered, c.branch_missed, c.covered, c.missed
    FROM coverage c JOIN report r ON r.id = c.report_id WHERE c.run_id = ? AND c.path = ? AND r.module IS ?"""


@frozen
class FileRow:
    """A source file, by its path and the module whose upload told of it."""

    path: str
    module: str | None
    line_covered: int
    line_missed: int
    branch_covered: int
    branch_missed: int


@frozen
class Files:
    """The first `MOST` by lines missed, and how many there are."""

    rows: Sequence[FileRow]
    count: int


def files(run: Run) -> Files | None:
    """None where the run has no coverage."""
    if run.line_covered is None and run.branch_covered is None:
        return None
    rows = [_file(run, *row) for row in reports.execute_sql(_FILES, (run.id, MOST)).fetchall()]
    rows.sort(key=lambda row: (-row.line_missed, row.path, row.module or ""))
    count = reports.execute_sql(_COUNT, (run.id,)).fetchone()[0] if len(rows) == MOST else len(rows)
    return Files(rows, count)


def _file(run: Run, path: str, module: str | None, told_by: int, *counts: int) -> FileRow:
    if told_by > 1:
        told = reports.execute_sql(_TOLD, (run.id, path, module)).fetchall()
        ((_, united),) = runs.united(told)
        return FileRow(path, module, *united)
    return FileRow(path, module, *counts)
