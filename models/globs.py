"""Patterns in which only `*` is special: it is any text, line breaks included."""

from __future__ import annotations


def matches(pattern: str, text: str) -> bool:
    """Whether a pattern fits all of a text. It is searched once, piece by piece: a pattern comes from a caller."""
    first, *rest = pattern.split("*")
    if not rest:
        return text == pattern
    *pieces, last = rest
    at, end = len(first), len(text) - len(last)
    if at > end or not text.startswith(first) or not text.endswith(last):
        return False
    for piece in pieces:
        found = text.find(piece, at, end)
        if found < 0:
            return False
        at = found + len(piece)
    return True
