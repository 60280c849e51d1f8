"""A test while its report is still telling of it."""

from __future__ import annotations

import enum

from models.tracker.reports.base import CASE_STATUSES, Case, CaseStatus
from models.tracker.reports.text_cleaning import Text, cut, name_of


class Weight(enum.IntEnum):
    """What is said of a test, by what outweighs what."""

    NOTHING = 0
    RETRIED = 1
    SKIPPED = 2
    RERUN = 3
    """Only that it failed again is told, not that it failed."""
    FAILED = 4
    ERROR = 5


_PASSED = CaseStatus.PASSED
_STATUSES = (
    _PASSED,
    _PASSED,
    CaseStatus.SKIPPED,
    CaseStatus.FAILED,
    CaseStatus.FAILED,
    CaseStatus.ERROR,
)
RANKS = tuple(CASE_STATUSES.index(status) for status in _STATUSES)
"""The rank of the status that each weight makes."""


class Draft:
    """A test in the making. The names are as told; `kind`, `message` and `stack` are of what weighs most."""

    weight = 0
    kind: str | None = None
    message: str | None = None
    stack: Text | None = None
    out: Text | None = None
    err: Text | None = None
    flaky = False
    reruns = 0
    place: str | None = None
    """Its source file or its id, where the report tells: tests of one name in two places are two tests."""

    def __init__(self, class_name: str | None, name: str | None, duration_ms: int | None = None) -> None:
        self.class_name = class_name
        self.name = name
        self.duration_ms = duration_ms

    def weigh(self, weight: Weight, kind: str | None = None, message: str | None = None) -> bool:
        """Notes what is said of the test; False if something that weighs as much was said before."""
        if weight <= self.weight:
            return False
        self.weight = weight
        self.kind = kind
        self.message = message
        self.stack = None
        return True

    @property
    def passed(self) -> bool:
        return self.weight < Weight.SKIPPED

    def case(self, suite: int | None) -> Case:
        class_name, name = name_of(self.class_name), name_of(self.name)
        if not self.weight and self.out is None and self.err is None and not self.flaky:  # nearly all
            return Case(class_name, name, _PASSED, suite, self.duration_ms, False, self.reruns)
        return Case(
            class_name,
            name,
            _STATUSES[self.weight],
            suite,
            self.duration_ms,
            self.flaky and self.passed,
            self.reruns,
            cut(self.kind, 512),
            cut(self.message),
            self.stack.value if self.stack else None,
            self.out.value if self.out else None,
            self.err.value if self.err else None,
        )
