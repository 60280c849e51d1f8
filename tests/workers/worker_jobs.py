"""Functions that tests run in worker processes, which find this module by PYTHONPATH."""

from __future__ import annotations

import contextlib
import os
import re
import resource
import signal
import socket
import sqlite3
from pathlib import Path
from typing import Any

from models.errors import Conflict, Invalid
from models.tracker.reports.upload_folder import ROWS
from models.tracker.reports.upload_reading import read_upload


def add(a: int, b: int) -> int:
    return a + b


def pid() -> int:
    return os.getpid()


def refuse(message: str) -> None:
    raise Invalid(message)


def conflict() -> None:
    raise Conflict("not now")


def fail() -> None:
    raise RuntimeError("a fault of the product")


def one_c_call(path: str) -> None:
    """Works for hours in one call into C, once it has written its pid to a file."""
    Path(path).write_text(str(os.getpid()))
    re.match("(a|aa)+$", "a" * 200 + "b")


def waste_memory() -> int:
    return len(b"x" * 600_000_000)


def keep_memory(size: int) -> int:
    kept.append(os.urandom(size))
    return os.getpid()


kept: list[bytes] = []


def write(path: str, size: int) -> None:
    with Path(path).open("wb") as file:
        file.write(bytes(size))


def huge_answer() -> str:
    return "x" * 100_000


def write_raw(data: str, times: int) -> None:
    """Writes to the channel beside the protocol."""
    socket.socket(fileno=os.dup(0)).sendall(data.encode("latin-1") * times)


def surroundings() -> dict[str, object]:
    """What the process can reach."""
    with contextlib.closing(socket.socket()) as connection:
        connection.settimeout(1)
        reached = connection.connect_ex(("127.0.0.1", 9))
    return {
        "environment": dict(os.environ),
        "nice": os.nice(0),
        "cpu": resource.getrlimit(resource.RLIMIT_CPU)[0],
        "memory": resource.getrlimit(resource.RLIMIT_AS)[0],
        "no_new_privs": "NoNewPrivs:\t1" in Path("/proc/self/status").read_text(),
        "connect": reached,
    }


def read_and_change(statement: str, folder: str, options: dict[str, Any]) -> dict[str, list[str]]:
    """Reads an upload, then changes its staging database."""
    answer = read_upload(folder, options)
    with contextlib.closing(sqlite3.connect(Path(folder) / ROWS)) as rows:
        rows.executescript(statement)
    return answer


def read_with_view(folder: str, options: dict[str, Any]) -> dict[str, list[str]]:
    return read_and_change("DROP TABLE cases; CREATE VIEW cases AS SELECT 1 AS id", folder, options)


def read_with_trigger(folder: str, options: dict[str, Any]) -> dict[str, list[str]]:
    return read_and_change("CREATE TRIGGER t AFTER INSERT ON cases BEGIN DELETE FROM files; END", folder, options)


def read_and_write_garbage(folder: str, options: dict[str, Any]) -> dict[str, list[str]]:
    answer = read_upload(folder, options)
    (Path(folder) / ROWS).write_bytes(b"garbage" * 10_000)
    return answer


def read_and_answer_much(folder: str, options: dict[str, Any]) -> dict[str, list[str]]:
    return read_upload(folder, options) | {"warnings": ["x" * 100_000]}


def read_and_answer_garbage(folder: str, options: dict[str, Any]) -> dict[str, object]:
    return dict(read_upload(folder, options)) | {"warnings": [{"not": "a text"}], "more": 1}


def read_and_die(folder: str, options: dict[str, Any]) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def read_and_stop(folder: str, options: dict[str, Any]) -> None:
    os.kill(os.getpid(), signal.SIGSTOP)


def read_and_waste(folder: str, options: dict[str, Any]) -> int:
    return len(b"x" * 600_000_000)
