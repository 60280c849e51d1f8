"""What a worker process gives up when it starts, and the limits of each of its jobs. The kernel enforces all of it."""

from __future__ import annotations

import contextlib
import ctypes
import os
import resource
import signal
import sys

MAX_MEMORY_BYTES = 512 * 1024**2
_NICENESS = 5
_PR_SET_PDEATHSIG, _PR_SET_NO_NEW_PRIVS = 1, 38
_CLONE_NEWNET = 0x40000000


def confine(server: int) -> None:
    """Ends this process with the server (its pid), and takes the network, privileges and the environment from it."""
    libc = ctypes.CDLL(None, use_errno=True)
    libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != server:  # the server ended before that call
        sys.exit(0)
    libc.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
    with contextlib.suppress(AttributeError):  # not in every C library
        libc.unshare(_CLONE_NEWNET)  # without the privilege it fails, and the network stays
    os.environ.clear()
    os.nice(max(0, _NICENESS - os.getpriority(os.PRIO_PROCESS, 0)))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_AS, (MAX_MEMORY_BYTES, MAX_MEMORY_BYTES))


def limit_job(cpu_seconds: int, file_bytes: int) -> None:
    """Sets what the next job may use: CPU seconds from now on (then SIGXCPU ends the process), bytes of each file."""
    usage = resource.getrusage(resource.RUSAGE_SELF)
    used = int(usage.ru_utime + usage.ru_stime)
    _set_soft(resource.RLIMIT_CPU, used + cpu_seconds)
    _set_soft(resource.RLIMIT_FSIZE, file_bytes)


def _set_soft(limit: int, value: int) -> None:
    _, hard = resource.getrlimit(limit)
    resource.setrlimit(limit, (value if hard == resource.RLIM_INFINITY else min(value, hard), hard))
