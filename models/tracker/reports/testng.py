"""TestNG's own XML, `testng-results.xml`: suites, tests, classes and their methods."""

from __future__ import annotations

from collections.abc import Callable

from models.tracker.reports.base import Case, Limits
from models.tracker.reports.junit import SuiteReader
from models.tracker.reports.text_cleaning import bounded_ms, count
from models.tracker.reports.totals import CaseBuilder, DeclaredCounts, Severity
from models.tracker.reports.xml_stream import Attributes, Item, parts

_RESULTS = {
    "PASS": Severity.NONE,
    "SUCCESS_PERCENTAGE_FAILURE": Severity.NONE,
    "FAIL": Severity.FAILED,
    "SKIP": Severity.SKIPPED,
}
_MAX_RETRIED = 100_000


class TestNG(SuiteReader):
    """Each `test` is a suite, each `test-method` a test, once for each row of its data provider.

    Methods of the configuration (`@BeforeClass`) count only if they failed. A `retried` result is not counted: the
    method follows again. The root's counts count only where no method is listed.
    """

    __test__ = False  # pytest must not collect it

    parts = {
        "test-method": frozenset(("params", "exception", "reporter-output")),
        "params": frozenset(("param",)),
        "param": frozenset(("value",)),
        "exception": frozenset(("message", "full-stacktrace", "short-stacktrace")),
        "reporter-output": frozenset(("line",)),
    }
    texts = frozenset(("value", "message", "full-stacktrace", "short-stacktrace", "line"))
    markers = frozenset(("suite", "reporter-output"))

    def __init__(self, limits: Limits, sink: Callable[[Case], None]) -> None:
        super().__init__(limits, sink)
        self._suite_name = self._class = ""
        self._retried: dict[int, int] = {}
        """How often the methods that follow again have failed, by the hash of their class, name and row."""
        self.starts = {
            "testng-results": self._start,
            "suite": self._start_suite,
            "test": self._start_test,
            "class": self._start_class,
        }
        self.ends = {"testng-results": self._close_suite, "test": self._close_suite}
        self.items = {"test-method": self._method}

    def _start(self, attributes: Attributes) -> None:
        tests, failed, skipped = (count(attributes.get(name)) for name in ("total", "failed", "skipped"))
        self._open_suite("", DeclaredCounts(tests, failed, None, skipped), listed=False)

    def _start_suite(self, attributes: Attributes) -> None:
        self._suite_name = attributes.get("name", "")

    def _start_test(self, attributes: Attributes) -> None:
        name = " > ".join(filter(None, (self._suite_name, attributes.get("name", ""))))
        self._open_suite(name, DeclaredCounts())
        self._retried.clear()

    def _start_class(self, attributes: Attributes) -> None:
        self._class = attributes.get("name", "")

    def _method(self, method: Item) -> None:
        get = method.get
        length = count(get("@duration-ms"))
        builder = CaseBuilder(self._class, get("@name"), None if length is None else bounded_ms(length))
        severity = _RESULTS.get(get("@status", "").upper(), Severity.ERROR)
        is_configuration = get("@is-config", "").lower() == "true"
        if is_configuration and severity is not Severity.FAILED:
            return
        values = parts(method, "params", "param", "value")
        builder.place = "\n".join([get("@test-instance-name", ""), *(self.join((value,)) or "" for value in values)])
        key = hash((self._class, builder.name, builder.place))
        if get("@retried", "").lower() == "true":
            if len(self._retried) < _MAX_RETRIED:
                self._retried[key] = self._retried.get(key, 0) + 1
            return
        builder.reruns = self._retried.pop(key, 0)
        builder.flaky = builder.reruns > 0
        self._read_exception(method, builder, Severity.ERROR if is_configuration else severity)
        builder.out = self.join(parts(method, "reporter-output", "line"))
        self._totals.add(self._suites[-1], builder)

    def _read_exception(self, method: Item, builder: CaseBuilder, severity: Severity) -> None:
        exception = next(iter(parts(method, "exception")), {})
        stack = parts(exception, "full-stacktrace") or parts(exception, "short-stacktrace")
        message = self.join(parts(exception, "message"))
        builder.set_result(severity, exception.get("@class"), message, self.join(stack))
