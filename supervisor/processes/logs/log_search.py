"""Reads a log file backwards from a place, and searches it in a worker process."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

from attrs import evolve

from models.errors import Failed, NotFound
from models.json_format import http_message
from models.supervision import log_search
from models.supervision.log_marks import LogMark
from supervisor.processes.logs.files import LogFile, last_lines
from supervisor.processes.logs.follower import MAX_CHUNK_BYTES, Chunk
from supervisor.processes.logs.places import Cursor, Position
from supervisor.processes.logs.process_logs import ProcessLogs
from supervisor.workers.pool import WorkerPool
from supervisor.workers.process import Job

MAX_QUEUED_SEARCHES = 50
_MAX_CPU_SECONDS = 5
_MAX_SECONDS = 30.0
_MAX_LINE_BYTES = 4096
_MAX_TEXT_BYTES = 512 * 1024


@http_message
class LogLine:
    """A line and its offset; its end is cut off where it is longer than 4 KiB."""

    at: int
    text: str


@http_message
class LogFindings:
    """`lines` and `matches` count those of what was searched; `found` are the newest matches, at most 1,000."""

    lines: int
    matches: int
    found: Sequence[LogLine]


class LogSearch:
    """Reads and searches the log files of all processes."""

    def __init__(self, logs: ProcessLogs, pool: WorkerPool) -> None:
        self._logs = logs
        self._pool = pool

    async def before(self, file: LogFile, cursor: Cursor | None, lines: int) -> Chunk:
        """The last lines before a place, at most 256 KiB; its own cursor is that of its beginning.

        Raises `NotFound` where that content has been rotated away, `Failed`.
        """
        is_end = cursor is None
        files = self._logs.files
        with _reported(file):
            cursor = cursor or await self._end(file)
            place = await files.place_of(file, cursor)
            start = max(0, place.at - MAX_CHUNK_BYTES)
            text = await files.between(file.path, place.rotations, start, place.at)
        if len(text) < place.at - start:
            raise _rotated_away()
        text = last_lines(text, lines, is_whole=start == 0)
        start = place.at - len(text)
        after = place.at + 1 if is_end else place.at  # a mark at a cursor belongs to what follows it
        marks = tuple(mark for mark in await self._marks(file, place) if start <= mark.position < after)
        return Chunk(start, place.at, text, marks=marks, cursor=evolve(cursor, offset=start))

    async def search(
        self, file: LogFile, text: str, is_expression: bool, level: int, before: Cursor | None, caller: str
    ) -> LogFindings:
        """Searches a file, or its part before a place. Raises `NotFound`, `Failed`, and as `WorkerPool.run`.

        What a rotation empties meanwhile is searched once more, in its backup.
        """
        files, threads = self._logs.files, self._logs.files.threads
        with _reported(file):
            place = await files.place_of(file, before or await self._end(file))
            while True:
                present = files.rotations(file.path)
                try:
                    descriptor = await files.open(file.path, place)
                except FileNotFoundError:
                    if place.at:
                        raise _rotated_away() from None
                    return LogFindings(0, 0, ())
                try:
                    opened = f"/proc/{os.getpid()}/fd/{descriptor}"  # the worker opens no path that others may change
                    end = min(place.at, (await threads.run(file.path, partial(os.fstat, descriptor))).st_size)
                    answer = await self._pool.run(_job(opened, end, text, is_expression, level), caller)
                    findings = await threads.run(file.path, partial(_findings, descriptor, answer))
                finally:
                    threads.executor.submit(os.close, descriptor)  # it may wait for the file system
                if place.rotations < present or await files.settled_rotations(file.path) == present:
                    return findings

    async def close(self) -> None:
        """Ends the searches; they fail with `Unavailable`."""
        await self._pool.close()

    async def _end(self, file: LogFile) -> Cursor:
        files = self._logs.files
        _, place = await files.begin(file.path, 0, 0)
        _, inode = await files.mark(file.path, place, place.at)
        return Cursor(files.run_id, place.rotations, place.at, inode)

    async def _marks(self, file: LogFile, place: Position) -> list[LogMark]:
        return [mark for mark in await self._logs.marks(file.path) if mark.rotation == place.rotations]


def _rotated_away() -> NotFound:
    return NotFound("this part of the log has been rotated away")


@contextmanager
def _reported(file: LogFile) -> Iterator[None]:
    """A file that cannot be read is `Failed`."""
    try:
        yield
    except OSError as error:
        raise Failed(f"{file.path} cannot be read: {error.strerror}") from None


def _job(path: str, end: int, text: str, is_expression: bool, level: int) -> Job[dict[str, Any]]:
    arguments = {"path": path, "end": end, "text": text, "is_expression": is_expression, "level": level}
    return Job(
        "models.supervision.log_search:search",
        arguments,
        lambda answer: _checked(answer, end),
        _MAX_CPU_SECONDS,
        _MAX_SECONDS,
        0,
        "the lines of the log",
    )


def _checked(answer: Any, end: int) -> dict[str, Any]:
    """Raises `ValueError` for what `search` never returns for a file of `end` bytes."""
    lines, matches, found = answer["lines"], answer["matches"], answer["found"]
    numbers = [lines, matches, *(number for at, length in found for number in (at, length))]
    if not all(type(number) is int and number >= 0 for number in numbers) or len(found) > log_search.MAX_FOUND:
        raise ValueError("numbers")
    if not len(found) <= matches <= lines or not all(at + length <= end for at, length in found):
        raise ValueError("places")
    return {"lines": lines, "matches": matches, "found": [(at, length) for at, length in found]}


def _findings(descriptor: int, answer: dict[str, Any]) -> LogFindings:
    """Reads the newest of the found lines, as far as they fit into 512 KiB."""
    lines, room = list[LogLine](), _MAX_TEXT_BYTES
    for at, length in reversed(answer["found"]):
        text = os.pread(descriptor, min(length, _MAX_LINE_BYTES), at)
        if (room := room - len(text)) < 0:
            break
        lines.append(LogLine(at, text.decode("utf-8", "replace").removesuffix("\n").replace("\r", "")))
    return LogFindings(answer["lines"], answer["matches"], lines[::-1])
