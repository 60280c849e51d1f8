"""Memo, the cache of short texts in report readers: it is bounded and does not change results."""

from __future__ import annotations

import pytest

from models.tracker.reports.text_cleaning import Memo, count, duration_ms


def test_memo_computes_a_short_text_once() -> None:
    calls: list[str] = []

    def length(text: str) -> int:
        calls.append(text)
        return len(text)

    memo = Memo(length)
    assert [memo["1.5"], memo["1.5"], memo["2"]] == [3, 3, 1]
    assert calls == ["1.5", "2"]


def test_memo_does_not_store_a_long_text() -> None:
    memo = Memo(len)
    assert memo["9" * 10_000_000] == 10_000_000
    assert len(memo) == 0


def test_memo_size_is_bounded() -> None:
    memo = Memo(int)
    assert [memo[str(number)] for number in range(20_000)] == list(range(20_000))
    assert len(memo) < 5_000


@pytest.mark.parametrize("text", ["", "0", "0.001", "1,234.5", "80.8us", "1e3", "nonsense", "-1", " 5 ", "٣"])
def test_memo_returns_the_value_of_its_function(text: str) -> None:
    for make in (duration_ms, count):
        memo = Memo(make)
        assert memo[text] == memo[text] == make(text)
