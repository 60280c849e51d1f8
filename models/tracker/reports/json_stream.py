"""JSON as a stream of values with their places, within bounds: a report of any size never stands in memory."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from decimal import Decimal
from typing import Any

from models.tracker.reports.base import BadReport, Limits

Place = tuple[str, ...]
"""The keys that lead to a value; an item of an array is `[]`."""

TEXT = 16 * 1024 * 1024
"""The longest text, which the parser holds whole."""

ITEM = "[]"
OPENED = object()
CLOSED = object()


class _Lines:
    """An iterable of bytes as the file that ijson reads: by lines, so that a fault can be told with its line."""

    def __init__(self, pieces: Iterable[bytes]) -> None:
        self._lines = (line for piece in pieces for line in piece.splitlines(keepends=True))
        self._next = 1
        self.line = 1
        self.unread = 0
        """Bytes since the last value."""

    def read(self, size: int = -1) -> bytes:
        if size == 0:
            return b""
        self.line = self._next
        line = next(self._lines, b"")
        self._next += line.endswith(b"\n")
        self.unread += len(line)
        if self.unread > TEXT:
            raise BadReport(f"a text is longer than {TEXT} bytes", self.line)
        return line


def values(pieces: Iterable[bytes], limits: Limits) -> Iterator[tuple[Place, Any]]:
    """Every value with its place; objects as `OPENED` and `CLOSED`, arrays only as their items. Raises BadReport."""
    import ijson  # type: ignore[import-untyped] # only who sends such a report pays for it

    keys: list[str] = []
    file = _Lines(pieces)
    try:
        for event, value in ijson.basic_parse(file):
            file.unread = 0
            if event == "map_key":
                keys[-1] = value[:4096]
            elif event in ("end_map", "end_array"):
                keys.pop()
                if event == "end_map":
                    yield tuple(keys), CLOSED
            elif event in ("start_map", "start_array"):
                if len(keys) >= limits.depth:
                    raise BadReport(f"its values are nested more than {limits.depth} deep", file.line)
                if event == "start_map":
                    yield tuple(keys), OPENED
                keys.append(ITEM if event == "start_array" else "")
            else:
                yield tuple(keys), value
    except (ijson.JSONError, ValueError, OverflowError) as error:
        raise BadReport(f"this is not well-formed JSON: {_told(error)}", file.line) from error


def _told(error: Exception) -> str:
    """The parser's first line; the others show the text around, which is no use to a reader of the answer."""
    words = error.args[0] if error.args else ""
    words = words.decode("utf-8", "replace") if isinstance(words, bytes) else str(words)
    return " ".join(words.split("\n")[0].split())[:200]


def number(value: object) -> float | None:
    """A finite number, or None."""
    if isinstance(value, bool) or not isinstance(value, int | float | Decimal):
        return None
    return float(value) if -1e18 < value < 1e18 else None


def whole(value: object, most: int) -> int | None:
    """A count, cut to `most`, or None."""
    found = number(value)
    return None if found is None or found < 0 else min(int(found), most)


def text(value: object) -> str | None:
    return value if isinstance(value, str) else None
