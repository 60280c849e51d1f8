"""`run.py demo`: fills a store with projects, runs and people that are made up, to have something to look at.

Everything is stored as uploads are. The same command makes the same data, but for the times, which end today.
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
from models.tracker import flaky, runs, settings
from models.tracker.flaky import Triage
from models.tracker.reports.base import Case, CaseStatus, CoverageReport, FileCoverage, Suite, TestReport, Totals
from models.tracker.runs import Stored, Upload
from models.tracker.staging import StagedRows
from models.tracker.tables import Project, Run, reports
from supervisor.accounts import passwords
from supervisor.cli.users import with_store
from supervisor.clock import Clock
from supervisor.tracker.store import store_location

PASSWORD_FILE = "demo-password"  # noqa: S105 (the name of a file)

_HOUR = 3_600_000_000
_PEOPLE: Sequence[tuple[str, str, ProjectRole]] = (
    ("olga", "Olga Owner", "OWNER"),
    ("willi", "Willi Writer", "WRITE"),
    ("rita", "Rita Reader", "READ"),
)
_AREAS = ("cart", "catalog", "checkout", "account", "search", "shipping", "invoice", "report")
_THINGS = ("Total", "Discount", "Address", "Import", "Export", "Limit", "Session", "Currency", "Retry", "Filter")
_CLAIMS = ("is_empty_at_first", "keeps_its_order", "rejects_what_is_too_long", "survives_a_restart", "rounds_half_up")
_BRANCHES = ("faster-checkout", "new-login", "bump-dependencies", "fix-rounding", "dark-mode")
_STACK = """Traceback (most recent call last):
  File "tests/test_{area}.py", line {line}, in test_{name}
    assert actual == expected
AssertionError: expected {expected}, got {actual}"""


@frozen
class Story:
    """What became of a project: how many runs it had, and how its coverage went from the first to the last."""

    name: str
    runs: int = 40
    tests: int = 60
    coverage: tuple[float, float] | None = (84.0, 86.0)
    broken_for: int = 0
    """So many of the newest runs of the base branch fail."""
    wobbly: int = 0
    """So many tests fail now and then."""
    flags: tuple[str, ...] = ("default",)
    private: bool = False
    least: float | None = None
    """The gate's least line coverage."""


_STORIES = (
    Story("acme/shop", 48, 90, (88.0, 83.5), broken_for=6, wobbly=3),
    Story("acme/payments", 44, 70, (81.0, 92.5)),
    Story("acme/search", 40, 50, (86.0, 87.0), flags=("unit", "end-to-end"), wobbly=1),
    Story("acme/mobile-app", 36, 64, (71.0, 74.5), wobbly=4),
    Story("platform/gateway", 34, 40, (79.0, 77.0), least=80.0),
    Story("platform/ledger", 30, 36, (91.0, 93.0), private=True),
    Story("docs-site", 18, 12, None),
)


@frozen
class Planned:
    """A run that is to be: when, of what, and which of its tests fail."""

    at: int
    story: Story
    number: int
    upload: Upload
    failing: frozenset[int]
    flaky: frozenset[int]
    covered: float | None


def add_to(parser: argparse.ArgumentParser) -> None:
    """Adds what is to be said behind the verb."""
    parser.add_argument("--force", action="store_true", help="even where there are projects already")
    parser.set_defaults(work=work)


def work(settings: Config, asked: argparse.Namespace) -> int:
    """Returns the exit code: 0, or 1 with one line that says why."""
    return with_store("demo", lambda asked: _fill(settings, asked.force))(settings, asked)


def _fill(config: Config, force: bool) -> None:
    """Raises `Conflict` where the store is somebody's already."""
    if Project.select().exists() and not force:
        raise Conflict("there are projects already; --force adds to them")
    now, data = Clock().now(), Path(config.server.data_dir)
    password = _people(data, now)
    plan = sorted(
        (run for story in _STORIES for run in _planned(story, now)), key=lambda run: (run.at, run.upload.project)
    )
    with tempfile.TemporaryDirectory(dir=data) as folder:
        for done, run in enumerate(plan, 1):
            _store(Path(folder) / "rows", run, config)
            if sys.stdout.isatty():
                print(f"\r{done} of {len(plan)} runs", end="\n" if done == len(plan) else "", flush=True)
    reports.connect(reuse_if_open=True)  # each run was stored on a connection of its own
    for story in _STORIES:
        _settle(story, now)
    _tell(config, len(plan), password, data)


def _people(data: Path, now: int) -> str | None:
    """Makes them, with one password, which goes into a file; None where they are there already."""
    wanted = [(name, shown) for name, shown, _ in _PEOPLE if accounts.user_named(name) is None]
    if not wanted:
        return None
    password = secrets.token_urlsafe(12)
    file = data / PASSWORD_FILE
    file.unlink(missing_ok=True)
    with os.fdopen(os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as out:
        out.write(f"{password}\n")
    for name, shown in wanted:
        accounts.create_user(name, passwords.hash_password(password, is_random=True), "USER", now, shown)
    return password


def _tell(config: Config, count: int, password: str | None, data: Path) -> None:
    print(f"{count} runs of {len(_STORIES)} projects are in {store_location(config.server)}")
    if password is not None:
        shown = f"{password}, kept in" if sys.stdout.isatty() else "in"
        print(f"log in as {', '.join(name for name, _, _ in _PEOPLE)}; password {shown} {data / PASSWORD_FILE}")
    host = _host(next(iter(config.server.address), "127.0.0.1"))
    print(f"serve it, then look at http://{host}:{config.server.port}/projects")


def _host(address: str) -> str:
    return f"[{address}]" if ":" in address else address


# What is to be


def _planned(story: Story, now: int) -> Iterator[Planned]:
    """The runs of a story, oldest first: three of four on the base branch, the others of pull requests."""
    chance = random.Random(story.name)
    wobbly = chance.sample(range(story.tests), story.wobbly)
    broken = frozenset(chance.sample(range(story.tests), 2))
    gaps = [int(_HOUR * chance.uniform(4, 15)) for _ in range(story.runs)]
    at, commit = now - sum(gaps) - int(_HOUR * chance.uniform(0.2, 20)), ""
    for number in range(story.runs):
        left = story.runs - number
        at += gaps[number]
        is_request = number % 4 == 3 and left > 1
        again = bool(wobbly) and number % 5 == 2 and not is_request
        commit = commit if again and commit else chance.randbytes(20).hex()
        failing = broken if left <= story.broken_for and not is_request else frozenset[int]()
        wobbles = {test for test in wobbly if chance.random() < 0.18 and left > 2}
        if is_request and chance.random() < 0.3:
            failing = frozenset({chance.randrange(story.tests)})
        for place, flag in enumerate(story.flags):
            yield Planned(
                at + place * _HOUR // 20,
                story,
                number,
                _upload(story, number, flag, commit, is_request),
                failing | wobbles,
                frozenset(wobbly[:1]) - wobbles if number % 6 == 0 else frozenset(),
                _covered(story, number, is_request, chance),
            )


def _covered(story: Story, number: int, is_request: bool, chance: random.Random) -> float | None:
    if story.coverage is None:
        return None
    first, last = story.coverage
    return first + (last - first) * number / (story.runs - 1) + chance.uniform(-0.3, 0.3) - (0.6 if is_request else 0)


def _upload(story: Story, number: int, flag: str, commit: str, is_request: bool) -> Upload:
    return Upload(
        project=story.name,
        branch=_BRANCHES[number // 4 % len(_BRANCHES)] if is_request else "main",
        commit=commit,
        flag=flag,
        repo_url=f"https://git.example.com/{story.name}",
        build_url=f"https://ci.example.com/{story.name}/builds/{1000 + number}",
        build_name=f"build {1000 + number}",
        ci_provider="Example CI",
        base_branch="main" if is_request else None,
        pr_number=200 + number if is_request else None,
    )


# Storing it as an upload is stored


def _store(spool: Path, run: Planned, config: Config) -> Stored:
    spool.unlink(missing_ok=True)
    mark = hashlib.sha256(f"{run.story.name} {run.number} {run.upload.flag} {run.at}".encode()).hexdigest()
    with StagedRows(spool) as rows:
        rows.begin()
        rows.end_tests(_tests(run, rows), "junit.xml", mark)
        if run.covered is not None:
            rows.begin()
            rows.end_coverage(_coverage(run.covered, run.story, rows), "coverage.xml", mark)
    keep, tracker = config.server.stream_replay, config.tracker
    return reports.run_with_timeout(lambda: runs.store(spool, run.upload, None, tracker, keep, run.at), 60.0)


def _tests(run: Planned, rows: StagedRows) -> TestReport:
    areas = list(dict.fromkeys(_area(test) for test in range(run.story.tests)))
    found: list[list[Case]] = [[] for _ in areas]
    for test in range(run.story.tests):
        case = _case(run, test, areas.index(_area(test)))
        found[areas.index(_area(test))].append(case)
        rows.case(case)
    suites = [Suite(f"tests.{area}", _totals(cases)) for area, cases in zip(areas, found, strict=True)]
    return TestReport("junit", _totals([case for cases in found for case in cases]), suites)


def _area(test: int) -> str:
    return _AREAS[test % len(_AREAS)]


def _case(run: Planned, test: int, suite: int) -> Case:
    chance = random.Random(f"{run.story.name} {run.number} {test}")
    area, thing = _area(test), _THINGS[test // len(_AREAS) % len(_THINGS)]
    name = f"{thing.lower()}_{_CLAIMS[(test + test // 80) % len(_CLAIMS)]}"
    took = int((5 + test % 7 * 40 + (900 if test % 23 == 5 else 0)) * chance.uniform(0.7, 1.4)) + 1
    class_name = f"{area}.{thing}Test"
    if test in run.failing:
        stack = _STACK.format(area=area, line=20 + test, name=name, expected=test + 1, actual=test)
        return Case(
            class_name, name, CaseStatus.FAILED, suite, took, failure_type="AssertionError", stack=stack,
            failure_message=f"expected {test + 1}, got {test}",
            out=f"connecting to {area}-db ...\nconnected after {took // 3} ms\nloading 12 rows\n",
            err="WARNING: the clock of the container is 2 s behind\n" if test % 2 else None,
        )  # fmt: skip
    if test % 29 == 11:
        return Case(class_name, name, CaseStatus.SKIPPED, suite)
    return Case(
        class_name, name, CaseStatus.PASSED, suite, took, flaky=test in run.flaky, reruns=int(test in run.flaky)
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


def _coverage(percent: float, story: Story, rows: StagedRows) -> CoverageReport:
    """Files whose sum is about `percent`: some well covered, some not."""
    covered = missed = 0
    for place, area in enumerate(_AREAS):
        for thing in _THINGS[:3]:
            lines = 60 + 35 * (len(thing) + place) % 200
            share = min(1.0, percent / 100 + (place - 3.5) * 0.02)
            hit = round(lines * share)
            told = {line: line <= hit for line in range(1, lines + 1)}
            rows.file(FileCoverage(f"src/{area}/{thing.lower()}.py", hit, lines - hit, lines=told))
            covered, missed = covered + hit, missed + lines - hit
    return CoverageReport("cobertura", covered, missed)


def _settle(story: Story, now: int) -> None:
    """Visibility, members, thresholds, and a test in quarantine."""
    project = Project.get(Project.name == story.name)
    for name, _, role in _PEOPLE:
        user = accounts.user_named(name)
        if user is not None:
            permissions.grant(project.id, user.id, role, now)
    settings.set_visibility(project, "PRIVATE" if story.private else "PUBLIC")
    settings.change(project, {"min_line_coverage": story.least})
    found = flaky.tests(project.id) if story.wobbly > 2 and Run.select().where(Run.project == project).exists() else ()
    for test in found[1:2]:
        note = "waits for a slow mail server; being rewritten"
        flaky.set_triage(project.id, test.class_name, test.name, Triage.QUARANTINED, note, None, now)
