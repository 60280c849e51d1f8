"""Keeps the summaries of tests current as results are stored and deleted, in short transactions.

The results up to an id, the position, are counted; those after it follow in batches. The position is stored with the
counts, so that none is counted twice or never, and what an earlier version has stored is counted in the same way.
Results have ids in the order in which they are stored. A test whose results were changed otherwise is due: it is
counted again from all its results.

A summary is kept for each test of a project over all of its runs and over those of each flag, and of both also on
a branch, if that was the base branch when its first result was counted.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

import attrs
from attrs import frozen

from models.tracker.insights.summaries import SKIPPED, CountedResult, Summary, extended, summary_of
from models.tracker.reports.base import FAILING
from models.tracker.tables import reports

BATCH_RESULTS = 250
MAX_READ_AGAIN = 2_000
"""So many results of tests that are due are read in one transaction, or those of one test."""
MAX_RUNS_OF_COMMIT = 50
"""The newest runs of a commit in which failures are looked for that a passing result makes flaky."""
MAX_RESULTS = 2_000
"""The newest results of a test from which it is counted again."""

_COLUMNS = tuple(field.name for field in attrs.fields(Summary))
_POSITION = "SELECT coalesce(max(position), 0) FROM backfill WHERE name = 'insights'"
_WORK = f"SELECT 1 FROM result WHERE id > ({_POSITION}) UNION ALL SELECT 1 FROM insight_due LIMIT 1"  # noqa: S608
_SET_POSITION = """
    INSERT INTO backfill (name, position) VALUES ('insights', ?)
    ON CONFLICT (name) DO UPDATE SET position = excluded.position"""
_LIMIT_POSITION = "UPDATE backfill SET position = ? WHERE name = 'insights' AND position > ?"
_RESULT = """
    r.id, r.test_id, r.run_id, r.status, r.flaky, r.duration_ms, p.created_at, c.branch, c.flag, c.commit_sha,
    p.module, s.name"""
_JOINED = "JOIN run c ON c.id = r.run_id JOIN report p ON p.id = r.report_id LEFT JOIN suite s ON s.id = r.suite_id"
_NEXT = f"""
    SELECT c.project_id, {_RESULT} FROM (SELECT id, test_id, run_id, report_id, suite_id, status, flaky, duration_ms
        FROM result WHERE id > :position ORDER BY id LIMIT :limit) AS r
    {_JOINED} ORDER BY r.id"""  # noqa: S608 (constants)
_OF_TEST = f"""
    SELECT {_RESULT} FROM (SELECT id, test_id, run_id, report_id, suite_id, status, flaky, duration_ms FROM result
        WHERE test_id = :test AND id <= :position ORDER BY run_id DESC, id DESC LIMIT {MAX_RESULTS}) AS r
    {_JOINED} WHERE c.project_id = :project ORDER BY r.id"""  # noqa: S608
OF_RUNS = f"""
    SELECT {_RESULT} FROM result r {_JOINED} WHERE r.run_id IN (SELECT value FROM json_each(:runs))
    AND r.status <> {SKIPPED} ORDER BY r.test_id, r.id"""  # noqa: S608 (constants)
_SCOPES = "SELECT branch, flag, id, complete FROM insight_scope WHERE project_id = ? AND branch = ?"
_SCOPES_OF_ANY = "SELECT branch, flag, id, complete FROM insight_scope WHERE project_id = ? AND branch IS NULL"
_FORGET_BRANCH = """
    DELETE FROM insight_scope WHERE complete = 0 AND (project_id, branch) IN (SELECT c.project_id, c.branch FROM run c
        WHERE c.id = :run AND NOT EXISTS (SELECT 1 FROM run o WHERE o.project_id = c.project_id AND o.branch = c.branch
            AND o.id <> c.id))"""
_ADD_SCOPE = "INSERT INTO insight_scope (project_id, branch, flag, complete) VALUES (?, ?, ?, ?) RETURNING id"
_BASE = "SELECT coalesce(base_branch, ?) FROM project WHERE id = ?"
_SUMMARIES = f"""
    SELECT test_id, {", ".join(_COLUMNS)} FROM insight
    WHERE scope_id = ? AND test_id IN (SELECT value FROM json_each(?))"""  # noqa: S608 (constants)
_SET = f"""
    INSERT INTO insight (scope_id, test_id, {", ".join(_COLUMNS)}) VALUES (?, ?{", ?" * len(_COLUMNS)})
    ON CONFLICT (scope_id, test_id) DO UPDATE SET
    {", ".join(f"{name} = excluded.{name}" for name in _COLUMNS)}"""  # noqa: S608 (constants)
_DELETE = """
    DELETE FROM insight WHERE test_id = :test
    AND scope_id IN (SELECT id FROM insight_scope WHERE project_id = :project AND complete = 1)
    AND scope_id NOT IN (SELECT value FROM json_each(:kept))"""
_SUBTRACT = "UPDATE insight SET runs = runs - ? WHERE scope_id = ? AND test_id = ?"
_FAILED_ELSEWHERE = f"""
    SELECT DISTINCT r.test_id FROM (SELECT id FROM run WHERE project_id = :project AND commit_sha = :commit
        AND flag = :flag AND id <> :run ORDER BY id DESC LIMIT {MAX_RUNS_OF_COMMIT}) AS c
    CROSS JOIN json_each(:tests) CROSS JOIN result r ON r.test_id = value AND r.run_id = c.id
    WHERE r.status IN {FAILING}"""  # noqa: S608 (constants)
_DUE = "SELECT test_id, project_id FROM insight_due ORDER BY project_id, test_id LIMIT ?"
_REMOVE_DUE = "DELETE FROM insight_due WHERE test_id = ? AND project_id = ?"
_ADD_DUE = "INSERT INTO insight_due (test_id, project_id) VALUES (?, ?) ON CONFLICT DO NOTHING"
_OF_RUN = """
    INSERT INTO insight_due (test_id, project_id) SELECT DISTINCT r.test_id, c.project_id
    FROM run c JOIN result r ON r.run_id = c.id WHERE c.id = :run ON CONFLICT DO NOTHING"""
_MOVED = """
    INSERT INTO insight_due (test_id, project_id) SELECT DISTINCT r.test_id, c.project_id
    FROM run c JOIN result r ON r.run_id = c.id JOIN run h ON h.id = :holder
    WHERE c.id = :target AND r.report_id IN (SELECT value FROM json_each(:reports))
    AND (h.branch IS NOT c.branch OR EXISTS (SELECT 1 FROM insight i JOIN insight_scope s ON s.id = i.scope_id
        WHERE i.test_id = r.test_id AND i.unreliable > 0 AND s.project_id = c.project_id AND s.branch IS NULL
        AND s.flag IS NULL)) ON CONFLICT DO NOTHING"""
_REMOVED = f"""
    SELECT c.project_id, {_RESULT} FROM result r {_JOINED} WHERE r.id IN (SELECT value FROM json_each(:ids))
    AND r.id <= :position AND r.status <> {SKIPPED}"""  # noqa: S608 (constants)
_PENDING = """
    SELECT count(*), coalesce(max(CASE WHEN c.project_id = :project THEN 1 ELSE 0 END), 0)
    FROM (SELECT run_id FROM result WHERE id > :position ORDER BY id LIMIT :limit) AS r
    LEFT JOIN run c ON c.id = r.run_id"""
_IS_DUE = "SELECT 1 FROM insight_due WHERE project_id = ? LIMIT 1"
_LOOKED_AT = 1_000

Scope = tuple[str | None, str | None]
"""A branch and a flag; None: any."""


@frozen
class _Scopes:
    """The scopes of a project in which summaries are kept: their ids, None for one that is not complete.

    Each branch has one, of any flag. It is complete if it was the base branch when its first result was counted.
    """

    project: int
    base: str
    ids: dict[Scope, int | None]
    loaded: set[str]
    """The branches whose scopes are in `ids`."""

    def load(self, results: Iterable[CountedResult]) -> None:
        """Reads the scopes of the branches of results: there may be many others."""
        for branch in {result.branch for result in results if result.branch is not None} - self.loaded:
            self.loaded.add(branch)
            self._add(reports.execute_sql(_SCOPES, (self.project, branch)).fetchall())

    def _add(self, rows: Iterable[Sequence[Any]]) -> None:
        self.ids.update({(branch, flag): id if complete else None for branch, flag, id, complete in rows})

    def known(self, result: CountedResult) -> list[int]:
        """The ids of the scopes that a result belongs to, without those that are missing."""
        scopes = ((None, None), (None, result.flag), (result.branch, None), (result.branch, result.flag))
        return [id for scope in dict.fromkeys(scopes) if (id := self.ids.get(scope)) is not None]

    def of(self, result: CountedResult) -> list[int]:
        """The ids of the scopes that a result belongs to; makes those that are missing."""
        flag, branch = result.flag, result.branch
        self._ensure(None, None)
        self._ensure(None, flag)
        if branch is not None and self._ensure(branch, None, branch == self.base) is not None:
            self._ensure(branch, flag)
        return self.known(result)

    def _ensure(self, branch: str | None, flag: str | None, complete: bool = True) -> int | None:
        if (branch, flag) not in self.ids:
            row = reports.execute_sql(_ADD_SCOPE, (self.project, branch, flag, int(complete))).fetchone()
            self.ids[branch, flag] = row[0] if complete else None
        return self.ids[branch, flag]


def position() -> int:
    """The id of the last result that is counted."""
    return int(reports.execute_sql(_POSITION).fetchone()[0])


def count_some(base_branch: str, batch: int = BATCH_RESULTS) -> bool:
    """Counts the next results, and again the tests that are due, at most `batch` of each. Returns whether it did.

    `base_branch` is that of projects without their own.
    """
    if not _has_work():
        return False
    with reports.atomic():
        rows = reports.execute_sql(_NEXT, {"position": position(), "limit": batch}).fetchall()
        if rows:
            for project, results in _by_project(rows).items():
                _count(_scopes(project, base_branch), results)
            reports.execute_sql(_SET_POSITION, (int(rows[-1][1]),))
        done = _recount_some(base_branch, batch)
    return bool(rows or done)


def _recount_some(base_branch: str, batch: int) -> bool:
    """Counts some of the tests again that are due. Returns whether there were any."""
    until, read = position(), 0
    scopes, done = dict[int, _Scopes](), list[tuple[int, int]]()
    for test, project in reports.execute_sql(_DUE, (batch,)).fetchall():
        if project not in scopes:
            scopes[project] = _scopes(project, base_branch)
        read += _recount(scopes[project], test, until)
        done.append((test, project))
        if read >= MAX_READ_AGAIN:
            break
    reports.write_many(_REMOVE_DUE, done)
    return bool(done)


def _has_work() -> bool:
    return reports.execute_sql(_WORK).fetchone() is not None


def is_current(project_id: int) -> bool:
    """Whether all results of a project are counted. False if it cannot be found out quickly."""
    if reports.execute_sql(_IS_DUE, (project_id,)).fetchone() is not None:
        return False
    values = {"project": project_id, "position": position(), "limit": _LOOKED_AT}
    count, is_of_project = reports.execute_sql(_PENDING, values).fetchone()
    return count < _LOOKED_AT and not is_of_project


def _by_project(rows: Iterable[Sequence[Any]]) -> Mapping[int, Sequence[CountedResult]]:
    found = defaultdict[int, list[CountedResult]](list)
    for project, *values in rows:
        result = CountedResult._make(values)
        if result.status != SKIPPED:
            found[project].append(result)
    return found


def _scopes(project_id: int, base_branch: str) -> _Scopes:
    base = reports.execute_sql(_BASE, (base_branch, project_id)).fetchone()
    made = _Scopes(project_id, base[0] if base else base_branch, {}, set())
    made._add(reports.execute_sql(_SCOPES_OF_ANY, (project_id,)).fetchall())
    return made


def _count(scopes: _Scopes, results: Sequence[CountedResult]) -> None:
    """Counts results of a project; tests whose summaries do not follow from those before are due."""
    scopes.load(results)
    added = defaultdict[int, dict[int, list[CountedResult]]](lambda: defaultdict(list))
    for result in results:
        for scope in scopes.of(result):
            added[scope][result.test_id].append(result)
    known = {scope: _summaries(scope, tests) for scope, tests in added.items()}
    all_runs = known[scopes.ids[None, None] or 0]
    again = _to_recount(scopes.project, results, all_runs)
    changed = [
        (scope, test, extended(known[scope].get(test, Summary()), more))
        for scope, tests in added.items()
        for test, more in tests.items()
        if test not in again
    ]
    store_summaries(changed)
    reports.write_many(_ADD_DUE, [(test, scopes.project) for test in sorted(again)])


def _to_recount(project: int, results: Sequence[CountedResult], known: Mapping[int, Summary]) -> set[int]:
    """The tests whose failures, flaky results or times to green these results change."""
    again = {result.test_id for result in results if result.flaky or result.status in FAILING}
    again |= {test for test, summary in known.items() if summary.is_red}
    failed = {test for test, summary in known.items() if summary.failures} - again
    for commit, flag, run in {(each.commit, each.flag, each.run_id) for each in results if each.test_id in failed}:
        values = {"project": project, "commit": commit, "flag": flag, "run": run, "tests": json.dumps([*failed])}
        again |= {row[0] for row in reports.execute_sql(_FAILED_ELSEWHERE, values)} if commit is not None else set()
    return again


def _summaries(scope: int, tests: Iterable[int]) -> dict[int, Summary]:
    rows = reports.execute_sql(_SUMMARIES, (scope, json.dumps([*tests])))
    return {row[0]: Summary(*row[1:-1], _sample(row[-1])) for row in rows}  # type: ignore[call-arg]  # unknown length


def _sample(text: str) -> tuple[int, ...]:
    return tuple(map(int, text.split(","))) if text else ()


def store_summaries(changed: Iterable[tuple[int, int, Summary]]) -> None:
    """Stores the summaries of tests in scopes, by the ids of both. Part of a transaction."""
    rows = []
    for scope, test, summary in changed:
        *values, sample = (getattr(summary, name) for name in _COLUMNS)
        rows.append((scope, test, *values, ",".join(map(str, sample))))
    if rows:
        reports.write_many(_SET, rows)


def _recount(scopes: _Scopes, test: int, until: int) -> int:
    """Counts a test of a project again, from its results up to the id `until`; returns how many were read."""
    results, since = results_of(test, scopes.project, until)
    scopes.load(results)
    found = defaultdict[int, list[CountedResult]](list)
    for result in results:
        for scope in scopes.of(result):
            found[scope].append(result)
    reports.execute_sql(_DELETE, {"test": test, "project": scopes.project, "kept": json.dumps([*found])})
    store_summaries((scope, test, attrs.evolve(summary_of(some), since=since)) for scope, some in found.items())
    return len(results)


def results_of(test: int, project: int, until: int) -> tuple[Sequence[CountedResult], int]:
    """The newest results of a test of a project that are not skipped, up to the id `until`, by id.

    And the id of the oldest that was read, 0 where that is all.
    """
    values = {"test": test, "project": project, "position": until}
    read = [CountedResult._make(row) for row in reports.execute_sql(_OF_TEST, values)]
    return [result for result in read if result.status != SKIPPED], read[0].id if len(read) == MAX_RESULTS else 0


def begin_after(last_result: int) -> None:
    """Results that follow this id are new. Part of the transaction that stores them.

    A file uses the ids of its last results again once these are deleted.
    """
    reports.execute_sql(_LIMIT_POSITION, (last_result, last_result))


def on_results_deleted(ids: Collection[int]) -> None:
    """Called before results are deleted, in the same transaction."""
    until = position()
    rows = reports.execute_sql(_REMOVED, {"ids": json.dumps([*ids]), "position": until})
    for project, results in _by_project(rows).items():
        _subtract(_scopes(project, ""), results)


def _subtract(scopes: _Scopes, results: Sequence[CountedResult]) -> None:
    scopes.load(results)
    removed = defaultdict[int, dict[int, list[CountedResult]]](lambda: defaultdict(list))
    for result in results:
        for scope in scopes.known(result):
            removed[scope][result.test_id].append(result)
    due, rows = set[int](), list[tuple[int, int, int]]()
    for scope, tests in removed.items():
        known = _summaries(scope, tests)
        for test, results_of_test in tests.items():
            summary = known.get(test)
            gone = [result for result in results_of_test if summary is None or result.id >= summary.since]
            if _must_recount(summary, gone):
                due.add(test)
            rows.append((len(gone), scope, test))
    reports.write_many(_SUBTRACT, [row for row in rows if row[2] not in due])
    reports.write_many(_ADD_DUE, [(test, scopes.project) for test in due])


def _must_recount(known: Summary | None, gone: Sequence[CountedResult]) -> bool:
    """Whether a summary without these results does not follow from the one with them."""
    if known is None or not known.is_steady or known.runs <= len(gone):
        return True
    return any(result.duration_ms is not None and result.id >= known.floor for result in gone)


def on_run_changed(run_id: int) -> None:
    """Called when a run gets a branch or a commit, and before it is deleted with its results."""
    reports.execute_sql(_OF_RUN, {"run": run_id})


def on_last_run(run_id: int) -> None:
    """Called before a run without results is deleted: it may be the last one of its branch."""
    reports.execute_sql(_FORGET_BRANCH, {"run": run_id})


def on_reports_moved(ids: str, holder: int, target: int) -> None:
    """Called after reports, whose ids are a JSON array, have been moved between runs."""
    reports.execute_sql(_MOVED, {"reports": ids, "holder": holder, "target": target})
