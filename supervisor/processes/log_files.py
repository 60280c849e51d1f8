"""Log files of processes: the child writes them itself; we rotate them by size, read their end, and follow them.

Rotation copies the file and then truncates it, because the child holds it open: a line that is written between the two
may be lost. It is looked for every five seconds, in the worker, so a file may grow beyond its limit for that long.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import logging
import os
import shutil
import stat
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterable
from pathlib import Path
from typing import BinaryIO

from attrs import define, frozen

log = logging.getLogger("logs")

_LOOKS = 0.25
_BLOCK = 64 * 1024
_MOST_AT_ONCE = 1024 * 1024


@frozen
class LogFile:
    path: str
    max_bytes: int
    backups: int


def tail(path: Path, lines: int, most: int = 16 * _MOST_AT_ONCE) -> tuple[bytes, int]:
    """The last `lines` lines of a file, at most `most` bytes, and where they end; empty where there is no file."""
    blocks: list[bytes] = []
    found = 0
    try:
        with _opened(path) as file:
            end = at = file.seek(0, os.SEEK_END)
            while at > 0 and end - at < most and found <= lines:
                block = min(_BLOCK, at)
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
    """A log file to read: a regular file that stands there itself. Raises `FileNotFoundError` for anything else.

    Whoever owns the folder could have put a link to another's file there, or a pipe on which we should wait for ever.
    """
    handle = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    if not stat.S_ISREG(os.fstat(handle).st_mode):
        os.close(handle)
        raise FileNotFoundError(errno.ENOENT, "no regular file", str(path))
    return os.fdopen(handle, "rb")


def backup(path: Path, number: int) -> Path:
    """The file that holds what was rotated away `number` rotations ago: `web.log.1` is the youngest."""
    return path.with_name(f"{path.name}.{number}")


def rotate(file: LogFile) -> bool:
    """Copies a file that is too large to its first backup and truncates it; the other backups move on by one."""
    path = Path(file.path)
    try:
        if not file.max_bytes or path.is_symlink() or not path.is_file() or path.stat().st_size < file.max_bytes:
            return False
        if file.backups:
            _copy(path, backup(path, 0))  # before the others move: a full disk must cost nothing that there is
            for number in range(file.backups - 1, -1, -1):
                if backup(path, number).exists():
                    backup(path, number).replace(backup(path, number + 1))
        os.truncate(path, 0)
    except OSError as error:
        with contextlib.suppress(OSError):
            backup(path, 0).unlink(missing_ok=True)
        log.error("%s cannot be rotated: %s", path, error)
        return False
    return True


def _copy(source: Path, target: Path) -> None:
    """Copies up to the last byte that is there when it is done, so that little can come between that and truncation."""
    target.unlink(missing_ok=True)
    with _opened(source) as reader, target.open("xb") as writer:
        os.fchmod(writer.fileno(), os.fstat(reader.fileno()).st_mode & 0o777)
        shutil.copyfileobj(reader, writer, _MOST_AT_ONCE)


@define
class _Place:
    """How far a follower has read: how many rotations it knows of, and the offset in the file of that time."""

    rotations: int
    at: int


class Logs:
    """Rotates, and lets followers read on in what was rotated away."""

    def __init__(self, files: Callable[[], Iterable[LogFile]]) -> None:
        self._files = files
        self._rotations: Counter[str] = Counter()
        self._backups: dict[str, int] = {}
        self._still = asyncio.Lock()  # no file is rotated while a follower reads from it

    async def rotate(self) -> None:
        """Rotates what has grown too large."""
        files = [file for file in self._files() if file.max_bytes]
        if not files:
            return
        async with self._still:
            done = await asyncio.to_thread(lambda: [file.path for file in files if rotate(file)])
            self._rotations.update(done)
            self._backups.update((file.path, file.backups) for file in files)

    async def follow(self, path: str, lines: int) -> AsyncIterator[bytes]:
        """The last `lines` lines, then what is added, in pieces that end with a line wherever one does.

        Looks four times a second while somebody listens. What was rotated away meanwhile is read from the backups.
        """
        async with self._still:
            text, end = await asyncio.to_thread(tail, Path(path), lines)
            place = _Place(self._rotations[path], end)
        whole, rest = _whole_lines(text)
        yield whole
        while True:
            added = await self._read_on(path, place)
            if not added:
                await asyncio.sleep(_LOOKS)
                continue
            whole, rest = _whole_lines(rest + added)
            if whole:
                yield whole

    async def _read_on(self, path: str, place: _Place) -> bytes:
        async with self._still:
            while (missed := self._rotations[path] - place.rotations) > 0:
                kept = missed <= self._backups[path]
                if kept and (added := await asyncio.to_thread(_read, backup(Path(path), missed), place.at)):
                    place.at += len(added)
                    return added
                place.rotations, place.at = place.rotations + 1, 0
            size = _size(Path(path))
            if size < place.at:  # truncated by somebody else
                place.at = 0
            added = await asyncio.to_thread(_read, Path(path), place.at) if size > place.at else b""
            place.at += len(added)
            return added


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return 0


def _read(path: Path, at: int) -> bytes:
    try:
        with _opened(path) as file:
            file.seek(at)
            return file.read(_MOST_AT_ONCE)
    except OSError:
        return b""


def _whole_lines(text: bytes) -> tuple[bytes, bytes]:
    end = text.rfind(b"\n") + 1
    if end == 0 and len(text) > _BLOCK:
        return text, b""
    return text[:end], text[end:]
