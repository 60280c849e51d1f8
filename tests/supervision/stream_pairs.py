"""Connected streams with small socket buffers, which fill quickly."""

from __future__ import annotations

import socket
from typing import Any

from tornado.iostream import IOStream

from handlers.http.sse_connection import IoStream, PlainStream, Poll, Stream, take_over

LIMIT_BYTES = 10_000


def stream_pair(kind: type[Stream] = PlainStream, bound: int = LIMIT_BYTES) -> tuple[Any, socket.socket]:
    """Returns a stream and the socket of its client, with the smallest socket buffers."""
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
