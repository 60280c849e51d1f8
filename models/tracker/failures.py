"""The failures of a run, by pages: test cases that failed, and suites that failed without a failing case."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from attrs import frozen

from models.tracker.queries import FailureRow, failures_by_id
from models.tracker.reports.base import FAILING
from models.tracker.tables import reports

_ENTRIES = f"""
    SELECT 0 AS kind, r.id AS id, coalesce(s.name, '') AS suite, 0 AS count, CASE WHEN EXISTS
        (SELECT 1 FROM result b WHERE b.run_id = :base AND b.test_id = r.test_id AND b.status IN {FAILING})
        THEN 0 ELSE 1 END AS is_new
    FROM result r JOIN test t ON t.id = r.test_id LEFT JOIN suite s ON s.id = r.suite_id
    LEFT JOIN failure f ON f.result_id = r.id
    WHERE r.run_id = :run AND r.status IN {FAILING}
    AND lower(t.class_name || ' ' || t.name || ' ' || coalesce(f.message, '')) LIKE :pattern ESCAPE '!'
    UNION ALL
    SELECT 1, s.id, s.name, s.failed + s.errors, CASE WHEN EXISTS
        (SELECT 1 FROM suite b WHERE b.run_id = :base AND b.name = s.name AND b.failed + b.errors > 0)
        THEN 0 ELSE 1 END
    FROM suite s WHERE s.run_id = :run AND s.failed + s.errors > 0
    AND s.id NOT IN (SELECT r.suite_id FROM result r WHERE r.run_id = :run AND r.status IN {FAILING}
        AND r.suite_id IS NOT NULL)
    AND lower(s.name) LIKE :pattern ESCAPE '!'"""  # noqa: S608 (constants)
_COUNT = f"SELECT count(*) FROM ({_ENTRIES}) AS entries WHERE is_new >= :least_new"  # noqa: S608
_PAGE = f"""
    SELECT kind, id, suite, count, is_new FROM ({_ENTRIES}) AS entries WHERE is_new >= :least_new
    ORDER BY {{order}}kind DESC, id LIMIT :size OFFSET :start"""  # noqa: S608


@frozen
class FailureEntry:
    """A test case that failed, or a suite that reports `count` failures without a failing case."""

    suite: str
    count: int
    is_new: bool
    case: FailureRow | None


@frozen
class FailurePage:
    entries: Sequence[FailureEntry]
    matching: int
    """The number of entries that match the filter."""
    total: int
    """The number of entries of the run."""


def page_of(
    run_id: int, baseline_id: int | None, q: str, only_new: bool, by_suite: bool, number: int, size: int
) -> FailurePage:
    """One page of the failures of a run. Without a baseline no failure counts as new."""
    unfiltered: dict[str, Any] = {"run": run_id, "base": baseline_id or 0, "pattern": "%", "least_new": 0}
    pattern = q.lower().replace("!", "!!").replace("%", "!%").replace("_", "!_")
    filtered = {**unfiltered, "pattern": f"%{pattern}%", "least_new": int(only_new)}
    order = "suite, " if by_suite else ""
    rows = reports.execute_sql(_PAGE.format(order=order), {**filtered, "size": size, "start": number * size}).fetchall()
    cases = failures_by_id([row[1] for row in rows if row[0] == 0])
    total = int(reports.execute_sql(_COUNT, unfiltered).fetchone()[0])
    matching = int(reports.execute_sql(_COUNT, filtered).fetchone()[0]) if q or only_new else total
    entries = [
        FailureEntry(suite, count, baseline_id is not None and bool(is_new), cases[id] if kind == 0 else None)
        for kind, id, suite, count, is_new in rows
    ]
    return FailurePage(entries, matching, total)
