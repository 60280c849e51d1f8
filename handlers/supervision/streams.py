"""Event streams of status changes and of log lines."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Iterator
from typing import ClassVar

from tornado.iostream import StreamClosedError

from handlers.http import serializers
from handlers.http.permissions import READ_LOGS
from handlers.http.sse import RETRY_MILLISECONDS, block
from handlers.http.sse_connection import Stream
from handlers.http.stream_handler import LAST_EVENT_ID, Streaming
from handlers.operations import EVENT_STREAM, Operation, read_request
from models.errors import Invalid, NotFound, Problem
from models.inputs import FLAG, NAME, choice, instant, path, query, read, whole
from models.json_format import http_message
from models.supervision.events import StatusEvent
from models.supervision.log_times import written_since
from models.supervision.notices import Notice
from supervisor.processes.history import History
from supervisor.processes.logs.files import LogFile
from supervisor.processes.service import Supervision

log = logging.getLogger("http")

_EVENTS_PER_READ = 100
_LINES_PER_EVENT = 200
_MAX_EVENT_BYTES = 64 * 1024
"""An event ends with the line that reaches this. Larger pieces of a log are decoded in a thread."""
_MAX_ID_DIGITS = 18


@http_message
class StatusStreamRequest:
    last_event_id: str | None = LAST_EVENT_ID()
    notices: bool = query("Whether to send notices", False, kind=FLAG)


@http_message
class LogRequest:
    name: str = path(kind=NAME)
    lines: int = query("The number of lines", 200, kind=whole(1, 10_000))
    stream: str = query("The output stream", "stdout", kind=choice("stdout", "stderr"))
    since: int | None = query(
        "Only lines since this RFC 3339 time, by the times in the lines, else from the last start or exit before it",
        kind=instant("2026-11-22T10:00:00Z"), is_rest_only=True,
    )  # fmt: skip


class StatusStream(Streaming):
    """Sends every status change as `event: status`; `Last-Event-ID` replays missed events without a gap."""

    operations: ClassVar = {
        "GET": Operation(
            None, "GET", "/processes/stream", "Stream status changes, with notices=true notices too",
            StatusStreamRequest, None, EVENT_STREAM, name="process_stream",
        )
    }  # fmt: skip

    async def get(self) -> None:
        last = self.request.headers.get("Last-Event-ID", "")
        request = read_request(self, self.operations["GET"])
        stream = self.open()
        if request.notices:
            self.settings["notice_stream"].add(stream, self.supervision.notices.last_id)
        stream.send(f"retry: {RETRY_MILLISECONDS}\n: status changes\n\n".encode())
        seen = self._history.last_published
        if last.isascii() and last.isdigit() and len(last) <= _MAX_ID_DIGITS:
            try:
                seen = await self._catch_up(stream, min(int(last), seen))
            except StreamClosedError:
                return
            except Problem as problem:
                log.error("a stream ends because the history cannot be read: %s", problem.message)
                stream.close()
                return
        self.streams.statuses.add(stream, seen)

    async def _catch_up(self, stream: Stream, seen: int) -> int:
        """Sends all events after `seen`, as fast as the client reads; returns the last id sent.

        The loop does not run between the last comparison with `last_published` and the subscription.
        """
        while True:
            published = self._history.last_published
            if entries := await self._history.since(seen, _EVENTS_PER_READ):
                await stream.send_slowly(b"".join(map(status_block, entries)))
                await asyncio.sleep(0)
                seen = entries[-1].id
            elif published >= self._history.last_published:
                return max(seen, published)
            else:
                seen = max(seen, published)  # the events between have been deleted

    @property
    def _history(self) -> History:
        return self.supervision.history


def log_file(supervision: Supervision, name: str, stream: str) -> LogFile:
    """Returns the log file of a process for stdout or stderr. Raises `Invalid`, `NotFound`."""
    if stream not in ("stdout", "stderr"):
        raise Invalid("stream must be stdout or stderr")
    spec = supervision.fleet.get(name).spec
    path = spec.stdout_logfile if stream == "stdout" else spec.stderr_file
    if path is None:
        raise NotFound(f"{name} has no file of its own for {stream} ({stream}-logfile is not set)")
    return LogFile(path, *spec.log_bounds(path), name)


async def cut_of(supervision: Supervision, path: str, since: int | None) -> Callable[[bytes, int], bytes]:
    """Returns what is left of the end of a log file, whose end is at so many bytes, of what was written since then."""
    if since is None:
        return lambda text, end: text
    marks = await supervision.process_logs.marks(path)
    return lambda text, end: written_since(text, end, since, marks)


def status_block(entry: StatusEvent) -> bytes:
    return block("status", serializers.text(serializers.plain(serializers.event_entry(entry))), entry.id)


def notice_block(notice: Notice) -> bytes:
    """Returns the event of a notice; it has no id, because `Last-Event-ID` names a status change."""
    return block("notice", serializers.text(serializers.plain(serializers.notice(notice))))


class LogStream(Streaming):
    """Sends the end of a log file, then new lines, as `event: log` with a `data:` for each line."""

    permission = READ_LOGS
    kind = "logs"

    async def head(self, *arguments: str) -> None:
        self._requested(*arguments)  # refused as GET is
        await super().head(*arguments)

    def _requested(self, name: str) -> tuple[str, LogRequest]:
        """The log file, and what is requested of it. Raises `Invalid`, `NotFound`."""
        request = read(LogRequest, {"name": name}, self.query(), {})
        return log_file(self.supervision, name, request.stream).path, request

    async def get(self, name: str) -> None:
        path, request = self._requested(name)
        cut = await cut_of(self.supervision, path, request.since)
        stream = self.open()
        pieces = self.supervision.logs.follow(path, request.lines, cut)
        work = asyncio.get_running_loop().create_task(_send_log(stream, path, pieces))
        stream.when_closed(lambda _: work.cancel())


async def _send_log(stream: Stream, path: str, pieces: AsyncIterator[bytes]) -> None:
    """Sends pieces of a file; where it cannot be read, the stream ends, and the client comes again."""
    try:
        await send_pieces(stream, pieces)
    except OSError as error:
        log.warning("a stream ends because %s cannot be read: %s", path, error.strerror)
        stream.close()


async def send_pieces(stream: Stream, pieces: AsyncIterator[bytes]) -> None:
    """Sends pieces of a log as fast as the client reads. Raises what reading them raises."""
    try:
        await stream.send_slowly(f"retry: {RETRY_MILLISECONDS}\n\n".encode())
        async for piece in pieces:
            for lines in _parts(piece):
                is_small = len(piece) <= _MAX_EVENT_BYTES
                await stream.send_slowly(_log_block(lines) if is_small else await asyncio.to_thread(_log_block, lines))
    except StreamClosedError:
        pass


def _parts(piece: bytes) -> Iterator[bytes]:
    """Splits a piece of a log into whole lines for one event each: at most 200, and one at least."""
    start = 0
    while start < len(piece):
        end = start
        for _ in range(_LINES_PER_EVENT):
            end = piece.find(b"\n", end) + 1 or len(piece)
            if end == len(piece) or end - start >= _MAX_EVENT_BYTES:
                break
        yield piece[start:end]
        start = end


def _log_block(lines: bytes) -> bytes:
    text = lines.decode("utf-8", "replace").replace("\r", "").removesuffix("\n")
    data = "".join(f"data: {line}\n" for line in text.split("\n"))
    return f"event: log\n{data}\n".encode()
