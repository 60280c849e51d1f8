"""What is reported of a commit: whether it may be, and its status for each context. Rendered when it is sent."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Sequence
from typing import Any
from urllib.parse import quote

from attrs import evolve, frozen

from models.config.settings import ForgeReportSettings, ForgeSettings, QualityGate
from models.errors import Problem
from models.outbound.outbox import FORGE_CHECK, FORGE_COMMENT, FORGE_STATUS, Message
from models.percentages import change, rounded_down
from models.tracker.forge_reports import report_settings
from models.tracker.forges import project_forge
from models.tracker.forges.forge_links import is_commit
from models.tracker.forges.project_forge import ForgeLink, Forges
from models.tracker.gate import commit_gate, quality_gate
from models.tracker.gate.commit_gate import CommitVerdict, FlagStatus
from models.tracker.gate.quality_gate import RuleInfo
from models.tracker.tables import Project, Run, reports

TARGET = "forge:"
MAX_DESCRIPTION_CHARACTERS = 140
_MAX_NAME_CHARACTERS = 255
"""Of a context with the name of a flag."""
MAX_RECENT_COMMITS = 20
_MAX_COMMITS_OF_ALL = 200
_HASH_CHARACTERS = (40, 64)
"""Of SHA-1 and SHA-256: forges take no abbreviated commits."""
_PIPELINE = re.compile(r"gitlab-([0-9]{1,18})")
SHORT_SHA_DIGITS = 7
_COMMITS_OF_RUNS = "SELECT DISTINCT project_id, commit_sha FROM run WHERE commit_sha IS NOT NULL AND id IN ({})"
_RECENT = """
    SELECT commit_sha FROM counted_run WHERE project_id = ? AND commit_sha IS NOT NULL AND updated_at >= ?
    GROUP BY commit_sha ORDER BY max(created_at) DESC LIMIT ?"""
_RECENT_OF_ALL = """
    SELECT r.project_id, r.commit_sha FROM counted_run r JOIN project p ON p.id = r.project_id
    WHERE p.forge_repo IS NOT NULL AND r.commit_sha IS NOT NULL AND r.updated_at >= ?
    GROUP BY r.project_id, r.commit_sha ORDER BY max(r.created_at) DESC LIMIT ?"""
_PENDING = "SELECT 1 FROM counted_run WHERE project_id = ? AND commit_sha = ? AND state = 'PENDING' LIMIT 1"


@frozen
class CommitReport:
    """A commit that may be reported, with its verdict and the repository of its project."""

    project: Project
    settings: ForgeReportSettings
    link: ForgeLink
    commit: str
    judged: CommitVerdict
    base_branch: str
    is_trusted: bool = True
    """Else it has a comment only."""

    @property
    def forge(self) -> ForgeSettings:
        """That of the link, which is OK."""
        assert self.link.forge is not None
        return self.link.forge

    @property
    def own(self) -> Sequence[FlagStatus]:
        """The flags that have a run of the commit."""
        return [flag for flag in self.judged.flags if flag.verdict is not None]

    @property
    def is_over(self) -> bool:
        """Whether nothing more is expected."""
        return not self.judged.is_waiting and all(flag.run.state != "PENDING" for flag in self.own)


@frozen
class CommitStatus:
    """The status of a commit in one context. `state` is pending, success or failure; `path` is that of its page."""

    context: str
    state: str
    description: str
    path: str
    coverage: float | None
    pipeline: int | None
    """The pipeline of GitLab that the newest run is from."""


def of_runs(ids: Sequence[int]) -> list[tuple[int, str]]:
    """The commits of runs, each with its project."""
    marks = ", ".join("?" * len(ids))
    return [(row[0], row[1]) for row in reports.execute_sql(_COMMITS_OF_RUNS.format(marks), tuple(ids))]


def recent(project_id: int, since: int) -> list[tuple[int, str]]:
    """The newest commits of a project that got an upload since a time."""
    rows = reports.execute_sql(_RECENT, (project_id, since, MAX_RECENT_COMMITS))
    return [(project_id, commit) for (commit,) in rows]


def recent_of_all(since: int) -> list[tuple[int, str]]:
    """The newest commits, of all projects with a repository, that got an upload since a time."""
    rows = reports.execute_sql(_RECENT_OF_ALL, (since, _MAX_COMMITS_OF_ALL))
    return [(project_id, commit) for project_id, commit in rows]


def beside_run(id: int, since: int) -> list[tuple[int, str]]:
    """The commit of a run, and the recent ones of its project, whose gate may compare with the run."""
    own = of_runs([id])
    return [*own, *(commit for project_id, _ in own for commit in recent(project_id, since))]


def is_pending(project_id: int, commit: str) -> bool:
    """Whether a run of a commit is not complete."""
    return reports.execute_sql(_PENDING, (project_id, commit)).fetchone() is not None


def find(
    project_id: int, commit: str, gate: QualityGate, settings: ForgeReportSettings, forges: Forges, late: int
) -> CommitReport | str:
    """A commit that may be reported, or why it may not. `late` as for `commit_gate.judge`."""
    project = Project.get_or_none(Project.id == project_id)
    if project is None:
        return "the project was deleted"
    own = report_settings.of_project(project, settings)
    if not own.enabled:
        return "reports are switched off (forge-reports.enabled)"
    link = project_forge.link(project, forges)
    if link.reason is not None:
        return link.reason
    if not is_whole(commit):
        return f"the commit {commit} is not a whole SHA"
    try:
        newest = commit_gate.find(project, commit, None, None).newest
    except Problem as problem:
        return problem.message
    base = quality_gate.thresholds(project, gate).base_branch
    found = CommitReport(project, own, link, commit, commit_gate.judge(newest, project, gate, late=late), base)
    runs = [flag.run for flag in found.own]
    allows_others = own.untrusted == "comment" and own.comment != "off"
    reason = distrusted(runs, link, forges, allows_others)
    return reason or evolve(found, is_trusted=all(run.trusted for run in runs))


def is_whole(commit: str | None) -> bool:
    """Whether this is the whole hash of a commit: forges take no other."""
    return commit is not None and is_commit(commit) and len(commit) in _HASH_CHARACTERS


def is_waiting(judged: CommitVerdict, runs: Sequence[Run]) -> bool:
    """Whether expected uploads, or required flags, may still come."""
    return judged.is_waiting or any(run.state == "PENDING" and run.expected_uploads is not None for run in runs)


def distrusted(runs: Sequence[Run], link: ForgeLink, forges: Forges, allows_others: bool = False) -> str | None:
    """Why runs are not reported; None if all of them may be. `allows_others`: runs that are not trusted too."""
    for run in runs:
        if not run.trusted and not allows_others:
            return f"an upload of the run {run.id} had no credential of WRITE"
        if run.repo_url is not None and not project_forge.names_same(run.repo_url, link, forges):
            return f"the run {run.id} names another repository than the confirmed one"
    return None


def has_app(found: CommitReport) -> bool:
    """Whether a GitHub App reports: the project has no token of its own."""
    return found.forge.app is not None and found.project.forge_token_at is None


def publishes_check(found: CommitReport) -> bool:
    """Whether a commit has a check: only an App can make one."""
    return found.settings.publish != "status" and has_app(found)


def messages(found: CommitReport) -> list[Message]:
    """The messages for the outbox: one for each context, one for the check and one for the comment."""
    settings, has_check = found.settings, publishes_check(found)
    others = [] if settings.comment == "off" else _comments(found)
    if not found.is_trusted:
        return others
    contexts = [] if has_check and settings.publish == "check" else _contexts(found)
    checks = [_message(found, FORGE_CHECK, settings.context)] if has_check else []
    return [*(_message(found, FORGE_STATUS, *one) for one in contexts), *checks, *others]


def _contexts(found: CommitReport) -> list[tuple[str, str | None]]:
    """The name of each status of a commit, with its flag; None: of all flags."""
    settings, flags = found.settings, [flag.flag for flag in found.own]
    contexts: list[tuple[str, str | None]] = []
    if settings.statuses != "flags":
        contexts.append((settings.context, None))
    if settings.statuses != "aggregate":
        contexts += [(f"{settings.context}/{flag}"[:_MAX_NAME_CHARACTERS], flag) for flag in flags]
    return contexts


def _comments(found: CommitReport) -> list[Message]:
    """The comment on the pull request, which the forge finds where no upload names one, but not for the base branch."""
    newest = found.judged.newest
    numbers = [flag.run.pr_number for flag in found.own if flag.run.pr_number is not None]
    number = numbers[0] if numbers else None
    if number is None and newest.branch in (None, found.base_branch):
        return []
    of = f"pull request {number}" if number is not None else f"pull request of {found.commit[:SHORT_SHA_DIGITS]}"
    payload: dict[str, Any] = {"type": "forge.comment", "data": {"title": f"comment on the {of}"}}
    key = f"{FORGE_COMMENT} {found.project.id} {found.commit if number is None else number}"
    payload |= {"commit": found.commit, "pull": number}
    return [Message(FORGE_COMMENT, f"{TARGET}{found.link.name}", payload, key, found.project.id)]


def fingerprint(found: CommitReport) -> str:
    """A hash of what is reported of a commit: another one is reported anew."""
    judged = found.judged
    statuses = [status(found, context, flag) for context, flag in _contexts(found)]
    rules = [(rule.name, rule.flag, rule.passed, rule.detail) for rule in judged.verdict.rules]
    base = judged.verdict.baseline
    facts = statuses, rules, judged.verdict.passed, base and base.commit
    return hashlib.sha256(repr(facts).encode("utf-8", "replace")).hexdigest()


def _message(found: CommitReport, kind: str, context: str, flag: str | None = None) -> Message:
    noun = kind.removeprefix("forge-")
    title = f"{noun} {context} of {found.commit[:SHORT_SHA_DIGITS]}"
    payload = {"type": f"forge.{noun}", "data": {"title": title}, "commit": found.commit, "context": context}
    key = f"{kind} {found.project.id} {found.commit} {context}"
    return Message(kind, f"{TARGET}{found.link.name}", {**payload, "flag": flag}, key, found.project.id)


def status(found: CommitReport, context: str, flag: str | None) -> CommitStatus | None:
    """The status of a commit, or of one flag of it; None if it has no run of the flag any more."""
    flags = [one for one in found.own if flag in (None, one.flag)]
    if not flags:
        return None
    judged, runs = found.judged, [one.run for one in flags]
    waits = is_waiting(judged, runs)
    is_one = flag is not None or (len(judged.flags) == 1 and not waits)  # other flags may come
    path = f"/runs/{runs[0].id}" if is_one else f"/projects/{found.project.id}/commits/{quote(found.commit, safe='')}"
    if flag is None:
        passed, coverage = judged.verdict.passed, judged.coverage.pct if judged.coverage else None
        delta, rules = judged.verdict.coverage_delta, list(judged.verdict.rules)
    else:
        verdict = flags[0].verdict
        passed, coverage = bool(flags[0].passed), flags[0].coverage
        delta = verdict.coverage_delta if verdict else None
        rules = [*(verdict.rules if verdict else ()), *(rule for rule in judged.verdict.rules if rule.flag is None)]
    state = "pending" if waits else "success" if passed else "failure"
    text = _description(state, runs, coverage, delta, rules)
    pipeline = _PIPELINE.fullmatch(judged.newest.run_key or "") if judged.newest.ci_provider == "gitlab" else None
    return CommitStatus(context, state, text, path, coverage, int(pipeline[1]) if pipeline else None)


def _description(
    state: str, runs: Sequence[Run], coverage: float | None, delta: float | None, rules: Sequence[RuleInfo]
) -> str:
    broken = [rule for rule in rules if not rule.passed]
    if state == "pending":  # without figures, which would make a status of each upload
        waits = dict.fromkeys(rule.detail for rule in broken if rule.name == "required-flags")
        return _cut(f"Gate pending: {'; '.join(waits) or 'waiting for more uploads'}")
    passed, failed = sum(run.passed for run in runs), sum(run.failed + run.errors for run in runs)
    parts = [f"{passed} passed, {failed} failed"]
    if coverage is not None:
        parts.append(f"coverage {rounded_down(coverage)}%{change(delta)}")
    if state == "failure":
        parts += dict.fromkeys(rule.name for rule in broken)
    return _cut(f"Gate {'passed' if state == 'success' else 'failed'}: {'; '.join(parts)}")


def _cut(text: str) -> str:
    return text if len(text) <= MAX_DESCRIPTION_CHARACTERS else f"{text[: MAX_DESCRIPTION_CHARACTERS - 1]}…"
