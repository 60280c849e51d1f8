"""The counts of a test report while its cases pass by: suites, totals, and tests that it tells more than once.

What is kept of a case is its hash, its position and its status, in arrays, until its suite ends.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterator

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
from models.tracker.reports.case_builder import RANKS, Draft
from models.tracker.reports.text_cleaning import name_of

SUITES = 50_000
"""As many suites of a report are listed. What later ones hold counts, and belongs to no suite."""

LONGEST_TOTAL_MS = 10**14

_PASSED, _FAILED, _ERROR, _SKIPPED = (
    CASE_STATUSES.index(status)
    for status in (CaseStatus.PASSED, CaseStatus.FAILED, CaseStatus.ERROR, CaseStatus.SKIPPED)
)
_AT_ONCE = 1 << 16


@frozen
class Declared:
    """What a suite says of itself; None for what it does not say."""

    tests: int | None = None
    failed: int | None = None
    errors: int | None = None
    skipped: int | None = None
    duration_ms: int | None = None


class Frame:
    """A suite that is open. `counts` are its own cases by rank of their status."""

    def __init__(self, name: str, parent: Frame | None, listed: bool, declared: Declared) -> None:
        self.name = name
        self.parent = parent
        self.listed = listed
        self.declared = declared
        self.index: int | None = None
        self.counts = [0] * len(CASE_STATUSES)
        self.flaky = 0
        self.cases = 0
        """Cases in it and below."""
        self.below = 0
        """Tests below that count by the attributes of their suites."""
        self.failing = 0
        """As many of those failed."""
        self.duration_ms: int | None = None
        self.duration_below: int | None = None
        self.broken: Draft | None = None
        """Its own error."""
        self.keys = array("q")
        self.marks = array("q")


class Tally:
    """Takes the cases of a report and counts them. Each goes on to `sink`."""

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
        self.outside = Frame("", None, False, Declared())
        """For cases outside of any suite."""

    def open(
        self, name: str | None, parent: Frame | None = None, declared: Declared | None = None, listed: bool = True
    ) -> Frame:
        """A suite begins. One that is not listed is a frame for others, and its cases belong to no suite."""
        self._opened += 1
        if self._opened > self._limits.tests:
            raise ReportTooLarge(f"it has more than {self._limits.tests} suites")
        return Frame(name_of(name), parent or self.outside, listed, declared or Declared())

    def add(self, frame: Frame, draft: Draft) -> None:
        """A case of a suite."""
        case = draft.case(self._listed(frame) if frame.index is None else frame.index)
        rank, flaky, length = RANKS[draft.weight], case.flaky, case.duration_ms
        frame.counts[rank] += 1
        frame.flaky += flaky
        frame.cases += 1
        if length is not None:
            frame.duration_ms = (frame.duration_ms or 0) + length
        if case.name:
            frame.keys.append(hash((draft.class_name, draft.name, draft.place)))
            frame.marks.append(self._position << 3 | flaky << 2 | rank)
        self._pass(case)

    def _pass(self, case: Case) -> None:
        if self._position >= self._limits.tests:
            raise ReportTooLarge(f"it has more than {self._limits.tests} tests")
        self._sink(case)
        self._position += 1

    def _listed(self, frame: Frame) -> int | None:
        if frame.index is None and frame.listed and len(self._suites) < SUITES:
            frame.index = len(self._suites)
            self._suites.append(Suite(frame.name, Totals()))
        return frame.index

    def close(self, frame: Frame) -> None:
        """A suite ends: its repeated tests become one each, and what it counts is added to what is around it."""
        self._settle(frame)
        counted = Totals()
        if not frame.cases and frame is not self.outside:
            counted = self._attributes(frame)
        elif frame.index is not None:
            own = frame.duration_ms if frame.duration_ms is not None else frame.declared.duration_ms
            self._suites[frame.index] = Suite(frame.name, _totals(frame.counts, frame.flaky, own or 0))
        for rank, number in enumerate(frame.counts):
            self._counts[rank] += number
        self._flaky_count += frame.flaky
        if frame.parent is not None:
            self._hand_up(frame, frame.parent, counted)

    def _hand_up(self, frame: Frame, parent: Frame, counted: Totals) -> None:
        parent.cases += frame.cases
        parent.below += frame.below + counted.tests
        parent.failing += frame.failing + counted.failed + counted.errors
        length = _sum(frame.duration_ms, frame.duration_below)
        if length is None:
            length = frame.declared.duration_ms
        parent.duration_below = _sum(parent.duration_below, length)

    def _attributes(self, frame: Frame) -> Totals:
        """What a suite without a case in it or below counts: its attributes, or else its own error."""
        said = frame.declared
        failed, errors, skipped = said.failed or 0, said.errors or 0, said.skipped or 0
        tests = max(said.tests or 0, failed + errors + skipped)
        if frame.below:
            tests = failed = errors = skipped = 0
        broken = frame.broken and frame.broken.case(None)
        if broken and not failed + errors + frame.failing:
            tests += 1
            failed += broken.status is CaseStatus.FAILED
            errors += broken.status is CaseStatus.ERROR
        if not tests:
            return Totals()
        counts = [0] * len(CASE_STATUSES)
        counts[_PASSED] = tests - failed - errors - skipped
        counts[_FAILED], counts[_ERROR], counts[_SKIPPED] = failed, errors, skipped
        totals = _totals(counts, 0, said.duration_ms or 0)
        index = self._listed(frame)
        if index is not None:
            self._suites[index] = Suite(frame.name, totals)
        for rank, number in enumerate(counts):
            self._counts[rank] += number
        if broken:
            self._pass(evolve(broken, suite=index))
        return totals

    def _settle(self, frame: Frame) -> None:
        """Of repeated tests of which some passed and some did not, only the last counts."""
        for marks in _repeated(frame.keys, frame.marks):
            ranks = {mark & 3 for mark in marks}
            if _PASSED not in ranks or len(ranks) == 1:
                continue
            for mark in marks[:-1]:
                frame.counts[mark & 3] -= 1
                frame.flaky -= mark >> 2 & 1
                self._superseded.add(mark >> 3)
            last = marks[-1]
            if last & 3 == _PASSED and not last & 4:
                frame.flaky += 1
                self._flaky.add(last >> 3)

    def report(self, format: str, digest: str) -> TestReport:
        """The whole. To be asked once, at the end."""
        outside = self.outside
        self.close(outside)
        length = _sum(outside.duration_ms, outside.duration_below) or 0
        return TestReport(
            format,
            _totals(self._counts, self._flaky_count, length),
            self._suites,
            frozenset(self._superseded),
            frozenset(self._flaky),
            digest,
        )


def _totals(counts: list[int], flaky: int, duration_ms: int) -> Totals:
    return Totals(
        tests=sum(counts),
        passed=counts[_PASSED],
        failed=counts[_FAILED],
        errors=counts[_ERROR],
        skipped=counts[_SKIPPED],
        flaky=flaky,
        duration_ms=min(duration_ms, LONGEST_TOTAL_MS),
    )


def _sum(left: int | None, right: int | None) -> int | None:
    return right if left is None else left if right is None else left + right


def _repeated(keys: array[int], marks: array[int]) -> Iterator[list[int]]:
    """The marks of each key that is there more than once, in their order."""
    if len(keys) < 2:
        return
    for some, theirs in _parts(keys, marks) if len(keys) > _AT_ONCE else ((keys, marks),):
        first: dict[int, int] = {}
        more: dict[int, list[int]] = {}
        for key, mark in zip(some, theirs, strict=True):
            earlier = first.setdefault(key, mark)
            if earlier != mark:
                more.setdefault(key, [earlier]).append(mark)
        yield from more.values()


def _parts(keys: array[int], marks: array[int]) -> list[tuple[array[int], array[int]]]:
    """Split by key, so that a dictionary of a part is small."""
    bits = (len(keys) // _AT_ONCE).bit_length() + 1
    parts = [(array("q"), array("q")) for _ in range(1 << bits)]
    last = len(parts) - 1
    for key, mark in zip(keys, marks, strict=True):
        some, theirs = parts[key & last]
        some.append(key)
        theirs.append(mark)
    return parts
