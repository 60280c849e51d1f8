"""Coverage reports that are lines of text or JSON: LCOV, Go cover profiles, coverage.py, Codecov."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from typing import Any

from models.tracker.coverage.line_sets import MAX_LINE_NUMBER, unit_key
from models.tracker.reports.base import BadReport, CoverageReport, FileCoverage, Limits, ReportTooLarge, UnknownFormat
from models.tracker.reports.byte_stream import Ending, lines
from models.tracker.reports.file_coverage import (
    CoverageCounts,
    CoverageFiles,
    clean_path,
    coverage_report,
    is_hit,
    line_number,
)
from models.tracker.reports.json_stream import CLOSED, ITEM, MAX_COVERAGE_NODES, OPENED, count, json_values, number
from models.tracker.reports.text_cleaning import MAX_COUNT

_MAX_BAD_SHARE = 0.01
"""The share of the lines of a Go profile that may be bad."""

_HITS = re.compile(r"-?\d+(?:\.\d*)?(?:[eE][+-]?\d{1,3})?", re.ASCII)
_BLOCK = re.compile(rb"(.+):(\d{1,9})\.(\d{1,9}),(\d{1,9})\.(\d{1,9}) (\d{1,9}) (\d{1,30})")
_MAX_BRACE_COLUMN = 2
"""Where a block ends whose last line has only the closing brace of a function."""

_MAX_STATEMENTS = 0xFFFF
"""Statements of a block."""

_FRACTION = re.compile(r"(\d{1,6})\s*/\s*(\d{1,6})", re.ASCII)
_COUNTS = {(f"{state}_{what}",) for state in ("covered", "missing") for what in ("lines", "branches")}


class Lcov:
    """LCOV tracefiles: records of a source file each. A file may have several, one for each test.

    Lines are counted from their DA records. LF and LH are often missing or stale, and are not read. A record that
    cannot be read (a count of NaN, an unknown keyword) is skipped. A tracefile that ends within the record of a source
    file was cut: nothing of it is used.
    """

    def __init__(self, limits: Limits, sink: Callable[[FileCoverage], None]) -> None:
        self._files = CoverageFiles(limits, sink)
        self._path: str | None = None
        self._lines: dict[int, bool] = {}
        self._branches = [0, 0]
        self._is_truncated = False

    def read(self, pieces: Iterable[bytes]) -> None:
        for line in lines(pieces):
            keyword, _, rest = line.strip().partition(b":")
            if keyword == b"DA":
                self._line(rest.decode("utf-8", "replace"))
            elif keyword == b"BRDA":
                taken = rest.rpartition(b",")[2].decode("utf-8", "replace")
                self._branches[0 if is_hit(taken) else 1] += 1
            elif keyword == b"SF":
                self._close_file()
                self._path = clean_path(rest.decode("utf-8", "replace"))
            elif keyword == b"end_of_record":
                self._close_file()
        self._is_truncated = self._path is not None

    def report(self, format: str, digest: str) -> CoverageReport:
        if self._is_truncated:
            warning = "truncated: its last record has no end_of_record; its coverage is not used"
            return coverage_report(format, digest, None, None, [warning])
        return coverage_report(format, digest, *self._files.emit())

    def _line(self, record: str) -> None:
        number, _, hits = record.partition(",")
        line = line_number(number.strip())
        hits = hits.partition(",")[0].strip()
        if line is not None and _HITS.fullmatch(hits):
            self._lines[line] = is_hit(hits) or self._lines.get(line, False)

    def _close_file(self) -> None:
        if self._path is not None and self._lines:
            self._files.add_lines(self._path, self._lines)
            self._files.repeat_branches(self._path, self._branches[0], self._branches[1])
        self._path, self._lines, self._branches = None, {}, [0, 0]


class GoCover:
    """Go cover profiles. The unit is the statement: a block has a number of them, all covered or none.

    A block that is listed twice (each test of a package lists them all) counts once, covered if it ever was. Bad lines
    are skipped while they are few; a bad last line without its end means that the profile was cut, and nothing of it
    is used.
    """

    def __init__(self, limits: Limits, sink: Callable[[FileCoverage], None]) -> None:
        self._files = CoverageFiles(limits, sink)
        self._bad = 0
        self._first_bad = BadReport("")
        self._is_truncated = False

    def read(self, pieces: Iterable[bytes]) -> None:
        ending = Ending(pieces)
        blocks = last_bad = at = 0
        for at, line in enumerate(lines(ending), 1):
            line = line.strip()
            if not line or line.startswith(b"mode:"):
                continue
            blocks += 1
            try:
                self._block(line, at)
            except BadReport as bad:
                self._first_bad = bad if not self._bad else self._first_bad
                self._bad, last_bad = self._bad + 1, at
        self._is_truncated = last_bad == at > 0 and ending.is_cut
        if self._bad - self._is_truncated > _MAX_BAD_SHARE * blocks:
            raise self._first_bad

    def report(self, format: str, digest: str) -> CoverageReport:
        if self._is_truncated:
            warning = "truncated: its last line is cut; its coverage is not used"
            return coverage_report(format, digest, None, None, [warning])
        bad = self._first_bad
        warnings = [f"{self._bad} bad lines were skipped, the first is line {bad.line}: {bad.why}"] if self._bad else []
        return coverage_report(format, digest, *self._files.emit(_statements), warnings)

    def _block(self, line: bytes, at: int) -> None:
        match = _BLOCK.fullmatch(line)
        if not match:
            raise BadReport("this is no line of a Go cover profile (file:line.column,line.column statements count)", at)
        first, column, last, end, statements = map(int, match.groups()[1:6])
        if first > MAX_LINE_NUMBER or statements > _MAX_STATEMENTS:
            raise BadReport("a block of a Go cover profile cannot be that large", at)
        if statements:
            path = clean_path(match[1].decode("utf-8", "replace"))
            key = unit_key(first, column, last - (end <= _MAX_BRACE_COLUMN))
            self._files.add_lines(path, {key | statements: match[7].strip(b"0") != b""})


def _statements(units: Iterable[int]) -> dict[int, bool]:
    """The statements of blocks, each with a key of its own: the place of its block, and its number in the block."""
    blocks: dict[int, bool] = {}
    for unit in units:
        block = unit >> 1
        blocks[block] = bool(unit & 1) or blocks.get(block, False)
    if sum(block & _MAX_STATEMENTS for block in blocks) > MAX_LINE_NUMBER:
        raise ReportTooLarge(f"a file has more than {MAX_LINE_NUMBER} statements")
    return {
        (block & ~_MAX_STATEMENTS) + number: covered
        for block, covered in blocks.items()
        for number in range(block & _MAX_STATEMENTS)
    }


class CoveragePy:
    """The JSON of coverage.py: `files` by path, and `totals`. The functions and classes of a file repeat its lines.

    Its percentages include branches, so the lines are counted here.
    """

    def __init__(self, limits: Limits, sink: Callable[[FileCoverage], None]) -> None:
        self._limits = limits
        self._sink = sink
        self._seen: set[int] = set()
        self._lines: dict[int, bool] = {}
        self._summary: dict[str, Any] = {}
        self._totals: dict[str, Any] = {}
        self._sum = [0, 0]
        self._is_coveragepy = False

    def read(self, pieces: Iterable[bytes]) -> None:
        for place, value in json_values(pieces, self._limits, MAX_COVERAGE_NODES):
            if place[:1] == ("files",):
                self._is_coveragepy |= place[2:3] in (("executed_lines",), ("missing_lines",), ("summary",))
                self._file(place[1:], value)
            elif place[:1] == ("totals",) and place[1:] in _COUNTS:
                self._is_coveragepy = True
                self._totals[place[1]] = value
        if not self._is_coveragepy:
            raise UnknownFormat("it has neither files with lines nor totals")

    def report(self, format: str, digest: str) -> CoverageReport:
        line = _pair(self._totals, "lines") or (self._sum[0], self._sum[1])
        return coverage_report(format, digest, line, _pair(self._totals, "branches"))

    def _file(self, place: tuple[str, ...], value: Any) -> None:
        if len(place) == 1 and value is OPENED:
            self._lines, self._summary = {}, {}
        elif len(place) == 1 and value is CLOSED:
            self._close_file(clean_path(place[0]))
        elif len(place) == 3 and place[2] == ITEM and place[1] in ("executed_lines", "missing_lines"):
            line = number(value)
            if line is not None and 0 < line <= MAX_LINE_NUMBER:
                self._lines[int(line)] = place[1] == "executed_lines" or self._lines.get(int(line), False)
        elif place[1:2] == ("summary",) and place[2:] in _COUNTS:
            self._summary[place[2]] = value

    def _close_file(self, path: str) -> None:
        covered = sum(self._lines.values())
        lines = (covered, len(self._lines) - covered) if self._lines else _pair(self._summary, "lines")
        if not lines or not sum(lines) or hash(path) in self._seen:
            return
        if len(self._seen) >= self._limits.files:
            raise ReportTooLarge(f"it has more than {self._limits.files} source files")
        self._seen.add(hash(path))
        self._sum = [self._sum[0] + lines[0], self._sum[1] + lines[1]]
        branches = _pair(self._summary, "branches") or (0, 0)
        self._sink(FileCoverage(path, *lines, *branches, self._lines or None))


class Codecov:
    """Codecov's JSON: `coverage` maps a path to its lines, as an object by number or an array by index.

    The value of a line is its hits, "1/2" for covered and all branches, true for partly covered, or null for no code.
    """

    def __init__(self, limits: Limits, sink: Callable[[FileCoverage], None]) -> None:
        self._limits = limits
        self._files = CoverageFiles(limits, sink)
        self._path: str | None = None
        self._index = 0
        self._lines: dict[int, bool] = {}
        self._branches = [0, 0]
        self._has_coverage = self._has_lines = False
        self._has_others = False
        """Whether something below `coverage` is neither a file nor a line."""

    def read(self, pieces: Iterable[bytes]) -> None:
        for place, value in json_values(pieces, self._limits, MAX_COVERAGE_NODES):
            if place[:1] != ("coverage",):
                continue
            if value is OPENED or value is CLOSED:
                self._has_coverage = True
                self._has_others |= len(place) > 2
            elif len(place) != 3 or not (place[2] == ITEM or place[2].isdigit()):
                self._has_others = True
            else:
                self._has_lines = True
                if place[1] != self._path:
                    self._close_file()
                    self._path = place[1]
                self._line(place[2], value)
        self._close_file()
        if not self._has_lines and (self._has_others or not self._has_coverage):
            raise UnknownFormat("it has no lines below coverage")

    def report(self, format: str, digest: str) -> CoverageReport:
        return coverage_report(format, digest, *self._files.emit())

    def _line(self, key: str, value: Any) -> None:
        line = self._index if key == ITEM else line_number(key)
        self._index += 1
        if line is None or not 0 < line <= MAX_LINE_NUMBER or value is None:
            return
        if isinstance(value, str) and (match := _FRACTION.fullmatch(value.strip())):
            taken, total = int(match[1]), int(match[2])
            self._branches[0] += min(taken, total)
            self._branches[1] += max(0, total - taken)
            covered = taken > 0
        elif isinstance(value, str):
            covered = is_hit(value.strip())
        else:
            covered = value is True or (number(value) or 0) > 0
        self._lines[line] = covered or self._lines.get(line, False)

    def _close_file(self) -> None:
        if self._path is not None and self._lines:
            path = clean_path(self._path)
            self._files.add_lines(path, self._lines)
            self._files.repeat_branches(path, self._branches[0], self._branches[1])
        self._path, self._index, self._lines, self._branches = None, 0, {}, [0, 0]


def _pair(counts: dict[str, Any], what: str) -> CoverageCounts | None:
    covered, missed = count(counts.get(f"covered_{what}"), MAX_COUNT), count(counts.get(f"missing_{what}"), MAX_COUNT)
    return None if covered is None or missed is None else (covered, missed)
