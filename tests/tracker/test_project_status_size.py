"""The project status, which the dashboard shows, is computed quickly for a run with thousands of failed suites."""

from __future__ import annotations

import sys
from pathlib import Path
from types import FrameType

from records import create_project, store_at
from tracker_rows import Report

from models.config.settings import QualityGate
from models.tracker.gate import project_status
from models.tracker.tables import Project, Run, reports

SUITES, TESTS_PER_SUITE = 3000, 2


def create_run_with_failed_suites() -> None:
    """Creates a run of many suites with failure counts; all failed tests belong to the first suite."""
    one, count = create_project("large"), SUITES * TESTS_PER_SUITE
    sums = {"tests": count, "passed": 0, "failed": count, "errors": 0, "skipped": 0, "flaky": 0, "duration_ms": 0}
    made = Run.create(
        project=one, branch="main", flag="default", status="FAILED", created_at=1, updated_at=1, uploads=1, **sums
    )
    report = Report.create(run=made, kind="junit", hash="0", name="a", format="JUnit", created_at=1, **sums)
    with reports.atomic():
        suites = [(n, report.id, made.id, f"s{n}", TESTS_PER_SUITE, TESTS_PER_SUITE) for n in range(1, SUITES + 1)]
        reports.write_many(
            "INSERT INTO suite (id, report_id, run_id, name, tests, failed, errors, skipped, duration_ms)"
            " VALUES (?, ?, ?, ?, ?, ?, 0, 0, 0)",
            suites,
        )
        tests = [(n, one.id, f"t{n}") for n in range(1, count + 1)]
        reports.write_many("INSERT INTO test (id, project_id, class_name, name) VALUES (?, ?, 'c', ?)", tests)
        results = [(n, report.id, made.id, n, 1) for n in range(1, count + 1)]
        reports.write_many(
            "INSERT INTO result (id, report_id, run_id, test_id, suite_id, status, flaky, reruns)"
            " VALUES (?, ?, ?, ?, ?, 1, 0, 0)",
            results,
        )


def test_status_of_many_failed_suites_takes_linear_time(tmp_path: Path) -> None:
    with store_at(tmp_path / "tracker.db"):
        create_run_with_failed_suites()
        calls = 0

        def count(_frame: FrameType, event: str, _argument: object) -> None:
            nonlocal calls
            calls += event in ("call", "c_call")

        sys.setprofile(count)
        try:
            (status,) = project_status.of(list(Project.select()), QualityGate())
        finally:
            sys.setprofile(None)
    assert status.verdict is not None
    assert not status.verdict.passed
    assert calls < 100 * SUITES, "each suite was compared with each failure"
