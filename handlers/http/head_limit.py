"""Limits the number of query parameters and cookies before Tornado parses them; `BodyLimit` counts fields of forms."""

from __future__ import annotations

from collections.abc import Awaitable
from typing import Any

from tornado.httputil import (
    HTTPConnection,
    HTTPHeaders,
    HTTPMessageDelegate,
    HTTPServerRequest,
    RequestStartLine,
    ResponseStartLine,
)

from models.errors import Invalid, Problem

MAX_FIELDS = 1000
"""The most query parameters, cookies, and fields of a form: parsing more of them blocks the loop."""


class HeadLimit(HTTPMessageDelegate):
    """Removes the query or the cookies of a request that has too many, and notes that it is to be refused."""

    def __init__(self, inner: HTTPMessageDelegate, connection: HTTPConnection) -> None:
        self._inner = inner
        self._connection: Any = connection

    def headers_received(
        self, start_line: RequestStartLine | ResponseStartLine, headers: HTTPHeaders
    ) -> Awaitable[None] | None:
        if isinstance(start_line, RequestStartLine):
            path, _, query = start_line.path.partition("?")
            if query.count("&") >= MAX_FIELDS:
                start_line = start_line._replace(path=path)
                self._connection.head_problem = Invalid(f"the request has more than {MAX_FIELDS} query parameters")
            if headers.get("Cookie", "").count(";") >= MAX_FIELDS:
                del headers["Cookie"]
                self._connection.head_problem = Invalid(f"the request has more than {MAX_FIELDS} cookies")
        return self._inner.headers_received(start_line, headers)

    def data_received(self, chunk: bytes) -> Awaitable[None] | None:
        return self._inner.data_received(chunk)

    def finish(self) -> None:
        self._inner.finish()

    def on_connection_close(self) -> None:
        self._inner.on_connection_close()


def head_problem(request: HTTPServerRequest) -> Problem | None:
    """Returns why the head of a request is refused, or None."""
    return getattr(request.connection, "head_problem", None)
