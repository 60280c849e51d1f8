"""Reads uploads in worker processes, a few at a time, and stores them one after the other."""

from __future__ import annotations

import asyncio
import errno
import logging
import secrets
import shutil
import sqlite3
import threading
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TypeVar

import peewee
from attrs import asdict, evolve

from models.accounts.accounts import Credential, User
from models.config.settings import Config
from models.errors import Failed, InsufficientStorage, Invalid, Problem, Unavailable
from models.storage.sqlite import is_disk_full
from models.storage.staged_file import BadStaging
from models.tracker.files.attachment_files import StagedFile
from models.tracker.open_projects import Creator
from models.tracker.reports.staging import check
from models.tracker.reports.upload_folder import (
    LISTING,
    ROWS,
    ReadOptions,
    ReadUpload,
    Received,
    from_answer,
    list_files,
    reason,
)
from models.tracker.runs import store as runs
from models.tracker.runs.run_events import RunUpdate
from models.tracker.runs.store import Attached, StoredRun, Upload
from models.tracker.tables import reports
from supervisor.clock import Clock
from supervisor.tracker.attachments import Attachments
from supervisor.tracker.disk_space import DiskSpace
from supervisor.workers.pool import WorkerPool
from supervisor.workers.process import Job

log = logging.getLogger("ingest")

Result = TypeVar("Result")

_MAX_CONCURRENT_WRITERS = 2
MAX_QUEUED_UPLOADS = 200
"""Complete uploads that wait to be parsed; further ones are answered 503."""
_MAX_READ_CPU_SECONDS = 120
_MAX_READ_SECONDS = 600.0
_MAX_SOURCE_ROWS_BYTES = 256 * 1024 * 1024
_STOP_GRACE_SECONDS = 5.0
"""How long uploads that are being parsed may go on while the server stops."""
_CHECK_SECONDS = 20.0
_STORE_SECONDS = 120.0


class Ingest:
    """Uploads lie below `folder` until they are stored; each is removed with its request, or at the next start."""

    def __init__(
        self,
        folder: Path,
        settings: Config,
        clock: Clock,
        publish: Callable[[RunUpdate], None],
        attachments: Attachments,
        pool: WorkerPool,
        disk: DiskSpace,
    ) -> None:
        """`publish` is called on the loop for each stored upload, after its commit.

        `pool` reads the uploads, if `disk` has space.
        """
        self._folder = folder.absolute()  # worker processes have another current folder
        self._settings = settings
        self._clock = clock
        self._publish = publish
        self._attachments = attachments
        self._pool = pool
        self._disk = disk
        limits = settings.tracker.limits
        self._max_rows_bytes = 2 * limits.inflated_request + _MAX_SOURCE_ROWS_BYTES
        self._spoolers = ThreadPoolExecutor(_MAX_CONCURRENT_WRITERS, "spool")
        self._storers = ThreadPoolExecutor(_MAX_CONCURRENT_WRITERS, "ingest")
        self._writing = threading.Lock()
        """One upload at a time waits for the store, so that another writer waits for one upload at most."""
        self._under_way: set[asyncio.Future[StoredRun]] = set()
        self._unremoved: set[Path] = set()
        self.answered: Counter[str] = Counter()
        """Uploads by outcome: stored, refused, failed."""
        self._closed = self._stopping = self._ended = False

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
        """Runs work on the files of a request in a worker.

        Raises `InsufficientStorage` where too little space is free, `Unavailable` for an `OSError`.
        """
        self._check_open()

        def checked() -> Result:
            self._disk.check()
            return work()

        try:
            return await asyncio.get_running_loop().run_in_executor(self._spoolers, checked)
        except OSError as error:
            raise _not_stored(error) from None

    def remove(self, folder: Path, work: Callable[[], None]) -> None:
        """Runs `work`, which closes the files of a request, and removes the folder, in a worker."""
        if not self._ended:
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

    async def check(self, user: User | None, project: str, address: str | None) -> None:
        """Before an upload is parsed. Raises `Unauthenticated` or `Denied` (`runs.check_post`), `Unavailable`.

        That of an anonymous caller counts projects, and is not for the loop.
        """
        limits, now = self._settings.tracker.limits, self._clock.now()
        creator = None if address is None else Creator(address, limits, now)
        if len(self._under_way) >= MAX_QUEUED_UPLOADS:
            raise Unavailable("too many uploads are waiting to be parsed")
        try:
            if reports.is_local and creator is None:
                runs.check_post(user, project)
            else:
                await asyncio.to_thread(
                    reports.run_with_timeout, lambda: runs.check_post(user, project, creator), _CHECK_SECONDS
                )
        except peewee.PeeweeException as error:
            raise _not_stored(error) from None

    async def run(
        self,
        folder: Path,
        upload: Upload,
        files: Sequence[Received],
        credential: Credential | None,
        caller: str,
        on_reading: Callable[[asyncio.Future[ReadUpload]], None],
    ) -> StoredRun:
        """Reads the files of a request in a worker process, stores and publishes its run, and removes its folder.

        `caller` is whom the work is for. `on_reading` is called with what may be cancelled: that ends the process.
        Raises `Invalid` or `TooLarge` for a report, `Invalid` where the reading was cancelled, `Unauthenticated`,
        `Denied`, `TimedOut`, `Unavailable`, `Failed`; then nothing was stored.
        """
        work = asyncio.ensure_future(self._read_and_store(folder, upload, files, credential, caller, on_reading))
        self._under_way.add(work)
        work.add_done_callback(self._under_way.discard)
        return await asyncio.shield(work)

    async def _read_and_store(
        self,
        folder: Path,
        upload: Upload,
        files: Sequence[Received],
        credential: Credential | None,
        caller: str,
        on_reading: Callable[[asyncio.Future[ReadUpload]], None],
    ) -> StoredRun:
        reading = asyncio.ensure_future(self._read(folder, upload, files, caller))
        on_reading(reading)
        try:
            await asyncio.wait({reading})
            if reading.cancelled():
                raise Invalid("the client closed the connection")
            read = reading.result()
        except BaseException:
            self.remove(folder, lambda: None)
            raise
        upload = evolve(upload, warnings=[*upload.warnings, *read.ignored])
        stored = await self._stored(folder, upload, files, credential, read)
        self._publish(stored.update)
        return stored

    async def _read(self, folder: Path, upload: Upload, files: Sequence[Received], caller: str) -> ReadUpload:
        """Reads the files into a staging database. Raises as `run`."""
        await self.spool(lambda: list_files(folder, files))
        limits = self._settings.tracker.limits
        attachments = self._settings.tracker.attachments
        options = ReadOptions(
            inflated=limits.inflated,
            inflated_request=limits.inflated_request,
            depth=limits.depth,
            output=limits.output_per_case,
            source=self._settings.tracker.source.file,
            attachments=attachments.file if self._attachments.is_open else None,
            reruns=upload.reruns,
            module=upload.module,
        )
        job = Job(
            "models.tracker.reports.upload_reading:read_upload",
            {"folder": str(folder), "options": asdict(options)},
            from_answer,
            _MAX_READ_CPU_SECONDS,
            _MAX_READ_SECONDS,
            self._max_rows_bytes,
            "the reports of the request",
        )
        return await self._pool.run(job, caller)

    async def _stored(
        self, folder: Path, upload: Upload, files: Sequence[Received], credential: Credential | None, read: ReadUpload
    ) -> StoredRun:
        """Stores what was read. Raises `Unavailable` where the stop of the server ends that."""
        try:
            loop = asyncio.get_running_loop()
            return await loop.run_in_executor(self._storers, self._work, folder, upload, files, credential, read)
        except (asyncio.CancelledError, RuntimeError):
            if not self._closed:
                raise
            raise _stopping() from None

    def _check_open(self) -> None:
        if self._stopping:
            raise _stopping()

    async def close(self, seconds: float) -> None:
        """Waits for the uploads that are being read, a moment, and for those that are being stored."""
        self._stopping = True
        if self._under_way:
            await asyncio.wait(self._under_way, timeout=min(seconds, _STOP_GRACE_SECONDS))
        await self._pool.close()
        if self._under_way:
            await asyncio.wait(self._under_way, timeout=seconds)
        self._closed = True
        self._storers.shutdown(wait=False, cancel_futures=True)

    def end(self) -> None:
        """After the last request: what was to be removed is removed still."""
        self._ended = True
        self._spoolers.shutdown(wait=False)

    def _work(
        self,
        folder: Path,
        upload: Upload,
        files: Sequence[Received],
        credential: Credential | None,
        read: ReadUpload,
    ) -> StoredRun:
        """Stores what was read, in a thread, and removes the folder."""
        rows = folder / ROWS
        staged: Sequence[StagedFile] = ()
        is_stored = False
        try:
            check(rows, self._max_rows_bytes)
            (folder / LISTING).unlink(missing_ok=True)
            attached = [(file.name, folder / file.file, file.size) for file in files if file.kind == "attachment"]
            staged, more = self._attachments.stage(attached)
            with self._writing:
                if self._attachments.is_open:
                    upload = evolve(upload, attachments=Attached(self._attachments.folder, staged, read.missing))
                stored = reports.run_with_timeout(lambda: self._store(rows, upload, credential), _STORE_SECONDS)
                is_stored = True
                self._limit_log()
                return evolve(stored, warnings=[*read.warnings, *more, *stored.warnings])
        except BadStaging as error:
            log.error("an upload was not stored: its staging database is not valid: %s", error)
            raise Failed("the reports of the request could not be read: an error in the server") from None
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

    def _store(self, spool: Path, upload: Upload, credential: Credential | None) -> StoredRun:
        keep, now = self._settings.server.stream_replay, self._clock.now()
        stored = runs.store(spool, upload, credential, self._settings.tracker, keep, now)
        self._attachments.remove_unused(stored.unused_contents)
        return stored


def _stopping() -> Unavailable:
    return Unavailable("pilothouse is stopping")


def _not_stored(error: Exception) -> Problem:
    log.error("an upload could not be stored: %s", error)
    is_full = is_disk_full(error) or (isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT))
    kind = InsufficientStorage if is_full else Unavailable
    return kind(f"the reports cannot be stored now: {reason(error)}")
