"""`shell`: commands at a prompt, with completion of names and a history."""

from __future__ import annotations

import contextlib
import os
import shlex
import sys
from argparse import Namespace
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from supervisor.cli.ctl import COMMANDS
from supervisor.cli.ctl.client import Client
from supervisor.cli.ctl.errors import OK, CtlError
from supervisor.cli.ctl.options import SELECTORS, parser
from supervisor.cli.ctl.terminal import columns

_PROMPT = "pilothouse> "
_HISTORY_LINES = 1000
_NAMES_SECONDS = 0.5
_CONNECTION = ("url", "socket", "config", "data_dir", "token_file", "ca", "timeout", "json", "color")


def shell(arguments: Namespace, run: Callable[[Namespace], int]) -> int:
    """Reads commands until `exit` or the end of input; returns 0."""
    commands = parser()
    if sys.stdin is not None and sys.stdin.isatty():
        _run(["status"], arguments, commands, run)
    with _line_editing(arguments):
        while (line := _read()) is not None:
            try:
                words = shlex.split(line)
            except ValueError as error:
                print(f"pilothouse ctl: {error}", file=sys.stderr)
                continue
            if words[:1] in (["exit"], ["quit"]):
                break
            if words in (["help"], ["?"]):
                print(_help(commands))
                continue
            if words[:1] == ["help"]:
                words = [*words[1:], "--help"]
            if words:
                _run(words, arguments, commands, run)
    return OK


def _help(commands: Any) -> str:
    """The commands that the shell has, and how to use them."""
    (verbs,) = (action for action in commands._actions if action.dest == "command")
    about = {choice.dest: choice.help for choice in verbs._choices_actions}
    rows = [(name, about[name]) for name in COMMANDS]
    rows += [("help [COMMAND]", "show the commands, or the options of one"), ("exit", "leave (Ctrl-D)")]
    return "\n".join(
        [*columns(rows), "", SELECTORS, "Tab completes commands and names; the arrow keys find earlier lines."]
    )


def _read() -> str | None:
    """The next line; `None` at the end of input. Ctrl-C gives up the line, not the shell."""
    while True:
        try:
            return input(_PROMPT if sys.stdin.isatty() else "")
        except EOFError:
            if sys.stdin.isatty():
                print()
            return None
        except KeyboardInterrupt:
            print()


def _run(words: list[str], outer: Namespace, commands: Any, run: Callable[[Namespace], int]) -> None:
    try:
        arguments = commands.parse_args(words)
        for name in _CONNECTION:
            if getattr(arguments, name) == commands.get_default(name) or getattr(arguments, name) is None:
                setattr(arguments, name, getattr(outer, name))
        if arguments.command in ("shell", "completion", "names"):
            print(f"{arguments.command} is not available in the shell", file=sys.stderr)
            return
        run(arguments)
    except SystemExit:  # argparse has printed the help or what is wrong
        pass
    except KeyboardInterrupt:
        print()
    sys.stdout.flush()


@contextlib.contextmanager
def _line_editing(arguments: Namespace) -> Iterator[None]:
    """Completion and history, where there is a terminal and a readline."""
    try:
        import readline
    except ImportError:
        readline = None  # type: ignore[assignment]
    if readline is None or not sys.stdin.isatty():
        yield
        return
    file = _history_file()
    with contextlib.suppress(OSError):
        readline.read_history_file(file)
    readline.set_history_length(_HISTORY_LINES)
    readline.set_completer_delims(" \t\n,")
    readline.set_completer(_Completer(arguments, readline))
    readline.parse_and_bind("tab: complete")
    try:
        yield
    finally:
        _keep_history(file, readline)


def _history_file() -> Path:
    state = os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state"
    return Path(state) / "pilothouse" / "ctl-history"


def _keep_history(file: Path, readline: Any) -> None:
    """Writes the history, readable by its owner only; a state folder that cannot be written costs the history."""
    try:
        file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        os.close(os.open(file, os.O_WRONLY | os.O_CREAT, 0o600))
        file.chmod(0o600)
        readline.write_history_file(file)
    except OSError as error:
        print(f"pilothouse ctl: the history was not kept: {error}", file=sys.stderr)


class _Completer:
    """Completes commands as the first word, names of processes and groups behind it."""

    def __init__(self, arguments: Namespace, readline: Any) -> None:
        self._client = Client(arguments, _NAMES_SECONDS)
        self._readline = readline
        self._found: list[str] = []

    def __call__(self, text: str, state: int) -> str | None:
        if state == 0:
            is_first = not self._readline.get_line_buffer()[: self._readline.get_begidx()].strip()
            words = [*COMMANDS, "help", "exit"] if is_first else self._names()
            self._found = [f"{word} " for word in words if word.startswith(text)]
        return self._found[state] if state < len(self._found) else None

    def _names(self) -> list[str]:
        try:
            names = [shlex.quote(process["name"]) for process in self._client.get("/processes").json]
            return [*names, *(f"@{group['name']}" for group in self._client.get("/processes/groups").json), "all"]
        except CtlError:
            return []
