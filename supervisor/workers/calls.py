"""What a worker process does for `supervisor/charts/workers.py`: calls a function and answers with a value of any size.

The call is a pickle of the server. The answer is JSON: a small one as it is, a larger one in pieces in a file, so that
the server never parses more than a piece at a time.
"""

from __future__ import annotations

import base64
import json
import pickle
from collections.abc import Collection, Iterable, Mapping, Set
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import IO, Any

import attrs

from models.errors import Unprocessable
from supervisor.workers.protocol import Encoded

CALL, ANSWER = "call", "answer"
"""The files of a call in its folder. Each exists only where a call, or an answer, is large."""
TEXT, BYTES, LIST, OBJECT = "\0text", "\0bytes", "\0list", "\0object"
"""The only key of an object that stands for what is in the file: its places, each an offset and a length."""
MAX_WHOLE_BYTES = 48 * 1024
MAX_PIECE_BYTES = 32 * 1024
MAX_DEPTH = 100
"""The server reads an answer with up to six frames of its stack for each level."""
_MAX_TEXT_CHARACTERS = 2048
_NUMBER_BYTES = 24


def perform(folder: str, call: str | None) -> Encoded | dict[str, Any]:
    """Calls the function of a pickle (as base64, or in the file of the folder) and returns `whole` or `pieces`.

    Raises what the function raises, and `Unprocessable` for a value that is nested too deeply.
    """
    packed = base64.b64decode(call) if call is not None else Path(folder, CALL).read_bytes()
    function, arguments, options = pickle.loads(packed)  # noqa: S301 (written by the server)
    value = plain(function(*arguments, **options))
    if is_small(value, MAX_WHOLE_BYTES):
        with suppress(TypeError):  # it has bytes
            text = json.dumps({"whole": value})
            if len(text) <= MAX_WHOLE_BYTES:
                return Encoded(text)
    with ExitStack() as stack:
        pieces = _Pieces(folder, stack)
        found = pieces.small(value)[0]
        return {"pieces" if pieces.has_file else "whole": found}


def plain(value: Any, depth: int = 0) -> Any:
    """A value with objects of attrs, paths and tuples as JSON has them; bytes stay.

    Raises `Unprocessable` for nesting deeper than `MAX_DEPTH`.
    """
    if isinstance(value, str | int | float | bytes | None):
        return value
    if depth >= MAX_DEPTH:
        raise Unprocessable("it is nested too deeply")
    if isinstance(value, Mapping):
        return {str(name): plain(item, depth + 1) for name, item in value.items()}
    if isinstance(value, list | tuple | Set):
        return [plain(item, depth + 1) for item in value]
    if isinstance(value, Path):
        return str(value)
    return {field.name: plain(getattr(value, field.name), depth + 1) for field in attrs.fields(type(value))}


def is_small(values: Any, budget: int) -> bool:
    """Whether values cost at most `budget`, each 16 and one for each character; what is beyond is not read."""
    waiting = [values]
    while waiting and budget > 0:
        value = waiting.pop()
        budget -= 16
        if isinstance(value, str | bytes):
            budget -= len(value)
        elif isinstance(value, dict):
            waiting += [value.keys(), value.values()] if len(value) < budget else []
            budget -= len(value)
        elif isinstance(value, Collection):
            budget -= len(value)
            waiting += value if budget > 0 else ()
        elif attrs.has(type(value)):
            waiting += [getattr(value, field.name) for field in attrs.fields(type(value))]
    return budget > 0


class _Pieces:
    """Writes what is large to the file, the innermost first, and puts its places where it was."""

    def __init__(self, folder: str, stack: ExitStack) -> None:
        self._folder = Path(folder)
        self._stack = stack
        self._file: IO[bytes] | None = None
        self._end = 0

    @property
    def has_file(self) -> bool:
        """Whether anything was too large; many short values are not, although `is_small` counts them so."""
        return self._file is not None

    def small(self, value: Any) -> tuple[Any, int]:
        """The value, small enough for a message or a piece, and its size in JSON."""
        if isinstance(value, bytes):
            return self._moved(BYTES, [value])
        if isinstance(value, str):
            if len(value) > _MAX_TEXT_CHARACTERS:
                return self._moved(TEXT, [value.encode("utf-8", "surrogatepass")])
            return value, len(json.dumps(value))
        if isinstance(value, list):
            return self._container(LIST, [self.small(item) for item in value])
        if isinstance(value, dict):
            named = [(self.small(name), self.small(item)) for name, item in value.items()]
            pairs = [([name, item], name_size + size) for (name, name_size), (item, size) in named]
            return self._container(OBJECT, pairs)
        return value, _NUMBER_BYTES if not isinstance(value, int) else len(str(value))

    def _container(self, kind: str, sized: list[tuple[Any, int]]) -> tuple[Any, int]:
        total, items = sum(size + 4 for _, size in sized), [item for item, _ in sized]
        if total <= MAX_PIECE_BYTES and (kind == LIST or _is_plain(items)):
            return (items if kind == LIST else dict(items)), total
        return self._moved(kind, (json.dumps(group).encode() for group in _groups(sized)))

    def _moved(self, kind: str, parts: Iterable[bytes]) -> tuple[Any, int]:
        places = [self._written(part) for part in parts]
        return {kind: places}, 24 * (len(places) + 1)

    def _written(self, data: bytes) -> tuple[int, int]:
        if self._file is None:
            self._folder.mkdir(exist_ok=True)
            self._file = self._stack.enter_context((self._folder / ANSWER).open("wb"))
        self._file.write(data)
        self._end += len(data)
        return self._end - len(data), len(data)


def _is_plain(pairs: list[Any]) -> bool:
    """Whether JSON can have these names and values as an object: no name is in the file or stands for what is there."""
    return all(isinstance(name, str) for name, _ in pairs) and not (len(pairs) == 1 and pairs[0][0].startswith("\0"))


def _groups(sized: list[tuple[Any, int]]) -> Iterable[list[Any]]:
    """The items in groups of at most a piece."""
    group, room = list[Any](), MAX_PIECE_BYTES
    for item, size in sized:
        if group and size + 4 > room:
            yield group
            group, room = [], MAX_PIECE_BYTES
        group.append(item)
        room -= size + 4
    if group:
        yield group
