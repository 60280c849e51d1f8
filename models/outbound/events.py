"""What happened and may be reported: of processes, releases, runs, tests and tokens."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal
from urllib.parse import quote, urlencode

from attrs import evolve, frozen

from models.accounts.accounts import ExpiringToken
from models.children import SIGNAL_OFFSET, signal_name
from models.json_format import rfc3339
from models.supervision.events import StatusEvent
from models.supervision.notices import Notice
from models.supervision.process import Status
from models.tracker.failures.quarantine import EXPIRY, FollowedChange

Trend = Literal["bad", "good", "info"]

_BAD = frozenset(
    {"process.crashed", "process.gave-up", "process.unhealthy", "release.failed", "gate.failed", "run.incomplete"}
)
_GOOD = frozenset(
    {"process.recovered", "process.started", "process.stopped", "gate.passed"}
    | {f"release.{verb}" for verb in ("installed", "upgraded", "rolled-back", "uninstalled")}
)
_CRASHED = (Status.FAILED, Status.FAILED_TO_START, Status.ABORTED, Status.UNKNOWN)
_GAVE_UP = "process.gave_up"
_MAX_LINK_CHARACTERS = 1000
_DAY_DIGITS = len("2026-01-31")
_ONCE = frozenset({"test.flaky", "test.failing", "token.expiring"})


@frozen
class SubjectEvent:
    """One event of a subject, such as `process:web`; `link` is the path of its page."""

    type: str
    subject: str
    at: int
    title: str
    link: str = ""
    process: str | None = None
    labels: Sequence[str] = ()
    release: str | None = None
    project: str | None = None
    project_id: int | None = None
    branch: str | None = None
    flag: str | None = None
    is_base_branch: bool = False
    accounts: Sequence[int] = ()
    """The accounts that get a mail about it, beside the rules of the server and of projects."""

    @property
    def is_once(self) -> bool:
        """Whether a subject is reported once, for as long as the event is repeated."""
        return self.type in _ONCE

    @property
    def is_for_accounts(self) -> bool:
        """Whether only `accounts` are notified."""
        return self.type == "test.failing"

    @property
    def trend(self) -> Trend:
        return "bad" if self.type in _BAD else "good" if self.type in _GOOD else "info"


def of_entry(entry: StatusEvent, labels: Mapping[str, Sequence[str]]) -> SubjectEvent | None:
    """The event of a status change; None for one that is not reported."""
    name = entry.process
    found = _of_status(entry)
    return None if found is None else _of_process(found[0], name, entry.at, f"{name} {found[1]}", labels)


def _of_status(entry: StatusEvent) -> tuple[str, str] | None:
    if entry.new in _CRASHED:
        return "process.crashed", _reason(entry)
    if entry.new is Status.UNHEALTHY:
        return "process.unhealthy", "is unhealthy"
    if entry.new is Status.HEALTHY:
        return "process.recovered", "is healthy"
    if entry.new is Status.RUNNING:
        return "process.started", "is running"
    if entry.new in (Status.STOPPED, Status.FINISHED):
        return "process.stopped", "was stopped" if entry.new is Status.STOPPED else "has finished"
    return None


def _reason(entry: StatusEvent) -> str:
    if entry.new is Status.FAILED_TO_START:
        return "could not be started"
    if entry.exit_code is None:
        return "ended"
    if entry.new is Status.ABORTED and entry.exit_code > SIGNAL_OFFSET:
        return f"was ended by {signal_name(entry.exit_code - SIGNAL_OFFSET)}"
    return f"ended with exit code {entry.exit_code}"


def of_notice(notice: Notice, labels: Mapping[str, Sequence[str]]) -> SubjectEvent | None:
    """The event of a notice: that a process is not restarted any more."""
    if notice.name != _GAVE_UP or notice.process is None:
        return None
    return _of_process("process.gave-up", notice.process, notice.at, notice.message, labels)


def _of_process(type: str, name: str, at: int, title: str, labels: Mapping[str, Sequence[str]]) -> SubjectEvent:
    link = f"/processes/{quote(name, safe='')}"
    return SubjectEvent(type, f"process:{name}", at, title, link, process=name, labels=labels.get(name, ()))


def of_release(type: str, namespace: str | None, name: str, at: int, title: str) -> SubjectEvent:
    """The event of a change of a release."""
    full = f"{namespace}/{name}" if namespace else name
    link = f"/releases/{quote(name, safe='')}" + (f"?namespace={quote(namespace, safe='')}" if namespace else "")
    return SubjectEvent(type, f"release:{full}", at, title, link, release=full)


def of_run(type: str, facts: Mapping[str, Any], at: int, title: str) -> SubjectEvent:
    """The event of a run. `facts`: id, project_id, project, branch, flag, base_branch and pr_number."""
    branch, flag = facts["branch"] or "", facts["flag"] or "default"
    return SubjectEvent(
        type,
        f"run:{facts['project_id']}:{branch}:{flag}",
        at,
        title,
        f"/runs/{facts['id']}",
        project=facts["project"],
        project_id=facts["project_id"],
        branch=branch,
        flag=flag,
        is_base_branch=branch == facts["base_branch"] and facts["pr_number"] is None,
    )


def of_flaky_test(run: SubjectEvent, id: int, class_name: str, name: str) -> SubjectEvent:
    """The event that a test was found to be flaky on the commit of a run, given by any event of it."""
    title = f"{run.project}, {run.branch or 'no branch'}: {_full_name(class_name, name)} is flaky"
    link = _test_link(run.project_id or 0, class_name, name)
    return evolve(run, type="test.flaky", subject=f"test:{run.project_id}:{id}", title=title, link=link)


def of_failing_test(
    run: SubjectEvent, id: int, class_name: str, name: str, commit: str | None, accounts: Sequence[int]
) -> SubjectEvent:
    """The event, for its owners, that a test newly fails in a run, given by any event of it; once for each commit."""
    title = f"{run.project}, {run.branch or 'no branch'}: {_full_name(class_name, name)} newly fails"
    subject = f"test:{run.project_id}:{id}@{commit or run.link}"
    return evolve(run, type="test.failing", subject=subject, title=title, accounts=accounts)


def of_status_change(change: FollowedChange) -> SubjectEvent | None:
    """The event that a quarantine of a test has begun, or ended because its time was over; else None."""
    title = f"{change.project}: {_full_name(change.class_name, change.name)}"
    if change.status == "QUARANTINED" and change.changes_gate:
        until = f" until {rfc3339(change.expires_at)[:_DAY_DIGITS]}" if change.expires_at is not None else ""
        type, title = "test.quarantined", f"{title} was quarantined{until}{f': {change.note}' if change.note else ''}"
    elif change.by == EXPIRY:
        type, title = "test.quarantine-expired", f"{title} counts again: its quarantine has expired"
    else:
        return None
    subject = f"test:{change.project_id}:{change.test}"
    link = _test_link(change.project_id, change.class_name, change.name)
    return SubjectEvent(type, subject, change.at, title, link, project=change.project, project_id=change.project_id)


def _full_name(class_name: str, name: str) -> str:
    return f"{class_name} {name}".strip()


def _test_link(project_id: int, class_name: str, name: str) -> str:
    """The path of the page of a test, or of its project where that is too long for a message."""
    link = f"/projects/{project_id}/test?{urlencode({'className': class_name, 'name': name})}"
    return link if len(link) <= _MAX_LINK_CHARACTERS else f"/projects/{project_id}"


def of_token(token: ExpiringToken, now: int) -> SubjectEvent:
    """The event that a token ends soon."""
    title = f"the token {token.name} of {token.username} ends on {rfc3339(token.expires_at)[:_DAY_DIGITS]}"
    accounts = () if token.mailed_account is None else (token.mailed_account,)
    return SubjectEvent("token.expiring", f"token:{token.id}", now, title, "/profile", accounts=accounts)


def of_dead_delivery(target: str, at: int, error: str | None, project_id: int | None) -> SubjectEvent:
    """The event that a message could not be delivered."""
    return _dead(target, at, f"a message to {target} could not be delivered: {error or 'no reason given'}", project_id)


def of_dropped(target: str, at: int, count: int, project_id: int | None) -> SubjectEvent:
    """The event that a full outbox has dropped messages."""
    what = "a message" if count == 1 else f"{count} messages"
    return _dead(target, at, f"{what} to {target} could not be delivered: the outbox was full", project_id)


def _dead(target: str, at: int, title: str, project_id: int | None) -> SubjectEvent:
    return SubjectEvent("delivery.dead", f"delivery:{target}", at, title, "/notifications", project_id=project_id)
