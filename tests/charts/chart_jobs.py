"""Functions that tests call in the worker processes of charts, which find this module by PYTHONPATH."""

from __future__ import annotations

import os
import re
import socket
import sys
import time
from pathlib import Path
from typing import Any

from attrs import frozen

from models.charts.responses import ListRow
from models.errors import Upstream
from supervisor.workers import calls


@frozen
class Sample:
    """A value of several types."""

    name: str
    path: Path
    pairs: tuple[tuple[str, int], ...]
    kinds: frozenset[str]
    parts: dict[str, Any]
    row: ListRow | None = None


@frozen
class Row:
    """A value with a list."""

    names: list[str]


def pid() -> int:
    return os.getpid()


def same(value: Any) -> Any:
    return value


def sample(size: int) -> Sample:
    row = ListRow("a", "n", 1, None, "deployed", "\ud800" * size, "\0")
    pairs = tuple((f"p{number}", number) for number in range(size))
    parts = {"text": "é\n" * size, "list": [[number, None, 1.5] for number in range(size)], "\0text": [0, 1], "": {}}
    return Sample("x" * size, Path("/a"), pairs, frozenset({"k"}), parts, row)


def texts(count: int) -> list[str]:
    return [f"text {number}" for number in range(count)]


def data(size: int) -> bytes:
    return bytes(size)


def upstream() -> None:
    raise Upstream("not there", "its-code")


def wrong_type() -> int:
    return "text"  # type: ignore[return-value]


def bad_pieces() -> Any:
    """Answers beside the protocol with places outside of the file."""
    answer_beside('{"\\u0000text": [[0, 99999999]]}')


def deep_pieces() -> Any:
    """Answers beside the protocol with a value that the server's stack cannot hold."""
    answer_beside("[" * 600 + "]" * 600)


def answer_beside(pieces: str) -> None:
    """Answers with an empty file, then sleeps."""
    folder = Path(sys._getframe(2).f_locals["folder"])  # of `calls.perform`
    folder.mkdir()
    (folder / calls.ANSWER).touch()
    body = f'{{"result": {{"pieces": {pieces}}}}}'.encode()
    socket.socket(fileno=os.dup(0)).sendall(len(body).to_bytes(4, "big") + body)
    time.sleep(60)


def many_answers() -> Any:
    """Floods the channel."""
    channel = socket.socket(fileno=os.dup(0))
    while True:
        channel.sendall(b"\xff" * 65536)


def work_in_c(started: str) -> None:
    """Works for hours in one call into C, once it has written its pid to a file."""
    Path(started).write_text(str(os.getpid()))
    re.match("(a|aa)+$", "a" * 200 + "b")


def wait(started: str, end: str) -> int:
    Path(started).write_text(str(os.getpid()))
    while not Path(end).exists():
        time.sleep(0.005)
    return os.getpid()


def pause(seconds: float) -> None:
    time.sleep(seconds)


def allocate(size: int) -> int:
    return len(b"x" * size)
