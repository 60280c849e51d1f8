"""Private folders for requests, under `svc.rest.temp-dir`: each is removed however its request ends."""

from __future__ import annotations

import fcntl
import logging
import os
import shutil
import tempfile
from pathlib import Path
from threading import Lock

log = logging.getLogger("charts")

_PREFIX = "pilothouse-"
_LOCK = ".lock"


class Folders:
    """One folder of ours, in which each request gets one. By its lock the next start knows whether we live."""

    def __init__(self, base: Path | None) -> None:
        self._base = base or Path(tempfile.gettempdir())
        self._own: Path | None = None
        self._lock = -1
        self._opening = Lock()
        self._left: set[Path] = set()

    def open(self) -> None:
        """Makes our folder, where there is none, and removes those of servers that are no more. Raises `OSError`."""
        with self._opening:
            if self._own is None or not self._own.exists():  # somebody may tidy /tmp while we run
                self._let_go()
                self._make()

    def _make(self) -> None:
        self._base.mkdir(parents=True, exist_ok=True)
        self._sweep()
        self._own = Path(tempfile.mkdtemp(prefix=_PREFIX, dir=self._base))
        self._lock = os.open(self._own / _LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)

    def new(self) -> Path:
        """A fresh folder that only we may enter. Raises `OSError`."""
        self.open()
        return Path(tempfile.mkdtemp(dir=self._own))

    def remove(self, folder: Path) -> None:
        """One that cannot be removed now, because no descriptor is left, is tried again with the next."""
        self._left.add(folder)
        for one in list(self._left):
            shutil.rmtree(one, ignore_errors=True)
            if not one.exists():
                self._left.discard(one)

    def close(self) -> None:
        if self._own is not None:
            self.remove(self._own)
        self._let_go()

    def _let_go(self) -> None:
        if self._lock >= 0:
            os.close(self._lock)
        self._own, self._lock = None, -1

    def _sweep(self) -> None:
        for folder in self._base.glob(f"{_PREFIX}*"):
            try:
                handle = os.open(folder / _LOCK, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
            except OSError:
                continue  # not one of ours
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
                self.remove(folder)
                log.info("removed %s, which a server before us had left", folder)
            except BlockingIOError:
                pass
            finally:
                os.close(handle)
