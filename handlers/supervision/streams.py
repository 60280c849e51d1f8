"""Long-lived answers: status changes and log lines, as event streams."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from typing import ClassVar

from tornado.iostream import StreamClosedError

from handlers.base import Base
from handlers.http import serializers
from handlers.http.permissions import READ_LOGS
from handlers.http.sse import RETRY_MILLISECONDS, block
from handlers.http.sse_connection import Stream
from handlers.http.stream_handler import LAST_EVENT_ID, Streaming
from handlers.openapi.describe import EVENT_STREAM, Endpoint, choice
from handlers.openapi.describe import whole as whole_number
from models.errors import Invalid, NotFound, Problem
from models.paging import whole
from models.supervision.events import Entry
from models.supervision.notices import Notice
from supervisor.processes.history import History
from supervisor.processes.log_files import LogFile
from supervisor.processes.service import Supervision

log = logging.getLogger("http")

LOG_PARAMETERS = (
    whole_number("lines", "The number of lines", 200, 1, 10_000),
    choice("stream", "The output stream", ["stdout", "stderr"], "stdout"),
)
_REPLAY = 100
_LINES = 200
_LONGEST_ID = 18
_MOST_LINES = 10_000


class StatusStream(Streaming):
    """Every status change as `event: status`; `Last-Event-ID` brings what was missed, without a gap."""

    endpoints: ClassVar = {
        "GET": Endpoint(
            "Stream status changes, with notices=true notices too",
            EVENT_STREAM,
            query=[LAST_EVENT_ID, choice("notices", "Whether to send notices", ["true", "false"], "false")],
            name="process_stream",
        )
    }

    async def get(self) -> None:
        last = self.request.headers.get("Last-Event-ID", "")
        notices = self.query().get("notices") or "false"
        if notices not in ("true", "false"):
            raise Invalid("notices must be true or false")
        stream = self.open()
        if notices == "true":
            self.settings["notice_stream"].add(stream, self.supervision.notices.last_id)
        stream.send(f"retry: {RETRY_MILLISECONDS}\n: status changes\n\n".encode())
        seen = self._history.last_told
        if last.isascii() and last.isdigit() and len(last) <= _LONGEST_ID:
            try:
                seen = await self._catch_up(stream, min(int(last), seen))
            except StreamClosedError:
                return
            except Problem as problem:
                log.error("a stream ends, for the history cannot be read: %s", problem.message)
                stream.close()
                return
        self.streams.statuses.add(stream, seen)

    async def _catch_up(self, stream: Stream, seen: int) -> int:
        """Sends all that came after `seen`, as fast as the client reads; returns the last id that was sent.

        Between the last look at what others were told and the subscription the loop has no turn.
        """
        while True:
            told = self._history.last_told
            if some := await self._history.since(seen, _REPLAY):
                await stream.send_slowly(b"".join(map(status_block, some)))
                await asyncio.sleep(0)
                seen = some[-1].id
            elif told >= self._history.last_told:
                return max(seen, told)
            else:
                seen = max(seen, told)  # what was between is deleted already

    @property
    def _history(self) -> History:
        return self.supervision.history


def log_asked_for(handler: Base, name: str) -> tuple[str, int]:
    """The file and the number of lines that a request names. Raises `Invalid`, `NotFound`."""
    query = handler.query()
    lines = whole("lines", query.get("lines") or "200", 1, _MOST_LINES)
    return log_file(handler.supervision, name, query.get("stream") or "stdout").path, lines


def log_file(supervision: Supervision, name: str, stream: str) -> LogFile:
    """The log file of a process for one of its outputs. Raises `Invalid`, `NotFound`."""
    if stream not in ("stdout", "stderr"):
        raise Invalid("stream must be stdout or stderr")
    spec = supervision.fleet.get(name).spec
    path = spec.stdout_logfile if stream == "stdout" else spec.stderr_file
    if path is None:
        raise NotFound(f"{name} has no file of its own for {stream} ({stream}-logfile is not set)")
    return LogFile(path, *spec.log_bounds(path), name)


def status_block(entry: Entry) -> bytes:
    return block("status", serializers.text(serializers.plain(serializers.event_entry(entry))), entry.id)


def notice_block(notice: Notice) -> bytes:
    """Without an id: `Last-Event-ID` is the last status change."""
    return block("notice", serializers.text(serializers.plain(serializers.notice(notice))))


class LogStream(Streaming):
    """The end of a log file, then what is added, as `event: log` with a `data:` for each line."""

    permission = READ_LOGS
    kind = "logs"

    async def head(self, *arguments: str) -> None:
        log_asked_for(self, *arguments)  # what GET refuses is refused
        await super().head(*arguments)

    def get(self, name: str) -> None:
        path, lines = log_asked_for(self, name)
        stream = self.open()
        work = asyncio.get_running_loop().create_task(_follow(stream, self.supervision.logs.follow(path, lines)))
        stream.when_closed(lambda _: work.cancel())


async def _follow(stream: Stream, pieces: AsyncIterator[bytes]) -> None:
    """Sends pieces of a log as fast as the client reads."""
    try:
        await stream.send_slowly(f"retry: {RETRY_MILLISECONDS}\n\n".encode())
        async for piece in pieces:
            lines = piece.decode("utf-8", "replace").replace("\r", "").removesuffix("\n").split("\n") if piece else []
            for start in range(0, len(lines), _LINES):
                data = "".join(f"data: {line}\n" for line in lines[start : start + _LINES])
                await stream.send_slowly(f"event: log\n{data}\n".encode())
    except StreamClosedError:
        pass
