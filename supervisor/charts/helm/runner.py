"""One run of helm: a child with its own group, within its bounds, to whichever end.

One that only reads is ended when its client leaves or its time is over, at once. One that changes a release is asked by
SIGTERM, upon which it writes down that the change failed, and killed only late. One that a dead server of ours left
behind bears our mark, and is asked by the next start to go (supervisor/processes/adoption.py): it goes on until
then, for that is
better than a change cut in two. What is left half done all the same is for `pending` to mend.
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
from models.config.settings import Helm as Settings
from models.errors import Invalid, Problem, TimedOut, Unavailable, Unprocessable
from models.supervision.process import Exit, Limits
from supervisor.processes.child import Child, Children, Launch

NAME = "\x01helm"
"""The name of every helm in its mark; no process of the fleet can be called that."""
_STDERR = 256 * 1024
_READ = 64 * 1024
_AT_ONCE, _LATE = 0.5, 20.0
_KILLED_GOES_WITHIN = 20.0


@frozen
class Output:
    stdout: bytes
    stderr: str
    exit: Exit
    is_cut: bool = False
    """Whether it wrote more than `svc.helm.max-output`, and the rest of it was dropped."""

    @property
    def ok(self) -> bool:
        return self.exit.exit_code == 0


@frozen
class Bounds:
    """Of one run. `over` is the kind of problem where the time is over, `setting` the property that says how long."""

    seconds: float
    setting: str
    over: type[Problem] = TimedOut
    changes: Callable[[], None] | None = None
    """Set where it changes a release, and called when it begins: it is let finish then."""
    is_deaf: bool = False
    """Whether it dies of SIGTERM without writing down that it failed: then it gets time to finish before that."""


class Runner:
    """Runs helms, and knows those that run."""

    def __init__(self, settings: Settings, children: Children) -> None:
        self.settings = settings
        self._children = children
        self._running: dict[Child, Bounds] = {}
        self._is_closed = False
        self.ended: Counter[str] = Counter()
        """helms that have ended, by how: ok, failed."""

    async def run(
        self,
        binary: str,
        arguments: list[str],
        values: bytes | None,
        environment: Mapping[str, str],
        bounds: Bounds,
        folder: Path | None,
    ) -> Output:
        """Runs it in `folder`. Raises `bounds.over` where its time is over, `Unprocessable` for memory and output."""
        with contextlib.ExitStack() as ours:
            survives = bounds.changes is not None
            with _starting():
                outs, errors = _Pipe(self.settings.max_output, ours, survives), _Pipe(_STDERR, ours, survives)
                stdin = _content(values, ours)
            launch = Launch(
                [binary, *arguments],
                environment,
                str(folder) if folder else "/",
                limits=Limits({"as": (str(self.settings.max_memory),) * 2, "core": ("0", "0")}),
                stdin=stdin,
                stdout=outs.write_end,
                stderr=errors.write_end,
            )
            child = self._started(launch, bounds)
            outs.begin()
            errors.begin()
            exit = await self._ended(child, bounds, outs)
            output = Output(await outs.all(), (await errors.all()).decode("utf-8", "replace"), exit, outs.is_cut)
        self._check(output, bounds)
        return output

    def _started(self, launch: Launch, bounds: Bounds) -> Child:
        if self._is_closed:
            raise Unavailable("the server stops")
        with _starting():
            child = self._children.spawn(launch)
        self._running[child] = bounds
        self._children.watch(child, lambda exit: self._forget(child, exit))
        if bounds.changes is not None:
            bounds.changes()
        return child

    def _forget(self, child: Child, exit: Exit | None) -> None:
        self._running.pop(child, None)
        self.ended["ok" if exit == Exit() else "failed"] += 1

    @property
    def running(self) -> int:
        return len(self._running)

    async def _ended(self, child: Child, bounds: Bounds, outs: _Pipe) -> Exit:
        """Its end, whichever way it comes. Raises `bounds.over`; cancelled where the client has left."""
        waiting: set[asyncio.Future[Any]] = {child.exited}
        if bounds.changes is None:
            waiting.add(outs.cut)
        try:
            await asyncio.wait(waiting, timeout=bounds.seconds, return_when=asyncio.FIRST_COMPLETED)
            late = not child.exited.done() and not outs.is_cut
        finally:
            await asyncio.shield(self._end(child, _LATE if bounds.changes else _AT_ONCE))
        if late:
            raise bounds.over(f"helm took longer than {bounds.seconds:g} s ({bounds.setting})")
        return child.exited.result() or Exit(code=1)

    async def _end(self, child: Child, patience: float) -> None:
        for number, seconds in ((signal.SIGTERM, patience), (signal.SIGKILL, _KILLED_GOES_WITHIN)):
            if child.exited.done():
                return
            child.send(number)
            await asyncio.wait({child.exited}, timeout=seconds)

    def _check(self, output: Output, bounds: Bounds) -> None:
        """Raises for what helm did not decide itself."""
        if output.is_cut:
            words = f"helm wrote more than {self.settings.max_output} bytes (svc.helm.max-output)"
            raise Unprocessable(f"{words}; what it has changed stays so" if bounds.changes else words)
        if not output.ok and helm_errors.is_out_of_memory(output.stderr, output.exit):
            raise Unprocessable(
                f"helm needed more than {self.settings.max_memory} bytes of memory (svc.helm.max-memory)"
            )

    async def close(self) -> None:
        """Asks all that run to go, and waits: those that change a release have the time to say so."""
        self._is_closed = True
        await asyncio.gather(*(self._stop(child, bounds) for child, bounds in list(self._running.items())))

    async def _stop(self, child: Child, bounds: Bounds) -> None:
        if bounds.is_deaf:
            await asyncio.wait({child.exited}, timeout=_LATE)
        await self._end(child, _LATE if bounds.changes else _AT_ONCE)


@contextlib.contextmanager
def _starting() -> Iterator[None]:
    """Raises `Invalid` or `Unavailable` where it cannot be started: no descriptor may be left, or no memory."""
    try:
        yield
    except OSError as error:
        if error.errno == errno.E2BIG:
            raise Invalid("the description, labels or other options are longer than a command may be") from None
        raise Unavailable(f"helm cannot be started: {error.strerror} (svc.helm.binary)") from None


class _Pipe:
    """What a child writes, read as it comes; beyond `most` bytes it is dropped, and `cut` tells.

    `survives`: the child may outlive us. Its end reads as well, so that the pipe never breaks: helm says that it was
    cancelled before it writes down that its change failed, and a broken pipe would end it between the two.
    """

    def __init__(self, most: int, ours: contextlib.ExitStack, survives: bool = False) -> None:
        self._most = most
        self._read_end, self.write_end = os.pipe2(os.O_CLOEXEC)
        ours.callback(self._close)
        if survives:
            narrow, self.write_end = self.write_end, os.open(f"/proc/self/fd/{self._read_end}", os.O_RDWR)
            os.close(narrow)
        os.set_blocking(self._read_end, False)
        self._content = bytearray()
        loop = asyncio.get_running_loop()
        self.cut: asyncio.Future[None] = loop.create_future()
        self._end: asyncio.Future[None] = loop.create_future()

    @property
    def is_cut(self) -> bool:
        return self.cut.done()

    def begin(self) -> None:
        """The child has its end: ours of it is closed, or we would never see the end."""
        os.close(self.write_end)
        self.write_end = -1
        asyncio.get_running_loop().add_reader(self._read_end, self._take)

    def _take(self) -> None:
        chunk = os.read(self._read_end, _READ)
        room = self._most - len(self._content)
        self._content += chunk[:room]
        if len(chunk) > room and not self.cut.done():
            self.cut.set_result(None)
        if not chunk:
            asyncio.get_running_loop().remove_reader(self._read_end)
            self._end.set_result(None)

    async def all(self) -> bytes:
        """All of it, when the child has ended. What a grandchild might still write is not waited for."""
        await asyncio.wait({self._end}, timeout=_AT_ONCE)
        return bytes(self._content)

    def _close(self) -> None:
        asyncio.get_running_loop().remove_reader(self._read_end)
        os.close(self._read_end)
        if self.write_end >= 0:
            os.close(self.write_end)


def _content(values: bytes | None, ours: contextlib.ExitStack) -> int | None:
    """A file in memory that has these bytes: no disk sees them, and nothing waits for their being read."""
    if values is None:
        return None
    handle = os.memfd_create("values")
    ours.callback(os.close, handle)
    os.write(handle, values)
    os.lseek(handle, 0, os.SEEK_SET)
    return handle
