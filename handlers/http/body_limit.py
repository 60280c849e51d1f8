"""Limits request bodies: a body is read within its handler's limit, and dropped where the request is refused."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

from tornado.httputil import HTTPHeaders, HTTPMessageDelegate, HTTPServerRequest, RequestStartLine, ResponseStartLine
from tornado.web import RequestHandler

from handlers.http.head_limit import MAX_FIELDS
from handlers.listener import ClientSocket
from models.errors import Invalid, Problem, SlowRequest, TooLarge

_DROP_SECONDS = 10.0
_NO_LIMIT = 2**62
_FORM = "application/x-www-form-urlencoded"


class BodyLimit(HTTPMessageDelegate):
    """Reads a request's body for its handler, up to `limit` bytes of it.

    A client that is still sending does not see a response that comes with a closed connection. So a refusal is sent
    when the body was read and dropped, or after `server.max-body` bytes or ten seconds. The same holds for a `Problem`
    that a handler raises while its body streams in.
    """

    def __init__(
        self,
        request: HTTPServerRequest,
        inner: HTTPMessageDelegate,
        limit: int,
        max_dropped: int,
        refusal: Callable[[Problem], HTTPMessageDelegate],
    ) -> None:
        """`limit` 0: the request is refused already, by `inner`; then at most `max_dropped` bytes are read."""
        self._request = request
        self._inner = inner
        self._limit = limit
        self._max_dropped = max_dropped
        self._refusal = refusal
        self._received = 0
        self._held = 0
        self._is_form = request.headers.get("Content-Type", "").lower().startswith(_FORM)
        self._fields = 0
        self._is_finished = False
        self._timer: asyncio.TimerHandle | None = None
        self._connection = connection_of(request)

    def headers_received(
        self, start_line: RequestStartLine | ResponseStartLine, headers: HTTPHeaders
    ) -> Awaitable[None] | None:
        connection: Any = self._request.connection
        connection.set_max_body_size(_NO_LIMIT)  # Tornado's own limit closes the connection without a response
        if self._connection is not None:
            self._connection.on_expired = self._expire
        if self._limit and _announced(headers) > self._limit:
            self._inner = self._refusal(self._too_large())
            self._drop()
        elif not self._limit and _announced(headers):
            self._limit_drop_time()
        return self._inner.headers_received(start_line, headers)

    def data_received(self, chunk: bytes) -> Awaitable[None] | None:
        self._received += len(chunk)
        self._fields += chunk.count(b"&") if self._limit and self._is_form else 0
        if self._limit and self._received > self._limit:
            self._refuse(self._too_large())
        elif self._limit and self._fields >= MAX_FIELDS:
            self._refuse(Invalid(f"the form has more than {MAX_FIELDS} fields"))
        if self._limit:
            return self._pass_on(chunk)
        self._release(len(chunk))
        if self._received > self._max_dropped:
            self.finish()
        return None

    def finish(self) -> None:
        if not self._is_finished:
            self._end()
            if self._connection is not None:
                self._connection.request_complete()
            self._inner.finish()
            stream = getattr(self._request.connection, "stream", None)
            if stream is not None and stream.closed():  # Tornado reports a close only from now on
                asyncio.get_running_loop().call_soon(self._report_close)

    def _report_close(self) -> None:
        """Lets the handler of a complete request know that its client had left before it was complete."""
        handler: Any = getattr(self._inner, "handler", None)
        if isinstance(handler, RequestHandler) and not handler._finished:
            handler.on_connection_close()

    def on_connection_close(self) -> None:
        self._end()
        self._inner.on_connection_close()

    def _end(self) -> None:
        self._is_finished = True
        if self._timer is not None:
            self._timer.cancel()

    def _pass_on(self, chunk: bytes) -> Awaitable[None] | None:
        try:
            pending = self._inner.data_received(chunk)
        except Problem as problem:
            self._refuse(problem)
            return None
        self._release_streamed(len(chunk))
        return None if pending is None else self._passed_on(pending)

    async def _passed_on(self, pending: Awaitable[None]) -> None:
        try:
            await pending
        except Problem as problem:
            self._refuse(problem)
        self._release_streamed(0)

    def _release_streamed(self, size: int) -> None:
        """A handler that streams its body keeps only a part of it in memory: `held_bytes`."""
        handler: Any = getattr(self._inner, "handler", None)
        if handler is not None:
            held, self._held = self._held, handler.held_bytes
            self._release(size + held - self._held)

    def _release(self, size: int) -> None:
        if self._connection is not None and self._connection.unfinished is not None:
            self._connection.unfinished.subtract(self._connection, size)

    def _expire(self) -> None:
        self._refuse(SlowRequest("the request was not complete when the server needed its memory"))
        self.finish()

    def _too_large(self) -> TooLarge:
        return TooLarge(f"the body is larger than {self._limit} bytes")

    def _refuse(self, problem: Problem) -> None:
        """Refuses the request in the middle of its body; its handler ends as if the client had disconnected."""
        if not self._is_finished:
            self._inner.on_connection_close()
            self._inner = self._refusal(problem)
            self._drop()

    def _drop(self) -> None:
        self._limit = 0
        self._limit_drop_time()

    def _limit_drop_time(self) -> None:
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(_DROP_SECONDS, self.finish)


def connection_of(request: HTTPServerRequest) -> ClientSocket | None:
    """Returns a request's connection; None for a request from within the server."""
    stream = getattr(request.connection, "stream", None)
    connection = getattr(stream, "socket", None)
    return connection if isinstance(connection, ClientSocket) else None


def _announced(headers: HTTPHeaders) -> int:
    length = headers.get("Content-Length", "")
    if length.isdigit():
        return int(length)
    return 1 if "Transfer-Encoding" in headers else 0
