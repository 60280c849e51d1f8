"""Cobertura XML, which coverage.py, Istanbul, Coverlet, gcovr and others write too."""

from __future__ import annotations

import re
from collections.abc import Callable

from models.tracker.reports.base import CoverageReport, FileCoverage, Limits
from models.tracker.reports.file_coverage import Counts, Files, hit, line_of, path_of, told
from models.tracker.reports.text_cleaning import count
from models.tracker.reports.xml_stream import Reader

_CONDITION = re.compile(r"\(\s*(\d{1,9})\s*/\s*(\d{1,9})\s*\)", re.ASCII)


class Cobertura(Reader):
    """`class` elements, of which several may be of one file. The root's counts are the total.

    A class repeats the lines of its methods; only where it does not, its methods' lines are taken.
    """

    def __init__(self, limits: Limits, sink: Callable[[FileCoverage], None]) -> None:
        super().__init__(limits)
        self._sink = sink
        self._files = Files(limits)
        self._path: str | None = None
        self._lines: dict[int, bool] = {}
        self._in_methods: dict[int, bool] = {}
        self._branches: dict[int, Counts] = {}
        self._own: dict[str, int | None] = {}
        self.starts = {"coverage": self._root, "class": self._class, "line": self._line}
        self.ends = {"class": self._finish}

    def report(self, digest: str) -> CoverageReport:
        lines, branches = self._files.pour(self._sink)
        return told("Cobertura", digest, self._total("lines") or lines, self._total("branches") or branches)

    def _total(self, what: str) -> Counts | None:
        """What the root says, unless that is nothing or cannot be."""
        covered, valid = self._own.get(f"{what}-covered"), self._own.get(f"{what}-valid")
        if covered is None or not valid or covered > valid:
            return None
        return covered, valid - covered

    def _root(self, attributes: dict[str, str]) -> None:
        if len(self.path) == 1:
            self._own = {name: count(value) for name, value in attributes.items()}

    def _class(self, attributes: dict[str, str]) -> None:
        self._path = path_of(attributes.get("filename") or attributes.get("name"))
        self._lines, self._in_methods, self._branches = {}, {}, {}

    def _line(self, attributes: dict[str, str]) -> None:
        number = line_of(attributes.get("number"))
        if self._path is None or number is None:
            return
        lines = self._in_methods if "method" in self.path else self._lines
        lines[number] = hit(attributes.get("hits")) or lines.get(number, False)
        condition = attributes.get("condition-coverage")
        if condition and (found := _CONDITION.search(condition)):
            covered, valid = int(found[1]), int(found[2])
            self._branches[number] = max(self._branches.get(number, (0, 0)), (covered, max(0, valid - covered)))

    def _finish(self) -> None:
        lines = self._lines or self._in_methods
        if self._path is not None and lines:
            self._files.add(self._path, lines)
            branches = [counts for line, counts in self._branches.items() if line in lines]
            covered, missed = (sum(counts[at] for counts in branches) for at in (0, 1))
            self._files.branches(self._path, covered, missed, another=True)
        self._path = None
