"""The command line: reads the configuration, builds Services, listens, waits for a signal, stops in reverse."""

from __future__ import annotations

import sys

from supervisor.cli.ctl import COMMANDS, run_ctl

if __name__ == "__main__" and (_code := run_ctl(sys.argv[1:])) is not None:
    sys.exit(_code)  # before the server's modules are imported, which takes most of a second

from importlib.util import find_spec

if __name__ == "__main__" and find_spec("tornado") is None:
    sys.exit(
        f"pilothouse: Tornado is not installed for {sys.executable}; use .venv/bin/python, which `make run` creates"
    )

import gc
import linecache
import signal
import threading
from typing import TYPE_CHECKING, Any

_is_main = threading.current_thread() is threading.main_thread()
_interrupts = _is_main and signal.getsignal(signal.SIGINT) is signal.default_int_handler
if _interrupts:
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # an imported module might lose an exception


def report_uncaught(kind: type[BaseException], *rest: Any) -> None:
    """An exception hook: KeyboardInterrupt prints no traceback."""
    if not issubclass(kind, KeyboardInterrupt):
        sys.__excepthook__(kind, *rest)


sys.excepthook = report_uncaught
gc.disable()  # collections during the imports took a fifth of the start time


class _SourceLines(dict[str, Any]):
    """The lines of source files, without those that attrs generates: they are never shown and take 1.8 MB."""

    def setdefault(self, name: str, entry: Any = None) -> Any:
        return entry if name.startswith("<attrs generated") else super().setdefault(name, entry)


linecache.cache = _SourceLines(linecache.cache)
_has_curses = "curses" in sys.modules
if not _has_curses:
    sys.modules["curses"] = None  # type: ignore[assignment]  # 0.7 MB: tornado.log would colour lines with it

import argparse
import asyncio
import functools
import importlib
import logging
import os
import re
import socket
from pathlib import Path

from tornado.httputil import ParseBodyConfig, ParseUrlEncodedConfig, set_parse_body_config

from handlers.app import SERVICES, Application
from handlers.control_socket import control_socket
from handlers.front import HttpFront
from handlers.http import memory
from handlers.http.permissions import chart_access
from handlers.http.proxy import listens_beyond_loopback
from handlers.listener import ListeningServer, UnfinishedRequests, listen, tls
from handlers.mcp.handler import check_installed
from models import VERSION as VERSION
from models.config import loader
from models.config.cross_checks import ignored
from models.config.parsers import closest
from models.config.settings import BadConfig, Config
from supervisor.logging import set_up_logging
from supervisor.processes.process.context import unusable_files
from supervisor.services import CannotStart, Services, open_services
from supervisor.systemd import given_sockets

DEFAULT = Path("pilothouse.yaml")

VERBS = {
    "init": ("supervisor.cli.init", "write a starting configuration"),
    "user": ("supervisor.cli.users", "make accounts, set passwords, make tokens"),
    "upload": ("supervisor.cli.upload", "send test and coverage reports to a server"),
    "demo": ("supervisor.cli.demo", "fill the store with sample projects"),
    "import-supervisord": ("supervisor.cli.import_supervisord", "translate a configuration of supervisord"),
    "mcp": ("handlers.mcp.stdio", "serve the tools to an agent over standard input and output"),
}
"""The module and help text of each verb. The server does not import these modules; each is imported on use.

The module's `add_to` adds arguments to its parser and sets `work`, called with the configuration and the parsed
arguments, or `alone`, called without a configuration. Both return the exit code.
"""

if TYPE_CHECKING:
    import ssl
    from collections.abc import Sequence
    from typing import NoReturn

if not _has_curses:
    del sys.modules["curses"]
if _interrupts:
    signal.signal(signal.SIGINT, signal.default_int_handler)
gc.collect()  # once: attrs makes each class twice, and the first ones hold 3 MB
gc.freeze()
gc.enable()

log = logging.getLogger("server")

_HEADERS_TIMEOUT_SECONDS = 60.0
_BODY_TIMEOUT_SECONDS = 600.0
_MAX_FORM_ARGUMENTS = 2**16  # handlers/http/head_limit.py has the limit: Tornado's own 400 has no body


class _Parser(argparse.ArgumentParser):
    """For an unknown verb it suggests the nearest one, or the command of `ctl`."""

    def error(self, message: str) -> NoReturn:
        if found := re.match(r"argument VERB: invalid choice: '([^']+)'", message):
            close = closest(found[1].lower(), ["serve", "check", "ctl", *VERBS, *COMMANDS])
            hint = f"; did you mean `{'ctl ' * (close in COMMANDS)}{close}`?" if close else ""
            message = f"there is no verb {found[1]}{hint}"
        super().error(message)


def command_parser(argv: Sequence[str]) -> argparse.ArgumentParser:
    """The parser, with the arguments of the verbs in `argv` only: each of the others is a module to import."""
    parser = _Parser(description="Supervises processes, serves helm, tracks test reports; without a verb it serves.")
    add_server_options(parser)
    parser.add_argument("--version", action="version", version=f"pilothouse {VERSION}")
    verbs = parser.add_subparsers(dest="verb", metavar="VERB", title="verbs")
    add_server_options(verbs.add_parser("serve", help="run the server, as without a verb"), argparse.SUPPRESS)
    check_parser = verbs.add_parser("check", help="check the configuration")
    check_parser.set_defaults(work=check)
    check_parser.add_argument("--config", type=Path, default=argparse.SUPPRESS, help="the configuration file")
    verbs.add_parser("ctl", help="control a running pilothouse: status, start, stop, tail and more", add_help=False)
    for verb, (module, help_text) in VERBS.items():
        verb_parser = verbs.add_parser(verb, help=help_text)
        if verb in argv:
            importlib.import_module(module).add_to(verb_parser)
    return parser


def add_server_options(parser: argparse.ArgumentParser, default: str | None = None) -> None:
    """Adds the options that may be given before or after the verb `serve`."""
    add = functools.partial(parser.add_argument, default=default)
    add("--config", type=Path, help=f"the configuration file (default: {DEFAULT}, if there is one)")
    add("--address", help="server.address: where to listen, an address or a list with commas")
    add("--port", help="server.port")
    add("--data-dir", help="server.data-dir")


def parse_arguments(argv: list[str] | None) -> argparse.Namespace:
    """The arguments. `verb` is None for `serve` too."""
    arguments = command_parser(sys.argv if argv is None else argv).parse_args(argv)
    if arguments.verb == "serve":
        arguments.verb = None
    return arguments


def config_source(arguments: argparse.Namespace) -> str:
    """The path of the configuration file, or a text for the defaults, for messages."""
    return str(arguments.config or (DEFAULT if DEFAULT.exists() else f"no {DEFAULT} here, so the defaults"))


def check(settings: Config, arguments: argparse.Namespace) -> int:
    """The verb `check`: prints that the configuration is valid; `main` has read it already.

    Returns 1 where environment files cannot be used: the server starts, but not these processes.
    """
    faults = unusable_files(settings.supervisor.processes.values())
    for line in [*loader.misspelt(os.environ), *faults]:
        print(line, file=sys.stderr)
    print(f"{config_source(arguments)}: the configuration is valid; processes: {len(settings.supervisor.processes)}")
    return 1 if faults else 0


def read_config(arguments: argparse.Namespace) -> Config:
    """The configuration from file, environment and command line. Raises `BadConfig`."""
    path: Path | None = arguments.config or (DEFAULT if DEFAULT.exists() else None)
    flags = {
        "server.address": arguments.address,
        "server.port": arguments.port,
        "server.data-dir": arguments.data_dir,
    }
    return loader.load(path, os.environ, {name: value for name, value in flags.items() if value is not None})


def is_of_supervisord(path: Path) -> bool:
    """Whether a file that is no configuration has a section of supervisord."""
    try:
        text = path.read_text(errors="replace")
    except OSError:
        return False
    return re.search(r"^\[(program:|supervisord|supervisorctl|include\]|group:)", text, re.MULTILINE) is not None


def main(argv: list[str] | None = None) -> int:
    """Returns the exit code: 0, 1 if the server cannot start, 2 if the configuration is invalid."""
    if (code := run_ctl(sys.argv[1:] if argv is None else argv)) is not None:
        return code
    arguments = parse_arguments(argv)
    if "alone" in arguments:
        return int(arguments.alone(arguments))
    try:
        arguments.systemd_sockets = [] if arguments.verb else take_systemd_sockets(arguments)
        settings = read_config(arguments)
    except BadConfig as bad:
        print(bad, file=sys.stderr)
        if arguments.config and is_of_supervisord(arguments.config):
            print(f"{arguments.config} is of supervisord: import-supervisord translates it", file=sys.stderr)
        return 2
    except CannotStart as problem:
        print(f"pilothouse cannot start: {problem}", file=sys.stderr)
        return 1
    if arguments.verb is not None:
        return int(arguments.work(settings, arguments))
    memory.limit_fragmentation()
    memory.limit_cached_names()
    lines = set_up_logging(settings.server.log_format)
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # until `handle_signals`; before that, exiting at once loses nothing
    try:
        asyncio.run(serve(settings, arguments))
    except CannotStart as problem:
        logging.getLogger("server").critical("pilothouse cannot start: %s", problem)
        return 1
    finally:
        lines.close()
    return 0


async def serve(settings: Config, arguments: argparse.Namespace) -> None:
    """Runs until SIGTERM or SIGINT. Raises `CannotStart`."""
    for line in (*loader.misspelt(os.environ), *ignored(settings)):
        log.warning("%s", line)
    set_parse_body_config(ParseBodyConfig(urlencoded=ParseUrlEncodedConfig(max_arguments=_MAX_FORM_ARGUMENTS)))
    check_installed(settings)
    context, sockets = tls(settings), listen(settings, arguments.systemd_sockets)
    port = sockets[0].getsockname()[1] if sockets else settings.server.port
    try:
        async with open_services(settings, lambda: read_config(arguments), port) as services:
            application = Application(services)
            with control_socket(settings, sockets) as control:
                servers = http_servers(application, context, sockets, control)
                stop_requested = handle_signals(services)
                log.info(
                    "configuration: %s; processes: %d", config_source(arguments), len(settings.supervisor.processes)
                )
                log_access(settings, sockets)
                gc.freeze()  # scanning these long-lived objects would hold the loop for 30 ms at each collection
                memory.trim()  # of what the imports and the configuration needed
                services.start_marked()
                services.systemd.ready()
                services.systemd.watch(services.supervision.summary)
                services.front = HttpFront(application, servers)
                await stop_requested.wait()
                log.info("stopping")
    finally:
        for listening in sockets:
            listening.close()
    log.info("stopped")


def http_servers(
    application: Application,
    context: ssl.SSLContext | None,
    sockets: list[socket.socket],
    control: list[socket.socket],
) -> list[ListeningServer]:
    """The servers for TCP, with TLS if there is a context, and for the control socket."""
    unfinished = UnfinishedRequests(application.services.config.server.max_unfinished)
    servers = [
        ListeningServer(
            application,
            ssl_options=options,
            idle_connection_timeout=_HEADERS_TIMEOUT_SECONDS,
            body_timeout=_BODY_TIMEOUT_SECONDS,
            max_body_size=application.services.config.server.max_body,
        )
        for options in (context, None)
    ]
    for server, listening in zip(servers, (sockets, control), strict=True):
        server.unfinished = unfinished
        server.add_sockets(listening)
    return servers


def take_systemd_sockets(arguments: argparse.Namespace) -> list[socket.socket]:
    """The sockets passed by systemd, whose addresses replace those of the command line. Raises `CannotStart`."""
    try:
        sockets = given_sockets(os.environ, os.getpid())
    except (ValueError, OSError) as error:
        raise CannotStart(f"socket activation: {error}") from None
    if sockets:  # permissions depend on the address, so the actual one overrides the configuration
        names = [listening.getsockname() for listening in sockets]
        arguments.address = ",".join(dict.fromkeys(name[0] for name in names))
        arguments.port = str(names[0][1])
    return sockets


def handle_signals(services: Services) -> asyncio.Event:
    """The event is set by SIGTERM or SIGINT; SIGHUP reloads the configuration."""
    loop, stop_requested = asyncio.get_running_loop(), asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop_requested.set)
    loop.add_signal_handler(signal.SIGHUP, services.on_sighup)
    return stop_requested


def log_access(settings: Config, sockets: list[socket.socket]) -> None:
    """Logs the addresses, and which callers may change charts and processes."""
    scheme = "https" if settings.server.tls.certificate else "http"
    for listening in sockets:
        host, port = listening.getsockname()[:2]
        base = f"{scheme}://{f'[{host}]' if ':' in host else host}:{port}"
        log.info("listening on %s (%s)", base, ", ".join(base + service.prefix for service in SERVICES))
    level = logging.INFO if settings.svc.rest.access_interceptor.enabled else logging.WARNING
    log.log(level, "%s", chart_access(settings))
    if listens_beyond_loopback(settings):
        if settings.supervisor.security.allow_anonymous_control:
            log.warning("anybody who can reach this address may start and stop processes (allow-anonymous-control)")
        else:
            log.info("beyond loopback, processes may be changed by an ADMIN only")
    elif os.geteuid() == 0 and any_user_has_control(settings):
        log.warning("any local user can control processes as root (supervisor.security.local-control)")


def any_user_has_control(settings: Config) -> bool:
    """Whether every user of this machine may change processes by TCP."""
    is_open = settings.tracker.security.open_mode and settings.supervisor.security.local_control == "anybody"
    return is_open and bool(settings.server.address)


if __name__ == "__main__":
    sys.exit(main())
