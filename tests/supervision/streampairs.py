"""A stream and its client, with the smallest buffers that there are between them."""

from __future__ import annotations

import socket
from typing import Any

from tornado.iostream import IOStream

from handlers.http.sse_connection import IoStream, PlainStream, Poll, Stream, take_over

BOUND = 10_000


def pair(kind: type[Stream] = PlainStream, bound: int = BOUND) -> tuple[Any, socket.socket]:
    """A stream, and its client with the smallest buffers that there are."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
        client = socket.socket()
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        client.settimeout(10)
        client.connect(listener.getsockname())
        served = listener.accept()[0]
    served.setblocking(False)
    io = IOStream(served)
    return (
        IoStream(io, bound, lambda _: None) if kind is IoStream else take_over(io, bound, lambda _: None, Poll())
    ), client
