"""Runs as uploads make them: stored, and merged by run key, each upload whole or not at all.

Totals are always those of the run's reports, so they cannot drift: whatever is added, they are summed anew.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby
from pathlib import Path
from typing import Any

from attrs import frozen

from models.accounts import accounts, permissions
from models.accounts.accounts import Credential, User
from models.config.settings import Tracker, TrackerSecurity
from models.errors import Denied, Unauthenticated
from models.tracker import quality_gate, run_events
from models.tracker.line_sets import count_union
from models.tracker.quality_gate import Verdict
from models.tracker.run_events import RunUpdate
from models.tracker.tables import Project, Run, reports


@frozen
class Upload:
    """What a request says of its run. None: it does not say."""

    project: str
    branch: str | None = None
    commit: str | None = None
    flag: str | None = None
    run_key: str | None = None
    repo_url: str | None = None
    build_url: str | None = None
    build_name: str | None = None
    ci_provider: str | None = None
    base_branch: str | None = None
    pr_number: int | None = None
    module: str | None = None


@frozen
class Stored:
    """A run as it is after an upload, and the event that tells of it."""

    run: Run
    project: Project
    verdict: Verdict
    update: RunUpdate


DEFAULT_FLAG = "default"

_FACTS = {
    "branch": "branch", "commit_sha": "commit", "repo_url": "repo_url", "build_url": "build_url",
    "build_name": "build_name", "ci_provider": "ci_provider", "base_branch": "base_branch", "pr_number": "pr_number",
}  # fmt: skip
"""Columns of a run that an upload fills where they are empty, and the fields of the upload that fill them."""

_COUNTS = ("tests", "passed", "failed", "errors", "skipped", "flaky", "duration_ms")
_COVERED = ("line_covered", "line_missed", "branch_covered", "branch_missed")
_TOTALS = f"SELECT {', '.join(f'sum({name})' for name in _COUNTS + _COVERED)} FROM report WHERE run_id = ?"  # noqa: S608

# The rows of the spool are numbered from 1; each gets the number that follows the last of its table. `:reports` is the
# last report before this upload, so what lies beyond is new, and the spool's other reports were there already.
# A test that is new gets the number of its case: then it need not be sought by its name a second time.
_NEW = "(SELECT id - :reports FROM report WHERE run_id = :run AND id > :reports)"
_CASES = f"reports s CROSS JOIN cases c ON c.id BETWEEN s.first AND s.last WHERE s.number IN {_NEW}"
_REPORTS = f"""
    INSERT INTO report (id, run_id, kind, hash, name, format, module, created_at, {", ".join(_COUNTS + _COVERED)})
    SELECT :reports + s.number, :run, s.kind, s.hash, s.name, s.format, :module, :now,
    {", ".join(f"s.{name}" for name in _COUNTS + _COVERED)} FROM reports s WHERE NOT EXISTS
    (SELECT 1 FROM report r WHERE r.run_id = :run AND r.kind = s.kind AND r.hash = s.hash)"""  # noqa: S608
_ROWS = (
    f"""INSERT INTO suite (id, report_id, run_id, name, tests, failed, errors, skipped, duration_ms)
    SELECT :suites + id, :reports + report, :run, name, tests, failed, errors, skipped, duration_ms
    FROM suites WHERE report IN {_NEW}""",  # noqa: S608
    f"""INSERT INTO test (id, project_id, class_name, name)
    SELECT :tests + c.id, :project, c.class_name, c.name FROM {_CASES} ON CONFLICT DO NOTHING""",  # noqa: S608
    f"""INSERT INTO result (id, report_id, run_id, test_id, suite_id, status, flaky, reruns, duration_ms)
    SELECT :results + c.id, :reports + s.number, :run, coalesce((SELECT id FROM test WHERE id = :tests + c.id),
    (SELECT id FROM test t WHERE t.project_id = :project AND t.class_name = c.class_name AND t.name = c.name)),
    :suites + c.suite, c.fate & 3, c.fate >> 2 & 1, c.fate >> 3, c.duration_ms FROM {_CASES}""",  # noqa: S608
    f"""INSERT INTO failure (result_id, type, message, stack)
    SELECT :results + id, type, message, stack FROM failures WHERE report IN {_NEW}""",  # noqa: S608
    f"""INSERT INTO output (result_id, out, err)
    SELECT :results + id, out, err FROM outputs WHERE report IN {_NEW}""",  # noqa: S608
    f"""INSERT INTO coverage (report_id, run_id, path, {", ".join(_COVERED)}, covered, missed)
    SELECT :reports + report, :run, path, {", ".join(_COVERED)}, covered, missed
    FROM files WHERE report IN {_NEW}""",  # noqa: S608
)
_AT_MOST = {
    "report": "SELECT coalesce(max(number), 0) FROM reports",
    "suite": "SELECT coalesce(max(id), 0) FROM suites",
    "test": "SELECT coalesce(max(id), 0) FROM cases",
    "result": "SELECT coalesce(max(id), 0) FROM cases",
}
"""How many rows of each table an upload makes at most, as queries."""
_SHARED = f"""
    SELECT c.path, r.module, {", ".join(f"c.{name}" for name in _COVERED)}, c.covered, c.missed
    FROM (SELECT c.path, r.module FROM coverage c JOIN report r ON r.id = c.report_id WHERE c.run_id = :run
          GROUP BY c.path, r.module HAVING min(c.report_id) < max(c.report_id)) AS shared
    CROSS JOIN coverage c ON c.run_id = :run AND c.path = shared.path
    CROSS JOIN report r ON r.id = c.report_id AND r.module IS shared.module
    ORDER BY c.path, r.module"""  # noqa: S608


def check_post(user: User | None, project: str) -> None:
    """Raises `Unauthenticated` or `Denied` where `user` may not post to the project of this name.

    To a PUBLIC one, and to one that is not there yet, whoever may post at all may.
    """
    found = Project.get_or_none(Project.name == project)
    if found is None or found.visibility == "PUBLIC" or permissions.may_write(user, found):
        return
    if user is None:
        raise Unauthenticated(f"an account is needed to post to {project}")
    raise Denied(f"{user.username} may not post to {project}")


def store(spool: Path, upload: Upload, credential: Credential | None, settings: Tracker, keep: int, now: int) -> Stored:
    """Makes the spooled reports a run, or a part of the run of their key. For a worker, on a connection of its own.

    `keep` is how many run events are kept. Raises `Unauthenticated`, `Denied`, `peewee.DatabaseError`; then nothing
    was stored.
    """
    with reports.spooled(spool), reports.atomic():
        user = _user(credential, now)
        check_post(user, upload.project)
        project = _project(upload, user, settings.security, now)
        run = _run(project, upload, now)
        if _add(run, upload, now):
            _sum_up(run)
        verdict = quality_gate.verdict(run, project, settings.quality_gate)
        return Stored(run, project, verdict, run_events.record(run, project, verdict, keep))


def _user(credential: Credential | None, now: int) -> User | None:
    """Who posts, as he is now: a long upload may have outlived its token."""
    if credential is None:
        return None
    still = accounts.still(credential, now)
    if still is None:
        raise Unauthenticated("the credential ended while the reports came")
    return still.user


def _project(upload: Upload, user: User | None, security: TrackerSecurity, now: int) -> Project:
    project = Project.get_or_none(Project.name == upload.project)
    if project is None:
        visibility = security.default_visibility or ("PUBLIC" if security.open_mode else "PRIVATE")
        project = Project.create(name=upload.project, repo_url=upload.repo_url, visibility=visibility, created_at=now)
        if user is not None:
            permissions.grant(project.id, user.id, "OWNER", now)
    elif project.repo_url is None and upload.repo_url is not None:
        project.repo_url = upload.repo_url
        project.save(only=[Project.repo_url])
    return project


def _run(project: Project, upload: Upload, now: int) -> Run:
    """The run of this key, or a new one. What the first upload said stays; what it left out later ones fill in."""
    said = {column: getattr(upload, field) for column, field in _FACTS.items()}
    key = upload.run_key
    found = None if key is None else Run.get_or_none((Run.project == project) & (Run.run_key == key))
    if found is None:
        zeros = dict.fromkeys(_COUNTS, 0)
        return Run.create(
            project=project, run_key=key, flag=upload.flag or DEFAULT_FLAG, created_at=now, updated_at=now,
            status="PASSED", uploads=0, **said, **zeros,
        )  # fmt: skip
    missing = {column: value for column, value in said.items() if getattr(found, column) is None and value is not None}
    if missing:
        _set(found, updated_at=now, **missing)
    return found


def _add(run: Run, upload: Upload, now: int) -> bool:
    """Copies from the spool what the run does not have yet; whether there was any."""
    values: dict[str, Any] = {"run": run.id, "project": run.project_id, "module": upload.module, "now": now}
    values |= {f"{table}s": last for table, last in reports.last_ids(_AT_MOST).items()}
    if not reports.execute_sql(_REPORTS, values).rowcount:
        return False
    for statement in _ROWS:
        reports.execute_sql(statement, values)
    _set(run, uploads=run.uploads + 1, updated_at=now)
    return True


def _sum_up(run: Run) -> None:
    """The totals of a run are the sums over its reports, less what coverage reports say twice."""
    sums = reports.execute_sql(_TOTALS, (run.id,)).fetchone()
    totals = dict(zip(_COUNTS + _COVERED, sums, strict=True))
    for name, twice in zip(_COVERED, _told_twice(run), strict=True):
        if totals[name] is not None:
            totals[name] = max(0, totals[name] - twice)
    failed = totals["failed"] + totals["errors"]
    _set(run, status="FAILED" if failed else "PASSED", **totals)


def _told_twice(run: Run) -> Sequence[int]:
    """By how much the reports' own totals overstate, because several of them tell of the same source file."""
    count = "SELECT count(*) FROM report WHERE run_id = ? AND kind = 'jacoco'"
    if reports.execute_sql(count, (run.id,)).fetchone()[0] < 2:
        return (0, 0, 0, 0)
    rows = reports.execute_sql(_SHARED, {"run": run.id})
    excess = [0, 0, 0, 0]
    for told, once in united(rows):
        for place in range(4):
            excess[place] += told[place] - once[place]
    return excess


def united(rows: Iterable[Sequence[Any]]) -> Iterator[tuple[Sequence[int], Sequence[int]]]:
    """For each source file of several reports: the sums of its counts there, and its counts once."""
    for _, group in groupby(rows, key=lambda row: row[:2]):
        told = [row[2:] for row in group]
        sums = [sum(counts) for counts in zip(*(row[:4] for row in told), strict=True)]
        yield sums, (*_lines(told), *_branches(told))


def _lines(told: Sequence[Sequence[Any]]) -> tuple[int, int]:
    """Covered and missed: the union of the lines; where there are none, the larger covered count wins."""
    counts = [(row[0], row[1]) for row in told if row[4] is None]
    if len(counts) < len(told):
        counts.append(count_union(row[4:6] for row in told if row[4] is not None))
    return max(counts, key=lambda pair: (pair[0], sum(pair)))


def _branches(told: Sequence[Sequence[Any]]) -> tuple[int, int]:
    """No report says which branches it means: as many as the best of them covered, of as many as any saw."""
    covered = max(row[2] for row in told)
    return covered, max(row[2] + row[3] for row in told) - covered


def _set(run: Run, **values: Any) -> None:
    Run.update(**values).where(Run.id == run.id).execute()
    for name, value in values.items():
        setattr(run, name, value)
