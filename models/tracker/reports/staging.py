"""Rows of reports that have been read and are not stored yet: a temporary SQLite file for each upload.

`runs.store` attaches the file and copies its rows within SQLite: the store is locked only for that moment, and the
rows are never all in memory.
"""

from __future__ import annotations

import contextlib
import json
import re
import sqlite3
from collections.abc import Iterable, Sequence
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

from attrs import astuple

from models.storage.sqlite import storable
from models.storage.staged_file import check_file
from models.tracker.coverage.diff import Hunks
from models.tracker.coverage.line_sets import pack
from models.tracker.failures.signatures import MAX_SAMPLE_CHARACTERS, digest, signature
from models.tracker.files.attachment_paths import missing, normalised, owners
from models.tracker.files.repository_paths import PathIndex
from models.tracker.reports.base import (
    CASE_STATUSES,
    FAILING,
    BadReport,
    Case,
    CoverageReport,
    FileCoverage,
    TestReport,
)

if TYPE_CHECKING:
    from models.tracker.reports.perf_points import PerfReport

_TABLES = """
    PRAGMA journal_mode = OFF;
    PRAGMA synchronous = OFF;
    PRAGMA locking_mode = EXCLUSIVE;
    PRAGMA cache_size = -2048;
    CREATE TABLE reports (number INTEGER PRIMARY KEY, kind TEXT, hash TEXT, name TEXT, format TEXT,
        tests INTEGER, passed INTEGER, failed INTEGER, errors INTEGER, skipped INTEGER, flaky INTEGER,
        duration_ms INTEGER, line_covered INTEGER, line_missed INTEGER, branch_covered INTEGER, branch_missed INTEGER,
        warnings TEXT, first INTEGER, last INTEGER, UNIQUE (kind, hash));
    CREATE TABLE suites (id INTEGER PRIMARY KEY, report INTEGER, name TEXT, tests INTEGER, failed INTEGER,
        errors INTEGER, skipped INTEGER, duration_ms INTEGER);
    CREATE TABLE cases (id INTEGER PRIMARY KEY, class_name TEXT, name TEXT, suite INTEGER, fate INTEGER,
        duration_ms INTEGER);
    CREATE TABLE places (id INTEGER PRIMARY KEY, file TEXT);
    CREATE TABLE failures (id INTEGER PRIMARY KEY, report INTEGER, type TEXT, message TEXT, stack TEXT, hash TEXT);
    CREATE TABLE clusters (hash TEXT PRIMARY KEY, signature TEXT, type TEXT, message TEXT, stack TEXT);
    CREATE TABLE outputs (id INTEGER PRIMARY KEY, report INTEGER, out TEXT, err TEXT);
    CREATE TABLE attachments (id INTEGER PRIMARY KEY, report INTEGER, case_id INTEGER, path TEXT, place TEXT);
    CREATE TABLE attached (name TEXT PRIMARY KEY, place TEXT);
    CREATE TABLE diff (base TEXT, head TEXT, ranges TEXT, paths TEXT, problem TEXT, renames TEXT);
    CREATE TABLE base_commits (place INTEGER PRIMARY KEY, commit_sha TEXT);
    CREATE TABLE sources (id INTEGER PRIMARY KEY, path TEXT UNIQUE, hash TEXT, size INTEGER, content BLOB);
    CREATE TABLE perf (id INTEGER PRIMARY KEY, report INTEGER, label TEXT, samples INTEGER, mean REAL, min REAL,
        max REAL, p50 REAL, p90 REAL, p95 REAL, p99 REAL, throughput REAL, error_pct REAL);
    CREATE TABLE files (id INTEGER PRIMARY KEY, report INTEGER, path TEXT, line_covered INTEGER, line_missed INTEGER,
        branch_covered INTEGER, branch_missed INTEGER, covered BLOB, missed BLOB, repository_path TEXT);
    BEGIN;
"""
_FREE_TEXTS = ("failures", "clusters", "outputs")
"""Tables whose texts may have NUL (from JSON), at which SQLite's `length` and `substr` end."""
_NAMES = re.findall(r"CREATE TABLE (\w+)", _TABLES)
_OF_CASES = ("cases", "places", "failures", "outputs")
_OF_KIND = {"jacoco": ("files",), "perf": ("perf",)}
_FLAKY = 4
"""The bit of a flaky case in the column `fate`: status rank + this bit + 8 * reruns. Fewer columns insert faster.

For the same reason a case has no report column: a report's cases are those from its `first` to its `last` id.
"""

_RANK = {status.value: rank for rank, status in enumerate(CASE_STATUSES)}
"""By the values: hashing an enum member is slow, and there are a hundred thousand cases."""
_MAX_BUFFERED_ROWS, _MAX_BUFFERED_CHARACTERS = 1000, 1024 * 1024
_MAX_KNOWN_HASHES = 10_000
_MAX_ATTACHMENTS, _MAX_ATTACHMENTS_OF_CASE, _MAX_PATH_CHARACTERS = 100_000, 100, 1024
_REFERRED = """
    SELECT a.path, a.place FROM attachments a JOIN reports s ON s.number = a.report JOIN cases k ON k.id = a.case_id
    ORDER BY a.id"""
_MARK = "[[ATTACHMENT|"
_REFERENCE = re.compile(r"\[\[ATTACHMENT\|([^\]\r\n]{1,1024})\]\]")
_MAX_WARNING_CHARACTERS = 4000
_MAX_COUNT = 2**48
"""Sums of many such counts are still numbers that the store and JSON can hold."""


def references(*texts: str | None) -> list[str]:
    """The paths that the outputs of a test refer to, as Jenkins and Playwright write them: `[[ATTACHMENT|path]]`."""
    return [path for text in texts if text and _MARK in text for path in _REFERENCE.findall(text)]


def check(path: Path, max_bytes: int) -> None:
    """Raises `BadStaging` unless the file at `path` has the tables of `StagedRows` and nothing else.

    It was written by a process that reads what callers send.
    """
    check_file(path, max_bytes, _TABLES)


class StagedRows:
    """Collects the rows of one report after the other: `begin`, rows, then `end_tests` or `end_coverage`.

    Raises `sqlite3.OperationalError` if the disk is full.
    """

    def __init__(self, path: Path, repository: PathIndex | None = None) -> None:
        """`repository` has the files of the repository, where the upload lists them."""
        self._repository = repository
        path.touch(mode=0o600)
        self._store = sqlite3.connect(path, isolation_level=None)
        self._store.executescript(_TABLES)
        self._rows: dict[str, list[Sequence[Any]]] = {name: [] for name in _NAMES}
        self._cases = self._rows["cases"]
        self._buffered = 0
        self._hashes: set[str] = set()
        """Clusters that are staged."""
        self._number = 0
        self._next = self._first = 1
        self._suites = self._next_suite = 1
        self._next_file = 1
        self._next_attachment = 1

    def __enter__(self) -> StagedRows:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: object, trace: object) -> None:
        """Commits and closes the file."""
        with contextlib.closing(self._store):
            if kind is None:
                self._store.execute("COMMIT")

    def begin(self) -> None:
        """Begins the next report."""
        self._number += 1
        self._first, self._suites = self._next, self._next_suite

    def case(self, case: Case) -> None:
        """The sink of `read_tests`."""
        id, number, cases = self._next, self._number, self._cases
        self._next = id + 1
        suite = None if case.suite is None else self._suites + case.suite
        fate = _RANK[case.status._value_] + _FLAKY * case.flaky + 8 * case.reruns
        cases.append((id, case.class_name, case.name, suite, fate, case.duration_ms))
        if case.file or self._repository:
            self._place(case)
        is_failing = fate & 3 in FAILING
        if is_failing or case.failure_type or case.failure_message or case.stack:
            hash = self._cluster(case) if is_failing else None
            self._rows["failures"].append((id, number, case.failure_type, case.failure_message, case.stack, hash))
            self._buffered += len(case.stack or "") + len(case.failure_message or "")
        if case.out or case.err:
            self._rows["outputs"].append((id, number, case.out, case.err))
            self._buffered += len(case.out or "") + len(case.err or "")
            self._refer(id, references(case.out, case.err))
        if case.attachments:
            self._refer(id, case.attachments)
        if len(cases) >= _MAX_BUFFERED_ROWS or self._buffered > _MAX_BUFFERED_CHARACTERS:
            self.flush()

    def _place(self, case: Case) -> None:
        """Stages the source file of a case that was just numbered."""
        file = case.file and case.file.replace("\\", "/").removeprefix("./")[:_MAX_PATH_CHARACTERS]
        if self._repository:
            file = self._repository.file_of(file, case.class_name)
        if file:
            self._rows["places"].append((self._next - 1, file))

    def _cluster(self, case: Case) -> str:
        """Stages the cluster of a failure; returns its hash."""
        text = signature(case.failure_type, case.failure_message, case.stack)
        hash = digest(text)
        if hash not in self._hashes:
            if len(self._hashes) >= _MAX_KNOWN_HASHES:
                self._hashes.clear()
            self._hashes.add(hash)
            stack = case.stack and case.stack[:MAX_SAMPLE_CHARACTERS]
            self._rows["clusters"].append((hash, text, case.failure_type, case.failure_message, stack))
            self._buffered += len(stack or "")
        return hash

    def _refer(self, case: int, paths: Iterable[str]) -> None:
        """Stages the paths of a case's attachments."""
        for path in dict.fromkeys(islice(filter(None, paths), _MAX_ATTACHMENTS_OF_CASE)):
            if self._next_attachment <= _MAX_ATTACHMENTS:
                path = path[:_MAX_PATH_CHARACTERS]
                row = self._next_attachment, self._number, case, path, normalised(path)
                self._rows["attachments"].append(row)
                self._next_attachment += 1

    def file(self, file: FileCoverage) -> None:
        """The sink of `read_coverage`."""
        covered = missed = None
        if file.lines is not None:
            covered = pack([line for line, hit in file.lines.items() if hit])
            missed = pack([line for line, hit in file.lines.items() if not hit])
            self._buffered += len(covered) + len(missed)
        counts = file.line_covered, file.line_missed, file.branch_covered, file.branch_missed
        place = self._repository.file(file.path) if self._repository else None
        row = (self._next_file, self._number, file.path, *map(_count, counts), covered, missed, place)
        self._next_file += 1
        self._rows["files"].append(row)
        if len(self._rows["files"]) >= _MAX_BUFFERED_ROWS or self._buffered > _MAX_BUFFERED_CHARACTERS:
            self.flush()

    def source(self, path: str, hash: str, content: bytes) -> None:
        """Stages a compressed source file; of several with one path the last counts."""
        self._rows["sources"].append((None, path, hash, len(content), content))
        self._buffered += len(content)
        if self._buffered > _MAX_BUFFERED_CHARACTERS:
            self.flush()

    def diff(self, diff: Hunks) -> None:
        """Stages the changed lines."""
        texts = json.dumps(diff.files), json.dumps(diff.paths)
        self._rows["diff"].append((diff.base, diff.head, *texts, diff.problem, json.dumps(diff.renames)))
        self._rows["base_commits"] += enumerate(dict.fromkeys([diff.base, *diff.base_commits] if diff.base else []))
        self.flush()

    def attach(self, names: Sequence[str]) -> list[str]:
        """Stages which of the files with these names the reports refer to, once all reports are staged.

        Returns a warning for the files that they refer to and that are not among them.
        """
        self.flush()
        paths = dict[str, str]()
        for path, place in self._store.execute(_REFERRED):
            paths.setdefault(place, path)
        places = owners(paths, names)
        self._rows["attached"] += places.items()
        self.flush()
        return missing(paths, places.values())

    def forget_sources(self) -> None:
        """Drops the staged source files."""
        self.flush()
        self._store.execute("DELETE FROM sources")

    def end_tests(self, report: TestReport, name: str, hash: str) -> None:
        """Stores the totals. Raises `BadReport` for impossible numbers."""
        suites = [
            (self._suites + place, self._number, suite.name, *map(_count, (suite.totals.tests, suite.totals.failed,
             suite.totals.errors, suite.totals.skipped, suite.totals.duration_ms)))
            for place, suite in enumerate(report.suites)
        ]  # fmt: skip
        self._rows["suites"] += suites
        self._next_suite += len(suites)
        self.flush()
        self._correct(report)
        t = report.totals
        counts = t.tests, t.passed, t.failed, t.errors, t.skipped, t.flaky, t.duration_ms
        self._end("junit", hash, name, report.format, (*map(_count, counts), None, None, None, None), report.warnings)

    def _correct(self, report: TestReport) -> None:
        """Applies what is known about the cases only at the end of the report."""
        for table in _OF_CASES if report.superseded else ():
            superseded = ((self._first + place,) for place in report.superseded)
            self._store.executemany(f"DELETE FROM {table} WHERE id = ?", superseded)  # noqa: S608 (our own table names)
        flaky = ((self._first + place,) for place in report.flaky)
        self._store.executemany(f"UPDATE cases SET fate = fate | {_FLAKY} WHERE id = ?", flaky)  # noqa: S608

    def end_coverage(self, report: CoverageReport, name: str, hash: str) -> None:
        """As `end_tests`."""
        counts = report.line_covered, report.line_missed, report.branch_covered, report.branch_missed
        self.flush()
        self._end("jacoco", hash, name, report.format, (0,) * 7 + tuple(map(_count, counts)), report.warnings)

    def end_perf(self, report: PerfReport, name: str) -> None:
        """Stages the points of a performance report, and the report."""
        self._rows["perf"] += [(None, self._number, *astuple(point)) for point in report.points]
        self.flush()
        self._end("perf", report.digest, name, report.format, (0,) * 7 + (None,) * 4)

    def _end(
        self,
        kind: str,
        hash: str,
        name: str,
        format: str,
        counts: Sequence[int | None],
        warnings: Sequence[str] = (),
    ) -> None:
        """Keeps the report, unless the request already contained the same file."""
        if self._store.execute("SELECT 1 FROM reports WHERE kind = ? AND hash = ?", (kind, hash)).fetchone():
            for table in _OF_KIND.get(kind, ("suites", "failures", "outputs", "attachments")):
                self._store.execute(f"DELETE FROM {table} WHERE report = ?", (self._number,))  # noqa: S608 (our own table names)
            for table in ("cases", "places"):
                self._store.execute(f"DELETE FROM {table} WHERE id >= ?", (self._first,))  # noqa: S608
            return
        text = "\n".join(warnings)[:_MAX_WARNING_CHARACTERS] or None
        places = self._first, self._next - 1
        self._rows["reports"].append((self._number, kind, hash, name, format, *counts, text, *places))
        self.flush()

    def flush(self) -> None:
        """Writes the rows that are still in memory."""
        for table, rows in self._rows.items():
            if rows:
                self._insert(table, rows)
                rows.clear()
        self._buffered = 0

    def _insert(self, table: str, rows: list[Sequence[Any]]) -> None:
        placeholders = ", ".join("?" * len(rows[0]))
        statement = f"INSERT OR REPLACE INTO {table} VALUES ({placeholders})"  # noqa: S608 (our own table names)
        if table in _FREE_TEXTS:
            rows = [tuple(map(_without_nul, row)) for row in rows]
        try:
            self._store.executemany(statement, rows)
        except UnicodeEncodeError:
            self._store.executemany(statement, [tuple(map(_clean, row)) for row in rows])
        except OverflowError:
            raise BadReport("it has a number that is too large to store") from None


def _without_nul(value: Any) -> Any:
    return value.replace("\0", "\ufffd") if isinstance(value, str) else value


def _clean(value: Any) -> Any:
    return storable(value) if isinstance(value, str) else value


def _count(value: int | None) -> int | None:
    if value is not None and not 0 <= value <= _MAX_COUNT:
        raise BadReport(f"it counts {value} of something")
    return value
