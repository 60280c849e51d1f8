"""SonarQube's generic formats: test executions and coverage."""

from __future__ import annotations

from collections.abc import Callable

from models.tracker.reports.base import Case, CoverageReport, FileCoverage, Limits, TestReport
from models.tracker.reports.file_coverage import CoverageFiles, clean_path, coverage_report, line_number
from models.tracker.reports.json_stream import number
from models.tracker.reports.text_cleaning import bounded_ms, count
from models.tracker.reports.totals import CaseBuilder, OpenSuite, Severity, TotalsCounter
from models.tracker.reports.xml_stream import Attributes, Item, XmlReader, parts

_RESULTS = {"error": Severity.ERROR, "failure": Severity.FAILED, "skipped": Severity.SKIPPED}


class SonarTests(XmlReader):
    """`testExecutions` (before: `unitTest`), `file`, `testCase`. A file is the suite and the class of its tests."""

    parts = {"testCase": frozenset(_RESULTS)}
    texts = frozenset(_RESULTS)

    def __init__(self, limits: Limits, sink: Callable[[Case], None]) -> None:
        super().__init__(limits)
        self._totals = TotalsCounter(sink, limits)
        self._suite: OpenSuite = self._totals.outside
        self.starts = {"file": self._open_file}
        self.ends = {"file": self._close_file}
        self.items = {"testCase": self._case}

    def report(self, format: str, digest: str) -> TestReport:
        return self._totals.report(format, digest)

    def _open_file(self, attributes: Attributes) -> None:
        self._close_file()
        self._suite = self._totals.open(clean_path(attributes.get("path")))

    def _close_file(self) -> None:
        if self._suite is not self._totals.outside:
            self._totals.close(self._suite)
        self._suite = self._totals.outside

    def _case(self, case: Item) -> None:
        builder = CaseBuilder(self._suite.name, case.get("@name"), _milliseconds(case.get("@duration")))
        builder.file = self._suite.name or None
        for name, severity in _RESULTS.items():
            for result in parts(case, name)[:1]:
                builder.set_result(severity, message=result.get("@message"), stack=self.join((result,)))
        self._totals.add(self._suite, builder)


def _milliseconds(text: str | None) -> int | None:
    try:
        length = number(float(text or ""))
    except ValueError:
        return None
    return None if length is None else bounded_ms(length)


class SonarCoverage(XmlReader):
    """`coverage`, `file`, `lineToCover`."""

    def __init__(self, limits: Limits, sink: Callable[[FileCoverage], None]) -> None:
        super().__init__(limits)
        self._files = CoverageFiles(limits, sink)
        self._path: str | None = None
        self._lines: dict[int, bool] = {}
        self._branches: dict[int, tuple[int, int]] = {}
        self.starts = {"file": self._open_file, "lineToCover": self._line}
        self.ends = {"file": self._close_file}

    def report(self, format: str, digest: str) -> CoverageReport:
        return coverage_report(format, digest, *self._files.emit())

    def _open_file(self, attributes: Attributes) -> None:
        self._path = clean_path(attributes.get("path"))
        self._lines, self._branches = {}, {}

    def _line(self, attributes: Attributes) -> None:
        get = attributes.get
        number = line_number(get("lineNumber"))
        if self._path is None or number is None:
            return
        self._lines[number] = get("covered", "").strip().lower() in ("true", "1") or self._lines.get(number, False)
        total, covered = count(get("branchesToCover")), count(get("coveredBranches")) or 0
        if total and covered <= total:
            self._branches[number] = covered, total - covered

    def _close_file(self) -> None:
        if self._path is not None and self._lines:
            self._files.add_lines(self._path, self._lines)
            covered, missed = (sum(counts[index] for counts in self._branches.values()) for index in (0, 1))
            self._files.repeat_branches(self._path, covered, missed)
        self._path = None
