"""What is different between two texts, line by line, within bounds."""

from __future__ import annotations

import difflib
from itertools import islice

from attrs import frozen

MOST_LINES = 20_000
"""Lines of both texts together, beyond those that they share at their ends."""
SHOWN = 4000
_AROUND = 3


@frozen
class Line:
    """A line of a comparison with its sign: `kind` is add, del, hunk or nothing."""

    kind: str
    text: str


@frozen
class Difference:
    lines: tuple[Line, ...]
    added: int = 0
    removed: int = 0
    is_cut: bool = False
    """Whether there is more than these lines, or too much to be compared at all."""


def difference(old: str, new: str) -> Difference:
    """As `diff -u` shows it. Slow where much is different: for a worker."""
    before, after = old.splitlines(), new.splitlines()
    if before == after:
        return Difference(())
    start, end = _shared(before, after)
    first, last = max(0, start - _AROUND), max(0, end - _AROUND)
    before, after = before[first : len(before) - last], after[first : len(after) - last]
    if len(before) + len(after) > MOST_LINES:
        return Difference((), is_cut=True)
    told = list(islice(difflib.unified_diff(before, after, n=_AROUND, lineterm=""), 2, None))
    lines = tuple(_line(text, first) for text in told[:SHOWN])
    added, removed = (sum(text.startswith(sign) for text in told) for sign in "+-")
    return Difference(lines, added, removed, len(told) > SHOWN)


def _shared(before: list[str], after: list[str]) -> tuple[int, int]:
    """How many lines both have in common at the start, and then at the end."""
    most, start = min(len(before), len(after)), 0
    while start < most and before[start] == after[start]:
        start += 1
    end = 0
    while end < most - start and before[-1 - end] == after[-1 - end]:
        end += 1
    return start, end


def _line(text: str, first: int) -> Line:
    if text.startswith("@@"):
        return Line("hunk", _moved(text, first))
    return Line({"+": "add", "-": "del"}.get(text[:1], ""), text)


def _moved(text: str, first: int) -> str:
    """A heading `@@ -1,3 +1,4 @@`, its lines counted from the start of the whole texts."""
    parts = []
    for word in text.strip("@ ").split():
        number, comma, count = word[1:].partition(",")
        parts.append(f"{word[0]}{int(number) + first}{comma}{count}")
    return f"@@ {' '.join(parts)} @@"
