"""Starts servers and verbs by fork from a process that has imported run.py: the imports take most of a start.

What differs from `python run.py`: the command line that /proc shows, what Python itself reads from its environment, and
the caches that `_fill_caches` fills.
"""

from __future__ import annotations

import json
import os
import re
import select
import signal
import socket
import subprocess
import sys
import tempfile
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import IO, Any

WARNINGS = {"PYTHONWARNINGS": "error"}
_MAX_REQUEST_BYTES = 1024 * 1024


class Forked:
    """A forked server, with those methods of `subprocess.Popen` that the tests use."""

    def __init__(self, pid: int, ended: int) -> None:
        self.pid = pid
        self.returncode: int | None = None
        self._ended = ended

    def poll(self) -> int | None:
        return self._wait(0)

    def wait(self, timeout: float | None = None) -> int:
        """Returns the exit code. Raises `subprocess.TimeoutExpired`."""
        if (code := self._wait(timeout)) is None:
            raise subprocess.TimeoutExpired("run.py", timeout or 0)
        return code

    def _wait(self, timeout: float | None) -> int | None:
        if self.returncode is None and select.select([self._ended], [], [], timeout)[0]:
            self.returncode = os.waitstatus_to_exitcode(int(os.read(self._ended, 20)))
            os.close(self._ended)
        return self.returncode

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            os.kill(self.pid, number)

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)


class Preloaded:
    """The process that has imported run.py. It ends with the one that started it."""

    def __init__(self) -> None:
        self._requests, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, __file__, str(theirs.fileno())],
                stdin=subprocess.DEVNULL, pass_fds=[theirs.fileno()], env={**os.environ, **WARNINGS},
            )  # fmt: skip

    def launch(self, command: Sequence[str], folder: Path, environ: Mapping[str, str], log: IO[bytes]) -> Forked:
        """Starts a server with this command line, working directory, environment and output."""
        with open(os.devnull, "rb") as nothing:
            return self._fork([list(command), str(folder), dict(environ)], nothing, log, log)

    def run(
        self, command: Sequence[str], folder: Path, environ: Mapping[str, str], given: bytes, timeout: float
    ) -> subprocess.CompletedProcess[bytes]:
        """Runs a verb with this standard input until it ends. Raises `subprocess.TimeoutExpired`, and kills it."""
        with tempfile.TemporaryFile() as read, tempfile.TemporaryFile() as output, tempfile.TemporaryFile() as errors:
            read.write(given)
            read.seek(0)
            verb = self._fork([list(command), str(folder), dict(environ)], read, output, errors)
            try:
                code = verb.wait(timeout)
            except subprocess.TimeoutExpired:
                verb.kill()
                verb.wait()
                raise
            output.seek(0)
            errors.seek(0)
            return subprocess.CompletedProcess(command, code, output.read(), errors.read())

    def _fork(self, request: list[Any], *files: IO[bytes]) -> Forked:
        ended, theirs = os.pipe()
        descriptors = [*(file.fileno() for file in files), theirs]
        socket.send_fds(self._requests, [json.dumps(request).encode()], descriptors)
        os.close(theirs)
        return Forked(int(os.read(ended, 20)), ended)

    def close(self) -> None:
        self._requests.close()
        self._process.wait()


def main(number: str) -> None:
    """Forks for each request that the socket with this number gets."""
    sys.path.insert(0, str(Path(__file__).parents[1]))
    import run

    _fill_caches(run)
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # the processes that wait for a server are not waited for
    with socket.socket(fileno=int(number)) as requests:
        while True:
            request, descriptors, _, _ = socket.recv_fds(requests, _MAX_REQUEST_BYTES, 4)
            if not request:
                return
            if os.fork() == 0:
                requests.close()
                _start(run, json.loads(request), *descriptors)
            for descriptor in descriptors:
                os.close(descriptor)


def _fill_caches(run: Any) -> None:
    """Compiles what each server would compile again: the patterns of routes, the inputs of tools, and the templates."""
    from tornado.template import Loader
    from tornado.web import RequestHandler

    from handlers import app
    from handlers.mcp.derived_tools import tools_of

    vars(re)["_MAXCACHE"] = 4096  # there are more routes than the 512 patterns that Python keeps
    settings = run.loader.load(None, {}, {})
    app.rules(SimpleNamespace(config=settings), None)  # type: ignore[arg-type]  # of the services it needs no more
    tools_of(app.served(settings))
    folder = Path(app.__file__).parent / "templates"
    loader = RequestHandler._template_loaders[str(folder)] = Loader(str(folder))
    for file in folder.rglob("*.html"):
        loader.load(str(file.relative_to(folder)))


def _start(run: Any, request: Any, *descriptors: int) -> None:
    """Forks again: the child is the server, the parent writes its pid and the status with which it ended."""
    *files, ended = descriptors
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    if pid := os.fork():
        for file in files:
            os.close(file)
        os.write(ended, f"{pid:20}".encode())
        os.write(ended, str(os.waitpid(pid, 0)[1]).encode())
        os._exit(0)
    os.close(ended)
    for number, file in enumerate(files):
        os.dup2(file, number)
        os.close(file)
    sys.argv, folder, environ = request
    os.chdir(folder)
    os.environ.clear()
    os.environ.update(environ)
    if "PYTHONWARNINGS" not in environ:  # what Python ignores by default; other warnings stay errors
        for category in (DeprecationWarning, PendingDeprecationWarning, ImportWarning, ResourceWarning):
            warnings.simplefilter("ignore", category)
    sys.exit(run.main())


if __name__ == "__main__":
    main(sys.argv[1])
