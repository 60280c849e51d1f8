"""Runs helm: a child with its own group, in an empty folder, with an environment from a short list, within bounds.

A helm that only reads is ended when its client leaves or its time is over, at once. One that changes a release is asked
by SIGTERM, upon which it writes down that the change failed, and killed only late: a killed one leaves the release
pending for ever. One that a dead server of ours left behind bears our mark, and is asked by the next start to go
(supervisor/adoption.py): it goes on until then, for that is better than a change cut in two.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import logging
import os
import re
import shutil
import signal
from collections import Counter
from collections.abc import AsyncIterator, Callable, Mapping
from pathlib import Path
from typing import Any

from attrs import frozen

from models.charts import failures
from models.charts.helmargs import Version
from models.config import Helm as Settings
from models.errors import Conflict, Invalid, Problem, TimedOut, Unavailable, Unprocessable
from models.processes import Exit, Limits
from supervisor.child import MARK, Child, Children, Launch

log = logging.getLogger("charts")

_OURS = Path(__file__).resolve().parent.parent.parent / ".tools" / "helm"
_OLDEST = Version(3, 14)
_PASSED_ON = (
    "PATH", "LANG", "TZ", "SSL_CERT_FILE", "SSL_CERT_DIR", "HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY", "http_proxy",
    "https_proxy", "no_proxy",
)  # fmt: skip
"""All that helm gets of our own environment; what leads to a cluster comes with the run (`Kube.environment`)."""
_NAME = "\x01helm"
"""Its name in the mark; no process of the fleet can be called that."""
_STDERR = 256 * 1024
_READ = 64 * 1024
_AT_ONCE, _LATE = 0.5, 20.0
_STARTS_WITHIN = 20.0


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


class Helm:
    def __init__(self, settings: Settings, data_dir: Path, children: Children, mark: str, environ: Mapping[str, str]):
        """`mark` is the word by which children of ours are known: the instance of the store."""
        self.settings = settings
        self._children = children
        self._environment = {name: environ[name] for name in _PASSED_ON if name in environ} | {
            MARK: f"{mark}:0:{_NAME}",
            "NO_COLOR": "1",
            "HELM_NO_PLUGINS": "1",
            **_homes(data_dir),
        }
        self._slots = asyncio.Semaphore(settings.max_concurrent or os.cpu_count() or 1)
        self._locks: dict[tuple[str, ...], asyncio.Lock] = {}
        self._waiting: Counter[tuple[str, ...]] = Counter()
        self._running: dict[Child, Bounds] = {}
        self.ended: Counter[str] = Counter()
        """helms that have ended, by how: ok, failed."""
        self._found: asyncio.Task[tuple[str, Version]] | None = None

    # Which helm

    async def version(self) -> Version:
        """Of the helm that is used. Raises `Unavailable` where there is none, or none that is new enough."""
        return (await self._which())[1]

    @property
    def is_there(self) -> bool:
        """Whether one was found when it was last looked for."""
        found = self._found
        return found is not None and found.done() and not found.cancelled() and found.exception() is None

    async def _which(self) -> tuple[str, Version]:
        if self._found is None or (self._found.done() and not self.is_there):
            self._found = asyncio.create_task(self._detect(), name="helm version")
        return await asyncio.shield(self._found)

    async def _detect(self) -> tuple[str, Version]:
        binary = self.settings.binary or shutil.which("helm") or (str(_OURS) if _OURS.exists() else None)
        if binary is None or not (found := shutil.which(binary)):
            where = f"{binary} is not there" if binary else "none is on PATH"
            raise Unavailable(f"there is no helm: {where} (svc.helm.binary)")
        arguments = ["version", "--template={{.Version}}"]
        output = await self._run(str(Path(found).absolute()), arguments, None, {}, Bounds(_STARTS_WITHIN, "20 s"), None)
        words = re.match(r"v?(\d+)\.(\d+)\.(\d+)", output.stdout.decode("utf-8", "replace"))
        if not output.ok or words is None:
            raise Unavailable("what svc.helm.binary names does not say its version as helm does")
        version = Version(*(int(word) for word in words.groups()))
        if (version.major, version.minor) < (_OLDEST.major, _OLDEST.minor) or version.major > 4:
            raise Unavailable(f"helm {version} is not one that is known here: 3.14 or later, or 4 (svc.helm.binary)")
        log.info("helm %s: %s", version, found)
        return str(Path(found).absolute()), version

    # Running it

    async def run(
        self,
        arguments: list[str],
        folder: Path,
        bounds: Bounds,
        values: bytes | None = None,
        environment: Mapping[str, str] | None = None,
    ) -> Output:
        """Runs it in `folder`, which is its temporary folder as well, and is empty.

        Raises `Unavailable` without helm or room for another, `bounds.over` where its time is over, `Unprocessable` for
        memory and output. What it says itself when it fails is for the caller to judge.
        """
        binary, _ = await self._which()
        async with self._slot():
            own = {"TMPDIR": str(folder), **(environment or {})}
            return await self._run(binary, arguments, values, own, bounds, folder)

    @contextlib.asynccontextmanager
    async def _slot(self) -> AsyncIterator[None]:
        try:
            async with asyncio.timeout(self.settings.lock_timeout):
                await self._slots.acquire()
        except TimeoutError:
            raise Unavailable("as many helm run as may (svc.helm.max-concurrent), and none has ended in time") from None
        try:
            yield
        finally:
            self._slots.release()

    @contextlib.asynccontextmanager
    async def alone(self, *about: str) -> AsyncIterator[None]:
        """One change at a time for a release. Raises `Conflict` where another takes longer than we wait."""
        lock = self._locks.setdefault(about, asyncio.Lock())
        self._waiting[about] += 1
        try:
            async with asyncio.timeout(self.settings.lock_timeout) as waiting, lock:
                waiting.reschedule(None)
                yield
        except TimeoutError:
            if not waiting.expired():
                raise
            raise Conflict(f"another operation on {about[-1]} is in progress") from None
        finally:
            self._waiting[about] -= 1
            if not self._waiting[about]:
                del self._waiting[about], self._locks[about]

    async def _run(
        self,
        binary: str,
        arguments: list[str],
        values: bytes | None,
        environment: Mapping[str, str],
        bounds: Bounds,
        folder: Path | None,
    ) -> Output:
        with contextlib.ExitStack() as ours:
            survives = bounds.changes is not None
            outs, errors = _Pipe(self.settings.max_output, ours, survives), _Pipe(_STDERR, ours, survives)
            launch = Launch(
                [binary, *arguments],
                {**self._environment, **environment},
                str(folder) if folder else "/",
                limits=Limits({"as": (str(self.settings.max_memory),) * 2, "core": ("0", "0")}),
                stdin=_content(values, ours),
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
        try:
            child = self._children.spawn(launch)
        except OSError as error:
            if error.errno == errno.E2BIG:
                raise Invalid("the description, labels or other options are longer than a command may be") from None
            raise Unavailable(f"helm cannot be started: {error.strerror} (svc.helm.binary)") from None
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
        for number, seconds in ((signal.SIGTERM, patience), (signal.SIGKILL, _STARTS_WITHIN)):
            if child.exited.done():
                return
            child.send(number)
            await asyncio.wait({child.exited}, timeout=seconds)

    def _check(self, output: Output, bounds: Bounds) -> None:
        """Raises for what helm did not decide itself."""
        if output.is_cut:
            words = f"helm wrote more than {self.settings.max_output} bytes (svc.helm.max-output)"
            raise Unprocessable(f"{words}; what it has changed stays so" if bounds.changes else words)
        if not output.ok and failures.is_out_of_memory(output.stderr, output.exit):
            raise Unprocessable(
                f"helm needed more than {self.settings.max_memory} bytes of memory (svc.helm.max-memory)"
            )

    async def close(self) -> None:
        """Asks all that run to go, and waits: those that change a release have the time to say so."""
        if self._found is not None:
            self._found.cancel()
        await asyncio.gather(*(self._stop(child, bounds) for child, bounds in list(self._running.items())))

    async def _stop(self, child: Child, bounds: Bounds) -> None:
        if bounds.is_deaf:
            await asyncio.wait({child.exited}, timeout=_LATE)
        await self._end(child, _LATE if bounds.changes else _AT_ONCE)


class _Pipe:
    """What a child writes, read as it comes; beyond `most` bytes it is dropped, and `cut` tells.

    `survives`: the child may outlive us. Its end reads as well, so that the pipe never breaks: helm says that it was
    cancelled before it writes down that its change failed, and a broken pipe would end it between the two.
    """

    def __init__(self, most: int, ours: contextlib.ExitStack, survives: bool = False) -> None:
        self._most = most
        self._read_end, self.write_end = os.pipe2(os.O_CLOEXEC)
        if survives:
            narrow, self.write_end = self.write_end, os.open(f"/proc/self/fd/{self._read_end}", os.O_RDWR)
            os.close(narrow)
        os.set_blocking(self._read_end, False)
        self._content = bytearray()
        loop = asyncio.get_running_loop()
        self.cut: asyncio.Future[None] = loop.create_future()
        self._end: asyncio.Future[None] = loop.create_future()
        ours.callback(self._close)

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


def _homes(data_dir: Path) -> dict[str, str]:
    """helm's own folders, under our data directory: it sees nobody else's repositories, plugins or credentials."""
    home = (data_dir / "helm").absolute()
    places = {
        "HOME": home,
        "HELM_CACHE_HOME": home / "cache",
        "HELM_CONFIG_HOME": home / "config",
        "HELM_DATA_HOME": home / "data",
        "HELM_PLUGINS": home / "plugins",
        "HELM_REPOSITORY_CONFIG": home / "config" / "repositories.yaml",
        "HELM_REPOSITORY_CACHE": home / "cache" / "repository",
        "HELM_REGISTRY_CONFIG": home / "config" / "registry.json",
        "HELM_CONTENT_CACHE": home / "cache" / "content",
    }
    for folder in (home.parent, home):
        folder.mkdir(mode=0o700, exist_ok=True)
    return {name: str(path) for name, path in places.items()}
