"""Queries of projects and runs: by id, lists newest first, and the contents of one run, within bounds."""

from __future__ import annotations

import json
from collections import namedtuple
from collections.abc import Iterable, Sequence
from typing import Any

from attrs import frozen

from models.errors import NotFound
from models.paging import INT64
from models.tracker.failures import triage
from models.tracker.files.attachments import Attachment, of_results, of_run
from models.tracker.reports.base import CASE_STATUSES, FAILING, CaseStatus
from models.tracker.tables import Project, Run, reports

MAX_ROWS = 500
"""Rows of each list of a run; the counts are not bounded."""
MAX_RUNS = 500

MAX_TEXT_CHARACTERS = 8 * 1024
_SLOWEST = 10
_CUT = "[... cut ...]"


@frozen
class Listed:
    """A project in a list, with the number of its runs and the newest run."""

    project: Project
    runs: int
    newest: Run | None


@frozen
class SuiteInfo:
    name: str
    tests: int
    failures: int
    errors: int
    skipped: int
    duration_ms: int


@frozen
class FailureRow:
    """A failed test, or a suite that failed without a failed test in it, under its own name.

    A long stack is cut at its end, a long output at its beginning. `test_id` is None for a suite.
    """

    test_id: int | None
    suite: str | None
    class_name: str
    name: str
    status: CaseStatus
    duration_ms: int | None
    reruns: int
    type: str | None
    message: str | None
    stack: str | None
    out: str | None
    err: str | None
    attachments: Sequence[Attachment] = ()
    triaged_stack: str | None = None
    """The part of the stack in which rules of triage search."""


@frozen
class SlowRow:
    class_name: str
    name: str
    status: CaseStatus
    duration_ms: int


@frozen
class Detail:
    """The contents of a run: at most `MAX_ROWS` of each kind, and the counts."""

    suites: Sequence[SuiteInfo]
    suite_count: int
    failures: Sequence[FailureRow]
    failure_count: int
    slowest: Sequence[SlowRow]
    attachments: Sequence[Attachment] = ()
    """Those that belong to no test."""


@frozen
class TestOutcome:
    """The outcome of one test in one run; `id` is that of the result."""

    id: int
    run: Run
    status: CaseStatus
    flaky: bool
    duration_ms: int | None
    message: str | None
    attachments: Sequence[Attachment] = ()


def project(id: int) -> Project:
    """Raises `NotFound`."""
    row: Project | None = Project.get_or_none(Project.id == id)
    if row is None:
        raise no_project(id)
    return row


def no_project(id: int | str) -> NotFound:
    """The error for a project that is missing, and for one that the caller cannot read."""
    return NotFound(f"there is no project {id}", "PROJECT_NOT_FOUND")


def run(id: int) -> tuple[Run, Project]:
    """A run and its project. Raises `NotFound`."""
    row: Run | None = Run.get_or_none(Run.id == id)
    if row is None:
        raise no_run(id)
    return row, project(row.project_id)


def no_run(id: int) -> NotFound:
    return NotFound(f"there is no run {id}", "RUN_NOT_FOUND")


def newest(
    project_id: int, commit: str | None = None, branch: str | None = None, flag: str | None = None
) -> Run | None:
    """The newest matching run, ties by id; None matches any value."""
    runs = listing(project_id, 1, commit, branch, flag)
    return runs[0] if runs else None


_COLUMNS = [column.column_name for column in Run._meta.sorted_fields]
_Row = namedtuple("_Row", _COLUMNS)  # type: ignore[misc]  # those of the model


def listing(
    project_id: int,
    limit: int,
    commit: str | None = None,
    branch: str | None = None,
    flag: str | None = None,
    after: tuple[int, int] | None = None,
) -> list[Run]:
    """Matching runs, newest first; None matches any value. Named tuples: models take five times as long.

    `after` is the time and the id of the run after which the list begins.
    """
    query = Run.select().where(Run.project == project_id, Run.superseded_by.is_null())
    for column, value in ((Run.commit_sha, commit), (Run.branch, branch), (Run.flag, flag)):
        if value is not None:
            query = query.where(column == value)
    if after is not None:
        at, id = after
        query = query.where(Run.created_at <= at, (Run.created_at < at) | (Run.id < id))
    query = query.order_by(Run.created_at.desc(), Run.id.desc()).limit(limit)
    rows: list[Any] = [_Row._make(row) for row in reports.execute_sql(*query.sql())]
    return rows


def branches(project_id: int, limit: int = 100) -> list[str]:
    """The names of the branches with runs, sorted."""
    rows = reports.execute_sql(
        "SELECT DISTINCT branch FROM run WHERE project_id = ? AND branch IS NOT NULL ORDER BY branch LIMIT ?",
        (project_id, limit),
    )
    return [row[0] for row in rows]


_LISTED = """
    SELECT p.id, (SELECT count(*) FROM counted_run r WHERE r.project_id = p.id),
    (SELECT r.id FROM counted_run r WHERE r.project_id = p.id
        ORDER BY r.created_at DESC, r.id DESC LIMIT 1)
    FROM project p WHERE p.id IN (SELECT value FROM json_each(?))"""


def listed(projects: Iterable[Project]) -> list[Listed]:
    """Each project with the number of its runs and the newest run, in three queries."""
    projects = list(projects)
    rows = reports.execute_sql(_LISTED, (json.dumps([project.id for project in projects]),)).fetchall()
    facts = {id: (count, newest) for id, count, newest in rows}
    runs = runs_by_id(newest for _, newest in facts.values() if newest is not None)
    return [Listed(project, facts[project.id][0], runs.get(facts[project.id][1])) for project in projects]


# Named columns: PostgreSQL refuses a prepared `SELECT *` once a newer node has added a column.
_BY_ID = f"SELECT {', '.join(_COLUMNS)} FROM run WHERE id IN (SELECT value FROM json_each(?))"  # noqa: S608 (columns)


def runs_by_id(ids: Iterable[int]) -> dict[int, Run]:
    rows = Run.raw(_BY_ID, json.dumps(list(ids)))
    return {row.id: row for row in rows}


_SUITES = """
    SELECT name, tests, failed, errors, skipped, duration_ms FROM suite WHERE run_id = ?
    ORDER BY failed + errors > 0 DESC, id LIMIT ?"""
_FAILED = f"result WHERE run_id = :run AND status IN {FAILING}"
_END = "CASE WHEN length({0}) > :most THEN substr({0}, length({0}) - :most + 1) ELSE {0} END"
_FAILURES = f"""
    SELECT r.id, r.test_id, s.name, t.class_name, t.name, r.status, r.duration_ms, r.reruns, f.type, f.message,
    substr(f.stack, 1, {triage.MAX_TEXT_CHARACTERS}), {_END.format("o.out")}, {_END.format("o.err")}
    FROM result r JOIN test t ON t.id = r.test_id LEFT JOIN suite s ON s.id = r.suite_id
    LEFT JOIN failure f ON f.result_id = r.id LEFT JOIN output o ON o.result_id = r.id
    WHERE r.id IN ({{which}}) ORDER BY r.id"""  # noqa: S608 (constants)
_FIRST_FAILURES = _FAILURES.format(which=f"SELECT id FROM {_FAILED} ORDER BY id LIMIT :failures")  # noqa: S608
_FAILURES_BY_ID = _FAILURES.format(which="SELECT value FROM json_each(:ids)")
_SUITE_FAILURES = "SELECT name, failed, errors FROM failed_suite WHERE run_id = :run ORDER BY id"
_SLOW = """
    SELECT t.class_name, t.name, s.status, s.duration_ms FROM
    (SELECT id, test_id, status, duration_ms FROM result WHERE run_id = ? AND duration_ms > 0
     ORDER BY duration_ms DESC, id LIMIT ?) s JOIN test t ON t.id = s.test_id ORDER BY s.duration_ms DESC, s.id"""


def detail(id: int, failures: int = MAX_ROWS) -> Detail:
    """The contents of a run, with at most `failures` failures."""
    suites = [SuiteInfo(*row) for row in reports.execute_sql(_SUITES, (id, MAX_ROWS))]
    failed = reports.execute_sql(
        _FIRST_FAILURES, {"most": MAX_TEXT_CHARACTERS + 1, "run": id, "failures": failures}
    ).fetchall()
    failed_suites = suite_failures(id)
    slow = reports.execute_sql(_SLOW, (id, _SLOWEST)).fetchall()
    attached = of_results([row[0] for row in failed])
    return Detail(
        suites=suites,
        suite_count=_count("suite WHERE run_id = :run", id) if len(suites) == MAX_ROWS else len(suites),
        failures=[
            *(_failure(row[1:], attached.get(row[0], ())) for row in failed),
            *failed_suites[: failures - len(failed)],
        ],
        failure_count=_count(_FAILED, id) + len(failed_suites),
        slowest=[SlowRow(class_name, name, CASE_STATUSES[rank], ms) for class_name, name, rank, ms in slow],
        attachments=of_run(id),
    )


def report_warnings(run_id: int) -> list[str]:
    """What the reports of a run lack, each with the part and the name of the report; the first ones."""
    rows = reports.execute_sql(
        "SELECT kind, name, warnings FROM report WHERE run_id = ? AND warnings IS NOT NULL ORDER BY id LIMIT 20",
        (run_id,),
    )
    return [f"{kind} {name}: {text}" for kind, name, warnings in rows for text in warnings.split("\n")]


def suite_failures(run_id: int) -> list[FailureRow]:
    """The suites of a run that failed without a failed test in them."""
    rows = reports.execute_sql(_SUITE_FAILURES, {"run": run_id})
    return [
        FailureRow(
            None, name, "", name, CaseStatus.ERROR if errors else CaseStatus.FAILED, None, 0, None,
            f"the suite reports {failed + errors} failure(s) without a failed test", None, None, None,
        )
        for name, failed, errors in rows
    ]  # fmt: skip


def _count(rows: str, run_id: int) -> int:
    return int(reports.execute_sql(f"SELECT count(*) FROM {rows}", {"run": run_id}).fetchone()[0])  # noqa: S608


def failures_by_id(ids: Sequence[int]) -> dict[int, FailureRow]:
    """The failures with these result ids."""
    rows = reports.execute_sql(
        _FAILURES_BY_ID, {"most": MAX_TEXT_CHARACTERS + 1, "ids": json.dumps(list(ids))}
    ).fetchall()
    attached = of_results(ids)
    return {row[0]: _failure(row[1:], attached.get(row[0], ())) for row in rows}


def _failure(row: Sequence[Any], attachments: Sequence[Attachment]) -> FailureRow:
    test, suite, class_name, name, rank, ms, reruns, kind, message, stack, out, err = row
    return FailureRow(
        test, suite, class_name, name, CASE_STATUSES[rank], ms, reruns, kind, message, head_of(stack), _tail(out),
        _tail(err), attachments, stack,
    )  # fmt: skip


def head_of(text: str | None) -> str | None:
    """The beginning of a text that is long."""
    return text if text is None or len(text) <= MAX_TEXT_CHARACTERS else f"{text[:MAX_TEXT_CHARACTERS]}\n{_CUT}"


def _tail(text: str | None) -> str | None:
    return text if text is None or len(text) <= MAX_TEXT_CHARACTERS else f"{_CUT}\n{text[-MAX_TEXT_CHARACTERS:]}"


_OUTCOMES = """
    SELECT r.id, r.run_id, r.status, r.flaky, r.duration_ms, f.message FROM result r JOIN run c ON c.id = r.run_id
    LEFT JOIN failure f ON f.result_id = r.id
    WHERE r.test_id = :test AND r.run_id <= :run AND (r.run_id < :run OR r.id < :result){only}
    ORDER BY r.run_id DESC, r.id DESC LIMIT :limit"""
_ONLY = {"branch": " AND c.branch = :branch", "flag": " AND c.flag = :flag"}


def test_id(project_id: int, class_name: str, name: str) -> int:
    """The id of a test of a project. Raises `NotFound`."""
    row = reports.execute_sql(
        "SELECT id FROM test WHERE project_id = :project AND class_name = :class_name AND name = :name",
        {"project": project_id, "class_name": class_name, "name": name},
    ).fetchone()
    if row is None:
        raise NotFound(f"this project has no test {f'{class_name} {name}'.strip()}", "TEST_NOT_FOUND")
    return int(row[0])


@frozen
class OutcomeFilter:
    """The runs that the history of a test is about. None: of any."""

    branch: str | None = None
    flag: str | None = None

    def sql(self, statement: str) -> tuple[str, dict[str, str]]:
        """A statement with `{only}` after a condition on runs `c`, and its values."""
        values = {name: value for name, value in (("branch", self.branch), ("flag", self.flag)) if value is not None}
        return statement.format(only="".join(_ONLY[name] for name in values)), values


def outcomes(
    test: int, limit: int, after: tuple[int, int] = (INT64, INT64), only: OutcomeFilter = OutcomeFilter()
) -> list[TestOutcome]:
    """The outcomes of a test, newest first, after that with the ids `after` of run and result."""
    run, result = after
    statement, values = only.sql(_OUTCOMES)
    rows = reports.execute_sql(
        statement, {"test": test, "run": run, "result": result, "limit": limit, **values}
    ).fetchall()
    runs, attached = runs_by_id({row[1] for row in rows}), of_results([row[0] for row in rows])
    return [
        TestOutcome(id, runs[run_id], CASE_STATUSES[rank], bool(flaky), ms, message, attached.get(id, ()))
        for id, run_id, rank, flaky, ms, message in rows
        if run_id in runs
    ]


_NEWEST_OF_TEST = """
    SELECT r.run_id FROM result r JOIN counted_run c ON c.id = r.run_id WHERE r.test_id = :test{only}
    ORDER BY r.run_id DESC LIMIT 1"""


def newest_run_of(test: int, only: OutcomeFilter = OutcomeFilter()) -> Run | None:
    """The newest run with a result of a test. Superseded attempts have higher ids than the attempt that counts."""
    statement, values = only.sql(_NEWEST_OF_TEST)
    row = reports.execute_sql(statement, {"test": test, **values}).fetchone()
    return None if row is None else runs_by_id([row[0]]).get(row[0])


MAX_BRANCHES = 50

_BRANCHES = """
    SELECT b.branch, b.runs, (SELECT max(r.id) FROM counted_run r WHERE r.project_id = :project AND r.branch = b.branch
        AND r.created_at = b.newest)
    FROM (SELECT branch, count(*) AS runs, max(created_at) AS newest, branch = :base AS is_base FROM counted_run
        WHERE project_id = :project AND branch IS NOT NULL GROUP BY branch
        ORDER BY branch = :base DESC, max(created_at) DESC LIMIT :most) AS b
    ORDER BY b.is_base DESC, b.newest DESC"""
_FLAGS = "SELECT DISTINCT flag FROM run WHERE project_id = ? ORDER BY flag LIMIT 100"
_BESIDE = """
    SELECT id FROM counted_run WHERE project_id = ? AND branch IS ? AND flag = ?
    AND (created_at, id) {than} (?, ?)
    ORDER BY created_at {way}, id {way} LIMIT 1"""
_BEFORE = _BESIDE.format(than="<", way="DESC")
_AFTER = _BESIDE.format(than=">", way="ASC")


@frozen
class Branch:
    """A branch, with the number of its runs and the newest run."""

    name: str
    runs: int
    newest: Run


def branches_overview(project_id: int, base: str) -> list[Branch]:
    """The base branch first, then those with the newest runs."""
    values = {"project": project_id, "base": base, "most": MAX_BRANCHES}
    rows = reports.execute_sql(_BRANCHES, values).fetchall()
    newest = runs_by_id(row[2] for row in rows)
    return [Branch(name, count, newest[id]) for name, count, id in rows]


def flags(project_id: int) -> list[str]:
    """The flags of a project's runs, sorted."""
    return [row[0] for row in reports.execute_sql(_FLAGS, (project_id,))]


def neighbours(run: Run) -> tuple[int | None, int | None]:
    """The ids of the runs before and after this one, of the same branch and flag."""
    values = (run.project_id, run.branch, run.flag, run.created_at, run.id)
    before, after = (reports.execute_sql(query, values).fetchone() for query in (_BEFORE, _AFTER))
    return before[0] if before else None, after[0] if after else None


def before_each(runs: Sequence[Run]) -> dict[int, int]:
    """For runs of a project, newest first: the next older one of the same branch and flag, where it is among them."""
    previous, last = {}, dict[tuple[str | None, str], int]()
    for run in reversed(runs):
        key = run.branch, run.flag
        if key in last:
            previous[run.id] = last[key]
        last[key] = run.id
    return previous


def note_of(project_id: int, test: int) -> str | None:
    """The note on a test."""
    query = "SELECT note FROM mark WHERE project_id = ? AND test_id = ?"
    row: tuple[str | None] | None = reports.execute_sql(query, (project_id, test)).fetchone()
    return row[0] if row else None
