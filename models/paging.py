"""Pages of a listing, and cursors."""

from __future__ import annotations

import json
import re
from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections.abc import Callable, Sequence
from typing import Any, Generic, TypeVar

from attrs import frozen

from models.errors import Invalid

Item = TypeVar("Item")

INT32 = 2**31 - 1
INT64 = 2**63 - 1
MAX_PAGE_SIZE = 100

_WHOLE = re.compile(r"[+-]?[0-9]+")


@frozen
class Paging:
    """A requested page. `number` counts from 0, `sort` is a column; ties are broken by id in the same direction."""

    number: int = 0
    size: int = 20
    sort: str = "event_time"
    descending: bool = True

    @property
    def offset(self) -> int:
        return self.number * self.size


@frozen
class Page(Generic[Item]):
    """One page of a listing of `total` items."""

    content: Sequence[Item]
    total: int
    paging: Paging

    @property
    def pages(self) -> int:
        return -(-self.total // self.paging.size)


def whole(name: str, text: str, least: int, most: int) -> int:
    """Returns `text` as a whole number from `least` to `most`. Raises `Invalid`, which names the parameter."""
    if len(text) > 32 or not _WHOLE.fullmatch(text):
        raise Invalid(f"{name} must be a whole number")
    number = int(text)
    if not least <= number <= most:
        bounds = f"{least} or more" if most in (INT32, INT64) and number < least else f"between {least} and {most}"
        raise Invalid(f"{name} must be {bounds}")
    return number


def encode_cursor(*key: str | int) -> str:
    """The place of an item in a list, as text that clients do not read."""
    return urlsafe_b64encode(json.dumps(key, separators=(",", ":")).encode()).decode().rstrip("=")


def decode_cursor(cursor: str, *kinds: type) -> tuple[Any, ...]:
    """The place that `encode_cursor` was given, with values of these types. Raises `Invalid`."""
    try:
        key = json.loads(urlsafe_b64decode(cursor + "=" * (-len(cursor) % 4)))
    except (ValueError, RecursionError):
        key = None
    if not isinstance(key, list) or [type(value) for value in key] != list(kinds):
        raise Invalid("cursor is not one of this list")
    if not all(map(_is_storable, key)):
        raise Invalid("cursor is not one of this list")
    return tuple(key)


def cut(
    rows: Sequence[Item], limit: int, place: Callable[[Item], tuple[str | int, ...]]
) -> tuple[Sequence[Item], str | None]:
    """The first `limit` of rows of which one more was read, and the cursor of the next page."""
    return rows[:limit], encode_cursor(*place(rows[limit - 1])) if len(rows) > limit else None


def page_after(
    cursor: str | None, rows: Sequence[Item], limit: int, place: Callable[[Item], tuple[str | int, ...]], *kinds: type
) -> tuple[Sequence[Item], str | None]:
    """The page after the cursor of a list in memory, which is sorted by `place`, and the next cursor. Raises `Invalid`.

    `kinds` are the types of a place.
    """
    if cursor is not None:
        after = decode_cursor(cursor, *kinds)
        rows = [row for row in rows if place(row) > after]
    return cut(rows, limit, place)


def _is_storable(value: str | int) -> bool:
    if isinstance(value, int):
        return -INT64 <= value <= INT64
    return "\0" not in value and value.encode("utf-8", "ignore").decode() == value  # JSON may have half a character
