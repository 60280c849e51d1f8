"""The table of benchmark claims: verdicts and regressions."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.claims import Claim, claims_table, load, measured, regressions, save
from benchmarks.everything import (
    PROGRAMS,
    README,
    RESULTS,
    STORED,
    merged_claims,
    merged_parts,
    overview,
    stored_parts,
    with_summary,
)  # fmt: skip
from benchmarks.published import reason
from benchmarks.report import PILOTHOUSE, Figures


def claim(*ratios: float, target: float | None = None, is_minimum: bool = False) -> Claim:
    return Claim("area", "a thing", "s", ratios, "peer", [1.0] * len(ratios), target, is_minimum)


@pytest.mark.parametrize(
    ("measurement", "verdict"),
    [
        (claim(1, 2, 3, target=2), "met"), (claim(1, 3, 3, target=2), "**missed**"), (claim(9), ""),
        (claim(20, target=20, is_minimum=True), "met"), (claim(19, target=20, is_minimum=True), "**missed**"),
        (Claim("area", "alone", "MiB", [59, 61, 60], target=60), "met"),
    ],
)  # fmt: skip
def test_the_median_is_compared_with_the_target(measurement: Claim, verdict: str) -> None:
    assert measurement.verdict == verdict
    assert claims_table([measurement]).endswith(f"| {verdict} |")


def test_a_ratio_is_computed_within_one_run() -> None:
    figures = Figures()
    for run, (own, other) in enumerate([(1.0, 2.0), (10.0, 20.0), (3.0, 6.0)]):
        figures.put(run, "time", 5, PILOTHOUSE, own)
        figures.put(run, "time", 5, "peer", other)
    figures.put(3, "time", 5, PILOTHOUSE, 1000.0)
    (compared,) = measured(figures, "time", 5, "area", "a thing", "s", "peer", 1.0)
    assert (compared.ratios, compared.values) == ([0.5, 0.5, 0.5], [1.0, 10.0, 3.0])
    (alone,) = measured(figures, "time", 5, "area", "a thing", "s", "absent", 1.0)
    assert (alone.verdict, alone.reference) == ("", "absent: not measured")
    assert measured(figures, "other", 5, "area", "a thing", "s") == []


def test_saved_claims_are_loaded(tmp_path: Path) -> None:
    both = [claim(1.0, 2.0, target=3), Claim("area", "alone", "MiB", [1.0])]
    save(tmp_path / "claims", both[:1])
    save(tmp_path / "claims", both[1:])
    save(None, both)
    assert [each.cells() for each in load(tmp_path / "claims")] == [each.cells() for each in both]


@pytest.mark.parametrize(
    ("now", "before", "worse"),
    [
        (claim(1.4), claim(1.0), False), (claim(1.6), claim(1.0), True), (claim(0.1), claim(1.0), False),
        (claim(10, is_minimum=True), claim(20, is_minimum=True), True),
        (claim(30, is_minimum=True), claim(20, is_minimum=True), False),
    ],
)  # fmt: skip
def test_a_ratio_that_is_worse_beyond_noise_is_reported(now: Claim, before: Claim, worse: bool) -> None:
    assert [bool(text) for text in regressions([now], [before])] == [True] * worse


def test_new_results_replace_the_parts_of_the_same_name_only() -> None:
    parts = ["# Uploads\n\nold\n", "# Pages\n\nold\n"]
    assert merged_parts(parts, ["# Pages\n\nnew\n", "# Chromium\n"]) == [parts[0], "# Pages\n\nnew\n", "# Chromium\n"]
    old = [Claim("pages", "the slowest of 25", "ms", [2.0]), Claim("runs", "one", "ms", [1.0])]
    new = [Claim("pages", "the slowest of 26", "ms", [3.0])]
    assert merged_claims(old, new) == [new[0], old[1]]


def test_the_stored_results_are_split_into_their_parts() -> None:
    text = RESULTS.read_text()
    assert text.endswith("\n\n".join(stored_parts()))
    assert len(stored_parts()) == len(PROGRAMS)


def test_the_published_tables_have_the_stored_claims() -> None:
    stored = load(STORED)
    text = README.read_text()
    assert with_summary(text, stored) == text
    facts = RESULTS.read_text().split("\n")[2].removesuffix(".")
    assert RESULTS.read_text().startswith(overview(facts, stored))


def test_each_missed_target_has_a_reason() -> None:
    missed = [each for each in load(STORED) if each.verdict == "**missed**"]
    assert missed
    assert [each.key for each in missed if not reason(each)] == []


def test_the_readme_is_short() -> None:
    assert len(README.read_text().splitlines()) <= 140
