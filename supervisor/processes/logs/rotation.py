"""Rotation of log files by size: copied, then truncated, because the process holds the file open."""

from __future__ import annotations

import contextlib
import enum
import errno
import logging
import os
import shutil
import stat
from io import FileIO

from attrs import frozen

from supervisor.children.openings import FilePlace
from supervisor.processes.logs.access import LogFile, log_place, reader, writer

log = logging.getLogger("logs")

_MAX_READ_BYTES = 1024 * 1024
_MAX_REST_READS = 16
_DISK_FULL = frozenset({errno.ENOSPC, errno.EDQUOT})


class Rotation(enum.Enum):
    """The outcome of a check of a log file."""

    NONE = "none"
    MISSING = "missing"
    """There is no regular file."""
    FAILED = "failed"
    ROTATED = "rotated"
    TRUNCATED = "truncated"
    """The disk is full: its content is lost."""


DONE = frozenset({Rotation.ROTATED, Rotation.TRUNCATED})


@frozen
class Rotated:
    """The outcome of a check of a log file, with the bytes moved to its backup or lost."""

    file: LogFile
    result: Rotation
    removed: int = 0


def rotate(file: LogFile) -> Rotated:
    """Copies a file that is too large to its first backup and truncates it; the other backups move on by one.

    On a full disk the oldest backups are deleted; where that is not enough, the file is truncated without a copy. All
    of this happens in one open folder: no path is looked up again.
    """
    try:
        with log_place(file.path) as place:
            return _rotate(file, place)
    except (FileNotFoundError, NotADirectoryError):
        return Rotated(file, Rotation.MISSING)
    except OSError as error:
        log.error("%s cannot be rotated: %s", file.path, error.strerror)
        return Rotated(file, Rotation.FAILED)


def empty(path: str) -> str:
    """Empties a log file that is a regular one; returns why it could not, or an empty text."""
    try:
        with log_place(path) as place:
            if stat.S_ISREG(place.stat().st_mode):
                with writer(place, place.name) as emptied:
                    emptied.truncate(0)
    except (FileNotFoundError, NotADirectoryError):
        return ""
    except OSError as error:
        return f"{path} cannot be emptied: {error.strerror}"
    return ""


def _rotate(file: LogFile, place: FilePlace) -> Rotated:
    facts = place.stat()
    if not stat.S_ISREG(facts.st_mode):
        return Rotated(file, Rotation.MISSING)
    size = facts.st_size
    if not file.max_bytes or size < file.max_bytes:
        return Rotated(file, Rotation.NONE)
    try:
        is_copied = bool(file.backups) and _copy_to_backup(place, file.backups)
        if is_copied:
            _copy_rest(place)
        with writer(place, place.name) as emptied:
            emptied.truncate(0)
    except OSError:
        with contextlib.suppress(OSError):
            place.unlink(place.backup(0))
        raise
    if is_copied:
        return Rotated(file, Rotation.ROTATED, place.stat(place.backup(1)).st_size)
    return Rotated(file, Rotation.TRUNCATED if file.backups else Rotation.ROTATED, size)


def _copy_to_backup(place: FilePlace, backups: int) -> bool:
    """Returns whether the disk has room for the copy, without the oldest backups if need be. Raises `OSError`."""
    while True:
        try:
            _copy(place, place.backup(0))  # before the others move: a full disk must not lose a backup in vain
        except OSError as error:
            if error.errno not in _DISK_FULL:
                raise
            place.unlink(place.backup(0))
            kept = (place.backup(number) for number in range(backups, 0, -1))
            oldest = next((name for name in kept if place.exists(name)), None)
            if oldest is None:
                return False
            place.unlink(oldest)
        else:
            break
    for number in range(backups - 1, -1, -1):
        if place.exists(place.backup(number)):
            place.rename(place.backup(number), place.backup(number + 1))
    return True


def _copy(place: FilePlace, target: bytes) -> None:
    """Copies to the end of the file, including what is added meanwhile: little can be lost before the truncation."""
    place.unlink(target)
    with reader(place, place.name) as source, writer(place, target, os.O_CREAT | os.O_EXCL) as copy:
        os.fchmod(copy.fileno(), os.fstat(source.fileno()).st_mode & 0o777)
        shutil.copyfileobj(source, _Whole(copy), _MAX_READ_BYTES)


class _Whole:
    """Writes all of a piece, or raises `OSError`: a single write to a disk that becomes full is short."""

    def __init__(self, file: FileIO) -> None:
        self._file = file

    def write(self, piece: bytes) -> int:
        rest = memoryview(piece)
        while rest:
            rest = rest[self._file.write(rest) :]
        return len(piece)


def _copy_rest(place: FilePlace) -> None:
    """Copies what was added while the backups moved on. Where the disk is full, that is lost."""
    with (
        contextlib.suppress(OSError),
        reader(place, place.name) as source,
        writer(place, place.backup(1)) as copy,
    ):
        at = copy.seek(0, os.SEEK_END)
        for _ in range(_MAX_REST_READS):
            if not (text := os.pread(source.fileno(), _MAX_READ_BYTES, at)):
                return
            at += copy.write(text)
