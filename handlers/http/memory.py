"""The memory that the C library keeps of what was freed: buffers of requests, of threads and of SQLite."""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import os
from pathlib import Path

from tornado import httputil

_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD, _M_ARENA_MAX = -1, -3, -8
_LARGE_BLOCK_BYTES = 128 * 1024
_GROWTH_BYTES = 1024**2
"""Less is not worth a trim."""
_DELAY_SECONDS = 1.0
"""The buffers of a request are freed shortly after its connection closes."""
_AGAIN_SECONDS = 5.0
"""What was read is stored, and on a busy machine freed, later."""
_MAX_CACHED_CHARACTERS = 100
_STATM = Path("/proc/self/statm")


def limit_fragmentation() -> None:
    """Makes the C library return large blocks as soon as they are freed, and use one arena for all threads.

    Call it before threads are started. By default glibc reuses blocks of up to 32 MiB, and each thread leaves gaps in
    an arena of its own.
    """
    with contextlib.suppress(AttributeError):  # another C library
        mallopt = ctypes.CDLL(None).mallopt
        mallopt(_M_ARENA_MAX, 1)
        mallopt(_M_MMAP_THRESHOLD, _LARGE_BLOCK_BYTES)
        mallopt(_M_TRIM_THRESHOLD, _LARGE_BLOCK_BYTES)


def limit_cached_names() -> None:
    """Makes Tornado cache short names of headers only. It caches 1,000, and each may have 64 KB. Call it once."""
    with contextlib.suppress(AttributeError):  # another Tornado
        cached = httputil._normalize_header
        plain = cached.__wrapped__
        limited = lambda name: cached(name) if len(name) <= _MAX_CACHED_CHARACTERS else plain(name)  # noqa: E731
        httputil._normalize_header = limited  # type: ignore[assignment]


def trim() -> None:
    """Returns freed memory to the system; the C library would keep that of many small buffers."""
    with contextlib.suppress(AttributeError):  # another C library
        ctypes.CDLL(None).malloc_trim(0)


def resident_bytes() -> int:
    """The memory of this process."""
    return int(_STATM.read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


class Trimmer:
    """Trims during and after requests while the process is larger than it was. It does nothing at rest."""

    def __init__(self) -> None:
        self._floor = self._rest = resident_bytes()
        """The least so far, and the least at rest. Each trim that does not reach it raises it a little: what is needed
        for good grows, too."""
        self._is_due = False
        self._timer: asyncio.TimerHandle | None = None

    def request_ended(self) -> None:
        """Call it when a request was received, or its connection closed."""
        self._is_due = True
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(_DELAY_SECONDS, self._check)

    def _check(self) -> None:
        """Trims, and checks again until no request has ended since the check before."""
        loop = asyncio.get_running_loop()
        self._timer = loop.call_later(_AGAIN_SECONDS, self._check) if self._is_due else None
        if not self._is_due:
            self._floor = self._rest  # trims under load, with requests in memory, have raised it
        is_rest, self._is_due = not self._is_due, False
        with contextlib.suppress(OSError, RuntimeError):  # no descriptor is free, or the server stops
            if resident_bytes() - self._floor >= _GROWTH_BYTES:
                loop.run_in_executor(None, self._trim, is_rest)

    def _trim(self, is_rest: bool) -> None:
        trim()
        with contextlib.suppress(OSError):  # no descriptor is free
            self._floor = min(resident_bytes(), self._floor + _GROWTH_BYTES)
            if is_rest:
                self._rest = self._floor
