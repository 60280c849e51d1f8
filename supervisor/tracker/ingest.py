"""Reports on their way into the store: read off the loop, a few at a time, and written by one after the other."""

from __future__ import annotations

import asyncio
import logging
import secrets
import shutil
import sqlite3
import threading
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Literal, TypeVar

import peewee
from attrs import frozen

from models.accounts.accounts import Credential, User
from models.config.settings import Config
from models.errors import Invalid, TooLarge, Unavailable
from models.tracker import runs
from models.tracker.reports.base import BadReport, Limits, ReportTooLarge
from models.tracker.run_events import RunUpdate
from models.tracker.runs import Stored, Upload
from models.tracker.staging import Spool
from models.tracker.tables import reports
from supervisor.clock import Clock

log = logging.getLogger("ingest")

Result = TypeVar("Result")

_READERS = 2
_SPOOLERS = 2
_WAITING = 200
"""Uploads that have come whole and wait to be read; more are told to come again."""
_CHECKING_TAKES = 20.0
_STORING_TAKES = 120.0


@frozen
class Received:
    """A file of an upload: the part that it came as, its name in words for people, and where it lies."""

    kind: Literal["junit", "jacoco"]
    name: str
    path: Path


class Ingest:
    """What comes in lies below `folder` until it is stored; nothing of it outlives its request, nor a start of ours."""

    def __init__(self, folder: Path, settings: Config, clock: Clock, publish: Callable[[RunUpdate], None]) -> None:
        """`publish` is called on the loop for each run that was stored, after its commit."""
        self._folder = folder
        self._settings = settings
        self._clock = clock
        self._publish = publish
        limits = settings.tracker.limits
        self._limits = Limits(limits.inflated, limits.depth, limits.output_per_case)
        self._spoolers = ThreadPoolExecutor(_SPOOLERS, "spool")
        self._readers = ThreadPoolExecutor(_READERS, "ingest")
        self._writing = threading.Lock()
        self._under_way: set[asyncio.Future[Stored]] = set()
        self._left: set[Path] = set()
        self.answered: Counter[str] = Counter()
        """Uploads, by what became of them: stored, refused, failed."""
        self._closed = False

    @property
    def waiting(self) -> int:
        """Uploads that have come whole and are not stored yet."""
        return len(self._under_way)

    def sweep(self) -> None:
        """Removes what an earlier life left. Raises `OSError`."""
        shutil.rmtree(self._folder, ignore_errors=True)
        self._folder.mkdir(mode=0o700, exist_ok=True)

    def folder(self) -> Path:
        """A name for the folder of a new request; it is not made yet."""
        return self._folder / secrets.token_hex(8)

    async def spool(self, work: Callable[[], Result]) -> Result:
        """Runs what writes or removes the files of a request. Raises `Unavailable` where the disk takes no more."""
        self._check_open()
        try:
            return await asyncio.get_running_loop().run_in_executor(self._spoolers, work)
        except OSError as error:
            raise _full(error) from None

    def remove(self, folder: Path, work: Callable[[], None]) -> None:
        """Has `work` let go of the files of a request, and its folder removed; nobody waits for it."""
        if not self._closed:
            self._spoolers.submit(self._let_go, folder, work)

    def _let_go(self, folder: Path, work: Callable[[], None]) -> None:
        work()
        self._removed(folder)

    def _removed(self, folder: Path) -> None:
        """One that cannot be removed now, because no descriptor is left, is tried again with the next."""
        self._left.add(folder)
        for one in list(self._left):
            shutil.rmtree(one, ignore_errors=True)
            if not one.exists():
                self._left.discard(one)

    async def check(self, user: User | None, project: str) -> None:
        """Before any work is spent on it. Raises `Unauthenticated` or `Denied` (`runs.check_post`), `Unavailable`."""
        if len(self._under_way) >= _WAITING:
            raise Unavailable("too many uploads are waiting to be read")
        try:
            if reports.is_local:
                runs.check_post(user, project)
            else:
                await asyncio.to_thread(
                    reports.run_with_timeout, lambda: runs.check_post(user, project), _CHECKING_TAKES
                )
        except peewee.PeeweeException as error:
            raise _full(error) from None

    async def run(
        self, folder: Path, upload: Upload, files: Sequence[Received], credential: Credential | None
    ) -> Stored:
        """Reads the files of a request, stores them as its run, tells of it, and removes the request's folder.

        Raises `Invalid` or `TooLarge` for a report, `Unauthenticated`, `Denied`, `TimedOut`, `Unavailable`; then
        nothing was stored.
        """
        self._check_open()
        loop = asyncio.get_running_loop()
        work = loop.run_in_executor(self._readers, self._work, folder, upload, files, credential)
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
        """Waits for what is being stored."""
        if self._under_way:
            await asyncio.wait(self._under_way, timeout=seconds)
        self._closed = True
        self._readers.shutdown(wait=False, cancel_futures=True)
        self._spoolers.shutdown(wait=False)

    def _work(self, folder: Path, upload: Upload, files: Sequence[Received], credential: Credential | None) -> Stored:
        spool = folder / "rows"
        try:
            self._read(spool, files)
            with self._writing:
                return reports.run_with_timeout(lambda: self._store(spool, upload, credential), _STORING_TAKES)
        except (peewee.OperationalError, sqlite3.OperationalError, OSError) as error:
            raise _full(error) from None
        finally:
            self._removed(folder)

    def _store(self, spool: Path, upload: Upload, credential: Credential | None) -> Stored:
        keep, now = self._settings.server.stream_replay, self._clock.now()
        return runs.store(spool, upload, credential, self._settings.tracker, keep, now)

    def _read(self, path: Path, files: Sequence[Received]) -> None:
        with Spool(path) as spool:
            for file in files:
                try:
                    self._read_one(spool, file)
                except ReportTooLarge as fault:
                    raise TooLarge(f"{file.kind} {file.name}: {fault}") from None
                except BadReport as fault:
                    raise Invalid(f"{file.kind} {file.name}: {fault}") from None
                file.path.unlink()

    def _read_one(self, spool: Spool, file: Received) -> None:
        from models.tracker.reports.detect import read_coverage, read_tests  # parsers, for who posts reports at all

        spool.begin()
        with file.path.open("rb") as source:
            if file.kind == "junit":
                tests = read_tests(source, self._limits, spool.case)
                spool.end_tests(tests, file.name, tests.digest)
            else:
                coverage = read_coverage(source, self._limits, spool.file)
                spool.end_coverage(coverage, file.name, coverage.digest)


def _full(error: Exception) -> Unavailable:
    log.error("an upload could not be stored: %s", error)
    reason = error.strerror if isinstance(error, OSError) else str(error)
    return Unavailable(f"the reports cannot be stored now: {reason}")
