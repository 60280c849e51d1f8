"""Archives whose bytes depend on their content only."""

from __future__ import annotations

import gzip
import io
import os
import tarfile
from collections.abc import Iterable, Mapping
from typing import NamedTuple


class Entry(NamedTuple):
    """A file, a folder (`content` is None) or a symbolic link (`link`) in an archive."""

    path: str
    content: bytes | None = None
    mode: int = 0o644
    owner: int = 0
    link: str = ""


def timestamp() -> int:
    """SOURCE_DATE_EPOCH, or 0."""
    return int(os.environ.get("SOURCE_DATE_EPOCH", "0"))


def folders(entries: Iterable[Entry]) -> list[Entry]:
    """The entries with the folders above them that are missing, in the order of their paths."""
    found = {entry.path: entry for entry in entries}
    for path in list(found):
        while path := path.rpartition("/")[0]:
            found.setdefault(path, Entry(path, mode=0o755))
    return [found[path] for path in sorted(found)]


def tar(entries: Iterable[Entry], prefix: str = "") -> bytes:
    """A tar archive of the entries, in their order; `prefix` is `./` in packages of Debian."""
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w", format=tarfile.GNU_FORMAT) as file:
        for entry in entries:
            member = tarfile.TarInfo(prefix + entry.path)
            member.mtime, member.mode, member.uid, member.gid = timestamp(), entry.mode, entry.owner, entry.owner
            member.uname = member.gname = "root" if entry.owner == 0 else ""
            if entry.link:
                member.type, member.linkname = tarfile.SYMTYPE, entry.link
            elif entry.content is None:
                member.type = tarfile.DIRTYPE
            else:
                member.size = len(entry.content)
            file.addfile(member, io.BytesIO(entry.content or b""))
    return out.getvalue()


def packed(content: bytes, level: int = 9) -> bytes:
    """Compresses with gzip, without a name and a time."""
    return gzip.compress(content, level, mtime=0)


def ar(members: Mapping[str, bytes]) -> bytes:
    """An archive of ar, which a package of Debian is."""
    out = b"!<arch>\n"
    for name, content in members.items():
        head = f"{name:<16}{timestamp():<12}{0:<6}{0:<6}{'100644':<8}{len(content):<10}`\n"
        out += head.encode() + content + b"\n" * (len(content) % 2)
    return out


def repack(archive: bytes) -> bytes:
    """A `.tar.gz` with the same files, without owners and times of the machine that made it."""
    entries = []
    with tarfile.open(fileobj=io.BytesIO(archive)) as file:
        for member in sorted(file.getmembers(), key=lambda one: one.name):
            reader = file.extractfile(member)
            mode = 0o755 if member.isdir() or member.mode & 0o100 else 0o644
            entries.append(Entry(member.name, reader.read() if reader else None, mode, link=member.linkname))
    return packed(tar(entries))
