"""The command line of `ctl`: its commands, options and arguments."""

from __future__ import annotations

import argparse
import contextlib
import re
import sys
from collections.abc import Callable
from typing import NoReturn

SELECTORS = """\
SEL is a name, a glob (worker-*), @group, label=value or all; !SEL excludes.
Several, or with commas, add up."""
EPILOG = f"""\
{SELECTORS}

The server is found by --url or --socket; PILOTHOUSE_URL; the data directory of --config, --data-dir,
./pilothouse.yaml, ./data, /etc/pilothouse/pilothouse.yaml, /var/lib/pilothouse; http://127.0.0.1:8080.
A token is read from --token-file or PILOTHOUSE_TOKEN.

Exit codes: 0 done; 1 failed; 2 usage; 4 refused; 5 no such process; 7 no server.
`status`: 0 all run; 3 one does not; 4 unknown, or no answer. `wait`: 124 timeout.
"""
_MIN_DELAY_SECONDS = 0.1
_MAX_RECENT_LINES = 1000
_MAX_SECONDS = 36_500 * 86_400.0
"""As in the configuration: beyond it the timers of the system overflow."""
_UNITS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0, "": 1.0}

_AddCommand = Callable[..., argparse.ArgumentParser]


class Parser(argparse.ArgumentParser):
    """A parser that accepts no abbreviations, because scripts would come to depend on them."""

    def __init__(self, *arguments: object, **options: object) -> None:
        super().__init__(*arguments, **{"allow_abbrev": False, **options})  # type: ignore[arg-type]


class _Version(argparse.Action):
    """Prints the version; the module that has it is imported only then."""

    def __call__(self, *_: object) -> NoReturn:
        from models import VERSION

        print(f"pilothouse {VERSION}")
        sys.exit(0)


def seconds(text: str) -> float:
    """A length of time: `500ms`, `5s`, `2m`, `1h`, or a number of seconds; at most a hundred years."""
    found = re.fullmatch(r"([0-9]+(?:\.[0-9]+)?)(ms|s|m|h|d|)", text.strip())
    if found is None:
        raise argparse.ArgumentTypeError(f"{text!r} is not a length of time such as 500ms, 5s or 2m")
    if (length := float(found[1]) * _UNITS[found[2]]) > _MAX_SECONDS:
        raise argparse.ArgumentTypeError(f"{text!r} is longer than 36500d")
    return length


def some_seconds(text: str) -> float:
    """A length of time that is not zero."""
    if not (length := seconds(text)):
        raise argparse.ArgumentTypeError("must be more than 0")
    return length


def delay(text: str) -> float:
    """A length of time that does not keep the server busy."""
    if (length := seconds(text)) < _MIN_DELAY_SECONDS:
        raise argparse.ArgumentTypeError("must be 100ms or more")
    return length


def since(text: str) -> str:
    """A time as RFC 3339: a length of time ago, a time of day that has passed, or a date with a time, in local time."""
    from datetime import datetime, timedelta

    now = datetime.now().astimezone()
    with contextlib.suppress(argparse.ArgumentTypeError, OverflowError):
        return (now - timedelta(seconds=seconds(text))).isoformat()
    try:
        if re.fullmatch(r"\d\d:\d\d(:\d\d)?", text):
            then = datetime.fromisoformat(f"{now.date()}T{text}").astimezone()
            return (then if then <= now else then - timedelta(days=1)).isoformat()
        return datetime.fromisoformat(text).astimezone().isoformat()
    except (ValueError, OverflowError):
        raise argparse.ArgumentTypeError(f"{text!r} is not a time such as 10m, 14:02 or 2026-11-22T14:02") from None


def lines(text: str) -> int:
    if not text.isascii() or not text.isdigit() or not 1 <= int(text) <= 10_000:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number between 1 and 10000")
    return int(text)


def recent_lines(text: str) -> int:
    """A number of lines of the server's own log, which keeps 1000 in memory."""
    if (number := lines(text)) > _MAX_RECENT_LINES:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number between 1 and {_MAX_RECENT_LINES}")
    return number


def _utf8(word: str) -> str:
    """The word, with the bytes that the locale could not decode read as UTF-8; others are replaced."""
    return word.encode("utf-8", "surrogateescape").decode("utf-8", "replace")


def parser() -> argparse.ArgumentParser:
    common, for_wait = _common(is_default=False), _common(is_default=False, has_timeout=False)
    main = Parser(
        prog="pilothouse ctl",
        parents=[_common(is_default=True)],
        description="Controls a running pilothouse.",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    main.add_argument("--version", action=_Version, nargs=0, help="print the version of this client")
    commands = main.add_subparsers(
        dest="command", metavar="COMMAND", required=sys.stdin is None or not sys.stdin.isatty(), parser_class=Parser
    )
    main.set_defaults(command="shell")

    def command(name: str, about: str | None, *selectors: str) -> argparse.ArgumentParser:
        parents = [for_wait if name == "wait" else common]
        if about is None:
            return commands.add_parser(name, parents=parents)
        added = commands.add_parser(name, parents=parents, help=about, description=about)
        for count in selectors:
            added.add_argument("selectors", nargs=count, metavar="SEL", type=_utf8)
        return added

    _add_control(command)
    _add_reading(command)
    command("reload", "read the configuration again").add_argument(
        "--dry-run", action="store_true", help="only report what would change"
    )
    command("shutdown", "stop the server on this machine, and wait until it is gone")
    command("shell", "read commands from a prompt")
    command("completion", "print a completion script").add_argument("shell", choices=("bash", "zsh", "fish"))
    command("names", None)
    return main


def _add_control(command: _AddCommand) -> None:
    start = command("start", "start processes", "+")
    start.add_argument("--wait", action="store_true", help="wait until started jobs have ended")
    command("stop", "stop processes", "+")
    command("restart", "restart processes", "+")
    sending = command("signal", "send a signal to processes")
    sending.add_argument("signal", metavar="SIG", help="HUP, SIGUSR1, 15")
    sending.add_argument("selectors", nargs="+", metavar="SEL", type=_utf8)
    sending.add_argument("--group", action="store_true", help="to the whole process group of each")
    schedule = command("schedule", "show schedules, all without SEL; pause or resume them")
    schedule.add_argument("words", nargs="*", metavar="[pause|resume] SEL", type=_utf8)


def _add_reading(command: _AddCommand) -> None:
    command("status", "show processes", "*")
    for name, about in (("tail", "show the end of logs"), ("logs", "the same as tail")):
        tail = command(name, about, "+")
        tail.add_argument("-f", "--follow", action="store_true", help="show what is added")
        tail.add_argument("-n", "--lines", type=lines, metavar="N", help="how many lines of each (10)")
        tail.add_argument(
            "--since", type=since, metavar="TIME",
            help="only lines since then: 10m (ago), 14:02, 2026-11-22T14:02; without -n at most 10000",
        )  # fmt: skip
        one = tail.add_mutually_exclusive_group()
        one.add_argument("--stdout", action="store_true", help="only standard output")
        one.add_argument("--stderr", action="store_true", help="only standard error")
        tail.add_argument("--raw", action="store_true", help="control characters too, to a terminal")
    command("clear", "empty logs", "+")
    own = command("maintail", "show the end of the server's own log, and where it is kept")
    own.add_argument("-f", "--follow", action="store_true", help="show what is added")
    own.add_argument("-n", "--lines", type=recent_lines, default=20, metavar="N", help="how many lines (20)")
    own.add_argument("--raw", action="store_true", help="control characters too, to a terminal")
    events = command("events", "show status changes", "*")
    events.add_argument("-f", "--follow", action="store_true", help="show new ones as they happen")
    events.add_argument("-n", "--lines", type=lines, default=20, metavar="N", help="how many (20)")
    events.add_argument("--status", help="only changes to this status")
    events.add_argument("--notices", action="store_true", help="notices too")
    wait = command("wait", "wait until processes are ready, or in another state", "+")
    wait.add_argument("--for", dest="target", default="ready", metavar="ready|ended|STATUS", help="(ready)")
    wait.add_argument("--any", action="store_true", help="one of them is enough")
    wait.add_argument("--timeout", dest="wait_timeout", type=seconds, default=60.0, metavar="TIME", help="(60s)")
    command("info", "show the machine and the server")
    command("pid", "show the pids of processes", "+")
    command("groups", "show groups and their members")
    top = command("top", "show the use of processors and memory", "*")
    top.add_argument("-d", "--delay", type=delay, default=2.0, metavar="TIME", help="(2s)")


def _common(is_default: bool, has_timeout: bool = True) -> Parser:
    """The options that may stand before or after the command; only those before it have defaults."""
    added = Parser(add_help=False)

    def option(*names: str, default: object = None, **settings: object) -> None:
        added.add_argument(*names, default=default if is_default else argparse.SUPPRESS, **settings)  # type: ignore[arg-type]

    option("--url", help="where the server is: http://host:8080, unix:///path")
    option("--socket", metavar="PATH", help="its control socket")
    option("--config", metavar="FILE", help="its configuration file")
    option("--data-dir", metavar="DIR", help="its data directory")
    option("--token-file", metavar="FILE", help="a file with a token")
    option("--ca", metavar="FILE", help="certificates to trust, for https")
    if has_timeout:
        option("--timeout", type=some_seconds, default=10.0, metavar="TIME", help="for what only reads (10s)")
    option("--json", action="store_true", default=False, help="JSON instead of text")
    option("--color", choices=("auto", "always", "never"), default="auto", help="(auto)")
    return added
