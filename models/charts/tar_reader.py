"""A chart's archive, read as a stream within bounds: what is in it, member by member, and nothing that is only a trick.

The reader is strict where readers of tar differ: it takes plain files and folders, long names, and of the extended
headers only those that change neither where a file lies nor how long it is.
"""

from __future__ import annotations

import gzip
import re
import tarfile
import zlib
from collections.abc import Iterator
from typing import IO

from attrs import define, frozen

from models.errors import Invalid

MIB = 1024**2
_BLOCK = 512
_PIECE = 64 * 1024
_LONGEST_HEADER = 64 * 1024
_LONGEST_PATH = 1024
_FILES = (tarfile.REGTYPE, tarfile.AREGTYPE)
_RECORD = re.compile(rb"([1-9][0-9]{0,5}) ([^=\0]+)=")
_TELLING = re.compile(r"(path|mtime|atime|ctime|uid|gid|uname|gname|comment|(SCHILY|LIBARCHIVE|RHT)\..+)")


@frozen
class Bounds:
    """How much an archive may hold; bytes, but `entries` and `depth` (of archives within archives)."""

    packed: int = 100 * MIB
    unpacked: int = 100 * MIB
    entries: int = 50_000
    file: int = 5 * MIB
    depth: int = 8


@define
class Budget:
    """What is left of the bounds, over an archive and those within it."""

    bounds: Bounds
    unpacked: int = 0
    entries: int = 0

    def take(self, size: int) -> None:
        self.unpacked += size
        if self.unpacked > self.bounds.unpacked:
            raise Invalid(f"the chart unpacks to more than {self.bounds.unpacked} bytes")

    def count(self) -> None:
        self.entries += 1
        if self.entries > self.bounds.entries:
            raise Invalid(f"the chart has more than {self.bounds.entries} entries")


@frozen
class Member:
    """A regular file of an archive: its path below the top folder, and what is in it."""

    path: str
    data: bytes


class Tarball:
    """One archive (.tgz), read once. `top` is its one top folder, known when the first member is."""

    def __init__(self, file: IO[bytes], budget: Budget) -> None:
        self._unpacked = gzip.GzipFile(fileobj=file)
        self._budget = budget
        self._files: set[str] = set()
        self._folders: set[str] = set()
        self.top = ""

    def members(self) -> Iterator[Member]:
        """Its files, in their order. Raises `Invalid`."""
        try:
            for name, size, is_file in self._headers():
                path = self._place(name, is_file)
                if not is_file:
                    continue
                if size > self._budget.bounds.file:
                    raise Invalid(f"the chart's file {path} is larger than {self._budget.bounds.file} bytes")
                yield Member(path, self._read_padded(size))
            self._end()
        except (gzip.BadGzipFile, zlib.error, EOFError) as error:
            raise Invalid(f"the chart is no gzip archive, or a damaged one: {error}") from None
        except (tarfile.HeaderError, UnicodeDecodeError):
            raise Invalid("the chart is no tar archive, or a damaged one") from None
        if not self._files:
            raise Invalid("the chart's archive is empty")

    def _read(self, size: int) -> bytes:
        self._budget.take(size)
        data = self._unpacked.read(size)
        if len(data) < size:
            raise EOFError("it ends too early")
        return data

    def _read_padded(self, size: int) -> bytes:
        data = self._read(size)
        self._read(-size % _BLOCK)
        return data

    def _end(self) -> None:
        """Reads what is after the last entry: zeros, and the checksum of it all."""
        while rest := self._unpacked.read(_PIECE):
            self._budget.take(len(rest))
            if any(rest):
                raise Invalid("the chart's archive has something after its end")

    def _headers(self) -> Iterator[tuple[str, int, bool]]:
        """Name, size and whether it is a file, of each entry that is a file or a folder."""
        name = ""
        while True:
            block = self._read(_BLOCK)
            if not any(block):
                if any(self._read(_BLOCK)):
                    raise tarfile.HeaderError("one block of zeros")
                return
            header = tarfile.TarInfo.frombuf(block, "utf-8", "strict")
            self._budget.count()
            if header.size < 0:
                raise tarfile.HeaderError("a negative size")
            if header.type in (tarfile.XHDTYPE, tarfile.XGLTYPE, tarfile.GNUTYPE_LONGNAME):
                name = self._long_name(header) or name
            elif header.type in _FILES or header.type == tarfile.DIRTYPE:
                if header.type == tarfile.DIRTYPE and header.size:
                    raise tarfile.HeaderError("a folder with content")
                yield name or header.name, header.size, header.type in _FILES
                name = ""
            else:
                raise Invalid(f"the chart's archive has something in it that is neither file nor folder: {header.name}")

    def _long_name(self, header: tarfile.TarInfo) -> str:
        """The name of the entry that follows, if this header tells it."""
        if header.size > _LONGEST_HEADER:
            raise Invalid("the chart's archive has a header that is too long")
        data = self._read_padded(header.size)
        if header.type == tarfile.GNUTYPE_LONGNAME:
            return data.rstrip(b"\0").decode()
        name = _extended(data).get("path", "")
        if name and header.type == tarfile.XGLTYPE:
            raise Invalid("the chart's archive has one name for all of its files")
        return name

    def _place(self, name: str, is_file: bool) -> str:
        """The path below the top folder. Raises `Invalid` where it leads elsewhere, or where something is already."""
        shown = name[:200].encode("ascii", "backslashreplace").decode()
        parts = name.removesuffix("/").split("/")
        if len(name) > _LONGEST_PATH or {"", ".", ".."} & set(parts) or re.search(r"[\x00-\x1f\x7f\\]", name):
            raise Invalid(f"the chart's archive has an entry that leads out of it, or is not well named: {shown}")
        self.top = self.top or parts[0]
        if parts[0] != self.top or (is_file and len(parts) == 1) or re.match(r"[A-Za-z]:$", parts[0]):
            raise Invalid(f"the chart's archive must have one top folder: {shown}")
        path = "/".join(parts[1:])
        above = {"/".join(parts[1:end]) for end in range(2, len(parts))}
        if above & self._files or path in self._files or (is_file and path in self._folders):
            raise Invalid(f"the chart's archive has this twice: {shown}")
        self._folders |= above
        (self._files if is_file else self._folders).add(path)
        return path


def _extended(data: bytes) -> dict[str, str]:
    """The records of an extended header. Raises `Invalid` for one that says where or how large a file really is."""
    records: dict[str, str] = {}
    while data:
        found = _RECORD.match(data)
        end = int(found[1]) if found else 0
        if not found or not found.end() < end <= len(data) or data[end - 1 : end] != b"\n":
            raise tarfile.HeaderError("a bad record")
        key, value = found[2].decode(), data[found.end() : end - 1]
        if not _TELLING.fullmatch(key) or key in records:
            raise Invalid("the chart's archive has a header that is not for plain files")
        records[key] = value.decode() if key == "path" else ""
        data = data[end:]
    return records
