"""The conventions of every JSON document: names in camelCase, times by RFC 3339; what is read is finite and bounded."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Awaitable, Callable, Mapping
from datetime import UTC, datetime, timedelta
from typing import Any, NewType, TypeVar, dataclass_transform, overload

import attrs

from models.errors import Invalid, TooLarge

Instant = NewType("Instant", int)
"""Microseconds since 1970; in JSON RFC 3339 in UTC with Z."""

ParseJson = Callable[[bytes | str], Awaitable[Any]]
"""Parses JSON of another server, large JSON in a worker process. Raises `Invalid`, and `Problem` where that fails."""

_Class = TypeVar("_Class", bound=type)

SMALL_BODY_BYTES = 64 * 1024
"""The limit of a body whose values are short."""
MAX_STRUCTURE_BYTES = 100_000
"""The most commas, colons, brackets and braces of a document beyond `SMALL_BODY_BYTES`: what parsing costs the loop."""

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_FORBIDDEN_TEXT = re.compile("[\0\ud800-\udfff]")


@overload
def http_message(cls: _Class) -> _Class: ...
@overload
def http_message(*, kw_only: bool) -> Callable[[_Class], _Class]: ...
@dataclass_transform(frozen_default=True, field_specifiers=(attrs.field,))
def http_message(cls: Any = None, *, kw_only: bool = False) -> Any:
    """A class decorator for what is read from or written as JSON: `attrs.frozen` without comparison and repr.

    Nothing compares requests and responses, and the generated methods of their hundred classes take 1 MB.
    """
    decorator = attrs.frozen(eq=False, repr=False, kw_only=kw_only)
    return decorator if cls is None else decorator(cls)


def camel_case(name: str) -> str:
    """Returns the JSON name of a Python name."""
    first, *rest = name.split("_")
    return first + "".join(word.title() for word in rest)


def rfc3339(at: int) -> str:
    """Returns `2026-11-20T19:00:00.123456Z` for microseconds since 1970."""
    return (_EPOCH + timedelta(microseconds=at)).isoformat(timespec="microseconds")[:-6] + "Z"


def read_rfc3339(name: str, text: str, zone_needed: bool = True) -> int:
    """Microseconds since 1970 of a time by RFC 3339, in whose query parameter a `+` may have become a space.

    Without `zone_needed` a time without a zone, or a date, is one in UTC. Raises `Invalid`, which names the parameter,
    also for a time that in UTC is before the year 1 or after 9999: `rfc3339` could not write it.
    """
    try:
        at = datetime.fromisoformat(text.replace(" ", "+") if "T" in text else text)
        if at.tzinfo is None and zone_needed:
            raise Invalid(f"{name} needs a zone, as in 2026-11-22T10:00:00Z")
        at = at if at.tzinfo else at.replace(tzinfo=UTC)
        return (at.astimezone(UTC) - _EPOCH) // timedelta(microseconds=1)
    except (ValueError, OverflowError):
        raise Invalid(f"{name} must be a time by RFC 3339, such as 2026-11-22T10:00:00Z") from None


def check_structure(raw: bytes, what: str = "the body") -> None:
    """Raises `TooLarge` for a document beyond `SMALL_BODY_BYTES` with more than `MAX_STRUCTURE_BYTES` of `,:[{`.

    It counts in strings too, in linear time, and ends where the number is exceeded.
    """
    if len(raw) <= SMALL_BODY_BYTES:
        return
    count = 0
    for start in range(0, len(raw), SMALL_BODY_BYTES):
        count += sum(raw.count(mark, start, start + SMALL_BODY_BYTES) for mark in b",:[{")
        if count > MAX_STRUCTURE_BYTES:
            raise TooLarge(f"{what} has more than {MAX_STRUCTURE_BYTES} commas, colons, brackets and braces")


def json_object(raw: bytes, what: str = "the body") -> dict[str, Any]:
    """Parses a JSON object; no content is an empty object. Raises `Invalid`, and `TooLarge` as `check_structure`."""
    check_structure(raw, what)
    if not raw.strip():
        return {}
    try:
        value = json.loads(raw.decode(), parse_constant=_no_constant, parse_float=_finite)
    except UnicodeDecodeError:
        raise Invalid(f"{what} is not UTF-8") from None
    except json.JSONDecodeError as fault:
        where = f"line {fault.lineno}, column {fault.colno}"
        raise Invalid(f"{what} is not JSON: {fault.msg[:1].lower()}{fault.msg[1:]} ({where})") from None
    except RecursionError:
        raise Invalid(f"{what} is nested too deeply") from None
    except ValueError:
        raise Invalid(f"{what} has a number that is not finite or too large") from None
    if not isinstance(value, dict):
        raise Invalid(f"{what} must be a JSON object")
    check_text(value)
    return value


def json_value(raw: bytes | str) -> Any:
    """Parses JSON of another server. Raises `Invalid`."""
    try:
        return json.loads(raw)
    except (ValueError, RecursionError):
        raise Invalid("it is not JSON") from None


def _no_constant(name: str) -> float:
    raise ValueError(name)


def _finite(text: str) -> float:
    number = float(text)
    if math.isinf(number):
        raise ValueError(text)
    return number


def check_text(value: Any) -> None:
    """Raises `Invalid` for a NUL or a lone surrogate in any string of a JSON value, and for nesting deeper than 100."""
    waiting: list[tuple[Any, str, int]] = [(value, "", 0)]
    while waiting:
        child, name, depth = waiting.pop()
        if depth > 100:
            raise Invalid(f"{name or 'the body'}: is nested too deeply")
        if isinstance(child, str) and _FORBIDDEN_TEXT.search(child):
            raise Invalid(f"{name or 'the body'}: must not contain a NUL or a lone surrogate")
        if isinstance(child, dict):
            for key, item in child.items():
                top = name or str(key)
                safe = top.encode("ascii", "backslashreplace").decode().replace("\0", "\\0")
                waiting += [(key, safe, depth + 1), (item, safe, depth + 1)]
        elif isinstance(child, list):
            waiting += [(child, name, depth + 1) for child in child]


def part_of(value: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    """The object of that name; empty where there is none."""
    part = value.get(name)
    return part if isinstance(part, dict) else {}


def list_of(value: Mapping[str, Any], name: str) -> list[Any]:
    """The list of that name; empty where there is none."""
    items = value.get(name)
    return items if isinstance(items, list) else []


def text_of(value: Mapping[str, Any], name: str) -> str:
    """The text of that name; empty where there is none."""
    text = value.get(name)
    return text if isinstance(text, str) else ""


def number_of(value: Mapping[str, Any], name: str, default: int = 0) -> int:
    """The whole number of that name."""
    number = value.get(name)
    return number if isinstance(number, int) else default
