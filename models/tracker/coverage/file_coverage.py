"""Coverage: exact percentages, source files that several reports cover, and the files of a run.

What is compared with a threshold must not depend on the last bit of a float, so percentages are fractions.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Iterator, Sequence
from fractions import Fraction
from functools import lru_cache
from itertools import groupby
from typing import Any

from attrs import frozen

from models.tracker.coverage.line_sets import count_union
from models.tracker.tables import Run, reports

MAX_FILES = 500
"""Files listed; their count is not bounded."""

_FILES = """
    SELECT c.path, r.module, count(*), max(c.line_covered), max(c.line_missed), max(c.branch_covered),
    max(c.branch_missed) FROM coverage c JOIN report r ON r.id = c.report_id WHERE c.run_id = ?
    GROUP BY c.path, r.module ORDER BY 5 DESC, c.path, r.module LIMIT ?"""
_COUNT = """
    SELECT count(*) FROM (SELECT DISTINCT c.path, r.module FROM coverage c JOIN report r ON r.id = c.report_id
    WHERE c.run_id = ?) AS files"""
_OF_FILE = """
    SELECT c.path, r.module, c.line_covered, c.line_missed, c.branch_covered, c.branch_missed, c.covered, c.missed
    FROM coverage c JOIN report r ON r.id = c.report_id WHERE c.run_id = ? AND c.path = ? AND r.module IS ?"""

COUNTS = ("line_covered", "line_missed", "branch_covered", "branch_missed")
_SHARED = f"""
    SELECT c.path, r.module, {", ".join(f"c.{name}" for name in COUNTS)}, c.covered, c.missed
    FROM (SELECT c.path, r.module FROM coverage c JOIN report r ON r.id = c.report_id
          WHERE c.run_id IN (SELECT value FROM json_each(:runs))
          GROUP BY c.path, r.module HAVING min(c.report_id) < max(c.report_id)) AS shared
    CROSS JOIN coverage c ON c.run_id IN (SELECT value FROM json_each(:runs)) AND c.path = shared.path
    CROSS JOIN report r ON r.id = c.report_id AND r.module IS shared.module
    ORDER BY c.path, r.module"""  # noqa: S608 (constants)
_REPORTED = """
    SELECT sum(line_covered), sum(line_missed) FROM report
    WHERE run_id IN (SELECT value FROM json_each(?)) AND line_covered IS NOT NULL"""


@lru_cache(4096)
def share(part: int | None, rest: int | None) -> Fraction | None:
    """`part` x 100 / (`part` + `rest`); None where both are zero or None."""
    whole = (part or 0) + (rest or 0)
    return Fraction(100 * (part or 0), whole) if whole else None


def percent(part: int | None, rest: int | None) -> float | None:
    """As `share`, rounded to the nearest float."""
    exact = share(part, rest)
    return None if exact is None else float(exact)


@lru_cache(256)
def decimal(setting: float) -> Fraction:
    """A setting as it is written: 0.3 is three tenths, not the nearest float."""
    return Fraction(repr(float(setting)))


def line_coverage(run: Run) -> float | None:
    return percent(run.line_covered, run.line_missed)


def branch_coverage(run: Run) -> float | None:
    return percent(run.branch_covered, run.branch_missed)


def pass_rate(run: Run) -> float:
    """passed x 100 / (tests - skipped); 0 without such tests."""
    return 100 * run.passed / (run.tests - run.skipped) if run.tests > run.skipped else 0.0


@frozen
class FileInfo:
    path: str
    module: str | None
    """That of its upload."""
    line_pct: float | None
    line_covered: int
    line_missed: int
    branch_covered: int
    branch_missed: int


@frozen
class Files:
    """The first `MAX_FILES` files by missed lines, and the count of all."""

    rows: Sequence[FileInfo]
    count: int


def files(run: Run) -> Files | None:
    """None where the run has no coverage."""
    if run.line_covered is None and run.branch_covered is None:
        return None
    rows = [_file(run, *row) for row in reports.execute_sql(_FILES, (run.id, MAX_FILES)).fetchall()]
    rows.sort(key=lambda row: (-row.line_missed, row.path, row.module or ""))
    count = reports.execute_sql(_COUNT, (run.id,)).fetchone()[0] if len(rows) == MAX_FILES else len(rows)
    return Files(rows, count)


def neighbours(run: Run, path: str) -> tuple[str | None, str | None]:
    """The files before and after one by missed lines, of the first `MAX_FILES`; None at an end."""
    found = files(run)
    paths = list(dict.fromkeys(row.path for row in found.rows)) if found else []
    if path not in paths:
        return None, None
    place = paths.index(path)
    return paths[place - 1] if place else None, paths[place + 1] if place + 1 < len(paths) else None


def _file(run: Run, path: str, module: str | None, occurrences: int, *reported: int) -> FileInfo:
    counts: Sequence[int] = reported
    if occurrences > 1:
        ((_, counts),) = unite(reports.execute_sql(_OF_FILE, (run.id, path, module)).fetchall())
    return FileInfo(path, module, percent(counts[0], counts[1]), *counts)


def unite(rows: Iterable[Sequence[Any]]) -> Iterator[tuple[Sequence[int], Sequence[int]]]:
    """For each source file, in rows of several reports: the sums of its counts, and the counts of their union."""
    for _, group in groupby(rows, key=lambda row: row[:2]):
        reported = [row[2:] for row in group]
        sums = [sum(counts) for counts in zip(*(row[:4] for row in reported), strict=True)]
        yield sums, (*_lines(reported), *_branches(reported))


def _lines(reported: Sequence[Sequence[Any]]) -> tuple[int, int]:
    """Covered and missed: the union of the lines, or the largest covered count of reports without lines."""
    counts = [(row[0], row[1]) for row in reported if row[4] is None]
    if len(counts) < len(reported):
        counts.append(count_union(row[4:6] for row in reported if row[4] is not None))
    return max(counts, key=lambda pair: (pair[0], sum(pair)))


def _branches(reported: Sequence[Sequence[Any]]) -> tuple[int, int]:
    """Reports do not identify branches: the largest covered count, of the largest total."""
    covered = max(row[2] for row in reported)
    return covered, max(row[2] + row[3] for row in reported) - covered


def counted_twice(run_ids: Collection[int]) -> Sequence[int]:
    """By how much the sums of the reports of runs overstate `COUNTS`: several of them cover the same source files."""
    excess = [0, 0, 0, 0]
    for sums, once in unite(reports.execute_sql(_SHARED, {"runs": json.dumps(list(run_ids))})):
        for place in range(len(COUNTS)):
            excess[place] += sums[place] - once[place]
    return excess


def united(runs: Iterable[Run]) -> tuple[int, int] | None:
    """Lines covered and missed by the union of the coverage of runs; None where none of them has any."""
    measured = {run.id: run for run in runs if (run.line_covered or 0) + (run.line_missed or 0)}
    if len(measured) < 2:
        return next(((run.line_covered, run.line_missed or 0) for run in measured.values()), None)
    ids = json.dumps(list(measured))
    covered, missed = reports.execute_sql(_REPORTED, (ids,)).fetchone()
    excess = counted_twice(list(measured))
    return max(0, int(covered) - excess[0]), max(0, int(missed) - excess[1])
