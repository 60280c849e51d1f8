"""The connections of event streams, with little memory for each, because thousands are idle.

A plain connection leaves its `IOStream` and becomes a descriptor in one epoll set: 10,000 take a few megabytes and
nothing that the garbage collector visits. A TLS connection keeps its `IOStream`.
"""

from __future__ import annotations

import asyncio
import os
import select
import socket
from abc import ABC, abstractmethod
from collections.abc import Callable

from tornado.iostream import IOStream, SSLIOStream, StreamClosedError

_MAX_EVENTS_PER_POLL = 256
_MAX_BUFFERS_PER_WRITE = 64
_READ_BYTES = 65_536
_MAX_SEND_BUFFER_BYTES = 2**30


class Stream(ABC):
    """A client's open stream. `send` never waits; a client with more unread bytes than the limit is dropped."""

    __slots__ = ("_limit", "_on_close", "is_closed")

    def __init__(self, limit: int, on_close: Callable[[Stream], object]) -> None:
        self.is_closed = False
        self._limit = limit
        self._on_close: tuple[Callable[[Stream], object], ...] = (on_close,)

    def when_closed(self, callback: Callable[[Stream], object]) -> None:
        """Calls `callback` when the client disconnects or is dropped; at once if it has."""
        if self.is_closed:
            callback(self)
        else:
            self._on_close += (callback,)

    def _on_closed(self) -> None:
        self.is_closed = True
        callbacks, self._on_close = self._on_close, ()
        for callback in callbacks:
            callback(self)

    @abstractmethod
    def send(self, data: bytes) -> None: ...

    @abstractmethod
    async def send_slowly(self, data: bytes) -> None:
        """Returns when all of it is written. Raises `StreamClosedError` when the client has disconnected."""

    @abstractmethod
    def close(self) -> None: ...


class Poll:
    """One epoll set for all plain streams."""

    def __init__(self) -> None:
        self._streams: dict[int, PlainStream] = {}
        self._epoll = select.epoll()
        self._loop = asyncio.get_running_loop()
        self._loop.add_reader(self._epoll.fileno(), self._on_events)

    def add(self, fd: int, stream: PlainStream) -> None:
        self._epoll.register(fd, select.EPOLLIN)
        self._streams[fd] = stream

    def watch(self, fd: int, *, writable: bool) -> None:
        """Sets whether the stream learns when it is writable."""
        self._epoll.modify(fd, select.EPOLLIN | select.EPOLLOUT if writable else select.EPOLLIN)

    def remove(self, fd: int) -> None:
        del self._streams[fd]
        self._epoll.unregister(fd)

    def _on_events(self) -> None:
        for fd, events in self._epoll.poll(0, _MAX_EVENTS_PER_POLL):
            if stream := self._streams.get(fd):
                stream.on_events(events)

    def close(self) -> None:
        self._loop.remove_reader(self._epoll.fileno())
        self._epoll.close()


class PlainStream(Stream):
    """A stream without TLS. Slow clients share the bytes of a broadcast; nothing is copied for them."""

    __slots__ = ("_current_limit", "_drained", "_fd", "_poll", "_queue", "_queued_bytes")

    def __init__(self, io: IOStream, limit: int, on_close: Callable[[Stream], object], poll: Poll) -> None:
        """Takes over the connection of `io`. Raises `OSError` where no descriptor is free; `io` is unchanged then."""
        super().__init__(limit, on_close)
        self._poll = poll
        self._queued_bytes = 0
        self._current_limit = limit
        self._queue: list[bytes] | None = None
        self._drained: asyncio.Future[None] | None = None
        _prepare(io, limit)
        self._fd = os.dup(io.socket.fileno())
        try:
            poll.add(self._fd, self)
        except OSError:
            os.close(self._fd)
            raise
        io.close()  # closes its own descriptor, not the duplicate

    def send(self, data: bytes) -> None:
        if self._queued_bytes:
            self._queue_or_drop(data)
            return
        try:
            sent = os.write(self._fd, data)
        except BlockingIOError:
            sent = 0
        except OSError:
            self.close()
            return
        if sent < len(data):
            self._poll.watch(self._fd, writable=True)
            self._queue_or_drop(data[sent:])

    def _queue_or_drop(self, data: bytes) -> None:
        self._queued_bytes += len(data)
        if self._queued_bytes > self._current_limit:
            self.close()
        elif self._queue is None:
            self._queue = [data]
        else:
            self._queue.append(data)

    async def send_slowly(self, data: bytes) -> None:
        if not self.is_closed:
            self._current_limit = self._limit + self._queued_bytes + len(data)
            self.send(data)
            if self._queued_bytes and not self.is_closed:
                self._drained = asyncio.get_running_loop().create_future()
                await self._drained
        if self.is_closed:
            raise StreamClosedError

    def on_events(self, events: int) -> None:
        if events & select.EPOLLOUT:
            self._flush()
        if events & ~select.EPOLLOUT and not self.is_closed:
            self._read()

    def _read(self) -> None:
        """Clients send nothing; reading detects the end of the connection."""
        try:
            if not os.read(self._fd, _READ_BYTES):
                self.close()
        except BlockingIOError:
            pass
        except OSError:
            self.close()

    def _flush(self) -> None:
        queue = self._queue or []
        try:
            sent = os.writev(self._fd, queue[:_MAX_BUFFERS_PER_WRITE])
        except BlockingIOError:
            return
        except OSError:
            self.close()
            return
        self._queued_bytes -= sent
        done = 0
        while sent and sent >= len(queue[done]):
            sent -= len(queue[done])
            done += 1
        del queue[:done]
        if sent:
            queue[0] = queue[0][sent:]
        if not queue:
            self._on_drained()

    def _on_drained(self) -> None:
        self._queue, self._current_limit = None, self._limit
        self._poll.watch(self._fd, writable=False)
        self._wake()

    def _wake(self) -> None:
        drained, self._drained = self._drained, None
        if drained is not None and not drained.done():
            drained.set_result(None)

    def close(self) -> None:
        if self.is_closed:
            return
        fd, self._fd, self._queue = self._fd, -1, None
        self._poll.remove(fd)
        os.close(fd)
        self._on_closed()
        self._wake()


class IoStream(Stream):
    """A stream that keeps its `IOStream`, for TLS."""

    __slots__ = ("_io", "_queue", "_queued_bytes")

    def __init__(self, io: IOStream, limit: int, on_close: Callable[[Stream], object]) -> None:
        super().__init__(limit, on_close)
        self._io = io
        self._queued_bytes = 0
        self._queue: list[bytes] = []
        if io.closed():  # it would never call the callback
            self._on_closed()
            return
        io.max_write_buffer_size = None  # `_limit` applies instead
        io.set_close_callback(self._on_closed)
        _prepare(io, limit)

    def send(self, data: bytes) -> None:
        if not self._queued_bytes:
            self._write(data)
            return
        self._queued_bytes += len(data)
        if self._queued_bytes > self._limit:
            self.close()
        else:
            self._queue.append(data)

    def _write(self, data: bytes) -> None:
        try:
            written = self._io.write(data)
        except StreamClosedError:
            return
        if self._io.writing():
            self._queued_bytes = len(data)
            written.add_done_callback(self._on_written)

    def _on_written(self, written: asyncio.Future[None]) -> None:
        data, self._queue, self._queued_bytes = b"".join(self._queue), [], 0
        if data and not self._io.closed():
            self._write(data)

    async def send_slowly(self, data: bytes) -> None:
        await self._io.write(data)

    def close(self) -> None:
        self._queue = []
        self._io.close()


def _prepare(io: IOStream, limit: int) -> None:
    """Limits the kernel's send buffer too, which would grow to megabytes for each slow client."""
    if io.closed():
        return
    io.set_nodelay(True)
    io.socket.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, min(limit, _MAX_SEND_BUFFER_BYTES))


def take_over(io: IOStream, limit: int, on_close: Callable[[Stream], object], poll: Poll) -> Stream:
    """Returns a stream on a connection that Tornado has detached; a closed one if its client has disconnected."""
    if not isinstance(io, SSLIOStream) and not io.writing() and not io.closed():
        try:
            return PlainStream(io, limit, on_close, poll)
        except OSError:
            pass  # no descriptor is free: the stream keeps the one of `io`
    return IoStream(io, limit, on_close)
