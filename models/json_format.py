"""The conventions of every JSON document: names in camelCase, times by RFC 3339."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def camel_case(name: str) -> str:
    """Returns the JSON name of a Python name."""
    first, *rest = name.split("_")
    return first + "".join(word.title() for word in rest)


def rfc3339(at: int) -> str:
    """Returns `2026-11-20T19:00:00.123456Z` for microseconds since 1970."""
    return (_EPOCH + timedelta(microseconds=at)).isoformat(timespec="microseconds")[:-6] + "Z"
