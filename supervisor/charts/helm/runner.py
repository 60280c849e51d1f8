"""Runs one helm process within its bounds: memory, time, output.

A reading process is killed when its client leaves or its time ends. A process that changes a release gets SIGTERM, on
which helm records that the change failed, and is killed only after a grace period. A helm process that a killed server
left running keeps its tag, and the next start ends it (supervisor/processes/adoption.py); until then it continues,
which is better than an interrupted change. Interrupted changes are repaired in helm/recovery.py.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import signal
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from attrs import frozen

from models.charts import helm_errors
from models.children import Exit, Limits
from models.config.settings import HelmSettings
from models.errors import Invalid, Problem, TimedOut, Unavailable, Unprocessable
from supervisor.children.child import Child, Children, Launch

PROCESS_NAME = "\x01helm"
"""The name of every helm process in its tag; no supervised process can have this name."""
_MAX_STDERR_BYTES = 256 * 1024
_READ_BYTES = 64 * 1024
_READ_GRACE_SECONDS, CHANGE_GRACE_SECONDS = 0.5, 20.0
_KILL_WAIT_SECONDS = 20.0
_STOPPING = "the server stops"


@frozen
class Output:
    stdout: bytes
    stderr: str
    exit: Exit
    is_cut: bool = False
    """Whether output beyond `svc.helm.max-output` was dropped."""

    @property
    def ok(self) -> bool:
        return self.exit.exit_code == 0


@frozen
class Bounds:
    """Limits of one run. On timeout, `timeout_problem` is raised naming `setting`."""

    seconds: float
    setting: str
    timeout_problem: type[Problem] = TimedOut
    on_change_begun: Callable[[], None] | None = None
    """Set if the process changes a release, and called when it starts: from then on it may finish."""
    dies_of_sigterm: bool = False
    """Whether helm exits on SIGTERM without recording a failure, so it gets time to finish first."""


class Runner:
    """Runs helm processes and tracks those that run."""

    def __init__(self, settings: HelmSettings, children: Children) -> None:
        self.settings = settings
        self._children = children
        self._running: dict[Child, Bounds] = {}
        self._is_closed = False
        self.ended: Counter[str] = Counter()
        """Ended helm processes by outcome: ok, failed."""

    async def run(
        self,
        binary: str,
        arguments: list[str],
        values: bytes | None,
        environment: Mapping[str, str],
        bounds: Bounds,
        folder: Path | None,
        nice: int | None = None,
    ) -> Output:
        """Runs helm in `folder`. Raises `bounds.timeout_problem`, or `Unprocessable` for memory and output."""
        with contextlib.ExitStack() as resources:
            outlives_server = bounds.on_change_begun is not None
            with _start_errors():
                stdout, stderr = (
                    _Pipe(self.settings.max_output, resources, outlives_server),
                    _Pipe(_MAX_STDERR_BYTES, resources, outlives_server),
                )
                stdin = None if values is None else memory_file("values", resources, values)
            launch = Launch(
                [binary, *arguments],
                environment,
                str(folder) if folder else "/",
                nice=nice,
                limits=Limits({"as": (str(self.settings.max_memory),) * 2, "core": ("0", "0")}),
                stdin=stdin,
                stdout=stdout.write_end,
                stderr=stderr.write_end,
            )
            child = self._started(launch, bounds)
            stdout.begin()
            stderr.begin()
            exit = await self._ended(child, bounds, stdout)
            output = Output(await stdout.all(), (await stderr.all()).decode("utf-8", "replace"), exit, stdout.is_cut)
        self._check(output, bounds)
        return output

    def _started(self, launch: Launch, bounds: Bounds) -> Child:
        if self._is_closed:
            raise Unavailable(_STOPPING)
        with _start_errors():
            child = self._children.spawn(launch)
        self._running[child] = bounds
        self._children.watch(child, lambda exit: self._forget(child, exit))
        if bounds.on_change_begun is not None:
            bounds.on_change_begun()
        return child

    def _forget(self, child: Child, exit: Exit | None) -> None:
        self._running.pop(child, None)
        self.ended["ok" if exit == Exit() else "failed"] += 1

    @property
    def is_closed(self) -> bool:
        """Whether the server stops."""
        return self._is_closed

    @property
    def running(self) -> int:
        return len(self._running)

    async def _ended(self, child: Child, bounds: Bounds, stdout: _Pipe) -> Exit:
        """Waits for its exit, its timeout or too much output. Cancelled if the client has left."""
        waiting: set[asyncio.Future[Any]] = {child.exited}
        if bounds.on_change_begun is None:
            waiting.add(stdout.cut)
        try:
            await asyncio.wait(waiting, timeout=bounds.seconds, return_when=asyncio.FIRST_COMPLETED)
            timed_out = not child.exited.done() and not stdout.is_cut
        finally:
            await asyncio.shield(
                self._end(child, CHANGE_GRACE_SECONDS if bounds.on_change_begun else _READ_GRACE_SECONDS)
            )
        if timed_out:
            code = "timeout" if bounds.timeout_problem is TimedOut else None
            raise bounds.timeout_problem(f"helm took longer than {bounds.seconds:g} s ({bounds.setting})", code)
        return child.exited.result() or Exit(code=1)

    async def _end(self, child: Child, grace: float) -> None:
        for number, seconds in ((signal.SIGTERM, grace), (signal.SIGKILL, _KILL_WAIT_SECONDS)):
            if child.exited.done():
                return
            child.send(number)
            await asyncio.wait({child.exited}, timeout=seconds)

    def _check(self, output: Output, bounds: Bounds) -> None:
        """Raises for failures that are not helm's own."""
        if self._is_closed and not output.ok and bounds.on_change_begun is None:
            raise Unavailable(_STOPPING)
        if output.is_cut:
            message = f"helm wrote more than {self.settings.max_output} bytes (svc.helm.max-output)"
            raise Unprocessable(f"{message}; its changes so far remain" if bounds.on_change_begun else message)
        if not output.ok and helm_errors.is_out_of_memory(output.stderr, output.exit):
            raise Unprocessable(
                f"helm needed more than {self.settings.max_memory} bytes of memory (svc.helm.max-memory)"
            )

    async def close(self) -> None:
        """Ends all helm processes; those that change a release get time to record it."""
        self._is_closed = True
        await asyncio.gather(*(self._stop(child, bounds) for child, bounds in list(self._running.items())))

    async def _stop(self, child: Child, bounds: Bounds) -> None:
        if bounds.dies_of_sigterm:
            await asyncio.wait({child.exited}, timeout=CHANGE_GRACE_SECONDS)
        await self._end(child, CHANGE_GRACE_SECONDS if bounds.on_change_begun else _READ_GRACE_SECONDS)


@contextlib.contextmanager
def _start_errors() -> Iterator[None]:
    """Raises `Invalid` or `Unavailable` if the process cannot start: no descriptors, no memory."""
    try:
        yield
    except OSError as error:
        if error.errno == errno.E2BIG:
            raise Invalid("the description, labels or other options are longer than a command may be") from None
        raise Unavailable(f"helm cannot be started: {error.strerror} (svc.helm.binary)") from None


class _Pipe:
    """Reads a child's output as it arrives; output beyond `max_bytes` is dropped and resolves `cut`.

    With `outlives_server` the child's end also reads, so that the pipe never breaks: helm prints that it was cancelled
    before it records the failure, and a broken pipe would end it between the two.
    """

    def __init__(self, max_bytes: int, resources: contextlib.ExitStack, outlives_server: bool = False) -> None:
        self._max_bytes = max_bytes
        self._read_end, self.write_end = os.pipe2(os.O_CLOEXEC)
        resources.callback(self._close)
        if outlives_server:
            single_ended, self.write_end = self.write_end, os.open(f"/proc/self/fd/{self._read_end}", os.O_RDWR)
            os.close(single_ended)
        os.set_blocking(self._read_end, False)
        self._content = bytearray()
        loop = asyncio.get_running_loop()
        self.cut: asyncio.Future[None] = loop.create_future()
        self._end: asyncio.Future[None] = loop.create_future()

    @property
    def is_cut(self) -> bool:
        return self.cut.done()

    def begin(self) -> None:
        """Closes this side's write end after the start, so that end of file is seen."""
        os.close(self.write_end)
        self.write_end = -1
        asyncio.get_running_loop().add_reader(self._read_end, self._take)

    def _take(self) -> None:
        chunk = os.read(self._read_end, _READ_BYTES)
        room = self._max_bytes - len(self._content)
        self._content += chunk[:room]
        if len(chunk) > room and not self.cut.done():
            self.cut.set_result(None)
        if not chunk:
            asyncio.get_running_loop().remove_reader(self._read_end)
            self._end.set_result(None)

    async def all(self) -> bytes:
        """The whole output after the child has ended. A grandchild's later output is not waited for."""
        await asyncio.wait({self._end}, timeout=_READ_GRACE_SECONDS)
        return bytes(self._content)

    def _close(self) -> None:
        asyncio.get_running_loop().remove_reader(self._read_end)
        os.close(self._read_end)
        if self.write_end >= 0:
            os.close(self.write_end)


def memory_file(name: str, resources: contextlib.ExitStack, content: bytes = b"") -> int:
    """A memory file with these bytes: nothing touches the disk and no writer has to wait."""
    handle = os.memfd_create(name)
    resources.callback(os.close, handle)
    os.write(handle, content)
    os.lseek(handle, 0, os.SEEK_SET)
    return handle
