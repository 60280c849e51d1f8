"""The server's own log: its last lines, as JSON or as a stream, and where it is kept."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from handlers.base import Base
from handlers.http.permissions import READ_SERVER_LOG
from handlers.http.stream_handler import Streaming
from handlers.operations import EVENT_STREAM, Operation, operation_routes
from handlers.routing import Route, StreamPath
from handlers.supervision.streams import send_pieces
from models.inputs import query, read, whole
from models.json_format import http_message
from supervisor.logging import MAX_RECENT_LINES, destination, recent


@http_message
class ServerLog:
    """The last lines of the server's own log, oldest first."""

    kept: str
    """Where the whole log is."""
    lines: Sequence[str]


@http_message
class ServerLogRequest:
    lines: int = query("The number of lines", 200, kind=whole(1, MAX_RECENT_LINES))


def own_log(handler: Base, request: ServerLogRequest) -> ServerLog:
    return ServerLog(kept=destination(), lines=recent.newest(request.lines))


class ServerLogStream(Streaming):
    """Sends the last lines, then new ones, as `event: log`."""

    permission = READ_SERVER_LOG
    kind = "server-log"

    def get(self) -> None:
        request = read(ServerLogRequest, {}, self.query(), {})
        stream = self.open()
        work = asyncio.get_running_loop().create_task(send_pieces(stream, recent.follow(request.lines)))
        stream.when_closed(lambda _: work.cancel())


OPERATIONS = [
    Operation(
        None, "GET", "/supervisor/log", "Get the end of the server's own log, and where it is kept", ServerLogRequest,
        own_log, ServerLog, name="supervisor_log", also={EVENT_STREAM: str}, permission=READ_SERVER_LOG,
    ),
]  # fmt: skip
routes: list[Route] = [(r"/supervisor/log", ServerLogStream, StreamPath), *operation_routes(OPERATIONS)]
