"""Long-lived event streams: status changes, log lines, and the tracker's runs.

A stream leaves Tornado's request machinery once its head is sent: it is then a socket, a bound on what it may owe, and
nothing else. Publishing writes one encoding to all and waits for none; who cannot keep up is dropped.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from tornado.iostream import IOStream, StreamBufferFullError, StreamClosedError

from handlers import wire
from handlers.base import Base
from handlers.gates import readers
from handlers.routing import Route
from models import events
from models.config import Server
from models.errors import Unavailable
from models.events import Entry

HEARTBEAT = 20.0
_HEAD = (
    b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nCache-Control: no-cache\r\nX-Accel-Buffering: no\r\n"
    b"X-Content-Type-Options: nosniff\r\nVary: Accept\r\nConnection: close\r\n\r\n"
)
_REPLAY = 500
_RETRY = 3000


def block(event: str, data: str, id: int | None = None, retry: int | None = None) -> bytes:
    """One event of a stream; `data` has no line break."""
    head = f"event: {event}\n" + (f"id: {id}\n" if id is not None else "") + (f"retry: {retry}\n" if retry else "")
    return f"{head}data: {data}\n\n".encode("utf-8", "replace")


class Stream:
    """One client's open stream. `send` never waits; a client that owes more than the bound is dropped."""

    def __init__(self, io: IOStream, bound: int, left: Callable[[Stream], None]) -> None:
        self._io = io
        io.max_write_buffer_size = bound
        self.closed = asyncio.get_running_loop().create_future()
        self._left = left
        io.set_close_callback(self._is_closed)
        io.set_nodelay(True)

    def _is_closed(self) -> None:
        self.closed.set_result(None)
        self._left(self)

    def send(self, data: bytes) -> None:
        try:
            self._io.write(data)
        except StreamBufferFullError:
            self._io.close()
        except StreamClosedError:
            pass

    async def send_slowly(self, data: bytes) -> None:
        """Returns when it is written. Raises `StreamClosedError` when the client has left."""
        await self._io.write(data)

    def close(self) -> None:
        self._io.close()


class Streams:
    """All open streams: how many there may be, their heartbeat, and their end."""

    def __init__(self, settings: Server) -> None:
        self._settings = settings
        self._open: set[Stream] = set()
        self._heart: asyncio.Task[None] | None = None

    def __len__(self) -> int:
        return len(self._open)

    def check(self) -> None:
        """Raises `Unavailable` when there are as many as may be."""
        if len(self._open) >= self._settings.max_streams:
            raise Unavailable(f"all {self._settings.max_streams} streams are taken")

    def open(self, io: IOStream) -> Stream:
        stream = Stream(io, self._settings.stream_buffer, self._open.discard)
        self._open.add(stream)
        if self._heart is None:
            self._heart = asyncio.get_running_loop().create_task(self._beat(), name="heartbeat")
        return stream

    async def _beat(self) -> None:
        while True:
            await asyncio.sleep(HEARTBEAT)
            for number, stream in enumerate(tuple(self._open)):
                stream.send(b":\n\n")
                if number % 250 == 249:
                    await asyncio.sleep(0)

    def close(self) -> None:
        if self._heart is not None:
            self._heart.cancel()
        for stream in tuple(self._open):
            stream.close()


class Streaming(Base):
    """A handler that answers with an event stream."""

    gate = staticmethod(readers)

    async def head(self, *arguments: str) -> None:
        self.set_header("Content-Type", "text/event-stream")

    def open(self) -> Stream:
        """Sends the head and takes the connection over. Raises `Unavailable`."""
        return open_stream(self)


def open_stream(handler: Base) -> Stream:
    streams: Streams = handler.application.streams  # type: ignore[attr-defined]
    streams.check()
    stream = streams.open(handler.detach())
    stream.send(_HEAD)
    return stream


class StatusStream(Streaming):
    """Every status change as `event: status`; `Last-Event-ID` brings what was missed, without a gap."""

    async def get(self) -> None:
        last = self.request.headers.get("Last-Event-ID", "")
        self.application.streams.check()  # type: ignore[attr-defined]
        missed = await self._missed(int(last)) if last.isdigit() and len(last) < 19 else []
        stream = self.open()
        stream.send(f"retry: {_RETRY}\n: status changes\n\n".encode() + b"".join(map(_status, missed)))
        end = self.services.changes.subscribe(lambda entry: stream.send(_status(entry)))
        stream.closed.add_done_callback(lambda _: end())

    async def _missed(self, last: int) -> list[Entry]:
        missed: list[Entry] = []
        while True:
            some = events.since(missed[-1].id if missed else last, _REPLAY)
            missed += some
            if len(some) < _REPLAY:
                return missed
            await asyncio.sleep(0)


def _status(entry: Entry) -> bytes:
    kept = _encoded.get("entry")
    if kept is None or kept[0] is not entry:
        data = wire.text(wire.plain(wire.event_entry(entry)))
        kept = _encoded["entry"] = (entry, block("status", data, entry.id))
    return kept[1]


_encoded: dict[str, tuple[Entry, bytes]] = {}


class RunStream(Streaming):
    """The tracker's stream: `connected`, then one `run` for each run that is ingested."""

    def get(self) -> None:
        self.open().send(block("connected", "{}", retry=_RETRY))


async def follow_log(handler: Any, path: str, lines: int) -> None:
    """Sends the end of a log file and then what is added, as `event: log` with a `data:` for each line."""
    if handler.request.method == "HEAD":
        handler.set_header("Content-Type", "text/event-stream")
        return
    stream = open_stream(handler)
    work = asyncio.ensure_future(_follow(stream, handler.services.logs.follow(path, lines)))
    stream.closed.add_done_callback(lambda _: work.cancel())


async def _follow(stream: Stream, pieces: Any) -> None:
    await stream.send_slowly(f"retry: {_RETRY}\n\n".encode())
    async for piece in pieces:
        data = "".join(f"data: {line}\n" for line in piece.decode("utf-8", "replace").replace("\r", "").splitlines())
        if data:
            await stream.send_slowly(f"event: log\n{data}\n".encode())


routes: list[Route] = [(r"/events", RunStream)]
