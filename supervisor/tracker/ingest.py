"""Parses uploaded reports in worker threads, a few at a time, and stores them one after the other."""

from __future__ import annotations

import asyncio
import logging
import secrets
import shutil
import sqlite3
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path, PurePosixPath
from typing import BinaryIO, Literal, TypeVar

import peewee
from attrs import evolve, frozen

from models.accounts.accounts import Credential, User
from models.config.settings import Config
from models.errors import Invalid, TimedOut, TooLarge, Unavailable
from models.tracker.files.attachment_files import StagedFile
from models.tracker.files.repository_paths import PathIndex
from models.tracker.reports.base import BadReport, Limits, ReportTooLarge
from models.tracker.reports.staging import StagedRows
from models.tracker.runs import store as runs
from models.tracker.runs.run_events import RunUpdate
from models.tracker.runs.store import Attached, Stored, Upload
from models.tracker.tables import reports
from supervisor.clock import Clock
from supervisor.tracker.attachments import Attachments

log = logging.getLogger("ingest")

Result = TypeVar("Result")

_MAX_CONCURRENT_PARSERS = 2
_MAX_CONCURRENT_WRITERS = 2
_MAX_QUEUED_UPLOADS = 200
"""Complete uploads that wait to be parsed; further ones are answered 503."""
_MAX_PARSE_CPU_SECONDS = 120.0
_MAX_PARSE_SECONDS = 600.0
_STOP_GRACE_SECONDS = 5.0
"""How long uploads that are being parsed may go on while the server stops."""
_CHECK_SECONDS = 20.0
_MAX_WARNINGS = 100
_STORE_SECONDS = 120.0


FileKind = Literal["junit", "jacoco", "attachment", "source", "perf"]
"""The names of the parts that are read as files."""


@frozen
class Received:
    """A file of an upload: the name of its part, its display name and its path."""

    kind: FileKind
    name: str
    path: Path
    size: int = 0


class Stopped(Exception):
    """The client has left, or the server stops."""


class Budget:
    """The work that one request may cause: bytes inflated, CPU seconds and time. Made in the thread that parses it."""

    def __init__(self, max_inflated: int, *stops: threading.Event) -> None:
        self._max_inflated = max_inflated
        self._stops = stops
        self._inflated = 0
        self._cpu_end = time.thread_time() + _MAX_PARSE_CPU_SECONDS
        self._end = time.monotonic() + _MAX_PARSE_SECONDS

    def spend(self, size: int) -> None:
        """Counts inflated bytes. Raises `ReportTooLarge`, `TimedOut`, `Stopped`."""
        self._inflated += size
        if self._inflated > self._max_inflated:
            raise ReportTooLarge(f"the reports of the request have more than {self._max_inflated} bytes when inflated")
        if time.thread_time() > self._cpu_end:
            raise ReportTooLarge(f"the reports of the request take more than {_MAX_PARSE_CPU_SECONDS:g} s to parse")
        if time.monotonic() > self._end:
            raise TimedOut(f"the reports could not be parsed within {_MAX_PARSE_SECONDS:g} s")
        if any(stop.is_set() for stop in self._stops):
            raise Stopped


class Ingest:
    """Uploads lie below `folder` until they are stored; each is removed with its request, or at the next start."""

    def __init__(
        self,
        folder: Path,
        settings: Config,
        clock: Clock,
        publish: Callable[[RunUpdate], None],
        attachments: Attachments,
    ) -> None:
        """`publish` is called on the loop for each stored upload, after its commit."""
        self._folder = folder
        self._settings = settings
        self._clock = clock
        self._publish = publish
        self._attachments = attachments
        limits = settings.tracker.limits
        self._limits = Limits(limits.inflated, limits.depth, limits.output_per_case)
        self._spoolers = ThreadPoolExecutor(_MAX_CONCURRENT_WRITERS, "spool")
        self._readers = ThreadPoolExecutor(_MAX_CONCURRENT_PARSERS, "ingest")
        self._writing = threading.Lock()
        """One upload at a time waits for the store, so that another writer waits for one upload at most."""
        self._under_way: set[asyncio.Future[Stored]] = set()
        self._unremoved: set[Path] = set()
        self.answered: Counter[str] = Counter()
        """Uploads by outcome: stored, refused, failed."""
        self._closed = False
        self._stopping = threading.Event()

    @property
    def waiting(self) -> int:
        """Complete uploads that are not stored yet."""
        return len(self._under_way)

    def sweep(self) -> None:
        """Removes the folders of an earlier process. Raises `OSError`."""
        shutil.rmtree(self._folder, ignore_errors=True)
        self._folder.mkdir(mode=0o700, exist_ok=True)

    def folder(self) -> Path:
        """A path for the folder of a new request; it is not created yet."""
        return self._folder / secrets.token_hex(8)

    async def spool(self, work: Callable[[], Result]) -> Result:
        """Runs work on the files of a request in a worker. Raises `Unavailable` for an `OSError`."""
        self._check_open()
        try:
            return await asyncio.get_running_loop().run_in_executor(self._spoolers, work)
        except OSError as error:
            raise _not_stored(error) from None

    def remove(self, folder: Path, work: Callable[[], None]) -> None:
        """Runs `work`, which closes the files of a request, and removes the folder, in a worker."""
        if not self._closed:
            self._spoolers.submit(self._close_and_remove, folder, work)

    def _close_and_remove(self, folder: Path, work: Callable[[], None]) -> None:
        work()
        self._remove_folder(folder)

    def _remove_folder(self, folder: Path) -> None:
        """A folder that cannot be removed now, for want of descriptors, is tried again with the next one."""
        self._unremoved.add(folder)
        for path in list(self._unremoved):
            shutil.rmtree(path, ignore_errors=True)
            if not path.exists():
                self._unremoved.discard(path)

    async def check(self, user: User | None, project: str) -> None:
        """Before an upload is parsed. Raises `Unauthenticated` or `Denied` (`runs.check_post`), `Unavailable`."""
        if len(self._under_way) >= _MAX_QUEUED_UPLOADS:
            raise Unavailable("too many uploads are waiting to be parsed")
        try:
            if reports.is_local:
                runs.check_post(user, project)
            else:
                await asyncio.to_thread(
                    reports.run_with_timeout, lambda: runs.check_post(user, project), _CHECK_SECONDS
                )
        except peewee.PeeweeException as error:
            raise _not_stored(error) from None

    async def run(
        self,
        folder: Path,
        upload: Upload,
        files: Sequence[Received],
        credential: Credential | None,
        client_left: threading.Event,
    ) -> Stored:
        """Parses the files of a request, stores and publishes its run, and removes the request's folder.

        Parsing ends once `client_left` is set. Raises `Invalid` or `TooLarge` for a report, `Unauthenticated`,
        `Denied`, `TimedOut`, `Unavailable`; then nothing was stored.
        """
        self._check_open()
        loop = asyncio.get_running_loop()
        work = loop.run_in_executor(self._readers, self._work, folder, upload, files, credential, client_left)
        self._under_way.add(work)
        try:
            stored = await asyncio.shield(work)
        finally:
            self._under_way.discard(work)
        self._publish(stored.update)
        return stored

    def _check_open(self) -> None:
        if self._closed:
            raise Unavailable("pilothouse is stopping")

    async def close(self, seconds: float) -> None:
        """Waits for the uploads that are being parsed or stored, then ends the workers."""
        if self._under_way:
            await asyncio.wait(self._under_way, timeout=min(seconds, _STOP_GRACE_SECONDS))
        self._closed = True
        self._stopping.set()
        if self._under_way:
            await asyncio.wait(self._under_way, timeout=seconds)
        self._readers.shutdown(wait=False, cancel_futures=True)
        self._spoolers.shutdown(wait=False)

    def _work(
        self,
        folder: Path,
        upload: Upload,
        files: Sequence[Received],
        credential: Credential | None,
        client_left: threading.Event,
    ) -> Stored:
        spool = folder / "rows"
        staged: Sequence[StagedFile] = ()
        is_stored = False
        budget = Budget(self._settings.tracker.limits.inflated_request, client_left, self._stopping)
        try:
            limits = evolve(self._limits, spend=budget.spend, reruns=upload.reruns)
            warnings = self._read(spool, [file for file in files if file.kind != "attachment"], limits, upload)
            attached = [(file.name, file.path, file.size) for file in files if file.kind == "attachment"]
            staged, more = self._attachments.stage(attached)
            with self._writing:
                if self._attachments.is_open:
                    upload = evolve(upload, attachments=Attached(self._attachments.folder, staged))
                stored = reports.run_with_timeout(lambda: self._store(spool, upload, credential), _STORE_SECONDS)
                is_stored = True
                self._limit_log()
                return evolve(stored, warnings=[*warnings, *more, *stored.warnings])
        except Stopped:
            raise Unavailable("parsing was stopped: the client left or the server stops") from None
        except (peewee.OperationalError, sqlite3.OperationalError, OSError) as error:
            raise _not_stored(error) from None
        finally:
            self._attachments.discard(staged, is_stored)
            self._remove_folder(folder)

    @staticmethod
    def _limit_log() -> None:
        """Bounds the write-ahead log under continuous load: the next upload waits. The stored upload cannot fail."""
        try:
            reports.limit_log()
        except peewee.PeeweeException as error:
            log.warning("the write-ahead log could not be emptied: %s", error)

    def _store(self, spool: Path, upload: Upload, credential: Credential | None) -> Stored:
        keep, now = self._settings.server.stream_replay, self._clock.now()
        stored = runs.store(spool, upload, credential, self._settings.tracker, keep, now)
        self._attachments.remove_unused(stored.unused_contents)
        return stored

    def _read(self, path: Path, files: Sequence[Received], limits: Limits, upload: Upload) -> list[str]:
        """Reads the files. Returns a warning for each without a test or a line, up to `_MAX_WARNINGS`."""
        warnings: list[str] = []
        with StagedRows(path, PathIndex(upload.paths, upload.module) if upload.paths else None) as spool:
            for file in files:
                if file.kind == "source":
                    warnings += self._read_source(spool, file)
                    continue
                try:
                    suite = upload.module or PurePosixPath(file.name).stem
                    warning = self._read_one(spool, file, evolve(limits, suite=suite))
                    if warning and len(warnings) < _MAX_WARNINGS:
                        warnings.append(warning)
                except ReportTooLarge as fault:
                    raise TooLarge(f"{file.kind} {file.name}: {fault}") from None
                except BadReport as fault:
                    raise Invalid(f"{file.kind} {file.name}: {fault}") from None
                file.path.unlink()
        return warnings

    @staticmethod
    def _read_perf(spool: StagedRows, file: Received, source: BinaryIO, limits: Limits) -> str | None:
        from models.tracker.reports.perf import read_perf
        from models.tracker.reports.perf_points import MAX_LABELS, OTHERS

        report = read_perf(source, limits)
        spool.end_perf(report, file.name)
        if not report.points:
            return f"perf {file.name}: a {report.format} report without a label"
        if report.dropped_labels:
            return f"perf {file.name}: it has more than {MAX_LABELS} labels; the others are left out or {OTHERS}"
        return None

    def _read_source(self, spool: StagedRows, file: Received) -> list[str]:
        """Stages the source files. Returns why they are ignored, if they are."""
        from models.tracker.files import sources

        with file.path.open("rb") as archive:
            problem = sources.stage(archive, spool, self._settings.tracker.source.file)
        spool.flush()
        file.path.unlink()
        return [problem] if problem else []

    def _read_one(self, spool: StagedRows, file: Received, limits: Limits) -> str | None:
        from models.tracker.reports.detect import is_empty, read_coverage, read_tests  # parsers load on first use

        spool.begin()
        with file.path.open("rb") as source:
            if file.kind == "junit":
                tests = read_tests(source, limits, spool.case)
                spool.end_tests(tests, file.name, tests.digest)
                return f"junit {file.name}: a {tests.format} report without a test" if is_empty(tests) else None
            if file.kind == "perf":
                return self._read_perf(spool, file, source, limits)
            coverage = read_coverage(source, limits, spool.file)
            spool.end_coverage(coverage, file.name, coverage.digest)
            return f"jacoco {file.name}: a {coverage.format} report without a line" if is_empty(coverage) else None


def _not_stored(error: Exception) -> Unavailable:
    log.error("an upload could not be stored: %s", error)
    reason = error.strerror if isinstance(error, OSError) else str(error)
    return Unavailable(f"the reports cannot be stored now: {reason}")
