"""The events of runs: the verdict on the commit of the newest run of a branch and a flag. For worker threads."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from attrs import evolve

from models.accounts import mail_settings
from models.config.settings import QualityGate
from models.outbound import owned_failures
from models.outbound.events import SubjectEvent, of_flaky_test, of_run
from models.tracker.failures import flaky
from models.tracker.gate import commit_gate, quality_gate
from models.tracker.queries import runs_by_id
from models.tracker.tables import Project, Run, reports

_NEWEST = """
    SELECT id FROM counted_run WHERE project_id = ? AND branch IS ? AND flag = ? AND head_repo IS NULL
    ORDER BY first_at DESC, first_id DESC, created_at DESC, id DESC LIMIT 1"""
_MAX_REASONS = 3
_TYPES_OF_RULES = {"coverage.dropped": "coverage-drop", "perf.regressed": "perf-"}
"""Events beside `gate.failed`, and how the names of their rules begin."""


def complete(ids: Sequence[int]) -> list[int]:
    """Those of the runs that are not pending, with those that were deleted."""
    pending = {id for id, run in runs_by_id(ids).items() if run.state == "PENDING"}
    return [id for id in ids if id not in pending]


def judge(
    id: int, settings: QualityGate, now: int, late: int | None = None, has_mail: bool = False
) -> list[SubjectEvent] | None:
    """The events of the commit of a complete run; none if the run, or its project, was deleted.

    None: the commit waits for a required flag, and the run is awaited on. A commit whose last upload was not after
    `late` waits no more. With `has_mail` they have the accounts that get a mail.
    """
    run = runs_by_id([id]).get(id)
    if run is None or run.superseded_by is not None or run.head_repo is not None:
        return []
    project = Project.get_or_none(Project.id == run.project_id)
    if project is None:
        return []
    facts = _facts(run, project, settings)
    found = _events(run, project, facts, settings, now, late) if _is_newest(run) else []
    if found is None:
        return None
    if has_mail and found:
        found = _for_accounts(found, run, settings)
    return [*found, *_flaky(run, facts, now)]


def _for_accounts(events: Sequence[SubjectEvent], run: Run, settings: QualityGate) -> list[SubjectEvent]:
    """The events of a run with the members of its project that get a mail, and those for the owners of its tests."""
    members = [user.id for user in mail_settings.recipients("gate", run.project_id)]
    return [*(evolve(event, accounts=members) for event in events), *owned_failures.of_run(run, events[0], settings)]


def _flaky(run: Run, facts: Mapping[str, Any], now: int) -> list[SubjectEvent]:
    """The events of the tests that are flaky on the commit of a run, which need not be the newest."""
    about = of_run("", facts, now, "")
    return [of_flaky_test(about, *test) for test in flaky.on_commit(run)]


def _is_newest(run: Run) -> bool:
    """Whether no later commit of the branch has a run of the flag: an old one uploaded again changes nothing."""
    row = reports.execute_sql(_NEWEST, (run.project_id, run.branch, run.flag)).fetchone()
    return row is not None and int(row[0]) == run.id


def _facts(run: Run, project: Project, settings: QualityGate) -> Mapping[str, Any]:
    return {
        "id": run.id,
        "project_id": project.id,
        "project": project.name,
        "branch": run.branch,
        "flag": run.flag,
        "base_branch": quality_gate.thresholds(project, settings).base_branch,
        "pr_number": run.pr_number,
    }


def _events(
    run: Run, project: Project, facts: Mapping[str, Any], settings: QualityGate, now: int, late: int | None
) -> list[SubjectEvent] | None:
    """The events of the verdict on a run; None where its commit waits for a required flag."""
    place = f"{project.name}, {run.branch or 'no branch'}" + (f", {run.flag}" if run.flag != "default" else "")
    if run.state == "INCOMPLETE":
        return [of_run("run.incomplete", facts, now, f"{place}: the run is incomplete, uploads are missing")]
    judged = commit_gate.of_run(run, project, settings, late)
    if judged.is_waiting:
        return None
    verdict = judged.verdict
    if verdict.passed:
        return [of_run("gate.passed", facts, now, f"{place}: gate passed, {run.passed} tests passed")]
    failed = [rule for rule in verdict.rules if not rule.passed]
    texts = [f"{rule.name}: {rule.detail}" for rule in failed]
    more = f" and {len(texts) - _MAX_REASONS} more rules" if len(texts) > _MAX_REASONS else ""
    title = f"{place}: gate failed ({'; '.join(texts[:_MAX_REASONS])}{more})"
    found = [of_run("gate.failed", facts, now, title)]
    for type, start in _TYPES_OF_RULES.items():
        named = [f"{rule.name}: {rule.detail}" for rule in failed if rule.name.startswith(start)]
        if named:
            found.append(of_run(type, facts, now, f"{place}: {'; '.join(named[:_MAX_REASONS])}"))
    return found
