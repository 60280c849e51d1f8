"""Clover XML, which Istanbul and PHPUnit write too. Its unit is the statement; the project's metrics are its total."""

from __future__ import annotations

from collections.abc import Callable

from models.tracker.reports.base import CoverageReport, FileCoverage, Limits
from models.tracker.reports.file_coverage import Counts, Files, hit, line_of, path_of, told
from models.tracker.reports.text_cleaning import count
from models.tracker.reports.xml_stream import Reader


class Clover(Reader):
    """`project`, `package` (or none), `file`, `line`. A `testproject` is the code of tests, and does not count."""

    def __init__(self, limits: Limits, sink: Callable[[FileCoverage], None]) -> None:
        super().__init__(limits)
        self._sink = sink
        self._files = Files(limits)
        self._package = ""
        self._path: str | None = None
        self._lines: dict[int, bool] = {}
        self._own: Counts | None = None
        self._own_branches: Counts | None = None
        self.starts = {
            "metrics": self._metrics,
            "package": self._in_package,
            "file": self._file,
            "line": self._line,
        }
        self.ends = {"file": self._finish, "package": self._out_of_package}

    def report(self, digest: str) -> CoverageReport:
        lines, branches = self._files.pour(self._sink)
        return told("Clover", digest, self._own or lines, self._own_branches or branches)

    def _metrics(self, attributes: dict[str, str]) -> None:
        if self.parent == "project":
            self._own = _plus(self._own, attributes, "statements")
            self._own_branches = _plus(self._own_branches, attributes, "conditionals")
        elif self.parent == "file" and self._path is not None and (found := _plus(None, attributes, "conditionals")):
            self._files.branches(self._path, *found, another=False)

    def _in_package(self, attributes: dict[str, str]) -> None:
        self._package = attributes.get("name", "").replace(".", "/")

    def _out_of_package(self) -> None:
        self._package = ""

    def _file(self, attributes: dict[str, str]) -> None:
        if "testproject" in self.path:
            return
        name = path_of(attributes.get("name"))
        if "/" not in name and self._package:
            name = f"{self._package}/{name}"
        self._path = path_of(attributes.get("path")) or name
        self._lines = {}

    def _line(self, attributes: dict[str, str]) -> None:
        """A line of type cond is a statement if it has a count (Istanbul); else its statement stands beside it."""
        get = attributes.get
        number = line_of(get("num"))
        if self._path is None or number is None or get("type") == "method" or "count" not in attributes:
            return
        self._lines[number] = hit(get("count")) or self._lines.get(number, False)

    def _finish(self) -> None:
        if self._path is not None and self._lines:
            self._files.add(self._path, self._lines)
        self._path = None


def _plus(before: Counts | None, attributes: dict[str, str], what: str) -> Counts | None:
    """Covered and missed of `metrics`, added; what it does not say, or what cannot be, changes nothing."""
    valid, covered = count(attributes.get(what)), count(attributes.get(f"covered{what}"))
    if not valid or covered is None or covered > valid:
        return before
    done = before or (0, 0)
    return done[0] + covered, done[1] + valid - covered
