"""`/projects/{id}/commits` and `/pulls`: commits and pull requests with all their flags, the targets of links."""

from __future__ import annotations

from collections.abc import Sequence

from handlers.base import Base
from handlers.http.permissions import READ
from handlers.http.serializers import copied
from handlers.operations import Operation, operation_routes
from handlers.routing import Route
from handlers.tracker import lists, serializers
from handlers.tracker.base import answer_kept
from handlers.tracker.lists import ItemList, ListRequest, answer_items, list_operation
from handlers.tracker.responses import (
    AttemptInfo,
    BaselineInfo,
    ChangedLines,
    CommitCoverageInfo,
    FlagInfo,
    RunInfo,
)
from models.inputs import ID_TEXT, InputKind, free_text, path, query
from models.json_format import Instant, http_message
from models.paging import INT64, cut, decode_cursor, whole
from models.times import MINUTE
from models.tracker import visibility
from models.tracker.coverage.file_coverage import percent
from models.tracker.coverage.patch import PatchFileInfo
from models.tracker.forges import project_forge
from models.tracker.forges.forge_links import ForgePages
from models.tracker.gate import commits
from models.tracker.gate.commits import CommitDetail, FlagDetail, JudgedCommit, JudgedPull, Place
from models.tracker.gate.quality_gate import Judged, RuleInfo
from models.tracker.runs import attempts
from models.tracker.runs.comparison import Tests
from models.tracker.runs.kept_answers import State, state_of_project
from models.tracker.tables import Project, Run

MAX_PATCH_FILES = 100
_DEFAULT_COMMITS = 20


@http_message
class CommitInfo:
    """A commit with all of its flags so far. `createdAt` is the time of its newest run, `runId`."""

    commit: str | None
    branch: str | None
    pr_number: int | None
    created_at: Instant
    run_id: int
    status: Judged
    passed: bool
    complete: bool
    tests: int
    failures: int
    skipped: int
    coverage: CommitCoverageInfo | None
    coverage_delta: float | None
    patch_coverage_pct: float | None
    flags: Sequence[FlagInfo]
    url: str | None
    """Its page on the forge."""


@http_message
class FlagChanges:
    """What changed in a flag of a commit since its baseline, and the uploads of its jobs, earlier attempts included."""

    flag: str
    run_id: int
    new_failures: Tests | None
    fixed: Tests | None
    still_failing: Tests | None
    attempts: Sequence[AttemptInfo]


@http_message
class CommitPatch(ChangedLines):
    """The coverage of the lines that a commit changes, by all of its flags.

    `files`: the 100 of `fileCount` with the most missed lines.
    """

    file_count: int
    files: Sequence[PatchFileInfo]


@http_message
class CommitInDetail(CommitInfo):
    branches: Sequence[str]
    rules: Sequence[RuleInfo]
    baseline: BaselineInfo | None
    compared: str
    """What it is compared with, and why."""
    compare_url: str | None
    """The page of the forge that compares it with its baseline."""
    changes: Sequence[FlagChanges]
    patch: CommitPatch
    runs: Sequence[RunInfo]
    """Newest first, with those that were run again; at most 100."""


@http_message
class PullInfo:
    """A pull request with its newest commit. `updatedAt` is the time of its newest run."""

    number: int
    head_repo: str | None
    base_branch: str | None
    updated_at: Instant
    head: CommitInfo
    url: str | None


@http_message
class PullInDetail:
    """A pull request with its newest commit, and all of its commits, that with the newest run first."""

    number: int
    head_repo: str | None
    base_branch: str | None
    head: CommitInDetail
    commits: Sequence[CommitInfo]
    url: str | None


def pages_of(handler: Base, project: Project, run: Run) -> ForgePages | None:
    """The pages of the forge that a run's commit is on."""
    return project_forge.pages(project, run.repo_url, handler.config.tracker.forges, run.ci_provider)


def commit_info(one: JudgedCommit, pages: ForgePages | None) -> CommitInfo:
    run, judged = one.newest, one.judged
    runs = [flag.run for flag in judged.flags if flag.verdict is not None]
    return CommitInfo(
        commit=run.commit_sha,
        branch=run.branch,
        pr_number=run.pr_number,
        created_at=Instant(run.created_at),
        run_id=run.id,
        status=judged.verdict.status,
        passed=judged.verdict.passed,
        complete=judged.complete,
        tests=sum(flag.tests for flag in runs),
        failures=sum(flag.failed + flag.errors for flag in runs),
        skipped=sum(flag.skipped for flag in runs),
        coverage=copied(CommitCoverageInfo, judged.coverage) if judged.coverage else None,
        coverage_delta=judged.verdict.coverage_delta,
        patch_coverage_pct=percent(judged.patch_covered, judged.patch_missed),
        flags=[serializers.flag_info(flag) for flag in judged.flags],
        url=pages.commit(run.commit_sha) if pages else None,
    )


def commit_detail(found: CommitDetail, pages: ForgePages | None) -> CommitInDetail:
    verdict, patch = found.commit.judged.verdict, found.patch
    base = verdict.baseline.commit if verdict.baseline else None
    return copied(
        CommitInDetail,
        commit_info(found.commit, pages),
        branches=found.branches,
        rules=verdict.rules,
        baseline=serializers.baseline_info(verdict),
        compared=found.compared,
        compare_url=pages.comparison(base, found.commit.newest.commit_sha) if pages else None,
        changes=[_changes(flag) for flag in found.flags],
        patch=serializers.changed_lines(
            CommitPatch,
            patch,
            file_count=len(patch.files),
            files=sorted(patch.files, key=lambda file: (-file.missed, file.path))[:MAX_PATCH_FILES],
        ),
        runs=[serializers.run_info(run) for run in found.runs],
    )


def _changes(flag: FlagDetail) -> FlagChanges:
    changes = flag.changes
    return FlagChanges(
        flag=flag.status.flag,
        run_id=flag.status.run.id,
        new_failures=changes.failing if changes else None,
        fixed=changes.fixed if changes else None,
        still_failing=changes.still_failing if changes else None,
        attempts=[copied(AttemptInfo, one) for one in flag.attempts],
    )


def pull_info(one: JudgedPull, pages: ForgePages | None) -> PullInfo:
    run = one.newest
    return PullInfo(
        number=run.pr_number or 0,
        head_repo=run.head_repo,
        base_branch=run.base_branch,
        updated_at=Instant(run.created_at),
        head=commit_info(one.head, pages),
        url=pages.pull(run.pr_number) if pages else None,
    )


def late_of(handler: Base) -> int:
    """The time of the last upload after which a commit waits for no required flag any more."""
    return attempts.late(handler.config.tracker.runs, handler.clock.now())


def state_of(handler: Base, id: str) -> State:
    """What an answer about commits of a project depends on; the wait for required flags ends within a minute."""
    return (*state_of_project(handler.caller.user, id), handler.clock.now() // MINUTE)


def place_of(cursor: str | None) -> Place:
    """The place in a list that a cursor means. Raises `Invalid`."""
    at, id = decode_cursor(cursor, int, int) if cursor else (INT64, INT64)
    return at, id


@http_message
class CommitListRequest(ListRequest):
    limit: int | None = lists.limit(_DEFAULT_COMMITS)
    id: str = path("The project", kind=ID_TEXT)
    branch: str | None = query("Only with a run on this branch", kind=free_text("main"))


def commits_after(handler: Base, project: Project, branch: str | None, cursor: str | None, limit: int) -> lists.Page:
    """The commits of a project, or of a branch, after a cursor. Reads the store: for a worker. Raises `Invalid`."""
    settings = handler.config.tracker.quality_gate
    found = commits.listing(project, settings, limit + 1, place_of(cursor), branch, late_of(handler))
    shown, next_cursor = cut(found, limit, lambda one: commits.place(one.newest))
    return [commit_info(one, pages_of(handler, project, one.newest)) for one in shown], next_cursor


def pulls_after(handler: Base, project: Project, cursor: str | None, limit: int) -> lists.Page:
    """The pull requests of a project after a cursor. Reads the store: for a worker. Raises `Invalid`."""
    settings = handler.config.tracker.quality_gate
    found = commits.pulls(project, settings, limit + 1, place_of(cursor), late_of(handler))
    shown, next_cursor = cut(found, limit, lambda one: commits.place(one.newest))
    return [pull_info(one, pages_of(handler, project, one.newest)) for one in shown], next_cursor


async def list_commits(handler: Base, request: CommitListRequest) -> object:
    def page(cursor: str | None, limit: int) -> lists.Page:
        project = visibility.project(handler.caller.user, request.id)
        return commits_after(handler, project, request.branch, cursor, limit)

    return await answer_items(handler, request, page, CommitInfo, f"project-{request.id}-commits")


@http_message
class PullListRequest(ListRequest):
    limit: int | None = lists.limit(_DEFAULT_COMMITS)
    id: str = path("The project", kind=ID_TEXT)


async def list_pulls(handler: Base, request: PullListRequest) -> object:
    def page(cursor: str | None, limit: int) -> lists.Page:
        return pulls_after(handler, visibility.project(handler.caller.user, request.id), cursor, limit)

    return await answer_items(handler, request, page, PullInfo, f"project-{request.id}-pulls")


@http_message
class CommitRequest:
    id: str = path("The project", kind=ID_TEXT)
    sha: str = path("The commit, or its first 7 digits or more", kind=free_text("9fceb02"))


async def get_commit(handler: Base, request: CommitRequest) -> object:
    id, sha = request.id, request.sha

    def detail() -> CommitInDetail:
        return commit_in_detail(handler, visibility.project(handler.caller.user, id), sha)

    return await answer_kept(handler, ("commit", id, sha), lambda: state_of(handler, id), detail)


def commit_in_detail(handler: Base, project: Project, sha: str) -> CommitInDetail:
    """A commit. Reads the store: for a worker. Raises `NotFound`, `Conflict`."""
    found = commits.of_commit(project, sha, handler.config.tracker.quality_gate, late_of(handler))
    return commit_detail(found, pages_of(handler, project, found.commit.newest))


def read_number(name: str, text: str) -> int:
    return whole(name, text, 0, INT64)


@http_message
class PullRequest:
    id: str = path("The project", kind=ID_TEXT)
    number: int = path("The number of the pull request", kind=InputKind({"type": "integer", "minimum": 0}, read_number))


async def get_pull(handler: Base, request: PullRequest) -> object:
    id, number = request.id, request.number
    return await answer_kept(
        handler, ("pull", id, number), lambda: state_of(handler, id), lambda: pull_detail(handler, id, number)
    )


def pull_detail(handler: Base, id: str, number: int) -> PullInDetail:
    """A pull request. Reads the store: for a worker. Raises `NotFound`."""
    settings, late = handler.config.tracker.quality_gate, late_of(handler)
    project = visibility.project(handler.caller.user, id)
    found = commits.of_pull(project, number, settings, late)
    run = found.commit.newest
    pages = pages_of(handler, project, run)
    return PullInDetail(
        number=number,
        head_repo=run.head_repo,
        base_branch=run.base_branch,
        head=commit_detail(found, pages),
        commits=[commit_info(one, pages) for one in commits.commits_of_pull(project, settings, number, late)],
        url=pages.pull(number) if pages else None,
    )


OPERATIONS = [
    list_operation(
        None, "/projects/{id}/commits", "List the commits of a project with their verdicts, newest run first",
        CommitListRequest, list_commits, ItemList[CommitInfo], name="commit_list",
    ),
    Operation(
        None, "GET", "/projects/{id}/commits/{sha}", "Get a commit with all of its flags, and what is new in it",
        CommitRequest, get_commit, CommitInDetail, error_statuses=[404, 409], name="commit_detail", permission=READ,
    ),
    list_operation(
        None, "/projects/{id}/pulls", "List the pull requests of a project with their verdicts, newest run first",
        PullListRequest, list_pulls, ItemList[PullInfo], name="pull_list",
    ),
    Operation(
        None, "GET", "/projects/{id}/pulls/{number}", "Get a pull request with its newest commit and all others",
        PullRequest, get_pull, PullInDetail, error_statuses=[404], name="pull_detail", permission=READ,
    ),
]  # fmt: skip
routes: list[Route] = operation_routes(OPERATIONS)
