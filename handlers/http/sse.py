"""Server-sent events: the open streams with their limit, heartbeat and end, and broadcasts to many streams.

A stream leaves Tornado's request handling once its head is sent. A broadcast encodes an item once, writes it to every
stream and waits for none; a client that cannot keep up is dropped.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Mapping
from typing import Generic, Protocol, TypeVar

from tornado.iostream import IOStream

from handlers.http.sse_connection import Poll, Stream, take_over
from models.config.settings import ServerSettings
from models.errors import Unavailable
from models.supervision.events import StatusEvent

HEARTBEAT_SECONDS = 20.0
RETRY_MILLISECONDS = 3000
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
_STREAMS_PER_ITERATION = 250
"""The streams written to before the loop runs other work."""
RESERVED_STREAMS = 10
"""For callers with an account; a tenth of `server.max-streams` if that is less."""
KINDS = ("processes", "logs", "runs", "live")
"""The kinds of streams."""
_MAX_BATCH_ITEMS = 100


class Numbered(Protocol):
    """A published item; ids ascend."""

    @property
    def id(self) -> int: ...


Item = TypeVar("Item", bound=Numbered)


def block(event: str, data: str, id: int | str | None = None, retry: int | None = None) -> bytes:
    """Returns one event; `data` has no line break."""
    head = f"event: {event}\n" + (f"id: {id}\n" if id is not None else "") + (f"retry: {retry}\n" if retry else "")
    return f"{head}data: {data}\n\n".encode("utf-8", "replace")


class Streams:
    """All open streams: their limit, their heartbeat and their end."""

    statuses: Broadcast[StatusEvent]
    """Status changes of processes."""

    def __init__(self, settings: ServerSettings) -> None:
        self._settings = settings
        self._open: dict[str, set[Stream]] = {kind: set() for kind in KINDS}
        self._discard = {kind: streams.discard for kind, streams in self._open.items()}
        """One bound method for all streams of a kind, to save memory."""
        self._poll: Poll | None = None
        self._heart: asyncio.Task[None] | None = None

    def __len__(self) -> int:
        return sum(map(len, self._open.values()))

    def __iter__(self) -> Iterator[Stream]:
        """Iterates over a copy, so that streams may close meanwhile."""
        return iter([stream for streams in self._open.values() for stream in streams])

    def by_kind(self) -> Mapping[str, int]:
        return {kind: len(streams) for kind, streams in self._open.items()}

    def check(self, is_authenticated: bool) -> None:
        """The last places are for callers with an account. Raises `Unavailable` when all are taken."""
        places = self._settings.max_streams
        if not is_authenticated:
            places -= min(RESERVED_STREAMS, places // 10)
        if len(self) >= places:
            raise Unavailable(f"all {places} streams are in use")

    def open(self, io: IOStream, kind: str, cookie: str = "") -> Stream:
        """Takes over a connection and sends the head of the response, with `cookie` as Set-Cookie.

        A client that has disconnected meanwhile is not counted.
        """
        if self._poll is None or self._heart is None:
            self._poll = Poll()
            self._heart = asyncio.get_running_loop().create_task(self._beat(), name="heartbeat")
        stream = take_over(io, self._settings.stream_buffer, self._discard[kind], self._poll)
        if stream.is_closed:
            return stream
        self._open[kind].add(stream)
        stream.send(f"Set-Cookie: {cookie}\r\n".encode().join((_HEAD[:-2], _HEAD[-2:])) if cookie else _HEAD)
        return stream

    async def _beat(self) -> None:
        while True:
            await asyncio.sleep(HEARTBEAT_SECONDS)
            for number, stream in enumerate(self, 1):
                stream.send(b":\n\n")
                if number % _STREAMS_PER_ITERATION == 0:
                    await asyncio.sleep(0)

    def close(self) -> None:
        if self._heart is not None:
            self._heart.cancel()
        for stream in self:
            stream.close()
        if self._poll is not None:
            self._poll.close()


class Broadcast(Generic[Item]):
    """Publishes items to many streams: each is encoded once, and one write sends all items of a loop iteration."""

    def __init__(self, encode: Callable[[Item], bytes]) -> None:
        self._encode = encode
        self._streams: dict[Stream, int] = {}
        self._waiting: list[tuple[int, bytes]] = []
        self._sending: asyncio.Task[None] | None = None

    def add(self, stream: Stream, after: int) -> None:
        """Subscribes a stream to the items with an id above `after`, the last one it has received."""
        self._streams[stream] = after
        stream.when_closed(lambda _: self._streams.pop(stream, None))

    def publish(self, item: Item) -> None:
        if self._streams:
            self._waiting.append((item.id, self._encode(item)))
            if self._sending is None:
                self._sending = asyncio.get_running_loop().create_task(self._send(), name="broadcast")

    async def _send(self) -> None:
        while self._waiting:
            batch, self._waiting = self._waiting[:_MAX_BATCH_ITEMS], self._waiting[_MAX_BATCH_ITEMS:]
            whole, first = b"".join(block for _, block in batch), batch[0][0]
            for number, (stream, after) in enumerate(tuple(self._streams.items()), 1):
                stream.send(whole if after < first else b"".join(block for id, block in batch if id > after))
                if number % _STREAMS_PER_ITERATION == 0:
                    await asyncio.sleep(0)
            await asyncio.sleep(0)  # a client that keeps up has read this batch before the next
        self._sending = None
