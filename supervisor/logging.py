"""The log: one line for each event, as text or JSON, on standard error. A stalled reader blocks nothing."""

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

_MAX_WAITING_LINES = 10_000
_WRITE_BYTES = select.PIPE_BUF
_RETRY_SECONDS = 0.05
_CLOSE_SECONDS = 1.0


class TextFormatter(logging.Formatter):
    """`2026-11-20T19:00:00.123Z INFO supervision: web: starting -> running (pid 42)`."""

    def __init__(self) -> None:
        super().__init__()
        self._second = 0
        self._date = ""

    def time(self, record: logging.LogRecord) -> str:
        """The time in UTC. The date is formatted once a second, since there may be thousands of lines in one."""
        second = int(record.created)
        if second != self._second:
            self._second, self._date = second, time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(second))
        return f"{self._date}.{int(record.msecs):03d}Z"

    def format(self, record: logging.LogRecord) -> str:
        """One line: line breaks in names are escaped. Only a traceback follows on lines of its own."""
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
    """Writes the lines of one iteration of the loop in few writes, and only as many bytes as are taken without waiting.

    Not `QueueListener`: its thread takes the interpreter from the loop for milliseconds (docs/design.md). Not a
    non-blocking descriptor: the processes that inherit it would be affected.
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
        if len(self._waiting) < _MAX_WAITING_LINES:
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
                    self._due = asyncio.get_running_loop().call_later(_RETRY_SECONDS, self._write)
            elif self._lost:
                lost, self._lost = self._lost, 0
                self._waiting.append(b"%d lines were lost: standard error was not read\n" % lost)

    def _write_for(self, seconds: float) -> None:
        """Writes up to `PIPE_BUF` bytes at a time, which a pipe that is ready takes whole; waits `seconds` for each."""
        while self._waiting and self._poll.poll(1000 * seconds):
            piece = self._waiting.popleft()
            while self._waiting and len(piece) + len(self._waiting[0]) <= _WRITE_BYTES:
                piece += self._waiting.popleft()
            if len(piece) > _WRITE_BYTES:
                self._waiting.appendleft(piece[_WRITE_BYTES:])
            try:
                os.write(self._file, piece[:_WRITE_BYTES])
            except OSError:  # the reader is gone, or the disk is full: the lines cannot be reported
                self._waiting.clear()

    def close(self) -> None:
        """Waits up to a second for a slow reader, then closes."""
        self._write_for(_CLOSE_SECONDS)
        super().close()


def set_up_logging(style: str) -> Lines:
    """Sends all log lines to standard error, until the returned handler is closed."""
    lines = Lines(sys.stderr.fileno())
    lines.setFormatter(JsonFormatter() if style == "json" else TextFormatter())
    logging.basicConfig(level=logging.INFO, handlers=[lines], force=True)
    logging.captureWarnings(True)
    logging.logThreads = logging.logProcesses = logging.logMultiprocessing = False  # the lines show neither
    logging._srcfile = None  # nor the caller; both are in the logging HOWTO under "Optimization"
    logging.getLogger("asyncio").setLevel(logging.WARNING)
    return lines
