"""Test reports of .NET: NUnit, xUnit.net, and TRX (Visual Studio, `dotnet test`)."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from functools import partial

from models.tracker.reports.base import Case, Limits, ReportTooLarge, TestReport
from models.tracker.reports.junit import SuiteReader
from models.tracker.reports.text_cleaning import count, duration_ms
from models.tracker.reports.totals import CaseBuilder, DeclaredCounts, Severity, TotalsCounter
from models.tracker.reports.xml_stream import Attributes, Item, XmlReader, parts


def _short_name(name: str | None, class_name: str | None) -> str | None:
    """The name of a test without its class before it."""
    if name and class_name and name.startswith(class_name + "."):
        return name[len(class_name) + 1 :]
    return name


class _DotnetReader(SuiteReader):
    """What NUnit and xUnit share: tests with `failure`, `reason` and `output`."""

    parts = {
        "test-case": frozenset(("failure", "reason", "output", "attachments")),
        "attachments": frozenset(("attachment",)),
        "attachment": frozenset(("filePath",)),
        "test": frozenset(("failure", "reason", "output")),
        "error": frozenset(("failure",)),
        "failure": frozenset(("message", "stack-trace")),
        "reason": frozenset(("message",)),
    }
    texts = frozenset(("message", "stack-trace", "reason", "output", "filePath"))
    markers = frozenset(("environment", "culture-info", "errors", "command-line", "filter"))

    def _add(self, test: Item, builder: CaseBuilder) -> None:
        """Counts a test with the texts of its parts."""
        if self.has_parts:
            for failure in parts(test, "failure"):
                builder.type = failure.get("@exception-type")
            reasons = [*parts(test, "reason"), *parts(test, "reason", "message"), *parts(test, "failure", "message")]
            builder.message = self.join(reasons)
            builder.stack = self.join(parts(test, "failure", "stack-trace"))
            builder.out = self.join(parts(test, "output"))
            paths = parts(test, "attachments", "attachment", "filePath")
            builder.attachments = [path.get("#text", "").strip() for path in paths]
        self._totals.add(self._suites[-1], builder)


class NUnit(_DotnetReader):
    """NUnit 3: `test-run`, `test-suite` at any depth, `test-case`.

    A suite that failed is no test: its failed tests are. Only where the run failed without a failed test (a set-up or
    tear-down, an assembly that could not be loaded), the run has one error.
    """

    root = "test-run"

    _results = {
        "passed": Severity.NONE,
        "warning": Severity.NONE,
        "skipped": Severity.SKIPPED,
        "inconclusive": Severity.SKIPPED,
        "failed": Severity.FAILED,
    }

    def __init__(self, limits: Limits, sink: Callable[[Case], None]) -> None:
        super().__init__(limits, sink)
        self._failed_suite: CaseBuilder | None = None
        self.starts = {self.root: self._open_run, "test-suite": self._open_test_suite}
        self.ends = {self.root: self._close_run, "test-suite": self._close_suite}
        self.items = {"test-case": self._case, "failure": self._suite_failure}

    def _open_run(self, attributes: Attributes) -> None:
        self._open_suite(attributes.get("name"), self._declared(attributes), listed=False)
        self._note_result(attributes)

    def _open_test_suite(self, attributes: Attributes) -> None:
        self._open_suite(attributes.get("fullname") or attributes.get("name"), self._declared(attributes))
        self._note_result(attributes)

    def _note_result(self, attributes: Attributes) -> None:
        """Remembers the innermost suite of those that failed first."""
        outer = self._failed_suite is None or self._failed_suite.stack is None
        if outer and attributes.get("result", "").lower() in ("failed", "failure", "error"):
            self._failed_suite = CaseBuilder(self._suites[-1].name, "(suite)")
            self._failed_suite.set_result(Severity.ERROR, message="it failed without a failed test")

    def _suite_failure(self, failure: Item) -> None:
        if self.path[-1:] == ["test-suite"] and (self._failed_suite is None or self._failed_suite.stack is None):
            self._failed_suite = CaseBuilder(self._suites[-1].name, "(suite)")
            self._failed_suite.set_result(Severity.ERROR, stack=self.join(parts(failure, "message")))

    def _close_run(self) -> None:
        run = self._suites[-1]
        if self._failed_suite and not (self._totals.has_failures(run) or run.declared.failed or run.declared.errors):
            if run.cases:
                self._totals.add(run, self._failed_suite)
            else:
                run.failure = self._failed_suite
        self._close_suite()

    def _declared(self, attributes: Attributes) -> DeclaredCounts:
        get = attributes.get
        skipped = (count(get("skipped")) or 0) + (count(get("inconclusive")) or 0)
        return DeclaredCounts(count(get("total")), count(get("failed")), None, skipped, duration_ms(get("duration")))

    def _case(self, case: Item) -> None:
        get = case.get
        full_name, name = get("@fullname", ""), get("@name") or get("@methodname") or get("@fullname")
        class_name = get("@classname")
        if class_name is None and name and full_name.endswith(f".{name}"):
            class_name = full_name[: -len(name) - 1]
        builder = CaseBuilder(class_name, name, duration_ms(get("@duration") or get("@time")))
        severity = self._results.get(get("@result", "").lower(), Severity.ERROR)
        if severity is Severity.FAILED and get("@label", "").lower() in ("error", "invalid", "cancelled"):
            severity = Severity.ERROR
        builder.set_result(severity)
        self._add(case, builder)


_CLASS_OF = re.compile(r"([^(\"]+)\.([^.(\"]+(?:[(\"].*)?)", re.DOTALL)
"""The class and the name in a full name of NUnit 2, whose arguments may have dots: `N.C.adds(1.5, "a.b")`."""


class NUnit2(NUnit):
    """NUnit 2: `test-results`, `test-suite`, `test-case`, whose name is the full one."""

    root = "test-results"

    _results = {
        "success": Severity.NONE,
        "ignored": Severity.SKIPPED,
        "skipped": Severity.SKIPPED,
        "notrunnable": Severity.ERROR,
        "inconclusive": Severity.SKIPPED,
        "failure": Severity.FAILED,
    }

    def _declared(self, attributes: Attributes) -> DeclaredCounts:
        """The counts of the root; suites have none. `total` does not include the tests that were not run.

        `not-run` includes `invalid`: tests that NUnit could not run, which are errors.
        """
        total, not_run, inconclusive = (count(attributes.get(name)) for name in ("total", "not-run", "inconclusive"))
        errors, invalid = count(attributes.get("errors")), count(attributes.get("invalid")) or 0
        return DeclaredCounts(
            tests=None if total is None else total + (not_run or 0),
            failed=count(attributes.get("failures")),
            errors=None if errors is None else errors + invalid,
            skipped=max(0, (not_run or 0) - invalid) + (inconclusive or 0),
            duration_ms=duration_ms(attributes.get("time")) if self.path[-1] == "test-suite" else None,
        )

    def _case(self, case: Item) -> None:
        get = case.get
        class_name, name = None, get("@name")
        if name and (match := _CLASS_OF.fullmatch(name)):
            class_name, name = match.groups()
        builder = CaseBuilder(class_name, name, duration_ms(get("@time")))
        if "@result" in case:
            builder.set_result(self._results.get(case["@result"].lower(), Severity.ERROR))
        elif get("@executed", "").lower() == "false":  # before 2.5
            builder.set_result(Severity.SKIPPED)
        elif get("@success", "").lower() != "true" and not self._ran_well(case):
            builder.set_result(Severity.FAILED)
        self._add(case, builder)

    @staticmethod
    def _ran_well(case: Item) -> bool:
        """Whether a case without an outcome was executed and has no failure."""
        return "@success" not in case and "@executed" in case and not parts(case, "failure")


class XUnit(_DotnetReader):
    """xUnit.net v1 to v3: `assemblies`, `assembly`, `collection` (v1: `class`), `test`.

    An assembly's `error` is a test of no collection.
    """

    _results = {
        "pass": Severity.NONE,
        "skip": Severity.SKIPPED,
        "notrun": Severity.SKIPPED,
        "fail": Severity.FAILED,
    }

    def __init__(self, limits: Limits, sink: Callable[[Case], None]) -> None:
        super().__init__(limits, sink)
        groups = {"assemblies": False, "assembly": False, "collection": True, "class": True}
        self.starts = {name: partial(self._group, listed) for name, listed in groups.items()}
        self.ends = dict.fromkeys(groups, self._close_suite)
        self.items = {"test": self._case, "error": self._error}

    def _group(self, listed: bool, attributes: Attributes) -> None:
        get = attributes.get
        skipped = (count(get("skipped")) or 0) + (count(get("not-run")) or 0)
        errors, tests = count(get("errors")), count(get("total"))
        # the total of an assembly does not include its errors
        tests = None if tests is None else tests + (errors or 0)
        declared = DeclaredCounts(tests, count(get("failed")), errors, skipped, duration_ms(get("time")))
        self._open_suite(get("name"), declared, listed)

    def _case(self, test: Item) -> None:
        get = test.get
        class_name = get("@type")
        name = _short_name(get("@name") or get("@method"), class_name)
        builder = CaseBuilder(class_name, name, duration_ms(get("@time")))
        builder.place = get("@id")  # xUnit v3: rows of a theory have the same name if that is long
        builder.set_result(self._results.get(get("@result", "").lower(), Severity.ERROR))
        self._add(test, builder)

    def _error(self, error: Item) -> None:
        if self.path[-1:] == ["errors"]:
            builder = CaseBuilder(error.get("@type"), error.get("@name") or "(error)")
            builder.set_result(Severity.ERROR)
            self._add(error, builder)


_TRX_RESULTS = ("UnitTestResult", "GenericTestResult", "ManualTestResult", "TestResultAggregation", "WebTestResult")
_TRX_OUTCOMES = {
    "passed": Severity.NONE,
    "passedbutrunaborted": Severity.NONE,
    "warning": Severity.NONE,
    "completed": Severity.NONE,
    "failed": Severity.FAILED,
    "notexecuted": Severity.SKIPPED,
    "notrunnable": Severity.SKIPPED,
    "inconclusive": Severity.SKIPPED,
    "pending": Severity.SKIPPED,
}
"""Every other outcome (Error, Timeout, Aborted, InProgress, none at all) is an error: the test did not end well."""

_TRX_ERROR_COUNTERS = ("error", "timeout", "aborted", "disconnected", "inProgress")
_TRX_SKIPPED_COUNTERS = ("notExecuted", "notRunnable", "inconclusive", "pending")


class TrxDefinitions(XmlReader):
    """The classes of the tests by their ids. They follow the results in the file, which is therefore read twice."""

    def __init__(self, limits: Limits) -> None:
        super().__init__(limits)
        self.classes: dict[str, str] = {}
        self._names: dict[str, str] = {}
        self._id = ""
        self.starts = {"UnitTest": self._test, "TestMethod": self._method}

    def _test(self, attributes: Attributes) -> None:
        self._id = attributes.get("id", "")

    def _method(self, attributes: Attributes) -> None:
        if len(self.classes) >= self.limits.tests:
            raise ReportTooLarge(f"it has more than {self.limits.tests} tests")
        name = attributes.get("className", "").partition(",")[0]
        if self._id and name:
            self.classes[self._id] = self._names.setdefault(name, name)


class Trx(XmlReader):
    """The results of TRX. A result with inner results (rows of data, an ordered list) is their sum, and no test."""

    parts: Mapping[str, frozenset[str]] = {
        **dict.fromkeys(_TRX_RESULTS, frozenset(("Output", "ResultFiles"))),
        "ResultFiles": frozenset(("ResultFile",)),
        "Output": frozenset(("StdOut", "StdErr", "ErrorInfo")),
        "ErrorInfo": frozenset(("Message", "StackTrace")),
        "RunInfo": frozenset(("Text",)),
    }
    texts = frozenset(("StdOut", "StdErr", "Message", "StackTrace", "Text"))
    markers = frozenset(("Times", "TestSettings", "Results", "TestDefinitions", "TestEntries", "TestLists"))

    def __init__(self, limits: Limits, sink: Callable[[Case], None], definitions: TrxDefinitions) -> None:
        super().__init__(limits)
        self._classes = definitions.classes
        self._totals = TotalsCounter(sink, limits)
        self._suite = self._totals.open("", listed=False)
        self._has_inner: list[bool] = []
        """For each open result, whether it has inner results."""
        self._failure: CaseBuilder | None = None
        """The failure of the run as a whole."""
        self.starts = {
            **dict.fromkeys(_TRX_RESULTS, self._open_result),
            "Counters": self._counters,
            "ResultSummary": self._summary,
        }
        self.items = {**dict.fromkeys(_TRX_RESULTS, self._result), "RunInfo": self._run_info}

    def report(self, format: str, digest: str) -> TestReport:
        if self._failure and not self._totals.has_failures(self._suite):
            declared = self._suite.declared
            if self._suite.cases:
                self._totals.add(self._suite, self._failure)
            elif self._failure.stack or not (declared.failed or declared.errors):
                self._suite.failure = self._failure
        self._totals.close(self._suite)
        return self._totals.report(format, digest)

    def _open_result(self, _attributes: Attributes) -> None:
        if self._has_inner:
            self._has_inner[-1] = True
        self._has_inner.append(False)

    def _result(self, result: Item) -> None:
        if self._has_inner.pop():
            return
        get = result.get
        class_name = self._classes.get(get("@testId", ""), "")
        name = _short_name(get("@testName") or get("@testId"), class_name)
        builder = CaseBuilder(class_name, name, duration_ms(get("@duration")))
        builder.place = get("@testId")
        builder.set_result(_TRX_OUTCOMES.get(get("@outcome", "").lower(), Severity.ERROR))
        if self.has_parts:
            builder.message = self.join(parts(result, "Output", "ErrorInfo", "Message"))
            builder.stack = self.join(parts(result, "Output", "ErrorInfo", "StackTrace"))
            builder.out = self.join(parts(result, "Output", "StdOut"))
            builder.err = self.join(parts(result, "Output", "StdErr"))
            builder.attachments = [file.get("@path", "") for file in parts(result, "ResultFiles", "ResultFile")]
        self._totals.add(self._suite, builder)

    def _counters(self, attributes: Attributes) -> None:
        """Reads the counters. VSTest writes 0 to those of skipped tests: `executed` shows how many there are."""
        counts = {name: count(value) or 0 for name, value in attributes.items()}
        total = counts.get("total", 0)
        errors = sum(counts.get(name, 0) for name in _TRX_ERROR_COUNTERS)
        skipped = sum(counts.get(name, 0) for name in _TRX_SKIPPED_COUNTERS)
        skipped = max(skipped, total - counts.get("executed", total))
        self._suite.declared = DeclaredCounts(total, counts.get("failed"), errors, skipped)

    def _summary(self, attributes: Attributes) -> None:
        outcome = attributes.get("outcome", "")
        if outcome.lower() in ("failed", "error", "aborted", "timeout"):
            self._failure = CaseBuilder("", "(run)")
            self._failure.set_result(Severity.ERROR, message=f"the outcome of the run is {outcome}")

    def _run_info(self, info: Item) -> None:
        """Reads why a run failed as a whole: it is an error where no test failed."""
        if self._failure and info.get("@outcome", "").lower() == "error" and self._failure.stack is None:
            self._failure.stack = self.join(parts(info, "Text"))
