"""The JSON of Playwright Test: suites, which are files and groups, their specs, and a test for each project."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from models.tracker.reports.base import Case, Limits, TestReport, UnknownFormat
from models.tracker.reports.file_coverage import clean_path
from models.tracker.reports.json_stream import CLOSED, ITEM, OPENED, count, json_values, number, text
from models.tracker.reports.text_cleaning import MAX_COUNT, Text, bounded_ms, without_colours
from models.tracker.reports.totals import CaseBuilder, DeclaredCounts, OpenSuite, Severity, TotalsCounter

_Place = tuple[str, ...]
_SUITE, _SPEC, _TEST, _RESULT = ("suites", ITEM), ("specs", ITEM), ("tests", ITEM), ("results", ITEM)
_STATUSES = {
    "expected": Severity.NONE,
    "flaky": Severity.NONE,
    "skipped": Severity.SKIPPED,
    "unexpected": Severity.FAILED,
}
_STATS = {("stats", name) for name in ("expected", "skipped", "unexpected", "flaky")}
_RESULT_FIELDS = {("status",), ("duration",), ("error", "message"), ("error", "stack")}
_MAX_ATTACHMENTS = 100
_MAX_ERRORS = 1000


class Playwright:
    """A test is a spec in a project; its results are its attempts. An error of the run itself is an error each."""

    def __init__(self, limits: Limits, sink: Callable[[Case], None]) -> None:
        self._limits = limits
        self._totals = TotalsCounter(sink, limits)
        self._whole: OpenSuite = self._totals.open("", listed=False)
        self._stats: dict[str, Any] = {}
        self._suites: dict[tuple[str, str], OpenSuite] = {}
        self._titles: list[str] = []
        self._file = self._spec = ""
        self._test: dict[str, Any] = {}
        self._results = 0
        self._milliseconds = 0.0
        self._result: dict[str, Any] = {}
        self._failure: dict[str, Any] = {}
        self._outputs: dict[str, Text] = {}
        self._attachments: list[str] = []
        self._errors = 0
        self._is_playwright = False

    def read(self, pieces: Iterable[bytes]) -> None:
        for place, value in json_values(pieces, self._limits):
            if place[:2] == _SUITE:
                self._read_suite(place, value)
            elif place == ("config", "rootDir"):
                self._is_playwright = True
            elif place in _STATS:
                self._is_playwright |= place[1] == "expected"
                self._stats[place[1]] = value
            elif place == ("errors", ITEM, "message") and text(value) and self._errors < _MAX_ERRORS:
                self._errors += 1
                self._add_error(value)
        if not self._is_playwright:
            raise UnknownFormat("it has no suites with specs")
        for suite in self._suites.values():
            self._totals.close(suite)

    def report(self, format: str, digest: str) -> TestReport:
        counts = {name: count(value, MAX_COUNT) or 0 for name, value in self._stats.items()}
        skipped, failed = counts.get("skipped"), counts.get("unexpected")
        self._whole.declared = DeclaredCounts(sum(counts.values()), failed, None, skipped)
        self._totals.close(self._whole)
        return self._totals.report(format, digest)

    def _read_suite(self, place: _Place, value: Any) -> None:
        depth = 1
        while place[2 * depth : 2 * depth + 2] == _SUITE:
            depth += 1
        inside = place[2 * depth :]
        if not inside and value is OPENED:
            del self._titles[depth - 1 :]
            self._titles.append("")
        elif inside == ("title",):
            self._titles[depth - 1] = text(value) or ""
        elif inside == ("file",):
            self._file = clean_path(text(value))
        elif inside[:2] == _SPEC:
            self._is_playwright = True
            self._read_spec(inside[2:], value)

    def _read_spec(self, place: _Place, value: Any) -> None:
        if place == ("title",):
            self._spec = text(value) or ""
        elif place[:2] != _TEST:
            return
        elif place == _TEST:
            if value is OPENED:
                self._test, self._results, self._milliseconds = {}, 0, 0.0
                self._result, self._failure, self._outputs, self._attachments = {}, {}, {}, []
            elif value is CLOSED:
                self._add_test()
        elif place[2:4] == _RESULT:
            self._read_result(place[4:], value)
        elif place[2:] in (("status",), ("projectName",)):
            self._test[place[2]] = value

    def _read_result(self, place: _Place, value: Any) -> None:
        if not place and value is OPENED:
            self._result = {}
            self._results += 1
        elif not place and value is CLOSED:
            self._milliseconds += number(self._result.get("duration")) or 0
            if {"error/message", "error/stack"} & self._result.keys():
                self._failure = self._result
        elif place[:1] in (("stdout",), ("stderr",)) and place[2:] == ("text",) and text(value):
            self._outputs.setdefault(place[0], Text(self._limits.output)).add(value)
        elif place[:1] == ("attachments",) and place[2:] == ("path",) and text(value):
            if len(self._attachments) < _MAX_ATTACHMENTS:
                self._attachments.append(value)
        elif place in _RESULT_FIELDS:
            self._result["/".join(place)] = value

    def _add_test(self) -> None:
        get, project = self._test.get, text(self._test.get("projectName")) or ""
        class_name = " > ".join(filter(None, self._titles))
        builder = CaseBuilder(class_name, self._spec, bounded_ms(self._milliseconds) if self._results else None)
        builder.file, builder.place = self._file or None, f"{self._file}\n{project}"
        status = text(get("status")) or ""
        severity = _STATUSES.get(status, Severity.ERROR)
        builder.flaky, builder.reruns = status == "flaky", max(0, self._results - 1)
        message, stack = (
            without_colours(text(self._failure.get(f"error/{name}")) or "") or None for name in ("message", "stack")
        )
        if severity >= Severity.FAILED:
            builder.set_result(severity, None, message or text(self._result.get("status")), stack or message)
        elif severity:
            builder.set_result(severity)
        builder.out, builder.err = (
            output.value if (output := self._outputs.get(name)) else None for name in ("stdout", "stderr")
        )
        builder.attachments = self._attachments
        self._totals.add(self._suite(project), builder)

    def _suite(self, project: str) -> OpenSuite:
        """The suite of the file in a project: a test that fails in one browser only is distinguished by it."""
        suite = self._suites.get((self._file, project))
        if suite is None:
            name = f"{self._file} [{project}]" if project else self._file
            suite = self._suites[self._file, project] = self._totals.open(name, self._whole)
        return suite

    def _add_error(self, message: str) -> None:
        message = without_colours(message)
        builder = CaseBuilder("", f"(run {self._errors})" if self._errors > 1 else "(run)")
        builder.set_result(Severity.ERROR, message=message.strip().split("\n")[0], stack=message)
        self._totals.add(self._totals.outside, builder)
