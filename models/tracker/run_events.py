"""The `run` events of the tracker's stream: told once, in the transaction that stores the run, and kept for a while.

Ids have no gaps and grow in the order of the commits, for they are given within the transaction.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, Protocol

from attrs import frozen

from models.tracker.percentages import line_coverage, pass_rate
from models.tracker.tables import Project, Run, reports

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_SHORT = 7
_AT_LEAST = 64
"""So many are always kept: who publishes finds there what others committed before it and have not published yet.

The newest is among them, so the next id follows from it.
"""

CHANNEL = "run"
"""What nodes that share a store are woken by."""


class Judged(Protocol):
    """What the gate said of a run."""

    @property
    def passed(self) -> bool: ...


@frozen
class RunUpdate:
    """One event: its number in the stream, whose it is, and its data as compact JSON."""

    id: int
    project_id: int
    data: str


def record(run: Run, project: Project, verdict: Judged, keep: int) -> RunUpdate:
    """Stores the event of a run as it is now, and drops all but the newest `keep`. For the run's own transaction."""
    data = json.dumps(_told(run, project, verdict), separators=(",", ":"), ensure_ascii=False)
    id = bounds()[1] + 1
    reports.execute_sql("INSERT INTO run_event (id, project_id, data) VALUES (?, ?, ?)", (id, project.id, data))
    reports.execute_sql("DELETE FROM run_event WHERE id <= ?", (id - max(keep, _AT_LEAST),))
    reports.notify(CHANNEL)
    return RunUpdate(id, project.id, data)


def since(after: int, limit: int) -> Sequence[RunUpdate]:
    """The events after `after` that are still kept, oldest first."""
    rows = reports.execute_sql(
        "SELECT id, project_id, data FROM run_event WHERE id > ? ORDER BY id LIMIT ?", (after, limit)
    )
    return [RunUpdate(*row) for row in rows.fetchall()]


def bounds() -> tuple[int, int]:
    """The oldest id that is kept and the newest ever given; where none is kept, the oldest is the one to come."""
    oldest, newest = reports.execute_sql(
        "SELECT (SELECT min(id) FROM run_event), (SELECT max(id) FROM run_event)"  # each a step in the index
    ).fetchone()
    return (1, 0) if newest is None else (oldest, newest)


def _told(run: Run, project: Project, verdict: Judged) -> dict[str, Any]:
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
        "shortSha": (run.commit_sha or "")[:_SHORT],
        "createdAt": (_EPOCH + timedelta(microseconds=run.created_at)).isoformat(timespec="microseconds")[:-6] + "Z",
        "project": project.name,
        "gateStatus": "PASSED" if verdict.passed else "FAILED",
        "gatePassed": verdict.passed,
        "uploads": run.uploads,
    }
