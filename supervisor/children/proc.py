"""What the kernel reports of a process by its pid: state, start, environment, wait status."""

from __future__ import annotations

import contextlib
import fcntl
import os
import struct
from pathlib import Path

from attrs import frozen

from models.children import Exit

_MAX_STAT_BYTES = 4096
_PIDFD_GET_INFO, _PIDFD_INFO_BYTES, _PIDFD_INFO_EXIT, _PIDFD_STATUS_OFFSET = 0xC040FF0B, 64, 8, 60


@frozen
class ProcessIdentity:
    """One process of one boot: a pid alone may be reused."""

    pid: int
    start_ticks: int
    boot_id: str


def boot_id() -> str:
    return Path("/proc/sys/kernel/random/boot_id").read_text().strip()


def stat(pid: int) -> tuple[str, int, int, int] | None:
    """State letter, parent, session and start (in ticks since boot) of a process; `None` if there is none."""
    try:
        with open(f"/proc/{pid}/stat", "rb", buffering=0) as file:  # noqa: PTH123 (half the time of a Path: each start)
            text = file.read(_MAX_STAT_BYTES)
    except OSError:
        return None
    fields = text[text.rindex(b")") + 2 :].split()
    return fields[0].decode(), int(fields[1]), int(fields[3]), int(fields[19])


def is_running(pid: int, state: str) -> bool:
    """Whether a process with this state letter runs. Its first thread is a zombie if it ended before the others."""
    return state not in "ZX" or len(threads(pid)) > 1


def environment(pid: int) -> bytes:
    """The environment that a process was started with; of one of its threads where the first has ended.

    Empty where it cannot be read any more. Raises `PermissionError`.
    """
    try:
        if content := _environ(f"/proc/{pid}"):
            return content
    except PermissionError:
        facts = stat(pid)
        if facts is None or facts[0] not in "ZX":
            raise  # of an ended thread it is refused to all but root: the other threads decide
    others = (thread for thread in threads(pid) if thread != str(pid))
    return next(filter(None, (_environ(f"/proc/{pid}/task/{thread}") for thread in others)), b"")


def _environ(folder: str) -> bytes:
    """That of a process or a thread; empty where it has ended (Linux before 6.16 reads it so, later ones fail).

    Raises `PermissionError`.
    """
    with contextlib.suppress(ProcessLookupError, FileNotFoundError):
        return Path(f"{folder}/environ").read_bytes()
    return b""


def threads(pid: int) -> list[str]:
    """The ids of its threads."""
    try:
        return os.listdir(f"/proc/{pid}/task")  # noqa: PTH208 (as `stat`)
    except OSError:
        return []


def real_user(pid: int) -> int:
    """The real user id of a process. The owner of its folder in /proc is another one where it may not be traced.

    Raises `OSError`, `ValueError`.
    """
    line = next(line for line in Path(f"/proc/{pid}/status").read_bytes().split(b"\n") if line.startswith(b"Uid:"))
    return int(line.split()[1])


def control_group_of(pid: int) -> str:
    """The path of its control group (version 2) from the root of the hierarchy; empty without one."""
    try:
        lines = Path(f"/proc/{pid}/cgroup").read_text().splitlines()
    except OSError:
        return ""
    return next((line.removeprefix("0::") for line in lines if line.startswith("0::")), "")


def tracer(pid: int) -> int:
    """The pid of the debugger that traces a process (ptrace); 0 without one."""
    try:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    except OSError:
        return 0
    return next((int(line.split()[1]) for line in lines if line.startswith("TracerPid:")), 0)


def ticks_per_second() -> int:
    return os.sysconf("SC_CLK_TCK")


def exit_of(status: int) -> Exit:
    """The exit for a wait status as `waitpid` returns it."""
    return Exit(signal=os.WTERMSIG(status)) if os.WIFSIGNALED(status) else Exit(code=os.WEXITSTATUS(status))


def adopted_wait_status(identity: ProcessIdentity, pidfd: int) -> tuple[int | None, bool]:
    """The wait status of an ended process that is not a child of the server, and whether a retry is useless.

    The `stat` file of a zombie holds it (0 where it may not be read). After its parent has reaped it, Linux 6.15 and
    later return it through the pidfd.
    """
    status = _zombie_status(identity)
    if status is not None:
        return status, True
    info = bytearray(_PIDFD_INFO_BYTES)
    struct.pack_into("Q", info, 0, _PIDFD_INFO_EXIT)
    try:
        fcntl.ioctl(pidfd, _PIDFD_GET_INFO, info)
    except OSError:
        return None, not _exists(identity)
    if struct.unpack_from("Q", info, 0)[0] & _PIDFD_INFO_EXIT:
        return int(struct.unpack_from("i", info, _PIDFD_STATUS_OFFSET)[0]), True
    return None, False


def _exists(identity: ProcessIdentity) -> bool:
    facts = stat(identity.pid)
    return facts is not None and facts[3] == identity.start_ticks


def _zombie_status(identity: ProcessIdentity) -> int | None:
    try:
        directory = f"/proc/{identity.pid}"
        with open(f"{directory}/stat", "rb", buffering=0) as file:  # noqa: PTH123 (as `stat`)
            text = file.read(_MAX_STAT_BYTES)
        owner = os.stat(directory).st_uid  # noqa: PTH116 (as above)
    except OSError:
        return None
    fields = text[text.rindex(b")") + 2 :].split()
    if fields[0] not in (b"Z", b"X") or int(fields[19]) != identity.start_ticks:
        return None
    status = int(fields[49])
    return status if status or os.geteuid() in (0, owner) else None
