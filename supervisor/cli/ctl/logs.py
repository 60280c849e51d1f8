"""`tail`: the end of logs, and what is added to them."""

from __future__ import annotations

import queue
import sys
import threading
from argparse import Namespace
from collections.abc import Sequence
from typing import Any, NamedTuple
from urllib.parse import quote

from supervisor.cli.ctl.client import Client
from supervisor.cli.ctl.commands import Query, print_json, selection
from supervisor.cli.ctl.errors import FAILED, OK, CtlError, ServerAway
from supervisor.cli.ctl.terminal import plain, shown_log

_LINES, _MAX_LINES = 10, 10_000


class LogSource(NamedTuple):
    """One log: of a process, of a stream, and the label of its lines."""

    name: str
    stream: str
    label: str

    @property
    def path(self) -> str:
        return f"/processes/logs/{quote(self.name, safe='')}"

    def query(self, lines: int, since: str | None = None) -> Query:
        return [("lines", str(lines)), ("stream", self.stream), *([("since", since)] if since else [])]


def tail(client: Client, arguments: Namespace) -> int:
    stream = "stdout" if arguments.stdout else "stderr" if arguments.stderr else None
    found = sources(client, arguments.selectors, stream)
    output = LogOutput(is_raw=arguments.raw or not sys.stdout.isatty())
    lines = arguments.lines or (_MAX_LINES if arguments.since else _LINES)
    if arguments.follow:
        streams = [(one.path, one.label, one.query(lines, arguments.since)) for one in found]
        return _follow(client, streams, output)
    failed = False
    for source in found:
        try:
            body = client.get(source.path, source.query(lines, arguments.since)).body
        except CtlError as error:
            print(error, file=sys.stderr)
            failed = True
        else:
            output.write(source.label, body)
    return FAILED if failed else OK


def sources(client: Client, selectors: Sequence[str], stream: str | None = None) -> list[LogSource]:
    """The logs of one stream, or of both where a process has a file for each. Raises `CtlError`.

    Lines have the names of the processes as labels where there are several; lines of standard error are marked as
    such unless it was requested alone.
    """
    processes = client.get("/processes", selection(selectors)).json
    found = []
    for process in processes:
        name = plain(process["name"]) if len(processes) > 1 else ""
        has_stdout, has_stderr = process["stdoutLogfile"] is not None, process["stderrLogfile"] is not None
        is_one_file = process["stdoutLogfile"] == process["stderrLogfile"]
        if stream is not None:
            found.append(LogSource(process["name"], stream, name))
        if stream is None and (has_stdout or not has_stderr):
            found.append(LogSource(process["name"], "stdout", name))
        if stream is None and has_stderr and not is_one_file:
            found.append(LogSource(process["name"], "stderr", f"{name} stderr".lstrip()))
    return found


def maintail(client: Client, arguments: Namespace) -> int:
    """The end of the server's own log; where the whole log is goes to standard error."""
    path, query = "/supervisor/log", [("lines", str(arguments.lines))]
    log = client.get(path, query).json
    if arguments.json and not arguments.follow:
        print_json(log)
        return OK
    print(f"the whole log: {plain(log['kept'])}", file=sys.stderr)
    output = LogOutput(is_raw=arguments.raw or not sys.stdout.isatty())
    if arguments.follow:
        return _follow(client, [(path, "", query)], output)
    output.write("", "".join(f"{line}\n" for line in log["lines"]).encode("utf-8", "replace"))
    return OK


def _follow(client: Client, found: Sequence[tuple[str, str, Query]], output: LogOutput) -> int:
    """Follows logs, each of a path, a label and a query, until it is interrupted.

    Returns the code of the last error where none can be followed. Raises `CtlError` where the server goes away.
    """
    pieces: queue.SimpleQueue[tuple[str, Any]] = queue.SimpleQueue()
    followed, code = 0, FAILED
    for path, label, query in found:
        try:
            stream = client.stream(path, query)
        except ServerAway:
            raise
        except CtlError as error:
            print(error, file=sys.stderr)
            code = error.code
            continue
        followed += 1
        threading.Thread(target=_read, args=(label, stream, pieces), daemon=True).start()
    while followed:
        label, piece = pieces.get()
        if isinstance(piece, CtlError):
            raise piece
        output.write(label, piece)
    return code


def _read(label: str, stream: Any, pieces: queue.SimpleQueue[tuple[str, Any]]) -> None:
    try:
        for event in stream:
            if event.get("event") == "log":
                pieces.put((label, (event.get("data", "") + "\n").encode()))
    except CtlError as error:
        pieces.put((label, error))
    except TimeoutError:
        pieces.put((label, CtlError("the server stopped sending", code=7)))


class LogOutput:
    """Standard output for logs: escaped lines on a terminal, otherwise unchanged bytes."""

    def __init__(self, is_raw: bool) -> None:
        self._is_raw = is_raw

    def write(self, label: str, body: bytes) -> None:
        """Writes lines, each after the label if there is one."""
        prefix = f"{label} | ".encode() if label else b""
        if not self._is_raw:
            lines = body.decode("utf-8", "replace").removesuffix("\n").split("\n") if body else []
            body = b"".join(prefix + shown_log(line.removesuffix("\r")).encode() + b"\n" for line in lines)
        elif prefix:
            body = b"".join(prefix + line + b"\n" for line in body.removesuffix(b"\n").split(b"\n")) if body else b""
        sys.stdout.buffer.write(body)
        sys.stdout.buffer.flush()
