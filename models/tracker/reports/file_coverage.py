"""The source files of a coverage report, each once, however often and wherever the report tells of it.

Many formats tell of a file in pieces (a class each, a test each). Their lines are kept packed until the end: eight
bytes for each, instead of a dictionary's hundred.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterable, Mapping

from models.tracker.reports.base import CoverageReport, FileCoverage, Limits, ReportTooLarge
from models.tracker.reports.text_cleaning import name_of

LAST_LINE = 1 << 20
"""Lines beyond are none: the marker of generated code (0xFEEFEE) is one such number."""

PATH = 1024

UNITS = 30_000_000
"""As many lines of a report, repeated ones counted too, are kept."""

Counts = tuple[int, int]
"""Covered and missed."""


def path_of(text: str | None) -> str:
    """A path with forward slashes. A very long one is cut as a name is."""
    text = (text or "").strip().replace("\\", "/")
    return text if len(text) <= PATH else name_of(text)


class Files:
    """Gathers files by path. What is told of a line twice is covered if it was covered once."""

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._units: dict[str, array[int]] = {}
        self._branches: dict[str, tuple[int, int]] = {}
        self._size = 0

    def add(self, path: str, lines: Mapping[int, bool]) -> None:
        """Lines of a file; a key is 0 to 2^52."""
        units = self._units.get(path)
        if units is None:
            if len(self._units) >= self._limits.files:
                raise ReportTooLarge(f"it has more than {self._limits.files} source files")
            units = self._units[path] = array("q")
        self._size += len(lines)
        if self._size > UNITS:
            raise ReportTooLarge(f"it has more than {UNITS} lines of source")
        units.extend([key << 1 | covered for key, covered in lines.items()])

    def branches(self, path: str, covered: int, missed: int, another: bool) -> None:
        """Branches of a file: `another` part of it, or else the same ones told again, of which the better count."""
        before = self._branches.get(path, (0, 0))
        if another:
            self._branches[path] = before[0] + covered, before[1] + missed
        else:
            self._branches[path] = max(before, (covered, missed), key=lambda counts: (counts[0], -counts[1]))

    def pour(
        self, sink: Callable[[FileCoverage], None], lines_of: Callable[[Iterable[int]], dict[int, bool]] | None = None
    ) -> tuple[Counts, Counts]:
        """Hands on the files, one by one; the sums of their lines and of their branches."""
        covered = missed = taken = untaken = 0
        for path, units in self._units.items():
            lines = (lines_of or _lines)(units)
            hits = sum(lines.values())
            branches = self._branches.get(path, (0, 0))
            sink(FileCoverage(path, hits, len(lines) - hits, *branches, lines))
            covered, missed = covered + hits, missed + len(lines) - hits
            taken, untaken = taken + branches[0], untaken + branches[1]
        return (covered, missed), (taken, untaken)


def told(format: str, digest: str, lines: Counts | None, branches: Counts | None) -> CoverageReport:
    """A report with these totals; counts of nothing are no data."""
    line = lines if lines and sum(lines) else (None, None)
    branch = branches if branches and sum(branches) else (None, None)
    return CoverageReport(format, line[0], line[1], branch[0], branch[1], digest)


def _lines(units: Iterable[int]) -> dict[int, bool]:
    lines: dict[int, bool] = {}
    for unit in units:
        key = unit >> 1
        lines[key] = bool(unit & 1) or lines.get(key, False)
    return lines


def line_of(text: str | None) -> int | None:
    """A line number; None for what is none."""
    if not text or len(text) > 20 or not text.isascii() or not text.isdigit():
        return None
    line = int(text)
    return line if line <= LAST_LINE else None


def hit(text: str | None) -> bool:
    """Whether a count of hits is above 0: any number of digits, or one like 1e+06; negative counts are no hits."""
    try:
        return float((text or "0")[:40]) > 0
    except ValueError:
        return False


def unit_key(line: int, column: int) -> int:
    """The place of a unit that is smaller than a line; its low 16 bits are free."""
    return line << 32 | min(column, 0xFFFF) << 16
