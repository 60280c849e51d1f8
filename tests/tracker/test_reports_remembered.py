"""Caches of short texts in readers stay small and do not change results."""

from __future__ import annotations

import pytest

from models.tracker.reports.text_cleaning import Memo, count, duration_ms


def test_a_short_text_is_made_something_of_once() -> None:
    requested: list[str] = []

    def length(text: str) -> int:
        requested.append(text)
        return len(text)

    known = Memo(length)
    assert [known["1.5"], known["1.5"], known["2"]] == [3, 3, 1]
    assert requested == ["1.5", "2"]


def test_a_long_text_is_not_kept() -> None:
    known = Memo(len)
    assert known["9" * 10_000_000] == 10_000_000
    assert len(known) == 0


def test_however_many_there_are_it_stays_small() -> None:
    known = Memo(int)
    assert [known[str(number)] for number in range(20_000)] == list(range(20_000))
    assert len(known) < 5_000


@pytest.mark.parametrize("text", ["", "0", "0.001", "1,234.5", "80.8us", "1e3", "nonsense", "-1", " 5 ", "٣"])
def test_it_says_what_it_would_say_anew(text: str) -> None:
    for make in (duration_ms, count):
        known = Memo(make)
        assert known[text] == known[text] == make(text)
