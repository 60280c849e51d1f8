"""Connections of streams: unsent data of a slow client, its order, and when the client is dropped."""

from __future__ import annotations

import asyncio
import socket
import struct
from collections.abc import AsyncIterator
from typing import Any

import pytest
from stream_pairs import LIMIT_BYTES, stream_pair
from tornado.iostream import IOStream, StreamClosedError

from handlers.http.sse import Streams
from handlers.http.sse_connection import IoStream, PlainStream, Stream
from handlers.supervision.streams import send_pieces
from models.config.settings import Config


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


class Kept(Stream):
    """Keeps the events, and how many other turns the loop had run before each."""

    def __init__(self) -> None:
        super().__init__(0, lambda _: None)
        self.turns = 0
        self.events: list[tuple[int, bytes]] = []

    def send(self, data: bytes) -> None:
        self.events.append((self.turns, data))

    async def send_slowly(self, data: bytes) -> None:
        self.send(data)

    def close(self) -> None:
        self._on_closed()

    async def count_turns(self) -> None:
        while True:
            self.turns += 1
            await asyncio.sleep(0)


def sent(*pieces: bytes) -> Kept:
    """What a client of a log gets for these pieces, without the first event."""

    async def piece_by_piece() -> AsyncIterator[bytes]:
        for piece in pieces:
            yield piece

    async def send() -> None:
        counting = asyncio.create_task(kept.count_turns())
        await send_pieces(kept, piece_by_piece())
        counting.cancel()

    kept = Kept()
    asyncio.run(send())
    del kept.events[0]
    return kept


def test_a_large_end_of_a_log_is_sent_in_events_between_which_the_loop_runs() -> None:
    lines = [b"%d %s" % (number, b"x" * (number % 5000)) for number in range(10_000)] + [b"y" * 300_000, b"\xff", b""]
    kept = sent(b"".join(line + b"\n" for line in lines))
    turns, events = zip(*kept.events, strict=True)
    assert max(len(event) for event in events if b"yy" not in event) < 80_000
    assert max(event.count(b"data: ") for event in events) == 200
    assert all(event.startswith(b"event: log\ndata: ") and event.endswith(b"\n\n") for event in events)
    read = [line.removeprefix(b"data: ") for event in events for line in event.split(b"\n")[1:-2]]
    assert read == [line.replace(b"\xff", "\ufffd".encode()) for line in lines]
    assert len(set(turns)) == len(turns)


@pytest.mark.parametrize(
    ("piece", "events"),
    [
        (b"", []), (b"\n", [b"data: \n"]), (b"a\r\n\nb\n", [b"data: a\ndata: \ndata: b\n"]),
        (b"a\nb", [b"data: a\ndata: b\n"]), (b"a\n" * 201, [b"data: a\n" * 200, b"data: a\n"]),
    ],
)  # fmt: skip
def test_each_line_of_a_log_is_a_line_of_an_event(piece: bytes, events: list[bytes]) -> None:
    assert [event for _, event in sent(piece).events] == [b"event: log\n" + event + b"\n" for event in events]


@pytest.mark.parametrize("is_reset", [False, True])
def test_a_client_that_left_before_its_stream_began_holds_no_place(is_reset: bool) -> None:
    async def check() -> None:
        streams = Streams(Config().server)
        left = []
        with socket.create_server(("127.0.0.1", 0)) as listener:
            client = socket.create_connection(listener.getsockname())
            io = IOStream(listener.accept()[0])
        client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", is_reset, 0))
        client.close()
        with pytest.raises(StreamClosedError):
            await io.read_bytes(1)
        stream = streams.open(io, "live")
        stream.when_closed(lambda _: left.append("stream"))
        stream.send(b"data: late\n\n")
        assert (len(streams), stream.is_closed, left) == (0, True, ["stream"])
        streams.close()

    asyncio.run(check())
