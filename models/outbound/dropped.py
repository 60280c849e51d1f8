"""Messages that a full outbox drops: counted for each target in the transaction that drops them, and reported once in
`WINDOW_SECONDS` for each, so that reports do not fill the outbox again. For worker threads.
"""

from __future__ import annotations

from collections.abc import Sequence

from attrs import frozen

from models.outbound.tables import store
from models.times import SECOND

WINDOW_SECONDS = 900
_STALE_SECONDS = 3600
"""What no rule reported for so long is not reported later."""

_RECORD = """
    INSERT INTO dropped (target, project_id, count, last_at, reported_at) VALUES (?, ?, 1, ?, NULL)
    ON CONFLICT (target, project_id) DO UPDATE SET count = dropped.count + 1, last_at = excluded.last_at"""
_FORGET = "DELETE FROM dropped WHERE last_at < ? AND (reported_at IS NULL OR reported_at < ?)"
_DUE = "count > 0 AND (reported_at IS NULL OR reported_at <= :before)"
_LIST = f"SELECT target, project_id, count FROM dropped WHERE {_DUE} ORDER BY target, project_id"  # noqa: S608 (our own condition)
_REPORTED = f"UPDATE dropped SET count = 0, reported_at = :now WHERE {_DUE}"  # noqa: S608
_NEXT = "SELECT min(coalesce(reported_at, 0)) FROM dropped WHERE count > 0"


@frozen
class Dropped:
    """How many messages to a target were dropped; `project_id` is that of its channel or of the reports, if any."""

    target: str
    project_id: int | None
    count: int


def record(target: str, project_id: int | None, now: int) -> None:
    """Counts a dropped message, in the transaction that drops it."""
    store.execute_sql(_RECORD, (target, project_id or 0, now))


def take(now: int) -> Sequence[Dropped]:
    """What is to be reported now, which then counts as reported, in the caller's transaction."""
    before = now - WINDOW_SECONDS * SECOND
    store.execute_sql(_FORGET, (now - _STALE_SECONDS * SECOND, before))
    rows = store.execute_sql(_LIST, {"before": before}).fetchall()
    if rows:
        store.execute_sql(_REPORTED, {"now": now, "before": before})
    return [Dropped(target, project_id or None, count) for target, project_id, count in rows]


def next_at() -> int | None:
    """When the next report is due; None if nothing was dropped."""
    at = store.execute_sql(_NEXT).fetchone()[0]
    return None if at is None else int(at) + WINDOW_SECONDS * SECOND
