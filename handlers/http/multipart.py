"""Streaming multipart parser: files are written to a folder as they arrive, short parts stay in memory.

    parts = Parts(content_type, is_file=lambda name: name == "chart", folder=work.folder)
    parts.feed(chunk) ...; parts.end()
    parts.last("chart").file, parts.last("request").content

A part is identified by its name, with or without a file name; its declared media type and encoding are not checked.
Several files in one part (`multipart/mixed`, as curl sends `-F "junit=@a.xml,b.xml"`) become parts of that name.
The preamble and parts without a name are ignored.
"""

from __future__ import annotations

import contextlib
import os
import tempfile
from collections.abc import Callable, Mapping
from io import BufferedWriter
from pathlib import Path
from typing import Any, cast

from attrs import define
from python_multipart.exceptions import FormParserError
from python_multipart.multipart import MultipartParser, parse_options_header

from models.errors import Invalid, TooLarge, Unsupported

_MAX_KEPT_BYTES = 1024 * 1024
_MAX_NAME_LENGTH = 255
_MAX_PATH_LENGTH = 1024
_MAX_PREAMBLE_BYTES = 64 * 1024
_FORM, _MIXED = b"multipart/form-data", b"multipart/mixed"


@define
class Part:
    """One part. `file` is the file with its bytes, or None where they are in `content`."""

    name: str
    file_name: str | None
    media_type: str | None
    size: int = 0
    file: Path | None = None
    content: bytes = b""


class Parts:
    """Parses one multipart body."""

    def __init__(
        self,
        content_type: str,
        is_file: Callable[[str], bool],
        folder: Path,
        most_parts: int = 100,
        most_kept: int = _MAX_KEPT_BYTES,
        most_of_file: int | None = None,
        within: str | None = None,
        cut: Mapping[str, int] | None = None,
        is_dropped: Callable[[str], bool] = lambda name: False,
    ) -> None:
        """`is_file` returns whether a part of this name is written to `folder`; others hold `most_kept` bytes at most.

        The bytes of parts whose name `is_dropped` are not kept.
        A file whose part is in `cut` is not refused: bytes beyond that number are counted and not written.
        `within` is the name of the outer part, for `multipart/mixed`. Raises `Unsupported` for another media type,
        `Invalid` for a missing boundary.
        """
        boundary = _boundary(content_type, _FORM if within is None else _MIXED)
        self.all: list[Part] = []
        self._is_file, self._is_dropped, self._folder = is_file, is_dropped, folder
        self._most_parts, self._most_kept, self._most_of_file = most_parts, most_kept, most_of_file
        self._cut = cut or {}
        self._containers = 0
        """Parts that were `multipart/mixed`."""
        self._kept = 0
        self._headers: dict[bytes, bytes] = {}
        self._header, self._value = bytearray(), bytearray()
        self._writing: BufferedWriter | None = None
        self._content = bytearray()
        self._within, self._inner = within, cast("Parts | None", None)
        self._is_ignored = False
        self._ended = False
        self._delimiter = b"--" + boundary
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
        """Parses the next bytes of the body. Raises `Invalid`, `TooLarge`, `OSError`; then no more bytes may follow."""
        try:
            if self._preamble is not None:
                chunk = self._skip_preamble(self._preamble, chunk)
            if chunk:
                self._parser.write(chunk)
        except FormParserError as fault:
            self.close()
            raise Invalid(f"the body is not valid multipart: {fault}") from None
        except BaseException:
            self.close()
            raise

    def end(self) -> None:
        """Ends the body. Raises `Invalid` where it is incomplete."""
        self.close()
        if not self._ended:
            raise Invalid("the multipart body ends before its last boundary")

    def _skip_preamble(self, preamble: bytearray, chunk: bytes) -> bytes:
        """Returns the bytes from the first boundary on; none while there is no boundary. Raises `Invalid`."""
        preamble += chunk
        at = 0 if preamble.startswith(self._delimiter) else preamble.find(b"\n" + self._delimiter) + 1
        is_found = preamble.startswith(self._delimiter, at)
        if (at if is_found else len(preamble)) > _MAX_PREAMBLE_BYTES:
            raise Invalid("the body is not valid multipart: its boundary is missing")
        if is_found:
            self._preamble = None
        return bytes(preamble[at:]) if is_found else b""

    def close(self) -> None:
        """Closes the file that is being written."""
        if self._inner is not None:
            self._inner.close()
        if self._writing is not None:
            with contextlib.suppress(OSError):
                self._writing.close()
            self._writing = None

    def discard(self) -> None:
        """Closes the file that is being written, and frees what is in memory: the parser refers back to this object."""
        self.close()
        self.all, self._inner = [], None
        self._content, self._header, self._value = bytearray(), bytearray(), bytearray()
        self._kept, self._preamble = 0, None
        self._headers.clear()
        self._parser.callbacks = {}

    @property
    def kept_bytes(self) -> int:
        """The bytes of parts in memory."""
        return self._kept

    def last(self, name: str) -> Part | None:
        """Returns the last part of this name."""
        return next((part for part in reversed(self.all) if part.name == name), None)

    def _header_end(self) -> None:
        self._headers[bytes(self._header).lower()] = bytes(self._value)
        self._header.clear()
        self._value.clear()

    def _begin(self) -> None:
        _, options = parse_options_header(self._headers.get(b"content-disposition", b""))
        name = _text(options.get(b"name", b"")) if self._within is None else self._within
        file_name, media_type = options.get(b"filename"), self._headers.get(b"content-type")
        if len(self.all) + self._containers >= self._most_parts:
            raise TooLarge(f"the request has more than {self._most_parts} parts")
        if media_type is not None and self._within is None and self._is_file(name) and _is_mixed(media_type):
            self._inner = Parts(
                _text(media_type), self._is_file, self._folder, self._most_parts, 0, self._most_of_file, name, self._cut
            )
            self._inner.all = self.all
            self._containers += 1
            self._inner._containers = self._containers
            return
        self._is_ignored = not name or self._is_dropped(name)
        part = Part(
            name,
            None
            if file_name is None
            else _text(file_name, _MAX_PATH_LENGTH if name in self._cut else _MAX_NAME_LENGTH),
            None if media_type is None else _text(media_type),
        )
        if not self._is_ignored and self._is_file(name):
            handle, path = tempfile.mkstemp(dir=self._folder)
            self._writing = os.fdopen(handle, "wb")
            part.file = Path(path)
        self.all.append(part)

    def _data(self, data: bytes, start: int, end: int) -> None:
        if self._inner is not None:
            self._inner.feed(data[start:end])
            return
        if self._is_ignored:
            return
        part = self.all[-1]
        part.size += end - start
        if self._writing is None:
            self._kept += end - start
            if self._kept > self._most_kept:
                raise TooLarge(f"{part.name}: the parts that are no files are larger than {self._most_kept} bytes")
            self._content += data[start:end]
            return
        if (limit := self._cut.get(part.name)) is not None:
            room = max(0, limit - (part.size - (end - start)))
            self._writing.write(data[start : min(end, start + room)])
            return
        if self._most_of_file is not None and part.size > self._most_of_file:
            raise TooLarge(f"{_label(part)}: the file is larger than {self._most_of_file} bytes")
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
            writing.close()  # reports a full disk

    def _end(self) -> None:
        self._ended = True


def _boundary(content_type: str, kind: bytes) -> bytes:
    found, options = parse_options_header(content_type)
    if found.lower() != kind:
        raise Unsupported("the body must be multipart/form-data")
    boundary = options.get(b"boundary", b"")
    if not 1 <= len(boundary) <= 70:
        raise Invalid("the boundary of the multipart body is missing or too long")
    return boundary


def _is_mixed(media_type: bytes) -> bool:
    return parse_options_header(media_type)[0].lower() == _MIXED


def _label(part: Part) -> str:
    """Returns the names of a part and its file for messages."""
    name = "".join(letter if letter.isprintable() else "\ufffd" for letter in part.file_name or "")
    return f"{part.name} {name}".strip()


def _text(raw: bytes, length: int = _MAX_NAME_LENGTH) -> str:
    text = raw[: 4 * length].decode("utf-8", "replace")[:length]
    if "\0" in text:
        raise Invalid("a part of the multipart body has a NUL in its head")
    return text
