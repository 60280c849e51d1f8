"""Bridges: a Tornado handler calls an ASGI application (the SDK), and a tool calls a handler in-process."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any
from urllib.parse import unquote

from tornado import web
from tornado.httputil import HTTPConnection, HTTPHeaders, HTTPServerRequest, RequestStartLine, ResponseStartLine
from tornado.iostream import StreamClosedError

from handlers.base import Base
from models.errors import NotFound

Message = MutableMapping[str, Any]
Application = Callable[
    [Message, Callable[[], Awaitable[Message]], Callable[[Message], Awaitable[None]]], Awaitable[None]
]

_HOP_HEADERS = ("connection", "content-length")
"""Headers that Tornado sets itself."""
_CREDENTIAL_HEADERS = ("authorization", "x-tracker-token", "host", "x-real-ip", "forwarded", "x-forwarded-")
"""Headers that identify the caller in an internal request; not the session cookie, because agents have tokens."""


class Exchange:
    """One request and its response, as an ASGI application sees them.

    Sending waits until the client has read, so that a slow client delays only its own session.
    """

    def __init__(self, handler: Base, root: str, extra: dict[str, Any]) -> None:
        """`root` is the request's prefix; `extra` is added to the scope."""
        self._handler = handler
        self._scope = {**_scope(handler, root), **extra}
        self._body: bytes | None = handler.request.body
        self._ended = asyncio.Event()
        self._on_disconnect: list[Callable[[], object]] = []
        self._is_sent = self._has_started = False

    async def run(self, application: Application) -> None:
        """Raises `NotFound` where another request has ended the session in the meantime."""
        from anyio import ClosedResourceError  # comes with the SDK, which is imported by now

        try:
            await application(self._scope, self._receive, self._send)
        except ClosedResourceError:
            if not self._has_started:
                raise NotFound("this session has ended") from None
        finally:
            self._ended.set()

    def on_disconnect(self, callback: Callable[[], object]) -> None:
        """Calls `callback` when the client disconnects before its response is complete; at once if it has already."""
        if self._ended.is_set() and not self._is_sent:
            callback()
        else:
            self._on_disconnect.append(callback)

    def disconnect(self) -> None:
        """The client has disconnected, or the server stops: ends the application's wait and runs the callbacks."""
        self._ended.set()
        callbacks, self._on_disconnect = self._on_disconnect, []
        if not self._is_sent:
            for callback in callbacks:
                callback()

    async def _receive(self) -> Message:
        body, self._body = self._body, None
        if body is not None:
            return {"type": "http.request", "body": body, "more_body": False}
        await self._ended.wait()
        return {"type": "http.disconnect"}

    async def _send(self, message: Message) -> None:
        if self._is_sent or self._ended.is_set():
            return
        try:
            if message["type"] == "http.response.start":
                await self._start(message)
            elif message.get("more_body"):
                self._handler.write(bytes(message.get("body", b"")))
                await self._handler.flush()
            else:
                self._is_sent = True
                await self._handler.finish(bytes(message.get("body", b"")))
        except StreamClosedError:
            self.disconnect()

    async def _start(self, message: Message) -> None:
        handler, self._has_started = self._handler, True
        handler.set_status(message["status"])
        handler.clear_header("Content-Type")
        headers = {name.decode("latin-1").lower(): value.decode("latin-1") for name, value in message["headers"]}
        for name, value in headers.items():
            if name not in _HOP_HEADERS:
                handler.set_header(name, value)
        if headers.get("content-type", "").startswith("text/event-stream"):
            await handler.flush()  # the first event may come much later


def _scope(handler: Base, root: str) -> Message:
    request = handler.request
    host, _, port = (request.headers.get("Host", "")).rpartition(":")
    return {
        "type": "http",
        "asgi": {"version": "3.0", "spec_version": "2.3"},
        "http_version": "1.1",
        "method": request.method,
        "scheme": request.protocol,
        "path": unquote(request.path),
        "raw_path": request.path.encode("latin-1", "replace"),
        "query_string": request.query.encode("latin-1", "replace"),
        "root_path": root,
        "headers": [
            (name.lower().encode("latin-1"), value.encode("latin-1", "replace"))
            for name, value in request.headers.get_all()
        ],
        "client": (request.remote_ip or "", 0),
        "server": (host or port, int(port) if host and port.isdigit() else None),
    }


class _InternalConnection(HTTPConnection):
    """Keeps the response instead of sending it."""

    def __init__(self, context: object) -> None:
        self.context = context
        self.status = 0
        self.headers = HTTPHeaders()
        self.body = bytearray()
        self.done: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def set_close_callback(self, callback: Callable[[], None] | None) -> None:
        """There is no client that could disconnect."""

    def set_max_body_size(self, size: int) -> None:
        """The body is already in memory."""

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


async def internal_request(
    application: web.Application, outer: HTTPServerRequest, is_forwarded: bool, method: str, uri: str, body: bytes
) -> tuple[int, str, bytes]:
    """Sends a request to the application itself as the caller of `outer`, which a proxy may have passed on.

    Returns status, media type and body.
    """
    connection = _InternalConnection(getattr(outer.connection, "context", None))
    start = RequestStartLine(method, uri, "HTTP/1.1")
    request = HTTPServerRequest(
        connection=connection, start_line=start, headers=_internal_headers(outer, is_forwarded, body)
    )
    delegate: Any = application.find_handler(request)
    if (received := delegate.headers_received(start, request.headers)) is not None:
        await received
    if body:
        delegate.data_received(body)
    delegate.finish()
    await connection.done
    return connection.status, connection.headers.get("Content-Type", ""), bytes(connection.body)


def _internal_headers(outer: HTTPServerRequest, is_forwarded: bool, body: bytes) -> HTTPHeaders:
    headers = HTTPHeaders({"Via": "1.1 pilothouse"} if is_forwarded else {})
    for name, value in outer.headers.get_all():
        if name.lower().startswith(_CREDENTIAL_HEADERS):
            headers.add(name, value)
    if body:
        headers["Content-Type"] = "application/json"
        headers["Content-Length"] = str(len(body))
    return headers
