"""Creates projects, runs and accounts directly in the database of a running server."""

from __future__ import annotations

import contextlib
import secrets
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from conftest import Server, database_of
from tracker_rows import Failure, Output, Report, Result, Suite

from models.accounts import accounts, permissions
from models.accounts.accounts import Scope, User
from models.accounts.permissions import ProjectRole
from models.accounts.tables import Session
from models.tracker.reports.base import CASE_STATUSES, CaseStatus
from models.tracker.tables import Project, Run, Test, reports
from supervisor.tracker import store

SECOND = 1_000_000
NOW = 1_763_000_000 * SECOND
LATER = 4_000_000_000 * SECOND

PASSED, FAILED, ERROR, SKIPPED = CaseStatus.PASSED, CaseStatus.FAILED, CaseStatus.ERROR, CaseStatus.SKIPPED

Tests = Mapping[str, CaseStatus]
"""`class name` -> status; a key without a space is a test without a class."""


@contextlib.contextmanager
def open_store(path: Path, url: str | None = None) -> Iterator[None]:
    """Opens the tracker's store in a file, or in the database at `url`."""
    path.parent.mkdir(mode=0o700, exist_ok=True)
    store.open_store(path, url)
    try:
        reports.set_lock_timeout(10)
        yield
    finally:
        reports.close_all()


def store_at(path: Path) -> contextlib.AbstractContextManager[None]:
    """Opens the tracker's store of a server. Writes wait for those of the server."""
    return open_store(path, database_of(path.parent))


def store_of(server: Server) -> contextlib.AbstractContextManager[None]:
    return store_at(server.data / "tracker.db")


def create_project(name: str, visibility: str = "PUBLIC", **settings: Any) -> Project:
    made: Project = Project.create(name=name, visibility=visibility, created_at=NOW, **settings)
    return made


def ensure_project(name: str) -> Project:
    """Returns the project of this name, which several tests may share; creates it if it is missing."""
    return Project.get_or_none(Project.name == name) or create_project(name)


def create_run(
    project: Project, tests: Tests | None = None, coverage: tuple[int, int] | None = None, **facts: Any
) -> Run:
    """Creates a run of these tests, a second after the one before; `coverage` is lines covered and missed."""
    tests = tests or {}
    counts = {one: sum(status is one for status in tests.values()) for one in CaseStatus}
    sums = {
        "tests": len(tests), "passed": counts[PASSED], "failed": counts[FAILED], "errors": counts[ERROR],
        "skipped": counts[SKIPPED], "flaky": 0, "duration_ms": 10 * len(tests),
    }  # fmt: skip
    lines = {"line_covered": coverage[0], "line_missed": coverage[1]} if coverage else {}
    at = facts.pop("created_at", NOW + Run.select().count() * SECOND)
    status = "FAILED" if counts[FAILED] + counts[ERROR] else "PASSED"
    values = {"branch": "main", "flag": "default", "uploads": 1, "status": status, **sums, **lines, **facts}
    made: Run = Run.create(project=project, created_at=at, updated_at=at, **values)
    report = Report.create(
        run=made, kind="junit", hash=secrets.token_hex(8), name="a.xml", format="junit", created_at=at, **sums, **lines
    )
    suite = Suite.create(
        report=report, run_id=made.id, name="suite", tests=len(tests), failed=counts[FAILED], errors=counts[ERROR],
        skipped=counts[SKIPPED], duration_ms=10 * len(tests),
    )  # fmt: skip
    for name, status_of in tests.items():
        create_result(project, made, report, name, status_of, suite_id=suite.id)
    return made


def create_result(project: Project, run: Run, report: Report, name: str, status: CaseStatus, **facts: Any) -> Result:
    class_name, _, plain = name.rpartition(" ")
    known = (Test.project == project) & (Test.class_name == class_name) & (Test.name == plain)
    test = Test.get_or_none(known) or Test.create(project=project, class_name=class_name, name=plain)
    values = {"flaky": False, "reruns": 0, "duration_ms": 10, **facts}
    made: Result = Result.create(report=report, run_id=run.id, test=test, status=CASE_STATUSES.index(status), **values)
    if status in (FAILED, ERROR):
        Failure.create(result=made, type="AssertionError", message=f"{plain} is broken", stack="at line 1")
        Output.create(result=made, out=f"{plain} said this", err=None)
    return made


def create_base_commits(run: Run, commits: Sequence[str]) -> None:
    """The commits that a diff of the run names as its base, newest first."""
    for place, commit in enumerate(commits):
        reports.execute_sql(
            "INSERT INTO base_commit (run_id, place, commit_sha) VALUES (?, ?, ?)", (run.id, place, commit)
        )


def report_of_run(run: Run) -> Report:
    report: Report = Report.get(Report.run == run)
    return report


def create_user(name: str, role: accounts.Role = "USER") -> User:
    return accounts.create_user(name, "no password fits this", role, NOW)


def bearer(user: User, scope: Scope = "FULL") -> dict[str, str]:
    """Creates a token of `user`; returns the Authorization header with it."""
    return {"Authorization": f"Bearer {accounts.create_token(user.id, 'test', scope, None, NOW)}"}


def cookie(user: User, server: Server) -> dict[str, str]:
    """Creates a session of `user`; returns the Cookie header with it."""
    raw = secrets.token_urlsafe(32)
    Session.create(hash=accounts.digest(raw), account=user.id, created_at=NOW, expires_at=LATER)
    return {"Cookie": f"{server.cookie}={raw}"}


def add_member(project: Project, user: User, role: ProjectRole) -> None:
    permissions.grant(project.id, user.id, role, NOW)


def full_names(tests: Sequence[Mapping[str, Any]]) -> list[str]:
    return [f"{one['className']} {one['name']}".strip() for one in tests]
