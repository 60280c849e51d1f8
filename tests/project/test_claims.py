"""The table of claims: what is judged, and what is called a regression."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.claims import Claim, load, measured, regressions, save, shown
from benchmarks.report import OURS, Figures


def claim(*ratios: float, bound: float | None = None, at_least: bool = False) -> Claim:
    return Claim("area", "a thing", "s", ratios, "peer", [1.0] * len(ratios), bound, at_least)


@pytest.mark.parametrize(
    ("one", "verdict"),
    [
        (claim(1, 2, 3, bound=2), "met"), (claim(1, 3, 3, bound=2), "**missed**"), (claim(9), ""),
        (claim(20, bound=20, at_least=True), "met"), (claim(19, bound=20, at_least=True), "**missed**"),
        (Claim("area", "alone", "MiB", [59, 61, 60], bound=60), "met"),
    ],
)  # fmt: skip
def test_the_median_is_held_to_the_bound(one: Claim, verdict: str) -> None:
    assert one.verdict == verdict
    assert shown([one]).endswith(f"| {verdict} |")


def test_runs_are_compared_with_themselves() -> None:
    figures = Figures()
    for run, (mine, other) in enumerate([(1.0, 2.0), (10.0, 20.0), (3.0, 6.0)]):
        figures.put(run, "time", 5, OURS, mine)
        figures.put(run, "time", 5, "peer", other)
    figures.put(3, "time", 5, OURS, 1000.0)
    (one,) = measured(figures, "time", 5, "area", "a thing", "s", "peer", 1.0)
    assert (one.ratios, one.ours) == ([0.5, 0.5, 0.5], [1.0, 10.0, 3.0])
    (alone,) = measured(figures, "time", 5, "area", "a thing", "s", "nobody", 1.0)
    assert (alone.verdict, alone.beside) == ("", "nobody: not measured")
    assert measured(figures, "other", 5, "area", "a thing", "s") == []


def test_what_is_saved_is_read_again(tmp_path: Path) -> None:
    both = [claim(1.0, 2.0, bound=3), Claim("area", "alone", "MiB", [1.0])]
    save(tmp_path / "claims", both[:1])
    save(tmp_path / "claims", both[1:])
    save(None, both)
    assert [one.cells() for one in load(tmp_path / "claims")] == [one.cells() for one in both]


@pytest.mark.parametrize(
    ("now", "before", "worse"),
    [
        (claim(1.4), claim(1.0), False), (claim(1.6), claim(1.0), True), (claim(0.1), claim(1.0), False),
        (claim(10, at_least=True), claim(20, at_least=True), True),
        (claim(30, at_least=True), claim(20, at_least=True), False),
    ],
)  # fmt: skip
def test_a_ratio_that_is_worse_by_more_than_noise_is_reported(now: Claim, before: Claim, worse: bool) -> None:
    assert [bool(text) for text in regressions([now], [before])] == [True] * worse
