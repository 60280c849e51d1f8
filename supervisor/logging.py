"""The log: one line for each event, as text or JSON, on standard error. A stalled reader blocks nothing."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import os
import select
import stat
import sys
import time
from collections import deque
from collections.abc import AsyncIterator
from pathlib import Path

_MAX_WAITING_LINES = 10_000
_WRITE_BYTES = select.PIPE_BUF
_RETRY_SECONDS = 0.05
_CLOSE_SECONDS = 1.0
MAX_RECENT_LINES = 1000
_MAX_RECENT_CHARACTERS = 4096
_FOLLOW_POLL_SECONDS = 0.25
_STDERR = 2


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


class RecentLines:
    """The last lines of the log, in memory: standard error cannot be read back."""

    def __init__(self) -> None:
        self._lines: deque[str] = deque(maxlen=MAX_RECENT_LINES)
        self._total = 0

    def add(self, line: str) -> None:
        """Adds a line, whose end is omitted beyond 4,096 characters. May be called in any thread."""
        self._lines.append(line[:_MAX_RECENT_CHARACTERS])
        self._total += 1

    def newest(self, count: int) -> list[str]:
        """The last lines, oldest first."""
        return list(self._lines.copy())[-count:] if count else []

    async def follow(self, count: int) -> AsyncIterator[bytes]:
        """The last lines, then what is added, in pieces of whole lines."""
        seen, count = self._total, min(count, self._total)
        while True:
            if lines := self.newest(count):
                yield "".join(f"{line}\n" for line in lines).encode("utf-8", "replace")
            await asyncio.sleep(_FOLLOW_POLL_SECONDS)
            seen, count = self._total, min(self._total - seen, MAX_RECENT_LINES)


recent = RecentLines()
"""Those of this process."""


def destination() -> str:
    """Where the whole log is: what standard error leads to, with the command that reads it where there is one."""
    try:
        facts, target = os.fstat(_STDERR), str(Path(f"/proc/self/fd/{_STDERR}").readlink())
    except OSError:
        return "nowhere: standard error is closed"
    if os.environ.get("JOURNAL_STREAM") == f"{facts.st_dev}:{facts.st_ino}":
        return f"the journal: journalctl _PID={os.getpid()}"
    if stat.S_ISREG(facts.st_mode):
        return target
    if target == os.devnull:
        return f"nowhere: standard error is {target}"
    if os.isatty(_STDERR):
        return f"the terminal {target}"
    return "a pipe: what has started the server reads it"


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
        line = self.format(record)
        recent.add(line)
        if len(self._waiting) < _MAX_WAITING_LINES:
            self._waiting.append((line + "\n").encode("utf-8", "backslashreplace"))
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
