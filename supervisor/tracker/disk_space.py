"""Free space of the file system with the data directory. Below `server.storage.min-free` uploads are refused."""

from __future__ import annotations

import logging
import os
import threading
from pathlib import Path
from typing import Literal

from models.errors import InsufficientStorage

log = logging.getLogger("server")

_MIB = 1024 * 1024
_DEFAULT_MIN_FREE_BYTES, _DEFAULT_MIN_FREE_SHARE = 256 * _MIB, 20
_FULL_BYTES = 64 * 1024
"""With less, SQLite cannot be relied upon to begin a transaction."""

State = Literal["enough", "low", "full"]


class DiskSpace:
    """What `measure` has found last."""

    def __init__(self, folder: Path, min_free: int | None) -> None:
        """`min_free` is in bytes; None: 256 MiB, or a twentieth of the file system where that is less."""
        self._folder = folder
        self._configured = min_free
        self._lock = threading.Lock()
        self._state: State = "enough"
        self._free = self._min_free = 0

    @property
    def is_full(self) -> bool:
        """Whether nothing can be stored."""
        return self._state == "full"

    @property
    def is_low(self) -> bool:
        """Whether uploads are refused."""
        return self._state != "enough"

    @property
    def shortage(self) -> str:
        """Why uploads are refused."""
        if self._state == "full":
            return f"the disk of the data directory is full: {self._free // 1024} KiB are free"
        free, least = self._free / _MIB, self._min_free / _MIB
        return f"the disk of the data directory has {free:.1f} MiB free; server.storage.min-free is {least:.1f} MiB"

    def measure(self) -> None:
        """Reads the free space, and logs a change of the state. For a worker. Raises `OSError`."""
        disk = os.statvfs(self._folder)
        size, free = disk.f_blocks * disk.f_frsize, disk.f_bavail * disk.f_frsize
        usable = disk.f_bfree * disk.f_frsize if os.geteuid() == 0 else free  # root may use the reserve of ext4
        least = self._configured
        if least is None:
            least = min(_DEFAULT_MIN_FREE_BYTES, size // _DEFAULT_MIN_FREE_SHARE)
        with self._lock:
            before = self._state
            self._free, self._min_free = free, least
            self._state = "full" if usable < _FULL_BYTES else "low" if free < least else "enough"
            if self._state == before:
                return
            if self._state == "enough":
                log.warning("the disk of %s has enough free space again: uploads are accepted", self._folder)
            else:
                log.error("%s (%s): uploads are refused", self.shortage, self._folder)

    def check(self) -> None:
        """Before an upload takes more space. For a worker. Raises `InsufficientStorage`, `OSError`."""
        self.measure()
        if self.is_low:
            raise InsufficientStorage(f"the upload is refused: {self.shortage}")
