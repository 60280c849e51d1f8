"""Attempts of CI jobs, and the completeness of runs.

A later attempt of a job supersedes the reports of its earlier attempts in the run. Superseded reports move to a run of
their own, which refers to the run in `superseded_by`: so they leave its totals, gate and coverage, stay readable, and
count for flaky tests as another run. Everything here runs in the transaction that stores the upload.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any, Literal

from attrs import frozen

from models.config.settings import RunSettings
from models.times import SECOND
from models.tracker.insights import counting
from models.tracker.tables import Run, reports

State = Literal["COMPLETE", "PENDING", "INCOMPLETE"]


_REGISTER = """
    INSERT INTO upload (run_id, job_key, job_instance, attempt, created_at) VALUES (?, ?, ?, ?, ?)
    ON CONFLICT (run_id, job_key, job_instance, attempt) DO UPDATE SET created_at = upload.created_at
    RETURNING id, created_at"""
_EQUAL_EARLIER = """
    SELECT r.id, r.run_id FROM report r JOIN upload u ON u.id = r.upload_id
    JOIN reports s ON s.kind = r.kind AND s.hash = r.hash
    WHERE u.run_id = :run AND u.job_key = :job_key AND u.attempt < :attempt"""
_REPEAT = """
    INSERT INTO repeated_report (upload_id, kind, hash) SELECT :upload, s.kind, s.hash FROM reports s
    JOIN report r ON r.run_id = :run AND r.kind = s.kind AND r.hash = s.hash
    WHERE r.upload_id IS NULL OR r.upload_id <> :upload ON CONFLICT DO NOTHING"""
_HEIRS = """
    SELECT r.id, min(u.id) FROM upload u JOIN repeated_report x ON x.upload_id = u.id
    JOIN report r ON r.run_id = u.run_id AND r.kind = x.kind AND r.hash = x.hash
    WHERE u.run_id = :run AND u.job_key <> :job_key AND r.id IN (SELECT value FROM json_each(:ids))
    AND (u.job_key = '' OR u.attempt = (SELECT max(n.attempt) FROM upload n WHERE n.run_id = u.run_id
        AND n.job_key = u.job_key) OR EXISTS (SELECT 1 FROM upload n WHERE n.run_id = u.run_id
        AND n.job_key = u.job_key GROUP BY n.attempt HAVING count(DISTINCT n.job_instance) > 1))
    GROUP BY r.id"""
_LOST = """
    SELECT r.id, r.run_id, lost.upload FROM report r JOIN
    (SELECT min(r.id) AS id, min(u.id) AS upload FROM upload u JOIN repeated_report x ON x.upload_id = u.id
        JOIN report r ON r.kind = x.kind AND r.hash = x.hash JOIN run other ON other.id = r.run_id
        WHERE u.run_id = :run AND u.job_key = :job_key AND other.superseded_by = :run AND NOT EXISTS
        (SELECT 1 FROM report o WHERE o.run_id = :run AND o.kind = r.kind AND o.hash = r.hash)
        GROUP BY r.kind, r.hash) AS lost ON lost.id = r.id"""
_ATTEMPTS = """
    SELECT attempt, count(DISTINCT job_instance) FROM upload WHERE run_id = ? AND job_key = ? GROUP BY attempt"""
_REPORTS_OF_JOB = """
    SELECT r.id, r.run_id, u.attempt FROM report r JOIN upload u ON u.id = r.upload_id
    WHERE u.run_id = ? AND u.job_key = ?"""
_ARRIVED = """
    SELECT run_id, sum(instances) FROM (SELECT run_id, job_key, max(instances) AS instances FROM
        (SELECT run_id, job_key, count(DISTINCT job_instance) AS instances FROM upload
         WHERE run_id IN (SELECT value FROM json_each(?))
         GROUP BY run_id, job_key, CASE WHEN job_key = '' THEN 0 ELSE attempt END) AS attempts
        GROUP BY run_id, job_key) AS jobs GROUP BY run_id"""
_STAGED_HASHES = "SELECT kind, hash FROM reports ORDER BY kind, hash"
_BY_CONTENT = "content:"
"""The prefix of the instance of an upload that names neither a job nor an instance: such uploads are counted by
content, since one that is sent again is no further upload."""
_AMBIGUOUS = """
    SELECT DISTINCT job_key FROM (SELECT job_key FROM upload WHERE run_id = ? AND job_key <> ''
        GROUP BY job_key, attempt HAVING count(DISTINCT job_instance) > 1) AS keys ORDER BY job_key"""
_MOVABLE = """
    SELECT r.id FROM report r WHERE r.id IN (SELECT value FROM json_each(:ids)) AND NOT EXISTS
    (SELECT 1 FROM report o WHERE o.run_id = :target AND o.kind = r.kind AND o.hash = r.hash)"""
_MOVED_TABLES = ("report", "suite", "result", "coverage", "attachment", "perf_point")
_COPIED = (
    "branch", "flag", "commit_sha", "repo_url", "build_url", "build_name", "ci_provider", "base_branch", "pr_number",
    "created_at", "head_repo",
)  # fmt: skip
_LISTED = """
    SELECT u.id, u.job_key, u.job_instance, u.attempt, u.created_at, r.run_id, count(r.id), sum(r.tests),
    sum(r.failed + r.errors) FROM upload u LEFT JOIN report r ON r.upload_id = u.id WHERE u.run_id = ?
    GROUP BY u.id, u.job_key, u.job_instance, u.attempt, u.created_at, r.run_id, u.run_id
    ORDER BY u.job_key, u.attempt, u.id, coalesce(r.run_id, u.run_id)"""


@frozen
class Attempt:
    """An upload of a job. `run_id` is the run that holds its reports: the run itself, or the superseded one."""

    id: int
    job_key: str | None
    job_instance: str | None
    attempt: int
    created_at: int
    run_id: int
    superseded: bool
    reports: int
    tests: int
    failures: int


def register(run: Run, job_key: str | None, job_instance: str | None, attempt: int, now: int) -> tuple[int, bool]:
    """Records that an upload of a job came. Returns its id, and whether it is the first of this job and attempt.

    Uploads that name neither a job nor an instance are distinguished by their staged reports.
    """
    if job_key is None and job_instance is None:
        job_instance = _content_of_staged()
    values = (run.id, job_key or "", job_instance or "", attempt, now)
    id, created_at = reports.execute_sql(_REGISTER, values).fetchone()
    return int(id), created_at == now


def _content_of_staged() -> str:
    rows = reports.execute_sql(_STAGED_HASHES).fetchall()
    return _BY_CONTENT + hashlib.sha256(json.dumps([list(row) for row in rows]).encode()).hexdigest()


def adopt_equal_reports(run: Run, job_key: str, attempt: int, upload_id: int) -> bool:
    """Staged reports that an earlier attempt of the job has sent already become reports of this attempt.

    Returns whether reports moved to the run.
    """
    values = {"run": run.id, "job_key": job_key, "attempt": attempt}
    has_moved = False
    for report, holder in reports.execute_sql(_EQUAL_EARLIER, values).fetchall():
        reports.execute_sql("UPDATE report SET upload_id = ? WHERE id = ?", (upload_id, report))
        if holder != run.id:
            _move([report], holder, run.id)
            has_moved = True
    return has_moved


def record_repeated(run: Run, upload_id: int) -> None:
    """Records the staged reports that the run has from another upload. They stay when that one is superseded."""
    reports.execute_sql(_REPEAT, {"run": run.id, "upload": upload_id})


def _leave_to_others(run: Run, job_key: str, report_ids: Sequence[int]) -> Collection[int]:
    """Gives each superseded report that another job has uploaded too to that job. Returns the ids of these reports."""
    values = {"run": run.id, "job_key": job_key, "ids": json.dumps(list(report_ids))}
    heirs = dict(reports.execute_sql(_HEIRS, values).fetchall())
    for report, upload in heirs.items():
        reports.execute_sql("UPDATE report SET upload_id = ? WHERE id = ?", (upload, report))
    return heirs


def supersede(run: Run, job_key: str) -> tuple[Collection[int], str | None]:
    """Moves the reports of a job between the run and its superseded attempts.

    A job that turns out to be ambiguous gets back the reports that only another job's superseded attempt has kept.
    Returns the ids of the superseded runs whose reports changed, and a warning where the key is ambiguous: two
    instances of one attempt are legs of a matrix, and then nothing is superseded.
    """
    instances = dict(reports.execute_sql(_ATTEMPTS, (run.id, job_key)).fetchall())
    is_ambiguous = max(instances.values(), default=0) > 1
    newest = max(instances, default=0)
    moves: dict[tuple[int, int], list[int]] = {}
    for report, holder, attempt in reports.execute_sql(_REPORTS_OF_JOB, (run.id, job_key)).fetchall():
        target = run.id if is_ambiguous or attempt == newest else _superseded_run(run, job_key, attempt)
        if holder != target:
            moves.setdefault((holder, target), []).append(report)
    if is_ambiguous:
        for report, holder, upload in reports.execute_sql(_LOST, {"run": run.id, "job_key": job_key}).fetchall():
            reports.execute_sql("UPDATE report SET upload_id = ? WHERE id = ?", (upload, report))
            moves.setdefault((holder, run.id), []).append(report)
    for (holder, target), ids in moves.items():
        left = _leave_to_others(run, job_key, ids) if holder == run.id else ()
        _move([id for id in ids if id not in left], holder, target)
    changed = {id for pair in moves for id in pair if id != run.id}
    warning = (
        f"the job key {job_key} is used by several jobs of one attempt, so retries of it replace nothing;"
        " give each its own with --job-key"
    )
    return changed, warning if is_ambiguous else None


def _superseded_run(run: Run, job_key: str, attempt: int) -> int:
    """The run that holds the superseded reports of an attempt; made if it does not exist."""
    known = {"superseded_by": run.id, "job_key": job_key, "attempt": attempt}
    existing = Run.get_or_none(**known)
    if existing is None:
        zeros = dict.fromkeys(("tests", "passed", "failed", "errors", "skipped", "flaky", "duration_ms", "uploads"), 0)
        copied = {name: getattr(run, name) for name in _COPIED}
        existing = Run.create(
            project=run.project_id, state="COMPLETE", status="PASSED", updated_at=run.updated_at,
            **known, **copied, **zeros,
        )  # fmt: skip
    return int(existing.id)


def _move(report_ids: Sequence[int], holder: int, target: int) -> None:
    """Moves reports with their rows; one that the target has already, of another job, stays."""
    movable = reports.execute_sql(_MOVABLE, {"ids": json.dumps(list(report_ids)), "target": target})
    ids = json.dumps([row[0] for row in movable])
    for table in _MOVED_TABLES:
        column = "id" if table == "report" else "report_id"
        reports.execute_sql(
            f"UPDATE {table} SET run_id = ? WHERE run_id = ? AND {column} IN (SELECT value FROM json_each(?))",  # noqa: S608 (constants)
            (target, holder, ids),
        )
    counting.on_reports_moved(ids, holder, target)


def is_empty(run: Run) -> bool:
    """Whether a run has no report any more."""
    return reports.execute_sql("SELECT 1 FROM report WHERE run_id = ? LIMIT 1", (run.id,)).fetchone() is None


def place(attempt: Attempt) -> tuple[str, int, int, int]:
    """The place of an upload in `listing`."""
    return attempt.job_key or "", attempt.attempt, attempt.id, attempt.run_id


def listing(run: Run) -> list[Attempt]:
    """The uploads of a run that came with its key, by job and attempt."""
    rows = reports.execute_sql(_LISTED, (run.id,)).fetchall()
    last = {row[1]: row[3] for row in rows if row[1]}  # by attempt: the last of each job key
    return [
        Attempt(id, key or None, None if not key and instance.startswith(_BY_CONTENT) else instance or None,
                attempt, at, holder or run.id,
                attempt < last.get(key, attempt) if holder is None else holder != run.id, count, tests or 0,
                failures or 0)
        for id, key, instance, attempt, at, holder, count, tests, failures in rows
    ]  # fmt: skip


def ambiguous_keys(run: Run) -> list[str]:
    """The job keys of a run that several jobs of one attempt use, so that a retry of them supersedes nothing."""
    return [key for (key,) in reports.execute_sql(_AMBIGUOUS, (run.id,))]


def arrived(runs: Iterable[int]) -> Mapping[int, int]:
    """By run, the number of jobs of which an upload came: instances of one attempt count each, retries do not."""
    return {run: int(count) for run, count in reports.execute_sql(_ARRIVED, (json.dumps(list(runs)),))}


def state_after(run: Run, complete: bool) -> State:
    """The state of a run after an upload. `complete`: the upload is marked as the last one."""
    if run.run_key is None:
        return "COMPLETE"
    if complete or run.expected_uploads:
        return closed_state(run, "INCOMPLETE" if complete else "PENDING")
    return "PENDING"


def is_waiting(run: Run) -> bool:
    """Whether uploads are expected that have not come, but may come."""
    return run.state == "PENDING" and run.expected_uploads is not None


def closed_state(run: Run, otherwise: State = "INCOMPLETE") -> State:
    """COMPLETE if all the uploads came that the run expects, if any."""
    has_all = not run.expected_uploads or arrived([run.id]).get(run.id, 0) >= run.expected_uploads
    return "COMPLETE" if has_all else otherwise


def late(settings: RunSettings, now: int) -> int:
    """The time of the last upload after which no more of a run, or of its commit, are waited for."""
    return now - round(settings.incomplete_after * SECOND)


def settle(settings: RunSettings, now: int) -> int | None:
    """Closes pending runs whose time is over; returns when the next one's is, None without any.

    The time of a run whose last upload is dated later than `now`, because the clock was set back, begins now.
    """
    quiet = now - round(settings.settle * SECOND)
    pending = "UPDATE run SET state = ? WHERE state = 'PENDING' AND updated_at <= ? AND expected_uploads"
    with reports.atomic():
        reports.execute_sql("UPDATE run SET updated_at = ? WHERE state = 'PENDING' AND updated_at > ?", (now, now))
        reports.execute_sql(f"{pending} IS NULL", ("COMPLETE", quiet))
        reports.execute_sql(f"{pending} IS NOT NULL", ("INCOMPLETE", late(settings, now)))
        due: list[Any] = reports.execute_sql(
            "SELECT expected_uploads IS NULL, min(updated_at) FROM run WHERE state = 'PENDING' GROUP BY 1"
        ).fetchall()
    spans = [at + round((settings.settle if soon else settings.incomplete_after) * SECOND) for soon, at in due]
    return min(spans, default=None)
