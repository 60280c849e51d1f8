"""Compares two runs of one project: new failures, fixed tests, tests that still fail, changed durations.

Over several runs: the tests whose duration has grown most.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Sequence

from attrs import frozen

from models.tracker import queries
from models.tracker.coverage import coverage_tree
from models.tracker.coverage.file_coverage import pass_rate, percent, share
from models.tracker.gate import new_failures
from models.tracker.reports.base import FAILING
from models.tracker.tables import Run, reports

MAX_TESTS = 500
"""Tests named of each kind; their count is not bounded."""

MAX_TIMINGS = 50
MAX_FILES = 100

_FAILS = f"SELECT test_id FROM result WHERE run_id = ? AND status IN {FAILING}"  # noqa: S608 (constants)
_PASSES = "SELECT test_id FROM result WHERE run_id = ? AND status = 0"
_NEW = "SELECT value FROM json_each(?)"
_STILL = f"{_FAILS} AND test_id NOT IN ({_NEW})"
_FIXED = f"SELECT test_id FROM ({_FAILS} EXCEPT {_FAILS}) AS gone WHERE test_id IN ({_PASSES})"  # noqa: S608
_PASSED_SUITES = "SELECT DISTINCT name FROM suite WHERE run_id = ? AND failed + errors = 0"
_NAMED = "SELECT t.class_name, t.name FROM test t WHERE t.id IN ({}) ORDER BY t.class_name, t.name"
_LENGTHS = "SELECT test_id, sum(duration_ms) AS ms FROM result WHERE run_id = ? GROUP BY test_id"
_TIMES = f"""
    SELECT t.class_name, t.name, was.ms, now.ms FROM ({_LENGTHS}) was JOIN ({_LENGTHS}) now USING (test_id)
    JOIN test t ON t.id = was.test_id WHERE was.ms <> now.ms
    ORDER BY abs(now.ms - was.ms) DESC, t.class_name, t.name LIMIT {MAX_TIMINGS}"""  # noqa: S608
_RAN = "SELECT test_id FROM result WHERE run_id = ?"
_ADDED = f"{_RAN} EXCEPT {_RAN}"
_SUITES = "SELECT name, sum(duration_ms) FROM suite WHERE run_id = ? GROUP BY name"

MAX_GROWING_TESTS = 10
_MAX_COMPARED_RUNS = 20
_MEDIAN_RUNS = 3
"""The median of so many of the newest runs is compared with that of the oldest."""
_MAX_CANDIDATES = 200
_MIN_GROWTH_MS = 10
_MIN_GROWTH = 1.2
_SLOWEST = """
    SELECT test_id FROM result WHERE run_id = ? AND duration_ms > 0 GROUP BY test_id
    ORDER BY sum(duration_ms) DESC, test_id LIMIT ?"""
_DURATIONS = """
    SELECT test_id, run_id, sum(duration_ms) FROM result WHERE test_id IN (SELECT value FROM json_each(?))
    AND run_id IN (SELECT value FROM json_each(?)) AND duration_ms > 0 GROUP BY test_id, run_id"""
_NAMES_BY_ID = "SELECT id, class_name, name FROM test WHERE id IN (SELECT value FROM json_each(?))"


@frozen
class Named:
    class_name: str
    name: str


@frozen
class Timing:
    """The durations of a test in both runs."""

    class_name: str
    name: str
    base_ms: int
    head_ms: int


@frozen
class Tests:
    """The first `MAX_TESTS` tests by name, and the count of all."""

    __test__ = False  # pytest must not take it for a test

    named: Sequence[Named]
    count: int


@frozen
class Changes:
    """Tests whose outcome changed between two runs, quarantined ones included."""

    failing: Tests
    """They fail in `head` more often than in `base`."""
    fixed: Tests
    """They failed in `base` and passed in `head`."""
    still_failing: Tests


@frozen
class Comparison:
    """`head` compared with `base`. `coverage_delta` is None where either run has no coverage."""

    base: Run
    head: Run
    changes: Changes
    timings: Sequence[Timing]
    pass_rate_delta: float
    coverage_delta: float | None
    duration_delta_ms: int


def changes(base: Run, head: Run) -> Changes:
    """A suite that failed without a failed test in it counts as a test of its own name."""
    new = new_failures.of_run(head.id, base.id)
    tests = json.dumps([*new.tests])
    before, after = ({row.name for row in queries.suite_failures(run.id)} for run in (base, head))
    passed = {name for (name,) in reports.execute_sql(_PASSED_SUITES, (head.id,))} if before else set[str]()
    return Changes(
        failing=_tests(new.suites, _NEW, tests),
        fixed=_tests(before & passed - after, _FIXED, base.id, head.id, head.id),
        still_failing=_tests(after - {*new.suites}, _STILL, head.id, tests),
    )


def compare(base: Run, head: Run) -> Comparison:
    """Two runs of one project."""
    before, after = (share(run.line_covered, run.line_missed) for run in (base, head))
    times = reports.execute_sql(_TIMES, (base.id, head.id)).fetchall()
    return Comparison(
        base=base,
        head=head,
        changes=changes(base, head),
        timings=[Timing(*row) for row in times],
        pass_rate_delta=pass_rate(head) - pass_rate(base),
        coverage_delta=None if before is None or after is None else float(after - before),
        duration_delta_ms=head.duration_ms - base.duration_ms,
    )


@frozen
class FileChange:
    """The line coverage of a file in both runs, in percent; `None` where the run does not have it."""

    path: str
    base: float | None
    head: float | None
    missed: int
    """Missed lines in `head`, or in `base` where `head` lacks the file."""

    @property
    def delta(self) -> float:
        return (self.head or 0.0) - (self.base or 0.0)


@frozen
class SuiteChange:
    """The duration of a suite in both runs; `None` where the run does not have it."""

    name: str
    base_ms: int | None
    head_ms: int | None

    @property
    def delta_ms(self) -> int:
        return (self.head_ms or 0) - (self.base_ms or 0)


@frozen
class Differences:
    """What else differs between two runs; the largest changes first."""

    added: Tests
    removed: Tests
    files: Sequence[FileChange]
    file_count: int
    suites: Sequence[SuiteChange]


def differences(base: Run, head: Run) -> Differences:
    """The tests, the coverage of files and the durations of suites that differ."""
    after = coverage_tree.files_of(head)
    before = coverage_tree.files_before(base, head, after)
    files = [_file(path, before.get(path), after.get(path)) for path in before.keys() | after.keys()]
    files.sort(key=lambda file: (-abs(file.delta), file.base is not None and file.head is not None, file.path))
    times = [dict(reports.execute_sql(_SUITES, (run.id,)).fetchall()) for run in (base, head)]
    suites = [SuiteChange(name, times[0].get(name), times[1].get(name)) for name in times[0].keys() | times[1].keys()]
    suites.sort(key=lambda suite: (-abs(suite.delta_ms), suite.name))
    return Differences(
        added=_tests((), _ADDED, head.id, base.id),
        removed=_tests((), _ADDED, base.id, head.id),
        files=files[:MAX_FILES],
        file_count=len(files),
        suites=suites[:MAX_FILES],
    )


def _file(path: str, before: coverage_tree.Counts | None, after: coverage_tree.Counts | None) -> FileChange:
    base, head = (None if counts is None else percent(*counts) for counts in (before, after))
    return FileChange(path, base, head, (after or before or (0, 0))[1])


def _tests(suites: Collection[str], query: str, *values: int | str) -> Tests:
    rows = [("", suite) for suite in sorted(suites)]
    rows += reports.execute_sql(_NAMED.format(query), values).fetchall()
    return Tests([Named(*row) for row in rows[:MAX_TESTS]], len(rows))


@frozen
class GrowingTest:
    """A test with its duration in the oldest and in the newest of the compared runs (medians)."""

    class_name: str
    name: str
    before_ms: int
    now_ms: int


def growing_tests(run_ids: Sequence[int]) -> list[GrowingTest]:
    """Among the slowest tests of the newest of these runs (newest first), those that grew most, the largest first."""
    compared = list(run_ids[:_MAX_COMPARED_RUNS])
    if len(compared) < 2:
        return []
    from statistics import median  # takes a megabyte

    count = min(_MEDIAN_RUNS, len(compared) // 2)
    newest, oldest = compared[:count], compared[-count:]
    tests = [row[0] for row in reports.execute_sql(_SLOWEST, (newest[0], _MAX_CANDIDATES)).fetchall()]
    values = (json.dumps(tests), json.dumps([*newest, *oldest]))
    durations: dict[int, dict[int, int]] = {}
    for test, run, milliseconds in reports.execute_sql(_DURATIONS, values).fetchall():
        durations.setdefault(test, {})[run] = int(milliseconds)
    grown = []
    for test, by_run in durations.items():
        before, now = ([by_run[run] for run in runs if run in by_run] for runs in (oldest, newest))
        if before and now:
            grown.append((test, round(median(before)), round(median(now))))
    grown = [(test, old, new) for test, old, new in grown if new - old >= _MIN_GROWTH_MS and new >= old * _MIN_GROWTH]
    grown = sorted(grown, key=lambda row: (row[1] - row[2], row[0]))[:MAX_GROWING_TESTS]
    rows = reports.execute_sql(_NAMES_BY_ID, (json.dumps([test for test, _, _ in grown]),))
    names = {test: (class_name, name) for test, class_name, name in rows}
    return [GrowingTest(*names[test], old, new) for test, old, new in grown]
