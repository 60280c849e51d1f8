"""The policy that quarantines flaky tests for a time (`tracker.quarantine`).

A test that was flaky on so many commits is quarantined, unless its status was set after that: where a quarantine has
ended, or a member has ended it, the test must have been flaky since.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from attrs import evolve, fields

from models.config.parsers import time_text
from models.config.settings import Quarantine
from models.times import SECOND
from models.tracker.failures import flaky, quarantine
from models.tracker.failures.flaky import OftenFlaky
from models.tracker.tables import Project, reports

_STATES = """
    SELECT id, revision, quarantine_after_flaky, quarantine_within, quarantine_expires, quarantine_max_pct FROM project
    WHERE coalesce(quarantine_after_flaky, :least) > 0 OR quarantine_waiting > 0"""
_MARKS = """
    SELECT test_id, status, created_at FROM mark
    WHERE project_id = :project AND test_id IN (SELECT value FROM json_each(:tests))"""
_TESTS = "SELECT count(*) FROM test WHERE project_id = ?"
_QUARANTINED = "SELECT count(*) FROM mark WHERE project_id = ? AND status = 'QUARANTINED'"
_MARK = """
    INSERT INTO mark (project_id, test_id, status, note, created_at, expires_at) VALUES (?, ?, 'QUARANTINED', ?, ?, ?)
    ON CONFLICT (project_id, test_id) DO UPDATE SET status = excluded.status, note = excluded.note, account_id = NULL,
    created_at = excluded.created_at, expires_at = excluded.expires_at"""
_WAIT = "UPDATE project SET quarantine_waiting = :now WHERE id = :project AND coalesce(quarantine_waiting, 0) <> :now"


def of_project(project: Project, settings: Quarantine) -> Quarantine:
    """The policy of a project: its own settings, and the global ones where it has none."""
    own = {limit.name: getattr(project, f"quarantine_{limit.name}") for limit in fields(Quarantine)}
    return evolve(settings, **{name: value for name, value in own.items() if value is not None})


def described(policy: Quarantine) -> str | None:
    """What a policy does; None where it is off."""
    if not policy.after_flaky:
        return None
    when = f"was flaky on {_commits(policy.after_flaky)} within {time_text(policy.within)}"
    return f"A test that {when} is quarantined for {time_text(policy.expires)}."


def _commits(count: int) -> str:
    return f"{count} commit{'' if count == 1 else 's'}"


def states(settings: Quarantine) -> Mapping[int, tuple[Any, ...]]:
    """By project, what the policy depends on: it must be applied again where that has changed."""
    return {id: tuple(state) for id, *state in reports.execute_sql(_STATES, {"least": settings.after_flaky or 0})}


def apply(id: int, settings: Quarantine, now: int) -> int:
    """Quarantines the flaky tests of a project, if it exists; returns how many."""
    project = Project.get_or_none(Project.id == id)
    if project is None:
        return 0
    policy = of_project(project, settings)
    since = now - round(policy.within * SECOND)
    found = flaky.often(id, since, policy.after_flaky) if policy.after_flaky else ()
    with reports.atomic():
        due = _due(id, found)
        room = max(0, _room(id, policy.max_pct)) if due else 0
        for one in due[:room]:
            _quarantine(id, one, policy, now)
        reports.execute_sql(_WAIT, {"project": id, "now": len(due[room:])})
    return len(due[:room])


def _due(project_id: int, found: Sequence[OftenFlaky]) -> Sequence[OftenFlaky]:
    """Those that are not quarantined, and were flaky after their status was set."""
    values = {"project": project_id, "tests": json.dumps([one.test for one in found])}
    marks = {test: (status, at) for test, status, at in reports.execute_sql(_MARKS, values)}
    return [
        one
        for one in found
        if (mark := marks.get(one.test)) is None or (mark[0] != "QUARANTINED" and one.last > mark[1])
    ]


def _room(project_id: int, max_pct: float) -> int:
    """How many more tests may be quarantined."""
    tests = reports.execute_sql(_TESTS, (project_id,)).fetchone()[0]
    return int(tests * max_pct / 100) - int(reports.execute_sql(_QUARANTINED, (project_id,)).fetchone()[0])


def _quarantine(project_id: int, one: OftenFlaky, policy: Quarantine, now: int) -> None:
    reason = f"flaky on {_commits(one.commits)} within {time_text(policy.within)}"
    end = now + round(policy.expires * SECOND)
    reports.execute_sql(_MARK, (project_id, one.test, reason, now, end))
    quarantine.record(project_id, one.test, quarantine.POLICY)
