"""Runs one command of `ctl` and turns its outcome into an exit code."""

from __future__ import annotations

import os
import sys
from argparse import Namespace
from collections.abc import Sequence

from supervisor.cli.ctl import commands
from supervisor.cli.ctl.client import Client
from supervisor.cli.ctl.discovery import unused_place
from supervisor.cli.ctl.errors import AWAY, FAILED, OK, USAGE, CtlError
from supervisor.cli.ctl.options import parser
from supervisor.cli.streams import discard_output, prepare_streams

_NAMES_SECONDS = 0.5
_NO_ANSWER = 4
_INTERRUPTED = 130


def main(argv: Sequence[str]) -> int:
    """Returns the exit code."""
    arguments = parser().parse_args(argv)
    prepare_streams()
    try:
        code = run(arguments)
        sys.stdout.flush()
        return code
    except BrokenPipeError:  # the reader has closed the pipe, as `head` does
        discard_output()
        return OK
    except KeyboardInterrupt:
        return _INTERRUPTED
    except OSError as error:  # of standard output: those of connections and files are a CtlError
        discard_output()
        print(f"pilothouse ctl: {error.strerror or error}", file=sys.stderr)
        return FAILED


def run(arguments: Namespace) -> int:
    """Runs a command that was parsed; prints the message of a failure. Returns the exit code."""
    try:
        return _dispatch(arguments)
    except CtlError as error:
        print(f"pilothouse ctl: {error}", file=sys.stderr)
        return _NO_ANSWER if arguments.command == "status" and error.code != USAGE else error.code
    except TimeoutError:
        print("pilothouse ctl: the server did not answer in time", file=sys.stderr)
        return AWAY


def _dispatch(arguments: Namespace) -> int:
    command = arguments.command
    if command == "shutdown":
        return commands.shutdown(arguments)
    if command == "completion":
        from supervisor.cli.ctl.completion import script

        sys.stdout.write(script(arguments.shell))
        return OK
    if command == "shell":
        from supervisor.cli.ctl.shell import shell

        return shell(arguments, run)
    timeout = _NAMES_SECONDS if command == "names" else arguments.timeout
    if command != "names" and (unused := unused_place(arguments, os.environ)):
        print(f"pilothouse ctl: PILOTHOUSE_URL is set, so {unused} is not used", file=sys.stderr)
    client = Client(arguments, timeout)
    if command in ("start", "stop", "restart", "signal", "clear"):
        return _change(client, arguments)
    if command == "names":
        return commands.names(client)
    return _read(client, arguments)


def _change(client: Client, arguments: Namespace) -> int:
    if not getattr(arguments, "wait", False):
        return commands.change(client, arguments)
    from supervisor.cli.ctl.history import wait_for_jobs

    stream = client.stream("/processes/stream")  # before the start, so that no end is missed
    if code := commands.change(client, arguments):
        return code
    return wait_for_jobs(client, arguments.selectors, stream, is_quiet=arguments.json)


def _read(client: Client, arguments: Namespace) -> int:
    command = arguments.command
    if command in ("tail", "logs"):
        from supervisor.cli.ctl.logs import tail

        return tail(client, arguments)
    if command == "maintail":
        from supervisor.cli.ctl.logs import maintail

        return maintail(client, arguments)
    if command in ("events", "wait"):
        from supervisor.cli.ctl import history

        return history.events(client, arguments) if command == "events" else history.wait(client, arguments)
    if command == "status":
        from supervisor.cli.ctl.status import status

        return status(client, arguments)
    if command == "info":
        from supervisor.cli.ctl.server_info import info

        return info(client, arguments)
    if command == "top":
        from supervisor.cli.ctl.top import top

        return top(client, arguments)
    simple = {
        "reload": commands.reload,
        "pid": commands.pid,
        "groups": commands.groups,
        "schedule": commands.schedule,
    }
    return simple[command](client, arguments)
