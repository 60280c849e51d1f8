"""Patterns in which `*` is any text: what they fit, and that no pattern or text makes them slow."""

from __future__ import annotations

import time

import pytest

from models.globs import matches


@pytest.mark.parametrize(
    ("pattern", "text", "fits"),
    [
        ("", "", True),
        ("", "a", False),
        ("main", "main", True),
        ("main", "main2", False),
        ("*", "", True),
        ("*", "a\nb", True),
        ("release/*", "release/1.2", True),
        ("release/*", "my-release/1.2", False),
        ("*-dev", "a-dev", True),
        ("*-dev", "a-dev2", False),
        ("a*b*c", "a-b-c", True),
        ("a*b*c", "a-c-b", False),
        ("a*a", "a", False),
        ("ab*ba", "aba", False),
        ("*a*b*", "b-a", False),
        ("**a**", "a", True),
        ("a.c", "abc", False),
        ("[ab]?", "a1", False),
        ("a*bc*bc", "a-bc", False),
    ],
)
def test_only_a_star_is_special(pattern: str, text: str, fits: bool) -> None:
    assert matches(pattern, text) is fits


@pytest.mark.parametrize("pattern", ["*a" * 120 + "b", "*a*a*a*a*a*a*a*a*b*", "*aaaaaaaab*" * 20])
def test_many_stars_and_a_long_text_take_milliseconds(pattern: str) -> None:
    began = time.process_time()
    assert not matches(pattern, "a" * 100_000)
    assert time.process_time() - began < 0.5
