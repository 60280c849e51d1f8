"""Tests that are gone: fewer than in the baseline, or than in an earlier attempt of a job."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Collection, Iterable, Sequence
from fractions import Fraction

from attrs import frozen

from models.tracker.tables import reports

WARNED_SHARE = Fraction(1, 2)
WARNED_FROM = 20
"""Tests of the baseline from which a drop by more than `WARNED_SHARE` is a warning, whatever the settings are."""

_TESTS = "SELECT id, tests FROM run WHERE id IN (SELECT value FROM json_each(:runs))"
_QUARANTINED = """
    SELECT r.run_id, count(*) FROM mark m JOIN result r ON r.test_id = m.test_id
    WHERE m.status = 'QUARANTINED' AND r.run_id IN (SELECT value FROM json_each(:runs))
    AND m.project_id IN (SELECT project_id FROM run WHERE id IN (SELECT value FROM json_each(:runs)))
    GROUP BY r.run_id"""
_OF_ATTEMPTS = """
    SELECT u.run_id, u.job_key, u.attempt, count(DISTINCT u.job_instance),
        sum(coalesce((SELECT sum(r.tests) FROM report r WHERE r.upload_id = u.id), 0)
        + coalesce((SELECT sum(r.tests) FROM repeated_report x JOIN report r ON r.run_id = u.run_id
            AND r.kind = x.kind AND r.hash = x.hash WHERE x.upload_id = u.id
            AND (r.upload_id IS NULL OR r.upload_id <> u.id)), 0))
    FROM upload u WHERE u.run_id IN (SELECT value FROM json_each(?)) AND u.job_key <> ''
    GROUP BY u.run_id, u.job_key, u.attempt ORDER BY u.run_id, u.job_key, u.attempt"""


@frozen
class TestCount:
    """The number of tests of a run, and of those among them that are quarantined."""

    __test__ = False  # pytest must not take it for a test

    tests: int
    quarantined: int = 0


@frozen
class FewerTests:
    """A job whose last attempt has fewer tests than an earlier one."""

    job_key: str
    attempt: int
    tests: int
    earlier: int
    earlier_tests: int

    @property
    def text(self) -> str:
        return (
            f"attempt {self.attempt} of the job {self.job_key} has {self.tests} tests,"
            f" attempt {self.earlier} had {self.earlier_tests}"
        )


def counts(runs: Collection[int]) -> dict[int, TestCount]:
    """The tests of runs by their ids."""
    if not runs:
        return {}
    ids = {"runs": json.dumps(list(runs))}
    quarantined = dict(reports.execute_sql(_QUARANTINED, ids).fetchall())
    return {id: TestCount(tests, quarantined.get(id, 0)) for id, tests in reports.execute_sql(_TESTS, ids)}


def missing(now: TestCount, before: TestCount) -> int:
    """How many tests are gone. A renamed test counts before and now; a quarantined one is never missing."""
    return max(0, (before.tests - before.quarantined) - (now.tests - now.quarantined))


def share(lost: int, before: int) -> Fraction:
    """The lost ones of so many, in percent."""
    return Fraction(100 * lost, before) if before else Fraction(0)


def of_attempts(runs: Iterable[int]) -> dict[int, list[FewerTests]]:
    """By run, the jobs whose last attempt has fewer tests than an earlier one, which had most."""
    attempts = defaultdict[tuple[int, str], list[tuple[int, int]]](list)
    ambiguous = set[tuple[int, str]]()
    for run, key, attempt, instances, tests in reports.execute_sql(_OF_ATTEMPTS, (json.dumps(list(runs)),)):
        attempts[run, key].append((attempt, int(tests)))
        if instances > 1:
            ambiguous.add((run, key))
    found = defaultdict[int, list[FewerTests]](list)
    for (run, key), tests_of in attempts.items():
        last, now = tests_of[-1]
        earlier, before = max(tests_of, key=lambda one: one[1])
        if now < before and (run, key) not in ambiguous:
            found[run].append(FewerTests(key, last, now, earlier, before))
    return dict(found)


def warnings(run: int, baseline: int | None, is_waiting: bool) -> Sequence[str]:
    """The warnings about tests that are gone, with the limits that no setting changes.

    `is_waiting`: uploads are expected that may have the tests.
    """
    found = [fewer.text for fewer in of_attempts([run]).get(run, ())]
    if baseline is None or is_waiting:
        return found
    tests = counts([run, baseline])
    if baseline in tests and run in tests:
        before, lost = tests[baseline].tests, missing(tests[run], tests[baseline])
        if before >= WARNED_FROM and lost > before * WARNED_SHARE:
            found.append(f"{tests[run].tests} tests are less than half of the {before} of the baseline, run {baseline}")
    return found
