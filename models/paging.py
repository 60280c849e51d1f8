"""Pages of a listing: what a caller may ask for, and what he gets."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from typing import Generic, TypeVar

from attrs import frozen

from models.errors import Invalid

Item = TypeVar("Item")

INT32 = 2**31 - 1
INT64 = 2**63 - 1
LARGEST = 100

_WHOLE = re.compile(r"[+-]?[0-9]+")


@frozen
class Paging:
    """One page asked for: `number` counts from 0, `sort` is a public field name; ties are broken by id the same way."""

    number: int = 0
    size: int = 20
    sort: str = "eventTime"
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
    """`text` as a whole number within its stated width and bounds.

    Raises `Invalid`, which names the parameter.
    """
    if len(text) > 32 or not _WHOLE.fullmatch(text):
        raise Invalid(f"{name} must be a whole number")
    number = int(text)
    if not least <= number <= most:
        bounds = f"{least} or more" if most in (INT32, INT64) and number < least else f"between {least} and {most}"
        raise Invalid(f"{name} must be {bounds}")
    return number


def paging(query: Mapping[str, str], sorts: Collection[str], clamp: bool = False) -> Paging:
    """The page that `query` asks for: `page`, `size`, `sortBy`, `sortDirection`; an empty value counts as absent.

    `sorts` are the names to sort by; `clamp` lowers a size above 100 to 100 instead of refusing it (supervision.md,
    Paging: by-status and by-process). Raises `Invalid`.
    """
    asked = {name: value for name, value in query.items() if value}
    size = whole("size", asked.get("size", "20"), 1, INT32 if clamp else LARGEST)
    sort, direction = asked.get("sortBy", "eventTime"), asked.get("sortDirection", "desc").lower()
    if sort not in sorts:
        raise Invalid(f"sortBy must be one of {', '.join(sorts)}")
    if direction not in ("asc", "desc"):
        raise Invalid("sortDirection must be asc or desc")
    number = whole("page", asked.get("page", "0"), 0, INT32)
    return Paging(number, min(size, LARGEST), sort, direction == "desc")
