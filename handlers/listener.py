"""Where requests come in: the listening sockets, and the certificate that they are served with."""

from __future__ import annotations

import errno
import logging
import socket
import ssl
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tornado.ioloop import IOLoop
from tornado.netutil import bind_sockets

from models.config.settings import Config
from supervisor.services import CannotStart

log = logging.getLogger("server")

_UNREAD_FOR = 300.0
"""Seconds for which a client may take nothing of what it is sent; the kernel counts."""
_NONE_FREE = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)
_ACCEPT_AGAIN = 1.0
_ACCEPTS = 4
_TLS_HANDSHAKE = b"\x16"
_TLS_FAULTS = {"KEY_VALUES_MISMATCH": "the key does not belong to the certificate"}


class Plain(socket.socket):
    """A connection without TLS. Who begins with it all the same is hung up on: both sides would wait for the other."""

    _is_new = True

    def recv_into(self, buffer: Any, nbytes: int = 0, flags: int = 0) -> int:
        read = super().recv_into(buffer, nbytes, flags)
        if self._is_new and read:
            self._is_new = False
            if bytes(buffer[:1]) == _TLS_HANDSHAKE:
                return 0
        return read


class Listener(socket.socket):
    """Takes a few connections at each turn of the loop: a burst of them holds it for no longer than they take.

    Where no descriptor is free, connections wait a second in the kernel's queue; the loop would spin otherwise.
    """

    _taken = 0
    is_plain = False

    @classmethod
    def of(cls, one: socket.socket, is_plain: bool) -> Listener:
        """Takes a listening socket over; its connections end where a client takes nothing for too long."""
        found = cls(fileno=one.detach())
        found.is_plain = is_plain
        found.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, int(1000 * _UNREAD_FOR))
        return found

    def accept(self) -> tuple[socket.socket, object]:
        if self._taken == _ACCEPTS:
            self._taken = 0
            raise BlockingIOError
        try:
            taken, address = super().accept()
        except BlockingIOError:
            self._taken = 0
            raise
        except OSError as error:
            if error.errno not in _NONE_FREE:
                raise
            log.error("connections wait: %s", error.strerror)
            IOLoop.current().update_handler(self, 0)
            IOLoop.current().call_later(_ACCEPT_AGAIN, self._go_on)
            raise BlockingIOError from None
        self._taken += 1
        if self.is_plain:
            taken = Plain(taken.family, taken.type, taken.proto, fileno=taken.detach())
        return taken, address

    def _go_on(self) -> None:
        if self.fileno() >= 0:
            IOLoop.current().update_handler(self, IOLoop.READ)


def listen(settings: Config, given: Sequence[socket.socket]) -> list[socket.socket]:
    """Opens the listening sockets, but for those that are given. Raises `CannotStart`."""
    is_plain = settings.server.tls.certificate is None
    sockets: list[socket.socket] = [Listener.of(one, is_plain) for one in given]
    if sockets:
        return sockets
    for address in settings.server.address:
        port = sockets[0].getsockname()[1] if sockets and not settings.server.port else settings.server.port
        try:
            sockets += [Listener.of(one, is_plain) for one in bind_sockets(port, address, backlog=1024)]
        except OSError as error:
            hint = " (--port takes another)" if error.errno == errno.EADDRINUSE else ""
            raise CannotStart(f"{address}:{port}: {error.strerror or error}{hint}") from None
    return sockets


def tls(settings: Config) -> ssl.SSLContext | None:
    """Raises `CannotStart` where certificate and key do not fit."""
    pair = settings.server.tls
    if pair.certificate is None:
        return None
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    for file in (pair.certificate, pair.key):
        try:
            Path(file or "").read_bytes()
        except OSError as error:
            raise CannotStart(f"server.tls: {file}: {error.strerror}") from None
    try:
        context.load_cert_chain(pair.certificate, pair.key)
    except ssl.SSLError as error:
        words = _TLS_FAULTS.get(error.reason, "certificate and key are not what they should be, PEM files")
        raise CannotStart(f"server.tls: {words}: {pair.certificate}, {pair.key}") from None
    return context
