"""The counts of a test report while its cases are read: suites, totals, and tests that occur more than once.

Of a case only its hash, its position and its status are kept, in arrays, until its suite ends.
"""

from __future__ import annotations

import enum
from array import array
from collections.abc import Callable, Iterator, Sequence

from attrs import evolve, frozen

from models.tracker.reports.base import (
    CASE_STATUSES,
    Case,
    CaseStatus,
    Limits,
    ReportTooLarge,
    Suite,
    TestReport,
    Totals,
)
from models.tracker.reports.text_cleaning import clean_name, shorten

MAX_LISTED_SUITES = 50_000
"""Suites of a report that are listed. The cases of later ones count, and belong to no suite."""

MAX_TOTAL_MS = 10**14
_HASHES_PER_PART = 1 << 16
_TYPE_CHARACTERS = 512


class Severity(enum.IntEnum):
    """The outcome of a test in a report; the highest value counts."""

    NONE = 0
    RETRIED = 1
    SKIPPED = 2
    RERUN = 3
    """Only that it failed again is reported, not that it failed."""
    FAILED = 4
    ERROR = 5


_PASSED, _FAILED, _ERROR, _SKIPPED = (
    CASE_STATUSES.index(status)
    for status in (CaseStatus.PASSED, CaseStatus.FAILED, CaseStatus.ERROR, CaseStatus.SKIPPED)
)
assert _PASSED < _FAILED < _ERROR  # repeated tests are merged by rank
_STATUS_PASSED = CaseStatus.PASSED
_RANKS = (_PASSED, _PASSED, _SKIPPED, _FAILED, _FAILED, _ERROR)
"""The rank of the status for each severity."""


class CaseBuilder:
    """A test whose result is being read. `type`, `message` and `stack` are those of the highest severity.

    `place` is its source file or id, where the report has one: tests of one name in two places are two tests. `file` is
    the source file alone. `replaces`: it is a rerun, which counts instead of the earlier runs of the test.
    """

    severity = Severity.NONE
    type: str | None = None
    message: str | None = None
    stack: str | None = None
    out: str | None = None
    err: str | None = None
    flaky = False
    reruns = 0
    replaces = False
    place: str | None = None
    file: str | None = None
    attachments: Sequence[str] = ()

    def __init__(self, class_name: str | None, name: str | None, duration_ms: int | None = None) -> None:
        self.class_name = class_name
        self.name = name
        self.duration_ms = duration_ms

    def set_result(
        self, severity: Severity, type: str | None = None, message: str | None = None, stack: str | None = None
    ) -> None:
        """Keeps a result, unless one of the same or a higher severity is known."""
        if severity > self.severity:
            self.severity, self.type, self.message, self.stack = severity, type, message, stack

    @property
    def passed(self) -> bool:
        return self.severity < Severity.SKIPPED

    def case(self, suite: int | None) -> Case:
        class_name, name = clean_name(self.class_name), clean_name(self.name)
        if not (self.severity or self.out or self.err or self.flaky or self.file or self.attachments):  # nearly all
            return Case(class_name, name, _STATUS_PASSED, suite, self.duration_ms, False, self.reruns)
        return Case(
            class_name,
            name,
            CASE_STATUSES[_RANKS[self.severity]],
            suite,
            self.duration_ms,
            self.flaky and self.passed,
            self.reruns,
            shorten(self.type, _TYPE_CHARACTERS),
            shorten(self.message),
            self.stack,
            self.out,
            self.err,
            self.file,
            self.attachments,
        )


@frozen
class DeclaredCounts:
    """The counts in a suite's own attributes; None for those it does not have."""

    tests: int | None = None
    failed: int | None = None
    errors: int | None = None
    skipped: int | None = None
    duration_ms: int | None = None


class OpenSuite:
    """A suite whose end has not been read.

    `counts` are its own cases by the rank of their status, `cases` those in it and below. `below` are the tests below
    that count by the attributes of their suites, of which `failing` failed. `listed_failures` are the cases in it and
    below that failed or were retried. `missing_below` are the tests that suites below declare and do not list. `reruns`
    are those of its cases and below: surefire declares each run of a test.
    `failure` is the suite's own failure.
    """

    def __init__(self, name: str, parent: OpenSuite | None, listed: bool, declared: DeclaredCounts) -> None:
        self.name = name
        self.parent = parent
        self.listed = listed
        self.declared = declared
        self.index: int | None = None
        self.counts = [0] * len(CASE_STATUSES)
        self.flaky = self.cases = self.below = self.failing = self.listed_failures = self.missing_below = 0
        self.reruns = 0
        self.duration_ms: int | None = None
        self.duration_below: int | None = None
        self.failure: CaseBuilder | None = None
        self.hashes = array("q")
        self.positions = array("q")
        """A case's position << 5, | 16 if it replaces earlier ones, | 8 if it marks a rerun, | 4 if it is flaky, | the
        rank of its status.
        """


class TotalsCounter:
    """Counts the cases of a report and passes each to `sink`."""

    def __init__(self, sink: Callable[[Case], None], limits: Limits) -> None:
        self._sink = sink
        self._limits = limits
        self._position = 0
        self._opened = 0
        self._suites: list[Suite] = []
        self._superseded: set[int] = set()
        self._flaky: set[int] = set()
        self._counts = [0] * len(CASE_STATUSES)
        self._flaky_count = 0
        self.warnings: list[str] = []
        self.lists_all = False
        """Whether suites of the format list all the tests that they declare."""
        self._incomplete: list[str] = []
        self._incomplete_suites = 0
        self.outside = OpenSuite("", None, False, DeclaredCounts())
        """For cases outside of any suite."""

    def open(
        self,
        name: str | None,
        parent: OpenSuite | None = None,
        declared: DeclaredCounts | None = None,
        listed: bool = True,
    ) -> OpenSuite:
        """Begins a suite. One that is not listed only groups others, and its cases belong to no suite."""
        self._opened += 1
        if self._opened > self._limits.tests:
            raise ReportTooLarge(f"it has more than {self._limits.tests} suites")
        return OpenSuite(clean_name(name), parent or self.outside, listed, declared or DeclaredCounts())

    def has_failures(self, suite: OpenSuite) -> bool:
        """Whether a test failed in `suite` or in the suites that have ended."""
        return sum(counts[_FAILED] + counts[_ERROR] for counts in (self._counts, suite.counts)) > 0

    def add(self, suite: OpenSuite, builder: CaseBuilder) -> None:
        """Counts a case of a suite. Raises ReportTooLarge."""
        case = builder.case(self._list(suite) if suite.index is None else suite.index)
        rank, flaky, duration_ms = _RANKS[builder.severity], case.flaky, case.duration_ms
        suite.counts[rank] += 1
        suite.flaky += flaky
        suite.cases += 1
        suite.reruns += case.reruns
        if duration_ms is not None:
            suite.duration_ms = (suite.duration_ms or 0) + duration_ms
        if case.name:
            suite.hashes.append(hash((builder.class_name, builder.name, builder.place)))
            is_rerun = flaky or case.reruns > 0
            replaces = builder.replaces
            suite.positions.append(self._position << 5 | replaces << 4 | is_rerun << 3 | flaky << 2 | rank)
        self._emit(case)

    def _emit(self, case: Case) -> None:
        if self._position >= self._limits.tests:
            raise ReportTooLarge(f"it has more than {self._limits.tests} tests")
        self._sink(case)
        self._position += 1

    def _list(self, suite: OpenSuite) -> int | None:
        if suite.index is None and suite.listed and len(self._suites) < MAX_LISTED_SUITES:
            suite.index = len(self._suites)
            self._suites.append(Suite(suite.name, Totals()))
        return suite.index

    def close(self, suite: OpenSuite) -> None:
        """Ends a suite: merges its repeated tests, and adds its counts to those of the suite around it."""
        if suite.cases and self.lists_all:
            self._compare_declared(suite)
        suite.listed_failures += suite.counts[_FAILED] + suite.counts[_ERROR] + suite.flaky
        self._merge_repeated(suite)
        counted = Totals()
        if suite.cases and suite is not self.outside:
            self._count_own_failure(suite)
        if not suite.cases and suite is not self.outside:
            counted = self._count_declared(suite)
        elif suite.index is not None:
            own = suite.duration_ms if suite.duration_ms is not None else suite.declared.duration_ms
            self._suites[suite.index] = Suite(suite.name, _totals(suite.counts, suite.flaky, own or 0))
        for rank, number in enumerate(suite.counts):
            self._counts[rank] += number
        self._flaky_count += suite.flaky
        if suite.parent is not None:
            _add_to_parent(suite, suite.parent, counted)

    def _compare_declared(self, suite: OpenSuite) -> None:
        """Warns of a suite that declares more tests than it and those below list, unless one below was warned of."""
        listed = suite.cases + suite.below + suite.reruns
        missing = (suite.declared.tests or 0) - listed
        if missing > suite.missing_below:
            name = f"the suite {suite.name[:100]}" if suite.name else "it"
            self._incomplete_suites += 1
            if not self._incomplete:
                self._incomplete.append(f"{name} declares {suite.declared.tests} tests, lists {listed}")
        suite.missing_below = max(suite.missing_below, missing)

    def _count_own_failure(self, suite: OpenSuite) -> None:
        """Counts the failure of a suite with cases: one beside them, or one that it declares and does not list."""
        failure = suite.failure or _declared_failure(suite)
        if failure is None:
            return
        suite.counts[_RANKS[failure.severity]] += 1
        suite.listed_failures += 1
        self._emit(failure.case(self._list(suite)))

    def _count_declared(self, suite: OpenSuite) -> Totals:
        """Counts a suite without a case in it or below: by its attributes, or else its own failure.

        Failures that no row of a suite has are a case too: rules about failures see only cases and suites.
        """
        declared = suite.declared
        failed, errors, skipped = declared.failed or 0, declared.errors or 0, declared.skipped or 0
        tests = max(declared.tests or 0, failed + errors + skipped)
        builder = suite.failure
        if suite.below:
            tests = failed = errors = skipped = 0
            builder = builder or _declared_failure(suite)
        failure = builder and builder.case(None)
        if failure and not failed + errors + suite.failing:
            tests += 1
            failed += failure.status is CaseStatus.FAILED
            errors += failure.status is CaseStatus.ERROR
        if not tests:
            return Totals()
        counts = [0] * len(CASE_STATUSES)
        counts[_PASSED] = tests - failed - errors - skipped
        counts[_FAILED], counts[_ERROR], counts[_SKIPPED] = failed, errors, skipped
        totals = _totals(counts, 0, declared.duration_ms or 0)
        index = self._list(suite)
        if index is not None:
            self._suites[index] = Suite(suite.name, totals)
        elif failure is None and (builder := _declared_failure(suite)):
            failure = builder.case(None)
        for rank, number in enumerate(counts):
            self._counts[rank] += number
        if failure:
            self._emit(evolve(failure, suite=index))
        return totals

    def _merge_repeated(self, suite: OpenSuite) -> None:
        """Makes one test of the cases of one name that passed and failed; skipped cases count each.

        The worst outcome counts, or else rows of a parameterised test could hide a failure. Where the report marks
        one of them as a rerun, and with `Limits.reruns` "last", the last outcome counts: passed means flaky. A case
        that replaces others counts instead of all of them.
        """
        for repeated in _repeated(suite.hashes, suite.positions):
            replaced = any(position & 16 for position in repeated)
            positions = repeated if replaced else [position for position in repeated if position & 3 != _SKIPPED]
            ranks = {position & 3 for position in positions}
            if not replaced and (_PASSED not in ranks or len(ranks) == 1):
                continue
            kept = positions[-1]
            if not replaced and self._limits.reruns == "worst" and not any(position & 8 for position in positions):
                kept = max(positions, key=lambda position: (position & 3, position))
            for position in positions:
                if position != kept:
                    suite.counts[position & 3] -= 1
                    suite.flaky -= position >> 2 & 1
                    self._superseded.add(position >> 5)
            if kept & 3 == _PASSED and not kept & 4 and not ranks.isdisjoint((_FAILED, _ERROR)):
                suite.flaky += 1
                self._flaky.add(kept >> 5)

    def report(self, format: str, digest: str) -> TestReport:
        """Returns the whole report. To be called once, at the end."""
        outside = self.outside
        self.close(outside)
        if self._incomplete_suites > 1:
            self._incomplete.append(f"{self._incomplete_suites - 1} more suites declare more tests than they list")
        duration_ms = _sum(outside.duration_ms, outside.duration_below) or 0
        return TestReport(
            format,
            _totals(self._counts, self._flaky_count, duration_ms),
            self._suites,
            frozenset(self._superseded),
            frozenset(self._flaky),
            digest,
            [" ".join(text.split()) for text in (*self.warnings, *self._incomplete)],
        )


def _declared_failure(suite: OpenSuite) -> CaseBuilder | None:
    """The failure of a suite that declares failures where none is listed in it and below."""
    declared = suite.declared
    number = (declared.failed or 0) + (declared.errors or 0)
    if not number or suite.listed_failures + suite.failing:
        return None
    failure = CaseBuilder(suite.name, "(suite)")
    text = f"declares {number} failure{'' if number == 1 else 's'}, lists none"
    failure.set_result(Severity.FAILED if declared.failed else Severity.ERROR, message=text)
    return failure


def _add_to_parent(suite: OpenSuite, parent: OpenSuite, counted: Totals) -> None:
    parent.cases += suite.cases
    parent.listed_failures += suite.listed_failures
    parent.below += suite.below + counted.tests
    parent.missing_below += suite.missing_below
    parent.reruns += suite.reruns
    parent.failing += suite.failing + counted.failed + counted.errors
    duration_ms = _sum(suite.duration_ms, suite.duration_below)
    if duration_ms is None:
        duration_ms = suite.declared.duration_ms
    parent.duration_below = _sum(parent.duration_below, duration_ms)


def _totals(counts: list[int], flaky: int, duration_ms: int) -> Totals:
    return Totals(
        tests=sum(counts),
        passed=counts[_PASSED],
        failed=counts[_FAILED],
        errors=counts[_ERROR],
        skipped=counts[_SKIPPED],
        flaky=flaky,
        duration_ms=min(duration_ms, MAX_TOTAL_MS),
    )


def _sum(left: int | None, right: int | None) -> int | None:
    return right if left is None else left if right is None else left + right


def _repeated(hashes: array[int], positions: array[int]) -> Iterator[list[int]]:
    """The positions of each hash that occurs more than once, in their order."""
    if len(hashes) < 2:
        return
    whole = ((hashes, positions),)
    for part_hashes, part_positions in _split(hashes, positions) if len(hashes) > _HASHES_PER_PART else whole:
        first: dict[int, int] = {}
        repeated: dict[int, list[int]] = {}
        for key, position in zip(part_hashes, part_positions, strict=True):
            earlier = first.setdefault(key, position)
            if earlier != position:
                repeated.setdefault(key, [earlier]).append(position)
        yield from repeated.values()


def _split(hashes: array[int], positions: array[int]) -> list[tuple[array[int], array[int]]]:
    """Splits the cases by their hashes, so that the dictionary of each part is small."""
    bits = (len(hashes) // _HASHES_PER_PART).bit_length() + 1
    parts = [(array("q"), array("q")) for _ in range(1 << bits)]
    mask = len(parts) - 1
    for key, position in zip(hashes, positions, strict=True):
        part_hashes, part_positions = parts[key & mask]
        part_hashes.append(key)
        part_positions.append(position)
    return parts
