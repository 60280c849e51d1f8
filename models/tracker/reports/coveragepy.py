"""The JSON of coverage.py. Its percentages mix branches in; the lines are counted here."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from models.tracker.reports.base import BadReport, CoverageReport, FileCoverage, Limits, ReportTooLarge
from models.tracker.reports.file_coverage import LAST_LINE, path_of, told
from models.tracker.reports.json_stream import CLOSED, ITEM, OPENED, number, values, whole
from models.tracker.reports.text_cleaning import MOST

_COUNTS = {(f"{how}_{what}",) for how in ("covered", "missing") for what in ("lines", "branches")}


class CoveragePy:
    """`files` by path, and `totals`. The parts of a file (functions, classes) repeat its lines."""

    def __init__(self, limits: Limits, sink: Callable[[FileCoverage], None]) -> None:
        self._limits = limits
        self._sink = sink
        self._seen: set[int] = set()
        self._lines: dict[int, bool] = {}
        self._summary: dict[str, Any] = {}
        self._totals: dict[str, Any] = {}
        self._sum = [0, 0]
        self._known = False

    def read(self, pieces: Iterable[bytes]) -> None:
        for place, value in values(pieces, self._limits):
            self._known |= place in (("files",), ("totals",))
            if place[:1] == ("files",):
                self._file(place[1:], value)
            elif place[:1] == ("totals",) and place[1:] in _COUNTS:
                self._totals[place[1]] = value
        if not self._known:
            raise BadReport("it has neither files nor totals: this is no report of coverage.py")

    def report(self, digest: str) -> CoverageReport:
        line = _pair(self._totals, "lines") or (self._sum[0], self._sum[1])
        return told("coverage.py JSON", digest, line, _pair(self._totals, "branches"))

    def _file(self, place: tuple[str, ...], value: Any) -> None:
        if len(place) == 1 and value is OPENED:
            self._lines, self._summary = {}, {}
        elif len(place) == 1 and value is CLOSED:
            self._finish(path_of(place[0]))
        elif len(place) == 3 and place[2] == ITEM and place[1] in ("executed_lines", "missing_lines"):
            line = number(value)
            if line is not None and 0 <= line <= LAST_LINE:
                self._lines[int(line)] = place[1] == "executed_lines" or self._lines.get(int(line), False)
        elif place[1:2] == ("summary",) and place[2:] in _COUNTS:
            self._summary[place[2]] = value

    def _finish(self, path: str) -> None:
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


def _pair(said: dict[str, Any], what: str) -> tuple[int, int] | None:
    covered, missed = whole(said.get(f"covered_{what}"), MOST), whole(said.get(f"missing_{what}"), MOST)
    return None if covered is None or missed is None else (covered, missed)
