"""Numbers and texts of reports, within limits. Nothing here refuses a value: what cannot be read becomes None."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable
from typing import TypeVar

Value = TypeVar("Value")

MAX_NAME_CHARACTERS = 512
MAX_MESSAGE_CHARACTERS = 2000
MAX_DURATION_MS = 10**11
"""Three years; a longer duration is an error of the tool that wrote it."""

MAX_COUNT = 10**9
"""Higher counts are cut to this."""

_MEMO_CHARACTERS, _MEMO_ENTRIES = 12, 4096

_UNPRINTABLE = re.compile("[\\x00-\\x08\\x0b\\x0c\\x0e-\\x1f\\ud800-\\udfff]")
"""Characters that XML cannot hold, and JSON can."""

_COLOURS = re.compile("\x1b\\[[0-9;:]{0,50}m")

_PLAIN = re.compile(r"[0-9]{1,7}(?:\.[0-9]{1,9})?")
_THOUSANDS = re.compile(r"[1-9]\d{0,2}(?:,\d{3})+(?:\.\d*)?")
_DOTTED_THOUSANDS = re.compile(r"[1-9]\d{0,2}(?:\.\d{3})+,\d+")
_SPACES = re.compile("(?<=\\d)[\u00a0\u202f\u2019'](?=\\d{3})")
_NUMBER = re.compile(r"([0-9][0-9.,]*(?:[eE][+-]?\d{1,3})?|\.\d+)\s*([a-zµμ]*)", re.ASCII)
_CLOCK = re.compile(r"(?:(\d{1,6})[.:])??(\d{1,6}):(\d{1,2}):(\d{1,2}(?:[.,]\d{1,9})?)", re.ASCII)
_UNITS = {
    "": 1000.0, "s": 1000.0, "sec": 1000.0, "secs": 1000.0, "second": 1000.0, "seconds": 1000.0,
    "ms": 1.0, "msec": 1.0, "us": 1e-3, "µs": 1e-3, "μs": 1e-3, "ns": 1e-6, "m": 60_000.0, "min": 60_000.0,
    "h": 3_600_000.0,
}  # fmt: skip


def duration_ms(text: str | None) -> int | None:
    """The milliseconds of a time in seconds, as tools write it: 1,234.5 or 0,16 or 80.803us or 00:00:01.5."""
    if not text:
        return None
    if _PLAIN.fullmatch(text):  # nearly all are
        return round(float(text) * 1000)
    text = _SPACES.sub("", text.strip()[:40])
    if clock := _CLOCK.fullmatch(text):
        days, hours, minutes, seconds = clock.groups()
        whole = ((int(days or 0) * 24 + int(hours)) * 60 + int(minutes)) * 60
        return bounded_ms((whole + float(seconds.replace(",", "."))) * 1000)
    match = _NUMBER.fullmatch(text.lower())
    if not match or match[2] not in _UNITS:
        return None
    number = match[1]
    if "," in number:
        if _THOUSANDS.fullmatch(number):
            number = number.replace(",", "")
        elif _DOTTED_THOUSANDS.fullmatch(number):
            number = number.replace(".", "").replace(",", ".")
        else:
            number = number.replace(",", ".")
    try:
        return bounded_ms(float(number) * _UNITS[match[2]])
    except ValueError:
        return None


def bounded_ms(value: float) -> int | None:
    """Whole milliseconds; None for what no test can take."""
    return round(value) if 0 <= value <= MAX_DURATION_MS else None


def count(text: str | None) -> int | None:
    """A count from an attribute, between 0 and `MAX_COUNT`; None where it is none."""
    if not text:
        return None
    digits = text.strip().replace(",", "")
    if not digits.isascii() or not digits.isdigit():
        return None
    return int(digits) if len(digits) < 10 else MAX_COUNT


class Memo(dict[str, Value]):
    """A function's results for short texts: reports repeat the same few numbers hundreds of thousands of times."""

    def __init__(self, function: Callable[[str], Value]) -> None:
        super().__init__()
        self._function = function

    def __missing__(self, text: str) -> Value:
        value = self._function(text)
        if len(text) <= _MEMO_CHARACTERS and len(self) < _MEMO_ENTRIES:
            self[text] = value
        return value


def clean_name(text: str | None) -> str:
    """A name without the space around it and without control characters.

    A long name is cut and ends with a hash, so that it differs from other names with the same beginning.
    """
    if not text:
        return ""
    text = text.strip()
    if len(text) <= MAX_NAME_CHARACTERS and text.isprintable():  # nearly all are
        return text
    text = _UNPRINTABLE.sub("\ufffd", text)
    if len(text) <= MAX_NAME_CHARACTERS:
        return text
    digest = hashlib.blake2b(text.encode("utf-8", "replace"), digest_size=4).hexdigest()
    return f"{text[: MAX_NAME_CHARACTERS - 10]}… {digest}"


def without_colours(text: str) -> str:
    """The text without the escape sequences by which a terminal changes colours."""
    return _COLOURS.sub("", text) if "\x1b" in text else text


def shorten(text: str | None, max_characters: int = MAX_MESSAGE_CHARACTERS) -> str | None:
    """A text of at most so many characters; None for a blank one."""
    if not text or not (text := text.strip()):
        return None
    return text if len(text) <= max_characters else text[: max_characters - 1] + "…"


CUT_MARK = "\n… cut: "
"""Ends a text that was cut, with the number of characters that are missing."""

_CUT_MARK_BYTES = 80


class Text:
    """A text that is read in pieces, of which at most `limit` bytes are kept: its beginning.

    `dropped` is the number of characters that were not kept.
    """

    __slots__ = ("_limit", "_pieces", "_room", "dropped")

    def __init__(self, limit: int) -> None:
        self._pieces: list[str] = []
        self._limit = limit
        self._room = limit
        self.dropped = 0

    def add(self, piece: str) -> None:
        room = self._room
        if len(piece) > room:
            self.dropped += len(piece) - room
            piece = piece[:room]
        if piece:
            self._pieces.append(piece)
            self._room = max(0, room - (len(piece) if piece.isascii() else len(piece.encode("utf-8", "replace"))))

    @property
    def size(self) -> int:
        """The number of bytes that it holds."""
        return self._limit - self._room

    @property
    def joined(self) -> str:
        """What was kept, as it is."""
        return "".join(self._pieces)

    @property
    def value(self) -> str | None:
        """The text without the space around it, with a mark where it was cut; None for a blank one."""
        text = self.joined
        data = text.encode("utf-8", "replace")
        if len(data) <= self._limit and not self.dropped:
            return text.strip() or None
        kept = data[: max(0, self._limit - _CUT_MARK_BYTES)].decode("utf-8", "ignore")
        return f"{kept}{CUT_MARK}{len(text) - len(kept) + self.dropped} characters"
