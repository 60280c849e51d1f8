"""Test reports in JSON: CTRF (the Common Test Report Format, ctrf.io) and Cucumber."""

from __future__ import annotations

import re
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
_CTRF_STATUSES = {
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

    def report(self, format: str, digest: str) -> TestReport:
        declared = {name: count(value, MAX_COUNT) for name, value in self._summary.items()}
        skipped = sum(declared.get(name) or 0 for name in ("skipped", "pending", "other"))
        self._whole.declared = DeclaredCounts(declared.get("tests"), declared.get("failed"), None, skipped)
        self._totals.close(self._whole)
        return self._totals.report(format, digest)

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
        severity = _CTRF_STATUSES.get((text(get("status")) or "").lower(), Severity.ERROR)
        outputs = [output.value if (output := self._outputs.get(name)) else None for name in _OUTPUTS]
        builder.severity = severity
        builder.type, builder.message = text(get("type")), text(get("message"))
        builder.stack, builder.out, builder.err = outputs
        builder.flaky = get("flaky") is True
        builder.reruns = count(get("retries"), 1000) or 0
        builder.attachments = self._attachments
        self._totals.add(self._whole, builder)


_FEATURE = (ITEM,)
_SCENARIO = (ITEM, "elements", ITEM)
_STEPS = ("steps", "before", "after")
_CUCUMBER_STATUSES = {
    "passed": Severity.NONE,
    "skipped": Severity.SKIPPED,
    "untested": Severity.SKIPPED,
    "failed": Severity.FAILED,
    "ambiguous": Severity.FAILED,
    "undefined": Severity.FAILED,
    "pending": Severity.FAILED,
}
"""As Cucumber's exit code: steps that are undefined or pending fail the run."""

_LINE = re.compile(r":\d+$")
_MAX_WAITING = 10_000
_MAX_WAITING_CHARACTERS = 8 * 1024 * 1024


class Cucumber:
    """Features and their scenarios, each a test. The steps of a background belong to the scenario after it.

    Cucumber for the JVM, JavaScript and Ruby, behave and godog write it.
    Cucumber for JavaScript writes the name of a feature behind its scenarios, which wait for it. behave has seconds for
    nanoseconds, and no result for a step that did not run.
    """

    def __init__(self, limits: Limits, sink: Callable[[Case], None]) -> None:
        self._limits = limits
        self._totals = TotalsCounter(sink, limits)
        self._suite: OpenSuite | None = None
        self._feature: dict[str, str] = {}
        self._scenario: dict[str, Any] = {}
        self._step: dict[str, Any] = {}
        self._hook: dict[str, Any] = {}
        self._waiting: list[CaseBuilder] = []
        self._waiting_characters = 0
        self._is_cucumber = False
        self._reset()

    def read(self, pieces: Iterable[bytes]) -> None:
        has_values = False
        for place, value in json_values(pieces, self._limits):
            has_values = True
            if place[:3] == _SCENARIO:
                self._is_cucumber = True
                self._on_scenario(place[3:], value)
            elif place == _FEATURE:
                self._close_feature()
            elif len(place) == 2 and place[:1] == _FEATURE and text(value):
                self._is_cucumber |= place[1] == "keyword"
                self._feature[place[1]] = value
        self._close_feature()
        if not self._is_cucumber and has_values:
            raise UnknownFormat("it has no features with elements")

    def report(self, format: str, digest: str) -> TestReport:
        return self._totals.report(format, digest)

    def _close_feature(self) -> None:
        self._flush()
        if self._suite:
            self._totals.close(self._suite)
        self._suite, self._feature = None, {}
        self._reset()

    def _reset(self) -> None:
        """Forgets the steps that were read."""
        self._result = CaseBuilder(None, None)
        self._stack = Text(self._limits.output)
        self._steps = 0
        self._not_run = ""
        """The first step without a result."""
        self._nanoseconds = 0.0

    def _on_scenario(self, place: tuple[str, ...], value: Any) -> None:
        if not place and value is OPENED:
            self._scenario = {}
        elif not place and value is CLOSED:
            if self._scenario.get("type") == "background":
                self._not_run = ""  # behave repeats the steps, with their results, in each scenario
            else:
                self._add_scenario()
        elif len(place) == 1:
            self._scenario[place[0]] = value
        elif place[0] in _STEPS and place[1] == ITEM:
            if len(place) > 3 and place[2] in ("before", "after"):  # the hooks of a step
                self._hook = self._field(self._hook, place[4:], value)
                if len(place) == 4 and value is CLOSED:
                    self._judge(self._hook, f"{place[2]} a step")
            else:
                self._step = self._field(self._step, place[2:], value)
                if len(place) == 2 and value is CLOSED:
                    self._on_step(place[0])

    def _field(self, step: dict[str, Any], place: tuple[str, ...], value: Any) -> dict[str, Any]:
        """Reads a value of a step or a hook. Returns the fields of that step, with those of its result."""
        if not place:
            return {} if value is OPENED else step
        if place[0] == "result" and place[1:2] == ("error_message",):
            lines = step.get("error_message")
            step["error_message"] = f"{lines}\n{value}" if lines and text(value) else value
        elif len(place) == 1 or (place[0] == "result" and len(place) == 2):
            step[place[-1]] = value
        return step

    def _on_step(self, kind: str) -> None:
        if kind == "steps" and "result" not in self._step:
            self._not_run = self._not_run or _title(self._step, kind)
            return
        self._steps += kind == "steps"
        self._judge(self._step, kind)

    def _judge(self, step: dict[str, Any], kind: str) -> None:
        get = step.get
        severity = _CUCUMBER_STATUSES.get((text(get("status")) or "").lower(), Severity.ERROR)
        self._nanoseconds += (number(get("duration")) or 0) * (1e9 if "step_type" in step else 1)
        if severity > self._result.severity:
            error, title = text(get("error_message")), _title(step, kind)
            message = error.strip().split("\n")[0] if error and error.strip() else f"{text(get('status'))}: {title}"
            self._stack = Text(self._limits.output)
            self._stack.add(f"{title}\n{error or ''}")
            self._result.set_result(severity, None, message)

    def _add_scenario(self) -> None:
        case, get = self._result, self._scenario.get
        case.name = text(get("name"))
        case.place = f"{get('line') or text(get('location'))}:{get('id')}"
        case.duration_ms = bounded_ms(self._nanoseconds / 1e6)
        status = text(get("status"))  # of behave
        severity = Severity.NONE if status is None else _CUCUMBER_STATUSES.get(status.lower(), Severity.ERROR)
        if severity > case.severity and case.severity < Severity.FAILED:
            case.set_result(severity, None, f"{status}: {self._not_run}" if self._not_run else status)
        elif not case.severity and self._not_run and self._steps:
            case.set_result(Severity.ERROR, None, f"not run: {self._not_run}")
        elif not case.severity and not self._steps:
            case.set_result(Severity.SKIPPED, None, "no step was run" if self._not_run else "the scenario has no steps")
        if case.severity and self._stack.size:
            case.stack = self._stack.value
        self._waiting.append(case)
        self._waiting_characters += self._stack.size
        if len(self._waiting) > _MAX_WAITING or self._waiting_characters > _MAX_WAITING_CHARACTERS:
            self._flush()
        self._reset()

    def _flush(self) -> None:
        """Counts the scenarios that waited for the name of their feature."""
        feature, waiting = self._feature, self._waiting
        if not waiting:
            return
        if self._suite is None:
            self._suite = self._totals.open(feature.get("name") or feature.get("uri"))
        file = feature.get("uri") or _LINE.sub("", feature.get("location", ""))
        for case in waiting:
            case.class_name, case.file = self._suite.name, file or None
            case.place = f"{file}:{case.place}"
            self._totals.add(self._suite, case)
        self._waiting, self._waiting_characters = [], 0


def _title(step: dict[str, Any], kind: str) -> str:
    keyword, name = ((text(step.get(name)) or "").strip() for name in ("keyword", "name"))
    return " ".join(part for part in (keyword, name) if part) or kind
