"""Failure clusters: failures of a project with one signature, counted over its runs as they are stored and deleted.

Reports of superseded attempts do not count. `cluster_case` has a row for each test of a cluster in a run; from it the
counts of a cluster are kept up to date, and those of a branch or a run are read.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from attrs import frozen

from models.tracker.failures.signatures import MAX_SAMPLE_CHARACTERS, digest, signature
from models.tracker.failures.triage import TriageRuleInfo, category
from models.tracker.reports.base import FAILING
from models.tracker.tables import Run, reports

WINDOW = 500
"""The newest runs that a list with a branch or a time counts."""

_FAILED = f"""
    SELECT f.cluster_id AS cluster_id, r.test_id AS test_id, count(*) AS failures FROM result r
    CROSS JOIN failure f ON f.result_id = r.id WHERE r.run_id = :run AND r.status IN {FAILING} AND r.report_id > :after
    AND f.cluster_id IS NOT NULL GROUP BY f.cluster_id, r.test_id"""  # noqa: S608 (constants)
_ADDED = f"""
    SELECT sum(g.failures), sum(CASE WHEN EXISTS (SELECT 1 FROM cluster_case k WHERE k.cluster_id = g.cluster_id
        AND k.test_id = g.test_id) THEN 0 ELSE 1 END), g.cluster_id
    FROM ({_FAILED}) AS g GROUP BY g.cluster_id"""  # noqa: S608
_ADD_CASES = f"""
    INSERT INTO cluster_case (run_id, cluster_id, test_id, occurrences)
    SELECT :run, g.cluster_id, g.test_id, g.failures FROM ({_FAILED}) AS g WHERE 1 = 1
    ON CONFLICT (run_id, cluster_id, test_id)
    DO UPDATE SET occurrences = cluster_case.occurrences + excluded.occurrences"""  # noqa: S608
_ADD = """
    UPDATE cluster SET occurrences = occurrences + ?, tests = tests + ?,
    first_run_id = CASE WHEN first_run_id < ? THEN first_run_id ELSE ? END,
    last_run_id = CASE WHEN last_run_id > ? THEN last_run_id ELSE ? END WHERE id = ?"""
_REMOVED = """
    SELECT sum(k.occurrences), sum(CASE WHEN EXISTS (SELECT 1 FROM cluster_case o WHERE o.cluster_id = k.cluster_id
        AND o.test_id = k.test_id AND o.run_id <> k.run_id) THEN 0 ELSE 1 END), k.cluster_id
    FROM cluster_case k WHERE k.run_id = :run GROUP BY k.cluster_id"""
_REMOVE = """
    UPDATE cluster SET occurrences = occurrences - ?, tests = tests - ?,
    first_run_id = (SELECT min(k.run_id) FROM cluster_case k WHERE k.cluster_id = ?),
    last_run_id = (SELECT max(k.run_id) FROM cluster_case k WHERE k.cluster_id = ?) WHERE id = ?"""
_OF_RUN = f"""
    SELECT DISTINCT f.cluster_id FROM result r CROSS JOIN failure f ON f.result_id = r.id
    WHERE r.run_id = ? AND r.status IN {FAILING} AND f.cluster_id IS NOT NULL"""  # noqa: S608
_DELETE_UNUSED = """
    DELETE FROM cluster WHERE id = ? AND occurrences = 0
    AND NOT EXISTS (SELECT 1 FROM failure f WHERE f.cluster_id = cluster.id)"""

_TEXTS = "c.signature, c.type, c.message, c.stack"
_ALL = f"""
    SELECT c.id, {_TEXTS}, c.first_run_id, c.last_run_id, c.tests, c.occurrences FROM cluster c
    WHERE c.project_id = :project AND c.occurrences > 0 AND c.occurrences <= :occurrences
    AND (c.occurrences < :occurrences OR c.id < :id)
    ORDER BY c.occurrences DESC, c.id DESC LIMIT :limit"""  # noqa: S608
_COUNTED = f"""
    SELECT c.id, {_TEXTS}, s.first_run, s.last_run, s.tests, s.occurrences
    FROM (SELECT k.cluster_id, min(k.run_id) AS first_run, max(k.run_id) AS last_run,
        count(DISTINCT k.test_id) AS tests, sum(k.occurrences) AS occurrences
        FROM cluster_case k WHERE k.run_id IN ({{runs}}) GROUP BY k.cluster_id) AS s
    JOIN cluster c ON c.id = s.cluster_id
    WHERE s.occurrences <= :occurrences AND (s.occurrences < :occurrences OR c.id < :id)
    ORDER BY s.occurrences DESC, c.id DESC LIMIT :limit"""  # noqa: S608
_RECENT = f"""
    SELECT id FROM counted_run WHERE project_id = :project {{branch}} AND created_at >= :since
    ORDER BY created_at DESC, id DESC LIMIT {WINDOW}"""  # noqa: S608
_OF_BRANCH = _COUNTED.format(runs=_RECENT.format(branch="AND branch = :branch"))
_SINCE = _COUNTED.format(runs=_RECENT.format(branch=""))
_IN_RUN = _COUNTED.format(runs=":run")
_MAX_NUMBER = 2**62

_BACKFILL = f"""
    SELECT f.result_id, f.type, f.message, f.stack, n.project_id FROM failure f JOIN result r ON r.id = f.result_id
    JOIN run n ON n.id = r.run_id WHERE f.result_id <= ? AND f.cluster_id IS NULL AND r.status IN {FAILING}
    ORDER BY f.result_id DESC LIMIT ?"""  # noqa: S608
_NEW = """
    INSERT INTO cluster (project_id, hash, signature, type, message, stack, tests, occurrences)
    VALUES (?, ?, ?, ?, ?, ?, 0, 0) ON CONFLICT (project_id, hash) DO UPDATE SET hash = excluded.hash RETURNING id"""
_TOUCH = "UPDATE project SET revision = revision + 1 WHERE id = (SELECT project_id FROM run WHERE id = ?)"
_BACKFILL_BATCH = 500

Place = tuple[int, int]
"""The occurrences and the id of a cluster: its place in a list."""


@frozen
class ClusterInfo:
    """Failures with one signature; `tests` is the number of tests, `occurrences` that of failures."""

    id: int
    signature: str
    type: str | None
    message: str | None
    category: str
    first_run_id: int
    """This and the following are of the requested runs."""
    last_run_id: int
    tests: int
    occurrences: int


def add(run_id: int, after: int = 0) -> None:
    """Counts the failures of a run's reports whose ids are greater than `after`. Part of the run's transaction."""
    values = {"run": run_id, "after": after}
    added = reports.execute_sql(_ADDED, values).fetchall()
    if added:
        reports.execute_sql(_ADD_CASES, values)
        reports.write_many(_ADD, [(failures, tests, *[run_id] * 4, cluster) for failures, tests, cluster in added])


def remove(run_id: int) -> None:
    """Subtracts the failures of a run. Part of the transaction that deletes or changes it."""
    removed = reports.execute_sql(_REMOVED, {"run": run_id}).fetchall()
    if removed:
        reports.execute_sql("DELETE FROM cluster_case WHERE run_id = ?", (run_id,))
        reports.write_many(_REMOVE, [(failures, tests, *[cluster] * 3) for failures, tests, cluster in removed])


def recount(run: Run) -> None:
    """Recounts the failures of a run after its reports were moved."""
    remove(run.id)
    if run.superseded_by is None:
        add(run.id)


def of_deleted(run_id: int) -> list[tuple[int]]:
    """The clusters of a run that is going to be deleted, for `delete_unused`."""
    remove(run_id)
    clusters: list[tuple[int]] = reports.execute_sql(_OF_RUN, (run_id,)).fetchall()
    return clusters


def delete_unused(clusters: Sequence[tuple[int]]) -> None:
    """Deletes those of the clusters that no failure belongs to any more."""
    reports.write_many(_DELETE_UNUSED, clusters)


def listing(
    project_id: int,
    rules: Sequence[TriageRuleInfo],
    limit: int,
    after: Place | None = None,
    branch: str | None = None,
    since: int | None = None,
) -> list[ClusterInfo]:
    """The clusters of a project, most occurrences first; with `branch` or `since` those of its newest `WINDOW` runs."""
    query = _OF_BRANCH if branch is not None else _SINCE if since is not None else _ALL
    return _clusters(query, rules, limit, after, {"project": project_id, "branch": branch, "since": since or 0})


def of_run(run_id: int, rules: Sequence[TriageRuleInfo], limit: int, after: Place | None = None) -> list[ClusterInfo]:
    """The clusters of one run, most occurrences first."""
    return _clusters(_IN_RUN, rules, limit, after, {"run": run_id})


def _clusters(
    query: str, rules: Sequence[TriageRuleInfo], limit: int, after: Place | None, values: Mapping[str, Any]
) -> list[ClusterInfo]:
    occurrences, id = after or (_MAX_NUMBER, _MAX_NUMBER)
    rows = reports.execute_sql(query, {**values, "occurrences": occurrences, "id": id, "limit": limit})
    return [
        ClusterInfo(id, text, type, message, category(rules, type, message, stack), *counts)
        for id, text, type, message, stack, *counts in rows
    ]


def place(cluster: ClusterInfo) -> Place:
    return cluster.occurrences, cluster.id


def backfill() -> bool:
    """Counts a batch of the failures of an earlier version, newest first. Returns whether there are more."""
    with reports.atomic():
        marker = reports.execute_sql("SELECT position FROM backfill WHERE name = 'clusters'").fetchone()
        if marker is None:
            return False
        rows = reports.execute_sql(_BACKFILL, (marker[0], _BACKFILL_BATCH)).fetchall()
        for id, type, message, stack, project in rows:
            text = signature(type, message, stack)
            head = (stack or "")[:MAX_SAMPLE_CHARACTERS] or None
            values = (project, digest(text), text, type, message, head)
            cluster = reports.execute_sql(_NEW, values).fetchone()[0]
            reports.execute_sql("UPDATE failure SET cluster_id = ? WHERE result_id = ?", (cluster, id))
        for (run,) in _runs_of([row[0] for row in rows]):
            recount(Run.get_by_id(run))
            reports.execute_sql(_TOUCH, (run,))
        if len(rows) < _BACKFILL_BATCH:
            reports.execute_sql("DELETE FROM backfill WHERE name = 'clusters'")
            return False
        reports.execute_sql("UPDATE backfill SET position = ? WHERE name = 'clusters'", (rows[-1][0] - 1,))
    return True


def _runs_of(results: Sequence[int]) -> list[tuple[int]]:
    rows: list[tuple[int]] = reports.execute_sql(
        "SELECT DISTINCT run_id FROM result WHERE id IN (SELECT value FROM json_each(?))", (json.dumps(results),)
    ).fetchall()
    return rows
