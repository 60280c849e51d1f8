"""Projects, runs and accounts for tests, written directly into the store of a running server."""

from __future__ import annotations

import contextlib
import secrets
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from conftest import Server, database_of

from models.accounts import accounts, permissions
from models.accounts.accounts import Scope, User
from models.accounts.permissions import ProjectRole
from models.accounts.tables import Session
from models.tracker.reports.base import CASE_STATUSES, CaseStatus
from models.tracker.tables import Failure, Output, Project, Report, Result, Run, Suite, Test, reports

SECOND = 1_000_000
NOW = 1_763_000_000 * SECOND
LATER = 4_000_000_000 * SECOND

PASSED, FAILED, ERROR, SKIPPED = CaseStatus.PASSED, CaseStatus.FAILED, CaseStatus.ERROR, CaseStatus.SKIPPED

Tests = Mapping[str, CaseStatus]
"""`class name` -> what became of it; without a space the test has no class."""


@contextlib.contextmanager
def opened(path: Path, url: str | None = None) -> Iterator[None]:
    """The tracker's store, in a file or in the database at `url`, for as long as this lasts."""
    reports.open(path, url)
    try:
        reports.set_lock_timeout(10)
        yield
    finally:
        reports.close_all()


def store(path: Path) -> contextlib.AbstractContextManager[None]:
    """The tracker's store of a server. It waits for the server's own writes."""
    return opened(path, database_of(path.parent))


def store_of(server: Server) -> contextlib.AbstractContextManager[None]:
    return store(server.data / "tracker.db")


def project(name: str, visibility: str = "PUBLIC", **settings: Any) -> Project:
    made: Project = Project.create(name=name, visibility=visibility, created_at=NOW, **settings)
    return made


def project_named(name: str) -> Project:
    """The one that several tests share."""
    return Project.get_or_none(Project.name == name) or project(name)


def run(project: Project, tests: Tests | None = None, coverage: tuple[int, int] | None = None, **facts: Any) -> Run:
    """A run of these tests, a second later than the one before; `coverage` is lines covered and missed."""
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
        run=made, kind="junit", hash=secrets.token_hex(8), name="a.xml", format="junit", created_at=at, **sums
    )
    suite = Suite.create(
        report=report, run_id=made.id, name="suite", tests=len(tests), failed=counts[FAILED], errors=counts[ERROR],
        skipped=counts[SKIPPED], duration_ms=10 * len(tests),
    )  # fmt: skip
    for name, status_of in tests.items():
        result(project, made, report, name, status_of, suite_id=suite.id)
    return made


def result(project: Project, run: Run, report: Report, name: str, status: CaseStatus, **facts: Any) -> Result:
    class_name, _, plain = name.rpartition(" ")
    known = (Test.project == project) & (Test.class_name == class_name) & (Test.name == plain)
    test = Test.get_or_none(known) or Test.create(project=project, class_name=class_name, name=plain)
    values = {"flaky": False, "reruns": 0, "duration_ms": 10, **facts}
    made: Result = Result.create(report=report, run_id=run.id, test=test, status=CASE_STATUSES.index(status), **values)
    if status in (FAILED, ERROR):
        Failure.create(result=made, type="AssertionError", message=f"{plain} is broken", stack="at line 1")
        Output.create(result=made, out=f"{plain} said this", err=None)
    return made


def report_of(run: Run) -> Report:
    report: Report = Report.get(Report.run == run)
    return report


def user(name: str, role: accounts.Role = "USER") -> User:
    return accounts.create_user(name, "no password fits this", role, NOW)


def token(user: User, scope: Scope = "FULL") -> dict[str, str]:
    """The header by which `user` is known."""
    return {"Authorization": f"Bearer {accounts.create_token(user.id, 'test', scope, None, NOW)}"}


def session(user: User, server: Server) -> dict[str, str]:
    """The cookie by which `user` is known to a server."""
    raw = secrets.token_urlsafe(32)
    Session.create(hash=accounts.digest(raw), account=user.id, created_at=NOW, expires_at=LATER)
    return {"Cookie": f"{server.cookie}={raw}"}


def member(project: Project, user: User, role: ProjectRole) -> None:
    permissions.grant(project.id, user.id, role, NOW)


def names(tests: Sequence[Mapping[str, Any]]) -> list[str]:
    return [f"{one['className']} {one['name']}".strip() for one in tests]
