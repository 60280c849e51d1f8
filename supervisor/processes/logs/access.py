"""How log files are opened: with the rights of the users who can change their paths, and only plain files."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Mapping
from io import FileIO
from pathlib import Path
from typing import BinaryIO

from attrs import frozen

from supervisor.children.openings import FileCredentials, FilePlace, open_at, place_of


@frozen
class LogFile:
    path: str
    max_bytes: int
    backups: int
    process: str | None = None


class LogRights:
    """With which identity each log file is accessed, where others than root can change its path."""

    def __init__(self) -> None:
        self._identities: dict[str, FileCredentials] = {}

    def take_over(self, identities: Mapping[str, FileCredentials | None]) -> None:
        """Adds those of the configured log files; a file of the server's own user has none."""
        for path, identity in identities.items():
            if identity is None:
                self._identities.pop(path, None)
            else:
                self._identities[path] = identity

    def of(self, path: str) -> FileCredentials | None:
        """That of a log file or of one of its backups."""
        stem, _, number = path.rpartition(".")
        return self._identities.get(path) or (self._identities.get(stem) if number.isdigit() else None)


rights = LogRights()
"""Of all log files of the server: a file has one path, and one process writes to it."""


def log_place(path: Path | str) -> contextlib.AbstractContextManager[FilePlace]:
    return place_of(str(path), rights.of(str(path)))


def opened(path: Path) -> BinaryIO:
    """Opens a log file for reading. Raises `OSError`."""
    with log_place(path) as place:
        return reader(place, place.name)


def reader(place: FilePlace, name: bytes) -> BinaryIO:
    return os.fdopen(open_at(place, os.O_RDONLY, name=name), "rb")


def writer(place: FilePlace, name: bytes, flags: int = 0) -> FileIO:
    """Opens a log file or a backup for writing at its end. Raises `OSError`."""
    return FileIO(open_at(place, os.O_WRONLY | os.O_APPEND | flags, name=name), "ab")


def readable(path: str) -> int:
    """A descriptor of a log file. Raises `OSError`."""
    with log_place(path) as place:
        return open_at(place, os.O_RDONLY)
