"""Event streams: each a bound on what it may owe, all of them a heartbeat and an end.

A stream leaves Tornado's request machinery once its head is sent. Publishing writes one encoding to all and waits for
none; who cannot keep up is dropped.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Mapping
from typing import Generic, Protocol, TypeVar

from tornado.iostream import IOStream

from handlers.http.sse_connection import Poll, Stream, taken_over
from models.config.settings import Server
from models.errors import Unavailable
from models.supervision.events import Entry

HEARTBEAT = 20.0
RETRY = 3000
STREAM_HEADERS = {
    "Content-Type": "text/event-stream",
    "Cache-Control": "no-cache",
    "X-Accel-Buffering": "no",
    "X-Content-Type-Options": "nosniff",
    "Vary": "Accept",
}
_HEAD = "".join(
    [
        "HTTP/1.1 200 OK\r\n",
        *(f"{name}: {value}\r\n" for name, value in STREAM_HEADERS.items()),
        "Connection: close\r\n\r\n",
    ]
).encode()
_TURN = 250
RESERVED_STREAMS = 10
"""For callers with an account; a tenth of `server.max-streams` if that is less."""
KINDS = ("processes", "logs", "runs")
"""What the streams are about."""
_BATCH = 100


class Numbered(Protocol):
    """What is published: ids grow."""

    @property
    def id(self) -> int: ...


Item = TypeVar("Item", bound=Numbered)


def block(event: str, data: str, id: int | None = None, retry: int | None = None) -> bytes:
    """One event of a stream; `data` has no line break."""
    head = f"event: {event}\n" + (f"id: {id}\n" if id is not None else "") + (f"retry: {retry}\n" if retry else "")
    return f"{head}data: {data}\n\n".encode("utf-8", "replace")


class Streams:
    """All open streams: how many there may be, their heartbeat, and their end."""

    statuses: Broadcast[Entry]
    """The changes of processes, to whoever asked for them."""

    def __init__(self, settings: Server) -> None:
        self._settings = settings
        self._open: dict[str, set[Stream]] = {kind: set() for kind in KINDS}
        self._left = {kind: ours.discard for kind, ours in self._open.items()}
        """One for all of a kind: each would be an object of its own."""
        self._poll: Poll | None = None
        self._heart: asyncio.Task[None] | None = None

    def __len__(self) -> int:
        return sum(map(len, self._open.values()))

    def __iter__(self) -> Iterator[Stream]:
        """Those that are open now, whatever closes meanwhile."""
        return iter([stream for ours in self._open.values() for stream in ours])

    def by_kind(self) -> Mapping[str, int]:
        return {kind: len(ours) for kind, ours in self._open.items()}

    def check(self, is_authenticated: bool) -> None:
        """The last places are for callers with an account. Raises `Unavailable` when all are taken."""
        places = self._settings.max_streams
        if not is_authenticated:
            places -= min(RESERVED_STREAMS, places // 10)
        if len(self) >= places:
            raise Unavailable(f"all {places} streams are taken")

    def open(self, io: IOStream, kind: str, cookie: str = "") -> Stream:
        """Takes a connection over and sends the head of the answer; `cookie` is what it sets."""
        if self._poll is None or self._heart is None:
            self._poll = Poll()
            self._heart = asyncio.get_running_loop().create_task(self._beat(), name="heartbeat")
        stream = taken_over(io, self._settings.stream_buffer, self._left[kind], self._poll)
        self._open[kind].add(stream)
        stream.send(f"Set-Cookie: {cookie}\r\n".encode().join((_HEAD[:-2], _HEAD[-2:])) if cookie else _HEAD)
        return stream

    async def _beat(self) -> None:
        while True:
            await asyncio.sleep(HEARTBEAT)
            for number, stream in enumerate(self, 1):
                stream.send(b":\n\n")
                if number % _TURN == 0:
                    await asyncio.sleep(0)

    def close(self) -> None:
        if self._heart is not None:
            self._heart.cancel()
        for stream in self:
            stream.close()
        if self._poll is not None:
            self._poll.close()


class Broadcast(Generic[Item]):
    """One feed to many streams: encoded once, in as few writes as there are turns of the loop."""

    def __init__(self, encode: Callable[[Item], bytes]) -> None:
        self._encode = encode
        self._streams: dict[Stream, int] = {}
        self._waiting: list[tuple[int, bytes]] = []
        self._sending: asyncio.Task[None] | None = None

    def add(self, stream: Stream, after: int) -> None:
        """The stream gets every item from now on whose id is above `after`, the last that it has had."""
        self._streams[stream] = after
        stream.when_closed(lambda _: self._streams.pop(stream, None))

    def publish(self, item: Item) -> None:
        if self._streams:
            self._waiting.append((item.id, self._encode(item)))
            if self._sending is None:
                self._sending = asyncio.get_running_loop().create_task(self._send(), name="broadcast")

    async def _send(self) -> None:
        while self._waiting:
            batch, self._waiting = self._waiting[:_BATCH], self._waiting[_BATCH:]
            whole, first = b"".join(block for _, block in batch), batch[0][0]
            for number, (stream, after) in enumerate(tuple(self._streams.items()), 1):
                stream.send(whole if after < first else b"".join(block for id, block in batch if id > after))
                if number % _TURN == 0:
                    await asyncio.sleep(0)
            await asyncio.sleep(0)  # who reads as fast as we write owes nothing by the next batch
        self._sending = None
