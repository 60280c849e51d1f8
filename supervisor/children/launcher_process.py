"""The program of the launcher, a small process that starts the server's children. It imports `openings` only.

Its environment is clean and its memory holds nothing of the server. For each request it clones itself (`CLONE_PARENT`:
the new process is a child of the server). The clone reads the request, opens files, sets limits, niceness, user and
group, and executes the command. So no program runs as root with a variable of the child, and no credential or argument
of one child is ever in the memory of another.
"""

from __future__ import annotations

import _blake2
import _socket
import array
import ctypes
import errno
import gc
import marshal
import os
import resource
import signal
import stat
import struct
import sys
from collections.abc import Callable
from typing import Any

from supervisor.children import openings

FROZEN_ARGUMENT = "--launcher"
"""The packed program has no interpreter that could be given code; with this argument it is the launcher."""
TAG_VARIABLE, PROOF_VARIABLE = b"PILOTHOUSE_CHILD", b"PILOTHOUSE_CHILD_PROOF"
PLAIN, GROUPED = b"+", b"g"
"""A request; the last descriptor of a grouped one is the folder of the control group that the clone is to be in."""
REPLY = struct.Struct("ii")
"""The pid of the clone, or a negative errno; and whether it was in its control group from the beginning."""
MAX_DESCRIPTORS = 8

_CLONE_PARENT, _CLONE_INTO_CGROUP, _CLONE3_NUMBER = 0x8000, 0x200000000, 435
_CLONE_ARGUMENTS = struct.Struct("11Q")
_CLONE_NUMBERS = {"x86_64": 56, "i686": 120, "armv7l": 120, "aarch64": 220, "riscv64": 220, "ppc64le": 120}
_UNSUPPORTED = frozenset({errno.ENOSYS, errno.EPERM, errno.EINVAL, errno.E2BIG})
"""What `clone3` returns where a filter of system calls forbids it, or the kernel is older than its flag."""
_OUT_OF_RESOURCES = frozenset({errno.EAGAIN, errno.ENOMEM})
"""A limit of the group, too: it holds outside of the group as well."""
_SHEBANG_BYTES = 256
_BINFMT = "/proc/sys/fs/binfmt_misc"
_LIMITS = {"locks": 10} | {
    name.removeprefix("RLIMIT_").lower(): number for name, number in vars(resource).items() if name.startswith("RLIMIT")
}


def serve(descriptor: int) -> None:
    """Answers requests until the server has closed its end of the socket."""
    os.set_inheritable(descriptor, False)
    requests = _socket.socket(fileno=descriptor)
    _prepare_signals()
    clone, clone_into = _cloners()
    groups, space = _Groups(clone_into), _socket.CMSG_SPACE(4 * MAX_DESCRIPTORS)
    gc.disable()
    gc.freeze()
    while True:
        try:
            message, parts, _, _ = requests.recvmsg(1, space, _socket.MSG_CMSG_CLOEXEC)
        except ConnectionResetError:  # the server was killed before it read a reply
            return
        if not message:
            return
        given = array.array("i")
        for _, _, data in parts:
            given.frombytes(data)
        group = given.pop() if message == GROUPED else None
        pid = -errno.ENOSYS if group is None else groups.clone(group)
        is_grouped = pid >= 0
        if pid < 0 and -pid not in _OUT_OF_RESOURCES:
            pid = clone()
        if pid == 0:
            _run(requests, list(given), None if is_grouped else group)
        for each in given if group is None else [*given, group]:
            os.close(each)
        try:
            requests.send(REPLY.pack(pid, is_grouped))
        except BrokenPipeError:  # the server was killed meanwhile
            return


def _prepare_signals() -> None:
    """Blocks all signals, for the clones too: one that is sent to a child is delivered when it executes its command.

    No signal has a handler, because a handler would take it before that.
    """
    signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
    for number in (signal.SIGINT, signal.SIGPIPE, signal.SIGXFSZ):
        signal.signal(number, signal.SIG_DFL)


class _Groups:
    """Forks processes that are in a control group from their beginning, where that is possible."""

    def __init__(self, clone_into: Callable[[int, bool], int]) -> None:
        self._clone_into = clone_into
        self._is_possible: bool | None = None

    def clone(self, group: int) -> int:
        """Returns as fork does, or a negative errno. The first try is not the server's child, and ends at once."""
        if self._is_possible is None:
            pid = self._clone_into(group, False)
            if pid < 0:  # an error of this group, or a want of resources, does not decide the next try
                self._is_possible = False if -pid in _UNSUPPORTED else None
                return pid
            self._is_possible = _survives(pid)
        return self._clone_into(group, True) if self._is_possible else -errno.ENOSYS


def _survives(pid: int) -> bool:
    """Whether a clone lives. Where the server's own control group was killed before, kernels kill it (`Cgroups`)."""
    if pid == 0:
        os._exit(0)
    return os.waitpid(pid, 0)[1] == 0


def _cloners() -> tuple[Callable[[], int], Callable[[int, bool], int]]:
    """Functions that fork a process with the same parent; they return as fork does, or a negative errno.

    That of the second is in the control group of that folder from its beginning (Linux 5.7; containers may forbid it);
    without its flag it is the launcher's child.
    """
    number = _CLONE_NUMBERS[os.uname().machine]
    syscall = ctypes.PyDLL(None, use_errno=True).syscall
    arguments = [ctypes.c_long(value) for value in (number, _CLONE_PARENT | signal.SIGCHLD, 0, 0, 0, 0)]
    clone3, size = ctypes.c_long(_CLONE3_NUMBER), ctypes.c_size_t(_CLONE_ARGUMENTS.size)

    def clone() -> int:
        pid = int(syscall(*arguments))
        return pid if pid >= 0 else -ctypes.get_errno()

    def clone_into(group: int, for_parent: bool) -> int:
        flags = _CLONE_INTO_CGROUP | (_CLONE_PARENT if for_parent else 0)
        exit_signal = 0 if for_parent else signal.SIGCHLD  # with CLONE_PARENT that of the launcher itself
        arguments = _CLONE_ARGUMENTS.pack(flags, 0, 0, 0, exit_signal, 0, 0, 0, 0, 0, group)
        pid = int(syscall(clone3, arguments, size))
        return pid if pid >= 0 else -ctypes.get_errno()

    return clone, clone_into


def _run(requests: _socket.socket, given: list[int], group: int | None) -> None:
    """The clone: executes the command, or writes why it could not to the second descriptor and ends.

    `group` is the folder of the control group that it is not in yet.
    """
    status = given[1]
    try:
        requests.close()
        with open(given[0], "rb") as file:
            request = marshal.load(file)
        _execute(request, given[2:], group)
    except BaseException as error:
        reason = str(error)
        code, name = None, None
        if isinstance(error, OSError):
            code, reason, name = error.errno, error.strerror or reason, error.filename
        os.write(status, marshal.dumps((code, reason, os.fsdecode(name) if isinstance(name, bytes) else name)))
    finally:
        os._exit(127)


def _join(group: int) -> None:
    """Joins a control group; a process that must not is found by its tag and its parents instead."""
    try:
        procs = os.open("cgroup.procs", os.O_WRONLY | os.O_CLOEXEC, dir_fd=group)
        try:
            os.write(procs, b"0")
        finally:
            os.close(procs)
    except OSError:
        pass


def _execute(request: dict[str, Any], given: list[int], group: int | None) -> None:
    """Becomes the command. Raises `OSError`, `ValueError`."""
    os.setsid()
    if group is not None:
        _join(group)
    if tag := request["environment"].get(TAG_VARIABLE):
        pid, ticks = os.getpid(), _start_ticks()
        request["environment"][PROOF_VARIABLE] = proof(request["key"], request["boot_id"], tag, pid, ticks)
    _open_files(request, given)
    directory = request["directory"]
    is_users = directory is not None and request["uid"] is not None and not _is_safe(directory)
    if directory is not None and not is_users:
        _change_directory(directory)
    if request["umask"] >= 0:
        os.umask(request["umask"])
    if request["nice"] is not None:
        _set_niceness(request["nice"])
    for name, soft, hard in request["limits"]:
        _set_limit(name, soft, hard)
    if request["gid"] is not None:
        os.setgroups(request["groups"])
        os.setresgid(request["gid"], request["gid"], request["gid"])
    if request["uid"] is not None:
        os.setresuid(request["uid"], request["uid"], request["uid"])
    if is_users:
        _change_directory(directory)
    signal.pthread_sigmask(signal.SIG_SETMASK, ())
    if os.getppid() != request["server"]:
        os._exit(127)  # the server was killed meanwhile, and its next start has not found this process by its tag
    _execute_command(request["argv"], request["environment"])


def proof(key: bytes, boot: bytes, tag: bytes, pid: int, ticks: int) -> bytes:
    """What proves that the server gave this tag to the process with that pid and start; see `tags.py`."""
    place = b"%d:%d" % (pid, ticks)
    return (
        place
        + b":"
        + _blake2.blake2b(b"%s:%s:%s" % (boot, place, tag), key=key, digest_size=16).digest().hex().encode()
    )


def _start_ticks() -> int:
    with open("/proc/self/stat", "rb", buffering=0) as file:
        text = file.read(4096)
    return int(text[text.rindex(b")") + 2 :].split()[19])


def _is_safe(directory: bytes) -> bool:
    try:
        return openings.is_safe(directory)
    except OSError:
        return False


def _change_directory(path: bytes) -> None:
    try:
        os.chdir(path)
    except OSError as error:
        raise OSError(error.errno, error.strerror, path) from None


def _set_niceness(value: int) -> None:
    try:
        os.setpriority(os.PRIO_PROCESS, 0, value)
    except PermissionError as error:
        raise OSError(error.errno, f"nice {value} may not be set") from None


def _set_limit(name: str, soft: str, hard: str) -> None:
    numbers = [resource.RLIM_INFINITY if each == "unlimited" else int(each) for each in (soft, hard)]
    try:
        resource.setrlimit(_LIMITS[name], (numbers[0], numbers[1]))
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else "not permitted"
        raise ValueError(f"the limit {name} cannot be set to {soft}:{hard}: {reason}") from None


def _open_files(request: dict[str, Any], given: list[int]) -> None:
    """Makes standard input, output and error of files or given descriptors."""
    identity = openings.request_identity(request)
    stdin = os.fsencode(os.devnull) if request["stdin"] is None else request["stdin"]

    def log(path: bytes) -> int:
        return openings.open_log(path, identity, path in request["private_files"])

    opened = [
        _opened(stdin, given, lambda path: openings.open_input(path, identity)),
        _opened(request["stdout"], given, log),
        None if request["redirect_stderr"] else _opened(request["stderr"], given, log),
    ]
    for number, descriptor in enumerate(opened):
        if descriptor is not None:
            os.dup2(descriptor, number)
    if request["redirect_stderr"]:
        os.dup2(1, 2)


def _opened(path: bytes | int | None, given: list[int], opened: Callable[[bytes], int]) -> int | None:
    """A file, or a given descriptor."""
    return given[path] if isinstance(path, int) else None if path is None else opened(path)


# Execution


def _execute_command(argv: list[bytes], environment: dict[bytes, bytes]) -> None:
    """Executes the first file of that name on the child's PATH. Raises the `OSError` that says most."""
    command, found = argv[0], None
    problem: OSError = FileNotFoundError(2, os.strerror(2))
    for path in _candidates(command, environment):
        try:
            os.execve(path, argv, environment)
        except (FileNotFoundError, NotADirectoryError):
            if not os.path.exists(path):
                continue
            found, problem = path, FileNotFoundError(2, os.strerror(2))
            break
        except OSError as error:
            if found is None:
                found, problem = path, error
    raise _explained(problem, command, found)


def _candidates(command: bytes, environment: dict[bytes, bytes]) -> list[bytes]:
    if b"/" in command:
        return [command]
    folders = environment.get(b"PATH", os.fsencode(os.defpath)).split(b":")
    return [os.path.join(folder, command) for folder in folders]


def _explained(problem: OSError, command: bytes, path: bytes | None) -> OSError:
    """The error for a command, with the reason where its file shows it. A file that others own is never waited for."""
    if path is not None and isinstance(problem, PermissionError):
        return PermissionError(problem.errno, os.strerror(13) + _why_not_permitted(path), command)
    if path is not None and problem.errno in (2, 8) and (found := script_problem(path)):
        return found
    return OSError(problem.errno, problem.strerror, command)


def _why_not_permitted(path: bytes) -> str:
    folders = path.split(b"/")[:-1]
    for number in range(1, len(folders) + 1):
        folder = b"/".join(folders[:number]) or b"/"
        if not os.access(folder, os.X_OK):
            return f": the user of the process may not enter {os.fsdecode(folder)}"
    mode = os.stat(path).st_mode
    if stat.S_ISDIR(mode):
        return ": it is a directory"
    return "" if mode & 0o111 else ": it is not executable (chmod +x)"


def script_problem(path: bytes | str) -> OSError | None:
    """Why the kernel does not execute a file that exists: a script without `#!`, or without its interpreter."""
    try:
        handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY)
        try:
            line = os.read(handle, _SHEBANG_BYTES).split(b"\n", 1)[0]
        finally:
            os.close(handle)
    except OSError:
        return None
    if line.startswith(b"#!"):
        interpreter = line[2:].strip(b" \t").replace(b"\t", b" ").split(b" ")[0]  # as the kernel splits it
        if not interpreter or os.path.exists(interpreter):
            return None
        is_crlf = interpreter.endswith(b"\r")
        reason = "its first line ends with CR LF" if is_crlf else "its interpreter %s is missing"
        return FileNotFoundError(2, f"{os.strerror(2)}: {reason.replace('%s', os.fsdecode(interpreter))}", path)
    if line.startswith(b"\x7fELF") or (
        os.path.isdir(_BINFMT) and len(os.listdir(_BINFMT)) > len(("register", "status"))
    ):
        return None
    reason = "it is no program, and a script needs a first line such as #!/bin/sh"
    return OSError(8, f"{os.strerror(8)}: {reason}", path)


def main() -> None:
    """The descriptor of the socket is the last argument."""
    serve(int(sys.argv[-1]))


if __name__ == "__main__":
    main()
