"""Rotates log files as they grow: one inotify descriptor reports the first write to each, which makes a check due.

A watch reports once, so an idle log wakes nobody, and a busy one no more often than its size is checked. A check is due
when the file can have grown to its limit, at the highest rate for which twice the limit is promised. A file that grows
fast is rotated from half its limit on, because it goes on growing while it is copied.
"""

from __future__ import annotations

import asyncio
import ctypes
import logging
import os
import stat
import struct
from collections.abc import Iterable

from attrs import evolve

from supervisor.processes.log_files import LogFile, Logs, Rotation

log = logging.getLogger("logs")

_MAX_BYTES_PER_SECOND = 100 * 1024 * 1024
_FAST_BYTES_PER_SECOND = _MAX_BYTES_PER_SECOND / 4
_MIN_CHECK_SECONDS = 0.01
_CHECK_FRACTION, _FAST_FRACTION, _EARLY_FRACTION = 0.1, 0.125, 0.5  # of the limit
_MODIFIED, _ATTRIBUTES, _MOVED, _DO_NOT_FOLLOW, _ONCE = 0x2, 0x4, 0x800, 0x2000000, 0x80000000
_WATCH_MASK = _MODIFIED | _ATTRIBUTES | _MOVED | _DO_NOT_FOLLOW | _ONCE  # attributes change when a file is deleted
_EVENT = struct.Struct("iIII")
_MAX_READ_BYTES = 64 * 1024


class LogGrowth:
    """Watches the log files that exist, and those of a process from its spawn on."""

    def __init__(self, logs: Logs) -> None:
        self._logs = logs
        self._files: dict[str, LogFile] = {}
        self._new: set[str] = set()
        self._paths: dict[int, str] = {}  # by watch descriptor
        self._sizes: dict[str, int] = {}  # of the watched paths, when the watch began
        self._due: dict[str, float] = {}
        self._written: dict[str, tuple[float, int]] = {}  # when the write was reported, and the size before
        self._woken: asyncio.Future[None] | None = None
        self._is_reported = False

    def add(self, files: Iterable[LogFile]) -> None:
        """Watches these, if they exist, or takes over their new limits."""
        for file in files:
            self._files[file.path] = file
            if file.max_bytes and file.path not in self._sizes and file.path not in self._due:
                self._new.add(file.path)
        if self._new:
            self._wake()

    async def rotate_all(self) -> None:
        """Rotates what is too large, whether or not its growth was noticed, and watches what is not watched yet."""
        self._files.clear()  # before the rotation, so that what a spawn adds meanwhile stays
        results = await self._logs.rotate()
        self.add(file for file, result in results if result not in (Rotation.MISSING, Rotation.FAILED))

    async def watch(self) -> None:
        """Runs until it is cancelled. Returns where there is no inotify: `rotate_all` has to suffice."""
        try:
            inotify = open_inotify()
        except OSError as error:
            self._report(error)
            return
        try:
            while True:
                await self._wait(inotify)
                await self._check(inotify)
        finally:
            os.close(inotify)

    def _wake(self) -> None:
        if self._woken is not None and not self._woken.done():
            self._woken.set_result(None)

    async def _wait(self, inotify: int) -> None:
        """Returns when a watched file was written to, a file was added, or a check is due."""
        loop = asyncio.get_running_loop()
        self._woken = loop.create_future()
        if self._new:
            self._wake()
        loop.add_reader(inotify, self._wake)
        try:
            timeout = max(0.0, min(self._due.values()) - loop.time()) if self._due else None
            await asyncio.wait({self._woken}, timeout=timeout)
        finally:
            loop.remove_reader(inotify)
        self._read_events(inotify)

    def _read_events(self, inotify: int) -> None:
        for descriptor in read_inotify(inotify):
            # The kernel's queue holds more than two events for each watch, so that it does not overflow.
            path = self._paths.pop(descriptor, "")
            if (size := self._sizes.pop(path, None)) is not None:  # else a check is due already
                self._expect(path, size)

    def _expect(self, path: str, size: int) -> None:
        """Makes a check due when a file of this size can have grown to its limit, or to half of it."""
        if (file := self._files.get(path)) is not None:
            early = _EARLY_FRACTION * file.max_bytes
            room = max((early if size < early else file.max_bytes) - size, _CHECK_FRACTION * file.max_bytes)
            now = asyncio.get_running_loop().time()
            due = now + max(room / _MAX_BYTES_PER_SECOND, _MIN_CHECK_SECONDS)
            self._due[path] = min(due, self._due.get(path, due))
            self._written.setdefault(path, (now, size))

    async def _check(self, inotify: int) -> None:
        """Rotates the files whose check is due, and watches them and the new ones."""
        now = asyncio.get_running_loop().time()
        due = [path for path, at in self._due.items() if at <= now]
        for path in due:
            del self._due[path]
        written = [(self._files.get(path), *self._written.pop(path)) for path in due]
        results = await self._logs.rotate(await asyncio.to_thread(_limited, written, now)) if due else []
        paths = self._new | {file.path for file, result in results if result is not Rotation.FAILED}
        self._new = set()
        if paths:
            self._on_watched(*await asyncio.to_thread(watch_files, inotify, paths))

    def _on_watched(self, watched: list[tuple[str, int, int]], error: OSError | None) -> None:
        for path, descriptor, size in watched:
            self._sizes.pop(self._paths.get(descriptor, ""), None)  # another name of the same file
            self._paths[descriptor], self._sizes[path] = path, size
            if path in self._files and size >= self._files[path].max_bytes:
                self._expect(path, size)
        if error is not None:
            self._report(error)

    def _report(self, error: OSError) -> None:
        if not self._is_reported:
            self._is_reported = True
            log.warning("log files are checked every five seconds only, not as they grow: %s", error.strerror)


def _limited(written: list[tuple[LogFile | None, float, int]], now: float) -> list[LogFile]:
    """The files, with a limit of their present size where they have grown fast.

    With each file come the time when it was written to, and its size before.
    """
    files: list[LogFile] = []
    for file, since, before in written:
        if file is not None:
            size = _size(file.path)
            is_fast = size - before >= max(_FAST_FRACTION * file.max_bytes, _FAST_BYTES_PER_SECOND * (now - since))
            is_early = is_fast and size >= _EARLY_FRACTION * file.max_bytes
            files.append(evolve(file, max_bytes=min(size, file.max_bytes)) if is_early else file)
    return files


def _size(path: str) -> int:
    try:
        return os.lstat(path).st_size
    except OSError:
        return 0


def open_inotify() -> int:
    """A new inotify descriptor. Raises `OSError`."""
    descriptor = int(ctypes.CDLL(None, use_errno=True).inotify_init1(os.O_CLOEXEC | os.O_NONBLOCK))
    if descriptor < 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    return descriptor


def read_inotify(inotify: int) -> list[int]:
    """The watch descriptors of the events that have come."""
    try:
        events = os.read(inotify, _MAX_READ_BYTES)
    except BlockingIOError:
        return []
    return [descriptor for descriptor, _, _, _ in _EVENT.iter_unpack(events)]


def watch_files(inotify: int, paths: Iterable[str]) -> tuple[list[tuple[str, int, int]], OSError | None]:
    """Path, watch descriptor and size of those that are regular files, and the last error.

    The size is read when the watch has begun, so that no growth is missed.
    """
    add_watch = ctypes.CDLL(None, use_errno=True).inotify_add_watch
    watched: list[tuple[str, int, int]] = []
    problem: OSError | None = None
    for path in paths:
        try:
            if not stat.S_ISREG(os.lstat(path).st_mode):
                continue
            descriptor = add_watch(inotify, os.fsencode(path), ctypes.c_uint32(_WATCH_MASK))
            if descriptor < 0:
                raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
            watched.append((path, int(descriptor), os.lstat(path).st_size))
        except (FileNotFoundError, NotADirectoryError):
            continue
        except OSError as error:
            problem = error
    return watched, problem
