"""The heads of reports, by which their formats are detected."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping

from attrs import frozen

from models.tracker.reports import byte_stream
from models.tracker.reports.base import BadReport, Limits
from models.tracker.reports.xml_stream import root_of

_KEY = re.compile(rb'"[^"\\\n]{1,40}"(?=\s*:)')
_HTML = re.compile(rb"\s*<(?:!doctype\s+)?html\b", re.IGNORECASE)


@frozen
class Head:
    """The beginning of a report: of XML the root, its attributes and the first element in it, else the text."""

    root: str = ""
    attributes: Mapping[str, str] = {}
    first: str = ""
    text: bytes = b""


def has_text(pattern: bytes) -> Callable[[Head], bool]:
    """Whether a head has the pattern, in which `.` is any character and `^` the beginning of any line."""
    compiled = re.compile(pattern, re.MULTILINE | re.DOTALL)
    return lambda head: compiled.search(head.text) is not None


def head_of(start: bytes, limits: Limits) -> Head:
    """The head of a file that begins so. Raises BadReport where no report begins so."""
    text = b"".join(byte_stream.plain((start,), start))
    if not text.strip():
        raise BadReport("the file is empty")
    if _HTML.match(text):
        raise BadReport("it is a page of HTML, not a report")
    if not text.lstrip().startswith(b"<"):
        return Head(text=text)
    root, attributes, first = root_of(byte_stream.xml((start,), start), limits, len(start) < byte_stream.HEAD_BYTES)
    return Head(root, attributes, first)


def resemblance(head: Head) -> str:
    """What a file with this head is, for a message."""
    return f"its root element is <{head.root[:100]}>" if head.root else f"it is not XML but {_kind_of_text(head.text)}"


def _kind_of_text(text: bytes) -> str:
    """What a file that is no XML resembles."""
    start = text.lstrip()[:1000]
    if start.startswith(b"{"):
        keys = [key.decode("utf-8", "replace") for key in _KEY.findall(start)[:3]]
        return f"a JSON object{' with ' + ', '.join(keys) if keys else ''}"
    if start.startswith(b"["):
        return "a JSON array"
    line = start.split(b"\n")[0][:60].decode("utf-8", "replace").rstrip()
    return f"text that begins with {line!r}" if line.isprintable() and "\ufffd" not in line else "binary data"
