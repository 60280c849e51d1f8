"""The door: a request's body is read within bounds before any handler runs, and dropped where it is refused."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

from tornado.httputil import HTTPHeaders, HTTPMessageDelegate, HTTPServerRequest, RequestStartLine, ResponseStartLine

from models.errors import Problem, TooLarge

_DROPPING_TAKES = 10.0


class BodyLimit(HTTPMessageDelegate):
    """Reads a request's body for its handler, up to `limit` bytes of it.

    A client that is still sending never sees an answer that comes with a closed connection: so what is refused is
    answered when its body was read and dropped, or when it has cost `server.max-body` bytes or ten seconds. That goes
    for a `Problem` too that a handler raises while its body streams in.
    """

    def __init__(
        self,
        request: HTTPServerRequest,
        inner: HTTPMessageDelegate,
        limit: int,
        most: int,
        refusal: Callable[[Problem], HTTPMessageDelegate],
    ) -> None:
        """`limit` 0: the request is refused already, by `inner`. `most` bytes are read and dropped then."""
        self._request = request
        self._inner = inner
        self._limit = limit
        self._most = most
        self._refusal = refusal
        self._seen = 0
        self._finished = False
        self._timer: asyncio.TimerHandle | None = None

    def headers_received(
        self, start_line: RequestStartLine | ResponseStartLine, headers: HTTPHeaders
    ) -> Awaitable[None] | None:
        connection: Any = self._request.connection
        connection.set_max_body_size(2**62)  # we count ourselves: Tornado's own limit closes without a word
        if self._limit and _announced(headers) > self._limit:
            self._inner = self._refusal(self._too_large())
            self._drop()
        elif not self._limit and _announced(headers):
            self._drop_within()
        return self._inner.headers_received(start_line, headers)

    def data_received(self, chunk: bytes) -> Awaitable[None] | None:
        self._seen += len(chunk)
        if self._limit and self._seen > self._limit:
            self._refuse(self._too_large())
        if self._limit:
            return self._take(chunk)
        if self._seen > self._most:
            self.finish()
        return None

    def finish(self) -> None:
        if not self._finished:
            self._finished = True
            if self._timer is not None:
                self._timer.cancel()
            self._inner.finish()

    def on_connection_close(self) -> None:
        self._finished = True
        if self._timer is not None:
            self._timer.cancel()
        self._inner.on_connection_close()

    def _take(self, chunk: bytes) -> Awaitable[None] | None:
        try:
            taking = self._inner.data_received(chunk)
        except Problem as problem:
            self._refuse(problem)
            return None
        return None if taking is None else self._taken(taking)

    async def _taken(self, taking: Awaitable[None]) -> None:
        try:
            await taking
        except Problem as problem:
            self._refuse(problem)

    def _too_large(self) -> TooLarge:
        return TooLarge(f"the body is larger than {self._limit} bytes")

    def _refuse(self, problem: Problem) -> None:
        """In the middle of a body: a handler that has begun with it ends as if its client had left."""
        if not self._finished:
            self._inner.on_connection_close()
            self._inner = self._refusal(problem)
            self._drop()

    def _drop(self) -> None:
        self._limit = 0
        self._drop_within()

    def _drop_within(self) -> None:
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(_DROPPING_TAKES, self.finish)


def _announced(headers: HTTPHeaders) -> int:
    length = headers.get("Content-Length", "")
    if length.isdigit():
        return int(length)
    return 1 if "Transfer-Encoding" in headers else 0
