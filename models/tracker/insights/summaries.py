"""The summary of the results of a test: counts, its duration and the growth of it, and the time to green.

A skipped result does not count. Results are in the order of their ids, in which they were stored. Superseded attempts
count as runs of their own.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from functools import lru_cache
from itertools import groupby
from typing import NamedTuple

from attrs import frozen

from models.tracker.reports.base import CASE_STATUSES, FAILING, CaseStatus

SAMPLE = 30
"""The newest durations, from which the median and the growth are computed."""
SKIPPED = CASE_STATUSES.index(CaseStatus.SKIPPED)
_PASSED = CASE_STATUSES.index(CaseStatus.PASSED)
_MICROSECONDS = 1000


class CountedResult(NamedTuple):
    """A result of a test. `at` is the time of its upload, in microseconds."""

    id: int
    test_id: int
    run_id: int
    status: int
    flaky: int
    duration_ms: int | None
    at: int
    branch: str | None
    flag: str
    commit: str | None
    module: str | None
    suite: str | None


@frozen
class Summary:
    """What results amount to. Times are microseconds, and null where no result has one.

    `since` is the id of the oldest result that counts, 0 where none before it was left out.

    `floor` is a lower bound of the ids of the results in the sample. `marked` results of it came after that with the id
    `mark`: so `floor` follows the sample, of which the ids are not kept.
    """

    runs: int = 0
    failures: int = 0
    flaky: int = 0
    unreliable: int = 0
    """Results that failed, or were flaky."""
    median_us: int | None = None
    growth_us: int | None = None
    """The Theil-Sen slope of the durations in the sample, for each run."""
    last_failure_at: int | None = None
    recoveries: int = 0
    recovery_us: int = 0
    """The sum of the times from the first failure on a branch in a flag to the next run that passes there."""
    is_red: int = 0
    """1 if the newest run on some branch in some flag fails."""
    floor: int = 0
    mark: int = 0
    marked: int = 0
    since: int = 0
    sample: tuple[int, ...] = ()

    @property
    def is_steady(self) -> bool:
        """Whether it never failed and never was flaky."""
        return not self.unreliable


def summary_of(results: Sequence[CountedResult]) -> Summary:
    """The summary of the results of one test, which are sorted by id."""
    failed = {result.id for result in results if result.status in FAILING}
    flaky = _flaky(results, failed)
    timed = [result for result in results if result.duration_ms is not None][-SAMPLE:]
    sample = tuple(result.duration_ms or 0 for result in timed)
    median, growth = figures(sample)
    recoveries, recovery_us, is_red = _recoveries(results, failed)
    last = max((result.at for result in results if result.id in failed), default=None)
    floor, mark = (timed[0].id, timed[-1].id) if timed else (0, 0)
    return Summary(
        len(results), len(failed), len(flaky), len(failed | flaky), median, growth, last, recoveries, recovery_us,
        is_red, floor, mark, 0, 0, sample,
    )  # fmt: skip


def extended(known: Summary, results: Sequence[CountedResult]) -> Summary:
    """The summary with further results, which passed, of a test that is not red."""
    floor, mark, marked, sample = known.floor, known.mark, known.marked, known.sample
    for result in results:
        if result.duration_ms is None:
            continue
        sample = (*sample, result.duration_ms)[-SAMPLE:]
        if not mark:
            floor = mark = result.id
            continue
        marked += 1
        if marked == SAMPLE:
            floor, mark, marked = mark, result.id, 0
    median, growth = figures(sample)
    return Summary(
        known.runs + len(results), known.failures, known.flaky, known.unreliable, median, growth, known.last_failure_at,
        known.recoveries, known.recovery_us, known.is_red, floor, mark, marked, known.since, sample,
    )  # fmt: skip


@lru_cache(maxsize=256)
def figures(sample: tuple[int, ...]) -> tuple[int | None, int | None]:
    """The median of durations in milliseconds and their Theil-Sen slope, in microseconds; None where there is none."""
    if not sample:
        return None, None
    median = round(_median(sorted(sample)) * _MICROSECONDS)
    if len(sample) < 2:
        return median, None
    if min(sample) == max(sample):
        return median, 0
    slopes = [
        (later - earlier) / (place - before)
        for place, later in enumerate(sample)
        for before, earlier in enumerate(sample[:place])
    ]
    slopes.sort()
    return median, round(_median(slopes) * _MICROSECONDS)


def _median(ordered: Sequence[float]) -> float:
    middle = len(ordered) // 2
    return ordered[middle] if len(ordered) % 2 else (ordered[middle - 1] + ordered[middle]) / 2


def _flaky(results: Sequence[CountedResult], failed: Collection[int]) -> set[int]:
    """The ids of the results that are marked flaky, or failed for a commit for which the test passed in another run.

    Both in one flag, module and suite, as in `models/tracker/failures/flaky.py`.
    """
    found = {result.id for result in results if result.flaky}
    if not failed or len(failed) == len(results):
        return found
    runs = dict[tuple[object, ...], dict[int, bool]]()
    for result in results:
        if result.commit is not None:
            good = runs.setdefault(_leg(result), {})
            passed = result.status == _PASSED
            good[result.run_id] = good.get(result.run_id, True) and passed
    for result in results:
        if result.id in failed and result.commit is not None:
            others = runs[_leg(result)].items()
            if any(is_good and run != result.run_id for run, is_good in others):
                found.add(result.id)
    return found


def _leg(result: CountedResult) -> tuple[object, ...]:
    return result.commit, result.flag, result.module, result.suite


def _recoveries(results: Sequence[CountedResult], failed: Collection[int]) -> tuple[int, int, int]:
    """How often a branch was green again in a flag, after how long in all, and 1 if one is red."""
    if not failed:
        return 0, 0, 0
    red, count, total = dict[tuple[str | None, str], int](), 0, 0
    for group in _by_run(results):
        first = group[0]
        key = first.branch, first.flag
        if any(result.id in failed for result in group):
            red.setdefault(key, first.at)
        elif (since := red.pop(key, None)) is not None:
            count += 1
            total += max(0, first.at - since)
    return count, total, int(bool(red))


def _by_run(results: Sequence[CountedResult]) -> Iterator[Sequence[CountedResult]]:
    """The results of each run, in the order of the first ones."""
    runs = dict[int, list[CountedResult]]()
    for run, group in groupby(results, key=lambda result: result.run_id):
        runs.setdefault(run, []).extend(group)
    yield from runs.values()
