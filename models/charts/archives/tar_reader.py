"""Reads a chart's archive as a bounded stream, member by member.

The reader is strict where tar readers differ: it accepts plain files and folders, long names, and only those extended
headers that change neither the path nor the size of a file.
"""

from __future__ import annotations

import gzip
import hashlib
import re
import tarfile
import zlib
from collections.abc import Iterator
from typing import IO

from attrs import define, frozen

from models.errors import Invalid

MIB = 1024**2
_BLOCK_BYTES = 512
_READ_BYTES = 64 * 1024
_MAX_HEADER_BYTES = 64 * 1024
_MAX_PATH_CHARACTERS = 1024
_FILE_TYPES = (tarfile.REGTYPE, tarfile.AREGTYPE)
_RECORD = re.compile(rb"([1-9][0-9]{0,5}) ([^=\0]+)=")
_ALLOWED_RECORD = re.compile(r"(path|mtime|atime|ctime|uid|gid|uname|gname|comment|(SCHILY|LIBARCHIVE|RHT)\..+)")


@frozen
class ArchiveLimits:
    """Limits of an archive in bytes, except `entries` and `depth` (archives within archives)."""

    packed: int = 100 * MIB
    unpacked: int = 100 * MIB
    entries: int = 50_000
    file: int = 5 * MIB
    depth: int = 8


@define
class Budget:
    """What an archive and the archives in it have used of the limits."""

    limits: ArchiveLimits
    unpacked: int = 0
    entries: int = 0

    def take(self, size: int) -> None:
        self.unpacked += size
        if self.unpacked > self.limits.unpacked:
            raise Invalid(f"the chart unpacks to more than {self.limits.unpacked} bytes")

    def count(self) -> None:
        self.entries += 1
        if self.entries > self.limits.entries:
            raise Invalid(f"the chart has more than {self.limits.entries} entries")


@frozen
class Member:
    """A regular file of an archive: its path below the top folder, and its content."""

    path: str
    data: bytes


class Tarball:
    """One archive (.tgz), read once. `top` is its one top folder, known after the first member."""

    def __init__(self, file: IO[bytes], budget: Budget) -> None:
        self._unpacked = gzip.GzipFile(fileobj=file)
        self._budget = budget
        self._files: dict[str, bytes] = {}
        """The digest of each file."""
        self._folders: set[str] = set()
        self.top = ""

    def members(self) -> Iterator[Member]:
        """Yields its files in order, one that is repeated unchanged once. Raises `Invalid`."""
        try:
            for name, size, is_file in self._headers():
                path = self._place(name, is_file)
                if not is_file:
                    continue
                if size > self._budget.limits.file:
                    raise Invalid(f"the chart's file {path} is larger than {self._budget.limits.file} bytes")
                data = self._read_padded(size)
                if self._is_new(path, data):
                    yield Member(path, data)
            self._end()
        except (gzip.BadGzipFile, zlib.error, EOFError) as error:
            raise Invalid(f"the chart is not a gzip archive or is damaged: {error}") from None
        except (tarfile.HeaderError, UnicodeDecodeError):
            raise Invalid("the chart is not a tar archive or is damaged") from None
        if not self._files:
            raise Invalid("the chart's archive is empty")

    def _read(self, size: int) -> bytes:
        self._budget.take(size)
        data = self._unpacked.read(size)
        if len(data) < size:
            raise EOFError("unexpected end")
        return data

    def _read_padded(self, size: int) -> bytes:
        data = self._read(size)
        self._read(-size % _BLOCK_BYTES)
        return data

    def _end(self) -> None:
        """Reads the rest after the last entry: zeros and the checksum."""
        while rest := self._unpacked.read(_READ_BYTES):
            self._budget.take(len(rest))
            if rest.strip(b"\0"):
                raise Invalid("the chart's archive has data after its end")

    def _headers(self) -> Iterator[tuple[str, int, bool]]:
        """Yields name, size and whether it is a file, for each file or folder."""
        name = ""
        while True:
            block = self._read(_BLOCK_BYTES)
            if not any(block):
                if any(self._read(_BLOCK_BYTES)):
                    raise tarfile.HeaderError("one block of zeros")
                return
            header = tarfile.TarInfo.frombuf(block, "utf-8", "strict")
            self._budget.count()
            if header.size < 0:
                raise tarfile.HeaderError("a negative size")
            if header.type in (tarfile.XHDTYPE, tarfile.XGLTYPE, tarfile.GNUTYPE_LONGNAME):
                name = self._long_name(header) or name
            elif header.type in _FILE_TYPES or header.type == tarfile.DIRTYPE:
                if header.type == tarfile.DIRTYPE and header.size:
                    raise tarfile.HeaderError("a folder with content")
                yield name or header.name, header.size, header.type in _FILE_TYPES
                name = ""
            else:
                raise Invalid(f"the chart's archive has an entry that is neither a file nor a folder: {header.name}")

    def _long_name(self, header: tarfile.TarInfo) -> str:
        """The name of the following entry, if this header sets it."""
        if header.size > _MAX_HEADER_BYTES:
            raise Invalid("the chart's archive has a header that is too long")
        data = self._read_padded(header.size)
        if header.type == tarfile.GNUTYPE_LONGNAME:
            return data.rstrip(b"\0").decode()
        name = _extended(data).get("path", "")
        if name and header.type == tarfile.XGLTYPE:
            raise Invalid("the chart's archive sets one path for all of its files")
        return name

    def _place(self, name: str, is_file: bool) -> str:
        """The path below the top folder. Raises `Invalid` if it leads outside or exists already."""
        shown = _shown(name)
        parts = name.removesuffix("/").split("/")
        if len(name) > _MAX_PATH_CHARACTERS or {"", ".", ".."} & set(parts) or re.search(r"[\x00-\x1f\x7f\\]", name):
            raise Invalid(f"the chart's archive has an entry with a bad name or outside its folder: {shown}")
        self.top = self.top or parts[0]
        if parts[0] != self.top or (is_file and len(parts) == 1) or re.match(r"[A-Za-z]:$", parts[0]):
            raise Invalid(f"the chart's archive must have one top folder: {shown}")
        path = "/".join(parts[1:])
        above = {"/".join(parts[1:end]) for end in range(2, len(parts))}
        if above & self._files.keys() or path in (self._folders if is_file else self._files):
            raise Invalid(f"the chart's archive has a duplicate entry: {shown}")
        self._folders |= above
        if not is_file:
            self._folders.add(path)
        return path

    def _is_new(self, path: str, data: bytes) -> bool:
        """Whether the file is not one that was read before. Raises `Invalid` if its content is another.

        helm packages a subchart that is in charts/ twice, as a folder and as an archive, with all of its files twice.
        """
        digest = hashlib.blake2b(data, digest_size=32).digest()
        if path not in self._files:
            self._files[path] = digest
            return True
        if self._files[path] != digest:
            raise Invalid(f"the chart's archive has a duplicate entry: {_shown(f'{self.top}/{path}')}")
        return False


def _shown(name: str) -> str:
    return name[:200].encode("ascii", "backslashreplace").decode()


def _extended(data: bytes) -> dict[str, str]:
    """Parses an extended header. Raises `Invalid` for records that change where a file is or how large it is."""
    records: dict[str, str] = {}
    while data:
        found = _RECORD.match(data)
        end = int(found[1]) if found else 0
        if not found or not found.end() < end <= len(data) or data[end - 1 : end] != b"\n":
            raise tarfile.HeaderError("a bad record")
        key, value = found[2].decode(), data[found.end() : end - 1]
        if not _ALLOWED_RECORD.fullmatch(key) or key in records:
            raise Invalid("the chart's archive has a header that plain files do not need")
        records[key] = value.decode() if key == "path" else ""
        data = data[end:]
    return records
