"""What every reader of reports returns and raises."""

from __future__ import annotations

import enum
from collections.abc import Callable, Mapping, Sequence
from typing import Literal

from attrs import define, frozen


class CaseStatus(enum.Enum):
    """The result of a test, as the API names it."""

    PASSED = "PASSED"
    FAILED = "FAILED"
    ERROR = "ERROR"
    SKIPPED = "SKIPPED"


CASE_STATUSES = tuple(CaseStatus)
"""By rank: the store keeps the index in this tuple."""

FAILING = (CASE_STATUSES.index(CaseStatus.FAILED), CASE_STATUSES.index(CaseStatus.ERROR))
"""Ranks of the outcomes that fail; they are one range in the index of results."""


@frozen
class Limits:
    """How much one report may hold. `inflated` in bytes, `output` in bytes of stored text for each stream of a case.

    `spend` is called with the size of each piece that is inflated; it raises to end the reading. `reruns` says which
    outcome of a test that both passed and failed in one suite counts, where the report does not mark reruns. `suite`
    is the name of the suite where the report has none.
    """

    inflated: int = 256 * 1024 * 1024
    depth: int = 200
    output: int = 1024 * 1024
    tests: int = 2_000_000
    files: int = 200_000
    spend: Callable[[int], None] | None = None
    reruns: Literal["worst", "last"] = "worst"
    suite: str = ""


@define
class Case:
    """One test of a report. `suite` is an index into the report's suites, None outside of any.

    It is not frozen: creating a frozen one takes three times as long, and there are a hundred thousand.
    A duration of None: the report has none that can be read. `out` and `err` are cut to `Limits.output`. `file` is
    its source file, where the report has it.
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
    file: str | None = None
    attachments: Sequence[str] = ()
    """Paths of files that the report names apart from the outputs."""


@frozen
class Totals:
    """Sums over the tests of a report. `duration_ms` is that of its cases, or else of its suites."""

    tests: int = 0
    passed: int = 0
    failed: int = 0
    errors: int = 0
    skipped: int = 0
    flaky: int = 0
    duration_ms: int = 0


@frozen
class Suite:
    """A suite with cases, or one without whose attributes count."""

    name: str
    totals: Totals


@frozen
class TestReport:
    """A test report, read to its end.

    `superseded` are the positions (in the order of the sink) of cases that another one of the same test replaces, and
    `flaky` those of cases that are flaky because of their repetition. `totals` and `suites` already reflect both.
    Totals may be larger than the number of cases: a suite without cases counts by its attributes. `digest` is the
    SHA-256 of the inflated content, in hexadecimal. `warnings` say what is missing; one of a report that ends in the
    middle begins with "truncated".
    """

    __test__ = False  # pytest must not collect it

    format: str
    totals: Totals
    suites: Sequence[Suite]
    superseded: frozenset[int] = frozenset()
    flaky: frozenset[int] = frozenset()
    digest: str = ""
    warnings: Sequence[str] = ()


@frozen
class FileCoverage:
    """One source file, once in a report. `lines` maps a line number to whether it is covered; None without line data.

    A format may count units smaller than a line (a Go statement, a sequence point). Then a key is the place of the
    unit, a stable number below 2^62, so that reports can be united. A line number is 0 to 2^20.
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

    The line counts are None where it has no line data at all, or ends in the middle. `digest` and `warnings` as in
    `TestReport`.
    """

    format: str
    line_covered: int | None
    line_missed: int | None
    branch_covered: int | None = None
    branch_missed: int | None = None
    digest: str = ""
    warnings: Sequence[str] = ()


class BadReport(Exception):
    """A report that cannot be read: the reason and the place (1-based; None where there is none)."""

    def __init__(self, why: str, line: int | None = None, column: int | None = None) -> None:
        place = f"line {line}, column {column}: " if line and column else f"line {line}: " if line else ""
        super().__init__(f"{place}{why}")
        self.why = why
        self.line = line
        self.column = column


class UnknownFormat(BadReport):
    """A report that resembles a format, but has nothing of what the format consists of."""


class ReportTooLarge(BadReport):
    """A report that exceeds a limit of size."""
