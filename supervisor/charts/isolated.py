"""Work that one call into C does and no checkpoint can end: it runs in a child process that can be killed.

A parser written in C holds Python's global lock to its end, so a large document would stall the event loop from a
worker thread too. The child runs a function of the product and returns its result, which should be small.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import pickle
import signal
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from models.deadline import checkpoint
from models.errors import Unavailable, Unprocessable
from supervisor.charts.helm.runner import PROCESS_NAME
from supervisor.charts.isolated_child import FROZEN_ARGUMENT, MAX_MEMORY_BYTES, MAX_SECONDS
from supervisor.children.child import TAG_VARIABLE, Child, Children, Launch

_POLL_SECONDS = 0.05
_KILL_WAIT_SECONDS = 20.0
_INHERITED = ("PATH", "PYTHONPATH", "PYTHONHOME", "LD_LIBRARY_PATH", "LANG", "LC_ALL")
_PROGRAM = "import sys; sys.path.insert(0, sys.argv.pop()); from supervisor.charts.isolated_child import serve; serve()"


class Isolation:
    """Calls functions in child processes."""

    def __init__(self, children: Children, instance: str, environ: Mapping[str, str]) -> None:
        self._children = children
        self._loop = asyncio.get_running_loop()
        self._environment = {name: environ[name] for name in _INHERITED if name in environ}
        self._environment[TAG_VARIABLE] = f"{instance}:0:{PROCESS_NAME}"

    def call(self, function: Callable[..., Any], *arguments: Any, **options: Any) -> Any:
        """Calls a function of a module in a child process; for worker threads, whose deadline applies.

        Raises what the function raises, `Unprocessable` beyond 512 MB or 60 s, and `Unavailable` without a process.
        """
        request = pickle.dumps((function, arguments, options))
        running = asyncio.run_coroutine_threadsafe(self._run(request), self._loop)
        try:
            while True:
                with contextlib.suppress(TimeoutError):
                    has_returned, result = pickle.loads(running.result(_POLL_SECONDS))  # noqa: S301 (written by serve)
                    break
                checkpoint()
        except BaseException:
            running.cancel()
            raise
        if has_returned:
            return result
        raise result

    async def _run(self, request: bytes) -> bytes:
        """The child's answer. A child that does not answer is killed."""
        with contextlib.ExitStack() as files:
            given, answered = (_memory_file(name, files) for name in ("request", "answer"))
            with os.fdopen(os.dup(given), "wb") as file:
                file.write(request)
            os.lseek(given, 0, os.SEEK_SET)
            launch = Launch(_command(), self._environment, "/", stdin=given, stdout=answered, stderr=answered)
            try:
                child = self._children.spawn(launch)
            except OSError as error:
                raise Unavailable(f"no process can be started: {error.strerror}") from None
            self._children.watch(child, lambda exit: None)
            try:
                await asyncio.wait({child.exited}, timeout=MAX_SECONDS)
            finally:
                await asyncio.shield(_kill(child))
            exit = child.exited.result()
            if exit is None or exit.exit_code != 0:
                raise Unprocessable(f"the work needs more than {MAX_MEMORY_BYTES} bytes or {MAX_SECONDS} s")
            with os.fdopen(os.dup(answered), "rb") as file:
                file.seek(0)
                return file.read()


async def _kill(child: Child) -> None:
    if not child.exited.done():
        child.send(signal.SIGKILL)
        await asyncio.wait({child.exited}, timeout=_KILL_WAIT_SECONDS)


def _memory_file(name: str, files: contextlib.ExitStack) -> int:
    handle = os.memfd_create(name)
    files.callback(os.close, handle)
    return handle


def _command() -> list[str]:
    if getattr(sys, "frozen", False):
        return [sys.executable, FROZEN_ARGUMENT]
    return [sys.executable, "-c", _PROGRAM, str(Path(__file__).resolve().parents[2])]
