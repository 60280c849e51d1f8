"""The failures of a run, by pages: test cases that failed, and suites that failed without a failing case.

They are listed one by one, or in groups by cause (failure cluster) or suite.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any, Literal, get_args

from attrs import evolve, frozen

from models.tracker.gate import new_failures
from models.tracker.gate.new_failures import NewFailures
from models.tracker.queries import FailureRow, failures_by_id
from models.tracker.reports.base import FAILING
from models.tracker.tables import reports

Grouping = Literal["cause", "suite", "none"]

GROUPINGS: tuple[Grouping, ...] = get_args(Grouping)
SUITE_FAILED = -1
"""The cause of a suite that failed without a failing case."""
SHOWN_OF_GROUP = 3
_TRACEBACK_HEAD = "Traceback (most recent call last):"

_ENTRIES = f"""
    SELECT 0 AS kind, r.id AS id, coalesce(s.name, '') AS suite, coalesce(f.cluster_id, 0) AS cause, 0 AS count,
        CASE WHEN r.id IN (SELECT value FROM json_each(:new_results)) THEN 1 ELSE 0 END AS is_new
    FROM result r JOIN test t ON t.id = r.test_id LEFT JOIN suite s ON s.id = r.suite_id
    LEFT JOIN failure f ON f.result_id = r.id
    WHERE r.run_id = :run AND r.status IN {FAILING}
    AND lower(t.class_name || ' ' || t.name || ' ' || coalesce(f.message, '')) LIKE :pattern ESCAPE '!'
    UNION ALL
    SELECT 1, s.id, s.name, {SUITE_FAILED}, s.failed + s.errors,
        CASE WHEN s.id IN (SELECT value FROM json_each(:new_suites)) THEN 1 ELSE 0 END
    FROM failed_suite s WHERE s.run_id = :run AND lower(s.name) LIKE :pattern ESCAPE '!'"""  # noqa: S608 (constants)
_MATCHING = f"FROM ({_ENTRIES}) AS entries WHERE is_new >= :least_new{{only}}"
_COUNT = f"SELECT count(*), count(DISTINCT cause), count(DISTINCT suite) {_MATCHING}"
_PAGE = f"SELECT kind, id, suite, count, is_new {_MATCHING} ORDER BY kind DESC, id LIMIT :size OFFSET :start"
_GROUPS = f"""
    WITH placed AS (SELECT kind, id, suite, count, is_new, {{key}} AS name,
        row_number() OVER (PARTITION BY {{key}} ORDER BY kind DESC, id) AS place {_MATCHING}),
    largest AS (SELECT name, count(*) AS failures, sum(is_new) AS fresh, min(id) AS first FROM placed GROUP BY name
        ORDER BY count(*) DESC, min(id) LIMIT :size OFFSET :start)
    SELECT g.name, g.failures, g.fresh, p.kind, p.id, p.suite, p.count, p.is_new
    FROM largest g JOIN placed p ON p.name = g.name AND p.place <= {SHOWN_OF_GROUP}
    ORDER BY g.failures DESC, g.first, p.place"""  # noqa: S608
_CAUSES = """
    SELECT c.id, c.signature, CASE WHEN EXISTS (SELECT 1 FROM cluster_case k WHERE k.run_id = :base
        AND k.cluster_id = c.id) THEN 1 ELSE 0 END
    FROM cluster c WHERE c.id IN (SELECT value FROM json_each(:ids))"""


@frozen
class FailureQuery:
    """Which failures of a run, and how they are listed. None: any."""

    q: str = ""
    only_new: bool = False
    group: Grouping = "cause"
    cause: int | None = None
    suite: str | None = None

    @property
    def is_filtered(self) -> bool:
        return bool(self.q or self.only_new) or self.cause is not None or self.suite is not None


@frozen
class FailureEntry:
    """A test case that failed, or a suite that reports `count` failures without a failing case."""

    suite: str
    count: int
    is_new: bool
    case: FailureRow | None


@frozen
class FailureGroup:
    """The matching failures of one cause or suite."""

    key: int | str
    """The id of the cause, 0 for failures without one, or the name of the suite."""
    title: str
    failures: int
    new: int
    """How many of them are new."""
    is_new: bool
    """Whether the baseline has no failure of this cause or suite."""
    entries: Sequence[FailureEntry]
    """The first `SHOWN_OF_GROUP`."""


@frozen
class FailureListing:
    """One page: `groups`, or `entries` where they are not grouped."""

    groups: Sequence[FailureGroup]
    entries: Sequence[FailureEntry]
    matching: int
    """The number of entries that match the filter."""
    total: int
    """The number of entries of the run."""
    number: int
    """From 0; the last page where the query names a later one."""
    count: int
    """The number of pages."""


def page_of(run_id: int, baseline_id: int | None, query: FailureQuery, number: int, size: int) -> FailureListing:
    """One page of the failures of a run. Without a baseline no failure counts as new."""
    new = NewFailures() if baseline_id is None else new_failures.of_run(run_id, baseline_id)
    values: dict[str, Any] = {"run": run_id, "pattern": "%", "least_new": 0}
    values |= {"new_results": json.dumps([*new.results]), "new_suites": json.dumps([*new.suite_rows])}
    total = int(reports.execute_sql(_COUNT.format(only=""), values).fetchone()[0])
    pattern = query.q.lower().replace("!", "!!").replace("%", "!%").replace("_", "!_")
    values |= {"pattern": f"%{pattern}%", "least_new": int(query.only_new)}
    only = ""
    if query.cause is not None:
        only, values["cause"] = f"{only} AND cause = :cause", query.cause
    if query.suite is not None:
        only, values["suite"] = f"{only} AND suite = :suite", query.suite
    matching, causes, suites = reports.execute_sql(_COUNT.format(only=only), values).fetchone()
    count = max(1, -(-{"cause": causes, "suite": suites, "none": matching}[query.group] // size))
    number = min(number, count - 1)
    values |= {"size": size, "start": number * size}
    page = FailureListing((), (), matching, total, number, count)
    if query.group == "none":
        rows = reports.execute_sql(_PAGE.format(only=only), values).fetchall()
        return evolve(page, entries=_entries(rows, baseline_id))
    rows = reports.execute_sql(_GROUPS.format(only=only, key=query.group), values).fetchall()
    return evolve(page, groups=_groups(rows, baseline_id, query.group))


def _entries(rows: Sequence[Sequence[Any]], baseline_id: int | None) -> list[FailureEntry]:
    cases = failures_by_id([row[1] for row in rows if row[0] == 0])
    return [
        FailureEntry(suite, count, baseline_id is not None and bool(is_new), cases[id] if kind == 0 else None)
        for kind, id, suite, count, is_new in rows
    ]


def _groups(rows: Sequence[Sequence[Any]], baseline_id: int | None, grouping: Grouping) -> list[FailureGroup]:
    """The groups of rows that are in their order."""
    known: dict[Any, tuple[str, bool]] = {}
    if grouping == "cause":
        known = {
            0: ("Failures without a cause", True),
            SUITE_FAILED: ("Suites that failed without a failing test", True),
        }
        ids = json.dumps(sorted({row[0] for row in rows}))
        causes = reports.execute_sql(_CAUSES, {"base": baseline_id or 0, "ids": ids}).fetchall()
        known |= {id: (_title(signature), bool(is_old)) for id, signature, is_old in causes}
    entries: dict[Any, list[FailureEntry]] = {}
    counts: dict[Any, tuple[int, int]] = {}
    for row, entry in zip(rows, _entries([row[3:] for row in rows], baseline_id), strict=True):
        entries.setdefault(row[0], []).append(entry)
        counts[row[0]] = row[1], int(row[2]) if baseline_id is not None else 0
    return [
        FailureGroup(
            key, title, failures, new, baseline_id is not None and (new == failures or not is_old), entries[key]
        )
        for key, (failures, new) in counts.items()
        for title, is_old in [known.get(key, (str(key) or "Without a suite", True))]
    ]


def _title(signature: str) -> str:
    """The parts of a signature (type, message, frame) that are not empty. The head of a traceback is no frame."""
    parts = [part.strip() for part in signature.split(" | ")]
    return " | ".join(part for part in parts if part not in ("", _TRACEBACK_HEAD)) or "Failures without a message"
