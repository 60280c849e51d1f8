"""Where forwarded log lines go: standard output, journald or syslog. All of this runs in a thread of the forwarder.

A sink takes as many lines as it can without waiting for long; the others are offered again later.
"""

from __future__ import annotations

import errno
import json
import os
import re
import select
import socket
import struct
import sys
import time
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any
from urllib.parse import urlsplit

from attrs import frozen

from models.json_format import rfc3339

MAX_LINE_BYTES = 64 * 1024
_JOURNAL_SOCKET = "/run/systemd/journal/socket"
_WRITE_SECONDS = 1.0
_FACILITY, _DEFAULT_PRIORITY = 3, 6  # daemon, info
_SYSLOG_PORT = 514
_MAX_UDP_LINE_BYTES = 60 * 1024
_PRIORITY = re.compile(rb"<([0-7])>")


@frozen
class Origin:
    """Where a line comes from."""

    process: str
    stream: str


class Sink(ABC):
    max_line_bytes = MAX_LINE_BYTES

    def close(self) -> None:  # noqa: B027 (nothing to close is no mistake)
        """Frees what it holds."""

    @abstractmethod
    def send(self, origin: Origin, lines: Sequence[bytes]) -> tuple[int, int]:
        """Returns how many of the lines are done with, and how many of these are lost. Raises `OSError` if none is."""


class StandardOutput(Sink):
    """`name | line`, or a JSON object a line."""

    def __init__(self, as_json: bool, descriptor: int | None = None) -> None:
        self._as_json = as_json
        self._descriptor = sys.__stdout__.fileno() if descriptor is None and sys.__stdout__ else descriptor or 1
        self._unwritten = b""

    def send(self, origin: Origin, lines: Sequence[bytes]) -> tuple[int, int]:
        end = time.monotonic() + _WRITE_SECONDS
        for number, line in enumerate(lines):
            if not self._write(end):
                return number, 0
            self._unwritten = self._formatted(origin, line)
        self._write(end)
        return len(lines), 0

    def _formatted(self, origin: Origin, line: bytes) -> bytes:
        if not self._as_json:
            return origin.process.encode("utf-8", "replace") + b" | " + line + b"\n"
        now = time.time()
        at = f"{time.strftime('%Y-%m-%dT%H:%M:%S', time.gmtime(now))}.{int(now % 1 * 1000):03d}Z"
        message = line.decode("utf-8", "replace")
        entry = {"time": at, "process": origin.process, "stream": origin.stream, "message": message}
        return json.dumps(entry, ensure_ascii=False).encode("utf-8", "replace") + b"\n"

    def _write(self, end: float) -> bool:
        """Writes what is left of the last line; returns whether all of it was taken in time."""
        while self._unwritten:
            _, writable, _ = select.select([], [self._descriptor], [], max(0.0, end - time.monotonic()))
            if not writable:
                return False
            written = os.write(self._descriptor, self._unwritten[: select.PIPE_BUF])
            self._unwritten = self._unwritten[written:]
        return True


class _Datagrams(Sink):
    """A message for each line, to a socket that is opened when it is first needed and again after an error."""

    def __init__(self) -> None:
        self._socket: socket.socket | None = None

    def send(self, origin: Origin, lines: Sequence[bytes]) -> tuple[int, int]:
        lost = 0
        for number, line in enumerate(lines):
            try:
                if self._socket is None:
                    self._socket = self._connected()
                    self._socket.settimeout(_WRITE_SECONDS)
                self._socket.send(self._message(origin, line))
            except OSError as error:
                if error.errno == errno.EMSGSIZE:
                    lost += 1
                    continue
                self.close()
                if number:
                    return number, lost
                raise
        return len(lines), lost

    def close(self) -> None:
        if self._socket is not None:
            self._socket.close()
            self._socket = None

    @abstractmethod
    def _connected(self) -> socket.socket:
        """A socket to where messages go. Raises `OSError`."""

    @abstractmethod
    def _message(self, origin: Origin, line: bytes) -> bytes:
        """The message for a line."""


class Journald(_Datagrams):
    """The native protocol of journald."""

    def _connected(self) -> socket.socket:
        return _connected(socket.AF_UNIX, _JOURNAL_SOCKET)

    def _message(self, origin: Origin, line: bytes) -> bytes:
        priority, text = _with_priority(line)
        name = origin.process.encode("utf-8", "replace")
        fields = {b"SYSLOG_IDENTIFIER": name, b"PILOTHOUSE_STREAM": origin.stream.encode(), b"MESSAGE": text}
        parts = [b"PRIORITY=%d\n" % priority]
        parts += [key + b"\n" + struct.pack("<Q", len(value)) + value + b"\n" for key, value in fields.items()]
        return b"".join(parts)


class Syslog(_Datagrams):
    """RFC 5424, to a Unix socket or over UDP."""

    def __init__(self, address: str) -> None:
        """`/dev/log` or `udp://host:514`."""
        super().__init__()
        self._address = address
        if not address.startswith("/"):
            self.max_line_bytes = _MAX_UDP_LINE_BYTES
        self._host = _printable(socket.gethostname(), 255)

    def _connected(self) -> socket.socket:
        if self._address.startswith("/"):
            return _connected(socket.AF_UNIX, self._address)
        parts = urlsplit(self._address)
        found = socket.getaddrinfo(parts.hostname, parts.port or _SYSLOG_PORT, type=socket.SOCK_DGRAM)
        family, _, _, _, place = found[0]
        return _connected(family, place)

    def _message(self, origin: Origin, line: bytes) -> bytes:
        priority, text = _with_priority(line)
        at, name = rfc3339(time.time_ns() // 1000), _printable(origin.process, 48)
        return f"<{_FACILITY * 8 + priority}>1 {at} {self._host} {name} - {origin.stream} - ".encode() + text


def _connected(family: int, place: Any) -> socket.socket:
    """A datagram socket. Raises `OSError`."""
    sender = socket.socket(family, socket.SOCK_DGRAM)
    try:
        sender.connect(place)
    except OSError:
        sender.close()
        raise
    return sender


def _with_priority(line: bytes) -> tuple[int, bytes]:
    """The priority that a line begins with (`<3>`, as sd-daemon(3)) and the rest."""
    found = _PRIORITY.match(line)
    return (int(found[1]), line[found.end() :]) if found else (_DEFAULT_PRIORITY, line)


def _printable(text: str, longest: int) -> str:
    """Text for a field of the header: printable ASCII without blanks."""
    return re.sub(r"[^!-~]", "_", text)[:longest] or "-"


def sink_of(kind: str, as_json: bool, syslog: str) -> Sink:
    return StandardOutput(as_json) if kind == "stdout" else Journald() if kind == "journald" else Syslog(syslog)
