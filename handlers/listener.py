"""Listening sockets, their connections and TLS, and the bytes that unfinished requests may hold."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import logging
import socket
import ssl
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from tornado.httpserver import HTTPServer
from tornado.ioloop import IOLoop
from tornado.iostream import IOStream
from tornado.netutil import bind_sockets

from handlers.http.memory import Trimmer
from models.config.settings import Config
from supervisor.cli.ctl.discovery import data_place, lock_holder
from supervisor.services import CannotStart

log = logging.getLogger("server")

_UNREAD_SECONDS = 300.0
"""How long sent data may stay unread by the client; the kernel measures this."""
_OUT_OF_DESCRIPTORS = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)
_ACCEPT_RETRY_SECONDS = 1.0
_MAX_ACCEPTS_PER_EVENT = 4
_BACKLOG = 1024
_TLS_HANDSHAKE = b"\x16"
_TLS_FAULTS = {"KEY_VALUES_MISMATCH": "the key does not belong to the certificate"}
_MAX_HEAD_BYTES = 64 * 1024
"""Tornado's default: it closes the connection of a longer head."""
_MAX_DRAINED_BYTES = 1024 * 1024


def _response(status: bytes, reason: bytes) -> bytes:
    text = b"%s: %s\n" % (status, reason)
    return (
        b"HTTP/1.1 %s\r\nContent-Type: text/plain; charset=utf-8\r\nConnection: close\r\nContent-Length: %d\r\n\r\n%s"
        % (status, len(text), text)
    )


_REQUEST_TIMEOUT = _response(b"408 Request Timeout", b"the server needs the memory of unfinished requests")
_HEAD_TOO_LARGE = _response(b"431 Request Header Fields Too Large", b"the URL and the headers have more than 64 KiB")


class UnfinishedRequests:
    """Limits the bytes of unfinished heads and bodies over all connections; the oldest are answered 408 and closed."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._total = 0
        self._memory = Trimmer()
        self._held: dict[ClientSocket, int] = {}
        """By connection, the one whose request began first at the front."""

    def add(self, connection: ClientSocket, size: int) -> bool:
        """Counts bytes that a connection has received. Returns False where it is closed for them."""
        self._held[connection] = self._held.get(connection, 0) + size
        self._total += size
        while self._total > self._limit:
            oldest = next(iter(self._held))
            self.remove(oldest)
            if not oldest.expire() and oldest is connection:
                return False
        return True

    def subtract(self, connection: ClientSocket, size: int) -> None:
        """Bytes of an unfinished request that are no longer in memory."""
        if connection in self._held:
            size = min(size, self._held[connection])
            self._held[connection] -= size
            self._total -= size

    @property
    def is_short(self) -> bool:
        """Whether a quarter of the limit is held: then less is buffered for each request."""
        return self._total > self._limit // 4

    def held(self, connection: ClientSocket) -> int:
        return self._held.get(connection, 0)

    def remove(self, connection: ClientSocket) -> None:
        """The request is complete, or its connection closed."""
        self._total -= self._held.pop(connection, 0)
        self._memory.request_ended()


class ClientSocket(socket.socket):
    """A client's connection. `on_expired` ends a request whose head has come; without it a head is awaited."""

    unfinished: UnfinishedRequests | None = None
    on_expired: Callable[[], object] | None = None

    def recv_into(self, buffer: Any, nbytes: int | None = None, flags: int = 0) -> int:
        size = super().recv_into(buffer, nbytes or 0, flags)
        if size and self.unfinished is not None and not self.unfinished.add(self, size):
            return 0
        return size

    @property
    def is_memory_short(self) -> bool:
        return self.unfinished is not None and self.unfinished.is_short

    def expire(self) -> bool:
        """Ends the unfinished request. Returns whether the connection closes later, when it has sent its response."""
        if self.on_expired is not None:
            asyncio.get_running_loop().call_soon(self.on_expired)
            return True
        with contextlib.suppress(OSError):  # the client reads nothing, or TLS is still being negotiated
            self.send(_REQUEST_TIMEOUT)
        self.abort()
        return False

    def abort(self) -> None:
        """Has Tornado find the end of the connection at its next read."""
        with contextlib.suppress(OSError):  # the client has left
            self.shutdown(socket.SHUT_RD)

    def request_complete(self) -> None:
        """The whole request has come; while it is answered the connection holds nothing of it."""
        self.on_expired = self.abort
        if self.unfinished is not None:
            self.unfinished.remove(self)

    def close(self) -> None:
        if self.unfinished is not None:
            if self.on_expired is None and self.unfinished.held(self) > _MAX_HEAD_BYTES:
                self._refuse_head()
            self.unfinished.remove(self)
        self.on_expired = None
        super().close()

    def _refuse_head(self) -> None:
        """Responds before Tornado closes the connection of a head that is too long.

        The client would see a reset instead of the response if the kernel held bytes that were not read.
        """
        with contextlib.suppress(OSError):  # the client has left, or has sent no more yet
            self.send(_HEAD_TOO_LARGE)
            drained = 0
            while drained < _MAX_DRAINED_BYTES and (size := len(self.recv(_MAX_HEAD_BYTES))):
                drained += size


class PlainConnection(ClientSocket):
    """A connection without TLS. A client that begins a TLS handshake is disconnected; both would wait otherwise."""

    _is_new = True

    def recv_into(self, buffer: Any, nbytes: int | None = None, flags: int = 0) -> int:
        size = super().recv_into(buffer, nbytes, flags)
        if self._is_new and size:
            self._is_new = False
            if bytes(buffer[:1]) == _TLS_HANDSHAKE:
                return 0
        return size


class TlsConnection(ClientSocket, ssl.SSLSocket):
    """A connection with TLS: `ssl.SSLContext.sslsocket_class`."""


class ListeningServer(HTTPServer):
    """Tornado's server, with a limit on what unfinished requests hold."""

    unfinished: UnfinishedRequests | None = None

    def handle_stream(self, stream: IOStream, address: tuple[str, int]) -> None:
        if isinstance(stream.socket, ClientSocket):
            stream.socket.unfinished = self.unfinished
        super().handle_stream(stream, address)


class ListeningSocket(socket.socket):
    """Accepts a few connections at each iteration of the loop, so that a burst of them does not block it.

    Where no descriptor is free, connections wait a second in the kernel's queue; the loop would spin otherwise.
    """

    _accepted = 0
    is_plain = False

    @classmethod
    def of(cls, listening: socket.socket, is_plain: bool) -> ListeningSocket:
        """Takes a listening socket over; a connection ends when its client reads nothing for too long."""
        listener = cls(fileno=listening.detach())
        listener.is_plain = is_plain
        listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, int(1000 * _UNREAD_SECONDS))
        return listener

    def accept(self) -> tuple[socket.socket, object]:
        if self._accepted == _MAX_ACCEPTS_PER_EVENT:
            self._accepted = 0
            raise BlockingIOError
        try:
            connection, address = super().accept()
        except BlockingIOError:
            self._accepted = 0
            raise
        except OSError as error:
            if error.errno not in _OUT_OF_DESCRIPTORS:
                raise
            log.error("connections wait: %s", error.strerror)
            IOLoop.current().update_handler(self, 0)
            IOLoop.current().call_later(_ACCEPT_RETRY_SECONDS, self._resume)
            raise BlockingIOError from None
        self._accepted += 1
        if self.is_plain:
            connection = PlainConnection(
                connection.family, connection.type, connection.proto, fileno=connection.detach()
            )
        return connection, address

    def _resume(self) -> None:
        if self.fileno() >= 0:
            IOLoop.current().update_handler(self, IOLoop.READ)


def listen(settings: Config, given: Sequence[socket.socket]) -> list[socket.socket]:
    """Opens the listening sockets, unless systemd has passed them (`given`). Raises `CannotStart`."""
    is_plain = settings.server.tls.certificate is None
    sockets: list[socket.socket] = [ListeningSocket.of(listening, is_plain) for listening in given]
    if sockets:
        return sockets
    for address in settings.server.address:
        port = sockets[0].getsockname()[1] if sockets and not settings.server.port else settings.server.port
        try:
            sockets += [ListeningSocket.of(bound, is_plain) for bound in bind_sockets(port, address, backlog=_BACKLOG)]
        except OSError as error:
            hint = _owner_of(settings, port) if error.errno == errno.EADDRINUSE else ""
            raise CannotStart(f"{address}:{port}: {error.strerror or error}{hint}") from None
    return sockets


def _owner_of(settings: Config, port: int) -> str:
    """Who listens on a port that is in use: the server of this data directory, or else how to take another port."""
    place = data_place(Path(settings.server.data_dir))
    if any(address.url.endswith(f":{port}") for address in place.addresses):
        return f": pilothouse runs there already (pid {lock_holder(Path(settings.server.data_dir))}, {place.name})"
    return " (SERVER_PORT or --port takes another)"


def tls(settings: Config) -> ssl.SSLContext | None:
    """Returns the context of `server.tls`. Raises `CannotStart` where certificate and key do not fit."""
    pair = settings.server.tls
    if pair.certificate is None:
        return None
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.sslsocket_class = TlsConnection
    for file in (pair.certificate, pair.key):
        try:
            Path(file or "").read_bytes()
        except OSError as error:
            raise CannotStart(f"server.tls: {file}: {error.strerror}") from None
    try:
        context.load_cert_chain(pair.certificate, pair.key)
    except ssl.SSLError as error:
        reason = _TLS_FAULTS.get(error.reason, "certificate and key are not what they should be, PEM files")
        raise CannotStart(f"server.tls: {reason}: {pair.certificate}, {pair.key}") from None
    return context
