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
import shutil
import stat
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
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
    """What was done to a log file."""

    NONE = "none"
    MISSING = "missing"
    """There is no regular file."""
    FAILED = "failed"
    ROTATED = "rotated"
    TRUNCATED = "truncated"
    """The disk is full: its content is lost."""


def tail(path: Path, lines: int, max_bytes: int = 16 * _MAX_READ_BYTES) -> tuple[bytes, int]:
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


def _opened(path: Path) -> BinaryIO:
    """Opens a log file for reading. Raises `FileNotFoundError` for anything but a regular file.

    The owner of the folder could have put a link to another file there, or a pipe on which a read would block.
    """
    handle = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    if not stat.S_ISREG(os.fstat(handle).st_mode):
        os.close(handle)
        raise FileNotFoundError(errno.ENOENT, "no regular file", str(path))
    return os.fdopen(handle, "rb")


def backup(path: Path, number: int) -> Path:
    """The file that holds what was rotated away `number` rotations ago: `web.log.1` is the youngest."""
    return path.with_name(f"{path.name}.{number}")


def rotate(file: LogFile) -> Rotation:
    """Copies a file that is too large to its first backup and truncates it; the other backups move on by one.

    On a full disk the oldest backups are deleted; where that is not enough, the file is truncated without a copy.
    """
    path = Path(file.path)
    try:
        if path.is_symlink() or not path.is_file():
            return Rotation.MISSING
        if not file.max_bytes or path.stat().st_size < file.max_bytes:
            return Rotation.NONE
        is_copied = bool(file.backups) and _copy_to_backup(path, file.backups)
        os.truncate(path, 0)
    except OSError as error:
        with contextlib.suppress(OSError):
            backup(path, 0).unlink(missing_ok=True)
        log.error("%s cannot be rotated: %s", path, error)
        return Rotation.FAILED
    return Rotation.ROTATED if is_copied or not file.backups else Rotation.TRUNCATED


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


@define
class Position:
    """How far a follower has read: the number of rotations that it has seen, and the offset in that file."""

    rotations: int
    at: int
    lost: int = 0
    """How many rotations have passed over content that was not read."""


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
        self._backups: dict[str, int] = {}
        self._posted_at: dict[str, float] = {}
        self._rotation_lock = asyncio.Lock()  # no file is rotated while a follower reads from it

    async def rotate(self, files: Iterable[LogFile] | None = None) -> list[tuple[LogFile, Rotation]]:
        """Rotates those of `files`, or of all, that are larger than their limit; returns what was done to each."""
        files = [file for file in (self._files() if files is None else files) if file.max_bytes]
        if not files:
            return []
        async with self._rotation_lock:
            results = await asyncio.to_thread(lambda: [(file, rotate(file)) for file in files])
            done = (Rotation.ROTATED, Rotation.TRUNCATED)
            self._rotations.update(file.path for file, result in results if result in done)
            self._backups.update((file.path, file.backups) for file in files)
        for file, result in results:
            if result is Rotation.TRUNCATED:
                self._post_truncated(file)
        return results

    def _post_truncated(self, file: LogFile) -> None:
        """Once an hour for each file."""
        now = self._clock.since_boot()
        last = self._posted_at.get(file.path, -_NOTICE_INTERVAL_SECONDS)
        if self._notices is not None and now - last >= _NOTICE_INTERVAL_SECONDS:
            self._posted_at[file.path] = now
            message = f"{file.path} was truncated without a backup: the disk is full"
            self._notices.post("log.truncated", file.process, message, path=file.path)

    async def follow(self, path: str, lines: int) -> AsyncIterator[bytes]:
        """As `follow_offsets`, without the offsets."""
        async for _, text in self.follow_offsets(path, lines):
            yield text

    async def follow_offsets(self, path: str, lines: int) -> AsyncIterator[tuple[int, bytes]]:
        """The last `lines` lines, then what is added, in pieces that end with a line wherever one does.

        Polls four times a second, also where no descriptor is free. What was rotated meanwhile is read from the
        backups.
        """
        while (begun := await _unless_out_of_resources(self._begin(path, lines))) is None:
            await asyncio.sleep(_FOLLOW_POLL_SECONDS)
        text, place = begun
        whole, rest = _whole_lines(text)
        yield place.at - len(rest), whole
        while True:
            added = await _unless_out_of_resources(self.read_on(path, place))
            if not added:
                await asyncio.sleep(_FOLLOW_POLL_SECONDS)
                continue
            whole, rest = _whole_lines(rest + added)
            if whole:
                yield place.at - len(rest), whole

    async def _begin(self, path: str, lines: int) -> tuple[bytes, Position]:
        async with self._rotation_lock:
            text, end = await asyncio.to_thread(tail, Path(path), lines)
            return text, Position(self._rotations[path], end)

    def resume(self, file: LogFile, stored: tuple[int, int] | None) -> Position:
        """Where to go on reading a file: at a place as `mark` returned it, or without one at its present end."""
        self._backups.setdefault(file.path, file.backups)
        rotations = self._rotations[file.path]
        if stored is None:
            return Position(rotations, _size(Path(file.path)))
        return Position(rotations - _rotations_since(file, stored[1]), stored[0])

    async def mark(self, path: str, place: Position, offset: int) -> tuple[int, int]:
        """What finds `offset` of the place again after a restart: with it the inode of the backup before it."""
        async with self._rotation_lock:
            before = backup(Path(path), self._rotations[path] - place.rotations + 1)
            return offset, _inode(before)

    async def read_on(self, path: str, place: Position) -> bytes:
        """What was added since that place, a piece of it; the place moves on."""
        async with self._rotation_lock:
            while (missed := self._rotations[path] - place.rotations) > 0:
                kept = missed <= self._backups[path]
                if kept and (added := await asyncio.to_thread(_read, backup(Path(path), missed), place.at)):
                    place.at += len(added)
                    return added
                place.lost += not kept and missed > 1  # two rotations without a read: there was something between
                place.rotations, place.at = place.rotations + 1, 0
            size = _size(Path(path))
            if size < place.at:  # truncated by another program
                place.at = 0
            added = await asyncio.to_thread(_read, Path(path), place.at) if size > place.at else b""
            place.at += len(added)
            return added


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


async def _unless_out_of_resources(read: Awaitable[_Result]) -> _Result | None:
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
