"""Reads inline reports through the functions that detect the format."""

from __future__ import annotations

import io
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from models.tracker.reports.base import Case, CoverageReport, FileCoverage, Limits, TestReport
from models.tracker.reports.detect import read_coverage, read_tests

FIXTURES = Path(__file__).parent.parent.parent.parent / "shared" / "fixtures"

Totals = tuple[int, int, int, int, int]
"""Tests, failed, errors, skipped, flaky."""


class SmallReads(io.BytesIO):
    """A file whose reads return at most `size` bytes."""

    def __init__(self, data: bytes, size: int) -> None:
        super().__init__(data)
        self._at_once = size

    def read(self, size: int | None = -1, /) -> bytes:
        return super().read(self._at_once if size is None or size < 0 else min(size, self._at_once))


def as_bytes(data: str | bytes) -> bytes:
    return data.encode() if isinstance(data, str) else data


def read_test_report(
    data: str | bytes, limits: Limits | None = None, at_once: int = 1 << 30
) -> tuple[TestReport, list[Case]]:
    cases: list[Case] = []
    return read_tests(SmallReads(as_bytes(data), at_once), limits or Limits(), cases.append), cases


def read_coverage_report(
    data: str | bytes, limits: Limits | None = None, at_once: int = 1 << 30
) -> tuple[CoverageReport, dict[str, FileCoverage]]:
    files: list[FileCoverage] = []
    report = read_coverage(SmallReads(as_bytes(data), at_once), limits or Limits(), files.append)
    found = {file.path: file for file in files}
    assert len(found) == len(files), "a path was reported twice"
    return report, found


def totals_of(report: TestReport) -> Totals:
    t = report.totals
    assert t.passed == t.tests - t.failed - t.errors - t.skipped >= 0
    return t.tests, t.failed, t.errors, t.skipped, t.flaky


def case_fields(document: str) -> list[tuple[Any, ...]]:
    """Class, name, status, milliseconds and message of each case."""
    return [
        (case.class_name, case.name, case.status, case.duration_ms, case.failure_message)
        for case in read_test_report(document)[1]
    ]


def read_totals(data: str | bytes) -> Totals:
    return totals_of(read_test_report(data)[0])


def only_case(cases: Iterable[Case]) -> Case:
    (case,) = cases
    return case


def suite(*cases: str, attributes: str = "") -> str:
    return f'<testsuite name="s" {attributes}>{"".join(cases)}</testsuite>'
