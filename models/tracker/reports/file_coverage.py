"""The source files of a coverage report, each once, although many formats report a file in pieces (classes, tests).

Their lines are kept packed until the end: eight bytes for each instead of a dictionary's hundred.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterable, Mapping, Sequence

from models.tracker.coverage.line_sets import MAX_LINE_NUMBER
from models.tracker.reports.base import CoverageReport, FileCoverage, Limits, ReportTooLarge
from models.tracker.reports.text_cleaning import clean_name

MAX_PATH_CHARACTERS = 1024

MAX_UNITS = 30_000_000
"""Lines of a report that are kept, repeated ones included."""

CoverageCounts = tuple[int, int]
"""Covered and missed."""


def clean_path(text: str | None) -> str:
    """A path with forward slashes. A very long one is cut as a name is."""
    text = (text or "").strip().replace("\\", "/")
    return text if len(text) <= MAX_PATH_CHARACTERS else clean_name(text)


class CoverageFiles:
    """Collects files by path. A line that is reported several times is covered if it was covered once."""

    def __init__(self, limits: Limits, sink: Callable[[FileCoverage], None]) -> None:
        self._limits = limits
        self._sink = sink
        self._units: dict[str, array[int]] = {}
        self._branches: dict[str, CoverageCounts] = {}
        self._branch_units: dict[str, array[int]] = {}
        self._size = 0

    def add_lines(self, path: str, lines: Mapping[int, bool]) -> None:
        """Adds lines of a file; a key is that of `FileCoverage.lines`. Raises ReportTooLarge."""
        self.add_units(path, array("q", [key << 1 | covered for key, covered in lines.items()]))

    def add_units(self, path: str, packed: array[int]) -> None:
        """Adds lines of a file, each as its key << 1 | whether it is covered. Raises ReportTooLarge."""
        units = self._units.get(path)
        if units is None:
            if len(self._units) >= self._limits.files:
                raise ReportTooLarge(f"it has more than {self._limits.files} source files")
            units = self._units[path] = array("q")
        self._count(len(packed))
        units.extend(packed)

    def add_branch_units(self, path: str, branches: Iterable[tuple[int, bool]]) -> None:
        """Adds single branches of a file, each with a key below 2^62. One that was taken once is covered."""
        packed = [key << 1 | taken for key, taken in branches]
        self._count(len(packed))
        self._branch_units.setdefault(path, array("q")).extend(packed)

    def _count(self, units: int) -> None:
        self._size += units
        if self._size > MAX_UNITS:
            raise ReportTooLarge(f"it has more than {MAX_UNITS} lines of source")

    def add_branches(self, path: str, covered: int, missed: int) -> None:
        """Adds the branches of another part of a file."""
        before = self._branches.get(path, (0, 0))
        self._branches[path] = before[0] + covered, before[1] + missed

    def repeat_branches(self, path: str, covered: int, missed: int) -> None:
        """Takes counts of branches that may have been reported before: the better counts are kept."""
        if covered + missed:
            before = self._branches.get(path, (covered, missed))
            self._branches[path] = max(before, (covered, missed), key=lambda counts: (counts[0], -counts[1]))

    def emit(
        self, lines_of: Callable[[Iterable[int]], dict[int, bool]] | None = None
    ) -> tuple[CoverageCounts, CoverageCounts]:
        """Passes the files to the sink, one by one. Returns the sums of their lines and of their branches."""
        covered = missed = taken = untaken = 0
        for path, packed in self._branch_units.items():
            branches = _lines(packed)
            self._branches[path] = sum(branches.values()), len(branches) - sum(branches.values())
        for path, units in self._units.items():
            lines = (lines_of or _lines)(units)
            hits = sum(lines.values())
            counts = self._branches.get(path, (0, 0))
            self._sink(FileCoverage(path, hits, len(lines) - hits, *counts, lines))
            covered, missed = covered + hits, missed + len(lines) - hits
            taken, untaken = taken + counts[0], untaken + counts[1]
        return (covered, missed), (taken, untaken)


def coverage_report(
    format: str,
    digest: str,
    lines: CoverageCounts | None,
    branches: CoverageCounts | None,
    warnings: Sequence[str] = (),
) -> CoverageReport:
    """A report with these totals. Counts whose sum is 0 are no data."""
    line = lines if lines and sum(lines) else (None, None)
    branch = branches if branches and sum(branches) else (None, None)
    return CoverageReport(format, line[0], line[1], branch[0], branch[1], digest, warnings)


def _lines(units: Iterable[int]) -> dict[int, bool]:
    lines: dict[int, bool] = {}
    for unit in units:
        key = unit >> 1
        lines[key] = bool(unit & 1) or lines.get(key, False)
    return lines


def line_number(text: str | None) -> int | None:
    """A line number, from 1 on; None for a text that is none. Generated code is marked with 0xFEEFEE, for example."""
    if not text or len(text) > 20 or not text.isascii() or not text.isdigit():
        return None
    line = int(text)
    return line if 0 < line <= MAX_LINE_NUMBER else None


def is_hit(text: str | None) -> bool:
    """Whether a count of hits is above 0: any number of digits, or one like 1e+06. Negative counts are no hits."""
    try:
        return float((text or "0")[:40]) > 0
    except ValueError:
        return False
