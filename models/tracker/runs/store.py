"""Stores uploads as runs, merged by run key: each upload entirely or not at all.

The totals of a run are summed over its reports after each upload, so they cannot drift.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any, Literal

from attrs import frozen

from models.accounts import accounts, permissions
from models.accounts.accounts import Credential, User
from models.config.settings import TrackerSecurity, TrackerSettings
from models.errors import Conflict, Denied, NotFound, TooLarge, Unauthenticated
from models.tracker import open_projects
from models.tracker.coverage import patch
from models.tracker.coverage.file_coverage import COUNTS as _COVERED
from models.tracker.coverage.file_coverage import counted_twice
from models.tracker.failures import clusters
from models.tracker.files import attachments, sources
from models.tracker.files.attachment_files import AttachmentFolder, StagedFile
from models.tracker.forges import owners
from models.tracker.gate import baseline, commit_gate, quality_gate, test_drop
from models.tracker.gate.commit_gate import CommitVerdict
from models.tracker.gate.quality_gate import Verdict
from models.tracker.insights import counting
from models.tracker.open_projects import Creator
from models.tracker.reports.perf_points import FIGURES
from models.tracker.runs import attempts, run_events
from models.tracker.runs.run_events import RunUpdate
from models.tracker.tables import Project, Run, reports


@frozen
class Attached:
    """The attachments of an upload, staged in their folder."""

    folder: AttachmentFolder
    files: Sequence[StagedFile]
    missing: Sequence[str] = ()
    """Warnings about files that the reports name and that were not uploaded."""


@frozen
class Upload:
    """The text parts of a request; None for those that are absent."""

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
    head_repo: str | None = None
    """The repository that the commit of a pull request is in, if it is a fork."""
    module: str | None = None
    job_key: str | None = None
    job_instance: str | None = None
    attempt: int = 0
    expected_uploads: int | None = None
    complete: bool = False
    reruns: Literal["worst", "last"] = "worst"
    codeowners: bytes | None = None
    warnings: Sequence[str] = ()
    """What of its parts was left out."""
    attachments: Attached | None = None
    perf_flag: str | None = None
    address: str | None = None
    """Where an anonymous caller is; None for an account and an operator."""


@frozen
class StoredRun:
    """A run after an upload, and its event."""

    run: Run
    project: Project
    verdict: Verdict
    """On all of the run's commit so far."""
    update: RunUpdate
    warnings: Sequence[str] = ()
    """Warnings about accepted uploads that are probably mistakes."""
    unused_contents: Collection[str] = ()
    """The hashes of attachments that were deleted to make room."""


DEFAULT_FLAG = "default"

_FACTS = {
    "branch": "branch", "commit_sha": "commit", "repo_url": "repo_url", "build_url": "build_url",
    "build_name": "build_name", "ci_provider": "ci_provider", "base_branch": "base_branch", "pr_number": "pr_number",
    "head_repo": "head_repo",
}  # fmt: skip
"""Columns of a run that an upload fills where they are empty, and the fields of the upload that fill them."""

_COUNTS = ("tests", "passed", "failed", "errors", "skipped", "flaky", "duration_ms")
_TOTALS = f"SELECT {', '.join(f'sum({name})' for name in _COUNTS + _COVERED)} FROM report WHERE run_id = ?"  # noqa: S608

# Staged rows are numbered from 1 and get the ids that follow the last of their table. `:reports` is the last report
# before this upload: reports beyond it are new, the other staged reports were stored before.
# A new test gets the id of its case, so that it is not looked up by name a second time.
_NEW = "(SELECT id - :reports FROM report WHERE run_id = :run AND id > :reports)"
_CASES = f"reports s CROSS JOIN cases c ON c.id BETWEEN s.first AND s.last WHERE s.number IN {_NEW}"
_REPORTS = f"""
    INSERT INTO report (id, run_id, kind, hash, name, format, module, created_at, upload_id, warnings,
    {", ".join(_COUNTS + _COVERED)})
    SELECT :reports + s.number, :run, s.kind, s.hash, s.name, s.format, :module, :now, :upload, s.warnings,
    {", ".join(f"s.{name}" for name in _COUNTS + _COVERED)} FROM reports s WHERE NOT EXISTS
    (SELECT 1 FROM report r WHERE r.run_id = :run AND r.kind = s.kind AND r.hash = s.hash) AND NOT EXISTS
    (SELECT 1 FROM report r WHERE r.kind = s.kind AND r.hash = s.hash AND r.upload_id IN (SELECT :upload UNION ALL
     SELECT u.id FROM upload own CROSS JOIN upload u WHERE own.id = :upload AND own.job_key <> '' AND u.run_id = :run
     AND u.job_key = own.job_key AND u.attempt > own.attempt))"""  # noqa: S608
_ROWS = (
    f"""INSERT INTO suite (id, report_id, run_id, name, tests, failed, errors, skipped, duration_ms)
    SELECT :suites + id, :reports + report, :run, name, tests, failed, errors, skipped, duration_ms
    FROM suites WHERE report IN {_NEW}""",  # noqa: S608
    f"""INSERT INTO test (id, project_id, class_name, name, file)
    SELECT :tests + c.id, :project, c.class_name, c.name, (SELECT file FROM places p WHERE p.id = c.id)
    FROM {_CASES} ON CONFLICT DO NOTHING""",  # noqa: S608
    f"""INSERT INTO result (id, report_id, run_id, test_id, suite_id, status, flaky, reruns, duration_ms)
    SELECT :results + c.id, :reports + s.number, :run, coalesce((SELECT id FROM test WHERE id = :tests + c.id),
    (SELECT id FROM test t WHERE t.project_id = :project AND t.class_name = c.class_name AND t.name = c.name)),
    :suites + c.suite, c.fate & 3, c.fate >> 2 & 1, c.fate >> 3, c.duration_ms FROM {_CASES}""",  # noqa: S608
    """UPDATE test SET file = moved.file FROM (SELECT r.test_id, p.file FROM places p
    JOIN result r ON r.id = :results + p.id AND r.run_id = :run) AS moved
    WHERE test.id = moved.test_id AND test.file IS NOT moved.file""",
    f"""INSERT INTO cluster (project_id, hash, signature, type, message, stack, tests, occurrences)
    SELECT :project, hash, signature, type, message, stack, 0, 0 FROM clusters
    WHERE hash IN (SELECT hash FROM failures WHERE report IN {_NEW}) ON CONFLICT DO NOTHING""",  # noqa: S608
    f"""INSERT INTO failure (result_id, type, message, stack, cluster_id)
    SELECT :results + f.id, f.type, f.message, f.stack,
    (SELECT c.id FROM cluster c WHERE c.project_id = :project AND c.hash = f.hash)
    FROM failures f WHERE f.report IN {_NEW}""",  # noqa: S608
    f"""INSERT INTO output (result_id, out, err)
    SELECT :results + id, out, err FROM outputs WHERE report IN {_NEW}""",  # noqa: S608
    f"""INSERT INTO coverage (report_id, run_id, path, {", ".join(_COVERED)}, covered, missed, repository_path)
    SELECT :reports + report, :run, path, {", ".join(_COVERED)}, covered, missed, repository_path
    FROM files WHERE report IN {_NEW}""",  # noqa: S608
    f"""INSERT INTO perf_point (report_id, run_id, label, {", ".join(FIGURES)})
    SELECT :reports + report, :run, label, {", ".join(FIGURES)} FROM perf WHERE report IN {_NEW}""",  # noqa: S608
)
_AT_MOST = {
    "report": "SELECT coalesce(max(number), 0) FROM reports",
    "suite": "SELECT coalesce(max(id), 0) FROM suites",
    "test": "SELECT coalesce(max(id), 0) FROM cases",
    "result": "SELECT coalesce(max(id), 0) FROM cases",
}
"""Queries of the maximum number of rows that an upload adds to each table."""


def check_post(user: User | None, project: str, creator: Creator | None = None) -> None:
    """Raises `Unauthenticated` or `Denied` where `user` may not post to the project of this name.

    A PUBLIC project and one that does not exist yet need no membership. An anonymous `creator` may create
    a limited number of projects; beyond it, a private project is refused as a new one is.
    """
    existing = Project.get_or_none(Project.name == project)
    if existing is not None and (existing.visibility == "PUBLIC" or permissions.may_write(user, existing)):
        return
    if creator is not None and user is None:
        open_projects.check_creation(project, creator)
    if existing is None:
        return
    if user is None:
        raise Unauthenticated(f"an account is needed to post to {project}")
    raise Denied(f"{user.username} may not post to {project}")


def store(
    spool: Path, upload: Upload, credential: Credential | None, settings: TrackerSettings, keep: int, now: int
) -> StoredRun:
    """Stores staged reports as a run, or adds them to the run of their key. For a worker, on its own connection.

    `keep` is the number of run events to keep. Raises `Unauthenticated`, `Denied`, `Conflict`,
    `peewee.DatabaseError`; then nothing is stored.
    """
    with reports.spooled(spool), reports.atomic():
        user = _user(credential, now)
        check_post(user, upload.project, _creator(upload, settings, now))
        project = _project(upload, user, settings.security, now)
        run = _run(project, upload, now)
        trust_only(user, project, run, is_new=run.uploads == 0)
        warnings = [*_add(run, upload, now), *_store_codeowners(project, upload, user, settings, now)]
        if unknown := baseline.unknown_base_branch(run.id, settings.quality_gate.base_branch):
            warnings.append(f"the base branch {unknown[0]} has no run: the run is compared with {unknown[1]}")
        unused: Collection[str] = ()
        if upload.attachments is not None:
            attached = upload.attachments
            more, unused = attachments.add(
                run, attached.files, attached.folder, settings.attachments, now, is_anonymous=user is None
            )
            warnings = [*warnings, *attached.missing, *more]
        if ignored := sources.add(run, project, settings.source):
            warnings = [*warnings, ignored]
        judged = commit_gate.of_run(run, project, settings.quality_gate)
        base = _baseline(run, judged, settings)
        warnings = [*warnings, *test_drop.warnings(run.id, base, attempts.is_waiting(run))]
        update = run_events.record(run, project, judged.verdict.passed, keep)
        return StoredRun(run, project, judged.verdict, update, warnings, unused)


def _baseline(run: Run, judged: CommitVerdict, settings: TrackerSettings) -> int | None:
    """The baseline of a run, whose commit was judged: by its own verdict, which a later run of its flag replaces."""
    own = next((flag.verdict for flag in judged.flags if flag.run.id == run.id and flag.verdict is not None), None)
    if own is not None:
        return own.baseline_id
    base = baseline.of_runs([run.id], settings.quality_gate.base_branch).get(run.id)
    return base.run_id if base else None


def _creator(upload: Upload, settings: TrackerSettings, now: int) -> Creator | None:
    return None if upload.address is None else Creator(upload.address, settings.limits, now)


def trust_only(user: User | None, project: Project, run: Run, is_new: bool = False) -> None:
    """A new run is trusted if `user` may write to the project; a run that others change is not trusted any more."""
    is_writer = permissions.may_write(user, project)
    if run.trusted != (is_writer and (is_new or run.trusted)):
        _set(run, trusted=not run.trusted)


def _store_codeowners(
    project: Project, upload: Upload, user: User | None, settings: TrackerSettings, now: int
) -> Sequence[str]:
    """Keeps the CODEOWNERS file of a trusted upload of the base branch. Returns a warning where it is not kept."""
    if upload.codeowners is None:
        return ()
    base = quality_gate.thresholds(project, settings.quality_gate).base_branch
    if user is None or not permissions.may_write(user, project):
        return ["codeowners was ignored: only uploads with a token of WRITE in the project set the owners"]
    if upload.branch != base or upload.pr_number is not None:
        return [f"codeowners was ignored: only uploads of the base branch {base} set the owners"]
    try:
        text = owners.read_codeowners(upload.codeowners)
    except TooLarge as problem:
        return [f"codeowners was ignored: {problem.message}"]
    known = owners.of_project(project.id)
    if known.codeowners != text:
        owners.store(project.id, text, known.rules, now)
    return ()


def _user(credential: Credential | None, now: int) -> User | None:
    """The uploader, read anew: the credential may have ended during a long upload."""
    if credential is None:
        return None
    still = accounts.refresh(credential, now)
    if still is None:
        raise Unauthenticated("the credential ended during the upload")
    return still.user


def _project(upload: Upload, user: User | None, security: TrackerSecurity, now: int) -> Project:
    project: Project | None = Project.get_or_none(Project.name == upload.project)
    if project is None:
        visibility = security.default_visibility or ("PUBLIC" if security.open_mode else "PRIVATE")
        project = Project.create(
            name=upload.project, repo_url=upload.repo_url, visibility=visibility, created_at=now,
            created_from=upload.address if user is None else None,
        )  # fmt: skip
        if user is not None:
            permissions.grant(project.id, user.id, "OWNER", now)
    elif project.repo_url is None and upload.repo_url is not None:
        project.repo_url = upload.repo_url
        project.save(only=[Project.repo_url])
    return project


def _run(project: Project, upload: Upload, now: int) -> Run:
    """The run of this key, or a new one. The first value of each fact stays; later uploads fill in missing ones.

    Raises `Conflict` where that run has another flag.
    """
    facts = {column: getattr(upload, field) for column, field in _FACTS.items()}
    key = upload.run_key
    existing: Run | None = None if key is None else Run.get_or_none((Run.project == project) & (Run.run_key == key))
    if existing is None:
        zeros = dict.fromkeys(_COUNTS, 0)
        created: Run = Run.create(
            project=project, run_key=key, flag=upload.flag or DEFAULT_FLAG, created_at=now, updated_at=now,
            status="PASSED", state="PENDING", uploads=0, **facts, **zeros,
        )  # fmt: skip
        return created
    flag = upload.flag if upload.flag != upload.perf_flag else None  # not that of performance reports, a default
    if flag not in (None, existing.flag):
        raise Conflict(
            f"the run of the key {key} has the flag {existing.flag}, not {flag}: use a key for each flag", "OTHER_FLAG"
        )
    missing = {
        column: value for column, value in facts.items() if getattr(existing, column) is None and value is not None
    }
    if missing:
        _set(existing, updated_at=now, **missing)
        if not missing.keys().isdisjoint(("branch", "commit_sha")):
            counting.on_run_changed(existing.id)
    return existing


def _add(run: Run, upload: Upload, now: int) -> Sequence[str]:
    """Adds an upload to its run: reports, totals, superseded attempts, completeness. Returns warnings."""
    job = upload.job_key
    upload_id, is_first, has_moved = None, True, False
    if run.run_key is not None:
        upload_id, is_first = attempts.register(run, job, upload.job_instance, upload.attempt, now)
        if job is not None:
            has_moved = attempts.adopt_equal_reports(run, job, upload.attempt, upload_id)
    is_new = _copy(run, upload, upload_id, now)
    if upload_id is not None:
        attempts.record_repeated(run, upload_id)
    changed, warning = attempts.supersede(run, job) if job is not None else ((), None)
    if has_moved or changed:
        clusters.recount(run)
    for superseded in Run.select().where(Run.id.in_(list(changed))) if changed else ():
        if attempts.is_empty(superseded):
            superseded.delete_instance()
        else:
            _sum_up(superseded)
    if is_new or job is not None:
        _sum_up(run)
    has_diff = patch.store(run.id)
    _measure_patch(run, has_diff)
    _complete(run, upload, is_new, is_first)
    problem = patch.staged_problem() if has_diff else None
    return [text for text in (*upload.warnings, *_ignored_facts(run, upload), warning, problem) if text]


def _ignored_facts(run: Run, upload: Upload) -> list[str]:
    """Warnings about facts of an upload that the run of its key has otherwise."""
    facts = (("branch", upload.branch, run.branch), ("commit", upload.commit, run.commit_sha))
    return [
        f"{name} {value} was ignored: the run of this key has the {name} {kept}"
        for name, value, kept in facts
        if value not in (None, kept)
    ]


def _measure_patch(run: Run, has_diff: bool) -> None:
    """Stores the coverage of changed lines with the totals of the run, which change with each upload."""
    if not has_diff and run.patch_reason is None and run.patch_covered is None:
        return  # no upload of the run had a diff
    found = patch.coverage([run.id])
    counts = {"patch_covered": found.covered, "patch_missed": found.missed, "patch_unknown": found.unknown}
    _set(run, patch_reason=found.reason, **counts)


def _complete(run: Run, upload: Upload, is_new: bool, is_first: bool) -> None:
    """Sets the state of the run, which a later upload reopens. One that is sent again reopens nothing.

    `is_new`: it had a report that the run did not have. `is_first`: it is the first of its job and attempt.
    """
    reopens = is_new or is_first
    if upload.expected_uploads is not None:
        reopens |= upload.expected_uploads != run.expected_uploads
        _set(run, expected_uploads=upload.expected_uploads)
    state = attempts.state_after(run, upload.complete)
    changes = state != run.state and (reopens or state == "COMPLETE" or upload.complete)
    if changes or (state == "COMPLETE" and run.partial_by is not None):
        _set(run, state=state, partial_by=None)


def finish(project: Project, run_key: str, flag: str | None, now: int, partial_by: str | None = None) -> Run:
    """Closes the run of a key: nothing more is expected. Raises `NotFound`.

    With fewer uploads than the run expects it is incomplete, unless `partial_by` says who lets it be complete.
    """
    run: Run | None = Run.get_or_none((Run.project == project) & (Run.run_key == run_key))
    if run is None or (flag is not None and run.flag != flag):
        raise NotFound(f"{project.name} has no run with the key {run_key}" + (f" and flag {flag}" if flag else ""),
                       "RUN_NOT_FOUND")  # fmt: skip
    state = attempts.closed_state(run)
    if state == "INCOMPLETE" and partial_by is not None:
        _set(run, state="COMPLETE", partial_by=partial_by, updated_at=now)
    else:
        _set(run, state=state, partial_by=None, updated_at=now)
    return run


def _copy(run: Run, upload: Upload, upload_id: int | None, now: int) -> bool:
    """Copies the staged reports that the run does not have yet. Returns whether there were any."""
    values: dict[str, Any] = {"run": run.id, "project": run.project_id, "module": upload.module, "now": now}
    values["upload"] = upload_id
    values |= {f"{table}s": last for table, last in reports.last_ids(_AT_MOST).items()}
    if not reports.execute_sql(_REPORTS, values).rowcount:
        return False
    counting.begin_after(values["results"])
    for statement in _ROWS:
        reports.execute_sql(statement, values)
    clusters.add(run.id, values["reports"])
    patch.store_extensions(run.project_id, now)
    _set(run, uploads=run.uploads + 1, updated_at=now)
    return True


def _sum_up(run: Run) -> None:
    """Sets the totals of a run: the sums over its reports, less the lines that several of them count."""
    sums = reports.execute_sql(_TOTALS, (run.id,)).fetchone()
    totals = dict(zip(_COUNTS + _COVERED, sums, strict=True))
    for name, excess in zip(_COVERED, _counted_twice(run), strict=True):
        if totals[name] is not None:
            totals[name] = max(0, totals[name] - excess)
    failed = totals["failed"] + totals["errors"]
    _set(run, status="FAILED" if failed else "PASSED", **totals)


def _counted_twice(run: Run) -> Sequence[int]:
    """By how much the sums of the reports overstate, because several reports cover the same source file."""
    count = "SELECT count(*) FROM report WHERE run_id = ? AND kind = 'jacoco'"
    if reports.execute_sql(count, (run.id,)).fetchone()[0] < 2:
        return (0, 0, 0, 0)
    return counted_twice([run.id])


def _set(run: Run, **values: Any) -> None:
    Run.update(**values).where(Run.id == run.id).execute()
    for name, value in values.items():
        setattr(run, name, value)
