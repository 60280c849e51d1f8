"""Since when a test fails: the first failing run and the last passed one, on the branch and flag of a run."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise

from attrs import frozen

from models.tracker.queries import runs_by_id
from models.tracker.reports.base import FAILING
from models.tracker.tables import Run, reports

MAX_RUNS = 500

_WINDOW = """
    SELECT id FROM counted_run WHERE project_id = ? AND branch IS ? AND flag = ?
    AND (created_at, id) <= (?, ?) ORDER BY created_at DESC, id DESC LIMIT ?"""
_LAST_PASSED = f"""
    SELECT test_id, max(run_id) FROM (SELECT r.test_id, r.run_id FROM
        (SELECT value AS test FROM json_each(:tests)) AS t
        CROSS JOIN result r ON r.test_id = t.test AND r.run_id BETWEEN :first AND :last
        WHERE r.run_id IN (SELECT value FROM json_each(:runs)) GROUP BY r.test_id, r.run_id
        HAVING min(r.status) = 0 AND max(CASE WHEN r.status IN {FAILING} THEN 1 ELSE 0 END) = 0) AS passed
    GROUP BY test_id"""  # noqa: S608 (constants)
_FIRST_FAILING = f"""
    SELECT r.test_id, min(r.run_id) FROM (SELECT value AS test FROM json_each(:tests)) AS t
    CROSS JOIN result r ON r.test_id = t.test AND r.run_id BETWEEN :first AND :last
    WHERE r.run_id IN (SELECT value FROM json_each(:runs)) AND r.status IN {FAILING} GROUP BY r.test_id"""  # noqa: S608
_CHUNKS = (0, 5, 50, MAX_RUNS)
"""Most failures are new: the runs are searched in pieces, the newest first."""


@frozen
class FirstFailure:
    """The first run of an unbroken series of failures, and the run before it in which the test passed."""

    first_failing: Run
    last_passed: Run | None


def first_failures(run: Run, tests: Iterable[int]) -> Mapping[int, FirstFailure]:
    """By test that fails in `run`: since when, at most `MAX_RUNS` runs back. Runs without the test are passed over."""
    if not (tests := set(tests)):
        return {}
    values = (run.project_id, run.branch, run.flag, run.created_at, run.id, MAX_RUNS)
    window = [row[0] for row in reports.execute_sql(_WINDOW, values)]
    if not window:
        return {}
    passed = _last_passed(tests, window)
    by_passed = defaultdict[int, list[int]](list)
    for test in tests:
        by_passed[passed.get(test, 0)].append(test)
    failing: dict[int, int] = {}
    for run_id, failed in by_passed.items():
        failing.update(_search(_FIRST_FAILING, failed, [id for id in window if id > run_id]))
    runs = runs_by_id({*passed.values(), *failing.values()})
    return {
        test: FirstFailure(runs[first], runs[passed[test]] if test in passed else None)
        for test, first in failing.items()
    }


def _last_passed(tests: Iterable[int], window: Sequence[int]) -> dict[int, int]:
    """By test, the newest of the runs in which it passed; a run in which it failed too does not count."""
    found: dict[int, int] = {}
    for first, last in pairwise(_CHUNKS):
        found |= _search(_LAST_PASSED, [test for test in tests if test not in found], window[first:last])
    return found


def _search(query: str, tests: Sequence[int], runs: Sequence[int]) -> dict[int, int]:
    if not tests or not runs:
        return {}
    values = {"tests": json.dumps(tests), "runs": json.dumps(runs), "first": min(runs), "last": max(runs)}
    return dict(reports.execute_sql(query, values).fetchall())
