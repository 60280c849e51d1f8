"""Operating-system processes: spawned, watched through a pidfd, signalled as a group. No other module spawns.

`subprocess` is used without `preexec_fn`, `user=` and `group=`, so that it is a vfork: page tables are not copied,
signals are blocked meanwhile, and a signal sent right after it reaches the child. Limits, niceness and user are set by
a chain of programs (`prlimit`, `nice`, `setpriv`, command), each of which executes the next in the same process.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import logging
import os
import re
import resource
import shutil
import signal
import stat as stat_module
import subprocess
from collections import deque
from collections.abc import Callable, Iterator, KeysView, Mapping
from pathlib import Path
from typing import Any

from attrs import Factory, define, evolve, frozen

from models.children import Exit, Limits
from models.errors import Failed
from supervisor.children.proc import Identity, adopted_wait_status, boot_id, exit_of, is_running, stat, tracer
from supervisor.scheduling import call_later

log = logging.getLogger("children")

TAG_VARIABLE = "PILOTHOUSE_CHILD"
"""The variable that tags a child and all that it starts: server id, generation and name, separated by colons."""

FINGERPRINT_VARIABLE = "PILOTHOUSE_SPEC"
"""The variable that holds `ProcessSpec.launch_fingerprint`."""

_EXIT_SLICE_SECONDS = 0.001
_CHAIN = ("prlimit", "nice", "setpriv")
_FIRST_EXEC_POLL_SECONDS, _LAST_EXEC_POLL_SECONDS = 0.0005, 0.1
_SPARE_DESCRIPTORS = 64
_CHAIN_ERROR_SECONDS, _MAX_CHAIN_ERROR_BYTES = 5.0, 4096
_EXIT_CODE_SECONDS, _EXIT_CODE_POLL_SECONDS = 1.0, 0.01
_TRACED_POLL_SECONDS = 0.1
_SHEBANG_BYTES = 256
_BINFMT = Path("/proc/sys/fs/binfmt_misc")


@frozen
class Launch:
    """How to start one child. `uid` None means that of the server; `limits` as in `ProcessSpec`.

    `stdin` is a file, a FIFO or an open descriptor, `None` for nothing; `stdout` and `stderr` are log files or open
    descriptors.
    """

    argv: list[str]
    environment: Mapping[str, str]
    directory: str | None = None
    umask: int = -1
    nice: int | None = None
    uid: int | None = None
    gid: int | None = None
    limits: Limits = Factory(lambda: Limits({}))
    stdin: str | int | None = None
    stdout: str | int | None = None
    stderr: str | int | None = None
    redirect_stderr: bool = False
    private_files: tuple[str, ...] = ()  # log files with mode 0600

    def chain(self) -> list[str]:
        """The command, preceded by the programs that set limits, niceness and user."""
        chain: list[str] = []
        if self.limits:
            chain += [
                _tool("prlimit"),
                *(f"--{name}={soft}:{hard}" for name, (soft, hard) in self.limits.items()),
                "--",
            ]
        if self.nice is not None:
            increment = self.nice - os.getpriority(os.PRIO_PROCESS, 0)
            chain += [_tool("nice"), "-n", str(increment), "--"]
        if self.uid is not None:
            chain += [_tool("setpriv"), f"--reuid={self.uid}", f"--regid={self.gid}", "--init-groups", "--"]
        elif self.gid is not None:
            chain += [_tool("setpriv"), f"--regid={self.gid}", "--clear-groups", "--"]
        return [*chain, *self.argv]


def _tool(name: str) -> str:
    """Returns the path of a tool on the server's PATH, which the child's PATH may lack."""
    return shutil.which(name) or name


@define(eq=False)
class Child:
    """A process that this server, or an earlier run of it, started (`popen` is None then).

    Until it is reaped, its pid and so the id of its group cannot be reused.
    """

    identity: Identity
    pidfd: int
    popen: subprocess.Popen[bytes] | None
    exited: asyncio.Future[Exit | None]
    is_chained: bool = False
    """Whether it was still one of the chain when that was last read."""
    is_grouped: bool = False
    """Whether it is in its control group, with everything that it has started since."""

    @property
    def pid(self) -> int:
        return self.identity.pid

    @property
    def is_adopted(self) -> bool:
        return self.popen is None

    def send(self, number: int) -> None:
        """Sends a signal to its process group, unless it was reaped. Raises `Failed`."""
        if self.exited.done():
            return
        try:
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(self.pidfd, 0)  # an adopted child may be gone and its pid reused
                os.killpg(self.pid, number)
        except PermissionError:
            raise Failed(f"pid {self.pid} cannot be signalled: it runs as another user", "STOP_FAILED") from None

    def send_to_main(self, number: int) -> None:
        """Sends a signal to the process alone, not to its group. Raises `Failed`."""
        try:
            with contextlib.suppress(ProcessLookupError):
                if not self.exited.done():
                    signal.pidfd_send_signal(self.pidfd, number)
        except PermissionError:
            raise Failed(f"pid {self.pid} may not be signalled: it has become another user's", "STOP_FAILED") from None

    async def executed(self) -> bool:
        """Waits until the chain has executed the command; returns whether it did before it exited.

        The kernel does not report an exec, so this polls, for a start through a chain only.
        """
        interval = _FIRST_EXEC_POLL_SECONDS
        while self.is_chained and not self.exited.done():
            self.read_chain()
            if self.is_chained:
                await asyncio.sleep(interval)
                interval = min(interval * 1.1, _LAST_EXEC_POLL_SECONDS)
        return not self.is_chained

    def read_chain(self) -> None:
        """Updates `is_chained`. `comm` can be read of a zombie and of another user's process, unlike `exe`."""
        if self.is_chained:
            try:
                self.is_chained = Path(f"/proc/{self.pid}/comm").read_text().rstrip("\n") in _CHAIN
            except OSError:
                self.is_chained = False


class Children:
    """Spawns children and watches for their exit: one pidfd each on the loop, no thread, no timer.

    Exits are handled in slices of a millisecond, so that five hundred at once do not hold the loop.
    """

    def __init__(self) -> None:
        self._boot_id = boot_id()
        self._watched: dict[int, Child] = {}
        self._ended: deque[tuple[Child, Callable[[Exit | None], None]]] = deque()
        self._is_handling = False
        self._file_limits = raise_file_limit()
        reset_signals()

    @property
    def pids(self) -> KeysView[int]:
        """The pids of the children that are watched now."""
        return self._watched.keys()

    def spawn(self, launch: Launch) -> Child:
        """Returns when the command, or the first of its chain, is executing.

        Raises `OSError` with the file that caused it: the command, the directory or a log file.
        """
        chain = launch.chain()
        chained = len(chain) > len(launch.argv)
        if chained:
            _must_be_executable(launch)
        with contextlib.ExitStack() as files:
            private = launch.private_files
            stdout = _append(launch.stdout, files, private)
            stderr = subprocess.STDOUT if launch.redirect_stderr else _append(launch.stderr, files, private)
            files.enter_context(_file_limit(self._file_limits))
            popen = _open_process(
                launch,
                chain,
                cwd=launch.directory,
                env=launch.environment,
                stdin=_input(launch.stdin, files),
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
        """The process of that identity if it is running: same boot, pid and start time, and no zombie."""
        if identity.boot_id != self._boot_id:
            return None
        try:
            pidfd = os.pidfd_open(identity.pid)
        except OSError:
            return None
        facts = stat(identity.pid)
        if facts is None or facts[3] != identity.start_ticks or not is_running(identity.pid, facts[0]):
            os.close(pidfd)
            return None
        return Child(identity, pidfd, None, asyncio.get_running_loop().create_future())

    def watch(self, child: Child, on_exit: Callable[[Exit | None], None]) -> None:
        """Calls `on_exit` once, when the child has exited and was reaped."""
        self._watched[child.pid] = child
        asyncio.get_running_loop().add_reader(child.pidfd, self._on_readable, child, on_exit)

    def _on_readable(self, child: Child, on_exit: Callable[[Exit | None], None]) -> None:
        loop = asyncio.get_running_loop()
        loop.remove_reader(child.pidfd)
        self._ended.append((child, on_exit))
        if not self._is_handling:
            self._is_handling = True
            loop.call_soon(self._handle_exits)

    def _handle_exits(self) -> None:
        now = asyncio.get_running_loop().time
        end = now() + _EXIT_SLICE_SECONDS
        while self._ended and now() < end:
            child, on_exit = self._ended.popleft()
            try:
                if child.is_adopted:
                    self._finish_adopted(child, on_exit, asyncio.get_running_loop().time() + _EXIT_CODE_SECONDS)
                else:
                    self._reap(child, on_exit)
            except Exception:
                log.exception("unexpected error while handling the exit of pid %d", child.pid)
        self._is_handling = bool(self._ended)
        if self._is_handling:
            call_later(self._handle_exits)

    def _finish(self, child: Child, on_exit: Callable[[Exit | None], None], exit: Exit | None) -> None:
        self._watched.pop(child.pid, None)
        os.close(child.pidfd)
        child.exited.set_result(exit)
        on_exit(exit)

    def _finish_adopted(self, child: Child, on_exit: Callable[[Exit | None], None], deadline: float) -> None:
        """Reports the exit of a process that is another one's child: from its zombie, or from its pidfd once reaped."""
        if child.pid not in self._watched:
            return  # the server stopped watching meanwhile
        status, is_final = adopted_wait_status(child.identity, child.pidfd)
        loop = asyncio.get_running_loop()
        if status is None and not is_final and loop.time() < deadline:
            loop.call_later(_EXIT_CODE_POLL_SECONDS, self._finish_adopted, child, on_exit, deadline)
        else:
            self._finish(child, on_exit, None if status is None else exit_of(status))

    def _reap(self, child: Child, on_exit: Callable[[Exit | None], None], is_retry: bool = False) -> None:
        """Reads the exit status and reports it. Until a debugger has read the status, the kernel hides it: a blocking
        call would stop the server for as long."""
        if self._watched.get(child.pid) is not child:
            return  # the server stopped watching meanwhile
        child.read_chain()
        try:
            result = os.waitid(os.P_PIDFD, child.pidfd, os.WEXITED | os.WNOHANG)
        except ChildProcessError:
            self._finish(child, on_exit, None)
            return
        if result is None:
            if not is_retry:
                log.warning("pid %d has ended, but the debugger pid %d holds it", child.pid, tracer(child.pid))
            asyncio.get_running_loop().call_later(_TRACED_POLL_SECONDS, self._reap, child, on_exit, True)
            return
        exit = Exit(code=result.si_status) if result.si_code == os.CLD_EXITED else Exit(signal=result.si_status)
        if child.popen is not None:
            child.popen.returncode = exit.exit_code
        self._finish(child, on_exit, exit)

    async def chain_error(self, launch: Launch) -> str:
        """What `prlimit`, `nice` or `setpriv` print when they fail: they are run again, with `true` as the command."""
        stderr = os.memfd_create("stderr", os.MFD_CLOEXEC)
        try:
            probe = evolve(launch, argv=[_tool("true")], stdout=os.devnull, stderr=stderr, redirect_stderr=False)
            child = self.spawn(probe)
            self.watch(child, lambda _: None)
            await asyncio.wait({child.exited}, timeout=_CHAIN_ERROR_SECONDS)
            child.send(signal.SIGKILL)
            return os.pread(stderr, _MAX_CHAIN_ERROR_BYTES, 0).decode("utf-8", "replace").strip()
        except OSError as error:
            return str(error.strerror)
        finally:
            os.close(stderr)

    def close(self) -> None:
        """Stops watching; the children continue (`on-exit: leave`)."""
        loop = asyncio.get_running_loop()
        for child in self._watched.values():
            loop.remove_reader(child.pidfd)
            os.close(child.pidfd)
            if child.popen is not None:
                child.popen.returncode = 0
        self._watched.clear()


def raise_file_limit() -> tuple[int, int]:
    """Raises the soft limit of descriptors to the hard one; returns both as they were."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    return soft, hard


def reset_signals() -> None:
    """Unblocks and resets the signals that the server inherited as ignored, because children would inherit that too.

    A script's `&` ignores SIGQUIT, for example; an ignored SIGCHLD would discard exit codes. Python itself resets the
    two signals that it ignores.
    """
    signal.pthread_sigmask(signal.SIG_SETMASK, ())
    for number in signal.valid_signals() - {signal.SIGPIPE, signal.SIGXFSZ}:
        if signal.getsignal(number) is signal.SIG_IGN:
            signal.signal(number, signal.SIG_DFL)


@contextlib.contextmanager
def _file_limit(given: tuple[int, int]) -> Iterator[None]:
    """Children that are spawned meanwhile have the descriptor limit that the server was started with.

    Where the server holds too many descriptors to open one under that limit, they have the limit of the server.
    """
    soft, hard = given
    free = os.open(os.devnull, os.O_RDONLY)
    os.close(free)
    if soft == hard or free > soft - _SPARE_DESCRIPTORS:
        yield
        return
    resource.setrlimit(resource.RLIMIT_NOFILE, given)
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def _input(path: str | int | None, files: contextlib.ExitStack) -> int:
    """Opens what the child reads from. A FIFO is opened for writing too, so that it never ends."""
    if path is None or isinstance(path, int):
        return subprocess.DEVNULL if path is None else path
    is_fifo = stat_module.S_ISFIFO(os.stat(path).st_mode)  # noqa: PTH116 (each start)
    handle = os.open(path, (os.O_RDWR if is_fifo else os.O_RDONLY) | os.O_CLOEXEC | os.O_NOCTTY)
    files.callback(os.close, handle)
    return handle


def _append(path: str | int | None, files: contextlib.ExitStack, private: tuple[str, ...]) -> int | None:
    """Opens a log file for append and creates its folder; a descriptor is returned as it is."""
    if path is None or isinstance(path, int):
        return path
    Path(path).parent.mkdir(parents=True, exist_ok=True)
    flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC | os.O_NOCTTY | os.O_NONBLOCK
    if not path.startswith("/dev/"):
        flags |= os.O_NOFOLLOW  # the owner of the folder could redirect the writes
    mode = 0o600 if path in private else 0o640
    handle = os.open(path, flags, mode)  # a pipe without a reader fails instead of blocking
    files.callback(os.close, handle)
    os.set_blocking(handle, True)
    return handle


def _open_process(launch: Launch, chain: list[str], **options: Any) -> subprocess.Popen[bytes]:
    """As `Popen`; the `OSError` for a script names what is wrong with its first line."""
    try:
        return subprocess.Popen(chain, **options)
    except OSError as error:
        path = _executable(launch)
        if path is None and error.errno == errno.EACCES and error.filename == launch.argv[0]:
            raise _permission_problem(launch) from None
        raise (script_problem(path) if path is not None else None) or error from None


def _executable(launch: Launch) -> str | None:
    """The path of the command as the child finds it; `None` where it is not executable."""
    command = launch.argv[0]
    path = str(Path(launch.directory or ".") / command) if "/" in command else command
    return shutil.which(path, path=launch.environment.get("PATH", os.defpath))


def _must_be_executable(launch: Launch) -> None:
    """Raises the `OSError` that `Popen` would raise for the command itself."""
    command, path = launch.argv[0], _executable(launch)
    if path is None:
        exists = "/" in command and (Path(launch.directory or ".") / command).exists()
        raise _permission_problem(launch) if exists else FileNotFoundError(2, os.strerror(2), command)
    if problem := script_problem(path):
        raise problem


def _permission_problem(launch: Launch) -> PermissionError:
    """The error for a command that exists and may not be executed, with the reason where its file shows it."""
    command, reason = launch.argv[0], os.strerror(errno.EACCES)
    with contextlib.suppress(OSError):
        mode = (Path(launch.directory or ".") / command).stat().st_mode
        if stat_module.S_ISDIR(mode):
            reason += ": it is a directory"
        elif not mode & 0o111:
            reason += ": it is not executable (chmod +x)"
    return PermissionError(errno.EACCES, reason, command)


def script_problem(path: str) -> OSError | None:
    """Why the kernel does not execute a file that exists: a script without `#!`, or without its interpreter."""
    try:
        with open(path, "rb") as file:  # noqa: PTH123 (each start through a chain)
            line = file.read(_SHEBANG_BYTES).split(b"\n", 1)[0]
    except OSError:
        return None
    if line.startswith(b"#!"):
        interpreter = os.fsdecode(re.split(rb"[ \t]", line[2:].strip(b" \t"))[0])  # as the kernel splits it
        if not interpreter or Path(interpreter).exists():
            return None
        is_crlf = interpreter.endswith("\r")
        reason = "its first line ends with CR LF" if is_crlf else f"its interpreter {interpreter} is missing"
        return FileNotFoundError(errno.ENOENT, f"{os.strerror(errno.ENOENT)}: {reason}", path)
    if line.startswith(b"\x7fELF") or len(list(_BINFMT.glob("*"))) > len(("register", "status")):
        return None
    reason = "it is no program, and a script needs a first line such as #!/bin/sh"
    return OSError(errno.ENOEXEC, f"{os.strerror(errno.ENOEXEC)}: {reason}", path)
