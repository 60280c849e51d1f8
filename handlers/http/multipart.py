"""Multipart bodies, as they arrive: files go straight into a folder, short parts are kept.

    parts = Parts(content_type, is_file=lambda name: name == "chart", folder=work.folder)
    parts.feed(chunk) ...; parts.end()
    parts.last("chart").file, parts.last("request").content

A part is known by its name, with or without a file name; its media type and encoding are what it says, and not checked.
Only several files in one part (`multipart/mixed`, as curl sends `-F "junit=@a.xml,b.xml"`) are parts of its name each.
What stands before the first boundary, and a part without a name, is nobody's and passes by.
"""

from __future__ import annotations

import contextlib
import os
import tempfile
from collections.abc import Callable
from io import BufferedWriter
from pathlib import Path
from typing import Any, cast

from attrs import define
from python_multipart.exceptions import FormParserError
from python_multipart.multipart import MultipartParser, parse_options_header

from models.errors import Invalid, TooLarge, Unsupported

_KEPT = 1024 * 1024
_LONGEST_NAME = 255
_LONGEST_PREAMBLE = 64 * 1024
_FORM, _MIXED = b"multipart/form-data", b"multipart/mixed"


@define
class Part:
    """One part. `file` is where it was put, `None` where its bytes are `content`."""

    name: str
    file_name: str | None
    media_type: str | None
    size: int = 0
    file: Path | None = None
    content: bytes = b""


class Parts:
    """Reads one multipart body."""

    def __init__(
        self,
        content_type: str,
        is_file: Callable[[str], bool],
        folder: Path,
        most_parts: int = 100,
        most_kept: int = _KEPT,
        most_of_file: int | None = None,
        within: str | None = None,
    ) -> None:
        """`is_file` says of a part's name whether it goes into `folder`; others may have `most_kept` bytes together.

        `within` is the name of the part of which this is the body. Raises `Unsupported` where the body is none of
        multipart, `Invalid` where its boundary is missing.
        """
        kind, options = parse_options_header(content_type)
        if kind.lower() != (_FORM if within is None else _MIXED):
            raise Unsupported("the body must be multipart/form-data")
        boundary = options.get(b"boundary", b"")
        if not 1 <= len(boundary) <= 70:
            raise Invalid("the boundary of the multipart body is missing or too long")
        self.all: list[Part] = []
        self._is_file, self._folder = is_file, folder
        self._most_parts, self._most_kept, self._most_of_file = most_parts, most_kept, most_of_file
        self._kept = 0
        self._headers: dict[bytes, bytes] = {}
        self._header, self._value = bytearray(), bytearray()
        self._writing: BufferedWriter | None = None
        self._content = bytearray()
        self._within, self._inner = within, cast("Parts | None", None)
        self._passing = False
        self._ended = False
        self._mark = b"--" + boundary
        self._preamble: bytearray | None = bytearray()
        self._parser = MultipartParser(boundary, self._callbacks())

    def _callbacks(self) -> Any:
        return {
            "on_part_begin": self._headers.clear,
            "on_header_field": lambda data, start, end: self._header.extend(data[start:end]),
            "on_header_value": lambda data, start, end: self._value.extend(data[start:end]),
            "on_header_end": self._header_end,
            "on_headers_finished": self._begin,
            "on_part_data": self._data,
            "on_part_end": self._part_end,
            "on_end": self._end,
        }

    def feed(self, chunk: bytes) -> None:
        """Takes the next bytes of the body. Raises `Invalid`, `TooLarge`, `OSError`; then nothing more may be fed."""
        try:
            if self._preamble is not None:
                chunk = self._begun(self._preamble, chunk)
            if chunk:
                self._parser.write(chunk)
        except FormParserError as fault:
            self.close()
            raise Invalid(f"the body is not the multipart that it says it is: {fault}") from None
        except BaseException:
            self.close()
            raise

    def end(self) -> None:
        """Says that the body is over. Raises `Invalid` where it should not be."""
        self.close()
        if not self._ended:
            raise Invalid("the multipart body ends before its last boundary")

    def _begun(self, preamble: bytearray, chunk: bytes) -> bytes:
        """What has come, from the first boundary on; nothing while there is none. Raises `Invalid`."""
        preamble += chunk
        at = 0 if preamble.startswith(self._mark) else preamble.find(b"\n" + self._mark) + 1
        is_there = preamble.startswith(self._mark, at)
        if (at if is_there else len(preamble)) > _LONGEST_PREAMBLE:
            raise Invalid("the body is not the multipart that it says it is: its boundary does not come")
        if is_there:
            self._preamble = None
        return bytes(preamble[at:]) if is_there else b""

    def close(self) -> None:
        """Gives up what is being written; the file of a part that has come whole is closed already."""
        if self._inner is not None:
            self._inner.close()
        if self._writing is not None:
            with contextlib.suppress(OSError):
                self._writing.close()
            self._writing = None

    @property
    def kept_bytes(self) -> int:
        """The bytes of parts in memory."""
        return self._kept

    def last(self, name: str) -> Part | None:
        """The last part of this name."""
        return next((part for part in reversed(self.all) if part.name == name), None)

    def _header_end(self) -> None:
        self._headers[bytes(self._header).lower()] = bytes(self._value)
        self._header.clear()
        self._value.clear()

    def _begin(self) -> None:
        _, options = parse_options_header(self._headers.get(b"content-disposition", b""))
        name = _text(options.get(b"name", b"")) if self._within is None else self._within
        file_name, said = options.get(b"filename"), self._headers.get(b"content-type")
        if len(self.all) >= self._most_parts:
            raise Invalid(f"the multipart body has more than {self._most_parts} parts")
        if said is not None and self._within is None and self._is_file(name) and _is_mixed(said):
            self._inner = Parts(_text(said), self._is_file, self._folder, self._most_parts, 0, self._most_of_file, name)
            self._inner.all = self.all
            return
        self._passing = not name
        part = Part(name, None if file_name is None else _text(file_name), None if said is None else _text(said))
        if name and self._is_file(name):
            handle, path = tempfile.mkstemp(dir=self._folder)
            self._writing = os.fdopen(handle, "wb")
            part.file = Path(path)
        self.all.append(part)

    def _data(self, data: bytes, start: int, end: int) -> None:
        if self._inner is not None:
            self._inner.feed(data[start:end])
            return
        if self._passing:
            return
        part = self.all[-1]
        part.size += end - start
        if self._writing is None:
            self._kept += end - start
            if self._kept > self._most_kept:
                raise TooLarge(f"{part.name}: the parts that are no files are larger than {self._most_kept} bytes")
            self._content += data[start:end]
            return
        if self._most_of_file is not None and part.size > self._most_of_file:
            raise TooLarge(f"{_shown(part)}: the file is larger than {self._most_of_file} bytes")
        self._writing.write(data[start:end])

    def _part_end(self) -> None:
        if self._inner is not None:
            self._inner.end()
            self._inner = None
            return
        self.all[-1].content = bytes(self._content)
        self._content.clear()
        writing, self._writing = self._writing, None
        if writing is not None:
            writing.close()  # a full disk may show itself only here

    def _end(self) -> None:
        self._ended = True


def _is_mixed(media_type: bytes) -> bool:
    return parse_options_header(media_type)[0].lower() == _MIXED


def _shown(part: Part) -> str:
    """A part and its file, in words for people."""
    name = "".join(letter if letter.isprintable() else "\ufffd" for letter in part.file_name or "")
    return f"{part.name} {name}".strip()


def _text(raw: bytes) -> str:
    text = raw[: 4 * _LONGEST_NAME].decode("utf-8", "replace")[:_LONGEST_NAME]
    if "\0" in text:
        raise Invalid("a part of the multipart body has a NUL in its head")
    return text
