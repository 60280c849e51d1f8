"""The bytes of a report on their way to its reader: inflated, counted, hashed, and made text that a parser takes.

Real reports come with control characters, bytes of no encoding, references to what XML cannot hold, and headers that
lie about their encoding. What no reader would accept becomes U+FFFD: one bad byte of a test's output is no reason to
lose the report. Only what such a byte spoils is touched, and lines stay lines, so that a fault is told where it is.
"""

from __future__ import annotations

import codecs
import gzip
import hashlib
import itertools
import re
import zlib
from collections.abc import Iterable, Iterator
from typing import BinaryIO, cast

from models.tracker.reports.base import BadReport, Limits, ReportTooLarge

CHUNK = 64 * 1024
HEAD = 256 * 1024
"""As much of a report is looked at to tell what it is."""

LINE = 8 * 1024 * 1024
"""The longest line of a format of lines."""

_GZIP = b"\x1f\x8b"
_MARKS = (
    (codecs.BOM_UTF8, "utf-8"),
    (codecs.BOM_UTF32_LE, "utf-32-le"),
    (codecs.BOM_UTF32_BE, "utf-32-be"),
    (codecs.BOM_UTF16_LE, "utf-16-le"),
    (codecs.BOM_UTF16_BE, "utf-16-be"),
)
_WIDE = ("utf-32-le", "utf-32-be", "utf-16-le", "utf-16-be")
_FIRST = tuple((first.encode(name), name) for first in "<{[ \t\r\n" for name in _WIDE)
"""Without a mark a wide encoding shows by its first character: < in XML, { or [ in JSON, or space before it."""
_BLANK = " \t\r\n\ufeff"
_DECLARED = re.compile(rb"\s*<\?xml\s[^>]*?\bencoding\s*=\s*[\"']([A-Za-z][\w.:-]{0,39})[\"']")
_NOT_TEXT = {"idna", "punycode", "unicode_escape", "raw_unicode_escape", "undefined", "mbcs", "oem"}
_DECLARATION = re.compile(r"\s*<\?xml\s[^>]*\?>")
_VERSION_11 = re.compile(r"\bversion\s*=\s*[\"']1\.1[\"']")

_CONTROLS = bytes(code for code in range(32) if code not in b"\t\n\r")
_CONTROL = re.compile(b"[" + re.escape(_CONTROLS) + b"]")
_UNKNOWN = "\ufffd".encode()
_REFERENCE = re.compile(rb"&#(?:x([0-9A-Fa-f]{1,20})|([0-9]{1,20}));")
_SPLIT = re.compile(rb"(?:<(?:!(?:\[(?:C(?:D(?:A(?:TA?)?)?)?)?)?)?|&(?:#(?:x?[0-9A-Fa-f]{0,20})?)?|\]{1,2})\Z")
_LONGEST_SPLIT = 24


class Content:
    """The inflated bytes of a file, once. `head` is their beginning, `digest` their SHA-256 when all were read.

    `file` must be seekable. Raises BadReport for a broken gzip, ReportTooLarge for more than `limits.inflated` bytes.
    """

    def __init__(self, file: BinaryIO, limits: Limits) -> None:
        start = file.tell()
        packed = _read(file, len(_GZIP)) == _GZIP
        file.seek(start)
        self._file = cast("BinaryIO", gzip.GzipFile(fileobj=file)) if packed else file
        self._limit = limits.inflated
        self._spend = limits.spend
        self._size = 0
        self._hash = hashlib.sha256()
        self.head = self._some(HEAD)

    @property
    def digest(self) -> str:
        return self._hash.hexdigest()

    def __iter__(self) -> Iterator[bytes]:
        yield from (self.head[at : at + CHUNK] for at in range(0, len(self.head), CHUNK))
        while piece := self._some(CHUNK):
            yield piece

    def _some(self, size: int) -> bytes:
        try:
            piece = _read(self._file, size)
        except (gzip.BadGzipFile, EOFError, zlib.error) as error:
            raise BadReport(f"the gzip data cannot be inflated: {error}") from error
        if self._spend is not None:
            self._spend(len(piece))
        self._size += len(piece)
        if self._size > self._limit:
            raise ReportTooLarge(f"it is larger than {self._limit} bytes when inflated")
        self._hash.update(piece)
        return piece


def _read(file: BinaryIO, size: int) -> bytes:
    """As many bytes as asked for, unless the file ends."""
    pieces = []
    while size > 0 and (piece := file.read(size)):
        pieces.append(piece)
        size -= len(piece)
    return b"".join(pieces)


def encoding_of(head: bytes) -> tuple[str, int]:
    """The encoding of a text, by its first bytes, its XML declaration or else UTF-8; and the length of its mark."""
    for mark, name in _MARKS:
        if head.startswith(mark):
            return name, len(mark)
    for first, name in _FIRST:
        if head.startswith(first):
            return name, 0
    declared = _DECLARED.match(head[:1024])
    name = declared[1].decode("ascii") if declared else "utf-8"
    try:
        right = codecs.lookup(name).name.replace("-", "_") not in _NOT_TEXT and b"<?xml".decode(name) == "<?xml"
    except (LookupError, ValueError):
        right = False
    return (name if right else "utf-8"), 0


def texts(content: Iterable[bytes], head: bytes) -> Iterator[str]:
    """The content decoded; what is not of its encoding is U+FFFD. Marks that stand before it once more are dropped."""
    name, mark = encoding_of(head)
    begun = False
    decoder = codecs.getincrementaldecoder(name)(errors="replace")
    for piece in content:
        if text := decoder.decode(piece[mark:]):
            if not begun:
                rest = text.lstrip(_BLANK)
                text = text[: len(text) - len(rest)].replace("\ufeff", "") + rest
                begun = bool(rest)
            yield text
        mark = max(0, mark - len(piece))
    if text := decoder.decode(b"", final=True):
        yield text


def plain(content: Iterable[bytes], head: bytes) -> Iterator[bytes]:
    """The content in UTF-8 without control characters."""
    for text in texts(content, head):
        yield _legal(text.encode("utf-8", "replace"))


def xml(content: Iterable[bytes], head: bytes) -> Iterator[bytes]:
    """The content as UTF-8 that expat takes, if it is XML at all: its declaration blanked, its text cleaned."""
    cdata = False
    held = b""
    for text in _undeclared(texts(content, head)):
        data = held + _legal(text.encode("utf-8", "replace"))
        split = _SPLIT.search(data, max(0, len(data) - _LONGEST_SPLIT))
        data, held = (data[: split.start()], data[split.start() :]) if split else (data, b"")
        cleaned, cdata = _sections(data, cdata)
        if cleaned:
            yield cleaned
    if held:
        yield held


def _legal(data: bytes) -> bytes:
    if len(data.translate(None, _CONTROLS)) != len(data):
        data = _CONTROL.sub(_UNKNOWN, data)
    if not data.isascii() and b"\xef\xbf" in data:
        data = data.replace(b"\xef\xbf\xbe", _UNKNOWN).replace(b"\xef\xbf\xbf", _UNKNOWN)
    return data


def _undeclared(pieces: Iterable[str]) -> Iterator[str]:
    """Blanks a declaration at the start: its version and encoding are dealt with, and space may stand before it."""
    pieces = iter(pieces)
    first = ""
    for piece in pieces:
        first += piece
        if len(first) > 2048:
            break
    declaration = _DECLARATION.match(first)
    newer = bool(declaration and _VERSION_11.search(declaration[0]))
    if declaration:
        first = re.sub(r"\S", " ", declaration[0]) + first[declaration.end() :]
    for piece in itertools.chain((first,), pieces):
        yield _lines(piece) if newer else piece


def _lines(text: str) -> str:
    """The ends of lines that XML 1.1 has more than XML 1.0."""
    return text.replace("\x85", "\n").replace("\u2028", "\n")


def _sections(data: bytes, cdata: bool) -> tuple[bytes, bool]:
    """Cleans what stands outside of CDATA, and says whether the end of `data` is inside."""
    if not cdata and not (b"[" in data and b"<![CDATA[" in data):
        return _markup(data), False
    pieces = []
    at = 0
    while True:
        mark = b"]]>" if cdata else b"<![CDATA["
        end = data.find(mark, at)
        piece = data[at:] if end < 0 else data[at:end]
        pieces.append(piece if cdata else _markup(piece))
        if end < 0:
            return b"".join(pieces), cdata
        pieces.append(mark)
        at = end + len(mark)
        cdata = not cdata


def _markup(data: bytes) -> bytes:
    if b"]" in data and b"]]>" in data:  # to look for one byte takes a hundredth of the time
        data = data.replace(b"]]>", b"]]&gt;")
    if b"#" in data and b"&#" in data:
        data = _REFERENCE.sub(_reference, data)
    return data


def _reference(found: re.Match[bytes]) -> bytes:
    code = int(found[1], 16) if found[1] else int(found[2])
    legal = code in (9, 10, 13) or 32 <= code < 0xD800 or 0xE000 <= code < 0xFFFE or 0x10000 <= code < 0x110000
    return found[0] if legal else _UNKNOWN


def lines(pieces: Iterable[bytes]) -> Iterator[bytes]:
    """The lines, without their ends. Raises BadReport for one that is too long."""
    begun: list[bytes] = []
    size = 0
    for piece in pieces:
        first, *lines = piece.split(b"\n")
        begun.append(first)
        size += len(first)
        if size > LINE:
            raise BadReport(f"a line is longer than {LINE} bytes")
        if lines:
            yield b"".join(begun)
            yield from lines[:-1]
            begun = [lines[-1]]
            size = len(lines[-1])
    if size:
        yield b"".join(begun)
