"""Coverage reports in XML, read line by line (see docs/reports.md): JaCoCo, Cobertura, Clover and OpenCover."""

from __future__ import annotations

import re
from collections.abc import Callable

from models.tracker.coverage.line_sets import unit_key
from models.tracker.reports.base import CoverageReport, FileCoverage, Limits, ReportTooLarge
from models.tracker.reports.file_coverage import (
    CoverageCounts,
    CoverageFiles,
    clean_path,
    coverage_report,
    is_hit,
    line_number,
)
from models.tracker.reports.text_cleaning import Memo, count
from models.tracker.reports.xml_stream import Attributes, XmlReader

_LINE_NUMBERS = Memo(line_number)
_COUNTS = Memo(lambda text: count(text) or 0)
_CONDITION = re.compile(r"\(\s*(\d{1,9})\s*/\s*(\d{1,9})\s*\)", re.ASCII)
_MAX_POINTS = 10_000
"""Sequence points of a method that are collected before they are packed."""


class Jacoco(XmlReader):
    """`report`, `group` at any depth, `package`, `sourcefile`, `line`; counters at each level.

    The path of a file is its package and its name. Where a report has two of one path (in two groups, which are
    modules), the later ones have their groups before it.
    """

    markers = frozenset(("sessioninfo",))

    def __init__(self, limits: Limits, sink: Callable[[FileCoverage], None]) -> None:
        super().__init__(limits)
        self._sink = sink
        self._groups: list[str] = []
        self._package = ""
        self._name: str | None = None
        self._lines: dict[int, bool] = {}
        self._covered_branches = self._missed_branches = 0
        self._seen: set[int] = set()
        self._counters: dict[tuple[str, str], CoverageCounts] = {}
        """Sums by the kind of the element around the counter, and the counter's type."""
        self._file_counters: dict[str, CoverageCounts] = {}
        self.starts = {
            "line": self._line,
            "counter": self._counter,
            "sourcefile": self._open_file,
            "package": self._open_package,
            "group": self._open_group,
        }
        self.ends = {"sourcefile": self._close_file, "group": self._close_group}

    def report(self, format: str, digest: str) -> CoverageReport:
        return coverage_report(format, digest, self._total("LINE"), self._total("BRANCH"))

    def _total(self, kind: str) -> CoverageCounts | None:
        """The report's counter; without one the sum of its packages, groups or files. Never of its classes."""
        for level in ("report", "package", "group", "sourcefile"):
            if (level, kind) in self._counters:
                return self._counters[level, kind]
        return None

    def _open_group(self, attributes: Attributes) -> None:
        self._groups.append(attributes.get("name", ""))

    def _close_group(self) -> None:
        self._groups.pop()

    def _open_package(self, attributes: Attributes) -> None:
        self._package = attributes.get("name", "")

    def _open_file(self, attributes: Attributes) -> None:
        self._name = attributes.get("name", "")
        self._lines = {}
        self._covered_branches = self._missed_branches = 0
        self._file_counters = {}

    def _line(self, attributes: Attributes) -> None:
        if self._name is None:
            return
        get, lines = attributes.get, self._lines
        line = _LINE_NUMBERS[get("nr", "")]
        hit = get("ci", "0") != "0"
        if line is None or not (hit or get("mi", "0") != "0"):
            return
        lines[line] = hit or (line in lines and lines[line])
        covered, missed = get("cb", "0"), get("mb", "0")
        if covered != "0" or missed != "0":
            self._covered_branches += _COUNTS[covered]
            self._missed_branches += _COUNTS[missed]

    def _counter(self, attributes: Attributes) -> None:
        get = attributes.get
        kind = get("type", "")
        if kind not in ("LINE", "BRANCH"):
            return
        counts = _COUNTS[get("covered", "")], _COUNTS[get("missed", "")]
        level = self.parent
        if level == "sourcefile":
            self._file_counters[kind] = counts
        elif level != "group" or len(self._groups) == 1:
            self._add_counts(level, kind, counts)

    def _add_counts(self, level: str, kind: str, counts: CoverageCounts) -> None:
        before = self._counters.get((level, kind), (0, 0))
        self._counters[level, kind] = before[0] + counts[0], before[1] + counts[1]

    def _close_file(self) -> None:
        covered = sum(self._lines.values())
        lines = self._file_counters.get("LINE") or (covered, len(self._lines) - covered)
        branches = self._file_counters.get("BRANCH") or (self._covered_branches, self._missed_branches)
        if sum(lines):
            self._add_counts("sourcefile", "LINE", lines)
            self._add_counts("sourcefile", "BRANCH", branches)
            self._sink(FileCoverage(self._unique_path(), *lines, *branches, self._lines or None))
        self._name = None

    def _unique_path(self) -> str:
        if len(self._seen) >= self.limits.files:
            raise ReportTooLarge(f"it has more than {self.limits.files} source files")
        parts = [self._package, self._name or ""]
        path = clean_path("/".join(filter(None, parts)))
        if hash(path) in self._seen:
            path = clean_path("/".join(filter(None, [*self._groups, *parts])))
        if hash(path) in self._seen:
            path = f"{path} ({len(self._seen)})"
        self._seen.add(hash(path))
        return path


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
        self._files = CoverageFiles(limits, sink)
        self._path: str | None = None
        self._lines: dict[int, bool] = {}
        self._method_lines: dict[int, bool] = {}
        self._branches: dict[int, CoverageCounts] = {}
        self._declared: dict[str, int | None] = {}
        self.starts = {"coverage": self._root, "class": self._open_class, "line": self._line}
        self.ends = {"class": self._close_class}

    def report(self, format: str, digest: str) -> CoverageReport:
        lines, branches = self._files.emit()
        return coverage_report(format, digest, self._total("lines") or lines, self._total("branches") or branches)

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
        self._files = CoverageFiles(limits, sink)
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

    def report(self, format: str, digest: str) -> CoverageReport:
        lines, branches = self._files.emit()
        return coverage_report(format, digest, self._total or lines, self._total_branches or branches)

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
    """`Module`, `File`, `Method`, `SequencePoint`. A point that two modules share counts once, by its place.

    Points without a known file, those of generated code, do not count.
    """

    markers = frozenset(("Modules", "Module"))

    def __init__(self, limits: Limits, sink: Callable[[FileCoverage], None]) -> None:
        super().__init__(limits)
        self._files = CoverageFiles(limits, sink)
        self._paths: dict[str, str] = {}
        self._file = ""
        self._points: dict[str, dict[int, bool]] = {}
        self._branches: dict[str, CoverageCounts] = {}
        self._summary: CoverageCounts | None = None
        self._has_points = False
        self.starts = {
            "File": self._file_name,
            "FileRef": self._file_reference,
            "Method": self._open_method,
            "SequencePoint": self._point,
            "BranchPoint": self._branch,
            "Summary": self._read_summary,
        }
        self.ends = {"Method": self._store_points}

    def report(self, format: str, digest: str) -> CoverageReport:
        points, branches = self._files.emit()
        summary = None if self._has_points else self._summary
        return coverage_report(format, digest, points if sum(points) else summary, branches)

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
        self._has_points = True
        if not line:
            return
        key = unit_key(line, count(attributes.get("sc")) or 0, line_number(attributes.get("el")))
        points = self._points.setdefault(attributes.get("fileid") or self._file, {})
        points[key] = is_hit(attributes.get("vc")) or points.get(key, False)
        if len(points) > _MAX_POINTS:
            self._store_points()
            self._points, self._branches = {}, {}

    def _branch(self, attributes: Attributes) -> None:
        if "sl" in attributes and not line_number(attributes["sl"]):  # OpenCover before 4.6 has no lines of branches
            return
        file = attributes.get("fileid") or self._file
        covered, missed = self._branches.get(file, (0, 0))
        taken = is_hit(attributes.get("vc"))
        self._branches[file] = covered + taken, missed + (not taken)

    def _store_points(self) -> None:
        for file, points in self._points.items():
            if file in self._paths:
                self._files.add_lines(self._paths[file], points)
        for file, branches in self._branches.items():
            if file in self._points and file in self._paths:
                self._files.add_branches(self._paths[file], *branches)

    def _read_summary(self, attributes: Attributes) -> None:
        """Reads the session's own sum, which counts only where no points are listed."""
        if self.parent == "CoverageSession":
            covered, total = count(attributes.get("visitedSequencePoints")), count(attributes.get("numSequencePoints"))
            self._summary = _declared(covered, total) or self._summary
