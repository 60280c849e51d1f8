"""Cucumber JSON, which Cucumber for the JVM, JavaScript and Ruby, behave and godog write."""

from __future__ import annotations

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
    "failed": Severity.FAILED,
    "ambiguous": Severity.FAILED,
    "undefined": Severity.FAILED,
    "pending": Severity.FAILED,
}
"""As Cucumber's exit code: steps that are undefined or pending fail the run."""


class Cucumber:
    """Features and their scenarios, each a test. The steps of a background belong to the scenario after it."""

    def __init__(self, limits: Limits, sink: Callable[[Case], None]) -> None:
        self._limits = limits
        self._totals = TotalsCounter(sink, limits)
        self._suite: OpenSuite | None = None
        self._feature: dict[str, str] = {}
        self._scenario: dict[str, Any] = {}
        self._step: dict[str, Any] = {}
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
        if self._suite:
            self._totals.close(self._suite)
        self._suite, self._feature = None, {}
        self._reset()

    def _reset(self) -> None:
        """Forgets the steps that were read."""
        self._result = CaseBuilder(None, None)
        self._stack = Text(self._limits.output)
        self._steps = 0
        self._nanoseconds = 0.0

    def _on_scenario(self, place: tuple[str, ...], value: Any) -> None:
        if not place and value is OPENED:
            self._scenario = {}
        elif not place and value is CLOSED:
            if self._scenario.get("type") != "background":
                self._add_scenario()
        elif len(place) == 1:
            self._scenario[place[0]] = value
        elif place[0] in _STEPS and place[1] == ITEM:
            if len(place) == 2:
                self._on_step(value, place[0])
            elif place[2] == "result" and len(place) == 4:
                self._step[place[3]] = value
            elif len(place) == 3:
                self._step[place[2]] = value

    def _on_step(self, value: Any, kind: str) -> None:
        if value is OPENED:
            self._step = {}
            return
        get = self._step.get
        severity = _STATUSES.get((text(get("status")) or "").lower(), Severity.ERROR)
        self._nanoseconds += number(get("duration")) or 0
        if kind == "steps":
            self._steps += 1
        if severity > self._result.severity:
            error = text(get("error_message"))
            step = f"{text(get('keyword')) or ''}{text(get('name')) or kind}".strip()
            message = error.strip().split("\n")[0] if error and error.strip() else f"{text(get('status'))}: {step}"
            self._stack = Text(self._limits.output)
            self._stack.add(f"{step}\n{error or ''}")
            self._result.set_result(severity, None, message)

    def _add_scenario(self) -> None:
        feature = self._feature
        if self._suite is None:
            self._suite = self._totals.open(feature.get("name") or feature.get("uri"))
        case, get = self._result, self._scenario.get
        case.class_name, case.name = self._suite.name, text(get("name"))
        case.file = text(feature.get("uri"))
        case.place = f"{feature.get('uri')}:{get('line')}:{get('id')}"
        case.duration_ms = bounded_ms(self._nanoseconds / 1e6)
        if not self._steps and not case.severity:
            case.set_result(Severity.SKIPPED, None, "the scenario has no steps")
        elif case.severity:
            case.stack = self._stack.value
        self._totals.add(self._suite, case)
        self._reset()
