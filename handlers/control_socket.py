"""The control socket: a Unix socket in the data directory whose users are operators, and `endpoint.json`."""

from __future__ import annotations

import contextlib
import grp
import json
import logging
import os
import socket
import stat
import struct
from collections.abc import Iterator, Sequence

from attrs import frozen
from tornado.httputil import HTTPServerRequest

from handlers.listener import ListeningSocket
from models.config.settings import MAX_SOCKET_PATH_BYTES, Config
from supervisor.services import CannotStart

log = logging.getLogger("server")

ENDPOINT_FILE = "endpoint.json"
_BACKLOG = 128
_EVERYWHERE = {"0.0.0.0": "127.0.0.1", "::": "::1"}  # noqa: S104 (compared with, not listened on)


@frozen
class Peer:
    """The process at the other end of a connection by the control socket, as the kernel reports it."""

    pid: int
    uid: int
    gid: int

    def __str__(self) -> str:
        return f"uid {self.uid}, pid {self.pid}"


class ControlListener(ListeningSocket):
    """Accepts connections by the control socket; the address of each is its `Peer`."""

    def accept(self) -> tuple[socket.socket, object]:
        connection, _ = super().accept()
        size = struct.calcsize("3i")
        credentials = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, size)
        return connection, Peer(*struct.unpack("3i", credentials))


def peer_of(request: HTTPServerRequest) -> Peer | None:
    """The peer of a request that came by the control socket; `None` for one that came by TCP."""
    address = getattr(getattr(request.connection, "context", None), "address", None)
    return address if isinstance(address, Peer) else None


def open_control_socket(config: Config) -> ControlListener | None:
    """Listens on the control socket; `None` where it is off or its default path is too long. Raises `CannotStart`."""
    path = config.server.control_socket
    if path is None:
        return None
    if len(os.fsencode(path)) > MAX_SOCKET_PATH_BYTES:
        log.warning(
            "there is no control socket: %s has more than %d bytes (server.unix-socket)", path, MAX_SOCKET_PATH_BYTES
        )
        return None
    try:
        _remove_dead(path)
        return _listen(path, config)
    except OSError as error:
        raise CannotStart(f"server.unix-socket: {path}: {error.strerror or error}") from None


@contextlib.contextmanager
def control_socket(config: Config, sockets: Sequence[socket.socket]) -> Iterator[list[socket.socket]]:
    """The control socket, where there is one, and `endpoint.json`, which also names `sockets`. Raises `CannotStart`."""
    control = open_control_socket(config)
    if control is not None:
        log.info("control socket: %s", control.getsockname())
    write_endpoint(config, sockets, control)
    try:
        yield [] if control is None else [control]
    finally:
        remove_endpoint(config, control)


def _remove_dead(path: str) -> None:
    """Removes a socket without a listening process. Raises `OSError`, `CannotStart`."""
    try:
        if not stat.S_ISSOCK(os.lstat(path).st_mode):
            raise CannotStart(f"server.unix-socket: {path} exists and is not a socket")
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
            probe.connect(path)
    except FileNotFoundError:
        return
    except ConnectionRefusedError:
        os.unlink(path)  # noqa: PTH108 (the path is text, as the system calls take it)
        return
    raise CannotStart(f"server.unix-socket: {path}: another program listens on it")


def _listen(path: str, config: Config) -> ControlListener:
    settings = config.server.unix_socket
    plain = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    before = os.umask(0o177)  # other users must not connect between bind and chmod
    try:
        plain.bind(path)
    finally:
        os.umask(before)
    if settings.group is not None:
        try:
            os.chown(path, -1, grp.getgrnam(settings.group).gr_gid)
        except KeyError:
            raise CannotStart(f"server.unix-socket: there is no group {settings.group}") from None
    os.chmod(path, int(settings.mode, 8))  # noqa: PTH101
    plain.setblocking(False)
    plain.listen(_BACKLOG)
    listener = ControlListener(fileno=plain.detach())
    listener.is_plain = True
    return listener


def write_endpoint(config: Config, sockets: Sequence[socket.socket], control: ControlListener | None) -> None:
    """Writes the addresses of this server, for `ctl`. A failure is only logged."""
    scheme = "https" if config.server.tls.certificate else "http"
    urls = []
    for one in sockets:
        host, port = one.getsockname()[:2]
        host = _EVERYWHERE.get(host, host)
        urls.append(f"{scheme}://{f'[{host}]' if ':' in host else host}:{port}")
    path = None if control is None else os.path.abspath(control.getsockname())  # noqa: PTH100
    file = config.server.data_dir / ENDPOINT_FILE
    new = file.with_suffix(".new")
    try:
        new.unlink(missing_ok=True)
        handle = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        with os.fdopen(handle, "w") as opened:
            json.dump({"pid": os.getpid(), "socket": path, "urls": urls}, opened)
        new.replace(file)
    except OSError as error:
        log.warning("%s cannot be written: %s", file, error.strerror)


def remove_endpoint(config: Config, control: ControlListener | None) -> None:
    """Removes `endpoint.json` and the socket: the server ends."""
    paths = [str(config.server.data_dir / ENDPOINT_FILE), config.server.control_socket if control is not None else None]
    for path in filter(None, paths):
        try:
            os.unlink(path)  # noqa: PTH108
        except FileNotFoundError:
            pass
        except OSError as error:
            log.warning("%s cannot be removed: %s", path, error.strerror)
