"""What every reader of reports makes of its format, and how it says that it cannot."""

from __future__ import annotations

import enum
from collections.abc import Callable, Mapping, Sequence

from attrs import define, frozen


class CaseStatus(enum.Enum):
    """What became of a test. The value is what the API says."""

    PASSED = "PASSED"
    FAILED = "FAILED"
    ERROR = "ERROR"
    SKIPPED = "SKIPPED"


CASE_STATUSES = tuple(CaseStatus)
"""By rank, which is how the store keeps them."""


@frozen
class Limits:
    """How much one report may hold. `inflated` in bytes, `output` in bytes of stored text for each stream of a case.

    `spend` is called with the size of each piece that is inflated; it raises to end the reading.
    """

    inflated: int = 256 * 1024 * 1024
    depth: int = 200
    output: int = 1024 * 1024
    tests: int = 2_000_000
    files: int = 200_000
    spend: Callable[[int], None] | None = None


@define
class Case:
    """One test as its report tells it. `suite` is an index into the report's suites, None outside of any.

    Not frozen: that would make each three times as dear, and there are a hundred thousand.

    A length of None: the report does not tell, or tells nonsense. `out` and `err` are cut to `Limits.output`.
    """

    class_name: str
    name: str
    status: CaseStatus
    suite: int | None = None
    duration_ms: int | None = None
    flaky: bool = False
    reruns: int = 0
    failure_type: str | None = None
    failure_message: str | None = None
    stack: str | None = None
    out: str | None = None
    err: str | None = None


@frozen
class Totals:
    """Sums over the tests of a report; `duration_ms` as its cases tell, else its suites."""

    tests: int = 0
    passed: int = 0
    failed: int = 0
    errors: int = 0
    skipped: int = 0
    flaky: int = 0
    duration_ms: int = 0


@frozen
class Suite:
    """A suite that holds cases, or whose attributes count because it holds none."""

    name: str
    totals: Totals


@frozen
class TestReport:
    """A test report, read to its end.

    `superseded` are the positions (in the order of the sink) of cases that a later one of the same test replaces, and
    `flaky` those of cases that only their repetition shows to be flaky. `totals` and `suites` have counted that in.
    Totals may be larger than the cases are: a suite without cases counts by its attributes. `digest` is the SHA-256 of
    the inflated content, in hexadecimal.
    """

    __test__ = False  # pytest must not take it for a test

    format: str
    totals: Totals
    suites: Sequence[Suite]
    superseded: frozenset[int] = frozenset()
    flaky: frozenset[int] = frozenset()
    digest: str = ""


@frozen
class FileCoverage:
    """One source file, once in a report. `lines` is line number -> whether it was covered; None where there are none.

    What a report counts may be smaller than a line (a Go statement, a sequence point): then a key is the place of such
    a unit, a stable number below 2^53, so that the union of two reports is right for it too. A line is 0 to 2^20.
    """

    path: str
    line_covered: int
    line_missed: int
    branch_covered: int = 0
    branch_missed: int = 0
    lines: Mapping[int, bool] | None = None


@frozen
class CoverageReport:
    """A coverage report, read to its end, with its own totals (its own LINE counter, where it has one).

    The line counts are None where it has no line data at all. `digest` as in `TestReport`.
    """

    format: str
    line_covered: int | None
    line_missed: int | None
    branch_covered: int | None = None
    branch_missed: int | None = None
    digest: str = ""


class BadReport(Exception):
    """A report that cannot be read: why, and where (1-based; None where there is no such place)."""

    def __init__(self, why: str, line: int | None = None, column: int | None = None) -> None:
        place = f"line {line}, column {column}: " if line and column else f"line {line}: " if line else ""
        super().__init__(f"{place}{why}")
        self.why = why
        self.line = line
        self.column = column


class ReportTooLarge(BadReport):
    """A report that is larger than one may be."""
