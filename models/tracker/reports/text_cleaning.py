"""Numbers and texts of reports: bounded, and never refused."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable
from typing import TypeVar

Value = TypeVar("Value")

NAME = 512
MESSAGE = 2000
LONGEST_MS = 10**11
"""Three years. A test that says that it took longer tells nonsense."""

MOST = 10**9
"""No report has more of anything; a count that says so is cut to it."""

_SHORT, _MANY = 12, 4096

_UNKNOWN = re.compile("[\\x00-\\x08\\x0b\\x0c\\x0e-\\x1f\\ud800-\\udfff]")
"""What XML cannot hold, and JSON can."""

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
    found = _NUMBER.fullmatch(text.lower())
    if not found or found[2] not in _UNITS:
        return None
    number = found[1]
    if "," in number:
        if _THOUSANDS.fullmatch(number):
            number = number.replace(",", "")
        elif _DOTTED_THOUSANDS.fullmatch(number):
            number = number.replace(".", "").replace(",", ".")
        else:
            number = number.replace(",", ".")
    try:
        return bounded_ms(float(number) * _UNITS[found[2]])
    except ValueError:
        return None


def bounded_ms(value: float) -> int | None:
    """Whole milliseconds; None for what no test can take."""
    return round(value) if 0 <= value <= LONGEST_MS else None


def count(text: str | None) -> int | None:
    """A count from an attribute, between 0 and `MOST`; None where it is none."""
    if not text:
        return None
    digits = text.strip().replace(",", "")
    if not digits.isascii() or not digits.isdigit():
        return None
    return int(digits) if len(digits) < 10 else MOST


class Remembered(dict[str, Value]):
    """What a function makes of short texts: reports have the same few numbers hundreds of thousands of times."""

    def __init__(self, make: Callable[[str], Value]) -> None:
        super().__init__()
        self._make = make

    def __missing__(self, text: str) -> Value:
        value = self._make(text)
        if len(text) <= _SHORT and len(self) < _MANY:
            self[text] = value
        return value


def name_of(text: str | None) -> str:
    """A name without the space around it and without control characters.

    A long one is cut, and stays different from others with that beginning.
    """
    if not text:
        return ""
    text = text.strip()
    if len(text) <= NAME and text.isprintable():  # nearly all are
        return text
    text = _UNKNOWN.sub("\ufffd", text)
    if len(text) <= NAME:
        return text
    mark = hashlib.blake2b(text.encode("utf-8", "replace"), digest_size=4).hexdigest()
    return f"{text[: NAME - 10]}… {mark}"


def cut(text: str | None, longest: int = MESSAGE) -> str | None:
    """A text of at most so many characters; None for a blank one."""
    if not text or not (text := text.strip()):
        return None
    return text if len(text) <= longest else text[: longest - 1] + "…"


MARK = "\n… cut: "
"""Where a text was cut stands this, and the number of characters that are missing."""

_MARKED = 80


class Text:
    """A text that comes in pieces, of which `limit` bytes are kept at most: its beginning, and a mark of the rest."""

    __slots__ = ("_dropped", "_limit", "_pieces", "_room")

    def __init__(self, limit: int) -> None:
        self._pieces: list[str] = []
        self._limit = limit
        self._room = limit
        self._dropped = 0

    def add(self, piece: str) -> None:
        room = self._room
        if len(piece) > room:
            self._dropped += len(piece) - room
            piece = piece[:room]
        if piece:
            self._pieces.append(piece)
            self._room = max(0, room - (len(piece) if piece.isascii() else len(piece.encode("utf-8", "replace"))))

    def miss(self, piece: str) -> None:
        """Counts a piece for which there is no room elsewhere."""
        self._dropped += len(piece)

    @property
    def size(self) -> int:
        """How many bytes it holds."""
        return self._limit - self._room

    @property
    def value(self) -> str | None:
        """The text without the space around it; None for a blank one."""
        text = "".join(self._pieces)
        data = text.encode("utf-8", "replace")
        if len(data) <= self._limit and not self._dropped:
            return text.strip() or None
        kept = data[: max(0, self._limit - _MARKED)].decode("utf-8", "ignore")
        return f"{kept}{MARK}{len(text) - len(kept) + self._dropped} characters"
