"""What happened and may be reported: status changes of processes, changes of releases, verdicts on runs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal
from urllib.parse import quote

from attrs import frozen

from models.children import SIGNAL_OFFSET, signal_name
from models.supervision.events import Entry
from models.supervision.notices import Notice
from models.supervision.process import Status

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


@frozen
class Event:
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

    @property
    def trend(self) -> Trend:
        return "bad" if self.type in _BAD else "good" if self.type in _GOOD else "info"


def of_entry(entry: Entry, labels: Mapping[str, Sequence[str]]) -> Event | None:
    """The event of a status change; None for one that is not reported."""
    name = entry.process
    found = _of_status(entry)
    return None if found is None else _of_process(found[0], name, entry.at, f"{name} {found[1]}", labels)


def _of_status(entry: Entry) -> tuple[str, str] | None:
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


def _reason(entry: Entry) -> str:
    if entry.new is Status.FAILED_TO_START:
        return "could not be started"
    if entry.exit_code is None:
        return "ended"
    if entry.new is Status.ABORTED and entry.exit_code > SIGNAL_OFFSET:
        return f"was ended by {signal_name(entry.exit_code - SIGNAL_OFFSET)}"
    return f"ended with exit code {entry.exit_code}"


def of_notice(notice: Notice, labels: Mapping[str, Sequence[str]]) -> Event | None:
    """The event of a notice: that a process is not restarted any more."""
    if notice.name != _GAVE_UP or notice.process is None:
        return None
    return _of_process("process.gave-up", notice.process, notice.at, notice.message, labels)


def _of_process(type: str, name: str, at: int, title: str, labels: Mapping[str, Sequence[str]]) -> Event:
    link = f"/processes/{quote(name, safe='')}"
    return Event(type, f"process:{name}", at, title, link, process=name, labels=labels.get(name, ()))


def of_release(type: str, namespace: str | None, name: str, at: int, title: str) -> Event:
    """The event of a change of a release."""
    full = f"{namespace}/{name}" if namespace else name
    link = f"/releases/{quote(name, safe='')}" + (f"?namespace={quote(namespace, safe='')}" if namespace else "")
    return Event(type, f"release:{full}", at, title, link, release=full)


def of_run(type: str, facts: Mapping[str, Any], at: int, title: str) -> Event:
    """The event of a run. `facts`: id, project_id, project, branch, flag, base_branch and pr_number."""
    branch, flag = facts["branch"] or "", facts["flag"] or "default"
    return Event(
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


def of_dead_delivery(target: str, at: int, error: str | None, project_id: int | None) -> Event:
    """The event that a message could not be delivered."""
    title = f"a message to {target} could not be delivered: {error or 'no reason given'}"
    return Event("delivery.dead", f"delivery:{target}", at, title, "/notifications", project_id=project_id)
