"""Rotates log files as they grow: one inotify descriptor reports the first write to each, which makes a check due.

A watch reports once, so an idle log causes no wakeup, and a busy one only as many as size checks. A check is due
when the file can have grown to its limit, at the highest rate for which twice the limit is promised. A file that grows
fast is rotated from half its limit on, because it goes on growing while it is copied, and where its limit is so small
that the loop would be too slow, a thread checks it again until it grows slowly.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import errno
import logging
import os
import struct
import threading
import time
from collections.abc import Iterable
from queue import Empty, SimpleQueue

from attrs import define, evolve

from supervisor.processes.logs.access import LogFile, readable
from supervisor.processes.logs.files import LogFiles, size_of
from supervisor.processes.logs.rotation import DONE, Rotated, Rotation, rotate
from supervisor.scheduling import DaemonThreads

log = logging.getLogger("logs")

_MAX_BYTES_PER_SECOND = 100 * 1024 * 1024
_FAST_BYTES_PER_SECOND = _MAX_BYTES_PER_SECOND / 4
_MIN_CHECK_SECONDS, _MIN_FIRST_CHECK_SECONDS, _MIN_FAST_CHECK_SECONDS = 0.01, 0.002, 0.001
_IDLE_SECONDS, _SLOW_SECONDS, _MAX_ROTATOR_SECONDS = 0.1, 0.05, 0.1
_CHECK_FRACTION, _FAST_FRACTION, _EARLY_FRACTION = 0.1, 0.125, 0.5  # of the limit
_MODIFIED, _ATTRIBUTES, _MOVED, _ONCE = 0x2, 0x4, 0x800, 0x80000000
_IGNORED = 0x8000  # a watch was removed, which follows the event of a watch that reports once
_WATCH_MASK = _MODIFIED | _ATTRIBUTES | _MOVED | _ONCE  # attributes change when a file is deleted
_EVENT = struct.Struct("iIII")
_MAX_READ_BYTES = 64 * 1024


class LogGrowth:
    """Watches the log files that exist, and those of a process from its spawn on."""

    def __init__(self, logs: LogFiles) -> None:
        self._logs = logs
        self._files: dict[str, LogFile] = {}
        self._new: set[str] = set()
        self._paths: dict[int, str] = {}  # by watch descriptor
        self._early: set[int] = set()  # watch descriptors whose event was read before their path was known
        self._sizes: dict[str, int] = {}  # of the watched paths, when the watch began
        self._due: dict[str, float] = {}
        self._written: dict[str, tuple[float, int]] = {}  # when the write was reported, and the size before
        self._checked: dict[str, float] = {}  # when a check ended
        self._rotator = _Rotator()
        self._executor: DaemonThreads | None = None
        self._rotation: asyncio.Task[None] | None = None
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
        self.add(each.file for each in results if each.result not in (Rotation.MISSING, Rotation.FAILED))

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
            if self._rotation is not None:
                self._rotation.cancel()
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
            path = self._paths.pop(descriptor, None)
            if path is None:
                self._early.add(descriptor)
            elif (size := self._sizes.pop(path, None)) is not None:  # else a check is due already
                self._expect(path, size)

    def _expect(self, path: str, size: int) -> None:
        """Makes a check due when a file of this size can have grown to its limit, or to half of it."""
        if (file := self._files.get(path)) is not None:
            early = _EARLY_FRACTION * file.max_bytes
            room = max((early if size < early else file.max_bytes) - size, _CHECK_FRACTION * file.max_bytes)
            now = asyncio.get_running_loop().time()
            was_idle = now - self._checked.get(path, 0.0) > _IDLE_SECONDS
            least = _MIN_FIRST_CHECK_SECONDS if was_idle else _MIN_CHECK_SECONDS
            due = now + max(room / _MAX_BYTES_PER_SECOND, least)
            self._due[path] = min(due, self._due.get(path, due))
            self._written.setdefault(path, (now, size))

    async def _check(self, inotify: int) -> None:
        """Has the files whose check is due rotated, and watches the new ones."""
        now = asyncio.get_running_loop().time()
        due = [path for path, at in self._due.items() if at <= now]
        answering = await self._logs.threads.run_each(due, size_of)  # what hangs in the rotator holds all others
        for path in due:
            del self._due[path]
            since, size = self._written.pop(path)
            if path in answering and (file := self._files.get(path)) is not None:
                self._rotator.put(_Growth(file, since, size))
        if self._rotation is None and self._rotator.has_new:
            self._rotation = asyncio.get_running_loop().create_task(self._rotate(inotify))
        paths, self._new = self._new, set()
        await self._begin_watches(inotify, paths)

    async def _rotate(self, inotify: int) -> None:
        """Runs the rotator once, which takes the files that are due meanwhile, too."""
        try:
            self._executor = self._executor or DaemonThreads(1, "rotate", _raise_priority)
            failed = {
                each.file.path
                for each in await self._logs.rotate_in(self._executor, self._rotator.run)
                if each.result is Rotation.FAILED
            }
            growing, ended = self._rotator.take()
            for growth in growing:
                self._due[growth.file.path] = growth.next_at
                self._written[growth.file.path] = growth.at, growth.size
            now = asyncio.get_running_loop().time()
            self._checked.update((growth.file.path, now) for growth in ended)
            await self._begin_watches(inotify, {growth.file.path for growth in ended} - failed)
        finally:
            self._rotation = None
            self._wake()

    async def _begin_watches(self, inotify: int, paths: set[str]) -> None:
        if paths:
            answers = await self._logs.threads.run_each(paths, lambda path: watch_files(inotify, [path]))
            for watched, error in answers.values():
                self._on_watched(watched, error)

    def _on_watched(self, watched: list[tuple[str, int, int]], error: OSError | None) -> None:
        for path, descriptor, size in watched:
            self._sizes.pop(self._paths.get(descriptor, ""), None)  # another name of the same file
            if descriptor in self._early:  # a worker began the watch, and the file was written to at once
                self._early.remove(descriptor)
                self._expect(path, size)
                continue
            self._paths[descriptor], self._sizes[path] = path, size
            if path in self._files and size >= self._files[path].max_bytes:
                self._expect(path, size)
        if error is not None:
            self._report(error)

    def _report(self, error: OSError) -> None:
        if not self._is_reported:
            self._is_reported = True
            log.warning("log files are checked every five seconds only, not as they grow: %s", error.strerror)


def _raise_priority() -> None:
    """Lets the present thread come before the writer of the log, where the server may: as root."""
    with contextlib.suppress(OSError):
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), -10)


@define(eq=False)
class _Growth:
    """A file, and its size at some time: before it was written to, when it was rotated, or at a check."""

    file: LogFile
    at: float
    size: int
    is_fast: bool = False
    next_at: float = 0.0
    """When to check it, in seconds of the monotonic clock, as the others."""

    def check(self) -> Rotated | None:
        """Rotates it if need be; returns what was done. Sets whether it grows fast, and when to check it again."""
        now, size, limit = time.monotonic(), size_of(self.file.path), self.file.max_bytes
        elapsed, grown = now - self.at, size - self.size if size >= self.size else size
        has_grown_fast = grown >= _FAST_BYTES_PER_SECOND * elapsed
        if not self.is_fast:
            self.is_fast = has_grown_fast and grown >= _FAST_FRACTION * limit
        elif elapsed >= _SLOW_SECONDS:
            self.is_fast, self.at, self.size = has_grown_fast, now, size
        result = None
        if size >= (_EARLY_FRACTION * limit if self.is_fast else limit):
            result = rotate(evolve(self.file, max_bytes=min(size, limit)))
            self.is_fast = self.is_fast and result.result in DONE
            self.at, self.size, size = time.monotonic(), 0, 0
        room = _EARLY_FRACTION * limit - size
        self.next_at = time.monotonic() + max(room / _MAX_BYTES_PER_SECOND, _MIN_FAST_CHECK_SECONDS)
        return result


class _Rotator:
    """Rotates files in a thread of its own, and goes on with those that grow fast."""

    def __init__(self) -> None:
        self._new: SimpleQueue[_Growth] = SimpleQueue()
        self._growing: list[_Growth] = []
        self._ended: list[_Growth] = []

    @property
    def has_new(self) -> bool:
        return not self._new.empty()

    def put(self, growth: _Growth) -> None:
        """The file is checked by `run`, also if that runs now."""
        self._new.put(growth)

    def take(self) -> tuple[list[_Growth], list[_Growth]]:
        """The files that still grow fast, and the others, since the last call."""
        growing, ended, self._growing, self._ended = self._growing, self._ended, [], []
        return growing, ended

    def run(self) -> list[Rotated]:
        """Returns what was done, after a tenth of a second or when the next check is later than that."""
        results, end = list[Rotated](), time.monotonic() + _MAX_ROTATOR_SECONDS
        while True:
            while self.has_new:
                self._growing.append(self._new.get())
            for growth in [growth for growth in self._growing if growth.next_at <= time.monotonic()]:
                if (result := growth.check()) is not None:
                    results.append(result)
                if not growth.is_fast:
                    self._growing.remove(growth)
                    self._ended.append(growth)
            now, next_at = time.monotonic(), min((growth.next_at for growth in self._growing), default=end)
            if next_at >= end or now >= end:
                return results
            with contextlib.suppress(Empty):
                self._growing.append(self._new.get(timeout=max(0.0, next_at - now)))


def open_inotify() -> int:
    """A new inotify descriptor. Raises `OSError`."""
    descriptor = int(ctypes.CDLL(None, use_errno=True).inotify_init1(os.O_CLOEXEC | os.O_NONBLOCK))
    if descriptor < 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    return descriptor


def read_inotify(inotify: int) -> list[int]:
    """The watch descriptors of the writes that have been reported."""
    try:
        events = os.read(inotify, _MAX_READ_BYTES)
    except BlockingIOError:
        return []
    return [descriptor for descriptor, mask, _, _ in _EVENT.iter_unpack(events) if not mask & _IGNORED]


def watch_files(inotify: int, paths: Iterable[str]) -> tuple[list[tuple[str, int, int]], OSError | None]:
    """Path, watch descriptor and size of those that are regular files, and the last error.

    The size is read when the watch has begun, so that no growth is missed.
    """
    add_watch = ctypes.CDLL(None, use_errno=True).inotify_add_watch
    watched: list[tuple[str, int, int]] = []
    problem: OSError | None = None
    for path in paths:
        try:
            file = readable(path)
            try:  # the file itself is watched, wherever its path leads by now
                descriptor = add_watch(inotify, b"/proc/self/fd/%d" % file, ctypes.c_uint32(_WATCH_MASK))
                if descriptor < 0:
                    raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
                watched.append((path, int(descriptor), os.fstat(file).st_size))
            finally:
                os.close(file)
        except (FileNotFoundError, NotADirectoryError, PermissionError):
            continue
        except OSError as error:
            if error.errno != errno.ELOOP:  # a link
                problem = error
    return watched, problem
