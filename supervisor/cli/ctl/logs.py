"""`tail`: the end of logs, and what is added to them."""

from __future__ import annotations

import queue
import sys
import threading
from argparse import Namespace
from typing import Any
from urllib.parse import quote

from supervisor.cli.ctl.client import Client
from supervisor.cli.ctl.commands import selection
from supervisor.cli.ctl.errors import FAILED, OK, CtlError, ServerAway
from supervisor.cli.ctl.terminal import plain, shown_log


def tail(client: Client, arguments: Namespace) -> int:
    names = [process["name"] for process in client.get("/processes", selection(arguments.selectors)).json]
    output = LogOutput(is_prefixed=len(names) > 1, is_raw=arguments.raw or not sys.stdout.isatty())
    stream = "stderr" if arguments.stderr else "stdout"
    query = [("lines", str(arguments.lines)), ("stream", stream)]
    if arguments.follow:
        return _follow(client, names, query, output)
    failed = False
    for name in names:
        try:
            body = client.get(_path(name), query).body
        except CtlError as error:
            print(error, file=sys.stderr)
            failed = True
        else:
            output.write(name, body)
    return FAILED if failed else OK


def _path(name: str) -> str:
    return f"/processes/logs/{quote(name, safe='')}"


def _follow(client: Client, names: list[str], query: list[tuple[str, str]], output: LogOutput) -> int:
    """Follows until it is interrupted; returns the code of the last error where none can be followed.

    Raises `CtlError` where the server goes away.
    """
    pieces: queue.SimpleQueue[tuple[str, Any]] = queue.SimpleQueue()
    followed, code = 0, FAILED
    for name in names:
        try:
            stream = client.stream(_path(name), query)
        except ServerAway:
            raise
        except CtlError as error:
            print(error, file=sys.stderr)
            code = error.code
            continue
        followed += 1
        threading.Thread(target=_read, args=(name, stream, pieces), daemon=True).start()
    while followed:
        name, piece = pieces.get()
        if isinstance(piece, CtlError):
            raise piece
        output.write(name, piece)
    return code


def _read(name: str, stream: Any, pieces: queue.SimpleQueue[tuple[str, Any]]) -> None:
    try:
        for event in stream:
            if event.get("event") == "log":
                pieces.put((name, (event.get("data", "") + "\n").encode()))
    except CtlError as error:
        pieces.put((name, error))
    except TimeoutError:
        pieces.put((name, CtlError("the server stopped sending", code=7)))


class LogOutput:
    """Standard output for logs: escaped lines on a terminal, otherwise unchanged bytes."""

    def __init__(self, is_prefixed: bool, is_raw: bool) -> None:
        self._is_prefixed = is_prefixed
        self._is_raw = is_raw

    def write(self, name: str, body: bytes) -> None:
        prefix = f"{plain(name)} | ".encode() if self._is_prefixed else b""
        if not self._is_raw:
            lines = body.decode("utf-8", "replace").removesuffix("\n").split("\n") if body else []
            body = b"".join(prefix + shown_log(line.removesuffix("\r")).encode() + b"\n" for line in lines)
        elif prefix:
            body = b"".join(prefix + line + b"\n" for line in body.removesuffix(b"\n").split(b"\n")) if body else b""
        sys.stdout.buffer.write(body)
        sys.stdout.buffer.flush()
