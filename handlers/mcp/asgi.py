"""The bridge from a Tornado handler to an ASGI application: the SDK speaks that, and the house has one port."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any
from urllib.parse import unquote

from tornado.iostream import StreamClosedError

from handlers.base import Base
from models.errors import NotFound

Message = MutableMapping[str, Any]
Application = Callable[
    [Message, Callable[[], Awaitable[Message]], Callable[[Message], Awaitable[None]]], Awaitable[None]
]

_NOT_PASSED_ON = ("connection", "content-length")
"""Headers that are Tornado's own matter."""


class Exchange:
    """One request and its answer, as an ASGI application sees them.

    What is sent waits until the client has taken it, so a slow one holds nothing but its own session.
    """

    def __init__(self, handler: Base, root: str, facts: dict[str, Any]) -> None:
        """`root` is the prefix under which it was asked; `facts` are put into the scope."""
        self._handler = handler
        self._scope = {**_scope(handler, root), **facts}
        self._body: bytes | None = handler.request.body
        self._over = asyncio.Event()
        self._leaving: list[Callable[[], object]] = []
        self._is_sent = self._is_begun = False

    async def run(self, application: Application) -> None:
        """Raises `NotFound` where another request has ended the session before this one came to it."""
        from anyio import ClosedResourceError  # with the SDK, which is there by now

        try:
            await application(self._scope, self._receive, self._send)
        except ClosedResourceError:
            if not self._is_begun:
                raise NotFound("this session has ended") from None
        finally:
            self._over.set()

    def when_left(self, callback: Callable[[], object]) -> None:
        """Calls `callback` when the client leaves before its answer was whole; at once where it has left."""
        if self._over.is_set() and not self._is_sent:
            callback()
        else:
            self._leaving.append(callback)

    def leave(self) -> None:
        """The client has left, or we do: the application is told, and whatever waits for it."""
        self._over.set()
        leaving, self._leaving = self._leaving, []
        if not self._is_sent:
            for callback in leaving:
                callback()

    async def _receive(self) -> Message:
        body, self._body = self._body, None
        if body is not None:
            return {"type": "http.request", "body": body, "more_body": False}
        await self._over.wait()
        return {"type": "http.disconnect"}

    async def _send(self, message: Message) -> None:
        if self._is_sent or self._over.is_set():
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
            self.leave()

    async def _start(self, message: Message) -> None:
        handler, self._is_begun = self._handler, True
        handler.set_status(message["status"])
        handler.clear_header("Content-Type")
        headers = {name.decode("latin-1").lower(): value.decode("latin-1") for name, value in message["headers"]}
        for name, value in headers.items():
            if name not in _NOT_PASSED_ON:
                handler.set_header(name, value)
        if headers.get("content-type", "").startswith("text/event-stream"):
            await handler.flush()  # its first event may be long in coming


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
