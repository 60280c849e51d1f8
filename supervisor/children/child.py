"""Operating-system processes: spawned, watched through a pidfd, signalled as a group. No other module spawns.

`subprocess` is used without `preexec_fn`, `user=` and `group=`, so that it is a vfork: page tables are not copied,
signals are blocked meanwhile, and a signal sent right after it reaches the child. A supervised process, and a child
with limits, a niceness or another user, is started by the launcher, a small process that sets them, gives the child its
control group and the proof of its tag, and executes the command.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import logging
import os
import resource
import secrets
import select
import shutil
import signal
import stat as stat_module
import subprocess
from collections import deque
from collections.abc import Callable, Iterator, KeysView, Mapping
from pathlib import Path
from typing import Any

from attrs import Factory, define, frozen

from models.children import Exit, Limits
from models.errors import Failed, Unavailable
from supervisor.children.launcher import Launcher, read_status
from supervisor.children.launcher_process import script_problem
from supervisor.children.proc import (
    ProcessIdentity,
    adopted_wait_status,
    boot_id,
    control_group_of,
    exit_of,
    is_running,
    stat,
    tracer,
)
from supervisor.children.tags import PROOF_VARIABLE, TAG_VARIABLE, plain_proof
from supervisor.scheduling import call_later

log = logging.getLogger("children")

_EXIT_SLICE_SECONDS = 0.001
_EXEC_MILLISECONDS, _FAILED_EXIT_MILLISECONDS = 50, 50
_JOIN_MILLISECONDS = 1
"""Joining a control group takes the kernel some 10 ms, for which the loop does not wait."""
_SPARE_DESCRIPTORS = 64
_EXIT_CODE_SECONDS, _EXIT_CODE_POLL_SECONDS = 1.0, 0.01
_TRACED_POLL_SECONDS = 0.1


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
    groups: tuple[int, ...] = ()  # the supplementary groups that go with `gid`
    limits: Limits = Factory(lambda: Limits({}))
    stdin: str | int | None = None
    stdout: str | int | None = None
    stderr: str | int | None = None
    redirect_stderr: bool = False
    private_files: tuple[str, ...] = ()  # log files with mode 0600
    control_group: str | None = None
    """The folder of the control group that the child is in before it executes the command."""
    is_adoptable: bool = False
    """Whether the next run of the server may adopt it: its tag is proved with its pid."""

    @property
    def needs_launcher(self) -> bool:
        """Whether something is set that `subprocess` cannot set in a vfork, or a file is opened: not on the loop."""
        is_plain = self.uid is None and self.gid is None and self.nice is None and not self.limits
        opens = any(isinstance(file, str) and file != os.devnull for file in (self.stdin, self.stdout, self.stderr))
        return self.is_adoptable or self.control_group is not None or opens or not is_plain

    def request(self) -> tuple[dict[str, Any], list[int]]:
        """The request to the launcher, and the descriptors that it names. Raises `ValueError` for a NUL."""
        inherited: list[int] = []
        return {
            "argv": [_encoded(word) for word in self.argv],
            "environment": {_encoded(name, "="): _encoded(text) for name, text in self.environment.items()},
            "directory": None if self.directory is None else os.fsencode(self.directory),
            "umask": self.umask,
            "nice": self.nice,
            "uid": self.uid,
            "gid": self.gid,
            "groups": list(self.groups),
            "limits": [(name, soft, hard) for name, (soft, hard) in self.limits.items()],
            "stdin": _file_or_index(self.stdin, inherited),
            "stdout": _file_or_index(self.stdout, inherited),
            "stderr": _file_or_index(self.stderr, inherited),
            "redirect_stderr": self.redirect_stderr,
            "private_files": [os.fsencode(path) for path in self.private_files],
        }, inherited


def _encoded(text: str, forbidden: str = "\0") -> bytes:
    if "\0" in text:
        raise ValueError("embedded null byte")
    if forbidden in text:
        raise ValueError("illegal environment variable name")
    return os.fsencode(text)


def _file_or_index(file: str | int | None, inherited: list[int]) -> bytes | int | None:
    """A path, or the place of a descriptor among those that are inherited."""
    if not isinstance(file, int):
        return None if file is None else os.fsencode(file)
    inherited.append(file)
    return len(inherited) - 1


@define(eq=False)
class Child:
    """A process that this server, or an earlier run of it, started (`is_adopted`).

    Until it is reaped, its pid and so the id of its group cannot be reused.
    """

    identity: ProcessIdentity
    pidfd: int
    popen: subprocess.Popen[bytes] | None
    exited: asyncio.Future[Exit | None]
    is_adopted: bool = False
    is_launching: bool = False
    """Whether it had not executed its command when that was last read."""
    launch_problem: OSError | None = None
    """Why the command could not be executed, where that was known only after the spawn."""
    is_grouped: bool = False
    """Whether it is in its control group, with everything that it has started since."""
    control_group: str | None = None
    """The folder of the group that it joins itself before it executes its command."""
    is_released: bool = False
    """Whether the server stops and leaves it running: its descriptor is closed, and no signal is sent any more."""
    _status: int | None = None
    _launched: asyncio.Future[None] | None = None

    @property
    def pid(self) -> int:
        return self.identity.pid

    def send(self, number: int) -> None:
        """Sends a signal to its process group, unless it was reaped. Raises `Failed`, `Unavailable`."""
        self.check_held()
        if self.exited.done():
            return
        try:
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(self.pidfd, 0)  # an adopted child may be gone and its pid reused
                os.killpg(self.pid, number)
        except PermissionError:
            raise Failed(f"pid {self.pid} cannot be signalled: it runs as another user", "STOP_FAILED") from None

    def send_to_main(self, number: int) -> None:
        """Sends a signal to the process alone, not to its group. Raises `Failed`, `Unavailable`."""
        self.check_held()
        try:
            with contextlib.suppress(ProcessLookupError):
                if not self.exited.done():
                    signal.pidfd_send_signal(self.pidfd, number)
        except PermissionError:
            raise Failed(f"pid {self.pid} may not be signalled: it has become another user's", "STOP_FAILED") from None

    def check_held(self) -> None:
        """Raises `Unavailable` where the server stops and leaves it running: its descriptor may be another file's."""
        if self.is_released:
            raise Unavailable("the server is stopping")

    async def executed(self) -> bool:
        """Waits until it executes its command, which it usually does at once; returns whether it did."""
        if self.is_launching and self._status is not None:
            loop = asyncio.get_running_loop()
            self._launched = launched = loop.create_future()
            loop.add_reader(self._status, self.read_launch)
            await asyncio.wait({launched, self.exited}, return_when=asyncio.FIRST_COMPLETED)
        return not self.is_launching

    def read_launch(self) -> None:
        """Updates `is_launching` and `launch_problem`."""
        if self._status is not None:
            has_executed, self.launch_problem = read_status(self._status)
            self.is_launching = not has_executed
            self.is_grouped = self.is_grouped or (has_executed and _is_in(self.control_group, self.pid))
            if has_executed or self.launch_problem is not None:
                self.close_status()

    def close_status(self) -> None:
        """Nothing more is read of how it was launched."""
        if self._status is not None:
            if self._launched is not None:
                asyncio.get_running_loop().remove_reader(self._status)
            os.close(self._status)
            self._status = None
        if self._launched is not None and not self._launched.done():
            self._launched.set_result(None)


class Children:
    """Spawns children and watches for their exit: one pidfd each on the loop, no thread, no timer.

    Exits are handled in slices of a millisecond, so that five hundred at once do not hold the loop.
    """

    def __init__(self, key: bytes | None = None) -> None:
        """`key` proves the tags of children; it is the same for all runs of the server on one store."""
        self.key = key or secrets.token_bytes(32)
        self._boot_id = boot_id()
        self._watched: dict[int, Child] = {}
        self._ended: deque[tuple[Child, Callable[[Exit | None], None]]] = deque()
        self._is_handling = False
        self._file_limits = raise_file_limit()
        self.launcher = Launcher(lambda: _file_limit(self._file_limits))
        reset_signals()

    @property
    def pids(self) -> KeysView[int]:
        """The pids of the children that are watched now."""
        return self._watched.keys()

    def spawn(self, launch: Launch) -> Child:
        """Returns when the command is executing; or, after a while, when the launcher is about to execute it.

        Raises `OSError` with the file that caused it: the command, the directory or a log file.
        """
        return self._launched(launch) if launch.needs_launcher else self._spawned(launch)

    def _spawned(self, launch: Launch) -> Child:
        with _file_limit(self._file_limits):
            popen = _open_process(
                launch,
                cwd=launch.directory,
                env=self._with_proof(launch.environment),
                stdin=subprocess.DEVNULL if launch.stdin is None else _descriptor(launch.stdin),
                stdout=_descriptor(launch.stdout),
                stderr=subprocess.STDOUT if launch.redirect_stderr else _descriptor(launch.stderr),
                start_new_session=True,
                umask=launch.umask,
            )
        try:
            return self._started(popen.pid, popen)
        except BaseException:
            os.killpg(popen.pid, signal.SIGKILL)
            popen.wait()
            raise

    def _with_proof(self, environment: Mapping[str, str]) -> Mapping[str, str]:
        tag = environment.get(TAG_VARIABLE)
        return (
            environment if tag is None else {**environment, PROOF_VARIABLE: plain_proof(self.key, self._boot_id, tag)}
        )

    def _launched(self, launch: Launch) -> Child:
        request, inherited = launch.request()
        facts = {"key": self.key, "boot_id": self._boot_id.encode(), "server": os.getpid()}
        pid, is_grouped, status = self.launcher.launch(request | facts, inherited, launch.control_group)
        try:
            child = self._started(pid, None, status)
            child.is_grouped, child.control_group = is_grouped, launch.control_group
        except BaseException:
            os.close(status)
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
            raise
        joins = launch.control_group is not None and not is_grouped
        if _is_readable(status, _JOIN_MILLISECONDS if joins else _EXEC_MILLISECONDS):
            child.read_launch()
        if child.launch_problem is not None:
            child.send_to_main(signal.SIGKILL)
            if _is_readable(child.pidfd, _FAILED_EXIT_MILLISECONDS):
                os.waitid(os.P_PIDFD, child.pidfd, os.WEXITED | os.WNOHANG)
            os.close(child.pidfd)
            raise child.launch_problem
        return child

    def _started(self, pid: int, popen: subprocess.Popen[bytes] | None, status: int | None = None) -> Child:
        facts, exited = stat(pid), asyncio.get_running_loop().create_future()
        identity = ProcessIdentity(pid, facts[3] if facts else 0, self._boot_id)
        return Child(identity, os.pidfd_open(pid), popen, exited, is_launching=status is not None, status=status)

    def adopt(self, identity: ProcessIdentity) -> Child | None:
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
        return Child(identity, pidfd, None, asyncio.get_running_loop().create_future(), is_adopted=True)

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
        child.close_status()
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
        child.read_launch()
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

    def close(self) -> None:
        """Stops watching; the children continue (`on-exit: leave`)."""
        loop = asyncio.get_running_loop()
        for child in self._watched.values():
            loop.remove_reader(child.pidfd)
            child.is_released = True
            os.close(child.pidfd)
            child.close_status()
            if child.popen is not None:
                child.popen.returncode = 0
        self._watched.clear()
        self.launcher.close()


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


def _descriptor(file: str | int | None) -> int | None:
    """What `Popen` takes; the only path is that of the null device."""
    return subprocess.DEVNULL if isinstance(file, str) else file


def _is_in(group: str | None, pid: int) -> bool:
    """Whether a process that has executed its command is in the control group of that folder."""
    return group is not None and len(own := control_group_of(pid)) > 1 and group.endswith(own)


def _is_readable(descriptor: int, milliseconds: int) -> bool:
    """Whether there is something to read, or the other end is closed, within that time."""
    poll = select.poll()
    poll.register(descriptor, select.POLLIN)
    return bool(poll.poll(milliseconds))


def _open_process(launch: Launch, **options: Any) -> subprocess.Popen[bytes]:
    """As `Popen`; the `OSError` for a script names what is wrong with its first line."""
    try:
        return subprocess.Popen(launch.argv, **options)
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
