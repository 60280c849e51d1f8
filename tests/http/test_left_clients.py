"""A handler learns that its client has left, at whatever moment that was found."""

from __future__ import annotations

import asyncio
import socket
from typing import Any

from conftest import until
from tornado.httpserver import HTTPServer
from tornado.httputil import HTTPServerRequest
from tornado.testing import bind_unused_port
from tornado.web import Application, RequestHandler, stream_request_body

from handlers.http.body_limit import BodyLimit

HEAD = b"POST / HTTP/1.1\r\nHost: localhost\r\nContent-Length: 4\r\n\r\n"


@stream_request_body
class Slow(RequestHandler):
    """Takes the last piece of a body only when its client has left."""

    def initialize(self, seen: list[str]) -> None:
        self.seen = seen
        self.left = asyncio.Event()
        seen.append("head")

    @property
    def held_bytes(self) -> int:
        return 0

    async def data_received(self, chunk: bytes) -> None:
        self.seen.append("data")
        stream: Any = self.request.connection
        await until(stream.stream.closed)

    async def post(self) -> None:
        self.seen.append("post")
        await self.left.wait()

    def on_connection_close(self) -> None:
        self.seen.append("left")
        self.left.set()


class Limited(Application):
    def find_handler(self, request: HTTPServerRequest, **options: Any) -> Any:
        inner = super().find_handler(request, **options)
        return BodyLimit(request, inner, 1000, 1000, lambda problem: inner)


def test_a_client_that_left_while_the_end_of_its_body_was_taken_is_reported() -> None:
    async def check() -> None:
        seen: list[str] = []
        listening, port = bind_unused_port()
        server = HTTPServer(Limited([("/", Slow, {"seen": seen})]))
        server.add_socket(listening)
        client = socket.create_connection(("127.0.0.1", port))
        client.sendall(HEAD)
        await until(lambda: seen == ["head"])
        client.sendall(b"body")
        await until(lambda: "data" in seen)
        client.close()
        await asyncio.wait_for(until(lambda: "left" in seen), 60)
        assert seen == ["head", "data", "post", "left"]
        server.stop()
        await server.close_all_connections()

    asyncio.run(check())
