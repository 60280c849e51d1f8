"""The command line: reads the configuration, builds Services, listens, waits for a signal, stops in reverse."""

from __future__ import annotations

import gc

gc.disable()  # nothing that is imported is garbage: looking for some took a fifth of the start

import argparse
import asyncio
import errno
import logging
import os
import signal
import socket
import ssl
import sys
from pathlib import Path

from tornado.httpserver import HTTPServer
from tornado.httputil import ParseBodyConfig, ParseUrlEncodedConfig, set_parse_body_config
from tornado.ioloop import IOLoop
from tornado.netutil import bind_sockets

from handlers.app import SERVICES, House
from handlers.gates import chart_posture, listens_beyond_loopback
from handlers.tools import stdio
from handlers.tools.handler import check_installed
from models import VERSION as VERSION
from models import reading
from models.config import BadConfig, Config
from supervisor.log import set_up_logging
from supervisor.services import CannotStart, Services
from supervisor.tracker import demo, upload, userverbs

DEFAULT = Path("pilothouse.yaml")

gc.freeze()
gc.enable()

log = logging.getLogger("house")

_HEADERS_WITHIN = 60.0
_BODY_WITHIN = 600.0
_NONE_FREE = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)
_ACCEPT_AGAIN = 1.0
_ACCEPTS = 4
_TLS_FAULTS = {"KEY_VALUES_MISMATCH": "the key does not belong to the certificate"}
_MOST_ARGUMENTS = 2**16  # more than the longest head holds: above its own limit Tornado's 400 has no body


def arguments(argv: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="run.py", description="Supervises processes, serves helm, tracks test reports; without a verb it serves."
    )
    parser.add_argument("--config", type=Path, help=f"the configuration file (default: {DEFAULT}, if there is one)")
    parser.add_argument("--address", help="server.address: where to listen, an address or a list with commas")
    parser.add_argument("--port", help="server.port")
    parser.add_argument("--data-dir", help="server.data-dir")
    parser.add_argument("--version", action="version", version=f"pilothouse {VERSION}")
    verbs = parser.add_subparsers(dest="verb", metavar="VERB", title="verbs")  # each sets `work`
    verbs.add_parser("check", help="say whether the configuration is good").set_defaults(work=check)
    userverbs.add_to(verbs)
    upload.add_to(verbs)
    demo.add_to(verbs)
    stdio.add_to(verbs)
    return parser.parse_args(argv)


def check(settings: Config, asked: argparse.Namespace) -> int:
    file = asked.config or (DEFAULT if DEFAULT.exists() else f"no {DEFAULT} here, so the defaults")
    print(f"{file}: the configuration is good; processes: {len(settings.supervisor.processes)}")
    return 0


def read_config(asked: argparse.Namespace) -> Config:
    """The configuration that the command line asks for. Raises `BadConfig`."""
    path: Path | None = asked.config or (DEFAULT if DEFAULT.exists() else None)
    flags = {"server.address": asked.address, "server.port": asked.port, "server.data-dir": asked.data_dir}
    return reading.load(path, os.environ, {name: value for name, value in flags.items() if value is not None})


def main(argv: list[str] | None = None) -> int:
    """Returns the exit code: 0, 1 where it cannot start, 2 where the configuration is at fault."""
    asked = arguments(argv)
    if asked.verb == upload.VERB:
        return upload.main(asked)
    try:
        settings = read_config(asked)
    except BadConfig as bad:
        print(bad, file=sys.stderr)
        return 2
    if asked.verb is not None:
        return int(asked.work(settings, asked))
    lines = set_up_logging(settings.server.log_format)
    try:
        asyncio.run(serve(settings, asked))
    except CannotStart as problem:
        logging.getLogger("house").critical("pilothouse cannot start: %s", problem)
        return 1
    finally:
        lines.close()
    return 0


async def serve(settings: Config, asked: argparse.Namespace) -> None:
    """Runs until a signal says that it is enough. Raises `CannotStart`."""
    set_parse_body_config(ParseBodyConfig(urlencoded=ParseUrlEncodedConfig(max_arguments=_MOST_ARGUMENTS)))
    services = Services(settings, lambda: read_config(asked))
    check_installed(settings)
    context, sockets = tls(settings), listen(settings)
    services.port = sockets[0].getsockname()[1]
    try:
        await services.start()
    except CannotStart:
        for one in sockets:
            one.close()
        raise
    house = House(services)
    server = HTTPServer(
        house,
        ssl_options=context,
        idle_connection_timeout=_HEADERS_WITHIN,
        body_timeout=_BODY_WITHIN,
        max_body_size=settings.server.max_body,
    )
    server.add_sockets(sockets)
    enough = hear_signals(services)
    tell(settings, sockets)
    gc.freeze()  # what is here now stays: looking through it again and again would hold the loop for 30 ms each time
    services.start_marked()
    await enough.wait()
    log.info("stopping")
    server.stop()
    house.streams.close()
    await house.tools.close()
    await services.stop()
    await server.close_all_connections()
    log.info("stopped")


class Listener(socket.socket):
    """Takes a few connections at each turn of the loop: a burst of them holds it for no longer than they take.

    Where no descriptor is free, connections wait a second in the kernel's queue; the loop would spin otherwise.
    """

    _taken = 0

    def accept(self) -> tuple[socket.socket, object]:
        if self._taken == _ACCEPTS:
            self._taken = 0
            raise BlockingIOError
        try:
            taken = super().accept()
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
        return taken

    def _go_on(self) -> None:
        if self.fileno() >= 0:
            IOLoop.current().update_handler(self, IOLoop.READ)


def listen(settings: Config) -> list[socket.socket]:
    """Opens the listening sockets. Raises `CannotStart`."""
    sockets: list[socket.socket] = []
    for address in settings.server.address:
        port = sockets[0].getsockname()[1] if sockets and not settings.server.port else settings.server.port
        try:
            sockets += [Listener(fileno=one.detach()) for one in bind_sockets(port, address, backlog=1024)]
        except OSError as error:
            raise CannotStart(f"{address}:{port}: {error.strerror or error}") from None
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


def hear_signals(services: Services) -> asyncio.Event:
    """The event is set by SIGTERM or SIGINT; SIGHUP reloads the configuration."""
    loop, enough = asyncio.get_running_loop(), asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, enough.set)
    loop.add_signal_handler(signal.SIGHUP, services.hang_up)
    return enough


def tell(settings: Config, sockets: list[socket.socket]) -> None:
    """Says in the log where it listens and what it lets pass."""
    scheme = "https" if settings.server.tls.certificate else "http"
    for one in sockets:
        host, port = one.getsockname()[:2]
        base = f"{scheme}://{f'[{host}]' if ':' in host else host}:{port}"
        log.info("listening on %s (%s)", base, ", ".join(base + service.prefix for service in SERVICES))
    level = logging.INFO if settings.svc.rest.access_interceptor.enabled else logging.WARNING
    log.log(level, "%s", chart_posture(settings))
    if listens_beyond_loopback(settings):
        if settings.supervisor.security.allow_anonymous_control:
            log.warning("anybody who can reach this address may start and stop processes (allow-anonymous-control)")
        else:
            log.info("beyond loopback, processes may be changed by an ADMIN only")


if __name__ == "__main__":
    sys.exit(main())
