"""`run.py demo`: fills a store with sample projects, runs and users.

Runs are stored like uploads. The data is the same each time, except for the times, which end today.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import random
import secrets
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

from attrs import frozen

from models.accounts import accounts, permissions
from models.accounts.permissions import ProjectRole
from models.config.settings import Config
from models.errors import Conflict
from models.times import HOUR
from models.tracker import settings
from models.tracker.failures import flaky
from models.tracker.failures.flaky import Triage
from models.tracker.reports.base import Case, CaseStatus, CoverageReport, FileCoverage, Suite, TestReport, Totals
from models.tracker.reports.staging import StagedRows
from models.tracker.runs import store as runs
from models.tracker.runs.store import StoredRun, Upload
from models.tracker.tables import Project, Run, reports
from supervisor.accounts import passwords
from supervisor.cli.users import BUSY_SECONDS, with_store
from supervisor.clock import Clock
from supervisor.tracker.store import store_location

PASSWORD_FILE = "demo-password"  # noqa: S105 (the name of a file)

_USERS: Sequence[tuple[str, str, ProjectRole]] = (
    ("olga", "Olga Owner", "OWNER"),
    ("willi", "Willi Writer", "WRITE"),
    ("rita", "Rita Reader", "READ"),
)
_AREAS = ("cart", "catalog", "checkout", "account", "search", "shipping", "invoice", "report")
_SUBJECTS = ("Total", "Discount", "Address", "Import", "Export", "Limit", "Session", "Currency", "Retry", "Filter")
_TEST_NAMES = (
    "is_empty_at_first",
    "keeps_its_order",
    "rejects_what_is_too_long",
    "survives_a_restart",
    "rounds_half_up",
)
_BRANCHES = ("faster-checkout", "new-login", "bump-dependencies", "fix-rounding", "dark-mode")
_STACK = """Traceback (most recent call last):
  File "tests/test_{area}.py", line {line}, in test_{name}
    assert actual == expected
AssertionError: expected {expected}, got {actual}"""


@frozen
class ProjectPlan:
    """The plan of a sample project: its number of runs, and its coverage in the first and the last run."""

    name: str
    runs: int = 40
    tests: int = 60
    coverage: tuple[float, float] | None = (84.0, 86.0)
    broken_for: int = 0
    """The number of newest runs of the base branch that fail."""
    flaky_tests: int = 0
    """The number of tests that fail sometimes."""
    flags: tuple[str, ...] = ("default",)
    private: bool = False
    min_coverage: float | None = None
    """The quality gate's minimum line coverage."""


_PROJECTS = (
    ProjectPlan("acme/shop", 48, 90, (88.0, 83.5), broken_for=6, flaky_tests=3),
    ProjectPlan("acme/payments", 44, 70, (81.0, 92.5)),
    ProjectPlan("acme/search", 40, 50, (86.0, 87.0), flags=("unit", "end-to-end"), flaky_tests=1),
    ProjectPlan("acme/mobile-app", 36, 64, (71.0, 74.5), flaky_tests=4),
    ProjectPlan("platform/gateway", 34, 40, (79.0, 77.0), min_coverage=80.0),
    ProjectPlan("platform/ledger", 30, 36, (91.0, 93.0), private=True),
    ProjectPlan("docs-site", 18, 12, None),
)


@frozen
class PlannedRun:
    """A run to store: its time, project and metadata, and which of its tests fail."""

    at: int
    plan: ProjectPlan
    number: int
    upload: Upload
    failing: frozenset[int]
    flaky: frozenset[int]
    covered: float | None


def add_to(parser: argparse.ArgumentParser) -> None:
    """Adds the arguments of the verb `demo`."""
    parser.add_argument("--force", action="store_true", help="even if the store has projects")
    parser.set_defaults(work=work)


def work(settings: Config, arguments: argparse.Namespace) -> int:
    """Returns the exit code: 0, or 1 after one line with the reason."""
    return with_store("demo", lambda arguments: _fill(settings, arguments.force))(settings, arguments)


def _fill(config: Config, force: bool) -> None:
    """Fills the store and prints a summary. Raises `Conflict` if the store has projects, unless `force`."""
    if Project.select().exists() and not force:
        raise Conflict("there are projects already; --force adds to them")
    now, data = Clock().now(), Path(config.server.data_dir)
    password = _create_users(data, now)
    planned_runs = sorted(
        (run for plan in _PROJECTS for run in _planned(plan, now)), key=lambda run: (run.at, run.upload.project)
    )
    with tempfile.TemporaryDirectory(dir=data) as folder:
        for stored, run in enumerate(planned_runs, 1):
            _store(Path(folder) / "rows", run, config)
            if sys.stdout.isatty():
                print(
                    f"\r{stored} of {len(planned_runs)} runs",
                    end="\n" if stored == len(planned_runs) else "",
                    flush=True,
                )
    reports.connect(reuse_if_open=True)  # each run was stored on a connection of its own
    reports.set_lock_timeout(BUSY_SECONDS)
    for plan in _PROJECTS:
        _configure(plan, now)
    _print_summary(config, len(planned_runs), password, data)


def _create_users(data: Path, now: int) -> str | None:
    """Creates the missing users and returns their password, which is also written to a file; None if all exist."""
    missing = [(name, display_name) for name, display_name, _ in _USERS if accounts.user_named(name) is None]
    if not missing:
        return None
    password = secrets.token_urlsafe(12)
    file = data / PASSWORD_FILE
    file.unlink(missing_ok=True)
    with os.fdopen(os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as out:
        out.write(f"{password}\n")
    for name, display_name in missing:
        accounts.create_user(name, passwords.hash_password(password, is_random=True), "USER", now, display_name)
    return password


def _print_summary(config: Config, count: int, password: str | None, data: Path) -> None:
    print(f"{count} runs of {len(_PROJECTS)} projects are in {store_location(config.server)}")
    if password is not None:
        where = f"{password}, kept in" if sys.stdout.isatty() else "in"
        print(f"log in as {', '.join(name for name, _, _ in _USERS)}; password {where} {data / PASSWORD_FILE}")
    host = _host(next(iter(config.server.address), "127.0.0.1"))
    print(f"serve it, then look at http://{host}:{config.server.port}/projects")


def _host(address: str) -> str:
    return f"[{address}]" if ":" in address else address


# Planning


def _planned(plan: ProjectPlan, now: int) -> Iterator[PlannedRun]:
    """The runs of a project, oldest first: three of four on the base branch, the others of pull requests."""
    chance = random.Random(plan.name)
    flaky_tests = chance.sample(range(plan.tests), plan.flaky_tests)
    broken = frozenset(chance.sample(range(plan.tests), 2))
    gaps = [int(HOUR * chance.uniform(4, 15)) for _ in range(plan.runs)]
    at, commit = now - sum(gaps) - int(HOUR * chance.uniform(0.2, 20)), ""
    for number in range(plan.runs):
        remaining = plan.runs - number
        at += gaps[number]
        is_request = number % 4 == 3 and remaining > 1
        is_rerun = bool(flaky_tests) and number % 5 == 2 and not is_request
        commit = commit if is_rerun and commit else chance.randbytes(20).hex()
        failing = broken if remaining <= plan.broken_for and not is_request else frozenset[int]()
        flaky_failures = {test for test in flaky_tests if chance.random() < 0.18 and remaining > 2}
        if is_request and chance.random() < 0.3:
            failing = frozenset({chance.randrange(plan.tests)})
        for place, flag in enumerate(plan.flags):
            yield PlannedRun(
                at + place * HOUR // 20,
                plan,
                number,
                _upload(plan, number, flag, commit, is_request),
                failing | flaky_failures,
                frozenset(flaky_tests[:1]) - flaky_failures if number % 6 == 0 else frozenset(),
                _covered(plan, number, is_request, chance),
            )


def _covered(plan: ProjectPlan, number: int, is_request: bool, chance: random.Random) -> float | None:
    if plan.coverage is None:
        return None
    first, last = plan.coverage
    return first + (last - first) * number / (plan.runs - 1) + chance.uniform(-0.3, 0.3) - (0.6 if is_request else 0)


def _upload(plan: ProjectPlan, number: int, flag: str, commit: str, is_request: bool) -> Upload:
    return Upload(
        project=plan.name,
        branch=_BRANCHES[number // 4 % len(_BRANCHES)] if is_request else "main",
        commit=commit,
        flag=flag,
        repo_url=f"https://git.example.com/{plan.name}",
        build_url=f"https://ci.example.com/{plan.name}/builds/{1000 + number}",
        build_name=f"build {1000 + number}",
        ci_provider="Example CI",
        base_branch="main" if is_request else None,
        pr_number=200 + number if is_request else None,
    )


# Storing


def _store(staging_file: Path, run: PlannedRun, config: Config) -> StoredRun:
    staging_file.unlink(missing_ok=True)
    digest = hashlib.sha256(f"{run.plan.name} {run.number} {run.upload.flag} {run.at}".encode()).hexdigest()
    with StagedRows(staging_file) as rows:
        rows.begin()
        rows.end_tests(_tests(run, rows), "junit.xml", digest)
        if run.covered is not None:
            rows.begin()
            rows.end_coverage(_coverage(run.covered, run.plan, rows), "coverage.xml", digest)
    keep, tracker = config.server.stream_replay, config.tracker
    return reports.run_with_timeout(lambda: runs.store(staging_file, run.upload, None, tracker, keep, run.at), 60.0)


def _tests(run: PlannedRun, rows: StagedRows) -> TestReport:
    areas = list(dict.fromkeys(_area(test) for test in range(run.plan.tests)))
    cases_by_area: list[list[Case]] = [[] for _ in areas]
    for test in range(run.plan.tests):
        case = _case(run, test, areas.index(_area(test)))
        cases_by_area[areas.index(_area(test))].append(case)
        rows.case(case)
    suites = [Suite(f"tests.{area}", _totals(cases)) for area, cases in zip(areas, cases_by_area, strict=True)]
    return TestReport("junit", _totals([case for cases in cases_by_area for case in cases]), suites)


def _area(test: int) -> str:
    return _AREAS[test % len(_AREAS)]


def _case(run: PlannedRun, test: int, suite: int) -> Case:
    chance = random.Random(f"{run.plan.name} {run.number} {test}")
    area, subject = _area(test), _SUBJECTS[test // len(_AREAS) % len(_SUBJECTS)]
    name = f"{subject.lower()}_{_TEST_NAMES[(test + test // 80) % len(_TEST_NAMES)]}"
    duration = int((5 + test % 7 * 40 + (900 if test % 23 == 5 else 0)) * chance.uniform(0.7, 1.4)) + 1
    class_name = f"{area}.{subject}Test"
    if test in run.failing:
        stack = _STACK.format(area=area, line=20 + test, name=name, expected=test + 1, actual=test)
        return Case(
            class_name, name, CaseStatus.FAILED, suite, duration, failure_type="AssertionError", stack=stack,
            failure_message=f"expected {test + 1}, got {test}",
            out=f"connecting to {area}-db ...\nconnected after {duration // 3} ms\nloading 12 rows\n",
            err="WARNING: the clock of the container is 2 s behind\n" if test % 2 else None,
        )  # fmt: skip
    if test % 29 == 11:
        return Case(class_name, name, CaseStatus.SKIPPED, suite)
    return Case(
        class_name, name, CaseStatus.PASSED, suite, duration, flaky=test in run.flaky, reruns=int(test in run.flaky)
    )


def _totals(cases: Sequence[Case]) -> Totals:
    counts = {status: sum(case.status is status for case in cases) for status in CaseStatus}
    return Totals(
        tests=len(cases),
        passed=counts[CaseStatus.PASSED],
        failed=counts[CaseStatus.FAILED],
        skipped=counts[CaseStatus.SKIPPED],
        flaky=sum(case.flaky for case in cases),
        duration_ms=sum(case.duration_ms or 0 for case in cases),
    )


def _coverage(percent: float, plan: ProjectPlan, rows: StagedRows) -> CoverageReport:
    """Adds files with a total coverage of about `percent`, some well covered, some not."""
    covered = missed = 0
    for place, area in enumerate(_AREAS):
        for subject in _SUBJECTS[:3]:
            lines = 60 + 35 * (len(subject) + place) % 200
            share = min(1.0, percent / 100 + (place - 3.5) * 0.02)
            hit = round(lines * share)
            hits = {line: line <= hit for line in range(1, lines + 1)}
            rows.file(FileCoverage(f"src/{area}/{subject.lower()}.py", hit, lines - hit, lines=hits))
            covered, missed = covered + hit, missed + lines - hit
    return CoverageReport("cobertura", covered, missed)


def _configure(plan: ProjectPlan, now: int) -> None:
    """Sets visibility, members and thresholds, and quarantines a test."""
    project = Project.get(Project.name == plan.name)
    for name, _, role in _USERS:
        user = accounts.user_named(name)
        if user is not None:
            permissions.grant(project.id, user.id, role, now)
    settings.set_visibility(project, "PRIVATE" if plan.private else "PUBLIC")
    settings.change(project, {"min_line_coverage": plan.min_coverage})
    has_runs = Run.select().where(Run.project == project).exists()
    flaky_tests = flaky.tests(project.id) if plan.flaky_tests > 2 and has_runs else ()
    for test in flaky_tests[1:2]:
        note = "waits for a slow mail server; being rewritten"
        flaky.set_triage(project.id, test.class_name, test.name, Triage.QUARANTINED, note, None, now)
