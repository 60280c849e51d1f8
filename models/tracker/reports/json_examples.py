"""Test reports in JSON of Jest, Vitest and RSpec: files or examples with their results."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import PurePosixPath
from typing import Any

from models.tracker.reports.base import Case, Limits, TestReport, UnknownFormat
from models.tracker.reports.file_coverage import clean_path
from models.tracker.reports.json_stream import (
    CLOSED,
    ITEM,
    MAX_COVERAGE_NODES,
    OPENED,
    count,
    json_values,
    number,
    text,
)
from models.tracker.reports.text_cleaning import MAX_COUNT, Text, bounded_ms, without_colours
from models.tracker.reports.totals import CaseBuilder, DeclaredCounts, OpenSuite, Severity, TotalsCounter

_Place = tuple[str, ...]

_FILE = ("testResults", ITEM)
_TEST = (*_FILE, "assertionResults", ITEM)
_JEST_STATUSES = {
    "passed": Severity.NONE,
    "failed": Severity.FAILED,
    "skipped": Severity.SKIPPED,
    "pending": Severity.SKIPPED,
    "todo": Severity.SKIPPED,
    "disabled": Severity.SKIPPED,
}
_COUNTS = {(f"num{what}Tests",) for what in ("Total", "Failed", "Pending", "Todo")}
_TEST_FIELDS = ("title", "status", "duration", "invocations")
_MAX_TITLES = 100
_MAX_WAITING = 10_000
_MAX_WAITING_CHARACTERS = 8 * 1024 * 1024


class Jest:
    """`testResults[]`, the files, and their `assertionResults[]`. Jest and Vitest write it.

    The name of a file follows its tests, which wait for it. A file that failed without a failed test (it does not
    compile, an `afterAll` failed) is an error, and so is a run that did not succeed and has no failed test at all.
    """

    def __init__(self, limits: Limits, sink: Callable[[Case], None]) -> None:
        self._limits = limits
        self._totals = TotalsCounter(sink, limits)
        self._whole: OpenSuite = self._totals.open("", listed=False)
        self._counts: dict[str, Any] = {}
        self._file: dict[str, Any] = {}
        self._suite: OpenSuite | None = None
        self._test: dict[str, Any] = {}
        self._titles: list[str] = []
        self._messages = Text(limits.output)
        self._message: str | None = None
        self._waiting: list[tuple[CaseBuilder, str]] = []
        self._waiting_characters = 0
        self._has_failed = False
        """Whether a test of the file failed."""
        self._is_jest = False

    def read(self, pieces: Iterable[bytes]) -> None:
        for place, value in json_values(pieces, self._limits, MAX_COVERAGE_NODES):  # it may have coverage too
            if place[:4] == _TEST:
                self._read_test(place[4:], value)
            elif place == _FILE:
                self._is_jest = True
                if value is CLOSED:
                    self._close_file()
            elif place[:2] == _FILE and len(place) == 3 and place[2] in ("name", "testFilePath", "message", "status"):
                self._file[place[2]] = value
            elif place in _COUNTS or place == ("success",):
                self._is_jest = True
                self._counts[place[0]] = value
        if not self._is_jest:
            raise UnknownFormat("it has no testResults with files")
        if self._counts.get("success") is False and not self._totals.has_failures(self._whole):
            self._add_run_error()

    def report(self, format: str, digest: str) -> TestReport:
        tests, failed, pending, todo = (
            count(self._counts.get(f"num{what}Tests"), MAX_COUNT) for what in ("Total", "Failed", "Pending", "Todo")
        )
        self._whole.declared = DeclaredCounts(tests, failed, None, (pending or 0) + (todo or 0))
        self._totals.close(self._whole)
        return self._totals.report(format, digest)

    def _read_test(self, place: _Place, value: Any) -> None:
        if not place:
            if value is OPENED:
                self._test, self._titles = {}, []
                self._messages, self._message = Text(self._limits.output), None
            elif value is CLOSED:
                self._wait()
        elif len(place) == 1 and place[0] in _TEST_FIELDS:
            self._test[place[0]] = value
        elif place == ("ancestorTitles", ITEM) and text(value) and len(self._titles) < _MAX_TITLES:
            self._titles.append(value)
        elif place == ("failureMessages", ITEM) and text(value):
            value = without_colours(value)
            self._message = self._message or value.strip().split("\n")[0]
            self._messages.add(value if value.endswith("\n") else value + "\n")

    def _wait(self) -> None:
        """Builds a test, which waits for the name of its file."""
        get = self._test.get
        length = number(get("duration"))
        builder = CaseBuilder(None, text(get("title")), None if length is None else bounded_ms(length))
        severity = _JEST_STATUSES.get((text(get("status")) or "").lower(), Severity.ERROR)
        runs = count(get("invocations"), 1000) or 1
        if severity is Severity.NONE:
            builder.flaky = runs > 1 or self._messages.size > 0
        builder.reruns = max(runs - 1, int(builder.flaky))
        if severity:
            builder.set_result(severity, None, self._message, self._messages.value)
        self._has_failed |= severity >= Severity.FAILED
        self._waiting.append((builder, " > ".join(self._titles)))
        self._waiting_characters += self._messages.size
        if len(self._waiting) > _MAX_WAITING or self._waiting_characters > _MAX_WAITING_CHARACTERS:
            self._flush()

    def _flush(self) -> OpenSuite:
        name = clean_path(text(self._file.get("name")) or text(self._file.get("testFilePath")))
        suite = self._suite = self._suite or self._totals.open(name, self._whole)
        for builder, titles in self._waiting:
            builder.class_name = " > ".join(filter(None, (PurePosixPath(name).name, titles)))
            builder.file = builder.place = name or None
            self._totals.add(suite, builder)
        self._waiting, self._waiting_characters = [], 0
        return suite

    def _close_file(self) -> None:
        suite = self._flush()
        if self._file.get("status") == "failed" and not self._has_failed:
            message = without_colours(text(self._file.get("message")) or "").strip()
            builder = CaseBuilder(PurePosixPath(suite.name).name, "(suite)")
            builder.file = builder.place = suite.name or None
            stack = Text(self._limits.output)
            stack.add(message)
            builder.set_result(Severity.ERROR, None, message.split("\n")[0] or "the file failed", stack.value)
            self._totals.add(suite, builder)
        self._totals.close(suite)
        self._suite, self._file, self._has_failed = None, {}, False

    def _add_run_error(self) -> None:
        builder = CaseBuilder("", "(run)")
        builder.set_result(Severity.ERROR, message="the run did not succeed, and no test failed")
        self._totals.add(self._whole, builder)


_RSPEC_STATUSES = {"passed": Severity.NONE, "failed": Severity.FAILED, "pending": Severity.SKIPPED}
_EXAMPLE = ("examples", ITEM)
_EXAMPLE_FIELDS = {"id", "description", "full_description", "status", "file_path", "line_number", "run_time",
                   "pending_message", "exception/class", "exception/message"}  # fmt: skip
_RSPEC_COUNTS = {
    ("summary", f"{what}_count") for what in ("example", "failure", "pending", "errors_outside_of_examples")
}
_MAX_MESSAGES = 100


class RSpec:
    """`examples[]`; an error outside of examples (a file that does not load, a broken hook) is an error each."""

    def __init__(self, limits: Limits, sink: Callable[[Case], None]) -> None:
        self._limits = limits
        self._totals = TotalsCounter(sink, limits)
        self._whole: OpenSuite = self._totals.open("", listed=False)
        self._suites: dict[str, OpenSuite] = {}
        self._example: dict[str, Any] = {}
        self._backtrace = Text(limits.output)
        self._messages: list[str] = []
        self._summary: dict[str, Any] = {}
        self._is_rspec = False

    def read(self, pieces: Iterable[bytes]) -> None:
        for place, value in json_values(pieces, self._limits):
            if place[:2] == _EXAMPLE:
                self._is_rspec = True
                self._read_example(place[2:], value)
            elif place in _RSPEC_COUNTS:
                self._is_rspec |= place[1] == "example_count"
                self._summary[place[1]] = value
            elif place == ("messages", ITEM) and text(value) and len(self._messages) < _MAX_MESSAGES:
                self._messages.append(value)
        if not self._is_rspec:
            raise UnknownFormat("it has neither examples nor their summary")
        for suite in self._suites.values():
            self._totals.close(suite)

    def report(self, format: str, digest: str) -> TestReport:
        examples, failed, pending = (
            count(self._summary.get(f"{what}_count"), MAX_COUNT) for what in ("example", "failure", "pending")
        )
        self._whole.declared = DeclaredCounts(examples, failed, None, pending)
        self._totals.close(self._whole)
        outside = count(self._summary.get("errors_outside_of_examples_count"), 1000) or 0
        errors = [message for message in self._messages if "error occurred" in message.lower()]
        for place in range(outside):
            message = errors[place].strip() if place < len(errors) else "an error occurred outside of examples"
            builder = CaseBuilder("", f"(outside of examples {place + 1})" if place else "(outside of examples)")
            lines = message.split("\n")
            builder.set_result(Severity.ERROR, message=" ".join(line.strip() for line in lines[:2]), stack=message)
            self._totals.add(self._totals.outside, builder)
        return self._totals.report(format, digest)

    def _read_example(self, place: _Place, value: Any) -> None:
        if not place and value is OPENED:
            self._example, self._backtrace = {}, Text(self._limits.output)
        elif not place and value is CLOSED:
            self._add_example()
        elif place == ("exception", "backtrace", ITEM) and text(value):
            self._backtrace.add(value + "\n")
        elif (name := "/".join(place)) in _EXAMPLE_FIELDS:
            self._example[name] = value

    def _add_example(self) -> None:
        get = self._example.get
        file = clean_path(text(get("file_path"))).removeprefix("./")
        seconds = number(get("run_time"))
        name = text(get("full_description")) or text(get("description"))
        class_name = file.removesuffix(".rb").replace("/", ".")  # as RspecJunitFormatter names it
        builder = CaseBuilder(class_name, name, None if seconds is None else bounded_ms(seconds * 1000))
        builder.file, builder.place = file or None, text(get("id")) or f"{file}:{get('line_number')}"
        severity = _RSPEC_STATUSES.get(text(get("status")) or "", Severity.ERROR)
        message = without_colours(text(get("exception/message")) or "") or text(get("pending_message"))
        stack = "\n".join(filter(None, (message, self._backtrace.value)))
        if severity:
            builder.set_result(severity, text(get("exception/class")), message, stack or None)
        suite = self._suites.get(file)
        if suite is None:
            suite = self._suites[file] = self._totals.open(file, self._whole)
        self._totals.add(suite, builder)
