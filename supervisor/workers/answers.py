"""Reads the answers of `calls.py`, whose process may be under the control of what it has read.

Pieces are parsed one by one, texts are decoded in slices, and the loop runs between them. The value gets the type that
the called function declares; the loop runs between its parts, too.
"""

from __future__ import annotations

import asyncio
import codecs
import functools
import json
import os
import stat
import types
import typing
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, NewType, TypeVar

import attrs

from supervisor.workers.calls import BYTES, LIST, OBJECT, TEXT

_MAX_PIECE_BYTES = 64 * 1024
_SLICE_BYTES = 256 * 1024
"""Of texts and bytes, which cost the loop far less than JSON."""
_VALUES_PER_YIELD = 500


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
            return await _Typed().of(expected, value)
        case {"pieces": value}:
            handle = os.open(file, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
            try:
                return await _Typed().of(expected, await _Reader(handle).whole(value))
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
            return await self._bytes(place) if kind == BYTES else await self._text(place)
        if kind not in (LIST, OBJECT):
            raise BadAnswer("it has an unknown part")
        items: list[Any] = []
        named: dict[str, Any] = {}
        for place in places:
            items.extend(await self._piece(place)) if kind == LIST else named.update(await self._piece(place))
            await asyncio.sleep(0)
        return items if kind == LIST else named

    async def _bytes(self, place: Any) -> bytes:
        return b"".join([part async for part in self._slices(place)])

    async def _text(self, place: Any) -> str:
        decoder = codecs.getincrementaldecoder("utf-8")("surrogatepass")
        parts = [decoder.decode(part) async for part in self._slices(place)]
        return "".join([*parts, decoder.decode(b"", final=True)])

    async def _slices(self, place: Any) -> AsyncIterator[bytes]:
        """What is at a place; the loop runs between the slices."""
        offset, length = self._checked(place)
        for start in range(offset, offset + length, _SLICE_BYTES):
            yield self._read([start, min(_SLICE_BYTES, offset + length - start)])
            if length > _SLICE_BYTES:
                await asyncio.sleep(0)

    async def _piece(self, place: Any) -> list[Any]:
        if self._checked(place)[1] > _MAX_PIECE_BYTES:
            raise BadAnswer("a part is too large")
        data = self._read(place)
        try:
            items = json.loads(data)
        except RecursionError:
            raise BadAnswer("it is nested too deeply") from None
        if not isinstance(items, list):
            raise BadAnswer("a part is no list")
        return await self.whole(items) if b"\\u0000" in data else items

    def _read(self, place: Any) -> bytes:
        offset, length = self._checked(place)
        self._left -= length
        data = os.pread(self._handle, length, offset)
        if len(data) != length:
            raise BadAnswer("a part is not in the file")
        return data

    def _checked(self, place: Any) -> tuple[int, int]:
        """The offset and the length of a place."""
        offset, length = place
        if not (type(offset) is type(length) is int) or not 0 <= length <= self._left or offset < 0:
            raise BadAnswer("a part is not in the file")
        return offset, length


class _Typed:
    """Gives values of JSON the types that are expected. Raises `BadAnswer` for any other value."""

    def __init__(self) -> None:
        self._count = 0

    async def of(self, expected: Any, value: Any) -> Any:
        """A value as the expected type has it; the loop runs after some hundred values."""
        self._count += 1
        if self._count % _VALUES_PER_YIELD == 0:
            await asyncio.sleep(0)
        if expected is Any or isinstance(expected, TypeVar):
            return value
        if isinstance(expected, NewType):
            expected = expected.__supertype__
        if (origin := typing.get_origin(expected)) is not None:
            return await self._generic(origin, typing.get_args(expected), value)
        if expected is Path and isinstance(value, str):
            return Path(value)
        if expected is None or expected is types.NoneType:
            _check(value is None, expected)
            return None
        if isinstance(expected, type) and attrs.has(expected):
            return await self._object(expected, value)
        _check(type(value) is expected or (expected is float and type(value) is int), expected)
        return value

    async def _object(self, expected: Any, value: Any) -> Any:
        fields = attrs.fields(expected)
        _check(isinstance(value, dict) and value.keys() == {field.name for field in fields}, expected)
        hints = _hints(expected)
        return expected(**{field.alias: await self.of(hints[field.name], value[field.name]) for field in fields})

    async def _generic(self, origin: Any, arguments: tuple[Any, ...], value: Any) -> Any:
        if origin is Literal:
            _check(any(type(value) is type(one) and value == one for one in arguments), arguments)
            return value
        if origin in (typing.Union, types.UnionType):
            return await self._one_of(arguments, value)
        if issubclass(origin, Mapping):
            _check(isinstance(value, dict), origin)
            return {
                await self.of(arguments[0], name): await self.of(arguments[1], item) for name, item in value.items()
            }
        _check(isinstance(value, list), origin)
        if origin is tuple and arguments[-1] is not Ellipsis:
            _check(len(value) == len(arguments), origin)
            return tuple([await self.of(one, item) for one, item in zip(arguments, value, strict=True)])
        items = [await self.of(arguments[0], item) for item in value]
        return items if origin in (list, Sequence, Iterable) else origin(items)

    async def _one_of(self, arguments: tuple[Any, ...], value: Any) -> Any:
        for one in arguments:
            try:
                return await self.of(one, value)
            except BadAnswer:
                continue
        raise BadAnswer(f"none of {arguments}")


def _check(is_valid: bool, expected: Any) -> None:
    if not is_valid:
        raise BadAnswer(f"it is not {expected}")
