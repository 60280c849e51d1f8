"""TRX, the results of Visual Studio and `dotnet test`.

The class of a test stands in its definition, which comes after the results: the file is read twice.
"""

from __future__ import annotations

from collections.abc import Callable

from models.tracker.reports.base import Case, Limits, ReportTooLarge, TestReport
from models.tracker.reports.case_builder import Draft, Weight
from models.tracker.reports.text_cleaning import Text, count, duration_ms
from models.tracker.reports.totals import Declared, Tally
from models.tracker.reports.xml_stream import Reader

_RESULTS = ("UnitTestResult", "GenericTestResult", "ManualTestResult", "TestResultAggregation", "WebTestResult")
_OUTCOMES = {
    "passed": Weight.NOTHING,
    "passedbutrunaborted": Weight.NOTHING,
    "warning": Weight.NOTHING,
    "completed": Weight.NOTHING,
    "failed": Weight.FAILED,
    "notexecuted": Weight.SKIPPED,
    "notrunnable": Weight.SKIPPED,
    "inconclusive": Weight.SKIPPED,
    "pending": Weight.SKIPPED,
}
"""Whatever else (Error, Timeout, Aborted, InProgress, no outcome at all) is an error: it did not end well."""

_BROKEN = ("error", "timeout", "aborted", "disconnected", "inProgress")
_UNRUN = ("notExecuted", "notRunnable", "inconclusive", "pending")
"""Counters of these outcomes."""


class Definitions(Reader):
    """The classes of the tests, by their ids."""

    def __init__(self, limits: Limits) -> None:
        super().__init__(limits)
        self.classes: dict[str, str] = {}
        self._names: dict[str, str] = {}
        self._id = ""
        self.starts = {"UnitTest": self._test, "TestMethod": self._method}

    def _test(self, attributes: dict[str, str]) -> None:
        self._id = attributes.get("id", "")

    def _method(self, attributes: dict[str, str]) -> None:
        if len(self.classes) >= self.limits.tests:
            raise ReportTooLarge(f"it has more than {self.limits.tests} tests")
        name = attributes.get("className", "").partition(",")[0]
        if self._id and name:
            self.classes[self._id] = self._names.setdefault(name, name)


class Trx(Reader):
    """Results. One that holds others (a row of data each, an ordered list) is their sum, and not a test beside them."""

    def __init__(self, limits: Limits, sink: Callable[[Case], None], definitions: Definitions) -> None:
        super().__init__(limits)
        self._classes = definitions.classes
        self._tally = Tally(sink, limits)
        self._frame = self._tally.open("", listed=False)
        self._drafts: list[Draft] = []
        self._sums: list[bool] = []
        self._failed = False
        self._said: Text | None = None
        self._told: Text | None = None
        self.starts = {
            **dict.fromkeys(_RESULTS, self._result),
            "Message": self._message,
            "StackTrace": self._stack,
            "StdOut": self._out,
            "StdErr": self._err,
            "Counters": self._counters,
            "ResultSummary": self._summary,
            "RunInfo": self._info,
            "Text": self._text,
        }
        hushed = ("Message", "StackTrace", "StdOut", "StdErr", "Text")
        self.ends = {**dict.fromkeys(_RESULTS, self._finish), **dict.fromkeys(hushed, self.hush)}

    def report(self, digest: str) -> TestReport:
        if self._frame.broken and self._told:
            self._frame.broken.stack = self._told
        self._tally.close(self._frame)
        return self._tally.report("TRX", digest)

    def _result(self, attributes: dict[str, str]) -> None:
        get = attributes.get
        if self._sums:
            self._sums[-1] = True
        name = get("testName") or get("testId")
        class_name = self._classes.get(get("testId", ""), "")
        if name and class_name and name.startswith(class_name + "."):
            name = name[len(class_name) + 1 :]
        draft = Draft(class_name, name, duration_ms(get("duration")))
        draft.place = get("testId")
        draft.weigh(_OUTCOMES.get(get("outcome", "").lower(), Weight.ERROR))
        self._drafts.append(draft)
        self._sums.append(False)

    def _finish(self) -> None:
        draft = self._drafts.pop()
        if not self._sums.pop():
            draft.message = self._said.value if self._said else None
            self._tally.add(self._frame, draft)
        self._said = None

    def _within(self, parent: str) -> Draft | None:
        return self._drafts[-1] if self._drafts and self.parent == parent else None

    def _message(self, _attributes: dict[str, str]) -> None:
        if self._within("ErrorInfo"):
            self._said = Text(8192)
            self.listen(self._said)

    def _stack(self, _attributes: dict[str, str]) -> None:
        if draft := self._within("ErrorInfo"):
            draft.stack = Text(self.limits.output)
            self.listen(draft.stack)

    def _out(self, _attributes: dict[str, str]) -> None:
        if draft := self._within("Output"):
            draft.out = draft.out or Text(self.limits.output)
            self.listen(draft.out)

    def _err(self, _attributes: dict[str, str]) -> None:
        if draft := self._within("Output"):
            draft.err = draft.err or Text(self.limits.output)
            self.listen(draft.err)

    def _counters(self, attributes: dict[str, str]) -> None:
        """`executed` tells what was skipped where the others (all 0, from VSTest) do not."""
        said = {name: count(value) or 0 for name, value in attributes.items()}
        total = said.get("total", 0)
        errors, skipped = (sum(said.get(name, 0) for name in names) for names in (_BROKEN, _UNRUN))
        skipped = max(skipped, total - said.get("executed", total))
        self._frame.declared = Declared(total, said.get("failed"), errors, skipped)

    def _summary(self, attributes: dict[str, str]) -> None:
        self._failed = attributes.get("outcome", "").lower() in ("failed", "error", "aborted", "timeout")

    def _info(self, attributes: dict[str, str]) -> None:
        if self._failed and attributes.get("outcome", "").lower() == "error":
            self._frame.broken = self._frame.broken or Draft("", "(run)")
            self._frame.broken.weigh(Weight.ERROR)

    def _text(self, _attributes: dict[str, str]) -> None:
        if self.parent == "RunInfo" and self._frame.broken:
            self._told = self._told or Text(self.limits.output)
            self.listen(self._told)
