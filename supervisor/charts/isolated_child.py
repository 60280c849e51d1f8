"""The program of a child process of `workers.py`. It imports nothing of the server but the function that it calls."""

from __future__ import annotations

import pickle
import resource
import sys
from typing import Any

from models.errors import Unprocessable

MAX_MEMORY_BYTES = 512 * 1024**2
MAX_SECONDS = 60
FROZEN_ARGUMENT = "--isolated-call"
"""The packed program has no interpreter that could be given code; with this argument it is such a child."""


def serve() -> None:
    """The child: reads a function and its arguments, writes its result or its exception."""
    resource.setrlimit(resource.RLIMIT_AS, (MAX_MEMORY_BYTES, MAX_MEMORY_BYTES))
    resource.setrlimit(resource.RLIMIT_CPU, (MAX_SECONDS, MAX_SECONDS))
    answer: tuple[bool, Any]
    try:
        function, arguments, options = pickle.load(sys.stdin.buffer)  # noqa: S301 (written by Isolation)
        answer = True, function(*arguments, **options)
    except MemoryError:
        answer = False, Unprocessable(f"the work needs more than {MAX_MEMORY_BYTES} bytes of memory")
    except Exception as error:  # the caller's, wherever it is
        answer = False, error
    pickle.dump(answer, sys.stdout.buffer)
