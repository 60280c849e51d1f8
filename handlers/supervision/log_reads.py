"""A log file before a place, and a search in it: what the log viewer does not have in memory."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any, Literal

from attrs import evolve, field

from handlers.base import Base
from handlers.http.permissions import READ_LOGS
from handlers.http.serializers import LEFT_OUT, Int32, instant
from handlers.operations import Operation, OperationHandler, operation_routes
from handlers.routing import Route
from handlers.supervision.streams import log_file
from models.errors import Invalid
from models.inputs import FLAG, NAME, InputKind, choice, free_text, path, query, whole
from models.json_format import Instant, http_message
from models.supervision.log_marks import LogMark
from supervisor.processes.logs.follower import Chunk
from supervisor.processes.logs.log_search import LogFindings
from supervisor.processes.logs.places import Cursor, read_cursor

_LEVELS = ("error", "warning", "info", "all")
_MAX_TEXT = 1000


def _cursor(about: str) -> Any:
    schema = {"type": "string", "examples": ["0a1b2c3d.0.4096.0"]}
    return query(about, kind=InputKind(schema, lambda name, text: read_cursor(text, name)))


def _stream() -> Any:
    return query("The output stream", "stdout", kind=choice("stdout", "stderr"))


@http_message
class LogPartRequest:
    name: str = path(kind=NAME)
    stream: str = _stream()
    before: Cursor | None = _cursor("A cursor of the live stream or of this answer; without one: the end of the file")
    lines: int = query("The number of lines", 500, kind=whole(1, 10_000))


@http_message
class LogSearchRequest:
    name: str = path(kind=NAME)
    q: str = query("What to search, in any case", "", kind=evolve(free_text(maxLength=_MAX_TEXT), is_trimmed=False))
    stream: str = _stream()
    regex: bool = query("Whether q is a regular expression (of Python)", False, kind=FLAG)
    level: str = query("Only lines of this level and worse ones", "all", kind=choice(*_LEVELS))
    before: Cursor | None = _cursor("Searches only what is before this cursor of the live stream")


@http_message
class LogMarkInfo:
    """A start or an exit of the process at an offset of its log; `exitCode` is null for a start, or if unknown."""

    at: int
    kind: Literal["started", "exited"]
    pid: int | None
    time: Instant | None
    exit_code: Int32 | None


@http_message
class LogPart:
    """Lines from the offset `start` to `end` of a file; `cursor` is the place of the first.

    `lengths` has the bytes of each line if they cannot be derived from the text.
    """

    start: int
    end: int
    text: str
    cursor: str
    marks: Sequence[LogMarkInfo]
    lengths: Sequence[int] | None = field(default=None, metadata=LEFT_OUT)


async def log_part(handler: Base, request: LogPartRequest) -> LogPart:
    """The lines before a place."""
    file = log_file(handler.supervision, request.name, request.stream)
    chunk = await handler.services.log_search.before(file, request.before, request.lines)
    return part_of(chunk)


def part_of(chunk: Chunk) -> LogPart:
    """A chunk of a log; `lengths` only if the text does not determine the length of each line in bytes."""
    text = chunk.text.decode("utf-8", "replace")
    lengths = chunk.line_lengths() if chunk.carried or "\ufffd" in text else None
    return LogPart(chunk.first, chunk.end, text, str(chunk.cursor), [_mark(mark) for mark in chunk.marks], lengths)


def _mark(mark: LogMark) -> LogMarkInfo:
    kind: Literal["started", "exited"] = "exited" if mark.is_exit else "started"
    return LogMarkInfo(mark.position, kind, mark.pid, instant(mark.time), mark.exit_code)


async def search_log(handler: OperationHandler, request: LogSearchRequest) -> LogFindings:
    """Searches a log in a worker process, which ends if the client leaves."""
    file, caller = log_file(handler.supervision, request.name, request.stream), handler.caller.account_or_address
    level = _LEVELS.index(request.level)
    if len(request.q) > _MAX_TEXT:
        raise Invalid(f"q has more than {_MAX_TEXT:,} characters")
    work = asyncio.ensure_future(
        handler.services.log_search.search(file, request.q, request.regex, level, request.before, caller)
    )
    handler.when_left(work.cancel)
    try:
        return await work
    except asyncio.CancelledError:
        raise Invalid("the client closed the connection") from None


OPERATIONS = [
    Operation(
        None, "GET", "/processes/logs/{name}/lines", "Get the lines of a process's log before a place", LogPartRequest,
        log_part, LogPart, error_statuses=(400, 404, 500), name="process_log_lines", permission=READ_LOGS,
    ),
    Operation(
        None, "GET", "/processes/logs/{name}/search", "Search a process's log", LogSearchRequest, search_log,
        LogFindings, error_statuses=(400, 404, 422, 500, 503, 504), name="process_log_search", permission=READ_LOGS,
    ),
]  # fmt: skip
routes: list[Route] = operation_routes(OPERATIONS)
