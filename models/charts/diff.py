"""The difference between two texts, line by line, within bounds."""

from __future__ import annotations

import difflib
from itertools import islice

from attrs import frozen

MAX_LINES = 20_000
"""Lines of both texts together, without their common start and end."""
MAX_SHOWN_LINES = 4000
_CONTEXT_LINES = 3


@frozen
class Line:
    """A line of a difference; `kind` is add, del, hunk or empty."""

    kind: str
    text: str


@frozen
class Difference:
    lines: tuple[Line, ...]
    added: int = 0
    removed: int = 0
    is_cut: bool = False
    """Whether lines are missing, or the texts were too large to compare."""


def difference(old: str, new: str) -> Difference:
    """The difference as `diff -u` shows it. CPU-bound: call it in a worker."""
    before, after = old.splitlines(), new.splitlines()
    if before == after:
        return Difference(())
    start, end = _shared(before, after)
    first, last = max(0, start - _CONTEXT_LINES), max(0, end - _CONTEXT_LINES)
    before, after = before[first : len(before) - last], after[first : len(after) - last]
    if len(before) + len(after) > MAX_LINES:
        return Difference((), is_cut=True)
    output = list(islice(difflib.unified_diff(before, after, n=_CONTEXT_LINES, lineterm=""), 2, None))
    lines = tuple(_line(text, first) for text in output[:MAX_SHOWN_LINES])
    added, removed = (sum(text.startswith(sign) for text in output) for sign in "+-")
    return Difference(lines, added, removed, len(output) > MAX_SHOWN_LINES)


def _shared(before: list[str], after: list[str]) -> tuple[int, int]:
    """The number of common lines at the start and at the end."""
    limit, start = min(len(before), len(after)), 0
    while start < limit and before[start] == after[start]:
        start += 1
    end = 0
    while end < limit - start and before[-1 - end] == after[-1 - end]:
        end += 1
    return start, end


def _line(text: str, first: int) -> Line:
    if text.startswith("@@"):
        return Line("hunk", _moved(text, first))
    return Line({"+": "add", "-": "del"}.get(text[:1], ""), text)


def _moved(text: str, first: int) -> str:
    """A hunk heading with its line numbers counted from the start of the whole texts."""
    parts = []
    for word in text.strip("@ ").split():
        number, comma, count = word[1:].partition(",")
        parts.append(f"{word[0]}{int(number) + first}{comma}{count}")
    return f"@@ {' '.join(parts)} @@"
