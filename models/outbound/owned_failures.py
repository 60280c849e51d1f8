"""The tests that newly fail, for the accounts that own them. For worker threads."""

from __future__ import annotations

import json
from collections.abc import Iterable

from models.accounts import mail_settings
from models.accounts.accounts import User
from models.config.settings import QualityGate
from models.outbound.events import SubjectEvent, of_failing_test
from models.tracker.forges import owners
from models.tracker.gate import baseline, new_failures
from models.tracker.tables import Run, reports

MAX_TESTS = 500
"""Tests of one run that are reported; more of them would be no mail that is read."""

_COUNTED = """
    SELECT id, class_name, name, file FROM test t WHERE id IN (SELECT value FROM json_each(?)) AND NOT EXISTS
    (SELECT 1 FROM mark m WHERE m.project_id = t.project_id AND m.test_id = t.id AND m.status = 'QUARANTINED')
    ORDER BY class_name, name"""


def of_run(run: Run, about: SubjectEvent, settings: QualityGate) -> list[SubjectEvent]:
    """The events of the tests that fail in a run of the base branch and not in its baseline; `about`: one of the run.

    Each has the accounts that own the test; one that nobody is mailed about has no event.
    """
    if not about.is_base_branch or run.status != "FAILED":
        return []
    users = mail_settings.recipients("tests", run.project_id)
    owned = owners.of_project(run.project_id) if users else owners.NO_OWNERS
    if owned is owners.NO_OWNERS:
        return []
    base = baseline.of_runs({run.id: run}, settings.base_branch).get(run.id)
    tests = new_failures.of_run(run.id, base.run_id if base else None).tests
    found: list[SubjectEvent] = []
    for id, class_name, name, file in reports.execute_sql(_COUNTED, (json.dumps([*tests]),)):
        if accounts := _owning(users, owned.of(file, class_name)):
            found.append(of_failing_test(about, id, class_name, name, run.commit_sha, accounts))
        if len(found) == MAX_TESTS:
            break
    return found


def _owning(users: Iterable[User], owner: str | None) -> list[int]:
    """The accounts that the owners of a test name: by `@name`, the name or the e-mail address."""
    return [
        user.id
        for user in users
        if any(owners.is_one_of(owner, name) for name in (f"@{user.username}", user.username, user.email or ""))
    ]
