"""CTRF, the Common Test Report Format (ctrf.io)."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from models.tracker.reports.base import BadReport, Case, Limits, TestReport
from models.tracker.reports.case_builder import Draft, Weight
from models.tracker.reports.json_stream import CLOSED, ITEM, OPENED, number, text, values, whole
from models.tracker.reports.text_cleaning import MOST, Text, bounded_ms
from models.tracker.reports.totals import Declared, Frame, Tally

_TEST = ("results", "tests", ITEM)
_SUMMARY = ("results", "summary")
_COUNTS = {(name,) for name in ("tests", "failed", "skipped", "pending", "other")}
_STATUSES = {
    "passed": Weight.NOTHING,
    "failed": Weight.FAILED,
    "skipped": Weight.SKIPPED,
    "pending": Weight.SKIPPED,
    "other": Weight.SKIPPED,
}


class Ctrf:
    """`results.tests[]`; `results.summary` counts only where that is empty."""

    def __init__(self, limits: Limits, sink: Callable[[Case], None]) -> None:
        self._limits = limits
        self._tally = Tally(sink, limits)
        self._frame: Frame = self._tally.open("", listed=False)
        self._draft = Draft(None, None)
        self._suite: list[str] = []
        self._summary: dict[str, Any] = {}
        self._seen = False

    def read(self, pieces: Iterable[bytes]) -> None:
        for place, value in values(pieces, self._limits):
            if place[:3] == _TEST:
                self._test(place[3:], value)
            elif place[:2] == _SUMMARY:
                self._seen = True
                if place[2:] in _COUNTS:
                    self._summary[place[2]] = value
        if not self._seen:
            raise BadReport("it has neither results.tests nor results.summary: this is no CTRF report")

    def report(self, digest: str) -> TestReport:
        said = {name: whole(value, MOST) for name, value in self._summary.items()}
        skipped = sum(said.get(name) or 0 for name in ("skipped", "pending", "other"))
        self._frame.declared = Declared(said.get("tests"), said.get("failed"), None, skipped)
        self._tally.close(self._frame)
        return self._tally.report("CTRF", digest)

    def _test(self, place: tuple[str, ...], value: Any) -> None:
        if not place:
            self._seen = True
            if value is OPENED:
                self._draft = Draft(None, None)
                self._draft.weight = Weight.ERROR  # unless it says what became of it
                self._suite = []
            elif value is CLOSED:
                self._finish()
            return
        name = place[0]
        if len(place) == 1 and name in _FIELDS:
            _FIELDS[name](self._draft, value)
        elif name == "suite" and text(value) and len(self._suite) < 100:
            self._suite.append(value)
        elif name in ("stdout", "stderr") and text(value):
            self._output(name == "stderr", value)
        elif name == "trace" and len(place) == 1 and text(value):
            self._draft.stack = self._draft.stack or Text(self._limits.output)
            self._draft.stack.add(value)

    def _finish(self) -> None:
        draft = self._draft
        if draft.class_name is None:
            draft.class_name = " > ".join(self._suite) or None
        self._tally.add(self._frame, draft)

    def _output(self, err: bool, line: str) -> None:
        draft = self._draft
        if err:
            kept = draft.err = draft.err or Text(self._limits.output)
        else:
            kept = draft.out = draft.out or Text(self._limits.output)
        kept.add(line if line.endswith("\n") else line + "\n")


def _status(draft: Draft, value: object) -> None:
    draft.weight = _STATUSES.get((text(value) or "").lower(), Weight.ERROR)


def _name(draft: Draft, value: object) -> None:
    draft.name = text(value)


def _class(draft: Draft, value: object) -> None:
    draft.class_name = text(value)


def _place(draft: Draft, value: object) -> None:
    """A file, or a browser: a test of one name is another one in each."""
    if told := text(value):
        draft.place = f"{draft.place or ''}\n{told}"


def _message(draft: Draft, value: object) -> None:
    draft.message = text(value)


def _kind(draft: Draft, value: object) -> None:
    draft.kind = text(value)


def _duration(draft: Draft, value: object) -> None:
    length = number(value)
    draft.duration_ms = None if length is None else bounded_ms(length)


def _flaky(draft: Draft, value: object) -> None:
    draft.flaky = value is True


def _retries(draft: Draft, value: object) -> None:
    draft.reruns = whole(value, 1000) or 0


_FIELDS: dict[str, Callable[[Draft, object], None]] = {
    "status": _status,
    "name": _name,
    "classname": _class,
    "filePath": _place,
    "browser": _place,
    "message": _message,
    "duration": _duration,
    "flaky": _flaky,
    "retries": _retries,
}
