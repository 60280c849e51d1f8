"""Cucumber JSON, which Cucumber for the JVM, JavaScript and Ruby, behave and godog write."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from typing import Any

from models.tracker.reports.base import Case, Limits, TestReport, UnknownFormat
from models.tracker.reports.json_stream import CLOSED, ITEM, OPENED, json_values, number, text
from models.tracker.reports.text_cleaning import Text, bounded_ms
from models.tracker.reports.totals import CaseBuilder, OpenSuite, Severity, TotalsCounter

_FEATURE = (ITEM,)
_SCENARIO = (ITEM, "elements", ITEM)
_STEPS = ("steps", "before", "after")
_STATUSES = {
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
        for place, value in json_values(pieces, self._limits):
            if place[:3] == _SCENARIO:
                self._is_cucumber = True
                self._on_scenario(place[3:], value)
            elif place == _FEATURE:
                self._close_feature()
            elif len(place) == 2 and place[:1] == _FEATURE and text(value):
                self._is_cucumber |= place[1] == "keyword"
                self._feature[place[1]] = value
        self._close_feature()
        if not self._is_cucumber:
            raise UnknownFormat("it has no features with elements")

    def report(self, digest: str) -> TestReport:
        return self._totals.report("Cucumber JSON", digest)

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
        severity = _STATUSES.get((text(get("status")) or "").lower(), Severity.ERROR)
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
        severity = Severity.NONE if status is None else _STATUSES.get(status.lower(), Severity.ERROR)
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
