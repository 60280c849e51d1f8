"""systemd: socket activation, notification and the watchdog (sd_listen_fds(3), sd_notify(3)).

The protocol is a datagram of a few lines. The libraries for it need libsystemd or are no longer maintained.
"""

from __future__ import annotations

import asyncio
import logging
import socket
import time
from collections.abc import Callable, Mapping

from models.times import SECOND

log = logging.getLogger("systemd")

VARIABLES = frozenset(
    {"NOTIFY_SOCKET", "WATCHDOG_USEC", "WATCHDOG_PID", "LISTEN_FDS", "LISTEN_PID", "LISTEN_FDNAMES", "LISTEN_PIDFDID"}
)
"""Variables for the server alone: a child that had them could notify systemd in its name."""

_FIRST_DESCRIPTOR = 3
_INTERVAL_SECONDS = 2.0


def given_sockets(environ: Mapping[str, str], pid: int) -> list[socket.socket]:
    """The listening sockets from systemd; none if they belong to another process.

    Raises `ValueError` where one of them is no listening TCP socket.
    """
    if environ.get("LISTEN_PID") != str(pid):
        return []
    given = [socket.socket(fileno=_FIRST_DESCRIPTOR + place) for place in range(int(environ.get("LISTEN_FDS", "0")))]
    for one in given:
        listens = one.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN)
        if one.family not in (socket.AF_INET, socket.AF_INET6) or one.type != socket.SOCK_STREAM or not listens:
            raise ValueError(f"descriptor {one.fileno()} from systemd is not a listening TCP socket")
        one.setblocking(False)
        one.set_inheritable(False)
    return given


class Systemd:
    """Notifies the service manager; without NOTIFY_SOCKET nothing is sent."""

    def __init__(self, environ: Mapping[str, str], pid: int) -> None:
        name = environ.get("NOTIFY_SOCKET", "")
        self._address = f"\0{name[1:]}" if name.startswith("@") else name
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) if name else None
        is_for_us = environ.get("WATCHDOG_PID", str(pid)) == str(pid)
        timeout = int(environ.get("WATCHDOG_USEC", "0")) / SECOND if is_for_us else 0.0
        self._every = min(_INTERVAL_SECONDS, timeout / 2) if timeout else _INTERVAL_SECONDS
        self._watching: asyncio.Task[None] | None = None
        self._is_failing = self._is_stopping = False

    def ready(self) -> None:
        if not self._is_stopping:
            self._send("READY=1")

    def reloading(self) -> None:
        """Until `ready` is called again."""
        self._send("RELOADING=1", f"MONOTONIC_USEC={time.monotonic_ns() // 1000}")

    def stopping(self, seconds: float) -> None:
        """The server stops, and how long that may take."""
        self._is_stopping = True
        self._send("STOPPING=1", f"EXTEND_TIMEOUT_USEC={round(seconds * SECOND)}")

    def watch(self, status: Callable[[], str]) -> None:
        """From now on sends WATCHDOG=1 and `status` every few seconds; a stalled loop sends nothing."""
        if self._socket is not None:
            self._watching = asyncio.get_running_loop().create_task(self._notify_regularly(status), name="systemd")

    async def _notify_regularly(self, status: Callable[[], str]) -> None:
        while True:
            self._send("WATCHDOG=1", f"STATUS={status()}")
            await asyncio.sleep(self._every)

    def _send(self, *lines: str) -> None:
        if self._socket is None:
            return
        try:
            self._socket.sendto("\n".join(lines).encode(), socket.MSG_DONTWAIT, self._address)
        except OSError as error:
            if not self._is_failing:
                log.warning("NOTIFY_SOCKET: %s cannot be notified: %s", self._address, error.strerror)
            self._is_failing = True
        else:
            self._is_failing = False

    def close(self) -> None:
        if self._watching is not None:
            self._watching.cancel()
        if self._socket is not None:
            self._socket.close()
