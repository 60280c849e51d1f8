"""CTRF, the Common Test Report Format (ctrf.io)."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from models.tracker.reports.base import Case, Limits, TestReport, UnknownFormat
from models.tracker.reports.json_stream import CLOSED, ITEM, OPENED, count, json_values, number, text
from models.tracker.reports.text_cleaning import MAX_COUNT, Text, bounded_ms
from models.tracker.reports.totals import CaseBuilder, DeclaredCounts, OpenSuite, Severity, TotalsCounter

_TEST = ("results", "tests", ITEM)
_SUMMARY = ("results", "summary")
_MAX_ATTACHMENTS = 100
_COUNTS = {(name,) for name in ("tests", "failed", "skipped", "pending", "other")}
_OUTPUTS = ("trace", "stdout", "stderr")
_FIELDS = ("status", "name", "classname", "filePath", "browser", "message", "type", "duration", "flaky", "retries")
_STATUSES = {
    "passed": Severity.NONE,
    "failed": Severity.FAILED,
    "skipped": Severity.SKIPPED,
    "pending": Severity.SKIPPED,
    "other": Severity.SKIPPED,
}


class Ctrf:
    """`results.tests[]`. `results.summary` counts only where there is no test."""

    def __init__(self, limits: Limits, sink: Callable[[Case], None]) -> None:
        self._limits = limits
        self._totals = TotalsCounter(sink, limits)
        self._whole: OpenSuite = self._totals.open("", listed=False)
        self._test: dict[str, Any] = {}
        self._suite: list[str] = []
        self._attachments: list[str] = []
        self._outputs: dict[str, Text] = {}
        self._summary: dict[str, Any] = {}
        self._is_ctrf = False

    def read(self, pieces: Iterable[bytes]) -> None:
        for place, value in json_values(pieces, self._limits):
            if place[:3] == _TEST:
                self._read_test(place[3:], value)
            elif place[:2] == _SUMMARY:
                self._is_ctrf = True
                if place[2:] in _COUNTS:
                    self._summary[place[2]] = value
        if not self._is_ctrf:
            raise UnknownFormat("it has neither results.tests nor results.summary")

    def report(self, digest: str) -> TestReport:
        declared = {name: count(value, MAX_COUNT) for name, value in self._summary.items()}
        skipped = sum(declared.get(name) or 0 for name in ("skipped", "pending", "other"))
        self._whole.declared = DeclaredCounts(declared.get("tests"), declared.get("failed"), None, skipped)
        self._totals.close(self._whole)
        return self._totals.report("CTRF", digest)

    def _read_test(self, place: tuple[str, ...], value: Any) -> None:
        if not place:
            self._is_ctrf = True
            if value is OPENED:
                self._test, self._suite, self._outputs, self._attachments = {}, [], {}, []
            elif value is CLOSED:
                self._add_test()
        elif len(place) == 1 and place[0] in _FIELDS:
            self._test[place[0]] = value
        elif place[0] == "suite" and text(value) and len(self._suite) < 100:
            self._suite.append(value)
        elif place[0] == "attachments" and place[2:] == ("path",) and text(value):
            if len(self._attachments) < _MAX_ATTACHMENTS:
                self._attachments.append(value)
        elif place[0] in _OUTPUTS and text(value):
            output = self._outputs.setdefault(place[0], Text(self._limits.output))
            output.add(value if value.endswith("\n") else value + "\n")

    def _add_test(self) -> None:
        get = self._test.get
        length = number(get("duration"))
        class_name = text(get("classname"))
        if class_name is None:
            class_name = " > ".join(self._suite) or None
        builder = CaseBuilder(class_name, text(get("name")), None if length is None else bounded_ms(length))
        # a test of one name is another one in each file and browser
        builder.file = text(get("filePath")) or None
        builder.place = "\n".join(filter(None, (builder.file, text(get("browser")))))
        severity = _STATUSES.get((text(get("status")) or "").lower(), Severity.ERROR)
        outputs = [output.value if (output := self._outputs.get(name)) else None for name in _OUTPUTS]
        builder.severity = severity
        builder.type, builder.message = text(get("type")), text(get("message"))
        builder.stack, builder.out, builder.err = outputs
        builder.flaky = get("flaky") is True
        builder.reruns = count(get("retries"), 1000) or 0
        builder.attachments = self._attachments
        self._totals.add(self._whole, builder)
