"""The contents of the comment on a pull request, and of the check of a commit: the facts of that commit."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Collection, Sequence

from attrs import frozen

from models.config.settings import ForgeReportSettings, QualityGate
from models.errors import Problem
from models.tracker.failures.first_failures import first_failures
from models.tracker.forge_reports.commit_reports import distrusted, is_waiting, is_whole
from models.tracker.forges import owners, project_forge
from models.tracker.forges.forge_links import ForgePages
from models.tracker.forges.project_forge import ForgeLink, Forges
from models.tracker.gate import commits, new_failures
from models.tracker.gate.commits import CommitDetail, FlagDetail
from models.tracker.queries import FailureRow, failures_by_id
from models.tracker.runs.comparison import Named
from models.tracker.tables import Project, reports

_MAX_READ = 100
"""Failing results of a flag that are read."""
MAX_NEW, MAX_FIXED, MAX_FLAKY, MAX_FILES = 10, 10, 5, 10
_MIN_DELTA = 0.05
"""Percentage points of coverage that are worth a comment."""
_QUARANTINED = "SELECT test_id FROM mark WHERE project_id = ? AND status = 'QUARANTINED'"
_FLAKY = """
    SELECT DISTINCT t.class_name, t.name FROM result r JOIN test t ON t.id = r.test_id
    WHERE r.flaky = 1 AND r.run_id IN (SELECT value FROM json_each(?)) ORDER BY t.class_name, t.name LIMIT ?"""


@frozen
class NewFailure:
    name: str
    message: str | None
    owner: str | None
    first_commit: str | None
    """Since which commit it fails."""


@frozen
class Failures:
    """The first new failures, fixed and flaky tests, and the counts of all."""

    new: Sequence[NewFailure] = ()
    new_count: int = 0
    fixed: Sequence[str] = ()
    fixed_count: int = 0
    flaky: Sequence[str] = ()
    flaky_count: int = 0


@frozen
class CommitFacts:
    """A commit, or the newest one of a pull request. `is_unverified`: an upload had no credential of WRITE."""

    project: Project
    detail: CommitDetail
    failures: Failures
    pages: ForgePages | None
    is_unverified: bool = False

    @property
    def commit(self) -> str:
        return str(self.detail.commit.newest.commit_sha)

    @property
    def has_failed(self) -> bool:
        return not self.detail.commit.judged.verdict.passed

    @property
    def has_news(self) -> bool:
        """Whether there is something to say: a failed gate, changed outcomes or coverage, missed lines."""
        found, delta = self.failures, self.detail.commit.judged.verdict.coverage_delta
        has_changes = bool(found.new_count or found.fixed_count or found.flaky_count or self.detail.patch.missed)
        return self.has_failed or has_changes or (delta is not None and abs(delta) >= _MIN_DELTA)


def find(
    project: Project,
    number: int | None,
    commit: str,
    link: ForgeLink,
    gate: QualityGate,
    settings: ForgeReportSettings,
    forges: Forges,
    late: int,
) -> CommitFacts | str:
    """The facts of a pull request, or of a commit without `number`; or why it is not reported.

    An older `commit` of a pull request never counts: its newest one does, or `commit` where no upload names the pull
    request.
    """
    detail = None
    with contextlib.suppress(Problem):
        detail = None if number is None else commits.of_pull(project, number, gate, late)
    try:
        detail = detail or commits.of_commit(project, commit, gate, late)
    except Problem as problem:
        return problem.message
    runs = [flag.status.run for flag in detail.flags]
    if not is_whole(detail.commit.newest.commit_sha):
        return f"the commit {detail.commit.newest.commit_sha} is not a whole SHA"
    if reason := distrusted(runs, link, forges, settings.untrusted == "comment"):
        return reason
    if is_waiting(detail.commit.judged, runs):
        return "uploads of the commit are missing"
    pages = project_forge.pages(project, None, forges, None)
    is_unverified = not all(run.trusted for run in runs)
    return CommitFacts(project, detail, _failures(project, detail.flags), pages, is_unverified)


def _failures(project: Project, flags: Sequence[FlagDetail]) -> Failures:
    new: list[NewFailure] = []
    count, ignored = 0, {id for (id,) in reports.execute_sql(_QUARANTINED, (project.id,))}
    for flag in flags:
        base = flag.status.verdict.baseline_id if flag.status.verdict else None
        found = new_failures.of_run(flag.status.run.id, base)
        count += len({*found.tests} - ignored) + len(found.suites)
        if len(new) < MAX_NEW:
            new += _new(project, flag, sorted(found.results)[:_MAX_READ], ignored)[: MAX_NEW - len(new)]
            new += [NewFailure(name, None, None, None) for name in sorted(found.suites)[: MAX_NEW - len(new)]]
    fixed = [flag.changes.fixed for flag in flags if flag.changes is not None]
    names = list(dict.fromkeys(_name(one) for tests in fixed for one in tests.named))
    runs = [flag.status.run for flag in flags]
    flaky = reports.execute_sql(_FLAKY, (json.dumps([run.id for run in runs]), MAX_FLAKY)).fetchall()
    return Failures(
        new,
        count,
        names[:MAX_FIXED],
        sum(tests.count for tests in fixed),
        [_name(Named(*row)) for row in flaky],
        sum(run.flaky for run in runs),
    )


def _new(project: Project, flag: FlagDetail, results: Sequence[int], ignored: Collection[int]) -> list[NewFailure]:
    rows = {id: row for id, row in failures_by_id(results).items() if row.test_id not in ignored}
    tests = [row.test_id for row in rows.values() if row.test_id is not None]
    since, owned = first_failures(flag.status.run, tests), owners.of_tests(project.id, tests)
    found = []
    for id in results:
        if (row := rows.get(id)) is not None:
            first = since.get(row.test_id or 0)
            commit = first.first_failing.commit_sha if first else None
            found.append(NewFailure(_name(row), row.message or row.type, owned.get(row.test_id or 0), commit))
    return found


def _name(test: Named | FailureRow) -> str:
    return f"{test.class_name} {test.name}".strip()
