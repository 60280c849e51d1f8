"""The server's side of the launcher, the process that starts children with another user, limits or niceness.

`launcher_process.py` is its program. The file descriptors of a request are: the request, the write end of a pipe that
the kernel closes when the command is executed, those that the child inherits, and the folder of its control group.
"""

from __future__ import annotations

import contextlib
import errno
import marshal
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

from supervisor.children.launcher_process import FROZEN_ARGUMENT, GROUPED, PLAIN, REPLY

_REPLY_SECONDS = 5.0
_MAX_STATUS_BYTES = 64 * 1024
_PROGRAM = (
    "import sys; sys.path.insert(0, sys.argv.pop(1)); from supervisor.children.launcher_process import main; main()"
)
_ENVIRONMENT = {"PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "LANG": "C.UTF-8"}


class Launcher:
    """Begins with the first launch; after its death the next launch begins another."""

    def __init__(self, file_limit: Callable[[], AbstractContextManager[None]]) -> None:
        """`file_limit` is a context in which a new process gets the descriptor limit of children."""
        self._file_limit = file_limit
        self._socket: socket.socket | None = None
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def pid(self) -> int | None:
        return None if self._process is None else self._process.pid

    def start(self) -> None:
        """Begins the process, which is ready a moment later. Raises `OSError`."""
        ours, its = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with its:
            try:
                with self._file_limit(), _signals_blocked():
                    self._process = subprocess.Popen(
                        [*_command(), str(its.fileno())], env=_environment(), stdin=subprocess.DEVNULL,
                        pass_fds=[its.fileno()], start_new_session=True,
                    )  # fmt: skip
            except BaseException:
                ours.close()
                raise
        ours.settimeout(_REPLY_SECONDS)
        self._socket = ours

    def launch(
        self, request: dict[str, Any], inherited: Sequence[int], group: str | None = None
    ) -> tuple[int, bool, int]:
        """Returns the pid of a new child of the server, whether it is in its control group with all that it will
        start, and the descriptor that `read_status` reads. `group` is the folder of the control group.

        Raises `OSError`.
        """
        status, its_end = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        try:
            with contextlib.ExitStack() as files:
                content = os.memfd_create("launch", os.MFD_CLOEXEC)
                files.callback(os.close, content)
                with open(content, "wb", closefd=False) as file:
                    file.write(marshal.dumps(request))
                os.lseek(content, 0, os.SEEK_SET)
                folder = _open_group(group, files)
                pid, is_grouped = self._requested(
                    PLAIN if folder is None else GROUPED,
                    [content, its_end, *inherited, *([] if folder is None else [folder])],
                )
                return pid, is_grouped, status
        except BaseException:
            os.close(status)
            raise
        finally:
            os.close(its_end)

    def _requested(self, kind: bytes, descriptors: list[int]) -> tuple[int, bool]:
        try:
            return self._ask(kind, descriptors)
        except (BrokenPipeError, ConnectionResetError):  # it was killed before this request
            self.close()
            return self._ask(kind, descriptors)

    def _ask(self, kind: bytes, descriptors: list[int]) -> tuple[int, bool]:
        if self._process is not None and self._process.poll() is not None:
            self.close()
        if self._socket is None:
            self.start()
        assert self._socket is not None
        socket.send_fds(self._socket, [kind], descriptors)
        try:
            reply = self._socket.recv(REPLY.size)
        except OSError as error:  # a later reply would be taken for that to the next request
            self.close()
            raise OSError(errno.EIO, f"the launcher does not answer: {error}") from None
        if not reply:
            self.close()
            raise OSError(errno.EIO, "the launcher has ended")
        pid, is_grouped = REPLY.unpack(reply)
        if pid < 0:
            raise OSError(-pid, os.strerror(-pid))
        return pid, bool(is_grouped)

    def close(self) -> None:
        """Ends the process; its children go on."""
        if self._socket is not None:
            self._socket.close()
            self._socket = None
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None


def _open_group(group: str | None, files: contextlib.ExitStack) -> int | None:
    """The folder of a control group; `None` where it is gone."""
    if group is None:
        return None
    try:
        folder = os.open(group, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError:
        return None
    files.callback(os.close, folder)
    return folder


@contextlib.contextmanager
def _signals_blocked() -> Iterator[None]:
    """Blocks all signals in this thread. The launcher inherits that: none ends it before it has blocked them itself."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def read_status(status: int) -> tuple[bool, OSError | None]:
    """Whether a launched process has executed its command, or else why it could not; (False, None): not yet."""
    try:
        content = os.read(status, _MAX_STATUS_BYTES)
    except BlockingIOError:
        return False, None
    if not content:
        return True, None
    with contextlib.suppress(ValueError, EOFError, TypeError):
        code, reason, name = marshal.loads(content)  # noqa: S302 (written by the launcher)
        return False, OSError(code or errno.EINVAL, reason, name)
    return False, OSError(errno.EIO, "the launcher has failed")


def _environment() -> dict[str, str]:
    """A clean one. The packed program finds the libraries beside it."""
    libraries = getattr(sys, "_MEIPASS", None)
    return _ENVIRONMENT if libraries is None else {**_ENVIRONMENT, "LD_LIBRARY_PATH": libraries}


def _command() -> list[str]:
    if getattr(sys, "frozen", False):
        return [sys.executable, FROZEN_ARGUMENT]
    return [sys.executable, "-I", "-S", "-c", _PROGRAM, str(Path(__file__).resolve().parents[2])]
