"""One worker process as the server sees it: it is given a job, answers it, and can be killed at any moment."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import socket
import sys
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import Any, Generic, TypeVar

from attrs import frozen

from models.children import Exit
from models.errors import Failed, TimedOut, TooLarge, Unavailable, Unprocessable
from supervisor.children.child import Child, Children, Launch
from supervisor.children.tags import TAG_VARIABLE
from supervisor.workers import protocol
from supervisor.workers.confinement import MAX_MEMORY_BYTES
from supervisor.workers.program import FROZEN_ARGUMENT

log = logging.getLogger("workers")

Result = TypeVar("Result")

PROCESS_NAME = "\x01worker"
"""The name in the tag of worker processes; no configured process can have it."""
_KILL_WAIT_SECONDS = 20.0
_MAX_LOGGED_BYTES = 2000
_INHERITED = ("PATH", "PYTHONPATH", "PYTHONHOME", "LD_LIBRARY_PATH", "LANG", "LC_ALL")
"""What the interpreter needs to start; the program clears it."""
_PROGRAM = "import sys; sys.path.insert(0, sys.argv.pop()); from supervisor.workers.program import serve; serve()"


@frozen
class Job(Generic[Result]):
    """One call of a function of the product in a worker process. Files are passed by their paths."""

    function: str
    """`MODULE:NAME`."""
    arguments: Mapping[str, Any]
    """Keyword arguments as JSON holds them, at most 64 KiB."""
    read: Callable[[Any], Result | Awaitable[Result]]
    """Converts what the function returned; raises `ValueError` for what it never returns."""
    cpu_seconds: int
    seconds: float
    file_bytes: int
    """The largest file that it may write."""
    about: str
    """What is read, for messages: `the reports of the request`."""


class WorkerProcess:
    """Runs one job at a time."""

    def __init__(
        self,
        children: Children,
        instance: str,
        environ: Mapping[str, str],
        on_exit: Callable[[WorkerProcess], None],
    ) -> None:
        """Starts the process. `instance` tags it. Raises `Unavailable`."""
        self.jobs = 0
        """How many jobs it has done."""
        self.is_idle = True
        """Whether it waits for a job; not once a job failed in a way that leaves it in doubt."""
        self._is_stopped = False
        self._channel, other = socket.socketpair()
        self._streams: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None
        self._stderr = os.memfd_create("worker", os.MFD_CLOEXEC)
        environment = interpreter_environment(environ) | {TAG_VARIABLE: f"{instance}:0:{PROCESS_NAME}"}
        launch = Launch(
            _command(), environment, "/", stdin=other.fileno(), stdout=os.devnull, stderr=self._stderr, umask=0o077
        )
        try:
            self.child: Child = children.spawn(launch)
        except OSError as error:
            self._close()
            raise Unavailable(f"no process can be started: {error.strerror}") from None
        finally:
            other.close()
        self._on_exit = on_exit
        children.watch(self.child, self._ended)

    @property
    def has_ended(self) -> bool:
        return self.child.exited.done()

    @property
    def resident_bytes(self) -> int:
        """Its memory; 0 once it has ended."""
        with contextlib.suppress(OSError, ValueError, IndexError):
            return int(Path(f"/proc/{self.child.pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
        return 0

    async def run(self, job: Job[Result]) -> Result:
        """Runs a job; a cancelled one and one beyond its time end the process.

        Raises what the function raises of `protocol.PROBLEMS`, `TooLarge` or `Unprocessable` for a limit, `TimedOut`
        beyond `job.seconds`, and `Failed` for a process that died or does not answer as it should.
        """
        self.is_idle = False
        try:
            async with asyncio.timeout(job.seconds):
                answer = await self._exchange(job)
        except TimeoutError:
            raise TimedOut(f"{job.about} could not be read within {job.seconds:g} s") from None
        except (protocol.BadMessage, OSError, EOFError) as error:
            await self.end()
            raise self._death(job, error) from None
        finally:
            await self._end_unless_answered()
        self.jobs += 1
        return await self._result(job, answer)

    async def _exchange(self, job: Job[Result]) -> dict[str, Any]:
        """Sends the request; returns the answer. Raises `EOFError` where the process ends before."""
        if self._streams is None:
            self._streams = await asyncio.open_connection(sock=self._channel)
        reader, writer = self._streams
        request = {
            "function": job.function,
            "arguments": dict(job.arguments),
            "cpu_seconds": job.cpu_seconds,
            "file_bytes": job.file_bytes,
        }
        writer.write(protocol.encode(request))
        head = await reader.readexactly(protocol.LENGTH_BYTES)
        answer = protocol.decode(await reader.readexactly(protocol.length(head)))
        self.is_idle = True
        return answer

    async def _end_unless_answered(self) -> None:
        if not self.is_idle:
            await self.end()

    def kill(self) -> None:
        """Sends SIGKILL."""
        self.is_idle = False
        self.child.send(signal.SIGKILL)

    async def stop(self) -> None:
        """Ends the process and its job, which nobody waits for any more."""
        self._is_stopped = True
        await self.end()

    async def end(self) -> None:
        """Kills the process and waits until it is gone, so that it writes to no file any more."""
        self.kill()
        await asyncio.wait({self.child.exited}, timeout=_KILL_WAIT_SECONDS)

    async def _result(self, job: Job[Result], answer: dict[str, Any]) -> Result:
        """The result in an answer. Raises as `run`."""
        match answer:
            case {"result": value}:
                try:
                    read = job.read(value)
                    return await read if isinstance(read, Awaitable) else read
                except (ValueError, TypeError, KeyError, OSError, RecursionError) as error:
                    self._doubt(f"{job.function} returned what it never returns: {error}")
            case {"problem": [str(kind), str(message), str() | None as code]} if kind in protocol.PROBLEMS:
                raise protocol.PROBLEMS[kind](message, code)
            case {"limit": "memory"}:
                self.kill()
                raise TooLarge(f"{job.about} need more than {MAX_MEMORY_BYTES} bytes of memory")
            case {"limit": "file size"}:
                raise TooLarge(f"{job.about} have more than {job.file_bytes} bytes when read")
            case {"error": str(text)}:
                log.error("%s failed in a worker process: %s", job.function, text)
            case _:
                self._doubt(f"{job.function} answered in a way that is not known")
        raise Failed(f"{job.about} could not be read: an error in the server")

    def _doubt(self, why: str) -> None:
        """Ends a process whose answer cannot come from the product's functions."""
        log.error("worker process pid %d: %s", self.child.pid, why)
        self.kill()

    def _death(self, job: Job[Any], error: BaseException) -> Exception:
        """The problem of a job whose process was stopped, died or sent garbage."""
        if self._is_stopped:
            return Unavailable("pilothouse is stopping")
        if isinstance(error, protocol.BadMessage):
            log.error("worker process pid %d: %s", self.child.pid, f"it sent {error}")
            return Failed(f"{job.about} could not be read: their worker process failed")
        exit = self.child.exited.result() if self.child.exited.done() else None
        if exit is not None and exit.signal == signal.SIGXCPU:
            return Unprocessable(f"{job.about} take more than {job.cpu_seconds} s of CPU time to read")
        why = f"it ended during a job: {_cause(exit)}{self._last_words}"
        log.error("worker process pid %d: %s", self.child.pid, why)
        return Failed(f"{job.about} could not be read: their worker process ended ({_cause(exit)})")

    _last_words = ""

    def _ended(self, _: Exit | None) -> None:
        self._close()
        self._on_exit(self)

    def _close(self) -> None:
        """Closes the descriptors, and keeps what the process has written to standard error."""
        if self._streams is None:
            self._channel.close()
        else:
            self._streams[1].transport.abort()
        data = os.pread(self._stderr, _MAX_LOGGED_BYTES, max(0, os.fstat(self._stderr).st_size - _MAX_LOGGED_BYTES))
        os.close(self._stderr)
        if text := data.decode("utf-8", "replace").strip():
            self._last_words = f": {text}"


def _cause(exit: Exit | None) -> str:
    return "unknown" if exit is None else str(exit)


def interpreter_environment(environ: Mapping[str, str]) -> dict[str, str]:
    """What the interpreter of the server needs to be started once more."""
    environment = {name: environ[name] for name in _INHERITED if name in environ}
    if getattr(sys, "frozen", False):
        environment["LD_LIBRARY_PATH"] = sys._MEIPASS  # type: ignore[attr-defined]  # as packing/launcher.c
    return environment


def _command() -> list[str]:
    pid = str(os.getpid())
    if getattr(sys, "frozen", False):
        return [sys.executable, FROZEN_ARGUMENT, pid]
    return [sys.executable, "-c", _PROGRAM, pid, str(Path(__file__).resolve().parents[2])]
