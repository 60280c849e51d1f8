"""Free space of the file system with the data directory. Below `server.storage.min-free` uploads are refused.

With less than a gigabyte, a file in the data directory reserves a few megabytes for deletions on a full disk.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import threading
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Literal, TypeVar

import peewee

from models.errors import DiskFull, InsufficientStorage, Unavailable
from models.storage.sqlite import Either
from models.storage.store import MAX_QUERY_SECONDS

log = logging.getLogger("server")

_MIB = 1024 * 1024
_DEFAULT_MIN_FREE_BYTES, _DEFAULT_MIN_FREE_SHARE = 256 * _MIB, 20
_FULL_BYTES = 64 * 1024
"""With less, SQLite cannot be relied upon to begin a transaction."""

_RESERVE_BYTES, _RESERVE_SHARE = 4 * _MIB, 16
_RESERVE_FACTOR, _RESERVE_BELOW_BYTES = 4, 1024 * _MIB
"""The reserve is made where so many times its size is free, and not more than that."""

State = Literal["enough", "low", "full"]
Result = TypeVar("Result")


def _open_private(path: str, flags: int) -> int:
    return os.open(path, flags, 0o600)


class DiskSpace:
    """What `measure` has found last."""

    def __init__(self, folder: Path, min_free: int | None) -> None:
        """`min_free` is in bytes; None: 256 MiB, or a twentieth of the file system where that is less."""
        self._folder = folder
        self._configured = min_free
        self._lock = threading.Lock()
        self._state: State = "enough"
        self._free = self._min_free = 0
        self._reserve = folder / "reserve"
        self._released = 0
        """How many deletions use the reserve now."""
        self._deletion_lock = asyncio.Lock()

    @property
    def is_full(self) -> bool:
        """Whether nothing can be stored."""
        return self._state == "full"

    @property
    def is_low(self) -> bool:
        """Whether uploads are refused."""
        return self._state != "enough"

    @property
    def shortage(self) -> str:
        """Why uploads are refused."""
        if self._state == "full":
            return f"the disk of the data directory is full: {self._free // 1024} KiB are free"
        free, least = self._free / _MIB, self._min_free / _MIB
        return f"the disk of the data directory has {free:.1f} MiB free; server.storage.min-free is {least:.1f} MiB"

    def measure(self) -> None:
        """Reads the free space, and logs a change of the state. For a worker. Raises `OSError`."""
        disk = os.statvfs(self._folder)
        size, free = disk.f_blocks * disk.f_frsize, disk.f_bavail * disk.f_frsize
        usable = disk.f_bfree * disk.f_frsize if os.geteuid() == 0 else free  # root may use the reserve of ext4
        least = self._configured
        if least is None:
            least = min(_DEFAULT_MIN_FREE_BYTES, size // _DEFAULT_MIN_FREE_SHARE)
        with self._lock:
            if self._released:
                return
            before = self._state
            self._free, self._min_free = free, least
            self._state = "full" if usable < _FULL_BYTES else "low" if free < least else "enough"
            if self._state == before:
                return
            if self._state == "enough":
                log.warning("the disk of %s has enough free space again: uploads are accepted", self._folder)
            else:
                log.error("%s (%s): uploads are refused", self.shortage, self._folder)

    def maintain(self) -> None:
        """As `measure`; makes the reserve where it may soon be needed. For a worker. Raises `OSError`."""
        self.measure()
        with self._lock:
            if not self._released and not self._reserve.exists():
                size = self._reserve_size()
                if _RESERVE_FACTOR * size < self._free < _RESERVE_BELOW_BYTES:
                    self._allocate(size)

    def _reserve_size(self) -> int:
        disk = os.statvfs(self._folder)
        return min(_RESERVE_BYTES, disk.f_blocks * disk.f_frsize // _RESERVE_SHARE)

    def _allocate(self, size: int) -> None:
        """Makes the reserve, smaller where the disk has no room for so much."""
        while size >= _FULL_BYTES:
            try:
                with open(self._reserve, "wb", opener=_open_private) as file:
                    os.posix_fallocate(file.fileno(), 0, size)
            except OSError:
                self._reserve.unlink(missing_ok=True)
                size //= 2
            else:
                return

    @contextlib.contextmanager
    def released(self) -> Iterator[None]:
        """The reserve is free for what is written meanwhile, and then made again. For a worker. Raises `OSError`."""
        with self._lock:
            self._released += 1
            self._reserve.unlink(missing_ok=True)
        try:
            yield
        finally:
            with self._lock:
                self._released -= 1
                if not self._released:
                    self._allocate(self._reserve_size())

    async def run_deletion(
        self, store: Either, run: Callable[[Callable[[], Result]], Awaitable[Result]], work: Callable[[], Result]
    ) -> Result:
        """Runs work that deletes from `store` by `run`, on a full disk again by `run_with_reserve`.

        Raises what `run` raises, and `DiskFull`, `TimedOut`.
        """
        try:
            return await run(work)
        except DiskFull:
            pass
        except Unavailable:
            if not store.is_local:
                raise
            await asyncio.to_thread(self.measure)
            if not self.is_full:  # where SQLite cannot open a file, its error does not name the disk
                raise
        return await self.run_with_reserve(store, work)

    async def run_with_reserve(self, store: Either, work: Callable[[], Result]) -> Result:
        """Runs work that deletes from `store` with the reserve, and an emptied write-ahead log.

        Raises `Unavailable`, `DiskFull`, `TimedOut`.
        """
        async with self._deletion_lock:
            return await asyncio.to_thread(self._run_with_reserve, store, work)

    def _run_with_reserve(self, store: Either, work: Callable[[], Result]) -> Result:
        """For a worker. Raises `Unavailable`, `DiskFull`, `TimedOut`."""
        with self.released():
            try:
                store.limit_log(0)
                result = store.run_with_timeout(work, MAX_QUERY_SECONDS)
                store.limit_log(0)
            except peewee.OperationalError as error:
                raise DiskFull(f"the disk is full, and its reserve is used: {error}") from None
            return result

    def check(self) -> None:
        """Before an upload takes more space. For a worker. Raises `InsufficientStorage`, `OSError`."""
        self.measure()
        if self.is_low:
            raise InsufficientStorage(f"the upload is refused: {self.shortage}")
