"""How long the pages take on the server, in a house as large as it should ever be: medians of one client at a time.

    python benchmarks/pages.py [--processes 500] [--projects 200] [--runs 500] [--keep DIR]

Each run has ten tests. A third of the projects fail. `--keep` leaves the data directory there, and uses it again.
"""

import argparse
import random
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))  # it is run as a program

from benchmarks import report
from benchmarks.contestants import Ours, Scene
from benchmarks.httpload import Target, hammer
from models.tracker.schema import reports

PAGES = {
    "/": "/",
    "/processes": "/processes",
    "/processes/{name}": "/processes/c0007",
    "/history": "/history",
    "/projects": "/projects",
    "/projects/{id}": "/projects/7",
    "/projects/{id}, one branch": "/projects/7?branch=feature-1",
    "/projects/{id}/test": "/projects/7/test?className=shop.Test&name=case_3",
    "/runs/{id}": "/runs/{run}",
    "/compare": "/compare?base={before}&head={run}",
    "/login": "/login",
}
TESTS, FILES = 10, 5
DAY = 86_400_000_000
_RUN = """INSERT INTO run (id, project_id, branch, flag, commit_sha, created_at, updated_at, status, tests, passed,
    failed, errors, skipped, flaky, duration_ms, line_covered, line_missed, uploads)
    VALUES (?, ?, ?, 'default', ?, ?, ?, ?, ?, ?, ?, 0, 0, 0, ?, ?, ?, 1)"""
_REPORT = """INSERT INTO report (id, run_id, kind, hash, name, format, created_at, tests, passed, failed, errors,
    skipped, flaky, duration_ms) VALUES (?, ?, 'junit', ?, 'a.xml', 'junit', ?, ?, ?, ?, 0, 0, 0, ?)"""
_SUITE = "INSERT INTO suite VALUES (?, ?, ?, 'suite', ?, ?, 0, 0, ?)"
_RESULT = "INSERT INTO result VALUES (?, ?, ?, ?, ?, ?, 0, 0, ?)"
_FAILURE = "INSERT INTO failure VALUES (?, 'AssertionError', 'it is broken', 'at line 1')"
_COVERAGE = """INSERT INTO coverage (report_id, run_id, path, line_covered, line_missed, branch_covered, branch_missed)
    VALUES (?, ?, ?, 80, 20, 0, 0)"""


def fill(path: Path, projects: int, runs: int) -> None:
    """Writes so many projects of so many runs straight into the store."""
    reports.open(path)
    now = time.time_ns() // 1000
    for number in range(1, projects + 1):
        with reports.atomic():
            reports.execute_sql(
                "INSERT INTO project (id, name, visibility, created_at) VALUES (?, ?, 'PUBLIC', ?)",
                (number, f"team/project-{number:03}", now),
            )
            cases = [((number - 1) * TESTS + case, number, "shop.Test", f"case_{case}") for case in range(1, TESTS + 1)]
            reports.write_many("INSERT INTO test VALUES (?, ?, ?, ?)", cases)
            for statement, rows in _rows(number, runs, now).items():
                reports.write_many(statement, rows)
    reports.execute_sql("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
    reports.close()


def _rows(project: int, runs: int, now: int) -> dict[str, list[Sequence[Any]]]:
    chance = random.Random(project)
    rows: dict[str, list[Sequence[Any]]] = {one: [] for one in (_RUN, _REPORT, _SUITE, _RESULT, _FAILURE, _COVERAGE)}
    for place in range(runs):
        id, at = (project - 1) * runs + place + 1, now - (runs - place) * DAY // 10
        failing = {case for case in range(1, TESTS + 1) if chance.random() < 0.02}
        if project % 3 == 0 and place >= runs - 5:
            failing.add(1)
        branch = f"feature-{place // 5 % 20}" if place % 5 == 4 else "main"
        commit = f"{project:06x}{place // 2:034x}"
        counts = TESTS, TESTS - len(failing), len(failing)
        status = "FAILED" if failing else "PASSED"
        rows[_RUN].append((id, project, branch, commit, at, at, status, *counts, 900, 8200 + place % 40, 1800))
        rows[_REPORT].append((id, id, f"{id:064x}", at, *counts, 900))
        rows[_SUITE].append((id, id, id, TESTS, len(failing), 900))
        rows[_COVERAGE] += [(id, id, f"src/file_{file}.py") for file in range(FILES)]
        for case in range(1, TESTS + 1):
            result = (id - 1) * TESTS + case
            rows[_RESULT].append((result, id, id, (project - 1) * TESTS + case, id, int(case in failing), 10 * case))
            if case in failing:
                rows[_FAILURE].append((result,))
    return rows


def measure(port: int, runs: int, seconds: float) -> Iterator[Sequence[str]]:
    """A row of the table for each page."""
    run = 6 * runs + runs
    for page, path in PAGES.items():
        answers = hammer(Target.get(port, path.format(run=run, before=run - 1)), 1, seconds)
        yield page, f"{answers.median:.1f}", f"{answers.p99:.1f}", f"{answers.size / 1000:.0f} kB"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--processes", type=int, default=500)
    parser.add_argument("--projects", type=int, default=200)
    parser.add_argument("--runs", type=int, default=500)
    parser.add_argument("--seconds", type=float, default=1.5)
    parser.add_argument("--keep", type=Path)
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="ph-bench-", ignore_cleanup_errors=True) as name:
        scene = Scene(asked.keep or Path(name), asked.processes, ("sleep", "1000"))
        store = scene.directory / "data" / "tracker.db"
        if not store.exists():
            store.parent.mkdir(mode=0o700, parents=True)
            fill(store, asked.projects, asked.runs)
        ours = Ours(scene)
        try:
            ours.launch()
            ours.connect()
            time.sleep(3)  # the processes start
            print(f"{asked.processes} processes, {asked.projects} projects of {asked.runs} runs; {report.machine()}\n")
            print(report.table(["page", "median ms", "p99 ms", "size"], measure(ours.port, asked.runs, asked.seconds)))
        finally:
            ours.close()


if __name__ == "__main__":
    main()
