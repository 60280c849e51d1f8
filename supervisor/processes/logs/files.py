"""Log files of processes: the child writes them itself; the server rotates them by size, reads and follows them.

Rotation copies the file and then truncates it, because the child holds it open: a line that is written between the two
may be lost.
"""

from __future__ import annotations

import asyncio
import errno
import logging
import os
import secrets
import stat
from collections import defaultdict
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence
from concurrent.futures import Executor
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import TypeVar

from supervisor.clock import Clock
from supervisor.processes.logs.access import LogFile as LogFile
from supervisor.processes.logs.access import log_place, opened, readable
from supervisor.processes.logs.places import Contents, Cursor, Position
from supervisor.processes.logs.rotation import DONE, Rotated, Rotation, empty, rotate
from supervisor.processes.logs.threads import LogThreads
from supervisor.processes.notices import Notices

log = logging.getLogger("logs")

_Result = TypeVar("_Result")

_FOLLOW_POLL_SECONDS = 0.25
_BLOCK_BYTES = 64 * 1024
_MAX_READ_BYTES = 1024 * 1024
MAX_TAIL_BYTES = 16 * _MAX_READ_BYTES
_OUT_OF_RESOURCES = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOMEM})
_UNANSWERED = _OUT_OF_RESOURCES | {errno.ETIMEDOUT}
_NOTICE_INTERVAL_SECONDS = 3600.0
_ROTATION_SECONDS = 30.0


def tail(path: Path, lines: int, max_bytes: int = MAX_TAIL_BYTES) -> tuple[bytes, int]:
    """The last `lines` lines of a file, at most `max_bytes`, and where they end; empty where there is no file.

    Raises `OSError` where it cannot be opened or read.
    """
    blocks: list[bytes] = []
    found = 0
    try:
        with opened(path) as file:
            end = at = file.seek(0, os.SEEK_END)
            while at > 0 and end - at < max_bytes and found <= lines:
                block = min(_BLOCK_BYTES, at)
                at = file.seek(at - block)
                blocks.append(file.read(block))
                found += blocks[-1].count(b"\n")
    except (FileNotFoundError, NotADirectoryError):
        return b"", 0
    return last_lines(b"".join(reversed(blocks)), lines), end


def last_lines(text: bytes, lines: int, is_whole: bool = True) -> bytes:
    """The last lines of a text; the whole text where it has no more.

    Unless the text `is_whole`, it begins with the rest of a line, which is left out where other lines follow.
    """
    if not is_whole:
        text = text[text.find(b"\n", 0, -1) + 1 :]
    start = len(text) - text.endswith(b"\n")
    for _ in range(lines):
        if (start := text.rfind(b"\n", 0, start)) < 0:
            break
    return text[start + 1 :]


def log_sizes(files: Iterable[LogFile]) -> dict[str, int]:
    """The sizes of those that are regular files or do not exist yet, by path."""
    sizes: dict[str, int] = {}
    for file in files:
        try:
            with log_place(file.path) as place:
                facts = place.stat()
        except OSError:
            sizes[file.path] = 0
        else:
            if stat.S_ISREG(facts.st_mode):
                sizes[file.path] = facts.st_size
    return sizes


def backup(path: Path, number: int) -> Path:
    """The file that holds what was rotated away `number` rotations ago: `web.log.1` is the youngest."""
    return path.with_name(f"{path.name}.{number}")


class LogFiles:
    """Rotates log files; followers continue in the backups.

    What reads a file raises `OSError` where its file system does not answer.
    """

    def __init__(
        self, files: Callable[[], Iterable[LogFile]], clock: Clock | None = None, notices: Notices | None = None
    ) -> None:
        """`files` returns the log files of all processes; without `notices`, none is posted."""
        self._files = files
        self._notices = notices
        self._clock = clock or Clock()
        self._contents: defaultdict[str, Contents] = defaultdict(Contents)
        self._posted_at: dict[str, float] = {}
        self.threads = LogThreads()
        self._is_rotating = False
        self._rotation_lock = asyncio.Lock()  # no file is rotated while a follower reads from it
        self.on_rotation: Callable[[], Callable[[Iterable[str]], None]] = lambda: lambda paths: None
        """Called before a rotation; what it returns is called with the paths of the rotated files."""
        self.run_id = secrets.token_hex(4)
        """With the number of rotations it identifies the present content of a file."""

    def rotations(self, path: str) -> int:
        """How often a file was rotated or emptied in this run of the server."""
        return self._contents[path].number

    async def settled_rotations(self, path: str) -> int:
        """As `rotations`, after a rotation that is under way."""
        async with self._without_rotation():
            return self.rotations(path)

    @asynccontextmanager
    async def _without_rotation(self) -> AsyncIterator[None]:
        """No file is rotated meanwhile. Raises `OSError` where a rotation that is under way hangs."""
        try:
            async with asyncio.timeout(_ROTATION_SECONDS):
                await self._rotation_lock.acquire()
        except TimeoutError:
            raise OSError(errno.ETIMEDOUT, "a log file is being rotated, whose file system does not answer") from None
        try:
            yield
        finally:
            self._rotation_lock.release()

    def _contents_of(self, file: LogFile) -> Contents:
        contents = self._contents[file.path]
        if contents.backups is None:
            contents.allow(file.backups)
        return contents

    def _backup(self, path: str, rotations: int) -> Path | None:
        """The file that has the content after so many rotations; `None` where it is gone."""
        number = self._contents[path].backup_of(rotations)
        return None if number is None else backup(Path(path), number) if number else Path(path)

    async def rotate(self) -> list[Rotated]:
        """Rotates all files that are larger than their limit and answer; returns what was done to each."""
        files = {file.path: file for file in self._files() if file.max_bytes}
        sizes = await self.threads.run_each(files, size_of)  # what hangs under the lock holds all followers
        if not sizes:
            return []

        def rotated(path: str) -> Rotated:
            file = files[path]
            return Rotated(file, Rotation.NONE) if 0 < sizes[path] < file.max_bytes else rotate(file)

        return await self.rotate_in(self.threads.executor, lambda: [rotated(path) for path in sizes])

    async def rotate_in(self, executor: Executor, work: Callable[[], list[Rotated]]) -> list[Rotated]:
        """Runs work that rotates files in a thread; returns what it returns. Followers wait meanwhile."""
        async with self._rotation_lock:
            on_rotated = self.on_rotation()
            self._is_rotating = True
            try:
                results = await asyncio.get_running_loop().run_in_executor(executor, work)
            finally:
                self._is_rotating = False
            for each in results:
                contents = self._contents[each.file.path]
                contents.allow(each.file.backups)
                if each.result in DONE:
                    contents.rotate(each.removed, each.result is Rotation.ROTATED and each.file.backups > 0)
            on_rotated([each.file.path for each in results if each.result in DONE])
        for each in results:
            if each.result is Rotation.TRUNCATED:
                self._post_truncated(each.file)
        return results

    async def clear(self, paths: Sequence[str]) -> list[str]:
        """Empties files, with the marks in them; followers go on at their new beginning. Returns why it could not.

        Raises `OSError` where a rotation that is under way hangs.
        """
        async with self._without_rotation():
            forget = self.on_rotation()
            problems = await self.threads.run_each(paths, empty)
            emptied = [path for path, problem in problems.items() if not problem]
            for path in emptied:
                self._contents[path].empty()
            forget(emptied)
        hangs = "cannot be emptied: the file system does not answer"
        return [problems.get(path, f"{path} {hangs}") for path in paths if path not in emptied]

    def _post_truncated(self, file: LogFile) -> None:
        """Once an hour for each file."""
        now = self._clock.since_boot()
        last = self._posted_at.get(file.path, -_NOTICE_INTERVAL_SECONDS)
        if self._notices is not None and now - last >= _NOTICE_INTERVAL_SECONDS:
            self._posted_at[file.path] = now
            message = f"{file.path} was truncated without a backup: the disk is full"
            self._notices.post("log.truncated", file.process, message, path=file.path)

    async def follow(
        self, path: str, lines: int, cut: Callable[[bytes, int], bytes] | None = None
    ) -> AsyncIterator[bytes]:
        """The last `lines` lines, then what is added, in pieces that end with a line wherever one does.

        `cut` gets these lines and where in the file they end, in a thread, and returns those to send.
        Polls four times a second, also where no descriptor is free. What was rotated meanwhile is read from the
        backups.
        """
        while (begun := await unless_out_of_resources(self.begin(path, lines))) is None:
            await asyncio.sleep(_FOLLOW_POLL_SECONDS)
        text, place = begun
        whole, rest = _whole_lines(text)
        yield whole if cut is None else await asyncio.to_thread(cut, whole, place.at - len(rest))
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
        async with self._without_rotation():
            text, end = await self.threads.run(path, lambda: tail(Path(path), lines, max_bytes))
            contents = self._contents[path]
            return text, Position(contents.number, end, contents.start + end)

    async def begin_at(self, path: str, offset: int) -> Position:
        """The start of the line at `offset` of a file, or its end where it is shorter."""
        async with self._without_rotation():
            start = await self.threads.run(path, lambda: _line_start(Path(path), offset))
            return Position(self.rotations(path), start)

    async def between(self, path: str, rotation: int, start: int, end: int) -> bytes:
        """A part of a file, which may have been rotated since; empty where that was deleted."""
        async with self._without_rotation():
            file = self._backup(path, rotation)
            text = b"" if file is None else await self.threads.run(path, lambda: _read(file, start))
            return text[: max(0, end - start)]

    async def open(self, path: str, place: Position) -> int:
        """A descriptor of the file that a place is in. Raises `OSError`, `FileNotFoundError` where it is gone."""
        async with self._without_rotation():
            file = self._backup(path, place.rotations)
            if file is None:
                raise FileNotFoundError
            return await self.threads.run(path, lambda: readable(str(file)), os.close)

    async def count_lines(self, path: str, rotation: int, start: int, end: int) -> int:
        """How many lines end in a part of a file."""
        lines = 0
        while text := await self.between(path, rotation, start, end):
            lines, start = lines + text.count(b"\n"), start + len(text)
        return lines

    async def remaining(self, path: str, place: Position) -> int:
        """How many bytes follow a place, those in backups included."""
        async with self._without_rotation():
            contents, passed = self._contents[path], place.at
            if (missed := contents.backup_of(place.rotations)) is None:
                missed, passed = contents.backup_of(contents.next_to(place.rotations)) or 0, 0
            files = [backup(Path(path), number) for number in range(missed, 0, -1)] + [Path(path)]
            return await self.threads.run(path, lambda: sum(_size(file) for file in files)) - passed

    async def content(self, file: LogFile, with_backups: bool) -> AsyncIterator[bytes]:
        """A whole file as it is now, its backups before it, in pieces. A rotation meanwhile changes nothing."""
        async with self._without_rotation():
            backups = await self._backups_of(file) if with_backups else []
            end = await self._size_of(file.path)
            rotations = self.rotations(file.path)
            place = Position(self._contents_of(file).oldest(sum(1 for inode, _ in backups if inode)), 0)
        while place.rotations < rotations or (place.rotations == rotations and place.at < end):
            piece = await self.read_on(file.path, place)
            is_last = place.rotations >= rotations and (place.rotations > rotations or place.at >= end)
            surplus = place.at - (end if place.rotations == rotations else 0) if is_last else 0
            if piece[: len(piece) - surplus]:
                yield piece[: len(piece) - surplus]
            if not piece:
                return

    async def resume(self, file: LogFile, stored: tuple[int, int] | None) -> Position:
        """Where to go on reading a file: at a place as `mark` returned it, or without one at its present end."""
        contents = self._contents_of(file)
        while True:
            number = await self.settled_rotations(file.path)
            end, backups = await self.threads.run(file.path, lambda: (size_of(file.path), _backups(file)))
            if number == contents.number and not self._is_rotating:  # no lock: one that hangs would hold up the others
                if stored is not None:
                    return self._resumed(file, stored, backups)
                return Position(number, end, contents.start + end)

    async def _size_of(self, path: str) -> int:
        return await self.threads.run(path, lambda: size_of(path))

    async def _backups_of(self, file: LogFile) -> list[tuple[int, int]]:
        return await self.threads.run(file.path, lambda: _backups(file))

    def _resumed(self, file: LogFile, stored: tuple[int, int], backups: Sequence[tuple[int, int]]) -> Position:
        contents = self._contents_of(file)
        if not contents.number:
            contents.measure([size for _, size in backups])
        place = Position(contents.of_former_run(_rotations_since(backups, stored[1])), stored[0])
        start = contents.start_of(place.rotations)
        place.total = None if start is None else start + place.at
        return place

    async def place_of(self, file: LogFile, cursor: Cursor) -> Position:
        """The place that a cursor names."""
        if cursor.run_id != self.run_id:
            async with self._without_rotation():
                backups = await self._backups_of(file)
                return self._resumed(file, (cursor.offset, cursor.inode), backups)
        return Position(min(cursor.rotation, self._contents_of(file).number), cursor.offset)

    async def mark(self, path: str, place: Position, offset: int) -> tuple[int, int]:
        """What finds `offset` of the place again after a restart: with it the inode of the backup before it."""
        async with self._without_rotation():
            contents, rotations = self._contents[path], place.rotations
            if (number := contents.backup_of(rotations)) is None:
                if contents.is_rotated_away(rotations):
                    return offset, 0
                number, offset = contents.backup_of(contents.next_to(rotations)) or 0, 0
            newer = backup(Path(path), number + 1)
            return offset, await self.threads.run(path, lambda: _inode(newer))

    async def read_on(self, path: str, place: Position) -> bytes:
        """What was added since that place, a piece of it; the place moves on."""
        added = b""
        async with self._without_rotation():
            contents = self._contents[path]
            while place.rotations < contents.number:
                file = self._backup(path, place.rotations)
                if file is not None and (added := await self.threads.run(path, partial(_read, file, place.at))):
                    break
                _begin_next(contents, place)
            else:
                added, is_emptied = await self.threads.run(path, partial(_read_added, Path(path), place.at))
                if is_emptied:
                    place.at, place.total = 0, contents.start
            place.at += len(added)
            place.total = None if place.total is None else place.total + len(added)
            return added


def _begin_next(contents: Contents, place: Position) -> None:
    """Moves on to the beginning of the next content, and counts what is passed over."""
    place.rotations, place.at = contents.next_to(place.rotations), 0
    start = contents.start_of(place.rotations)
    if start is not None:
        place.lost += 0 if place.total is None else max(0, start - place.total)
        place.total = start


def _line_start(path: Path, offset: int) -> int:
    size = _size(path)
    if offset >= size:
        return size
    before = max(0, offset - _BLOCK_BYTES)
    text = _read(path, before)[: offset - before]
    return before + text.rfind(b"\n") + 1


def _inode(path: Path) -> int:
    """0 where there is no file."""
    facts = _facts(path)
    return 0 if facts is None else facts.st_ino


def _backups(file: LogFile) -> list[tuple[int, int]]:
    """The inode and the size of each backup that a file may have, the newest first; zeros where there is none."""
    found = [_facts(backup(Path(file.path), number)) for number in range(1, file.backups + 1)]
    return [(0, 0) if facts is None else (facts.st_ino, facts.st_size) for facts in found]


def _rotations_since(backups: Sequence[tuple[int, int]], inode: int) -> int:
    """How often a file with these backups was rotated since the newest (0: there was none) had that inode."""
    numbers = (number for number, (found, _) in enumerate(backups) if found == inode)
    return next(numbers, len(backups) + 1) if backups else 0


def _facts(path: Path) -> os.stat_result | None:
    """Those of a log file or a backup that is a regular file; else `None`."""
    try:
        with log_place(path) as place:
            facts = place.stat()
    except OSError:
        return None
    return facts if stat.S_ISREG(facts.st_mode) else None


def _size(path: Path) -> int:
    facts = _facts(path)
    return 0 if facts is None else facts.st_size


def size_of(path: str) -> int:
    """The size of a log file; 0 where there is none."""
    return _size(Path(path))


def _read(path: Path, at: int) -> bytes:
    try:
        with opened(path) as file:
            file.seek(at)
            return file.read(_MAX_READ_BYTES)
    except OSError as error:
        if error.errno in _UNANSWERED:
            raise  # the text is there: it must not be passed over
        return b""


def _read_added(path: Path, at: int) -> tuple[bytes, bool]:
    """A piece of what follows an offset, and whether the file is shorter: it was emptied and is read from 0.

    Raises `OSError` where no descriptor is free or the file system does not answer.
    """
    try:
        with log_place(path) as place:
            facts = place.stat()
        size = facts.st_size if stat.S_ISREG(facts.st_mode) else 0
    except OSError as error:
        if error.errno in _UNANSWERED:
            raise  # else it would be read from its beginning again
        size = 0
    is_emptied = size < at
    return _read(path, 0 if is_emptied else at) if is_emptied or size > at else b"", is_emptied


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
