"""Lists of tests by their summaries (`summaries.py`), in pages by the key of the last row.

Where summaries are kept, a page costs by the number of tests, not by their history. Otherwise they are computed from
the newest runs, with `MAX_READ` results or the first run.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import groupby
from typing import Any, Literal, get_args

from attrs import frozen

from models.inputs import choice, free_text, instant, query
from models.paging import INT64, cut, decode_cursor
from models.tracker.insights import counting
from models.tracker.insights.summaries import CountedResult, Summary, summary_of
from models.tracker.tables import reports

Sort = Literal["slowest", "growing", "unreliable", "never-failing"]

SORTS: tuple[Sort, ...] = get_args(Sort)
MAX_READ = 200_000
"""So many results are read where no summaries are kept."""
_MILLION = 1_000_000

_CONDITIONS = {
    "slowest": ("median_us IS NOT NULL", "median_us"),
    "growing": ("growth_us > 0", "growth_us"),
    "unreliable": ("unreliable > 0", f"unreliable * {_MILLION} / runs"),
    "never-failing": ("failures = 0", "runs"),
}
"""Which summaries a list has, and the key by which it is sorted, the highest first."""
_KEYS: Mapping[str, Callable[[Summary], int | None]] = {
    "slowest": lambda summary: summary.median_us,
    "growing": lambda summary: summary.growth_us if (summary.growth_us or 0) > 0 else None,
    "unreliable": lambda summary: summary.unreliable * _MILLION // summary.runs if summary.unreliable else None,
    "never-failing": lambda summary: None if summary.failures else summary.runs,
}
"""The same key, None for a summary that the list does not have."""
_SHOWN = (
    "runs", "failures", "flaky", "unreliable", "median_us", "growth_us", "last_failure_at", "recoveries", "recovery_us",
)  # fmt: skip
_KEPT = f"""
    SELECT i.test_id, t.class_name, t.name, t.file, i.place, {", ".join(f"i.{name}" for name in _SHOWN)}
    FROM (SELECT test_id, {", ".join(_SHOWN)}, {{key}} AS place FROM insight WHERE scope_id = :scope AND {{condition}}
        AND ({{key}} < :key OR {{key}} = :key AND test_id > :test) ORDER BY {{key}} DESC, test_id LIMIT :limit) AS i
    JOIN test t ON t.id = i.test_id ORDER BY i.place DESC, i.test_id"""  # noqa: S608 (constants)
_SCOPE = """
    SELECT id FROM insight_scope WHERE project_id = :project AND branch IS :branch AND flag IS :flag AND complete = 1"""
_OLDER = "SELECT 1 FROM run WHERE project_id = ? AND created_at < ? LIMIT 1"
_RUNS = """
    SELECT c.id, c.tests FROM run c WHERE c.project_id = :project AND c.created_at >= :since{only}
    ORDER BY c.created_at DESC, c.id DESC LIMIT :limit"""
_MAX_RUNS = 5_000
_ONLY = {"branch": " AND c.branch = :branch", "flag": " AND c.flag = :flag"}
_TESTS = "SELECT id, class_name, name, file FROM test WHERE id IN (SELECT value FROM json_each(?))"


@frozen(slots=False)  # a base beside another one
class InsightFilter:
    """The results that the summaries are about. None: of any."""

    since: int | None = query(
        "Only results of runs since this time", kind=instant("2026-11-20T19:00:00Z", zone_needed=False)
    )
    branch: str | None = query("Only results of runs on this branch", kind=free_text("main"))
    flag: str | None = query("Only results of runs of this flag", kind=free_text("unit"))


@frozen(slots=False)  # a base beside another one
class InsightQuery(InsightFilter):
    """A list of tests."""

    sort: Sort = query(
        "The longest median first, the steepest growth, the most failing and flaky results, or of the tests that never"
        " failed those with the most runs",
        "slowest",
        kind=choice(*SORTS, shown=f"one of {', '.join(SORTS)}"),
    )


@frozen
class Insight:
    """The summary of a test; its key in the list that it is in."""

    test_id: int
    class_name: str
    name: str
    file: str | None
    key: int
    runs: int
    failures: int
    flaky: int
    unreliable: int
    median_us: int | None
    growth_us: int | None
    last_failure_at: int | None
    recoveries: int
    recovery_us: int


@frozen
class InsightListing:
    """A page of a list. `runs_read`: the number of newest runs that it is about, None where it is about all.

    `is_current`: all stored results are counted.
    """

    items: Sequence[Insight]
    next_cursor: str | None
    runs_read: int | None = None
    is_current: bool = True


@frozen
class SummarySource:
    """Where lists of tests are read: the scope of kept summaries, or summaries that were computed from runs."""

    scope: int | None
    computed: Mapping[int, Summary]
    runs_read: int | None
    is_current: bool

    def page(self, sort: str, limit: int, cursor: str | None = None) -> InsightListing:
        """A page of one of the lists in `SORTS`. Raises `Invalid`."""
        key, test = decode_cursor(cursor, int, int) if cursor else (INT64, 0)
        read = _computed if self.scope is None else _kept
        items, next_cursor = cut(read(self, sort, key, test, limit + 1), limit, lambda one: (one.key, one.test_id))
        return InsightListing(items, next_cursor, self.runs_read, self.is_current)


def source(project_id: int, filter: InsightFilter) -> SummarySource:
    """The summaries of the tests of a project.

    While results are not counted yet, they are computed if that does not leave runs out.
    """
    scope, is_current = _scope(project_id, filter), counting.is_current(project_id)
    if scope is not None and is_current:
        return SummarySource(scope, {}, None, True)
    runs, is_partial = _runs(project_id, filter)
    if scope is not None and is_partial:
        return SummarySource(scope, {}, None, False)
    return SummarySource(None, _summaries(runs), len(runs) if is_partial else None, True)


def _scope(project_id: int, filter: InsightFilter) -> int | None:
    """The scope in which the summaries are kept, None where there is none."""
    if filter.since is not None and reports.execute_sql(_OLDER, (project_id, filter.since)).fetchone() is not None:
        return None
    values = {"project": project_id, "branch": filter.branch, "flag": filter.flag}
    row = reports.execute_sql(_SCOPE, values).fetchone()
    return None if row is None else int(row[0])


def _runs(project_id: int, filter: InsightFilter) -> tuple[Sequence[int], bool]:
    """The newest runs that match, with `MAX_READ` results at most or the first one, and whether there are more."""
    given = {name: getattr(filter, name) for name in _ONLY if getattr(filter, name) is not None}
    values = {"project": project_id, "since": filter.since or -INT64, "limit": _MAX_RUNS + 1, **given}
    rows = reports.execute_sql(_RUNS.format(only="".join(_ONLY[name] for name in given)), values).fetchall()
    found, results = list[int](), 0
    for id, tests in rows[:_MAX_RUNS]:
        results += tests
        if found and results > MAX_READ:
            break
        found.append(id)
    return found, len(found) < len(rows)


def _summaries(runs: Sequence[int]) -> dict[int, Summary]:
    rows = reports.execute_sql(counting.OF_RUNS, {"runs": json.dumps([*runs])})
    results: Iterable[CountedResult] = map(CountedResult._make, rows)
    return {test: summary_of([*group]) for test, group in groupby(results, key=lambda result: result.test_id)}


def _computed(source: SummarySource, sort: str, key: int, test: int, limit: int) -> Sequence[Insight]:
    of, rows = _KEYS[sort], list[tuple[int, int]]()
    for id, summary in source.computed.items():
        place = of(summary)
        if place is not None and (-place, id) > (-key, test):
            rows.append((-place, id))
    rows = sorted(rows)[:limit]
    named = {id: names for id, *names in reports.execute_sql(_TESTS, (json.dumps([id for _, id in rows]),))}
    return [_insight(id, named[id], -place, source.computed[id]) for place, id in rows]


def _insight(id: int, names: Sequence[Any], key: int, summary: Summary) -> Insight:
    class_name, name, file = names
    return Insight(id, class_name, name, file, key, *(getattr(summary, column) for column in _SHOWN))


def _kept(source: SummarySource, sort: str, key: int, test: int, limit: int) -> Sequence[Insight]:
    condition, place = _CONDITIONS[sort]
    values = {"scope": source.scope, "key": key, "test": test, "limit": limit}
    rows = reports.execute_sql(_KEPT.format(condition=condition, key=place), values)
    return [Insight(*row) for row in rows]
