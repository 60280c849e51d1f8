"""One OS process: started, watched by the kernel's word (pidfd), ended with its whole group. Nothing else spawns.

Starting uses `subprocess` without `preexec_fn`, `user=` or `group=`, so that it is a vfork: it does not copy our page
tables, it blocks signals meanwhile, and a signal sent right after it reaches the child. What these arguments would have
done is done by the chain `prlimit`, `setpriv`, command, each replacing the one before in the same process.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import resource
import shutil
import signal
import subprocess
import time
from collections import deque
from collections.abc import Callable, Iterator, KeysView, Mapping
from pathlib import Path

from attrs import Factory, define, frozen

from models.errors import Failed
from models.supervision.process import Exit, Limits
from supervisor.scheduling import later

log = logging.getLogger("children")

MARK = "PILOTHOUSE_CHILD"
"""The variable by which a child, and all that it starts, is known as ours: instance:generation:name."""

SPEC = "PILOTHOUSE_SPEC"
"""The variable that tells what a child was started by: `ProcessSpec.launched_as`."""

_SLICE = 0.001
_STAT = 4096
_CHAIN = ("prlimit", "nice", "setpriv")
_UNHURRIED, _PATIENT = 0.0005, 0.1
_ROOM = 64


@frozen
class Identity:
    """One process of one boot: a pid alone may be given again."""

    pid: int
    start_ticks: int
    boot_id: str


@frozen
class Launch:
    """All that starting one child takes. `uid` None means our own; `limits` as in `ProcessSpec`.

    `stdin` is an open descriptor, `None` for nothing; `stdout` and `stderr` are log files or open descriptors.
    """

    argv: list[str]
    environment: Mapping[str, str]
    directory: str | None = None
    umask: int = -1
    nice: int | None = None
    uid: int | None = None
    gid: int | None = None
    limits: Limits = Factory(lambda: Limits({}))
    stdin: int | None = None
    stdout: str | int | None = None
    stderr: str | int | None = None
    redirect_stderr: bool = False

    def chain(self) -> list[str]:
        """The command, behind those that prepare the ground for it."""
        chain: list[str] = []
        if self.limits:
            chain += [
                _tool("prlimit"),
                *(f"--{name}={soft}:{hard}" for name, (soft, hard) in self.limits.items()),
                "--",
            ]
        if self.nice is not None:
            more = self.nice - os.getpriority(os.PRIO_PROCESS, 0)
            chain += [_tool("nice"), "-n", str(more), "--"]
        if self.uid is not None:
            chain += [_tool("setpriv"), f"--reuid={self.uid}", f"--regid={self.gid}", "--init-groups", "--"]
        elif self.gid is not None:
            chain += [_tool("setpriv"), f"--regid={self.gid}", "--clear-groups", "--"]
        return [*chain, *self.argv]


def _tool(name: str) -> str:
    """Where we find it; the child may be given a PATH that has it not."""
    return shutil.which(name) or name


def boot_id() -> str:
    return Path("/proc/sys/kernel/random/boot_id").read_text().strip()


def stat(pid: int) -> tuple[str, int, int, int] | None:
    """State letter, parent, session and start (in ticks since boot) of a process; `None` if there is none."""
    try:
        with open(f"/proc/{pid}/stat", "rb", buffering=0) as file:  # noqa: PTH123 (half the time of a Path: each start)
            text = file.read(_STAT)
    except OSError:
        return None
    fields = text[text.rindex(b")") + 2 :].split()
    return fields[0].decode(), int(fields[1]), int(fields[3]), int(fields[19])


def ticks_per_second() -> int:
    return os.sysconf("SC_CLK_TCK")


@define(eq=False)
class Child:
    """A process that we started, or that an earlier life of ours did (`popen` is None then, and its exit unknowable).

    Until it is reaped its pid, and so the id of its group, cannot be given to another.
    """

    identity: Identity
    pidfd: int
    popen: subprocess.Popen[bytes] | None
    exited: asyncio.Future[Exit | None]
    is_chained: bool = False
    """Whether it is still one of the chain, as far as we have looked."""
    is_grouped: bool = False
    """Whether it is in its control group, with all that it has started since."""

    @property
    def pid(self) -> int:
        return self.identity.pid

    @property
    def is_adopted(self) -> bool:
        return self.popen is None

    def send(self, number: int) -> None:
        """Sends a signal to its whole group; to none once it was reaped."""
        if self.exited.done():
            return
        try:
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(self.pidfd, 0)  # an adopted child may be gone, and its id another's
                os.killpg(self.pid, number)
        except PermissionError:
            raise Failed(f"pid {self.pid} may not be signalled: it has become another user's", "STOP_FAILED") from None

    def send_to_main(self, number: int) -> None:
        """Sends a signal to the process alone, not to its group. Raises `Failed`."""
        try:
            with contextlib.suppress(ProcessLookupError):
                if not self.exited.done():
                    signal.pidfd_send_signal(self.pidfd, number)
        except PermissionError:
            raise Failed(f"pid {self.pid} may not be signalled: it has become another user's", "STOP_FAILED") from None

    async def executed(self) -> bool:
        """Waits until the chain has become the command; whether it did before it exited.

        The kernel tells nobody of an exec, so this looks: twice a millisecond, and only for a start through a chain.
        """
        pause = _UNHURRIED
        while self.is_chained and not self.exited.done():
            self.look()
            if self.is_chained:
                await asyncio.sleep(pause)
                pause = min(pause * 1.1, _PATIENT)
        return not self.is_chained

    def look(self) -> None:
        """Sees how far the chain is. A zombie still tells; so does a child of another user, unlike by its `exe`."""
        if self.is_chained:
            try:
                self.is_chained = Path(f"/proc/{self.pid}/comm").read_text().rstrip("\n") in _CHAIN
            except OSError:
                self.is_chained = False


class Children:
    """Starts children and hears of their end: one pidfd each on the loop, no thread, no timer.

    Exits are handled in slices of a millisecond, so that five hundred at once hold nobody up.
    """

    def __init__(self) -> None:
        self._boot_id = boot_id()
        self._watched: dict[int, Child] = {}
        self._ended: deque[tuple[Child, Callable[[Exit | None], None]]] = deque()
        self._pumping = False
        self._given = raise_file_limit()
        heed_signals()

    @property
    def pids(self) -> KeysView[int]:
        """Those of the children that are watched now."""
        return self._watched.keys()

    def spawn(self, launch: Launch) -> Child:
        """Returns when the command, or the first of its chain, is executing.

        Raises `OSError` with the file that it is about: the command, the directory, or a log file.
        """
        chain = launch.chain()
        chained = len(chain) > len(launch.argv)
        if chained:
            _must_be_executable(launch)
        with contextlib.ExitStack() as files:
            stdout = _append(launch.stdout, files)
            stderr = subprocess.STDOUT if launch.redirect_stderr else _append(launch.stderr, files)
            files.enter_context(_file_limit(self._given))
            popen = subprocess.Popen(
                chain,
                cwd=launch.directory,
                env=launch.environment,
                stdin=subprocess.DEVNULL if launch.stdin is None else launch.stdin,
                stdout=stdout,
                stderr=stderr,
                start_new_session=True,
                umask=launch.umask,
            )
        try:
            return self._started(popen, launch, chained)
        except BaseException:
            os.killpg(popen.pid, signal.SIGKILL)
            popen.wait()
            raise

    def _started(self, popen: subprocess.Popen[bytes], launch: Launch, chained: bool) -> Child:
        facts = stat(popen.pid)
        identity = Identity(popen.pid, facts[3] if facts else 0, self._boot_id)
        return Child(identity, os.pidfd_open(popen.pid), popen, asyncio.get_running_loop().create_future(), chained)

    def adopt(self, identity: Identity) -> Child | None:
        """The process of that identity, if it lives: same boot, same pid, same start, and no zombie."""
        if identity.boot_id != self._boot_id:
            return None
        try:
            pidfd = os.pidfd_open(identity.pid)
        except OSError:
            return None
        facts = stat(identity.pid)
        if facts is None or facts[3] != identity.start_ticks or facts[0] in "ZX":
            os.close(pidfd)
            return None
        return Child(identity, pidfd, None, asyncio.get_running_loop().create_future())

    def watch(self, child: Child, on_exit: Callable[[Exit | None], None]) -> None:
        """Calls `on_exit` once, when the child has ended and was reaped."""
        self._watched[child.pid] = child
        asyncio.get_running_loop().add_reader(child.pidfd, self._noticed, child, on_exit)

    def _noticed(self, child: Child, on_exit: Callable[[Exit | None], None]) -> None:
        loop = asyncio.get_running_loop()
        loop.remove_reader(child.pidfd)
        self._ended.append((child, on_exit))
        if not self._pumping:
            self._pumping = True
            loop.call_soon(self._pump)

    def _pump(self) -> None:
        end = time.monotonic() + _SLICE
        while self._ended and time.monotonic() < end:
            child, on_exit = self._ended.popleft()
            try:
                exit = self._reap(child)
                child.exited.set_result(exit)
                on_exit(exit)
            except Exception:
                log.exception("the end of pid %d could not be dealt with", child.pid)
        self._pumping = bool(self._ended)
        if self._pumping:
            later(self._pump)

    def _reap(self, child: Child) -> Exit | None:
        self._watched.pop(child.pid, None)
        child.look()
        try:
            word = os.waitid(os.P_PIDFD, child.pidfd, os.WEXITED)
        except ChildProcessError:
            word = None  # adopted: its end is its new parent's to know
        os.close(child.pidfd)
        if word is None:
            return None
        exit = Exit(code=word.si_status) if word.si_code == os.CLD_EXITED else Exit(signal=word.si_status)
        if child.popen is not None:
            child.popen.returncode = exit.exit_code
        return exit

    def close(self) -> None:
        """Looks away from all children, who go on: for `on-exit: leave`."""
        loop = asyncio.get_running_loop()
        for child in self._watched.values():
            loop.remove_reader(child.pidfd)
            os.close(child.pidfd)
            if child.popen is not None:
                child.popen.returncode = 0
        self._watched.clear()


def raise_file_limit() -> tuple[int, int]:
    """Lets us have all the descriptors that we may; returns the soft and hard limit that we were given."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    return soft, hard


def heed_signals() -> None:
    """What whoever started us ignores or blocks is so for our children too: a script's `&` ignores SIGQUIT.

    An ignored SIGCHLD would even take their exits from us. What Python ignores, it gives back to each child itself.
    """
    signal.pthread_sigmask(signal.SIG_SETMASK, ())
    for number in signal.valid_signals() - {signal.SIGPIPE, signal.SIGXFSZ}:
        if signal.getsignal(number) is signal.SIG_IGN:
            signal.signal(number, signal.SIG_DFL)


@contextlib.contextmanager
def _file_limit(given: tuple[int, int]) -> Iterator[None]:
    """What is started meanwhile has the limit that we were given, not the one that we took.

    Unless we hold so many descriptors that we could open none ourselves under it: then a child has ours.
    """
    soft, hard = given
    free = os.open(os.devnull, os.O_RDONLY)
    os.close(free)
    if soft == hard or free > soft - _ROOM:
        yield
        return
    resource.setrlimit(resource.RLIMIT_NOFILE, given)
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def _append(path: str | int | None, files: contextlib.ExitStack) -> int | None:
    """A log file, opened for append by whoever writes it; its folder is made. A descriptor is what it is."""
    if path is None or isinstance(path, int):
        return path
    Path(path).parent.mkdir(parents=True, exist_ok=True)
    flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC | os.O_NOCTTY | os.O_NONBLOCK
    if not path.startswith("/dev/"):
        flags |= os.O_NOFOLLOW  # whoever owns the folder could make us write elsewhere
    handle = os.open(path, flags, 0o640)  # a pipe that nobody reads is a fault then, and holds nobody up
    files.callback(os.close, handle)
    os.set_blocking(handle, True)
    return handle


def _must_be_executable(launch: Launch) -> None:
    """What `Popen` tells of a plain command, told of one behind a chain. Raises `OSError`."""
    command = launch.argv[0]
    path = Path(launch.directory or ".") / command if "/" in command else None
    found = shutil.which(str(path) if path else command, path=launch.environment.get("PATH", os.defpath))
    if found is None:
        missing = path is None or not path.exists()
        raise (
            FileNotFoundError(2, os.strerror(2), command) if missing else PermissionError(13, os.strerror(13), command)
        )
