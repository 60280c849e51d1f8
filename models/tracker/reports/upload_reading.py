"""Reads the files of an upload into a staging database. It runs in a worker process and has no store."""

from __future__ import annotations

import contextlib
import hashlib
import resource
import sqlite3
import zlib
from collections.abc import Sequence
from pathlib import Path, PurePosixPath
from typing import Any, BinaryIO

from attrs import evolve

from models.errors import Invalid, TooLarge, Unavailable
from models.tracker.coverage import diff
from models.tracker.files.repository_paths import PathIndex
from models.tracker.files.source_archive import MAX_ARCHIVE_BYTES, BadArchive, text_files
from models.tracker.reports.base import BadReport, CoverageReport, Limits, ReportTooLarge, TestReport
from models.tracker.reports.detect import is_allure, is_empty, read_allure, read_coverage, read_perf, read_tests
from models.tracker.reports.perf_points import MAX_LABELS, OTHERS
from models.tracker.reports.staging import StagedRows
from models.tracker.reports.upload_folder import ROWS, FileKind, ReadOptions, Received, listed, reason

_MAX_WARNINGS, _MAX_WARNING_BYTES = 100, 24 * 1024
_FILE_MARGIN_BYTES = 1024 * 1024


def read_upload(folder: str, options: dict[str, Any]) -> dict[str, list[str]]:
    """Reads the files of a request. Returns the fields of `ReadUpload`; `rows` in the folder has what was read.

    `options` has the fields of `ReadOptions`. Raises `Invalid`, `TooLarge`, and `Unavailable` for a full disk.
    """
    reading = UploadReading(Path(folder), ReadOptions(**options))
    try:
        return reading.read()
    except (sqlite3.OperationalError, OSError) as error:
        most, _ = resource.getrlimit(resource.RLIMIT_FSIZE)
        rows = Path(folder) / ROWS
        if most != resource.RLIM_INFINITY and rows.exists() and rows.stat().st_size > most - _FILE_MARGIN_BYTES:
            raise TooLarge(f"the reports of the request have more than {most} bytes when read") from None
        raise Unavailable(f"the reports cannot be stored now: {reason(error)}") from None


class UploadReading:
    """Reads the files of one request."""

    def __init__(self, folder: Path, options: ReadOptions) -> None:
        self._folder = folder
        self._options = options
        self._inflated = 0
        self._limits = Limits(options.inflated, options.depth, options.output, spend=self._spend, reruns=options.reruns)
        self._warnings: list[str] = []
        self._warning_bytes = 0

    def read(self) -> dict[str, list[str]]:
        """As `read_upload`."""
        files = list(listed(self._folder))
        paths, ignored = self._paths(files)
        changed = self._diff(files, paths)
        index = PathIndex(paths, self._options.module) if paths else None
        with StagedRows(self._folder / ROWS, index) as rows:
            if changed is not None:
                rows.diff(changed)
            together = self._allure(files)
            read = {file.file for file in together}
            for file in files:
                if file.file not in read:
                    self._read_file(rows, file)
            if together:
                self._read_allure(rows, together)
            missing = self._attach(rows, [file for file in files if file.kind == "attachment"])
        return {"warnings": self._warnings, "ignored": ignored, "missing": missing}

    def _spend(self, size: int) -> None:
        """Counts inflated bytes. Raises `ReportTooLarge`."""
        self._inflated += size
        if self._inflated > self._options.inflated_request:
            most = self._options.inflated_request
            raise ReportTooLarge(f"the reports of the request have more than {most} bytes when inflated")

    def _warn(self, text: str | None) -> None:
        if text and len(self._warnings) < _MAX_WARNINGS and self._warning_bytes < _MAX_WARNING_BYTES:
            self._warnings.append(text)
            self._warning_bytes += len(text.encode("utf-8", "replace"))

    def _content(self, file: Received, limit: int) -> bytes:
        """The content of a file, cut after one byte more than `limit`."""
        with (self._folder / file.file).open("rb") as source:
            return source.read(limit + 1)

    def _paths(self, files: Sequence[Received]) -> tuple[Sequence[str], list[str]]:
        """The files of the repository in the last part `paths`, and a warning where it is ignored."""
        part = _last(files, "paths")
        if part is None:
            return (), []
        try:
            return diff.read_paths(self._content(part, diff.MAX_PATHS_BYTES)), []
        except TooLarge as problem:
            return (), [f"paths was ignored: {problem.message}"]

    def _diff(self, files: Sequence[Received], paths: Sequence[str]) -> diff.Hunks | None:
        """The last part `diff`. Raises `Invalid`."""
        part = _last(files, "diff")
        if part is None:
            return None
        return diff.with_paths(diff.read_diff(self._content(part, diff.MAX_DIFF_BYTES)), paths)

    def _attach(self, rows: StagedRows, files: Sequence[Received]) -> list[str]:
        """Stages which reports refer to the attachments. Returns warnings for those that are missing."""
        most = self._options.attachments
        return [] if most is None else rows.attach([file.name for file in files if file.size <= most])

    def _allure(self, files: Sequence[Received]) -> Sequence[Received]:
        """The parts that are Allure results, where there are several: together they are one report."""
        found = []
        for file in files:
            if file.kind == "junit":
                with (self._folder / file.file).open("rb") as source, contextlib.suppress(BadReport):
                    if is_allure(source):
                        found.append(file)
        return found if len(found) > 1 else ()

    def _read_allure(self, rows: StagedRows, files: Sequence[Received]) -> None:
        """Reads several parts as one report, named by the first. Raises `Invalid`, `TooLarge`."""
        name = f"{files[0].name} and {len(files) - 1} more"
        limits = evolve(self._limits, suite=self._options.module or "")
        paths = {f"file {place}, {file.name}": self._folder / file.file for place, file in enumerate(files, 1)}
        rows.begin()
        try:
            report = read_allure(paths, limits, rows.case)
            rows.end_tests(report, name, report.digest)
        except ReportTooLarge as fault:
            raise TooLarge(f"junit {name}: {fault}") from None
        except BadReport as fault:
            raise Invalid(f"junit {name}: {fault}") from None
        for text in _warnings(evolve(files[0], name=name), report, "test"):
            self._warn(text)
        for file in files:
            (self._folder / file.file).unlink()

    def _read_file(self, rows: StagedRows, file: Received) -> None:
        """Reads a report or an archive of source files. Raises `Invalid`, `TooLarge`."""
        path = self._folder / file.file
        if file.kind in ("diff", "paths"):
            path.unlink()
        if file.kind in ("diff", "paths", "attachment"):
            return
        try:
            with path.open("rb") as source:
                if file.kind == "source":
                    self._warn(stage_sources(source, rows, self._options.source))
                    rows.flush()
                else:
                    suite = self._options.module or PurePosixPath(file.name).stem
                    for text in _read_report(rows, file, source, evolve(self._limits, suite=suite)):
                        self._warn(text)
        except ReportTooLarge as fault:
            raise TooLarge(f"{file.kind} {file.name}: {fault}") from None
        except BadReport as fault:
            raise Invalid(f"{file.kind} {file.name}: {fault}") from None
        path.unlink()


def _last(files: Sequence[Received], kind: FileKind) -> Received | None:
    return next((file for file in reversed(files) if file.kind == kind), None)


def _read_report(rows: StagedRows, file: Received, source: BinaryIO, limits: Limits) -> Sequence[str]:
    """Stages a report. Returns its warnings, as where it has nothing. Raises `BadReport`."""
    rows.begin()
    if file.kind == "junit":
        tests = read_tests(source, limits, rows.case)
        rows.end_tests(tests, file.name, tests.digest)
        return _warnings(file, tests, "test")
    if file.kind == "perf":
        warning = _read_perf(rows, file, source, limits)
        return [warning] if warning else []
    coverage = read_coverage(source, limits, rows.file)
    rows.end_coverage(coverage, file.name, coverage.digest)
    return _warnings(file, coverage, "line")


def _warnings(file: Received, report: TestReport | CoverageReport, what: str) -> Sequence[str]:
    """The warnings of a report, or one that it has nothing."""
    texts = report.warnings
    if is_empty(report) and not texts:
        texts = [f"a {report.format} report without a {what}"]
    return [f"{file.kind} {file.name}: {text}" for text in texts]


def _read_perf(rows: StagedRows, file: Received, source: BinaryIO, limits: Limits) -> str | None:
    report = read_perf(source, limits)
    rows.end_perf(report, file.name)
    if not report.points:
        return f"perf {file.name}: a {report.format} report without a label"
    if report.dropped_labels:
        return f"perf {file.name}: it has more than {MAX_LABELS} labels; the others are left out or {OTHERS}"
    return None


def stage_sources(archive: BinaryIO, rows: StagedRows, max_bytes: int) -> str | None:
    """Stages the text files of an archive. Returns why it is ignored, if it is."""
    if archive.seek(0, 2) > MAX_ARCHIVE_BYTES:
        return f"the part source was ignored: more than {MAX_ARCHIVE_BYTES} bytes"
    archive.seek(0)
    try:
        for path, text in text_files(archive, max_bytes):
            content = text.encode("utf-8", "replace")
            rows.source(path, hashlib.sha256(content).hexdigest(), zlib.compress(content, 6))
    except BadArchive as error:
        rows.forget_sources()
        return f"the part source was ignored: {error}"
    return None
