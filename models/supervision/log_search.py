"""Searches a log file. This runs in a worker process: an expression may take any time."""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Callable, Iterator
from pathlib import Path

from models.errors import Invalid

MAX_FOUND = 1000
"""So many of the newest matches are returned with their places."""
_READ_BYTES = 1024 * 1024
_MAX_LINE_BYTES = 64 * 1024
_LEVEL_CHARACTERS = 300
_SYSLOG = re.compile(r"<([0-7])>")
_SYSLOG_LEVELS = (0, 0, 0, 0, 1, 2, 2, 3)
_LEVELS = {
    **dict.fromkeys(("emerg", "alert", "crit", "critical", "fatal", "panic", "err", "error", "severe"), 0),
    **dict.fromkeys(("warn", "warning"), 1),
    **dict.fromkeys(("notice", "info"), 2),
    **dict.fromkeys(("debug", "trace"), 3),
}
_LEVEL_WORD = re.compile(
    r"(?:\blevel[\"']?\s*[=:]\s*[\"']?|^\W{0,40}|\s|\[)"
    r"(emerg|alert|crit(?:ical)?|fatal|panic|err(?:or)?|severe|warn(?:ing)?|notice|info|debug|trace)\b",
    re.IGNORECASE | re.ASCII,
)
_ESCAPES = re.compile("\x1b(?:\\[[0-?]*[ -/]*[@-~]|[\\]PX^_][^\x07\x1b]*(?:\x07|\x1b\\\\)?|[ -/]*[0-~]?)")


def search(path: str, end: int, text: str, is_expression: bool, level: int) -> dict[str, object]:
    """Finds the lines of the first `end` bytes of a file that contain `text`, in any case, or match it as expression.

    `level` 0 to 3 selects lines of this level and worse ones; a line without one has that of the line before. Returns
    `lines` and `matches` as numbers, and the newest matches as `found`: their offsets and lengths in bytes, in order.
    Raises `Invalid`.
    """
    matches_text = _matcher(text, is_expression)
    found: deque[tuple[int, int]] = deque(maxlen=MAX_FOUND)
    lines = matches = 0
    last_level = -1
    for at, length, line in _lines(path, end):
        lines += 1
        if level < 3:
            own = level_of(line)
            last_level = own if own >= 0 else last_level
            if not 0 <= last_level <= level:
                continue
        if matches_text(line):
            matches += 1
            found.append((at, length))
    return {"lines": lines, "matches": matches, "found": list(found)}


def level_of(line: str) -> int:
    """The level of a line as the log viewer finds it: 0 (error) to 3 (debug), -1 for none."""
    if priority := _SYSLOG.match(line):
        return _SYSLOG_LEVELS[int(priority[1])]
    word = _LEVEL_WORD.search(line[:_LEVEL_CHARACTERS])
    return _LEVELS[word[1].lower()] if word else -1


def _matcher(text: str, is_expression: bool) -> Callable[[str], object]:
    """Raises `Invalid`."""
    try:
        return re.compile(text if is_expression else re.escape(text), re.IGNORECASE).search
    except (re.error, RecursionError, OverflowError) as error:
        raise Invalid(f"q is not a regular expression: {error}") from None


def _lines(path: str, end: int) -> Iterator[tuple[int, int, str]]:
    """The offset of each line, its length with its end, and its text without escape sequences."""
    at, rest = 0, b""
    with Path(path).open("rb", buffering=0) as file:
        while at + len(rest) < end and (piece := file.read(min(_READ_BYTES, end - at - len(rest)))):
            *whole, rest = (rest + piece).split(b"\n")
            for line in whole:
                yield at, len(line) + 1, _text(line)
                at += len(line) + 1
            if len(rest) > _READ_BYTES:  # a line without an end
                yield at, len(rest), _text(rest)
                at, rest = at + len(rest), b""
    if rest:
        yield at, len(rest), _text(rest)


def _text(line: bytes) -> str:
    text = line[:_MAX_LINE_BYTES].decode("utf-8", "replace").replace("\r", "")
    return _ESCAPES.sub("", text) if "\x1b" in text else text
