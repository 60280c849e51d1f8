"""Notifications of processes (sd_notify(3)): readiness, status text and watchdog, over one socket for each process.

The abstract socket of each instance has a name that nobody can guess, so that no other program binds it before. It is
made with the key of the store, so that the next run of the server binds the same name after a kill -9.
"""

from __future__ import annotations

import array
import asyncio
import contextlib
import hashlib
import logging
import os
import re
import socket
import struct
from collections.abc import Callable, Iterator

from attrs import frozen

from models.supervision.process import ProcessSpec
from models.times import SECOND
from supervisor.children.proc import environment

log = logging.getLogger("notify")

SOCKET_VARIABLE, WATCHDOG_VARIABLE = "NOTIFY_SOCKET", "WATCHDOG_USEC"
MAX_MESSAGE_BYTES, MAX_STATUS_BYTES, MAX_EXTENSION_SECONDS = 4096, 1024, 3600.0
_MAX_MESSAGES_PER_SECOND = 100
_MAX_DESCRIPTORS = 253  # of one message, by the kernel
_ADDRESS = re.compile(rb"@pilothouse-[0-9a-f]{32}")
_CREDENTIALS = struct.Struct("3i")


@frozen
class Notification:
    """The known fields of one message; `None` for a missing field."""

    ready: bool = False
    status: str | None = None
    extension: float | None = None
    """Seconds from now."""
    watchdog: str | None = None
    """`1` or `trigger`."""


def parsed(message: bytes) -> Notification:
    """Parses a message; unknown and malformed fields are ignored."""
    fields = dict(line.split(b"=", 1) for line in message.split(b"\n") if b"=" in line)
    status, extension, watchdog = (fields.get(name) for name in (b"STATUS", b"EXTEND_TIMEOUT_USEC", b"WATCHDOG"))
    is_number = extension is not None and extension.isdigit() and len(extension) < MAX_STATUS_BYTES
    return Notification(
        ready=fields.get(b"READY") == b"1",
        status=None if status is None else status[:MAX_STATUS_BYTES].decode("utf-8", "ignore"),
        extension=min(int(extension or b"0") / SECOND, MAX_EXTENSION_SECONDS) if is_number else None,
        watchdog=watchdog.decode() if watchdog in (b"1", b"trigger") else None,
    )


def address(key: bytes, name: str, generation: int) -> str:
    """The abstract address of the socket of an instance, with `@` for the NUL."""
    text = f"notify:{generation}:{name}".encode("utf-8", "surrogatepass")
    return f"@pilothouse-{hashlib.blake2b(text, key=key, digest_size=16).hexdigest()}"


def adopted_address(pid: int) -> str | None:
    """The address that a running process was started with, which an earlier version may have named otherwise."""
    with contextlib.suppress(OSError):
        for variable in environment(pid).split(b"\0"):
            name, _, text = variable.partition(b"=")
            if name == SOCKET_VARIABLE.encode() and _ADDRESS.fullmatch(text):
                return text.decode()
    return None


def variables(key: bytes, spec: ProcessSpec, generation: int) -> dict[str, str]:
    """Returns the environment variables for notifications."""
    if not spec.notifies:
        return {}
    given = {SOCKET_VARIABLE: address(key, spec.name, generation)}
    return given if spec.watchdog is None else {**given, WATCHDOG_VARIABLE: str(int(spec.watchdog * SECOND))}


class NotifySocket:
    """The socket of one process instance: messages of the process's user and of root are passed on."""

    def __init__(self, address: str, name: str, uid: int | None) -> None:
        """`uid` is the process's; None means that of the server. Raises `OSError` with the address if it is in use."""
        self._name = name
        self._uids = {0, os.geteuid() if uid is None else uid}
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK)
        self._on_message: Callable[[Notification], None] | None = None
        self._resume: asyncio.TimerHandle | None = None
        self._begun, self._count = 0.0, 0
        self._is_reported = False
        try:
            self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 1)
            self._socket.bind("\0" + address[1:])
        except OSError as error:
            self._socket.close()
            raise OSError(error.errno, error.strerror, f"notification socket {address}") from None

    def listen(self, on_message: Callable[[Notification], None]) -> None:
        """Calls `on_message` for each message that counts."""
        self._on_message = on_message
        asyncio.get_running_loop().add_reader(self._socket, self.read)

    def read(self) -> None:
        """Passes on what has arrived, a hundred messages a second at most: the others wait, and so do their senders."""
        loop = asyncio.get_running_loop()
        for message in self._received():
            if self._on_message is not None:
                self._on_message(parsed(message))
        if self._count >= _MAX_MESSAGES_PER_SECOND and self._resume is None and self._socket.fileno() >= 0:
            loop.remove_reader(self._socket)
            self._resume = loop.call_at(self._begun + 1.0, self._go_on)

    def _go_on(self) -> None:
        self._resume = None
        asyncio.get_running_loop().add_reader(self._socket, self.read)

    def _received(self) -> Iterator[bytes]:
        now = asyncio.get_running_loop().time()
        if now >= self._begun + 1.0:
            self._begun, self._count = now, 0
        space = socket.CMSG_SPACE(_CREDENTIALS.size) + socket.CMSG_SPACE(_MAX_DESCRIPTORS * 4)
        while self._count < _MAX_MESSAGES_PER_SECOND and self._socket.fileno() >= 0:
            try:
                message, parts, flags, _ = self._socket.recvmsg(MAX_MESSAGE_BYTES, space, socket.MSG_CMSG_CLOEXEC)
            except OSError:  # nothing more has arrived
                return
            self._count += 1
            uid = self._sender(parts)
            if uid in self._uids and not flags & socket.MSG_TRUNC:
                yield message
            elif uid not in self._uids and not self._is_reported:
                self._is_reported = True
                log.warning("%s: notifications of user %s are ignored", self._name, uid)

    def _sender(self, parts: list[tuple[int, int, bytes]]) -> int | None:
        """The user id of the sender; descriptors that came along are closed."""
        uid = None
        for _, kind, data in parts:
            if kind == socket.SCM_RIGHTS:
                descriptors = array.array("i", data[: len(data) // 4 * 4])
                for descriptor in descriptors:
                    os.close(descriptor)
            elif kind == socket.SCM_CREDENTIALS:
                _, uid, _ = _CREDENTIALS.unpack(data[: _CREDENTIALS.size])
        return uid

    def close(self) -> None:
        if self._resume is not None:
            self._resume.cancel()
        elif self._on_message is not None:
            asyncio.get_running_loop().remove_reader(self._socket)
        self._on_message = None
        self._socket.close()
