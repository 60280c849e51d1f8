"""The bytes of a report before its reader: inflated, counted, hashed, and cleaned so that a parser accepts them.

Real reports have control characters, invalid bytes, references to characters that XML cannot hold, and headers that
name the wrong encoding. Each of these becomes U+FFFD: one bad byte of a test's output must not lose the report. Line
ends are kept, so that an error has the line of the file.
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

CHUNK_BYTES = 64 * 1024
HEAD_BYTES = 256 * 1024
"""The beginning of a report that is read to detect its format."""

MAX_LINE_BYTES = 8 * 1024 * 1024
"""The longest line of a text format."""

MAX_SEARCHED_LINE_BYTES = 1024 * 1024
"""The longest line of a format whose lines are parsed or searched as a whole."""

MAX_CSV_LINE_BYTES = 64 * 1024

_GZIP = b"\x1f\x8b"
_BYTE_ORDER_MARKS = (
    (codecs.BOM_UTF8, "utf-8"),
    (codecs.BOM_UTF32_LE, "utf-32-le"),
    (codecs.BOM_UTF32_BE, "utf-32-be"),
    (codecs.BOM_UTF16_LE, "utf-16-le"),
    (codecs.BOM_UTF16_BE, "utf-16-be"),
)
_WIDE = ("utf-32-le", "utf-32-be", "utf-16-le", "utf-16-be")
_FIRST_CHARACTERS = tuple((first.encode(name), name) for first in "<{[ \t\r\n" for name in _WIDE)
"""Without a byte order mark a wide encoding shows by the first character: < in XML, { or [ in JSON, or space."""
_BLANK = " \t\r\n\ufeff"
_DECLARED = re.compile(rb"\s*<\?xml\s[^>]*?\bencoding\s*=\s*[\"']([A-Za-z][\w.:-]{0,39})[\"']")
_NOT_TEXT = {"idna", "punycode", "unicode_escape", "raw_unicode_escape", "undefined", "mbcs", "oem"}
_DECLARATION = re.compile(r"\s*<\?xml\s[^>]*\?>")
_VERSION_11 = re.compile(r"\bversion\s*=\s*[\"']1\.1[\"']")

_CONTROLS = bytes(code for code in range(32) if code not in b"\t\n\r")
_CONTROL = re.compile(b"[" + re.escape(_CONTROLS) + b"]")
_REPLACEMENT = "\ufffd".encode()
_REFERENCE = re.compile(rb"&#(?:x([0-9A-Fa-f]{1,20})|([0-9]{1,20}));")
_SPLIT = re.compile(rb"(?:<(?:!(?:\[(?:C(?:D(?:A(?:TA?)?)?)?)?)?)?|&(?:#(?:x?[0-9A-Fa-f]{0,20})?)?|\]{1,2})\Z")
_MAX_SPLIT_BYTES = 24


class Content:
    """The inflated bytes of a file, once. `head` is their beginning, `digest` their SHA-256 when all were read.

    `file` must be seekable. Raises BadReport for a broken gzip, ReportTooLarge for more than `limits.inflated` bytes.
    """

    def __init__(self, file: BinaryIO, limits: Limits) -> None:
        start = file.tell()
        compressed = _read(file, len(_GZIP)) == _GZIP
        file.seek(start)
        self._file = cast("BinaryIO", gzip.GzipFile(fileobj=file)) if compressed else file
        self._limit = limits.inflated
        self._spend = limits.spend
        self._size = 0
        self._hash = hashlib.sha256()
        self.head = self._next(HEAD_BYTES)

    @property
    def digest(self) -> str:
        return self._hash.hexdigest()

    def __iter__(self) -> Iterator[bytes]:
        yield from (self.head[at : at + CHUNK_BYTES] for at in range(0, len(self.head), CHUNK_BYTES))
        while piece := self._next(CHUNK_BYTES):
            yield piece

    def _next(self, size: int) -> bytes:
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
    """Reads the requested number of bytes, or up to the end of the file."""
    pieces = []
    while size > 0 and (piece := file.read(size)):
        pieces.append(piece)
        size -= len(piece)
    return b"".join(pieces)


def encoding_of(head: bytes) -> tuple[str, int]:
    """The encoding of a text, by its first bytes, its XML declaration or else UTF-8; and the length of its BOM."""
    for bom, name in _BYTE_ORDER_MARKS:
        if head.startswith(bom):
            return name, len(bom)
    for first, name in _FIRST_CHARACTERS:
        if head.startswith(first):
            return name, 0
    declared = _DECLARED.match(head[:1024])
    name = declared[1].decode("ascii") if declared else "utf-8"
    try:
        usable = codecs.lookup(name).name.replace("-", "_") not in _NOT_TEXT and b"<?xml".decode(name) == "<?xml"
    except (LookupError, ValueError):
        usable = False
    return (name if usable else "utf-8"), 0


def texts(content: Iterable[bytes], head: bytes) -> Iterator[str]:
    """The content decoded; invalid bytes become U+FFFD. Repeated byte order marks at the beginning are dropped."""
    name, bom_size = encoding_of(head)
    has_text = False
    decoder = codecs.getincrementaldecoder(name)(errors="replace")
    for piece in content:
        if text := decoder.decode(piece[bom_size:]):
            if not has_text:
                rest = text.lstrip(_BLANK)
                text = text[: len(text) - len(rest)].replace("\ufeff", "") + rest
                has_text = bool(rest)
            yield text
        bom_size = max(0, bom_size - len(piece))
    if text := decoder.decode(b"", final=True):
        yield text


def plain(content: Iterable[bytes], head: bytes) -> Iterator[bytes]:
    """The content in UTF-8 without control characters."""
    for text in texts(content, head):
        yield _replace_controls(text.encode("utf-8", "replace"))


def xml(content: Iterable[bytes], head: bytes) -> Iterator[bytes]:
    """The content as UTF-8 that expat accepts: its declaration is blanked, its text is cleaned."""
    cdata = False
    held = b""
    for text in _blank_declaration(texts(content, head)):
        data = held + _replace_controls(text.encode("utf-8", "replace"))
        split = _SPLIT.search(data, max(0, len(data) - _MAX_SPLIT_BYTES))
        data, held = (data[: split.start()], data[split.start() :]) if split else (data, b"")
        cleaned, cdata = _clean_sections(data, cdata)
        if cleaned:
            yield cleaned
    if held:
        yield held


def _replace_controls(data: bytes) -> bytes:
    if len(data.translate(None, _CONTROLS)) != len(data):
        data = _CONTROL.sub(_REPLACEMENT, data)
    if not data.isascii() and b"\xef\xbf" in data:
        data = data.replace(b"\xef\xbf\xbe", _REPLACEMENT).replace(b"\xef\xbf\xbf", _REPLACEMENT)
    return data


def _blank_declaration(pieces: Iterable[str]) -> Iterator[str]:
    """Blanks a declaration at the start, which may have space before it: its version and encoding are known."""
    pieces = iter(pieces)
    first = ""
    for piece in pieces:
        first += piece
        if len(first) > 2048:
            break
    declaration = _DECLARATION.match(first)
    is_xml_11 = bool(declaration and _VERSION_11.search(declaration[0]))
    if declaration:
        first = re.sub(r"\S", " ", declaration[0]) + first[declaration.end() :]
    for piece in itertools.chain((first,), pieces):
        yield _xml_11_lines(piece) if is_xml_11 else piece


def _xml_11_lines(text: str) -> str:
    """Replaces the line ends that only XML 1.1 has."""
    return text.replace("\x85", "\n").replace("\u2028", "\n")


def _clean_sections(data: bytes, cdata: bool) -> tuple[bytes, bool]:
    """Cleans the text outside of CDATA. Returns it, and whether `data` ends inside of CDATA."""
    if not cdata and not (b"[" in data and b"<![CDATA[" in data):
        return _clean_markup(data), False
    pieces = []
    at = 0
    while True:
        delimiter = b"]]>" if cdata else b"<![CDATA["
        end = data.find(delimiter, at)
        piece = data[at:] if end < 0 else data[at:end]
        pieces.append(piece if cdata else _clean_markup(piece))
        if end < 0:
            return b"".join(pieces), cdata
        pieces.append(delimiter)
        at = end + len(delimiter)
        cdata = not cdata


def _clean_markup(data: bytes) -> bytes:
    if b"]" in data and b"]]>" in data:  # searching one byte takes a hundredth of the time
        data = data.replace(b"]]>", b"]]&gt;")
    if b"#" in data and b"&#" in data:
        data = _REFERENCE.sub(_clean_reference, data)
    return data


def _clean_reference(match: re.Match[bytes]) -> bytes:
    code = int(match[1], 16) if match[1] else int(match[2])
    legal = code in (9, 10, 13) or 32 <= code < 0xD800 or 0xE000 <= code < 0xFFFE or 0x10000 <= code < 0x110000
    return match[0] if legal else _REPLACEMENT


class Ending:
    """Pieces of a content; `is_cut`: what was read so far does not end with the end of a line."""

    def __init__(self, pieces: Iterable[bytes]) -> None:
        self._pieces = pieces
        self.is_cut = False

    def __iter__(self) -> Iterator[bytes]:
        for piece in self._pieces:
            if piece:
                self.is_cut = not piece.endswith(b"\n")
            yield piece


def lines(pieces: Iterable[bytes], max_bytes: int = MAX_LINE_BYTES) -> Iterator[bytes]:
    """The lines, without their ends. Raises BadReport for a line of more than `max_bytes`."""
    partial: list[bytes] = []
    size = 0
    for piece in pieces:
        first, *lines = piece.split(b"\n")
        partial.append(first)
        size += len(first)
        if size > max_bytes or any(len(line) > max_bytes for line in lines):
            raise BadReport(f"a line is longer than {max_bytes} bytes")
        if lines:
            yield b"".join(partial)
            yield from lines[:-1]
            partial = [lines[-1]]
            size = len(lines[-1])
    if size:
        yield b"".join(partial)
