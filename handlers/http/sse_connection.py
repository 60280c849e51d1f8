"""The connections of event streams. They are many and at rest, so each is as little as can be.

A plain connection leaves its `IOStream` and becomes a descriptor in one epoll of all streams: 10,000 of them are a few
megabytes, and nothing that the interpreter's garbage collector has to walk through. TLS needs the `IOStream`.
"""

from __future__ import annotations

import asyncio
import os
import select
import socket
from abc import ABC, abstractmethod
from collections.abc import Callable

from tornado.iostream import IOStream, SSLIOStream, StreamClosedError

_AT_ONCE = 256
_PIECES = 64
_PIECE = 65_536
_MOST_IN_KERNEL = 2**30


class Stream(ABC):
    """One client's open stream. `send` never waits; a client that owes more than the bound is dropped."""

    __slots__ = ("_bound", "_leaving", "is_closed")

    def __init__(self, bound: int, left: Callable[[Stream], object]) -> None:
        self.is_closed = False
        self._bound = bound
        self._leaving: tuple[Callable[[Stream], object], ...] = (left,)

    def when_closed(self, callback: Callable[[Stream], object]) -> None:
        """Calls `callback` when the client has left or was dropped; at once where that has happened."""
        if self.is_closed:
            callback(self)
        else:
            self._leaving += (callback,)

    def _left(self) -> None:
        self.is_closed = True
        leaving, self._leaving = self._leaving, ()
        for callback in leaving:
            callback(self)

    @abstractmethod
    def send(self, data: bytes) -> None: ...

    @abstractmethod
    async def send_slowly(self, data: bytes) -> None:
        """Returns when it is written, however much it is. Raises `StreamClosedError` when the client has left."""

    @abstractmethod
    def close(self) -> None: ...


class Poll:
    """All plain streams of the house, watched together."""

    def __init__(self) -> None:
        self._streams: dict[int, PlainStream] = {}
        self._epoll = select.epoll()
        self._loop = asyncio.get_running_loop()
        self._loop.add_reader(self._epoll.fileno(), self._ready)

    def add(self, fd: int, stream: PlainStream) -> None:
        self._epoll.register(fd, select.EPOLLIN)
        self._streams[fd] = stream

    def watch(self, fd: int, *, writable: bool) -> None:
        """Whether its stream is to be told that it can be written to."""
        self._epoll.modify(fd, select.EPOLLIN | select.EPOLLOUT if writable else select.EPOLLIN)

    def remove(self, fd: int) -> None:
        del self._streams[fd]
        self._epoll.unregister(fd)

    def _ready(self) -> None:
        for fd, events in self._epoll.poll(0, _AT_ONCE):
            if stream := self._streams.get(fd):
                stream.is_ready(events)

    def close(self) -> None:
        self._loop.remove_reader(self._epoll.fileno())
        self._epoll.close()


class PlainStream(Stream):
    """A descriptor. What a slow client owes are the very bytes that others were sent."""

    __slots__ = ("_allowed", "_drained", "_fd", "_owed", "_poll", "_queue")

    def __init__(self, io: IOStream, bound: int, left: Callable[[Stream], object], poll: Poll) -> None:
        """Takes the connection over from `io`. Raises `OSError` where there is no room; `io` is as it was then."""
        super().__init__(bound, left)
        self._poll = poll
        self._owed = 0
        self._allowed = bound
        self._queue: list[bytes] | None = None
        self._drained: asyncio.Future[None] | None = None
        _prepare(io, bound)
        self._fd = os.dup(io.socket.fileno())
        try:
            poll.add(self._fd, self)
        except OSError:
            os.close(self._fd)
            raise
        io.close()  # its descriptor; the connection is ours

    def send(self, data: bytes) -> None:
        if self._owed:
            self._owe(data)
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
            self._owe(data[sent:])

    def _owe(self, data: bytes) -> None:
        self._owed += len(data)
        if self._owed > self._allowed:
            self.close()
        elif self._queue is None:
            self._queue = [data]
        else:
            self._queue.append(data)

    async def send_slowly(self, data: bytes) -> None:
        if not self.is_closed:
            self._allowed = self._bound + self._owed + len(data)
            self.send(data)
            if self._owed and not self.is_closed:
                self._drained = asyncio.get_running_loop().create_future()
                await self._drained
        if self.is_closed:
            raise StreamClosedError

    def is_ready(self, events: int) -> None:
        if events & select.EPOLLOUT:
            self._flush()
        if events & ~select.EPOLLOUT and not self.is_closed:
            self._read()

    def _read(self) -> None:
        """Nobody has anything to say here; it is read to see the end."""
        try:
            if not os.read(self._fd, _PIECE):
                self.close()
        except BlockingIOError:
            pass
        except OSError:
            self.close()

    def _flush(self) -> None:
        queue = self._queue or []
        try:
            sent = os.writev(self._fd, queue[:_PIECES])
        except BlockingIOError:
            return
        except OSError:
            self.close()
            return
        self._owed -= sent
        done = 0
        while sent and sent >= len(queue[done]):
            sent -= len(queue[done])
            done += 1
        del queue[:done]
        if sent:
            queue[0] = queue[0][sent:]
        if not queue:
            self._is_drained()

    def _is_drained(self) -> None:
        self._queue, self._allowed = None, self._bound
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
        self._left()
        self._wake()


class IoStream(Stream):
    """A connection that stays an `IOStream`."""

    __slots__ = ("_io", "_owed", "_queue")

    def __init__(self, io: IOStream, bound: int, left: Callable[[Stream], object]) -> None:
        super().__init__(bound, left)
        self._io = io
        self._owed = 0
        self._queue: list[bytes] = []
        io.max_write_buffer_size = None  # we count ourselves
        io.set_close_callback(self._left)
        _prepare(io, bound)

    def send(self, data: bytes) -> None:
        if not self._owed:
            self._write(data)
            return
        self._owed += len(data)
        if self._owed > self._bound:
            self.close()
        else:
            self._queue.append(data)

    def _write(self, data: bytes) -> None:
        try:
            written = self._io.write(data)
        except StreamClosedError:
            return
        if self._io.writing():
            self._owed = len(data)
            written.add_done_callback(self._is_written)

    def _is_written(self, written: asyncio.Future[None]) -> None:
        data, self._queue, self._owed = b"".join(self._queue), [], 0
        if data and not self._io.closed():
            self._write(data)

    async def send_slowly(self, data: bytes) -> None:
        await self._io.write(data)

    def close(self) -> None:
        self._queue = []
        self._io.close()


def _prepare(io: IOStream, bound: int) -> None:
    """The kernel too keeps no more for a slow client than we do: left alone, it grows to megabytes for each."""
    if io.closed():
        return
    io.set_nodelay(True)
    io.socket.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, min(bound, _MOST_IN_KERNEL))


def taken_over(io: IOStream, bound: int, left: Callable[[Stream], object], poll: Poll) -> Stream:
    """A stream on a connection that Tornado has let go of."""
    if not isinstance(io, SSLIOStream) and not io.writing() and not io.closed():
        try:
            return PlainStream(io, bound, left, poll)
        except OSError:
            pass  # no descriptor is free: it keeps the one that it has
    return IoStream(io, bound, left)
