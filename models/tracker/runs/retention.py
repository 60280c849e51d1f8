"""Finds expired runs, and deletes runs in short transactions.

The newest run of a project is always kept, and so is the newest of each flag on its base branch, and the baseline of
each run that is kept. The run that was stored last is kept even if a clock that went back has dated it before others.
"""

from __future__ import annotations

import json
from collections.abc import Sequence

from models.config.settings import QualityGate
from models.tracker.failures import clusters
from models.tracker.gate import baseline
from models.tracker.insights import counting
from models.tracker.reports.base import FAILING
from models.tracker.tables import reports

BATCH_ROWS = 2_000

_EXPIRED = """
    WITH placed AS (SELECT r.id, r.created_at,
        CASE WHEN r.branch = coalesce(p.base_branch, :base) THEN 1 ELSE 0 END AS is_base,
        row_number() OVER (PARTITION BY r.project_id ORDER BY r.created_at DESC, r.id DESC)
            AS newest,
        row_number() OVER (PARTITION BY r.project_id, r.branch, r.flag
            ORDER BY CASE WHEN r.state = 'COMPLETE' THEN 0 ELSE 1 END, r.created_at DESC, r.id DESC)
            AS of_flag,
        row_number() OVER (PARTITION BY r.project_id, r.branch ORDER BY r.created_at DESC, r.id DESC)
            AS of_branch,
        row_number() OVER (PARTITION BY r.project_id, r.branch ORDER BY r.id DESC) AS came
        FROM counted_run r JOIN project p ON p.id = r.project_id)
    SELECT id, is_base = 1 AND of_flag = 1 FROM placed WHERE newest > 1
        AND (created_at < :before OR (:keep > 0 AND of_branch > :keep AND came > :keep))
    ORDER BY created_at, id"""
_OTHERS = """
    SELECT id FROM counted_run WHERE id > :after AND id NOT IN (SELECT value FROM json_each(:expired))
    ORDER BY id LIMIT :most"""
_RUNS_AT_ONCE = 2_000
_PASSED = f"SELECT id FROM result WHERE run_id = ? AND status NOT IN {FAILING} LIMIT ?"  # noqa: S608 (constants)
_COVERAGE = "SELECT id FROM coverage WHERE run_id = ? LIMIT ?"
_LAST_OFBATCH_ROWS = "SELECT max(id) FROM (SELECT id FROM test WHERE id > ? ORDER BY id LIMIT ?) AS batch"
_UNUSED = """
    SELECT t.id FROM test t WHERE t.id > ? AND t.id <= ? AND NOT EXISTS (SELECT 1 FROM result WHERE test_id = t.id)
    AND NOT EXISTS (SELECT 1 FROM mark WHERE project_id = t.project_id AND test_id = t.id)"""


def expired(before: int, keep: int, settings: QualityGate, limit: int = 500) -> list[int]:
    """Ids of the first `limit` runs older than `before`, or beyond the newest `keep` (0: all) of their branch.

    Without those on which the baselines of other runs depend.
    """
    values = {"before": before, "keep": keep, "base": settings.base_branch}
    old = dict(reports.execute_sql(_EXPIRED, values).fetchall())
    found = [id for id, is_baseline in old.items() if not is_baseline]
    needed = _needed_by_others([*old], settings) if found else set[int]()
    return [id for id in found if id not in needed][:limit]


def _needed_by_others(old: Sequence[int], settings: QualityGate) -> set[int]:
    """The runs on which the baselines of all runs that are not among these depend."""
    needed, after = set[int](), 0
    values = {"expired": json.dumps(old), "most": _RUNS_AT_ONCE}
    while others := [row[0] for row in reports.execute_sql(_OTHERS, values | {"after": after})]:
        needed |= baseline.needed(others, settings.base_branch)
        after = others[-1]
    return needed


def superseded_runs(run_id: int) -> list[int]:
    """Ids of the runs that hold superseded attempts of a run."""
    return [row[0] for row in reports.execute_sql("SELECT id FROM run WHERE superseded_by = ?", (run_id,))]


def delete_some(run_id: int, batch: int = BATCH_ROWS) -> bool:
    """One short transaction of deleting a run. Returns whether more are needed.

    Rows that no verdict reads go first, in batches; then the run itself with its failures, at once.
    """
    with reports.atomic():
        for table, query in (("result", _PASSED), ("coverage", _COVERAGE)):
            ids = reports.execute_sql(query, (run_id, batch)).fetchall()
            if ids:
                if table == "result":
                    counting.on_results_deleted([id for (id,) in ids])
                reports.write_many(f"DELETE FROM {table} WHERE id = ?", ids)  # noqa: S608 (constants)
                return True
        counting.on_run_changed(run_id)
        of_run = clusters.of_deleted(run_id)
        counting.on_last_run(run_id)
        reports.execute_sql("DELETE FROM run WHERE id = ?", (run_id,))
        clusters.delete_unused(of_run)
    return False


def forget_tests(after: int, batch: int = BATCH_ROWS) -> int | None:
    """Deletes tests without results and triage status, among the next `batch` tests after id `after`.

    Returns the last id of the batch; None at the end.
    """
    with reports.atomic():
        end: int | None = reports.execute_sql(_LAST_OFBATCH_ROWS, (after, batch)).fetchone()[0]
        if end is None:
            return None
        reports.write_many("DELETE FROM test WHERE id = ?", reports.execute_sql(_UNUSED, (after, end)).fetchall())
    return end
