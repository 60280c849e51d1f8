"""How an operation's inputs are declared, once: where each comes from, its type, its bounds. And the reading of them.

The attrs class of an operation has one attribute for each input, made by `path`, `query`, `body`, `form` or `file`.
REST reads it from the parts of a request (`read`), the tool server from one object of arguments (`read_arguments`), and
the interface document is written from `inputs`. On the wire a name is camelCase.
"""

from __future__ import annotations

import json
import math
import re
import types
import typing
from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path
from typing import Any, Literal, TypeVar

import attrs
from attrs import frozen

from models.config.parsers import ValidationError
from models.errors import Invalid
from models.json_format import camel_case

Ask = TypeVar("Ask")
Check = Callable[[Any], object]
"""Looks at a value, or at each text of a list. Raises `ValidationError`, or `Invalid` that names the field."""

Source = Literal["path", "query", "body", "form", "file"]
_INPUT = "input"
_INT32 = 2**31 - 1
_NAMES = {str: "a string", bool: "true or false", int: "a whole number", dict: "an object", tuple: "a list of strings"}
_JSON_TYPES = {str: "string", bool: "boolean", int: "integer", dict: "object", tuple: "array", Path: "string"}
_NO_TEXT = re.compile("[\0\ud800-\udfff]")
_SOME_TEXT = r"\S"
_ABSENT = object()


@frozen
class Input:
    """One input of an operation. `type` is str, bool, int, dict (any object), tuple (of strings) or Path (a file)."""

    name: str
    wire: str
    source: Source
    type: type
    default: Any
    is_required: bool
    about: str
    check: Check | None
    choices: tuple[str, ...]
    low: int
    high: int
    or_query: bool
    """Whether it may come with the query where the body has it not."""
    of_strings: bool
    """An object whose values are strings."""

    def schema(self) -> dict[str, Any]:
        """It as JSON Schema."""
        schema: dict[str, Any] = {"type": _JSON_TYPES[self.type]}
        if self.about:
            schema["description"] = self.about
        if self.type is str:
            schema |= self._text()
        if self.choices:
            schema["enum"] = list(self.choices)
        if self.type is int:
            schema |= {"minimum": self.low, "maximum": self.high, "format": "int32"}
        elif self.type is tuple:
            schema["items"] = {"type": "string"}
        elif self.type is Path:
            schema["format"] = "binary"
        elif self.of_strings:
            schema["additionalProperties"] = {"type": "string"}
        if not self.is_required and self.default not in (None, (), ""):
            schema["default"] = self.default
        return schema

    def _text(self) -> dict[str, Any]:
        """What is asked of a text; one that is not required may be empty."""
        asked = getattr(self.check, "schema", {"pattern": _SOME_TEXT} if self.is_required else {})
        if "pattern" in asked and not self.is_required:
            return {**asked, "pattern": f"^$|{asked['pattern']}"}
        return dict(asked)


def _input(source: Source, about: str, required: bool, default: Any, facts: dict[str, Any]) -> Any:
    metadata = {_INPUT: {"source": source, "about": about, "is_required": required, **facts}}
    return attrs.field(metadata=metadata, kw_only=True, **({} if required else {"default": default}))


def path(about: str = "", check: Check | None = None) -> Any:
    """A part of the path, by its name there."""
    return _input("path", about, True, None, {"check": check})


def query(about: str = "", default: Any = None, required: bool = False, **facts: Any) -> Any:
    """A parameter of the query. Facts: `check`, `choices`, `low`, `high`."""
    return _input("query", about, required, default, facts)


def body(about: str = "", default: Any = None, required: bool = False, **facts: Any) -> Any:
    """A field of the JSON body; of the part `request` where the body is multipart. Facts as `query`, and `or_query`."""
    return _input("body", about, required, default, facts)


def form(about: str = "", default: Any = None, required: bool = False, **facts: Any) -> Any:
    """A part of a multipart body that is text."""
    return _input("form", about, required, default, facts)


def file(about: str = "") -> Any:
    """A part of a multipart body that is a file; its value is where it was put, in the request's own folder."""
    return _input("file", about, True, None, {})


def inputs(asks: Any) -> tuple[Input, ...]:
    """The inputs of an operation, in the order in which they are declared."""
    return _inputs(asks)


@cache
def _inputs(asks: Any) -> tuple[Input, ...]:
    found = []
    for one in attrs.fields(attrs.resolve_types(asks)):
        facts: dict[str, Any] = {"check": None, "choices": (), "low": -_INT32 - 1, "high": _INT32, "or_query": False}
        facts |= one.metadata[_INPUT]
        kind, choices, of_strings = _kind(one.type)
        facts["choices"] = facts["choices"] or choices
        default = None if one.default is attrs.NOTHING else one.default
        found.append(
            Input(name=one.name, wire=camel_case(one.name), type=kind, default=default, of_strings=of_strings, **facts)
        )
    return tuple(found)


def _kind(annotation: Any) -> tuple[type, tuple[str, ...], bool]:
    """The plain type of an annotation, its choices where it is a Literal, whether its values are strings."""
    if typing.get_origin(annotation) in (typing.Union, types.UnionType):
        annotation = next(one for one in typing.get_args(annotation) if one is not type(None))
    origin = typing.get_origin(annotation)
    if origin is Literal:
        return str, typing.get_args(annotation), False
    if origin is dict:
        return dict, (), typing.get_args(annotation)[1] is str
    return origin or annotation, (), False


def read(
    asks: type[Ask],
    path: Mapping[str, str],
    query: Mapping[str, str],
    body: Mapping[str, Any],
    form: Mapping[str, str] | None = None,
    files: Mapping[str, Path] | None = None,
) -> Ask:
    """The inputs of an operation from the parts of a request. Raises `Invalid` with all that is wrong.

    Unknown names are ignored; what is null, or text that is blank, is absent.
    """
    parts: dict[str, Mapping[str, Any]] = {"path": path, "body": body, "form": form or {}, "file": files or {}}

    def given(one: Input) -> tuple[Any, bool]:
        if one.source != "query":
            value = parts[one.source].get(one.wire)
            if not one.or_query or not (value is None or (isinstance(value, str) and not value.strip())):
                return value, False
        return query.get(one.wire), True

    return _made(asks, given)


def read_arguments(asks: type[Ask], arguments: Mapping[str, Any]) -> Ask:
    """The inputs of an operation from one object that has them all. Raises `Invalid` with all that is wrong."""
    check_text(arguments)
    return _made(asks, lambda one: (arguments.get(one.wire), False))


def _made(asks: type[Ask], given: Callable[[Input], tuple[Any, bool]]) -> Ask:
    values, faults = {}, []
    for one in inputs(asks):
        try:
            value, is_text = given(one)
            value = _value(one, value, is_text)
        except ValidationError as fault:
            faults.append(f"{one.wire}: {fault}")
            continue
        except Invalid as fault:
            faults.append(fault.message)
            continue
        if value is not _ABSENT:
            values[one.name] = value
        elif one.is_required:
            faults.append(f"{one.wire} is required")
    if faults:
        raise Invalid("; ".join(faults))
    return asks(**values)


def _value(one: Input, value: Any, is_text: bool) -> Any:
    """A value by its input's type, or `_ABSENT`. `is_text`: it came as text, whatever its type."""
    if value is None or (isinstance(value, str) and not value.strip() and (is_text or one.type is str)):
        return _ABSENT
    if is_text and isinstance(value, str):
        value = _converted(one, value)
    if one.type is Path and isinstance(value, Path):
        return value
    if not _fits(one, value):
        raise ValidationError(f"must be {_NAMES.get(one.type, 'a file')}")
    if one.type is int and not one.low <= value <= one.high:
        raise ValidationError(f"is not between {one.low} and {one.high}", value)
    if one.type is tuple:
        value = tuple(value)
    if one.choices and value not in one.choices:
        raise ValidationError(f"is not one of {', '.join(one.choices)}", value)
    if one.check is not None:
        for item in value if one.type is tuple else [value]:
            one.check(item)
    return value


def _converted(one: Input, text: str) -> Any:
    if one.type is bool and text.lower() in ("true", "false"):
        return text.lower() == "true"
    if one.type is int and re.fullmatch(r"[+-]?[0-9]{1,18}", text):
        return int(text)
    if one.type is tuple:
        return [text]
    return text


def _fits(one: Input, value: Any) -> bool:
    if one.type is tuple:
        return isinstance(value, list) and all(isinstance(item, str) for item in value)
    if one.type is dict:
        return isinstance(value, dict) and not (
            one.of_strings and any(not isinstance(item, str) for item in value.values())
        )
    if one.type is int:
        return isinstance(value, int) and not isinstance(value, bool)
    return one.type is not Path and isinstance(value, one.type)


# JSON


def json_object(raw: bytes, what: str = "the body") -> dict[str, Any]:
    """A JSON object of bytes; nothing at all is an empty one. Raises `Invalid`."""
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
        raise Invalid(f"{what} has a number that is none, or that cannot be held") from None
    if not isinstance(value, dict):
        raise Invalid(f"{what} must be a JSON object")
    check_text(value)
    return value


def _no_constant(name: str) -> float:
    raise ValueError(name)


def _finite(text: str) -> float:
    number = float(text)
    if math.isinf(number):
        raise ValueError(text)
    return number


def check_text(value: Any) -> None:
    """Raises `Invalid` for a NUL or a lone surrogate in any text of a JSON value, and for one nested too deeply."""
    waiting: list[tuple[Any, str, int]] = [(value, "", 0)]
    while waiting:
        one, name, depth = waiting.pop()
        if depth > 100:
            raise Invalid(f"{name or 'the body'}: is nested too deeply")
        if isinstance(one, str) and _NO_TEXT.search(one):
            raise Invalid(f"{name or 'the body'}: must not contain a NUL or half a character")
        if isinstance(one, dict):
            for key, item in one.items():
                top = name or str(key)
                safe = top.encode("ascii", "backslashreplace").decode().replace("\0", "\\0")
                waiting += [(key, safe, depth + 1), (item, safe, depth + 1)]
        elif isinstance(one, list):
            waiting += [(item, name, depth + 1) for item in one]
