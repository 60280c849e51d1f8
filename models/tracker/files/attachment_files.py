"""The files of attachments: each content once, in a folder, under its SHA-256; and their types by their first bytes.

A file is moved to its place, and removed from it, only while holding the write lock of the tracker's store: no row is
without its file, and a file without a row, which a killed server leaves, is removed at the next start.
"""

from __future__ import annotations

import hashlib
import secrets
import shutil
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path

from attrs import frozen

_HASH_DIGITS = 64
_PIECE_BYTES = 256 * 1024
_HEAD_BYTES = 8 * 1024
_TEMPORARY = "incoming-"
_MAX_TEMPORARY_SECONDS = 3600.0

OTHER = "application/octet-stream"
TEXT = "text/plain; charset=utf-8"
_MAGIC = (
    ("image/png", 0, b"\x89PNG\r\n\x1a\n"),
    ("image/jpeg", 0, b"\xff\xd8\xff"),
    ("image/gif", 0, b"GIF87a"),
    ("image/gif", 0, b"GIF89a"),
    ("image/webp", 8, b"WEBP"),
    ("video/mp4", 4, b"ftyp"),
    ("video/webm", 0, b"\x1a\x45\xdf\xa3"),
)
_MARKUP = (b"<html", b"<!doctype", b"<svg", b"<script", b"<?xml", b"<body", b"<head", b"<iframe", b"%pdf-")
INLINE = frozenset((*(kind for kind, _, _ in _MAGIC), TEXT))
"""The types that a browser may show; everything else is downloaded."""


def type_of(head: bytes) -> str:
    """The media type of a file by its first bytes: one of `INLINE`, else `OTHER`. Its name does not matter."""
    for kind, at, magic in _MAGIC:
        if head.startswith(magic, at) and (kind != "image/webp" or head.startswith(b"RIFF")):
            return kind
    if b"\0" in head or head.lstrip(b"\xef\xbb\xbf \t\r\n").startswith(b"<"):
        return OTHER
    lowered = head.lower()
    if any(tag in lowered for tag in _MARKUP):
        return OTHER
    with suppress(UnicodeDecodeError):
        head.decode()
        return TEXT
    for cut in range(1, min(4, len(head)) if len(head) == _HEAD_BYTES else 0):  # the head may end within a character
        with suppress(UnicodeDecodeError):
            head[:-cut].decode()
            return TEXT
    return OTHER


@frozen
class StagedFile:
    """A file of an upload that is in the folder already, under a temporary name."""

    name: str
    """The path by which a report refers to it."""
    path: Path
    hash: str
    size: int
    type: str


class AttachmentFolder:
    """The folder. Its methods are for workers and raise `OSError`."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def place(self, hash: str) -> Path:
        """The path of a content. Raises `ValueError` for what is no SHA-256."""
        if len(hash) != _HASH_DIGITS or not set(hash) <= set("0123456789abcdef"):
            raise ValueError(hash)
        return self._path / hash[:2] / hash

    def stage(self, source: Path, name: str) -> StagedFile:
        """Moves a file into the folder, under a temporary name."""
        digest, head, size = hashlib.sha256(), b"", 0
        with source.open("rb") as file:
            while piece := file.read(_PIECE_BYTES):
                head = head or piece[:_HEAD_BYTES]
                size += len(piece)
                digest.update(piece)
        self._path.mkdir(mode=0o700, parents=True, exist_ok=True)
        target = self._path / f"{_TEMPORARY}{secrets.token_hex(8)}"
        try:
            shutil.move(source, target)  # copies where the folder is another file system
        except BaseException:
            target.unlink(missing_ok=True)
            raise
        return StagedFile(name, target, digest.hexdigest(), size, type_of(head))

    def keep(self, file: StagedFile) -> None:
        """Moves a staged file to its place. Within the transaction that stores its row."""
        place = self.place(file.hash)
        if not place.exists():
            place.parent.mkdir(mode=0o700, exist_ok=True)
            file.path.replace(place)

    def discard(self, files: Iterable[StagedFile]) -> None:
        """Removes what is left of staged files."""
        for file in files:
            file.path.unlink(missing_ok=True)

    def remove(self, hashes: Iterable[str]) -> None:
        """Removes contents. Within a transaction that has found no row of them."""
        for hash in hashes:
            self.place(hash).unlink(missing_ok=True)

    def contents(self, batch: int) -> Iterator[Sequence[str]]:
        """The hashes of all contents, some at a time; removes unused temporary files."""
        names: list[str] = []
        for folder in sorted(self._path.iterdir()) if self._path.is_dir() else ():
            if folder.name.startswith(_TEMPORARY):
                with suppress(FileNotFoundError):
                    if time.time() - folder.stat().st_mtime > _MAX_TEMPORARY_SECONDS:
                        folder.unlink()
            elif len(folder.name) == 2 and folder.is_dir():
                names += [file.name for file in folder.iterdir() if len(file.name) == _HASH_DIGITS]
            while len(names) >= batch:
                yield names[:batch]
                del names[:batch]
        if names:
            yield names

    def sweep_temporary(self) -> None:
        """Removes temporary files, at the start of a server that has the folder for itself."""
        for file in self._path.glob(f"{_TEMPORARY}*"):
            file.unlink(missing_ok=True)
