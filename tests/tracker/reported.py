"""Reports as tests write them: inline, and read through the front door."""

from __future__ import annotations

import io
from collections.abc import Iterable
from pathlib import Path

from models.tracker.reports.base import Case, CoverageReport, FileCoverage, Limits, TestReport
from models.tracker.reports.detect import read_coverage, read_tests

FIXTURES = Path(__file__).parent.parent.parent.parent / "shared" / "fixtures"

Counts = tuple[int, int, int, int, int]
"""Tests, failed, errors, skipped, flaky."""


class Drip(io.BytesIO):
    """A file that gives so many bytes at once, and no more."""

    def __init__(self, data: bytes, size: int) -> None:
        super().__init__(data)
        self._at_once = size

    def read(self, size: int | None = -1, /) -> bytes:
        return super().read(self._at_once if size is None or size < 0 else min(size, self._at_once))


def raw(data: str | bytes) -> bytes:
    return data.encode() if isinstance(data, str) else data


def read(data: str | bytes, limits: Limits | None = None, at_once: int = 1 << 30) -> tuple[TestReport, list[Case]]:
    cases: list[Case] = []
    return read_tests(Drip(raw(data), at_once), limits or Limits(), cases.append), cases


def covers(
    data: str | bytes, limits: Limits | None = None, at_once: int = 1 << 30
) -> tuple[CoverageReport, dict[str, FileCoverage]]:
    files: list[FileCoverage] = []
    report = read_coverage(Drip(raw(data), at_once), limits or Limits(), files.append)
    found = {file.path: file for file in files}
    assert len(found) == len(files), "a path was told twice"
    return report, found


def counts(report: TestReport) -> Counts:
    t = report.totals
    assert t.passed == t.tests - t.failed - t.errors - t.skipped >= 0
    return t.tests, t.failed, t.errors, t.skipped, t.flaky


def counted(data: str | bytes) -> Counts:
    return counts(read(data)[0])


def only(cases: Iterable[Case]) -> Case:
    (case,) = cases
    return case


def suite(*cases: str, attributes: str = "") -> str:
    return f'<testsuite name="s" {attributes}>{"".join(cases)}</testsuite>'
