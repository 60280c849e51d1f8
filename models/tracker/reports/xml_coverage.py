"""Coverage reports in XML: Cobertura, Clover and OpenCover. Their lines are read one by one (see docs/reports.md)."""

from __future__ import annotations

import re
from collections.abc import Callable

from models.tracker.line_sets import unit_key
from models.tracker.reports.base import CoverageReport, FileCoverage, Limits, ReportTooLarge
from models.tracker.reports.file_coverage import (
    CoverageCounts,
    CoverageFiles,
    clean_path,
    coverage_report,
    is_hit,
    line_number,
)
from models.tracker.reports.text_cleaning import count
from models.tracker.reports.xml_stream import Attributes, XmlReader

_CONDITION = re.compile(r"\(\s*(\d{1,9})\s*/\s*(\d{1,9})\s*\)", re.ASCII)
_MAX_POINTS = 10_000
"""Sequence points of a method that are collected before they are packed."""


def _declared(covered: int | None, total: int | None) -> CoverageCounts | None:
    """Covered and missed, unless there are none or they are impossible."""
    return (covered, total - covered) if covered is not None and total and covered <= total else None


class Cobertura(XmlReader):
    """`class` elements, of which several may belong to one file. The root's counts are the total.

    A class repeats the lines of its methods. Only where it does not, the lines of its methods count.
    """

    markers = frozenset(("sources", "packages", "classes"))

    def __init__(self, limits: Limits, sink: Callable[[FileCoverage], None]) -> None:
        super().__init__(limits)
        self._sink = sink
        self._files = CoverageFiles(limits)
        self._path: str | None = None
        self._lines: dict[int, bool] = {}
        self._method_lines: dict[int, bool] = {}
        self._branches: dict[int, CoverageCounts] = {}
        self._declared: dict[str, int | None] = {}
        self.starts = {"coverage": self._root, "class": self._open_class, "line": self._line}
        self.ends = {"class": self._close_class}

    def report(self, digest: str) -> CoverageReport:
        lines, branches = self._files.emit(self._sink)
        return coverage_report("Cobertura", digest, self._total("lines") or lines, self._total("branches") or branches)

    def _total(self, what: str) -> CoverageCounts | None:
        return _declared(self._declared.get(f"{what}-covered"), self._declared.get(f"{what}-valid"))

    def _root(self, attributes: Attributes) -> None:
        if len(self.path) == 1:
            self._declared = {name: count(value) for name, value in attributes.items()}

    def _open_class(self, attributes: Attributes) -> None:
        self._path = clean_path(attributes.get("filename") or attributes.get("name"))
        self._lines, self._method_lines, self._branches = {}, {}, {}

    def _line(self, attributes: Attributes) -> None:
        number = line_number(attributes.get("number"))
        if self._path is None or number is None:
            return
        lines = self._method_lines if "method" in self.path else self._lines
        lines[number] = is_hit(attributes.get("hits")) or lines.get(number, False)
        condition = attributes.get("condition-coverage")
        if condition and (match := _CONDITION.search(condition)):
            covered, total = int(match[1]), int(match[2])
            self._branches[number] = max(self._branches.get(number, (0, 0)), (covered, max(0, total - covered)))

    def _close_class(self) -> None:
        lines = self._lines or self._method_lines
        if self._path is not None and lines:
            self._files.add_lines(self._path, lines)
            branches = [counts for line, counts in self._branches.items() if line in lines]
            covered, missed = (sum(counts[index] for counts in branches) for index in (0, 1))
            self._files.add_branches(self._path, covered, missed)
        self._path = None


class Clover(XmlReader):
    """Clover, which Istanbul and PHPUnit write too: `project`, `package` (or none), `file`, `line`.

    The unit is the statement; the project's metrics are the total. A `testproject` is the code of tests and is left
    out.
    """

    markers = frozenset(("project", "testproject"))

    def __init__(self, limits: Limits, sink: Callable[[FileCoverage], None]) -> None:
        super().__init__(limits)
        self._sink = sink
        self._files = CoverageFiles(limits)
        self._package = ""
        self._path: str | None = None
        self._lines: dict[int, bool] = {}
        self._total: CoverageCounts | None = None
        self._total_branches: CoverageCounts | None = None
        self.starts = {
            "metrics": self._metrics,
            "package": self._open_package,
            "file": self._open_file,
            "line": self._line,
        }
        self.ends = {"file": self._close_file, "package": self._close_package}

    def report(self, digest: str) -> CoverageReport:
        lines, branches = self._files.emit(self._sink)
        return coverage_report("Clover", digest, self._total or lines, self._total_branches or branches)

    def _metrics(self, attributes: Attributes) -> None:
        branches = _metric(attributes, "conditionals")
        if self.parent == "project":
            self._total = _plus(self._total, _metric(attributes, "statements"))
            self._total_branches = _plus(self._total_branches, branches)
        elif self.parent == "file" and self._path is not None and branches:
            self._files.repeat_branches(self._path, *branches)

    def _open_package(self, attributes: Attributes) -> None:
        self._package = attributes.get("name", "").replace(".", "/")

    def _close_package(self) -> None:
        self._package = ""

    def _open_file(self, attributes: Attributes) -> None:
        if "testproject" in self.path:
            return
        name = clean_path(attributes.get("name"))
        if "/" not in name and self._package:
            name = f"{self._package}/{name}"
        self._path = clean_path(attributes.get("path")) or name
        self._lines = {}

    def _line(self, attributes: Attributes) -> None:
        """Reads a line. One of type cond is a statement if it has a count (Istanbul); else another line is."""
        get = attributes.get
        number = line_number(get("num"))
        if self._path is None or number is None or get("type") == "method" or "count" not in attributes:
            return
        self._lines[number] = is_hit(get("count")) or self._lines.get(number, False)

    def _close_file(self) -> None:
        if self._path is not None and self._lines:
            self._files.add_lines(self._path, self._lines)
        self._path = None


def _metric(attributes: Attributes, what: str) -> CoverageCounts | None:
    return _declared(count(attributes.get(f"covered{what}")), count(attributes.get(what)))


def _plus(left: CoverageCounts | None, right: CoverageCounts | None) -> CoverageCounts | None:
    return left if right is None else right if left is None else (left[0] + right[0], left[1] + right[1])


class OpenCover(XmlReader):
    """`Module`, `File`, `Method`, `SequencePoint`. A point that two modules share counts once, by its place."""

    markers = frozenset(("Modules", "Module"))

    def __init__(self, limits: Limits, sink: Callable[[FileCoverage], None]) -> None:
        super().__init__(limits)
        self._sink = sink
        self._files = CoverageFiles(limits)
        self._paths: dict[str, str] = {}
        self._file = ""
        self._points: dict[str, dict[int, bool]] = {}
        self._branches: dict[str, CoverageCounts] = {}
        self._summary: CoverageCounts | None = None
        self.starts = {
            "File": self._file_name,
            "FileRef": self._file_reference,
            "Method": self._open_method,
            "SequencePoint": self._point,
            "BranchPoint": self._branch,
            "Summary": self._read_summary,
        }
        self.ends = {"Method": self._store_points}

    def report(self, digest: str) -> CoverageReport:
        points, branches = self._files.emit(self._sink)
        return coverage_report("OpenCover", digest, points if sum(points) else self._summary, branches)

    def _file_name(self, attributes: Attributes) -> None:
        if len(self._paths) >= self.limits.files:
            raise ReportTooLarge(f"it has more than {self.limits.files} source files")
        self._paths[attributes.get("uid", "")] = clean_path(attributes.get("fullPath"))

    def _file_reference(self, attributes: Attributes) -> None:
        self._file = attributes.get("uid", "")

    def _open_method(self, _attributes: Attributes) -> None:
        self._file = ""
        self._points, self._branches = {}, {}

    def _point(self, attributes: Attributes) -> None:
        line = line_number(attributes.get("sl"))
        if not line:
            return
        key = unit_key(line, count(attributes.get("sc")) or 0, line_number(attributes.get("el")))
        points = self._points.setdefault(attributes.get("fileid") or self._file, {})
        points[key] = is_hit(attributes.get("vc")) or points.get(key, False)
        if len(points) > _MAX_POINTS:
            self._store_points()
            self._points, self._branches = {}, {}

    def _branch(self, attributes: Attributes) -> None:
        if not line_number(attributes.get("sl")):
            return
        file = attributes.get("fileid") or self._file
        covered, missed = self._branches.get(file, (0, 0))
        taken = is_hit(attributes.get("vc"))
        self._branches[file] = covered + taken, missed + (not taken)

    def _store_points(self) -> None:
        for file, points in self._points.items():
            self._files.add_lines(self._path(file), points)
        for file, branches in self._branches.items():
            if file in self._points:
                self._files.add_branches(self._path(file), *branches)

    def _path(self, file: str) -> str:
        return self._paths.get(file) or clean_path(f"file {file}")

    def _read_summary(self, attributes: Attributes) -> None:
        """Reads the session's own sum, which counts only where no points are listed."""
        if self.parent == "CoverageSession":
            covered, total = count(attributes.get("visitedSequencePoints")), count(attributes.get("numSequencePoints"))
            self._summary = _declared(covered, total) or self._summary
