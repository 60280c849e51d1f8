"""JaCoCo XML. Groups nest; the report's own counter is its total. Lines are read one by one (see docs/reports.md)."""

from __future__ import annotations

from collections.abc import Callable

from models.tracker.reports.base import CoverageReport, FileCoverage, Limits, ReportTooLarge
from models.tracker.reports.file_coverage import CoverageCounts, clean_path, coverage_report, line_number
from models.tracker.reports.text_cleaning import Memo, count
from models.tracker.reports.xml_stream import Attributes, XmlReader

_LINE_NUMBERS = Memo(line_number)
_COUNTS = Memo(lambda text: count(text) or 0)


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

    def report(self, digest: str) -> CoverageReport:
        return coverage_report("JaCoCo", digest, self._total("LINE"), self._total("BRANCH"))

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
