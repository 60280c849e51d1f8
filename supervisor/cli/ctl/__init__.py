"""`run.py ctl`: the operator's terminal. It imports the standard library only, so that it starts fast."""

from __future__ import annotations

from collections.abc import Sequence

COMMANDS = (
    "status", "start", "stop", "restart", "signal", "tail", "logs", "clear", "events", "wait", "reload", "info", "pid",
    "groups", "schedule", "top", "maintail", "shutdown",
)  # fmt: skip
"""The commands that the shell has too."""
_BEFORE = ("--config", "--data-dir")


def ctl_arguments(argv: Sequence[str]) -> list[str] | None:
    """The arguments of `ctl` where the command line is one of `ctl`, else `None`.

    `--config FILE` and `--data-dir DIR` may stand before the word `ctl`.
    """
    before: list[str] = []
    rest = list(argv)
    while rest and rest[0] != "ctl":
        if rest[0] in _BEFORE and len(rest) > 1:
            before, rest = before + rest[:2], rest[2:]
        elif rest[0].startswith(tuple(f"{option}=" for option in _BEFORE)):
            before, rest = before + rest[:1], rest[1:]
        else:
            return None
    return before + rest[1:] if rest else None


def run_ctl(argv: Sequence[str]) -> int | None:
    """Runs `ctl` where the command line is one of it; returns its exit code, else `None`."""
    arguments = ctl_arguments(argv)
    if arguments is None:
        return None
    from supervisor.cli.ctl.main import main

    return main(arguments)
