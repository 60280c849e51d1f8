"""Log files of processes: the child writes them itself; the server rotates them by size, reads and follows them.

Rotation copies the file and then truncates it, because the child holds it open: a line that is written between the two
may be lost.
"""

from __future__ import annotations

import asyncio
import contextlib
import enum
import errno
import logging
import os
import secrets
import shutil
import stat
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from concurrent.futures import Executor
from io import FileIO
from pathlib import Path
from typing import BinaryIO, TypeVar

from attrs import define, frozen

from supervisor.clock import Clock
from supervisor.processes.notices import Notices

log = logging.getLogger("logs")

_Result = TypeVar("_Result")

_FOLLOW_POLL_SECONDS = 0.25
_BLOCK_BYTES = 64 * 1024
_MAX_READ_BYTES = 1024 * 1024
_MAX_REST_READS = 16
MAX_TAIL_BYTES = 16 * _MAX_READ_BYTES
_DISK_FULL = frozenset({errno.ENOSPC, errno.EDQUOT})
_OUT_OF_RESOURCES = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOMEM})
_NOTICE_INTERVAL_SECONDS = 3600.0


@frozen
class LogFile:
    path: str
    max_bytes: int
    backups: int
    process: str | None = None


class Rotation(enum.Enum):
    """The outcome of a check of a log file."""

    NONE = "none"
    MISSING = "missing"
    """There is no regular file."""
    FAILED = "failed"
    ROTATED = "rotated"
    TRUNCATED = "truncated"
    """The disk is full: its content is lost."""


DONE = frozenset({Rotation.ROTATED, Rotation.TRUNCATED})


@frozen
class Rotated:
    """The outcome of a check of a log file, with the bytes moved to its backup or lost."""

    file: LogFile
    result: Rotation
    removed: int = 0


def tail(path: Path, lines: int, max_bytes: int = MAX_TAIL_BYTES) -> tuple[bytes, int]:
    """The last `lines` lines of a file, at most `max_bytes`, and where they end; empty where there is no file."""
    blocks: list[bytes] = []
    found = 0
    try:
        with _opened(path) as file:
            end = at = file.seek(0, os.SEEK_END)
            while at > 0 and end - at < max_bytes and found <= lines:
                block = min(_BLOCK_BYTES, at)
                at = file.seek(at - block)
                blocks.append(file.read(block))
                found += blocks[-1].count(b"\n")
    except (FileNotFoundError, NotADirectoryError):
        return b"", 0
    text = b"".join(reversed(blocks))
    start = len(text) - text.endswith(b"\n")
    for _ in range(lines):
        if (start := text.rfind(b"\n", 0, start)) < 0:
            break
    return text[start + 1 :], end


def log_sizes(files: Iterable[LogFile]) -> dict[str, int]:
    """The sizes of those that are regular files or do not exist yet, by path."""
    sizes: dict[str, int] = {}
    for file in files:
        try:
            facts = os.lstat(file.path)
        except OSError:
            sizes[file.path] = 0
        else:
            if stat.S_ISREG(facts.st_mode):
                sizes[file.path] = facts.st_size
    return sizes


def _opened(path: Path) -> BinaryIO:
    """Opens a log file for reading. Raises `OSError` as `_handle`."""
    return os.fdopen(_handle(path, os.O_RDONLY), "rb")


def _writable(path: Path) -> FileIO:
    """Opens a log file or a backup for writing at its end. Raises `OSError` as `_handle`."""
    return FileIO(_handle(path, os.O_WRONLY | os.O_APPEND), "ab")


def _handle(path: Path, flags: int) -> int:
    """Opens a regular file. Raises `OSError` for anything else.

    The owner of the folder could have put a link to another file there, or a pipe on which a read would block.
    """
    handle = os.open(path, flags | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    if not stat.S_ISREG(os.fstat(handle).st_mode):
        os.close(handle)
        raise FileNotFoundError(errno.ENOENT, "no regular file", str(path))
    return handle


def backup(path: Path, number: int) -> Path:
    """The file that holds what was rotated away `number` rotations ago: `web.log.1` is the youngest."""
    return path.with_name(f"{path.name}.{number}")


def rotate(file: LogFile) -> Rotated:
    """Copies a file that is too large to its first backup and truncates it; the other backups move on by one.

    On a full disk the oldest backups are deleted; where that is not enough, the file is truncated without a copy.
    """
    path = Path(file.path)
    try:
        size = _size_of_regular_file(file.path)
        if size is None:
            return Rotated(file, Rotation.MISSING)
        if not file.max_bytes or size < file.max_bytes:
            return Rotated(file, Rotation.NONE)
        is_copied = bool(file.backups) and _copy_to_backup(path, file.backups)
        if is_copied:
            _copy_rest(path, backup(path, 1))
        with _writable(path) as emptied:
            emptied.truncate(0)
    except OSError as error:
        with contextlib.suppress(OSError):
            backup(path, 0).unlink(missing_ok=True)
        log.error("%s cannot be rotated: %s", path, error)
        return Rotated(file, Rotation.FAILED)
    if is_copied:
        return Rotated(file, Rotation.ROTATED, _size(backup(path, 1)))
    return Rotated(file, Rotation.TRUNCATED if file.backups else Rotation.ROTATED, size)


def _size_of_regular_file(path: str) -> int | None:
    """The size of a file by a single system call: all logs are checked every five seconds. Raises `OSError`."""
    try:
        found = os.lstat(path)
    except (FileNotFoundError, NotADirectoryError):
        return None
    return found.st_size if stat.S_ISREG(found.st_mode) else None


def _copy_to_backup(path: Path, backups: int) -> bool:
    """Returns whether the disk has room for the copy, without the oldest backups if need be. Raises `OSError`."""
    while True:
        try:
            _copy(path, backup(path, 0))  # before the others move: a full disk must not lose a backup in vain
        except OSError as error:
            if error.errno not in _DISK_FULL:
                raise
            backup(path, 0).unlink(missing_ok=True)
            oldest = next((old for number in range(backups, 0, -1) if (old := backup(path, number)).exists()), None)
            if oldest is None:
                return False
            oldest.unlink()
        else:
            break
    for number in range(backups - 1, -1, -1):
        if backup(path, number).exists():
            backup(path, number).replace(backup(path, number + 1))
    return True


def _copy(source: Path, target: Path) -> None:
    """Copies to the end of the file, including what is added meanwhile: little can be lost before the truncation."""
    target.unlink(missing_ok=True)
    with _opened(source) as reader, target.open("xb") as writer:
        os.fchmod(writer.fileno(), os.fstat(reader.fileno()).st_mode & 0o777)
        shutil.copyfileobj(reader, writer, _MAX_READ_BYTES)


def _copy_rest(source: Path, target: Path) -> None:
    """Copies what was added while the backups moved on. Where the disk is full, that is lost."""
    with contextlib.suppress(OSError), _opened(source) as reader, _writable(target) as writer:
        at = writer.seek(0, os.SEEK_END)
        for _ in range(_MAX_REST_READS):
            if not (text := os.pread(reader.fileno(), _MAX_READ_BYTES, at)):
                return
            at += writer.write(text)


@define
class Position:
    """How far a follower has read: the number of rotations that it has seen, and the offset in that file."""

    rotations: int
    at: int
    total: int | None = None
    """The same place in bytes of all the file's content, also what was rotated away; `None`: not known."""
    lost: int = 0
    """How many bytes were rotated away for good before they were read."""


class Logs:
    """Rotates log files; followers continue in the backups."""

    def __init__(
        self, files: Callable[[], Iterable[LogFile]], clock: Clock | None = None, notices: Notices | None = None
    ) -> None:
        """`files` returns the log files of all processes; without `notices`, none is posted."""
        self._files = files
        self._notices = notices
        self._clock = clock or Clock()
        self._rotations: Counter[str] = Counter()
        self._removed: Counter[str] = Counter()  # bytes that were rotated away
        self._starts: dict[str, list[int]] = {}  # of these, what was rotated away before each of the last rotations
        self._backups: dict[str, int] = {}
        self._posted_at: dict[str, float] = {}
        self._rotation_lock = asyncio.Lock()  # no file is rotated while a follower reads from it
        self.on_rotation: Callable[[], Callable[[Iterable[str]], None]] = lambda: lambda paths: None
        """Called before a rotation; what it returns is called with the paths of the rotated files."""
        self.run_id = secrets.token_hex(4)
        """With the number of rotations it identifies the present content of a file."""

    def rotations(self, path: str) -> int:
        """How often a file was rotated in this run of the server."""
        return self._rotations[path]

    async def rotate(self, executor: Executor | None = None) -> list[Rotated]:
        """Rotates all files that are larger than their limit; returns what was done to each."""
        if not (files := [file for file in self._files() if file.max_bytes]):
            return []
        return await self.rotate_in(executor, lambda: [rotate(file) for file in files])

    async def rotate_in(self, executor: Executor | None, work: Callable[[], list[Rotated]]) -> list[Rotated]:
        """Runs work that rotates files in a thread; returns what it returns. Followers wait meanwhile."""
        async with self._rotation_lock:
            on_rotated = self.on_rotation()
            results = await asyncio.get_running_loop().run_in_executor(executor, work)
            for each in results:
                self._backups[each.file.path] = each.file.backups
                if each.result in DONE:
                    self._count(each)
            on_rotated([each.file.path for each in results if each.result in DONE])
        for each in results:
            if each.result is Rotation.TRUNCATED:
                self._post_truncated(each.file)
        return results

    def _count(self, rotated: Rotated) -> None:
        path = rotated.file.path
        starts = self._starts.setdefault(path, [])
        starts.append(self._removed[path])
        del starts[: -rotated.file.backups - 1]
        self._removed[path] += rotated.removed
        self._rotations[path] += 1

    def _start(self, path: str, rotations: int) -> int | None:
        """Where the content after so many rotations begins, in bytes of all content; `None` where that is not known."""
        ago, starts = self._rotations[path] - rotations, self._starts.get(path, [])
        if not ago:
            return self._removed[path]
        return starts[-ago] if ago <= len(starts) else None

    def _post_truncated(self, file: LogFile) -> None:
        """Once an hour for each file."""
        now = self._clock.since_boot()
        last = self._posted_at.get(file.path, -_NOTICE_INTERVAL_SECONDS)
        if self._notices is not None and now - last >= _NOTICE_INTERVAL_SECONDS:
            self._posted_at[file.path] = now
            message = f"{file.path} was truncated without a backup: the disk is full"
            self._notices.post("log.truncated", file.process, message, path=file.path)

    async def follow(self, path: str, lines: int) -> AsyncIterator[bytes]:
        """The last `lines` lines, then what is added, in pieces that end with a line wherever one does.

        Polls four times a second, also where no descriptor is free. What was rotated meanwhile is read from the
        backups.
        """
        while (begun := await unless_out_of_resources(self.begin(path, lines))) is None:
            await asyncio.sleep(_FOLLOW_POLL_SECONDS)
        text, place = begun
        whole, rest = _whole_lines(text)
        yield whole
        while True:
            added = await unless_out_of_resources(self.read_on(path, place))
            if not added:
                await asyncio.sleep(_FOLLOW_POLL_SECONDS)
                continue
            whole, rest = _whole_lines(rest + added)
            if whole:
                yield whole

    async def begin(self, path: str, lines: int, max_bytes: int = MAX_TAIL_BYTES) -> tuple[bytes, Position]:
        """The last lines of a file, and where they end."""
        async with self._rotation_lock:
            text, end = await asyncio.to_thread(tail, Path(path), lines, max_bytes)
            return text, Position(self._rotations[path], end, self._removed[path] + end)

    async def begin_at(self, path: str, offset: int) -> Position:
        """The start of the line at `offset` of a file, or its end where it is shorter."""
        async with self._rotation_lock:
            start = await asyncio.to_thread(_line_start, Path(path), offset)
            return Position(self._rotations[path], start)

    async def between(self, path: str, rotation: int, start: int, end: int) -> bytes:
        """A part of a file, which may have been rotated since; empty where that was deleted."""
        async with self._rotation_lock:
            missed = self._rotations[path] - rotation
            file = backup(Path(path), missed) if missed else Path(path)
            return (await asyncio.to_thread(_read, file, start))[: max(0, end - start)]

    async def count_lines(self, path: str, rotation: int, start: int, end: int) -> int:
        """How many lines end in a part of a file."""
        lines = 0
        while text := await self.between(path, rotation, start, end):
            lines, start = lines + text.count(b"\n"), start + len(text)
        return lines

    async def remaining(self, path: str, place: Position) -> int:
        """How many bytes follow a place, those in backups included."""
        async with self._rotation_lock:
            missed = self._rotations[path] - place.rotations
            files = [backup(Path(path), number) for number in range(missed, 0, -1)] + [Path(path)]
            return sum(await asyncio.to_thread(lambda: [_size(file) for file in files])) - place.at

    async def content(self, file: LogFile, with_backups: bool) -> AsyncIterator[bytes]:
        """A whole file as it is now, its backups before it, in pieces. A rotation meanwhile changes nothing."""
        place, rotations = self._oldest(file, with_backups), self._rotations[file.path]
        end = _size(Path(file.path))
        while place.rotations < rotations or (place.rotations == rotations and place.at < end):
            piece = await self.read_on(file.path, place)
            is_last = place.rotations >= rotations and (place.rotations > rotations or place.at >= end)
            surplus = place.at - (end if place.rotations == rotations else 0) if is_last else 0
            if piece[: len(piece) - surplus]:
                yield piece[: len(piece) - surplus]
            if not piece:
                return

    def _oldest(self, file: LogFile, with_backups: bool) -> Position:
        """The beginning of a file, or of its oldest backup."""
        self._backups.setdefault(file.path, file.backups)
        numbers = range(1, file.backups + 1) if with_backups else ()
        kept = sum(1 for number in numbers if _inode(backup(Path(file.path), number)))
        return Position(self._rotations[file.path] - kept, 0)

    def resume(self, file: LogFile, stored: tuple[int, int] | None) -> Position:
        """Where to go on reading a file: at a place as `mark` returned it, or without one at its present end."""
        path = file.path
        self._backups.setdefault(path, file.backups)
        rotations = self._rotations[path]
        if stored is None:
            end = _size(Path(path))
            return Position(rotations, end, self._removed[path] + end)
        if not rotations:
            sizes = [_size(backup(Path(path), number)) for number in range(1, file.backups + 1)]
            self._starts[path] = [-sum(sizes[:number]) for number in range(file.backups, 0, -1)]
        place = Position(rotations - _rotations_since(file, stored[1]), stored[0])
        start = self._start(path, place.rotations)
        place.total = None if start is None else start + place.at
        return place

    async def mark(self, path: str, place: Position, offset: int) -> tuple[int, int]:
        """What finds `offset` of the place again after a restart: with it the inode of the backup before it."""
        async with self._rotation_lock:
            before = backup(Path(path), self._rotations[path] - place.rotations + 1)
            return offset, _inode(before)

    async def read_on(self, path: str, place: Position) -> bytes:
        """What was added since that place, a piece of it; the place moves on."""
        added = b""
        async with self._rotation_lock:
            while (missed := self._rotations[path] - place.rotations) > 0:
                is_kept = missed <= (kept := self._backups[path])
                if is_kept and (added := await asyncio.to_thread(_read, backup(Path(path), missed), place.at)):
                    break
                self._begin_next(path, place, place.rotations + 1 if is_kept else place.rotations + missed - kept)
            else:
                size = _size(Path(path))
                if size < place.at:  # truncated by another program
                    place.at, place.total = 0, self._removed[path]
                if size > place.at:
                    added = await asyncio.to_thread(_read, Path(path), place.at)
            place.at += len(added)
            place.total = None if place.total is None else place.total + len(added)
            return added

    def _begin_next(self, path: str, place: Position, rotations: int) -> None:
        """Moves on to the beginning of what was written after so many rotations, and counts what is passed over."""
        start = self._start(path, rotations)
        if start is not None:
            place.lost += 0 if place.total is None else max(0, start - place.total)
            place.total = start
        place.rotations, place.at = rotations, 0


def _line_start(path: Path, offset: int) -> int:
    size = _size(path)
    if offset >= size:
        return size
    before = max(0, offset - _BLOCK_BYTES)
    text = _read(path, before)[: offset - before]
    return before + text.rfind(b"\n") + 1


def _inode(path: Path) -> int:
    """0 where there is no file."""
    try:
        return path.stat().st_ino
    except OSError:
        return 0


def _rotations_since(file: LogFile, inode: int) -> int:
    """How often a file was rotated since its newest backup (0: there was none) had that inode."""
    numbers = (n for n in range(1, file.backups + 1) if _inode(backup(Path(file.path), n)) == inode)
    return next(numbers, file.backups + 2) - 1 if file.backups else 0


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return 0


def _read(path: Path, at: int) -> bytes:
    try:
        with _opened(path) as file:
            file.seek(at)
            return file.read(_MAX_READ_BYTES)
    except OSError as error:
        if error.errno in _OUT_OF_RESOURCES:
            raise  # the text is there: it must not be passed over
        return b""


async def unless_out_of_resources(read: Awaitable[_Result]) -> _Result | None:
    """The result, or `None` where no descriptor or memory was free: the caller tries again later."""
    try:
        return await read
    except OSError as error:
        if error.errno not in _OUT_OF_RESOURCES:
            raise
        return None


def _whole_lines(text: bytes) -> tuple[bytes, bytes]:
    end = text.rfind(b"\n") + 1
    if end == 0 and len(text) > _BLOCK_BYTES:
        return text, b""
    return text[:end], text[end:]
