"""Connections of streams: unsent data of a slow client, its order, and when the client is dropped."""

from __future__ import annotations

import asyncio
import socket
from typing import Any

import pytest
from stream_pairs import LIMIT_BYTES, stream_pair
from tornado.iostream import StreamClosedError

from handlers.http.sse_connection import IoStream, PlainStream, Stream


@pytest.fixture(params=[PlainStream, IoStream])
def kind(request: pytest.FixtureRequest) -> Any:
    """A plain socket, and an IOStream as for TLS."""
    return request.param


def fill(stream: Any, client: socket.socket, piece: bytes) -> int:
    """Sends until the kernel accepts no more and bytes are queued; returns the number of pieces sent."""
    count = 0
    while not stream._queued_bytes:
        stream.send(piece)
        count += 1
        assert count < 100_000
    return count


async def receive(client: socket.socket, size: int) -> bytes:
    received = b""
    while len(received) < size:
        some = await asyncio.to_thread(client.recv, 65536)
        assert some, "the stream ended"
        received += some
    return received


def test_a_slow_client_gets_everything_once_and_in_order(kind: type[Stream]) -> None:
    async def check() -> None:
        stream, client = stream_pair(kind)
        pieces = fill(stream, client, b"x" * 997)
        more = [bytes([65 + number]) * 500 for number in range(15)]
        for piece in more:
            stream.send(piece)
        assert await receive(client, pieces * 997 + 15 * 500) == b"x" * 997 * pieces + b"".join(more)
        await asyncio.sleep(0.05)
        stream.send(b"the end")
        assert await receive(client, 7) == b"the end"
        stream.close()
        client.close()

    asyncio.run(check())


def test_client_with_more_queued_bytes_than_the_limit_is_dropped(kind: type[Stream]) -> None:
    async def check() -> None:
        stream, client = stream_pair(kind)
        closed: list[Stream] = []
        stream.when_closed(closed.append)
        fill(stream, client, b"x" * 997)
        for _ in range(LIMIT_BYTES // 1000 + 2):
            stream.send(b"y" * 1000)
        await asyncio.sleep(0.05)
        assert closed == [stream]
        assert stream.is_closed
        assert not stream._queue
        stream.send(b"sent after the end")
        with pytest.raises(StreamClosedError):
            await stream.send_slowly(b"and this")
        client.close()

    asyncio.run(check())


def test_queue_references_the_shared_bytes_without_a_copy(kind: type[Stream]) -> None:
    async def check() -> None:
        stream, client = stream_pair(kind)
        fill(stream, client, b"x" * 997)
        shared = b"one encoding for all"
        stream.send(shared)
        assert stream._queue[-1] is shared
        stream.close()
        client.close()

    asyncio.run(check())


def test_when_closed_calls_back_for_a_stream_that_is_closed_already(kind: type[Stream]) -> None:
    async def check() -> None:
        stream, client = stream_pair(kind)
        client.close()
        while not stream.is_closed:
            await asyncio.sleep(0.01)
        closed: list[Stream] = []
        stream.when_closed(closed.append)
        assert closed == [stream]

    asyncio.run(check())


def test_send_does_not_overtake_send_slowly(kind: type[Stream]) -> None:
    """A heartbeat during a long replay is sent after the replay."""

    async def check() -> None:
        stream, client = stream_pair(kind)
        long = b"z" * 3_000_000
        sending = asyncio.ensure_future(stream.send_slowly(long))
        await asyncio.sleep(0.01)
        assert not sending.done()
        stream.send(b":\n\n")
        assert await receive(client, len(long) + 3) == long + b":\n\n"
        await sending
        stream.close()
        client.close()

    asyncio.run(check())
