"""The `run` events of the tracker's stream: stored in the transaction that stores the run, and kept for replay.

Ids have no gaps and grow in the order of the commits, because they are assigned within the transaction.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from attrs import frozen

from models.json_format import rfc3339
from models.tracker.coverage.file_coverage import line_coverage, pass_rate
from models.tracker.tables import Project, Run, reports

_SHORT_SHA_DIGITS = 7
_MIN_EVENTS = 64
"""Events that are always kept: a publisher reads there what others committed before it and have not published yet.

The newest event is among them, and the next id follows from it.
"""

CHANNEL = "run"
"""The notification that wakes the nodes of a shared store."""


@frozen
class RunUpdate:
    """One event: its id in the stream, its project, and its data as compact JSON."""

    id: int
    project_id: int
    data: str

    @property
    def run_id(self) -> int:
        return int(json.loads(self.data)["runId"])


def record(run: Run, project: Project, passed: bool, keep: int) -> RunUpdate:
    """Stores the event of a run that passed the gate or not, and deletes all but the newest `keep`.

    Part of the run's transaction.
    """
    data = json.dumps(_fields(run, project, passed), separators=(",", ":"), ensure_ascii=False)
    id = bounds()[1] + 1
    reports.execute_sql("INSERT INTO run_event (id, project_id, data) VALUES (?, ?, ?)", (id, project.id, data))
    reports.execute_sql("DELETE FROM run_event WHERE id <= ?", (id - max(keep, _MIN_EVENTS),))
    reports.notify(CHANNEL)
    return RunUpdate(id, project.id, data)


def since(after: int, limit: int) -> Sequence[RunUpdate]:
    """The stored events after the id `after`, oldest first."""
    rows = reports.execute_sql(
        "SELECT id, project_id, data FROM run_event WHERE id > ? ORDER BY id LIMIT ?", (after, limit)
    )
    return [RunUpdate(*row) for row in rows.fetchall()]


def bounds() -> tuple[int, int]:
    """The oldest stored id and the newest assigned one; without events, the oldest is the next id."""
    oldest, newest = reports.execute_sql(
        "SELECT (SELECT min(id) FROM run_event), (SELECT max(id) FROM run_event)"  # each a step in the index
    ).fetchone()
    return (1, 0) if newest is None else (oldest, newest)


def _fields(run: Run, project: Project, passed: bool) -> dict[str, Any]:
    """The fields, in the order of their contract (tracker.md, Stream)."""
    return {
        "projectId": project.id,
        "runId": run.id,
        "branch": run.branch,
        "flag": run.flag,
        "status": run.status,
        "totalTests": run.tests,
        "failed": run.failed + run.errors,
        "skipped": run.skipped,
        "passRatePct": pass_rate(run),
        "lineCoveragePct": line_coverage(run),
        "durationMs": run.duration_ms,
        "shortSha": (run.commit_sha or "")[:_SHORT_SHA_DIGITS],
        "createdAt": rfc3339(run.created_at),
        "project": project.name,
        "gateStatus": "PASSED" if passed else "FAILED",
        "gatePassed": passed,
        "uploads": run.uploads,
    }
