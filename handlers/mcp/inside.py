"""A request to one of our own handlers, from within: through the same door as any other, but without a connection."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from tornado.httputil import HTTPConnection, HTTPHeaders, HTTPServerRequest, RequestStartLine, ResponseStartLine
from tornado.web import Application

_FORWARDED = ("authorization", "x-tracker-token", "host", "x-real-ip", "forwarded", "x-forwarded-")
"""What says who asks, and from where. A cookie does not: agents have tokens."""


class _Inside(HTTPConnection):
    """Keeps the answer instead of sending it."""

    def __init__(self, context: object) -> None:
        self.context = context
        self.status = 0
        self.headers = HTTPHeaders()
        self.body = bytearray()
        self.done: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def set_close_callback(self, callback: Callable[[], None] | None) -> None:
        """Nobody can leave."""

    def set_max_body_size(self, most: int) -> None:
        """The body is ours."""

    def write_headers(
        self, start_line: RequestStartLine | ResponseStartLine, headers: HTTPHeaders, chunk: bytes | None = None
    ) -> asyncio.Future[None]:
        assert isinstance(start_line, ResponseStartLine)
        self.status, self.headers = start_line.code, headers
        return self.write(chunk or b"")

    def write(self, chunk: bytes) -> asyncio.Future[None]:
        self.body += chunk
        written: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        written.set_result(None)
        return written

    def finish(self) -> None:
        if not self.done.done():
            self.done.set_result(None)


async def ask(
    application: Application, outer: HTTPServerRequest, method: str, uri: str, body: bytes
) -> tuple[int, str, bytes]:
    """Asks as whoever made the request `outer`. Returns status, media type and body."""
    connection = _Inside(getattr(outer.connection, "context", None))
    start = RequestStartLine(method, uri, "HTTP/1.1")
    request = HTTPServerRequest(connection=connection, start_line=start, headers=_headers(outer, body))
    door: Any = application.find_handler(request)
    if (entering := door.headers_received(start, request.headers)) is not None:
        await entering
    if body:
        door.data_received(body)
    door.finish()
    await connection.done
    return connection.status, connection.headers.get("Content-Type", ""), bytes(connection.body)


def _headers(outer: HTTPServerRequest, body: bytes) -> HTTPHeaders:
    headers = HTTPHeaders()
    for name, value in outer.headers.get_all():
        if name.lower().startswith(_FORWARDED):
            headers.add(name, value)
    if body:
        headers["Content-Type"] = "application/json"
        headers["Content-Length"] = str(len(body))
    return headers
