"""JSON read as a stream of values with their places, within limits: the document is never in memory as a whole."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from decimal import Decimal
from typing import Any

from models.tracker.reports.base import BadReport, Limits

Place = tuple[str, ...]
"""The keys that lead to a value; an item of an array is `[]`."""

MAX_TEXT_BYTES = 16 * 1024 * 1024
"""The longest text. The parser holds a text as a whole."""

MAX_NODES = 1_000_000
"""The most values of a document, objects and arrays included."""

MAX_COVERAGE_NODES = 10 * MAX_NODES
"""Istanbul writes ten values for a statement."""

ITEM = "[]"
OPENED = object()
CLOSED = object()
_NO_NODES = ("map_key", "end_map", "end_array")


class _LineFile:
    """An iterable of bytes as the file that ijson reads: by lines, so that an error has its line."""

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
        if self.unread > MAX_TEXT_BYTES:
            raise BadReport(f"a text is longer than {MAX_TEXT_BYTES} bytes", self.line)
        return line


def json_values(pieces: Iterable[bytes], limits: Limits, max_nodes: int = MAX_NODES) -> Iterator[tuple[Place, Any]]:
    """Yields every value with its place; objects as `OPENED` and `CLOSED`, arrays only as their items.

    Raises BadReport.
    """
    import ijson  # type: ignore[import-untyped] # loaded only for reports that need it

    keys: list[str] = []
    nodes = 0
    file = _LineFile(pieces)
    try:
        for event, value in ijson.basic_parse(file):
            file.unread = 0
            nodes += event not in _NO_NODES
            if nodes > max_nodes:
                raise BadReport(f"it has more than {max_nodes} values", file.line)
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
        raise BadReport(f"this is not well-formed JSON: {_reason(error)}", file.line) from error


def _reason(error: Exception) -> str:
    """The first line of the parser's message; the others show the text around."""
    message = error.args[0] if error.args else ""
    message = message.decode("utf-8", "replace") if isinstance(message, bytes) else str(message)
    return " ".join(message.split("\n")[0].split())[:200]


def number(value: object) -> float | None:
    """A finite number, or None."""
    if isinstance(value, bool) or not isinstance(value, int | float | Decimal):
        return None
    return float(value) if -1e18 < value < 1e18 else None


def count(value: object, maximum: int) -> int | None:
    """A count, cut to `maximum`, or None."""
    amount = number(value)
    return None if amount is None or amount < 0 else min(int(amount), maximum)


def text(value: object) -> str | None:
    return value if isinstance(value, str) else None
