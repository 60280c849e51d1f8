"""Percentages, exactly: what is compared with a threshold must not hang on the last bit of a float."""

from __future__ import annotations

from fractions import Fraction
from functools import lru_cache

from models.tracker.tables import Run


@lru_cache(4096)
def share(part: int | None, rest: int | None) -> Fraction | None:
    """`part` x 100 / (`part` + `rest`); None where there is nothing to have a part of."""
    whole = (part or 0) + (rest or 0)
    return Fraction(100 * (part or 0), whole) if whole else None


def percent(part: int | None, rest: int | None) -> float | None:
    """As `share`, the nearest number that JSON can say."""
    exact = share(part, rest)
    return None if exact is None else float(exact)


@lru_cache(256)
def decimal(written: float) -> Fraction:
    """A setting as it was written: 0.3 is three tenths, not the float next to it."""
    return Fraction(repr(float(written)))


def line_coverage(run: Run) -> float | None:
    return percent(run.line_covered, run.line_missed)


def branch_coverage(run: Run) -> float | None:
    return percent(run.branch_covered, run.branch_missed)


def pass_rate(run: Run) -> float:
    """passed x 100 / (tests - skipped), 0 when there are none."""
    return 100 * run.passed / (run.tests - run.skipped) if run.tests > run.skipped else 0.0
