"""Percentages as text: the one way in which pages, the gate and badges round them."""

from __future__ import annotations

from decimal import ROUND_DOWN, Decimal
from fractions import Fraction


def rounded_down(value: float | Fraction, digits: int = 1) -> str:
    """A number with so many decimals, rounded towards zero: 99.96 % must not read 100 %."""
    if isinstance(value, Fraction):
        scaled = abs(value) * 10**digits
        number = Decimal(scaled.numerator // scaled.denominator).scaleb(-digits)
        return f"{-number if value < 0 else number:.{digits}f}"
    return f"{Decimal(repr(float(value))).quantize(Decimal(1).scaleb(-digits), ROUND_DOWN):f}"


def change(delta: float | None) -> str:
    """A difference in points as it stands after a percentage: ` (+1.2)`; empty if it is None."""
    return "" if delta is None else f" ({'-' if delta < 0 else '+'}{rounded_down(abs(delta))})"
