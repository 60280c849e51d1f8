"""The commits and the pull requests of a project, each judged with all of its flags so far."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from attrs import frozen

from models.config.settings import QualityGate
from models.errors import NotFound
from models.tracker.coverage import patch
from models.tracker.coverage.patch import PatchCoverage
from models.tracker.gate import commit_gate, quality_gate
from models.tracker.gate.baseline import explained
from models.tracker.gate.commit_gate import CommitVerdict, FlagStatus
from models.tracker.queries import runs_by_id
from models.tracker.runs import attempts, comparison
from models.tracker.runs.attempts import Attempt
from models.tracker.runs.comparison import Changes
from models.tracker.tables import Project, Run, reports

MAX_RUNS = 100
"""Runs listed of a commit, and commits of a pull request."""

Place = tuple[int, int]
"""The time and the id of the newest run of a commit or pull request: its place in a list, newest first."""

_NEWER = (
    "run n INDEXED BY {index} WHERE n.superseded_by IS NULL AND n.project_id = r.project_id AND n.{key} = r.{key}"
    " AND (n.created_at, n.id) > (r.created_at, r.id)"
)
_LISTED = """
    SELECT r.id FROM counted_run r WHERE r.project_id = :project AND r.{key} IS NOT NULL {only}
    AND NOT EXISTS (SELECT 1 FROM {newer} {only_newer})
    AND (r.created_at, r.id) < (:at, :id) ORDER BY r.created_at DESC, r.id DESC LIMIT :most"""
_NEWER_OF_COMMIT = _NEWER.format(index="run_by_commit", key="commit_sha")
_NEWER_OF_PULL = _NEWER.format(index="run_by_pull", key="pr_number")
_COMMITS = _LISTED.format(key="commit_sha", newer=_NEWER_OF_COMMIT, only="{}", only_newer="{}")
_PULLS = _LISTED.format(key="pr_number", newer=_NEWER_OF_PULL, only="", only_newer="")
_HEAD_OF_PULL = """
    SELECT id FROM counted_run WHERE project_id = :project AND pr_number = :number
    ORDER BY first_at DESC, first_id DESC, created_at DESC, id DESC LIMIT 1"""
_OF_COMMIT = """
    SELECT id FROM counted_run WHERE project_id = :project AND commit_sha = :commit
    ORDER BY created_at DESC, id DESC LIMIT :most"""
_BRANCHES = """
    SELECT DISTINCT branch FROM counted_run WHERE project_id = :project AND commit_sha = :commit
    AND branch IS NOT NULL ORDER BY branch LIMIT :most"""


@frozen
class JudgedCommit:
    """A commit; `newest` is its newest run, and the place of the commit in a list."""

    newest: Run
    judged: CommitVerdict


@frozen
class JudgedPull:
    """A pull request: its newest run, and its newest commit."""

    newest: Run
    head: JudgedCommit


@frozen
class FlagDetail:
    """A flag of a commit: what changed since its baseline, and the uploads of its jobs by attempt."""

    status: FlagStatus
    changes: Changes | None
    """None without a baseline."""
    attempts: Sequence[Attempt]


@frozen
class CommitDetail:
    """A commit with all of its flags; `compared` says in words what it is compared with."""

    commit: JudgedCommit
    branches: Sequence[str]
    flags: Sequence[FlagDetail]
    runs: Sequence[Run]
    """Newest first, those that were run again too."""
    patch: PatchCoverage
    compared: str


def listing(
    project: Project,
    settings: QualityGate,
    limit: int,
    after: Place,
    branch: str | None = None,
    late: int | None = None,
) -> list[JudgedCommit]:
    """The commits of a project, or those with a run on a branch, that with the newest run first."""
    only, only_newer = ("", "") if branch is None else ("AND r.branch = :branch", "AND n.branch = :branch")
    values = {"project": project.id, "branch": branch, "at": after[0], "id": after[1], "most": limit}
    newest = _runs(_COMMITS.format(only, only_newer), values)
    return _judged(newest, project, settings, [branch] * len(newest), late)


def pulls(
    project: Project, settings: QualityGate, limit: int, after: Place, late: int | None = None
) -> list[JudgedPull]:
    """The pull requests of a project, that with the newest run first; each judged on the branch of its commit."""
    values = {"project": project.id, "at": after[0], "id": after[1], "most": limit}
    newest = _runs(_PULLS, values)
    heads = [_head(project, run.pr_number) or run for run in newest]
    judged = _judged(heads, project, settings, [head.branch for head in heads], late)
    return [JudgedPull(run, head) for run, head in zip(newest, judged, strict=True)]


def commits_of_pull(
    project: Project, settings: QualityGate, number: int, late: int | None = None
) -> list[JudgedCommit]:
    """The commits of a pull request, that with the newest run first."""
    only = ("AND r.pr_number = :number", "AND n.pr_number = :number")
    values = {"project": project.id, "number": number, "at": 2**62, "id": 0, "most": MAX_RUNS}
    newest = _runs(_COMMITS.format(*only), values)
    return _judged(newest, project, settings, [run.branch for run in newest], late)


def of_commit(project: Project, commit: str, settings: QualityGate, late: int | None = None) -> CommitDetail:
    """A commit by its name, or the first 7 digits of it or more. Raises `NotFound`, `Conflict` (several)."""
    found = commit_gate.find(project, commit, None, None)
    return _detail(found.newest, project, settings, None, late)


def of_pull(project: Project, number: int, settings: QualityGate, late: int | None = None) -> CommitDetail:
    """The newest commit of a pull request. Raises `NotFound`."""
    head = _head(project, number)
    if head is None:
        raise NotFound(f"{project.name} has no run of the pull request {number}", "PULL_NOT_FOUND")
    return _detail(head, project, settings, head.branch, late)


def place(newest: Run) -> Place:
    """The place of the newest run of a commit or pull request in a list."""
    return newest.created_at, newest.id


def _runs(query: str, values: Mapping[str, Any]) -> list[Run]:
    ids = [id for (id,) in reports.execute_sql(query, dict(values))]
    runs = runs_by_id(ids)
    return [runs[id] for id in ids]


def _head(project: Project, number: int | None) -> Run | None:
    """The newest run of the newest commit of a pull request: a second run of an older commit changes nothing."""
    found = _runs(_HEAD_OF_PULL, {"project": project.id, "number": number})
    return found[0] if found else None


def _judged(
    newest: Sequence[Run],
    project: Project,
    settings: QualityGate,
    branches: Sequence[str | None],
    late: int | None,
) -> list[JudgedCommit]:
    """Judges the commits of these runs, the newest of each, on the branch of each, or on all where it is None.

    The verdicts on single runs are made all at once.
    """
    groups = [commit_gate.runs_of_commit(run, branch) for run, branch in zip(newest, branches, strict=True)]
    verdicts = quality_gate.verdicts([run for group in groups for run in group], {project.id: project}, settings)
    return [
        JudgedCommit(run, commit_gate.judge(run, project, settings, branch=branch, late=late, verdicts=verdicts))
        for run, branch in zip(newest, branches, strict=True)
    ]


def _detail(newest: Run, project: Project, settings: QualityGate, branch: str | None, late: int | None) -> CommitDetail:
    judged = commit_gate.judge(newest, project, settings, branch=branch, late=late)
    own = [flag for flag in judged.flags if flag.verdict is not None]
    bases = runs_by_id({flag.verdict.baseline_id for flag in own if flag.verdict and flag.verdict.baseline_id})
    flags = []
    for flag in own:
        base = bases.get((flag.verdict.baseline_id or 0) if flag.verdict else 0)
        changes = comparison.changes(base, flag.run) if base is not None else None
        flags.append(FlagDetail(flag, changes, attempts.listing(flag.run) if flag.run.run_key is not None else ()))
    values = {"project": project.id, "commit": newest.commit_sha, "most": MAX_RUNS}
    has_commit = newest.commit_sha is not None
    branches = [name for (name,) in reports.execute_sql(_BRANCHES, values)] if has_commit else [newest.branch]
    return CommitDetail(
        commit=JudgedCommit(newest, judged),
        branches=[name for name in branches if name is not None],
        flags=flags,
        runs=_runs(_OF_COMMIT, values) if has_commit else [newest],
        patch=patch.coverage([flag.run.id for flag in own]),
        compared=explained(judged.verdict.baseline, newest.id, settings.base_branch),
    )
