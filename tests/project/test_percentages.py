"""Percentages are rounded in one way: down."""

from __future__ import annotations

from fractions import Fraction

import pytest

from models.percentages import rounded_down


@pytest.mark.parametrize(
    ("value", "digits", "text"),
    [
        (77.19, 1, "77.1"), (Fraction(7719, 100), 1, "77.1"), (99.96, 1, "99.9"), (100, 1, "100.0"), (0.3, 1, "0.3"),
        (8.2, 1, "8.2"), (4.35, 2, "4.35"), (Fraction(-1234, 1000), 2, "-1.23"), (-0.26, 1, "-0.2"), (99.6, 0, "99"),
        (Fraction(200, 3), 4, "66.6666"), (1e-9, 1, "0.0"),
    ],
)  # fmt: skip
def test_a_number_is_rounded_towards_zero(value: float | Fraction, digits: int, text: str) -> None:
    assert rounded_down(value, digits) == text
