"""Our log: one line for each happening, as text or as JSON, on standard error; a reader that stalls holds up nobody."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import os
import select
import sys
import time
from collections import deque

_MOST_LINES = 10_000
_PIECE = select.PIPE_BUF
_AGAIN = 0.05


class TextFormatter(logging.Formatter):
    """`2026-11-20T19:00:00.123Z INFO supervision: web: starting -> running (pid 42)`."""

    def __init__(self) -> None:
        super().__init__()
        self._second = 0
        self._date = ""

    def time(self, record: logging.LogRecord) -> str:
        """In UTC. The date is made once a second, since a storm has thousands of lines in one."""
        second = int(record.created)
        if second != self._second:
            self._second, self._date = second, time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(second))
        return f"{self._date}.{int(record.msecs):03d}Z"

    def format(self, record: logging.LogRecord) -> str:
        """A line break that somebody put into a name makes no second line; the trace of a defect does."""
        text = f"{self.time(record)} {record.levelname} {record.name}: {record.getMessage()}"
        if record.exc_info:
            return f"{text}\n{self.formatException(record.exc_info)}"
        return text.replace("\r", "\\r").replace("\n", "\\n")


class JsonFormatter(TextFormatter):
    def format(self, record: logging.LogRecord) -> str:
        line = {
            "time": self.time(record),
            "level": record.levelname,
            "logger": record.name,
            "message": record.getMessage(),
        }
        if record.exc_info:
            line["trace"] = self.formatException(record.exc_info)
        return json.dumps(line, ensure_ascii=False)


class Lines(logging.Handler):
    """Writes what was logged in one turn of the loop in few writes, and only as much as is taken without waiting.

    Not a thread: one that formats lines takes the interpreter from the loop for milliseconds. Not a non-blocking
    descriptor: the processes that inherit it would have that too.
    """

    def __init__(self, file: int) -> None:
        super().__init__()
        self._file = file
        self._waiting: deque[bytes] = deque()
        self._lost = 0
        self._due: asyncio.Handle | None = None
        self._poll = select.poll()
        self._poll.register(file, select.POLLOUT)

    def emit(self, record: logging.LogRecord) -> None:
        if len(self._waiting) < _MOST_LINES:
            self._waiting.append((self.format(record) + "\n").encode("utf-8", "backslashreplace"))
        else:
            self._lost += 1
        try:
            self._due = self._due or asyncio.get_running_loop().call_soon(self._write)
        except RuntimeError:  # before the loop, after it, or in a worker
            self._write()

    def _write(self) -> None:
        with self.lock or contextlib.nullcontext():
            self._due = None
            self._write_for(0)
            if self._waiting:
                with contextlib.suppress(RuntimeError):
                    self._due = asyncio.get_running_loop().call_later(_AGAIN, self._write)
            elif self._lost:
                lost, self._lost = self._lost, 0
                self._waiting.append(b"%d lines were lost: nobody took them off standard error\n" % lost)

    def _write_for(self, patience: float) -> None:
        """Up to `PIPE_BUF` bytes at a time: so much is taken whole by a pipe that says that it has room."""
        while self._waiting and self._poll.poll(1000 * patience):
            piece = self._waiting.popleft()
            while self._waiting and len(piece) + len(self._waiting[0]) <= _PIECE:
                piece += self._waiting.popleft()
            if len(piece) > _PIECE:
                self._waiting.appendleft(piece[_PIECE:])
            try:
                os.write(self._file, piece[:_PIECE])
            except OSError:  # the reader is gone, or the disk is full: there is nobody to tell
                self._waiting.clear()

    def close(self) -> None:
        """Gives a slow reader a second for the rest."""
        self._write_for(1)
        super().close()


def set_up_logging(style: str) -> Lines:
    """All log lines go to standard error from now on, until `close` of what is returned."""
    lines = Lines(sys.stderr.fileno())
    lines.setFormatter(JsonFormatter() if style == "json" else TextFormatter())
    logging.basicConfig(level=logging.INFO, handlers=[lines], force=True)
    logging.captureWarnings(True)
    logging.logThreads = logging.logProcesses = logging.logMultiprocessing = False  # in no line of ours,
    logging._srcfile = None  # nor is who called; both as the logging HOWTO has it under "Optimization"
    logging.getLogger("asyncio").setLevel(logging.WARNING)
    return lines
