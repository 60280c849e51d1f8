"""JaCoCo XML. Groups nest; the report's own counter is its total."""

from __future__ import annotations

from collections.abc import Callable

from models.tracker.reports.base import CoverageReport, FileCoverage, Limits, ReportTooLarge
from models.tracker.reports.file_coverage import Counts, line_of, path_of, told
from models.tracker.reports.text_cleaning import Remembered, count
from models.tracker.reports.xml_stream import Reader

_PLACES = Remembered(line_of)
_COUNTS = Remembered(lambda text: count(text) or 0)


class Jacoco(Reader):
    """`report`, `group` at any depth, `package`, `sourcefile`, `line`; counters at each level.

    A file is its package and its name. Where a report has two of one path (in two groups: two modules), the later
    have their groups before it.
    """

    def __init__(self, limits: Limits, sink: Callable[[FileCoverage], None]) -> None:
        super().__init__(limits)
        self._sink = sink
        self._groups: list[str] = []
        self._package = ""
        self._name: str | None = None
        self._lines: dict[int, bool] = {}
        self._covered_branches = self._missed_branches = 0
        self._seen: set[int] = set()
        self._counters: dict[tuple[str, str], Counts] = {}
        """Summed by the kind of element that they stand in, and their type."""
        self._own: dict[str, Counts] = {}
        self.starts = {
            "line": self._line,
            "counter": self._counter,
            "sourcefile": self._file,
            "package": self._in_package,
            "group": self._group,
        }
        self.ends = {"sourcefile": self._finish, "group": self._ungroup}

    def report(self, digest: str) -> CoverageReport:
        return told("JaCoCo", digest, self._total("LINE"), self._total("BRANCH"))

    def _total(self, kind: str) -> Counts | None:
        """Its own counter; without one the sum of those of its packages, groups or files. Never of its classes."""
        for level in ("report", "package", "group", "sourcefile"):
            if (level, kind) in self._counters:
                return self._counters[level, kind]
        return None

    def _group(self, attributes: dict[str, str]) -> None:
        self._groups.append(attributes.get("name", ""))

    def _ungroup(self) -> None:
        self._groups.pop()

    def _in_package(self, attributes: dict[str, str]) -> None:
        self._package = attributes.get("name", "")

    def _file(self, attributes: dict[str, str]) -> None:
        self._name = attributes.get("name", "")
        self._lines = {}
        self._covered_branches = self._missed_branches = 0
        self._own = {}

    def _line(self, attributes: dict[str, str]) -> None:
        if self._name is None:
            return
        get, lines = attributes.get, self._lines
        line = _PLACES[get("nr", "")]
        hit = get("ci", "0") != "0"
        if line is None or not (hit or get("mi", "0") != "0"):
            return
        lines[line] = hit or (line in lines and lines[line])
        covered, missed = get("cb", "0"), get("mb", "0")
        if covered != "0" or missed != "0":
            self._covered_branches += _COUNTS[covered]
            self._missed_branches += _COUNTS[missed]

    def _counter(self, attributes: dict[str, str]) -> None:
        get = attributes.get
        kind = get("type", "")
        if kind not in ("LINE", "BRANCH"):
            return
        counts = _COUNTS[get("covered", "")], _COUNTS[get("missed", "")]
        level = self.parent
        if level == "sourcefile":
            self._own[kind] = counts
        elif level != "group" or len(self._groups) == 1:
            self._sum(level, kind, counts)

    def _sum(self, level: str, kind: str, counts: Counts) -> None:
        before = self._counters.get((level, kind), (0, 0))
        self._counters[level, kind] = before[0] + counts[0], before[1] + counts[1]

    def _finish(self) -> None:
        covered = sum(self._lines.values())
        lines = self._own.get("LINE") or (covered, len(self._lines) - covered)
        branches = self._own.get("BRANCH") or (self._covered_branches, self._missed_branches)
        if sum(lines):
            self._sum("sourcefile", "LINE", lines)
            self._sum("sourcefile", "BRANCH", branches)
            self._sink(FileCoverage(self._path(), *lines, *branches, self._lines or None))
        self._name = None

    def _path(self) -> str:
        if len(self._seen) >= self.limits.files:
            raise ReportTooLarge(f"it has more than {self.limits.files} source files")
        parts = [self._package, self._name or ""]
        path = path_of("/".join(filter(None, parts)))
        if hash(path) in self._seen:
            path = path_of("/".join(filter(None, [*self._groups, *parts])))
        if hash(path) in self._seen:
            path = f"{path} ({len(self._seen)})"
        self._seen.add(hash(path))
        return path
