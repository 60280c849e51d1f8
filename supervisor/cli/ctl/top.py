"""`top`: processes by their use of processors and memory, on a terminal again and again."""

from __future__ import annotations

import os
import select
import shutil
import sys
import termios
import time
import tty
from argparse import Namespace
from typing import Any

from supervisor.cli.ctl.client import Client
from supervisor.cli.ctl.commands import DETAILS, print_json, selection
from supervisor.cli.ctl.errors import OK
from supervisor.cli.ctl.terminal import columns, duration, instant, is_dumb, plain, size

_ENTER, _LEAVE = "\x1b[?1049h\x1b[?25l", "\x1b[?25h\x1b[?1049l"
_HOME, _CLEAR_LINE, _CLEAR_BELOW = "\x1b[H", "\x1b[K", "\x1b[J"
_MAX_KEYS_BYTES = 1024
_HEAD = ("NAME", "STATUS", "PID", "CPU", "MEMORY", "UPTIME", "RESTARTS")


def top(client: Client, arguments: Namespace) -> int:
    """Shows the table once where standard input or output is no terminal, or a dumb one; else until `q` or Ctrl-C."""
    if not (sys.stdin.isatty() and sys.stdout.isatty()) or is_dumb() or arguments.json:
        processes, now = _read(client, arguments)
        if arguments.json:
            print_json(processes)
        else:
            print("\n".join(_table(processes, now)))
        return OK
    settings = termios.tcgetattr(sys.stdin)
    sys.stdout.write(_ENTER)
    try:
        tty.setcbreak(sys.stdin)
        _redraw(client, arguments)
    except KeyboardInterrupt:
        pass
    finally:
        termios.tcsetattr(sys.stdin, termios.TCSADRAIN, settings)
        sys.stdout.write(_LEAVE)
        sys.stdout.flush()
    return OK


def _redraw(client: Client, arguments: Namespace) -> None:
    """Draws the table after each delay, and at once after a key; `q` ends it. Raises `CtlError`."""
    while True:
        processes, now = _read(client, arguments)
        width, height = shutil.get_terminal_size()
        live = sum(process["pid"] is not None for process in processes)
        clock = time.strftime("%H:%M:%S")
        lines = [f"{live} of {len(processes)} processes are live, {clock}, q quits", "", *_table(processes, now)]
        drawn = "".join(f"{line[: width - 1]}{_CLEAR_LINE}\r\n" for line in lines[: height - 1])
        sys.stdout.write(f"{_HOME}{drawn}{_CLEAR_BELOW}")
        sys.stdout.flush()
        ready, _, _ = select.select([sys.stdin], [], [], arguments.delay)
        if ready:
            keys = os.read(sys.stdin.fileno(), _MAX_KEYS_BYTES)  # a buffer would keep part of an arrow key
            if not keys or b"q" in keys.lower():
                return


def _read(client: Client, arguments: Namespace) -> tuple[list[dict[str, Any]], float | None]:
    reply = client.get(DETAILS, selection(arguments.selectors))
    processes: list[dict[str, Any]] = reply.json
    processes.sort(key=lambda one: (-(one["cpuPercent"] or 0), -(one["memoryBytes"] or 0), one["name"]))
    return processes, reply.now()


def _table(processes: list[dict[str, Any]], now: float | None) -> list[str]:
    return columns([_HEAD, *(_row(process, now) for process in processes)])


def _row(process: dict[str, Any], now: float | None) -> tuple[str, ...]:
    start, is_live = instant(process["startTime"]), process["pid"] is not None
    cpu = process["cpuPercent"]
    return (
        plain(process["name"]),
        process["status"],
        str(process["pid"] or ""),
        "" if cpu is None else f"{cpu:.1f} %",
        size(process["memoryBytes"]),
        duration(now - start) if is_live and start is not None and now is not None else "",
        str(process["restarts"]),
    )
