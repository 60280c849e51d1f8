"""JUnit XML, in the dialects of Ant, surefire, Gradle, pytest, jest, googletest, node and the tools that follow them.

Suites nest to any depth, and counts may be missing or wrong. Retries are elements inside a test (surefire), or the
same test again (pytest-rerunfailures, Gradle).
"""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import partial

from models.tracker.reports.base import Case, Limits, TestReport
from models.tracker.reports.text_cleaning import Memo, count, duration_ms
from models.tracker.reports.totals import CaseBuilder, DeclaredCounts, OpenSuite, Severity, TotalsCounter
from models.tracker.reports.xml_stream import DROPPED, Attributes, Item, XmlReader, parts

_RESULTS = {
    "error": Severity.ERROR,
    "failure": Severity.FAILED,
    "rerunFailure": Severity.RERUN,
    "rerunError": Severity.RERUN,
    "skipped": Severity.SKIPPED,
    "disabled": Severity.SKIPPED,
    "ignored": Severity.SKIPPED,
    "flakyFailure": Severity.RETRIED,
    "flakyError": Severity.RETRIED,
}
_HAS_TEXT = {"#text", DROPPED}
_BETWEEN: Item = {"#text": "\n\n"}
_RERUN_STACK = frozenset(("stackTrace",))
_NOT_RUN = {"notrun", "not run", "skipped", "suppressed", "disabled", "ignored", "pending"}
_SKIPPED_BY = (("@status", _NOT_RUN), ("@result", _NOT_RUN), ("@disabled", {"true", "1", "yes"}))
_FAILED_BY = {
    "fail": Severity.FAILED, "failed": Severity.FAILED, "failure": Severity.FAILED,
    "error": Severity.ERROR, "errored": Severity.ERROR,
}  # fmt: skip
_DURATIONS = Memo(duration_ms)
_DOTTED = re.compile(r"([^\W\d][\w$]*(?:\.[^\W\d][\w$]*)*)\.([^\W\d][\w$]*)")


class SuiteReader(XmlReader):
    """Reads a test report whose suites nest."""

    def __init__(self, limits: Limits, sink: Callable[[Case], None]) -> None:
        super().__init__(limits)
        self._totals = TotalsCounter(sink, limits)
        self._suites: list[OpenSuite] = [self._totals.outside]

    def report(self, format: str, digest: str) -> TestReport:
        return self._totals.report(format, digest)

    def _open_suite(self, name: str | None, declared: DeclaredCounts, listed: bool = True) -> None:
        self._suites.append(self._totals.open(name, self._suites[-1], declared, listed))

    def _close_suite(self) -> None:
        self._totals.close(self._suites.pop())


class JUnit(SuiteReader):
    """Roots are `testsuites`, `testsuite`, or a bare `testcase`."""

    parts = {
        "testcase": frozenset((*_RESULTS, "system-out", "system-err", "properties")),
        "properties": frozenset(("property",)),
        "flakyFailure": _RERUN_STACK,
        "flakyError": _RERUN_STACK,
    }
    texts = frozenset((*_RESULTS, "stackTrace", "system-out", "system-err", "property"))
    markers = frozenset(("properties", "system-out", "system-err"))

    def __init__(self, limits: Limits, sink: Callable[[Case], None]) -> None:
        super().__init__(limits, sink)
        self._totals.lists_all = True
        self.starts = {"testsuites": partial(self._start_suite, False), "testsuite": partial(self._start_suite, True)}
        self.ends = {"testsuites": self._close_suite, "testsuite": self._close_suite}
        self.items = {
            "testcase": self._case,
            "error": partial(self._suite_failure, "error"),
            "failure": partial(self._suite_failure, "failure"),
        }

    def _start_suite(self, listed: bool, attributes: Attributes) -> None:
        self._open_suite(attributes.get("name"), _declared(attributes), listed)

    def _case(self, case: Item) -> None:
        get = case.get
        class_name, name = get("@classname"), get("@name")
        if class_name is None and name and (dotted := _DOTTED.fullmatch(name.strip())):
            class_name, name = dotted.groups()
        builder = CaseBuilder(class_name, name, _DURATIONS[get("@time", "")])
        builder.place = builder.file = get("@file")
        if "@status" in case or "@result" in case or "@disabled" in case:
            for attribute, values in _SKIPPED_BY:
                if get(attribute, "").lower() in values:
                    builder.set_result(Severity.SKIPPED)
        if self.has_parts:
            self._read_results(case, builder)
            builder.out = self.join(parts(case, "system-out"))
            builder.err = self.join(parts(case, "system-err"))
            builder.attachments = [
                property.get("@value") or property.get("#text", "").strip()
                for property in parts(case, "properties", "property")
                if property.get("@name") == "attachment"
            ]
        if ("@status" in case or "@result" in case) and builder.severity is Severity.NONE:
            self._read_status(case, builder)
        self._totals.add(self._suites[-1], builder)

    @staticmethod
    def _read_status(case: Item, builder: CaseBuilder) -> None:
        """Reads the outcome of a case without an element that has it."""
        for name in ("status", "result"):
            value = case.get(f"@{name}", "")
            if severity := _FAILED_BY.get(value.lower()):
                builder.set_result(severity, message=f"the {name} of the test is {value}")

    def _read_results(self, case: Item, builder: CaseBuilder) -> None:
        for name, severity in _RESULTS.items():
            results = parts(case, name)
            if not results:
                continue
            if severity in (Severity.RETRIED, Severity.RERUN):
                builder.reruns += len(results)
                builder.flaky |= severity is Severity.RETRIED
            first = results[0]
            stack = None if severity is Severity.RERUN else self._stack(results, severity)
            builder.set_result(severity, first.get("@type"), first.get("@message"), stack)

    def _stack(self, results: list[Item], severity: Severity) -> str | None:
        """The text of a result. It has the texts of all failures of a case (googletest, soft assertions)."""
        first, *others = results
        pieces = [first, *parts(first, "stackTrace")]
        for other in others if severity in (Severity.FAILED, Severity.ERROR) else ():
            text = other if set(other) & _HAS_TEXT else {"#text": other.get("@message", "")}
            pieces += [_BETWEEN, text] if text.get("#text") else [text]
        return self.join(pieces)

    def _suite_failure(self, name: str, failure: Item) -> None:
        if self.path[-1:] in (["testsuite"], ["testsuites"]):
            suite = self._suites[-1]
            suite.failure = suite.failure or CaseBuilder(suite.name, "(suite)")
            suite.failure.set_result(
                _RESULTS[name], failure.get("@type"), failure.get("@message"), self.join((failure,))
            )


def _declared(attributes: Attributes) -> DeclaredCounts:
    get = attributes.get
    skipped = next(
        (number for name in ("skipped", "skips", "skip", "ignored") if (number := count(get(name))) is not None), None
    )
    disabled = count(get("disabled"))
    return DeclaredCounts(
        tests=count(get("tests")),
        failed=count(get("failures")),
        errors=count(get("errors")),
        skipped=None if skipped is None and disabled is None else (skipped or 0) + (disabled or 0),
        duration_ms=duration_ms(get("time")),
    )
