"""A commit is stored, judged and listed at the same cost however many commits its project has."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from pathlib import Path

from records import NOW, SECOND, create_project, open_store

from models.config.settings import QualityGate
from models.paging import INT64
from models.tracker.gate import commits
from models.tracker.tables import Project, Run, reports

GATE = QualityGate()
NEWEST = (INT64, INT64)
FEW, MANY = 50, 1000
STEPS_COUNTED = 100


def create_runs(project: Project, count: int) -> None:
    """Creates a commit with two flags a minute; every fifth is of a pull request, and names a base commit."""
    for number in range(count):
        facts = {"branch": "topic", "pr_number": number, "base_branch": "main"} if number % 5 == 0 else {}
        for flag in ("unit", "ui"):
            run = create(project, f"{number:07x}", NOW + 60 * SECOND * number, flag=flag, **facts)
            if facts:
                base = f"{number - 1:07x}"
                reports.execute_sql("INSERT INTO base_commit (run_id, place, commit_sha) VALUES (?, 0, ?)", (run, base))


def create(project: Project, commit: str, at: int, **facts: object) -> int:
    sums = {"tests": 1, "passed": 1, "failed": 0, "errors": 0, "skipped": 0, "flaky": 0, "duration_ms": 0}
    values = {"branch": "main", "flag": "unit", "commit_sha": commit, "status": "PASSED", "uploads": 1} | sums | facts
    made: Run = Run.create(project=project, created_at=at, updated_at=at, **values)
    return int(made.id)


def operations(count: int) -> dict[str, Callable[[Project], object]]:
    oldest = NOW + 60 * SECOND * 25, INT64
    return {
        "a page of commits": lambda project: commits.listing(project, GATE, 20, NEWEST),
        "the last page of commits": lambda project: commits.listing(project, GATE, 20, oldest),
        "a page of a branch": lambda project: commits.listing(project, GATE, 20, NEWEST, "main"),
        "the last page of a branch": lambda project: commits.listing(project, GATE, 20, oldest, "main"),
        "a branch without runs": lambda project: commits.listing(project, GATE, 20, NEWEST, "nothing"),
        "a page of pull requests": lambda project: commits.pulls(project, GATE, 8, NEWEST),
        "the oldest commit": lambda project: commits.of_commit(project, f"{1:07x}", GATE),
        "the newest commit": lambda project: commits.of_commit(project, f"{count - 1:07x}", GATE),
        "an upload": lambda project: create(project, "f" * 40, NOW + 60 * SECOND * count),
    }


def steps_during(connection: sqlite3.Connection, operation: Callable[[], object]) -> int:
    seen: list[None] = []
    connection.set_progress_handler(lambda: seen.append(None), STEPS_COUNTED)
    try:
        operation()
    finally:
        connection.set_progress_handler(None, 0)
    return len(seen)


def steps_of(path: Path, count: int) -> dict[str, int]:
    """The steps of SQLite's virtual machine, in hundreds, that each operation takes in a project of so many commits."""
    found: dict[str, int] = {}
    with open_store(path):
        project = create_project("long")
        with reports.atomic():
            create_runs(project, count)
        connection = reports.obj.connection()
        for name, operation in operations(count).items():
            found[name] = steps_during(connection, lambda: operation(project))  # noqa: B023 (called here)
    return found


def test_the_cost_of_a_commit_does_not_grow_with_the_history(tmp_path: Path) -> None:
    few, many = steps_of(tmp_path / "few.db", FEW), steps_of(tmp_path / "many.db", MANY)
    assert {name: (few[name], steps) for name, steps in many.items() if steps > 2 * few[name] + 5} == {}
