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
    """A descriptor of its own, and an IOStream as TLS has it."""
    return request.param


def fill(stream: Any, client: socket.socket, piece: bytes) -> int:
    """Sends until the kernel takes no more, and a little is owed; returns how many were sent."""
    count = 0
    while not stream._queued_bytes:
        stream.send(piece)
        count += 1
        assert count < 100_000
    return count


async def drained(client: socket.socket, size: int) -> bytes:
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
        assert await drained(client, pieces * 997 + 15 * 500) == b"x" * 997 * pieces + b"".join(more)
        await asyncio.sleep(0.05)
        stream.send(b"the end")
        assert await drained(client, 7) == b"the end"
        stream.close()
        client.close()

    asyncio.run(check())


def test_a_client_that_owes_more_than_the_bound_is_dropped_and_what_it_owed_is_let_go(kind: type[Stream]) -> None:
    async def check() -> None:
        stream, client = stream_pair(kind)
        left: list[Stream] = []
        stream.when_closed(left.append)
        fill(stream, client, b"x" * 997)
        for _ in range(LIMIT_BYTES // 1000 + 2):
            stream.send(b"y" * 1000)
        await asyncio.sleep(0.05)
        assert left == [stream]
        assert stream.is_closed
        assert not stream._queue
        stream.send(b"nobody hears this")
        with pytest.raises(StreamClosedError):
            await stream.send_slowly(b"nor this")
        client.close()

    asyncio.run(check())


def test_what_is_owed_are_the_very_bytes_that_others_were_sent(kind: type[Stream]) -> None:
    async def check() -> None:
        stream, client = stream_pair(kind)
        fill(stream, client, b"x" * 997)
        shared = b"one encoding for all"
        stream.send(shared)
        assert stream._queue[-1] is shared
        stream.close()
        client.close()

    asyncio.run(check())


def test_a_callback_for_the_end_is_called_though_it_comes_late(kind: type[Stream]) -> None:
    async def check() -> None:
        stream, client = stream_pair(kind)
        client.close()
        while not stream.is_closed:
            await asyncio.sleep(0.01)
        left: list[Stream] = []
        stream.when_closed(left.append)
        assert left == [stream]

    asyncio.run(check())


def test_what_is_sent_slowly_is_not_overtaken(kind: type[Stream]) -> None:
    """A heartbeat in the middle of a long replay comes after what was already on its way."""

    async def check() -> None:
        stream, client = stream_pair(kind)
        long = b"z" * 3_000_000
        sending = asyncio.ensure_future(stream.send_slowly(long))
        await asyncio.sleep(0.01)
        assert not sending.done()
        stream.send(b":\n\n")
        assert await drained(client, len(long) + 3) == long + b":\n\n"
        await sending
        stream.close()
        client.close()

    asyncio.run(check())
