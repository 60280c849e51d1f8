"""Reads the answers of `calls.py`, whose process may be under the control of what it has read.

Pieces are parsed one by one, and the loop runs between them. The value gets the type that the called function declares.
"""

from __future__ import annotations

import asyncio
import functools
import json
import os
import stat
import types
import typing
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, NewType, TypeVar

import attrs

from supervisor.workers.calls import BYTES, LIST, OBJECT, TEXT

_MAX_PIECE_BYTES = 64 * 1024
_ITEMS_PER_YIELD = 200


class BadAnswer(ValueError):
    """An answer that the called function never gives."""


def result_type(function: Callable[..., Any]) -> Any:
    """What a function declares to return; `Any` where it declares nothing."""
    try:
        return _hints(function).get("return", Any)
    except TypeError:  # a function of C
        return Any


@functools.cache
def _hints(of: Any) -> dict[str, Any]:
    return typing.get_type_hints(of)


async def read(expected: Any, answer: Any, file: Path) -> Any:
    """The value in an answer. Raises `BadAnswer`, `OSError`."""
    match answer:
        case {"whole": value}:
            return typed(expected, value)
        case {"pieces": value}:
            handle = os.open(file, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
            try:
                return await _typed_in_pieces(expected, await _Reader(handle).whole(value))
            finally:
                os.close(handle)
    raise BadAnswer("it is neither whole nor in pieces")


class _Reader:
    """Puts the pieces of a file together. All that is read is at most the size of the file."""

    def __init__(self, handle: int) -> None:
        found = os.fstat(handle)
        if not stat.S_ISREG(found.st_mode):
            raise BadAnswer("it is in no file")
        self._handle = handle
        self._left = found.st_size

    async def whole(self, value: Any) -> Any:
        """A value with all of its parts."""
        if isinstance(value, list):
            return [await self.whole(item) for item in value]
        if not isinstance(value, dict):
            return value
        kind = next(iter(value)) if len(value) == 1 else ""
        if not kind.startswith("\0"):
            return {name: await self.whole(item) for name, item in value.items()}
        places = value[kind]
        if kind in (TEXT, BYTES):
            (place,) = places
            data = self._read(place)
            return data if kind == BYTES else data.decode("utf-8", "surrogatepass")
        items: list[Any] = []
        for place in places:
            items += await self._piece(place)
            await asyncio.sleep(0)
        if kind == OBJECT:
            return dict(items)
        if kind != LIST:
            raise BadAnswer("it has an unknown part")
        return items

    async def _piece(self, place: Any) -> list[Any]:
        data = self._read(place, _MAX_PIECE_BYTES)
        try:
            items = json.loads(data)
        except RecursionError:
            raise BadAnswer("it is nested too deeply") from None
        if not isinstance(items, list):
            raise BadAnswer("a part is no list")
        return await self.whole(items) if b"\\u0000" in data else items

    def _read(self, place: Any, most: int | None = None) -> bytes:
        offset, length = place
        if not (type(offset) is type(length) is int) or not 0 <= length <= self._left or offset < 0:
            raise BadAnswer("a part is not in the file")
        if most is not None and length > most:
            raise BadAnswer("a part is too large")
        self._left -= length
        data = os.pread(self._handle, length, offset)
        if len(data) != length:
            raise BadAnswer("a part is not in the file")
        return data


async def _typed_in_pieces(expected: Any, value: Any) -> Any:
    """As `typed`; the loop runs between the items of long lists."""
    origin, arguments = typing.get_origin(expected), typing.get_args(expected)
    if origin is list and isinstance(value, list):
        items: list[Any] = []
        for start in range(0, len(value), _ITEMS_PER_YIELD):
            items += [typed(arguments[0], item) for item in value[start : start + _ITEMS_PER_YIELD]]
            await asyncio.sleep(0)
        return items
    return typed(expected, value)


def typed(expected: Any, value: Any) -> Any:
    """A value of JSON as the expected type has it. Raises `BadAnswer` for any other."""
    if expected is Any or isinstance(expected, TypeVar):
        return value
    if isinstance(expected, NewType):
        expected = expected.__supertype__
    if (origin := typing.get_origin(expected)) is not None:
        return _typed_generic(origin, typing.get_args(expected), value)
    if expected is Path and isinstance(value, str):
        return Path(value)
    if expected is None or expected is types.NoneType:
        _check(value is None, expected)
        return None
    if isinstance(expected, type) and attrs.has(expected):
        return _typed_object(expected, value)
    _check(type(value) is expected or (expected is float and type(value) is int), expected)
    return value


def _typed_object(expected: Any, value: Any) -> Any:
    fields = attrs.fields(expected)
    _check(isinstance(value, dict) and value.keys() == {field.name for field in fields}, expected)
    hints = _hints(expected)
    return expected(**{field.alias: typed(hints[field.name], value[field.name]) for field in fields})


def _typed_generic(origin: Any, arguments: tuple[Any, ...], value: Any) -> Any:
    if origin is Literal:
        _check(any(type(value) is type(one) and value == one for one in arguments), arguments)
        return value
    if origin in (typing.Union, types.UnionType):
        for one in arguments:
            try:
                return typed(one, value)
            except BadAnswer:
                continue
        raise BadAnswer(f"none of {arguments}")
    if issubclass(origin, Mapping):
        _check(isinstance(value, dict), origin)
        return {typed(arguments[0], name): typed(arguments[1], item) for name, item in value.items()}
    _check(isinstance(value, list), origin)
    if origin is tuple and arguments[-1] is not Ellipsis:
        _check(len(value) == len(arguments), origin)
        return tuple(map(typed, arguments, value))
    items: Iterator[Any] = (typed(arguments[0], item) for item in value)
    return list(items) if origin in (Sequence, Iterable) else origin(items)


def _check(is_valid: bool, expected: Any) -> None:
    if not is_valid:
        raise BadAnswer(f"it is not {expected}")
