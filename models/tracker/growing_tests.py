"""The tests whose duration has grown most over the newest runs of a branch."""

from __future__ import annotations

from collections.abc import Sequence

from attrs import frozen

from models.tracker.tables import reports

MAX_TESTS = 10
_MAX_RUNS = 20
_COMPARED_RUNS = 3
"""The median of so many of the newest runs is compared with that of the oldest."""
_MAX_CANDIDATES = 200
_MIN_GROWTH_MS = 10
_MIN_GROWTH = 1.2
_SLOWEST = """
    SELECT test_id FROM result WHERE run_id = ? AND duration_ms > 0 GROUP BY test_id
    ORDER BY sum(duration_ms) DESC, test_id LIMIT ?"""
_DURATIONS = """
    SELECT test_id, run_id, sum(duration_ms) FROM result WHERE test_id IN ({}) AND run_id IN ({}) AND duration_ms > 0
    GROUP BY test_id, run_id"""
_NAMES = "SELECT id, class_name, name FROM test WHERE id IN ({})"


@frozen
class GrowingTest:
    """A test with its duration in the oldest and in the newest of the compared runs (medians)."""

    class_name: str
    name: str
    before_ms: int
    now_ms: int


def of(run_ids: Sequence[int]) -> list[GrowingTest]:
    """Among the slowest tests of the newest of these runs (newest first), those that grew most, the largest first."""
    compared = list(run_ids[:_MAX_RUNS])
    if len(compared) < 2:
        return []
    from statistics import median  # takes a megabyte

    count = min(_COMPARED_RUNS, len(compared) // 2)
    newest, oldest = compared[:count], compared[-count:]
    tests = [row[0] for row in reports.execute_sql(_SLOWEST, (newest[0], _MAX_CANDIDATES)).fetchall()]
    query = _DURATIONS.format(_places(tests), _places([*newest, *oldest]))
    durations: dict[int, dict[int, int]] = {}
    for test, run, milliseconds in reports.execute_sql(query, (*tests, *newest, *oldest)).fetchall():
        durations.setdefault(test, {})[run] = int(milliseconds)
    grown = []
    for test, by_run in durations.items():
        before, now = ([by_run[run] for run in runs if run in by_run] for runs in (oldest, newest))
        if before and now:
            grown.append((test, round(median(before)), round(median(now))))
    grown = [(test, old, new) for test, old, new in grown if new - old >= _MIN_GROWTH_MS and new >= old * _MIN_GROWTH]
    grown = sorted(grown, key=lambda row: (row[1] - row[2], row[0]))[:MAX_TESTS]
    names = _NAMES.format(_places(grown))
    named = {
        row[0]: (str(row[1]), str(row[2])) for row in reports.execute_sql(names, [row[0] for row in grown]).fetchall()
    }
    return [GrowingTest(*named[test], old, new) for test, old, new in grown]


def _places(items: Sequence[object]) -> str:
    return ", ".join("?" * len(items)) or "NULL"
