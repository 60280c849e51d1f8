"""Output for people: columns, durations, colours, and text of processes with escaped control characters."""

from __future__ import annotations

import json
import os
import re
import sys
import time
from collections.abc import Sequence
from typing import Any

WIDTH = 80
"""Of the lines for people, where names leave room."""
UP = frozenset({"running", "healthy", "unhealthy"})
ENDED = frozenset({"finished", "unknown", "failed", "failed_to_start", "stopped", "aborted"})
_COLOURS = {
    **dict.fromkeys(("running", "healthy", "finished"), "32"),
    **dict.fromkeys(("starting", "stopping", "unhealthy"), "33"),
    **dict.fromkeys(("failed", "failed_to_start", "aborted", "unknown"), "31"),
}
_DAY_SECONDS = 86400
_SGR = re.compile(r"(\x1b\[[0-9;:]*m)")


def wants_colour(choice: str) -> bool:
    """`auto`: where standard output is a terminal that is not `dumb`, and NO_COLOR is not set."""
    is_plain = os.environ.get("NO_COLOR") or is_dumb()
    return choice == "always" or (choice == "auto" and sys.stdout.isatty() and not is_plain)


def is_dumb() -> bool:
    """Whether the terminal has no escape sequences, such as that of an editor."""
    return os.environ.get("TERM") == "dumb"


def json_text(value: Any) -> str:
    """JSON on one line; beyond UTF-8 in ASCII, as other escapes are not valid in it."""
    is_unicode = (sys.stdout.encoding or "").lower().replace("-", "") == "utf8"
    return json.dumps(value, ensure_ascii=not is_unicode)


def coloured(status: str, width: int, colour: bool) -> str:
    """A status, padded to a width."""
    code = _COLOURS.get(status)
    padded = status.ljust(width)
    return f"\x1b[{code}m{padded}\x1b[0m" if colour and code else padded


def columns(rows: Sequence[Sequence[str]]) -> list[str]:
    """The rows as lines, each column as wide as its widest cell."""
    widths = [max(map(len, cells)) for cells in zip(*rows, strict=True)]
    lines = ("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) for row in rows)
    return [line.rstrip() for line in lines]


def hanging(head: str, names: Sequence[str]) -> list[str]:
    """The names with commas behind `head`, those of further lines below the first one."""
    indent = min(len(head) + 2, WIDTH // 2)
    lines = [head + "  "]
    for place, name in enumerate(names):
        word = name + ("," if place < len(names) - 1 else "")
        if len(lines[-1]) + len(word) > WIDTH and len(lines[-1]) > indent:
            lines.append(" " * indent)
        lines[-1] += f"{word} "
    return [line.rstrip() for line in lines]


def plain(text: str) -> str:
    """Text on one line without control characters: names and messages are untrusted."""
    return "".join(letter if letter.isprintable() else ascii(letter)[1:-1] for letter in text)


def shown_log(line: str) -> str:
    """A line of a log for a terminal: colours stay, all other control characters are escaped."""
    parts = _SGR.split(line)
    kept = (part if place % 2 else _without_controls(part) for place, part in enumerate(parts))
    return "".join(kept) + ("\x1b[0m" if len(parts) > 1 else "")


def _without_controls(text: str) -> str:
    return "".join(letter if letter.isprintable() or letter == "\t" else ascii(letter)[1:-1] for letter in text)


def duration(seconds: float) -> str:
    """`3d 4h`, `2h 5m`, `3m 12s`, `12s`."""
    whole = max(0, int(seconds))
    parts = [(whole // 86400, "d"), (whole // 3600 % 24, "h"), (whole // 60 % 60, "m"), (whole % 60, "s")]
    first = next((place for place, (number, _) in enumerate(parts) if number), len(parts) - 1)
    return " ".join(f"{number}{unit}" for number, unit in parts[first : first + 2])


def moment(at: float, now: float) -> str:
    """Local time, with the date where it is a day or more away: `14:02`, `2026-11-20 14:02`."""
    return time.strftime("%H:%M" if abs(at - now) < _DAY_SECONDS else "%Y-%m-%d %H:%M", time.localtime(at))


def rough(seconds: float) -> str:
    """The largest unit of a length of time: `2 d`, `5 h`, `3 m`, `12 s`."""
    whole = max(0, int(seconds))
    for length, unit in ((86400, "d"), (3600, "h"), (60, "m")):
        if whole >= length:
            return f"{whole // length} {unit}"
    return f"{whole} s"


def size(count: int | None) -> str:
    """`12.3 MB` of a number of bytes; nothing of none."""
    if count is None:
        return ""
    amount = float(count)
    for unit in ("B", "KB", "MB", "GB"):
        if amount < 1024 or unit == "GB":
            break
        amount /= 1024
    return f"{amount:.0f} {unit}" if unit == "B" else f"{amount:.1f} {unit}"


def instant(text: str | None) -> float | None:
    """Seconds since 1970 of a time in RFC 3339."""
    if not text:
        return None
    from datetime import datetime

    return datetime.fromisoformat(text).timestamp()
