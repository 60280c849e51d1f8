"""The baseline of a run: the earlier run that the quality gate, comparisons and marks of new failures compare it with.

The commits of a branch are in the order of their first runs on that branch, however often they are uploaded again
(`run.first_at`, `run.first_id`); a run without a commit stands alone. Runs of forks are on no branch of the repository.
The baseline is of the run's flag and of the latest commit that comes before the run's commit on the base branch, or of
the commit that the run's diff begins at. Runs of pull requests, and incomplete runs, are no baselines.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from fractions import Fraction
from typing import Literal

from attrs import frozen

from models.tracker.coverage.file_coverage import share
from models.tracker.tables import reports

Reason = Literal["MERGE_BASE", "BRANCH"]

_IS_BASE = "e.state = 'COMPLETE' AND e.pr_number IS NULL AND e.head_repo IS NULL"
_ON_BASE = "e.project_id = w.project_id AND e.branch = w.base AND e.head_repo IS NULL"
_NEWEST_FIRST = "ORDER BY e.first_at DESC, e.first_id DESC, e.created_at DESC, e.id DESC"
_PLACED = f"""
    WITH wanted AS MATERIALIZED (SELECT r.id, r.project_id, r.flag, r.commit_sha, r.created_at,
            CASE WHEN r.base_branch <> '' AND EXISTS (SELECT 1
            FROM counted_run e WHERE e.project_id = r.project_id AND e.branch = r.base_branch AND e.head_repo IS NULL)
            THEN r.base_branch ELSE coalesce(p.base_branch, :base) END AS base, r.base_branch AS named
        FROM run r JOIN project p ON p.id = r.project_id WHERE r.id IN (SELECT value FROM json_each(:runs))),
    first_runs AS MATERIALIZED (SELECT w.id, w.project_id, w.flag, w.commit_sha, w.created_at, w.base, w.named,
            (SELECT e.id FROM counted_run e WHERE {_ON_BASE} AND e.commit_sha = w.commit_sha LIMIT 1) AS on_base,
            (SELECT e.id FROM counted_run e WHERE e.project_id = w.project_id AND e.commit_sha = w.commit_sha
             ORDER BY e.first_at, e.first_id LIMIT 1) AS anywhere FROM wanted w),
    placed AS MATERIALIZED (SELECT w.id, w.project_id, w.flag, w.commit_sha, w.base, w.named, w.on_base, w.anywhere,
            coalesce(o.first_at, a.first_at, w.created_at) AS at, coalesce(o.first_id, a.first_id, w.id) AS place
        FROM first_runs w LEFT JOIN run o ON o.id = w.on_base LEFT JOIN run a ON a.id = w.anywhere)"""  # noqa: S608
_OF_DIFF = f"""
    SELECT e.id FROM base_commit c JOIN run e INDEXED BY run_by_commit ON e.superseded_by IS NULL AND {_ON_BASE}
        AND e.commit_sha = c.commit_sha AND e.flag = w.flag AND {_IS_BASE}
    WHERE c.run_id = w.id AND (w.commit_sha IS NULL OR e.commit_sha <> w.commit_sha)
    ORDER BY c.place, e.created_at DESC, e.id DESC LIMIT 1"""  # noqa: S608 (constants)
_OF_BRANCH = f"""
    SELECT e.id FROM counted_run e WHERE {_ON_BASE} AND e.flag = w.flag AND {_IS_BASE}
    AND (e.first_at, e.first_id) < (w.at, w.place) {_NEWEST_FIRST} LIMIT 1"""  # noqa: S608 (constants)
_FOUND = f"""{_PLACED},
    found AS MATERIALIZED (SELECT w.*, ({_OF_DIFF}) AS of_diff, ({_OF_BRANCH}) AS of_branch FROM placed w)"""  # noqa: S608
_BASELINES = f"""{_FOUND}
    SELECT w.id, b.id, b.commit_sha, b.branch, w.of_diff IS NOT NULL, b.status, b.line_covered, b.line_missed,
        (SELECT count(*) FROM (SELECT DISTINCT e.first_at, e.first_id FROM counted_run e WHERE {_ON_BASE}
         AND (e.first_at, e.first_id) > (b.first_at, b.first_id)
         AND (e.first_at, e.first_id) < (w.at, w.place)) AS newer)
    FROM found w JOIN run b ON b.id = coalesce(w.of_diff, w.of_branch)"""  # noqa: S608 (constants)
_NEEDED = f"""{_FOUND}
    SELECT coalesce(w.of_diff, w.of_branch), w.on_base, w.anywhere, (SELECT e.id FROM counted_run e
        WHERE e.project_id = w.project_id AND e.branch = w.named AND e.head_repo IS NULL
        ORDER BY e.first_at DESC, e.first_id DESC LIMIT 1) FROM found w"""  # noqa: S608 (constants)
_WITH_POINTS = f"""{_FOUND},
    newest AS (SELECT w.*, b.first_at AS last_at, b.first_id AS last_id
        FROM found w JOIN run b ON b.id = coalesce(w.of_diff, w.of_branch)),
    measured AS (SELECT e.id, e.first_at, e.first_id, row_number() OVER
        (PARTITION BY e.first_at, e.first_id ORDER BY e.created_at DESC, e.id DESC) AS place
        FROM newest w JOIN counted_run e ON {_ON_BASE} AND e.flag = w.flag AND {_IS_BASE}
            AND (e.first_at, e.first_id) <= (w.last_at, w.last_id)
        WHERE EXISTS (SELECT 1 FROM perf_point t WHERE t.run_id = e.id))
    SELECT id FROM measured WHERE place = 1 ORDER BY first_at DESC, first_id DESC LIMIT :most"""  # noqa: S608
_BASE_BRANCH = f"{_PLACED} SELECT base FROM placed"  # noqa: S608 (constants)
_PLACE_ON = """
    SELECT e.first_at, e.first_id FROM run r JOIN counted_run e ON e.project_id = r.project_id
        AND e.commit_sha = r.commit_sha
    WHERE r.id = :run ORDER BY CASE WHEN e.branch = :branch AND e.head_repo IS NULL THEN 0 ELSE 1 END,
        e.first_at, e.first_id LIMIT 1"""
_UNKNOWN_BRANCH = f"{_PLACED} SELECT named, base FROM placed WHERE named <> '' AND named <> base"  # noqa: S608


_SHOWN_DIGITS = 7


@frozen
class Baseline:
    """The run that another is compared with. `behind`: how many later commits its branch had before that run."""

    run_id: int
    commit: str | None
    branch: str
    reason: Reason
    behind: int
    failed: bool
    coverage: Fraction | None


def explained(found: Baseline | None, run_id: int, default_branch: str) -> str:
    """What a run is compared with, and why."""
    unknown = unknown_base_branch(run_id, default_branch)
    fallback = f"; its base branch {unknown[0]} has no run, so {unknown[1]} counts" if unknown else ""
    if found is None:
        branch = base_branch(run_id, default_branch)
        return f"No baseline: {branch} has no complete run of this flag for an earlier commit{fallback}"
    commit = found.commit[:_SHOWN_DIGITS] if found.commit else "a run without a commit"
    behind = f"{found.behind} commit{'' if found.behind == 1 else 's'} behind {found.branch}"
    place = f", {behind}" if found.behind else f" of {found.branch}"
    reason = ", where its branch begins" if found.reason == "MERGE_BASE" else ", the latest commit before it"
    return f"Compared with {commit}{place}{reason}{fallback}"


def of_runs(runs: Iterable[int], default_branch: str) -> dict[int, Baseline]:
    """The baselines by run, for those that have one, in one query.

    `default_branch` counts for projects and runs that name none.
    """
    rows = reports.execute_sql(_BASELINES, _values(runs, default_branch))
    return {
        run: Baseline(
            base, commit, branch, "MERGE_BASE" if of_diff else "BRANCH", behind, status == "FAILED",
            share(covered, missed),
        )
        for run, base, commit, branch, of_diff, status, covered, missed, behind in rows
    }  # fmt: skip


def needed(runs: Iterable[int], default_branch: str) -> set[int]:
    """The runs on which the choice of these runs' baselines depends: without them it would change."""
    rows = reports.execute_sql(_NEEDED, _values(runs, default_branch))
    return {id for row in rows for id in row if id is not None}


def with_points(run_id: int, default_branch: str, limit: int) -> list[int]:
    """The newest run with performance points of the baseline's commit and of those before it, newest first."""
    values = {**_values([run_id], default_branch), "most": limit}
    return [id for (id,) in reports.execute_sql(_WITH_POINTS, values)]


def base_branch(run_id: int, default_branch: str) -> str:
    """The branch that a run is compared with."""
    return str(reports.execute_sql(_BASE_BRANCH, _values([run_id], default_branch)).fetchone()[0])


def place_on(run_id: int, branch: str) -> tuple[int, int]:
    """The place of a run's commit, which it must have, in the order of a branch, or that of its first upload."""
    at, place = reports.execute_sql(_PLACE_ON, {"run": run_id, "branch": branch}).fetchone()
    return at, place


def unknown_base_branch(run_id: int, default_branch: str) -> tuple[str, str] | None:
    """The base branch that a run names and that has no run, and the one that counts instead."""
    row = reports.execute_sql(_UNKNOWN_BRANCH, _values([run_id], default_branch)).fetchone()
    return None if row is None else (row[0], row[1])


def _values(runs: Iterable[int], default_branch: str) -> dict[str, str | int]:
    return {"base": default_branch, "runs": json.dumps(list(runs))}
