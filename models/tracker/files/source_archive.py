"""Reads the text files of an uploaded tar.gz as a stream: nothing is written to disk, and no name is used as a path.

Only headers of regular files and long names are understood; links, devices and folders are skipped. Python's `tarfile`
reads extended headers of any size into memory.
"""

from __future__ import annotations

import posixpath
import zlib
from collections.abc import Iterator
from typing import IO

MAX_ARCHIVE_BYTES = 20 * 1024 * 1024
MAX_INFLATED_BYTES = 200 * 1024 * 1024
MAX_FILES = 50_000
_MAX_NAME_BYTES = 64 * 1024
_MAX_PATH_CHARACTERS = 500
_BLOCK = 512
_PIECE_BYTES = 64 * 1024
_GZIP = 31


class BadArchive(Exception):
    """An archive that cannot be read, or is too large."""


class _Inflated:
    """The inflated bytes of a gzip stream, up to a limit."""

    def __init__(self, file: IO[bytes]) -> None:
        self._file = file
        self._inflater = zlib.decompressobj(_GZIP)
        self._buffer = bytearray()
        self._left = MAX_INFLATED_BYTES

    def read(self, size: int) -> bytes:
        """`size` bytes. Raises `BadArchive` where there are fewer."""
        while len(self._buffer) < size:
            if not self._fill():
                raise BadArchive("it ends within a file")
        data = bytes(self._buffer[:size])
        del self._buffer[:size]
        return data

    def skip(self, size: int) -> None:
        while size:
            step = min(size, _PIECE_BYTES)
            self.read(step)
            size -= step

    def at_end(self) -> bool:
        return not self._buffer and not self._fill()

    def _fill(self) -> bool:
        """Inflates a piece. Returns whether there are more bytes."""
        try:
            while not self._inflater.eof:
                waiting = self._inflater.unconsumed_tail or self._file.read(_PIECE_BYTES)
                if not waiting:
                    return False
                piece = self._inflater.decompress(waiting, _PIECE_BYTES)
                if piece:
                    self._left -= len(piece)
                    if self._left < 0:
                        raise BadArchive(f"it has more than {MAX_INFLATED_BYTES} bytes when inflated")
                    self._buffer += piece
                    return True
        except zlib.error:
            raise BadArchive("it is not a tar.gz") from None
        return False


def text_files(file: IO[bytes], max_bytes: int) -> Iterator[tuple[str, str]]:
    """The names and contents of the text files in an archive that have at most `max_bytes`. Raises `BadArchive`."""
    source, long_name, count = _Inflated(file), "", 0
    while not source.at_end():
        head = source.read(_BLOCK)
        if not head.strip(b"\0"):
            return
        name, size, kind = _header(head)
        padding = -size % _BLOCK
        if kind in (b"L", b"x") and size <= _MAX_NAME_BYTES:
            extra = source.read(size)
            long_name = (_text(extra.rstrip(b"\0")) if kind == b"L" else _pax_path(extra)) or long_name
        elif kind in (b"0", b"\0"):
            count += 1
            if count > MAX_FILES:
                raise BadArchive(f"it has more than {MAX_FILES} files")
            if size <= max_bytes:
                text = text_of(source.read(size))
                path = _normalised(long_name or name)
                if text is not None and path:
                    yield path, text
            else:
                source.skip(size)
            long_name = ""
        else:
            source.skip(size)
            long_name = "" if kind != b"g" else long_name
        source.skip(padding)


def _header(head: bytes) -> tuple[str, int, bytes]:
    """The name, the size and the kind of an entry. Raises `BadArchive`."""
    try:
        checksum = int(head[148:156].strip(b" \0") or b"0", 8)
        size = int(head[124:136].strip(b" \0") or b"0", 8)
    except ValueError:
        raise BadArchive("it is not a tar.gz") from None
    if checksum != sum(head[:148]) + 8 * ord(" ") + sum(head[156:]) or size < 0:
        raise BadArchive("it is not a tar.gz")
    name, prefix = _text(head[:100].partition(b"\0")[0]), b""
    if head[257:262] == b"ustar" and head[262:263] == b"\0":
        prefix = head[345:500].partition(b"\0")[0]
    return (f"{_text(prefix)}/{name}" if prefix else name), size, head[156:157]


def _pax_path(data: bytes) -> str:
    """The record `path` of an extended header: `LENGTH path=NAME\\n`."""
    while data:
        length, _, _ = data.partition(b" ")
        if not length.isdigit() or not 0 < int(length) <= len(data):
            return ""
        record, data = data[len(length) + 1 : int(length)], data[int(length) :]
        key, _, value = record.partition(b"=")
        if key == b"path":
            return _text(value.rstrip(b"\n"))
    return ""


def _text(raw: bytes) -> str:
    return raw.decode("utf-8", "replace")


def text_of(raw: bytes) -> str | None:
    """None for what is no text."""
    return None if b"\0" in raw else raw.decode("utf-8-sig", "replace")


def _normalised(name: str) -> str:
    """The name without leading `./`; empty where it leaves the archive's root or is too long."""
    path = posixpath.normpath(name.replace("\\", "/")).lstrip("/")
    is_bad = path in (".", "..") or path.startswith("../") or "\0" in path or len(path) > _MAX_PATH_CHARACTERS
    return "" if is_bad else path
