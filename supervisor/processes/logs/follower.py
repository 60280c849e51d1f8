"""Follows a log file in chunks with their offsets, and with the starts and exits of its process between the lines.

Nothing is lost or repeated where the file is rotated, nor where a client goes on at the cursor of its last chunk.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from collections.abc import AsyncGenerator

from attrs import define, evolve, field, frozen

from models.supervision.log_marks import LogMark
from supervisor.processes.logs.files import LogFile, last_lines, unless_out_of_resources
from supervisor.processes.logs.places import Cursor, Position
from supervisor.processes.logs.process_logs import ProcessLogs

MAX_CHUNK_BYTES = 256 * 1024
CHUNK_SECONDS = 0.1
_POLL_SECONDS = 0.25
_MAX_BEHIND_BYTES = 4 * 1024 * 1024
"""What is further behind is dropped: the log grows faster than it is sent."""
_MAX_TAIL_BYTES = 2 * 1024 * 1024
_CONTEXT_BYTES = 16 * 1024
_MAX_DROPPED_PIECES = 64


@frozen
class Beginning:
    """Where a reader begins: after a cursor, or at an offset, or else at the last lines."""

    lines: int = 200
    after: Cursor | None = None
    at: int | None = None


@frozen
class Chunk:
    """A part of one file. `text` begins with the `carried` bytes of a line that a rotation has split."""

    first: int
    end: int
    text: bytes = b""
    carried: int = 0
    dropped: int = 0
    """The number of lines left out before it."""
    marks: tuple[LogMark, ...] = ()
    is_beginning: bool = False
    """Whether it is the first for a reader who has just begun."""
    after: Cursor | None = None
    """The cursor that this reader has named, where the chunk goes on there."""
    cursor: Cursor | None = None
    """The place after it."""

    def line_lengths(self) -> list[int]:
        """The bytes that each line has in this file, with its end."""
        first, *rest = [len(line) + 1 for line in self.text.removesuffix(b"\n").split(b"\n")]
        return [first - self.carried, *rest]


@define
class _Segment:
    """What was read of one file and not sent yet."""

    rotation: int
    first: int
    text: bytes = b""
    carried: bytes = b""

    @property
    def end(self) -> int:
        return self.first + len(self.text)


@define
class LogFollower:
    """Follows one log file for one connection, which may have several readers."""

    _logs: ProcessLogs
    _file: LogFile
    _beginning: Beginning
    _place: Position = field(factory=lambda: Position(0, 0))
    _segments: deque[_Segment] = field(factory=deque)
    _marks: list[LogMark] = field(factory=list)
    _readers: list[Beginning] = field(factory=list)
    _woken: asyncio.Event = field(factory=asyncio.Event)
    _dropped: int = 0
    _sent: Cursor | None = None
    """The place after the last chunk."""
    _kept_until: int = 0
    """Nothing before this offset is dropped: a reader has begun there."""

    def add(self, beginning: Beginning) -> None:
        """One more reader: gets what is before the present place in a chunk of its own."""
        self._readers.append(beginning)
        self._woken.set()

    def again(self) -> LogFollower:
        """One that goes on after the last chunk, where the file could not be read."""
        beginning = self._beginning if self._sent is None else Beginning(after=self._sent)
        return LogFollower(self._logs, self._file, beginning, readers=self._readers)

    async def chunks(self) -> AsyncGenerator[Chunk, None]:
        """The first chunk, which may be empty, then at most ten a second.

        Raises `OSError`, and `Problem`, where the file cannot be read.
        """
        leave = self._logs.new_marks.subscribe(self._on_mark)
        loop = asyncio.get_running_loop()
        try:
            chunk: Chunk | None = await self._begin()
            while True:
                until = loop.time() + (CHUNK_SECONDS if chunk is not None else 0)
                if chunk is not None:
                    chunk = await self._with_cursor(chunk)
                    self._sent = chunk.cursor
                    yield chunk
                while self._readers:
                    for repeated in await self._repeated(self._readers[0]):
                        yield repeated
                    self._readers.pop(0)
                await self._wait(until, _POLL_SECONDS if chunk is None else CHUNK_SECONDS)
                await self._read()
                chunk = self._take()
        finally:
            leave()

    async def _wait(self, until: float, seconds: float) -> None:
        """Waits `seconds`, or less where a reader or a mark comes, but until `until` at least."""
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._woken.wait(), seconds)
        self._woken.clear()
        await asyncio.sleep(max(0.0, until - asyncio.get_running_loop().time()))

    def _on_mark(self, mark: LogMark) -> None:
        if mark.path == self._file.path:
            self._marks.append(mark)
            self._woken.set()

    async def _begin(self) -> Chunk:
        files, path, beginning = self._logs.files, self._file.path, self._beginning
        text, after = b"", beginning.after
        if after is not None:
            self._place = await files.place_of(self._file, after)
        elif beginning.at is not None:
            self._place = await files.begin_at(path, max(0, beginning.at - _CONTEXT_BYTES))
            self._kept_until = beginning.at + MAX_CHUNK_BYTES
        else:
            while (begun := await unless_out_of_resources(files.begin(path, beginning.lines, _MAX_TAIL_BYTES))) is None:
                await asyncio.sleep(_POLL_SECONDS)
            text, self._place = begun
        first = self._place.at - len(text)
        self._segments.append(_Segment(self._place.rotations, first, text))
        stored = await self._logs.marks(path)
        known = {mark.id for mark in stored}  # some may have come meanwhile
        marks = (*stored, *(mark for mark in self._marks if mark.id not in known))
        self._marks = [mark for mark in marks if self._is_after(mark, first, after)]
        await self._read()
        chunk = self._take() or Chunk(first, first)
        return evolve(chunk, is_beginning=True, after=after)

    def _is_after(self, mark: LogMark, first: int, after: Cursor | None) -> bool:
        """Whether a mark belongs to what a reader gets. At a cursor it has had the marks already."""
        if mark.rotation != self._segments[0].rotation:
            return mark.rotation > self._segments[0].rotation
        return mark.position > first if after is not None else mark.position >= first

    async def _read(self) -> None:
        """Reads on unless enough is waiting; drops what is too far behind."""
        if sum(len(segment.text) for segment in self._segments) >= MAX_CHUNK_BYTES:
            if await self._logs.files.remaining(self._file.path, self._place) <= _MAX_BEHIND_BYTES:
                return
            if self._place.at < self._kept_until:
                return
            await self._drop()
        await self._read_piece()

    async def _read_piece(self) -> int:
        added = await unless_out_of_resources(self._logs.files.read_on(self._file.path, self._place)) or b""
        last, first = self._segments[-1], self._place.at - len(added)
        if self._place.rotations != last.rotation or first != last.end:
            self._segments.append(last := _Segment(self._place.rotations, first))
        last.text += added
        return len(added)

    async def _drop(self) -> None:
        """Leaves out lines until the rest fits into a chunk, and counts them."""
        for _ in range(_MAX_DROPPED_PIECES):
            added = await self._read_piece()
            for segment in self._segments:
                room = MAX_CHUNK_BYTES if segment is self._segments[-1] else 0
                cut = segment.text.rfind(b"\n", 0, max(0, len(segment.text) - room)) + 1
                self._dropped += segment.text.count(b"\n", 0, cut)
                segment.first, segment.text = segment.first + cut, segment.text[cut:]
                segment.carried = b"" if cut else segment.carried
            if not added:
                return

    def _cut(self, segment: _Segment) -> int:
        """How much of a segment can be sent: whole lines, or up to a start or an exit within a line."""
        limit = max(1, MAX_CHUNK_BYTES - len(segment.carried))
        cut = segment.text.rfind(b"\n", 0, limit) + 1
        if not cut and len(segment.text) >= limit:
            return limit
        end = min(limit, len(segment.text))
        marks = [mark.position - segment.first for mark in self._marks if mark.rotation == segment.rotation]
        return max([cut, *(place for place in marks if cut < place <= end)])

    def _take(self) -> Chunk | None:
        """The next chunk, or `None` where there is nothing new."""
        while len(self._segments) > 1 and not self._cut(self._segments[0]):
            old, new = self._segments.popleft(), self._segments[0]
            new.carried = old.carried + old.text
        segment = self._segments[0]
        cut = self._cut(segment)
        carried = segment.carried if cut else b""
        chunk = Chunk(segment.first, segment.first + cut, carried + segment.text[:cut], len(carried))
        if cut:
            segment.first, segment.text, segment.carried = segment.first + cut, segment.text[cut:], b""
        due = [mark for mark in self._marks if (mark.rotation, mark.position) <= (segment.rotation, chunk.end)]
        self._marks = [mark for mark in self._marks if mark not in due]
        if not cut and not due and not self._dropped:
            return None
        dropped, self._dropped = self._dropped, 0
        return evolve(chunk, dropped=dropped, marks=tuple(due))

    async def _repeated(self, reader: Beginning) -> list[Chunk]:
        """What one more reader lacks up to the present place, as far as one chunk holds it, and what was left out."""
        files, path, segment = self._logs.files, self._file.path, self._segments[0]
        rotation, end, after = segment.rotation, segment.first, reader.after
        is_near = after is not None and (after.run_id, after.rotation) == (files.run_id, rotation)
        if reader.at is not None and reader.at < end:
            start = (await files.begin_at(path, max(0, reader.at - _CONTEXT_BYTES))).at
            text = await files.between(path, rotation, start, min(end, start + MAX_CHUNK_BYTES))
            text = text if start + len(text) == end else text[: text.rfind(b"\n") + 1]
        elif is_near and after is not None and 0 <= end - after.offset <= MAX_CHUNK_BYTES:
            start, text = after.offset, await files.between(path, rotation, after.offset, end)
        else:
            start, after = max(0, end - MAX_CHUNK_BYTES), None
            text = last_lines(await files.between(path, rotation, start, end), reader.lines, is_whole=start == 0)
            start = end - len(text)
        until = start + len(text)
        marks = [mark for mark in await self._logs.marks(path) if mark.rotation == rotation]
        shown = tuple(mark for mark in marks if start <= mark.position <= until and mark not in self._marks)
        chunk = await self._with_cursor(Chunk(start, until, text, marks=shown, is_beginning=True, after=after), until)
        if until == end:
            return [chunk]
        dropped = await files.count_lines(path, rotation, until, end)
        rest = Chunk(end, end, dropped=dropped, is_beginning=True, after=chunk.cursor)
        return [chunk, await self._with_cursor(rest, end)]

    async def _with_cursor(self, chunk: Chunk, offset: int | None = None) -> Chunk:
        segment, files = self._segments[0], self._logs.files
        offset = segment.first if offset is None else offset
        offset, inode = await files.mark(self._file.path, Position(segment.rotation, offset), offset)
        return evolve(chunk, cursor=Cursor(files.run_id, segment.rotation, offset, inode))
