"""The program of a worker process: calls the functions that the server names, one after the other.

It imports nothing of the product but this and what the named functions need.
"""

from __future__ import annotations

import errno
import importlib
import signal
import socket
import sys
import traceback
from typing import Any

from models.errors import Problem
from supervisor.workers import protocol
from supervisor.workers.confinement import confine, limit_job

FROZEN_ARGUMENT = "--worker-process"
"""The packed program has no interpreter that could be given code; with this argument it is a worker process."""

_MAX_ERROR_CHARACTERS = 4000


def serve() -> None:
    """Answers requests on standard input, which is a socket, until the server closes it."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl+C is for the server, which ends its workers
    confine(int(sys.argv.pop()))
    channel = socket.socket(fileno=0)
    while (request := protocol.receive(channel)) is not None:
        answer = _answer(request)
        channel.sendall(_encoded(answer))


def _encoded(answer: dict[str, Any]) -> bytes:
    try:
        return protocol.encode(answer)
    except (protocol.BadMessage, TypeError, ValueError) as error:
        return protocol.encode({"error": f"the answer cannot be sent: {error}"})


def _answer(request: dict[str, Any]) -> dict[str, Any]:
    """What the named function returns or raises."""
    try:
        module, _, name = request["function"].partition(":")
        function = getattr(importlib.import_module(module), name)
        limit_job(request["cpu_seconds"], request["file_bytes"])
        return {"result": function(**request["arguments"])}
    except Problem as problem:
        kind = type(problem).__name__
        if kind in protocol.PROBLEMS:
            return {"problem": [kind, problem.message, problem.code]}
        return {"error": f"{kind}: {problem.message}"}
    except MemoryError:
        return {"limit": "memory"}
    except OSError as error:
        return {"limit": "file size"} if error.errno == errno.EFBIG else {"error": _trace()}
    except Exception:
        return {"error": _trace()}


def _trace() -> str:
    return traceback.format_exc()[-_MAX_ERROR_CHARACTERS:]
