"""Declares the inputs of an operation once (source, type, bounds, default, description) and reads them.

An operation's request type is an attrs class with one attribute per input, made by `path`, `query`, `header`, `body`,
`form` or `file`. REST reads it from the parts of a request (`read`), the tool server from one object of arguments
(`read_arguments`), and the OpenAPI document is written from `inputs`. JSON names are camelCase.

The type of the attribute decides how charts read a value; the other services name an `InputKind`, which has the message
too.
"""

from __future__ import annotations

import json
import re
import types
import typing
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any, Literal, TypeVar, cast

import attrs
from attrs import frozen

from models.config.parsers import ValidationError
from models.errors import Invalid
from models.json_format import camel_case, check_text, http_message, read_rfc3339
from models.paging import INT32, INT64, MAX_PAGE_SIZE, Paging
from models.paging import whole as read_whole

RequestType = TypeVar("RequestType")
Function = TypeVar("Function", bound=Callable[..., Any])
Check = Callable[[Any], object]
"""Checks a value, or each item of a list. Raises `ValidationError`, or `Invalid` that names the field."""

Source = Literal["path", "query", "header", "body", "form", "file"]
_INPUT = "input"
_TYPE_NAMES = {
    str: "a string",
    bool: "true or false",
    int: "a whole number",
    dict: "an object",
    tuple: "a list of strings",
}
_JSON_TYPES = {str: "string", bool: "boolean", int: "integer", dict: "object", tuple: "array", Path: "string"}
_NOT_BLANK = r"\S"
_ABSENT = object()


@frozen
class InputKind:
    """How the text of a path or query is read, and its JSON Schema."""

    schema: Mapping[str, Any]
    read: Callable[[str, Any], Any]
    """Takes the input's name and its text (of `repeated`: a list). Raises `Invalid`, which names the input."""
    is_trimmed: bool = True
    is_repeated: bool = False
    """Whether it is read from all values of its name."""
    reads_absent: bool = False
    """Whether an absent value is read as an empty text, which has a message of its own."""
    reads_null: bool = False
    """Whether a null in the body is read, and does not count as absent."""


def free_text(example: str | None = None, **schema: Any) -> InputKind:
    """Any text."""
    return InputKind(
        {"type": "string", **({} if example is None else {"examples": [example]}), **schema}, lambda _, text: text
    )


NAME = InputKind({"type": "string", "minLength": 1}, lambda _, text: text)
"""A name in a path."""


def whole(low: int = 0, high: int = INT32) -> InputKind:
    """A whole number."""
    width = "int32" if high <= INT32 else "int64"
    schema = {"type": "integer", "format": width, "minimum": low, "maximum": high}
    return InputKind(schema, lambda name, text: read_whole(name, text, low, high))


UNSET: Any = object()
"""The default of an input of a body for which null is a value of its own."""

ID = whole(-INT64, INT64)
"""The id of something stored."""
ID_TEXT = InputKind(ID.schema, lambda _, text: text)
"""An id that is read where its row is, with the message of that row."""


def choice(*choices: str, shown: str = "") -> InputKind:
    """One of the choices, which the message lists; `shown` where it lists them in another way."""
    listed = shown or (" or ".join(choices) if len(choices) == 2 else f"one of {', '.join(choices)}")

    def read(name: str, text: str) -> str:
        if text not in choices:
            raise Invalid(f"{name} must be {listed}")
        return text

    return InputKind({"type": "string", "enum": list(choices)}, read)


def _read_flag(name: str, text: str) -> bool:
    if text not in ("true", "false"):
        raise Invalid(f"{name} must be true or false")
    return text == "true"


FLAG = InputKind({"type": "string", "enum": ["true", "false"]}, _read_flag, reads_absent=True)
"""true or false."""
ANY_CASE_FLAG = InputKind({"type": "boolean"}, lambda name, text: _read_flag(name, text.lower()))
"""true or false, in any case."""


def instant(example: str, zone_needed: bool = True) -> InputKind:
    """A time by RFC 3339, read as microseconds since 1970."""
    schema = {"type": "string", "examples": [example]}
    return InputKind(schema, lambda name, text: read_rfc3339(name, text, zone_needed))


@frozen
class Input:
    """One input of an operation. `type` is str, bool, int, dict (any object), tuple (of strings) or Path (a file)."""

    name: str
    json_name: str
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
    """Whether the query may supply the value when the body does not."""
    of_strings: bool
    """Whether the values of the object are strings."""
    kind: InputKind | None
    is_rest_only: bool
    """Whether the tool lacks it."""
    media_type: str
    """The media type of a file."""

    def described_schema(self) -> dict[str, Any]:
        """The JSON Schema of the input with its description."""
        return {"description": self.about, **self.schema()} if self.about else self.schema()

    def schema(self) -> dict[str, Any]:
        """The JSON Schema of the input."""
        if self.kind is not None:
            has_default = isinstance(self.default, str | int) and self.default != ""
            return {**self.kind.schema, **({"default": self.shown_default} if has_default else {})}
        schema: dict[str, Any] = {"type": _JSON_TYPES[self.type]}
        if self.type is str:
            schema |= self._text()
        if self.choices and self.type is not tuple:
            schema["enum"] = list(self.choices)
        if self.type is int:
            schema |= {"minimum": self.low, "maximum": self.high, "format": "int32"}
        elif self.type is tuple:
            schema["items"] = {"type": "string", **({"enum": list(self.choices)} if self.choices else {})}
            schema |= {"maxItems": self.high} if self.high < INT32 else {}
        elif self.type is Path:
            schema["format"] = "binary"
        elif self.of_strings:
            schema["additionalProperties"] = {"type": "string"}
        if not self.is_required and self.default not in (None, (), ""):
            schema["default"] = self.default
        return schema

    @property
    def shown_default(self) -> Any:
        """The default as JSON: `false` of a flag is a text in a query."""
        is_text = self.kind is not None and self.kind.schema["type"] == "string" and isinstance(self.default, bool)
        return str(self.default).lower() if is_text else self.default

    def _text(self) -> dict[str, Any]:
        """The schema keywords of a string; one that is not required may be empty."""
        keywords = getattr(self.check, "schema", {"pattern": _NOT_BLANK} if self.is_required else {})
        if "pattern" in keywords and not self.is_required:
            return {**keywords, "pattern": f"^$|{keywords['pattern']}"}
        return dict(keywords)


def _input(source: Source, about: str, required: bool, default: Any, facts: dict[str, Any]) -> Any:
    metadata = {_INPUT: {"source": source, "about": about, "is_required": required, **facts}}
    return attrs.field(metadata=metadata, kw_only=True, **({} if required else {"default": default}))


def path(about: str = "", check: Check | None = None, **facts: Any) -> Any:
    """An input from a path segment with this name."""
    return _input("path", about, True, None, {"check": check, **facts})


def query(about: str = "", default: Any = None, required: bool = False, **facts: Any) -> Any:
    """An input from the query string.

    Facts: `kind`, or `check`, `choices`, `low`, `high` (of a list: its entries); `json_name` where it is not that of
    the attribute; `place`, by which inputs are sorted, 0 by default.
    """
    return _input("query", about, required, default, facts)


def header(json_name: str, about: str) -> Any:
    """A header of the request; the handlers of streams read it."""
    return _input("header", about, False, None, {"json_name": json_name, "kind": free_text()})


def body(about: str = "", default: Any = None, required: bool = False, **facts: Any) -> Any:
    """A field of the JSON body, or of the part `request` of a multipart body. Facts as for `query`, and `or_query`."""
    return _input("body", about, required, default, facts)


def form(about: str = "", default: Any = None, required: bool = False, **facts: Any) -> Any:
    """A text part of a multipart body."""
    return _input("form", about, required, default, facts)


def file(about: str = "", required: bool = True, **facts: Any) -> Any:
    """A file part of a multipart body; the value is its path in the request's folder. Fact: `media_type`.

    An operation whose files are not required takes JSON too.
    """
    return _input("file", about, required, None, facts)


def _read_direction(name: str, text: str) -> str:
    if text.lower() not in ("asc", "desc"):
        raise Invalid(f"{name} must be asc or desc")
    return text.lower()


_DIRECTION = InputKind({"type": "string", "pattern": "^([Aa][Ss][Cc]|[Dd][Ee][Ss][Cc])?$"}, _read_direction)


@http_message
class PageRequest:
    """The page of a listing that a request selects; a subclass adds the sort keys, `sort_by`, at place 3."""

    page: int = query("The page number, from 0", 0, kind=whole(), place=1)
    size: int = query("The page size", 20, kind=whole(1, MAX_PAGE_SIZE), place=2)
    sort_direction: str = query("asc or desc, in any case", "desc", kind=_DIRECTION, place=4)

    def paging(self, sort: str) -> Paging:
        """`sort` is a column. A size above 100 is lowered to 100 where it is not refused."""
        return Paging(self.page, min(self.size, MAX_PAGE_SIZE), sort, self.sort_direction == "desc")


def cached(function: Function) -> Function:
    """`functools.cache` with the type of the function: mypy takes no class for hashable."""
    return cast("Function", cache(function))


@cached
def inputs(request_type: Any) -> tuple[Input, ...]:
    """The inputs of a request type in declaration order."""
    declared = []
    fields = attrs.fields(attrs.resolve_types(request_type))
    for attribute in sorted(fields, key=lambda field: field.metadata[_INPUT].get("place", 0)):
        facts: dict[str, Any] = {"check": None, "choices": (), "low": -INT32 - 1, "high": INT32, "or_query": False}
        facts |= {"kind": None, "is_rest_only": False, "json_name": camel_case(attribute.name)}
        facts["media_type"] = "application/gzip"
        facts |= attribute.metadata[_INPUT]
        facts.pop("place", None)
        kind, choices, of_strings = _kind(attribute.type)
        facts["choices"] = facts["choices"] or choices
        default = None if attribute.default is attrs.NOTHING else attribute.default
        declared.append(
            Input(
                name=attribute.name,
                type=kind,
                default=default,
                of_strings=of_strings,
                **facts,
            )
        )
    return tuple(declared)


def _kind(annotation: Any) -> tuple[type, tuple[str, ...], bool]:
    """The plain type of an annotation, its choices if it is a Literal, and whether its values are strings."""
    if typing.get_origin(annotation) in (typing.Union, types.UnionType):
        annotation = next(argument for argument in typing.get_args(annotation) if argument is not type(None))
    origin = typing.get_origin(annotation)
    if origin is Literal:
        return str, typing.get_args(annotation), False
    if origin is dict:
        return dict, (), typing.get_args(annotation)[1] is str
    return origin or annotation, (), False


def read(
    request_type: type[RequestType],
    path: Mapping[str, str],
    query: Mapping[str, str],
    body: Mapping[str, Any],
    form: Mapping[str, str] | None = None,
    files: Mapping[str, Path] | None = None,
) -> RequestType:
    """Reads a request type from the parts of a request. Raises `Invalid` with every fault.

    Unknown names are ignored (`check_names` refuses them). A null or a blank string counts as absent.
    """
    parts: dict[str, Mapping[str, Any]] = {
        "path": path,
        "header": {},
        "body": body,
        "form": form or {},
        "file": files or {},
    }

    def find(declared: Input) -> tuple[Any, bool]:
        if declared.source != "query":
            value = parts[declared.source].get(
                declared.json_name, UNSET if declared.kind is not None and declared.kind.reads_null else None
            )
            if not declared.or_query or not (value is None or (isinstance(value, str) and not value.strip())):
                return value, False
        return query.get(declared.json_name), True

    return _build(request_type, find)


_UNSUPPORTED = {
    "certFile": "files of this machine are not read; repositories and registries take the part certificate",
    "keyFile": "files of this machine are not read; repositories and registries take the part key",
    "caFile": "files of this machine are not read; repositories and registries take the part ca",
    "keyring": "the operator sets svc.fetch.keyring",
    "noUpdate": "forceUpdate says whether an existing repository is replaced",
    "recreatePods": "helm has removed it; change a value of the pod template instead",
}
"""Fields of jhelm that have no meaning here: accepted if null, false or empty."""
_MAX_SUGGESTED_CHARACTERS = 64
_MAX_DISTANCE = 2


def check_names(request_type: Any, query: Mapping[str, Any], body: Mapping[str, Any]) -> None:
    """Raises `Invalid` for a query parameter or body field that the request type does not declare."""
    in_query, in_body, files = set[str](), set[str](), set[str]()
    for declared in inputs(request_type):
        {"query": in_query, "file": files}.get(declared.source, in_body).add(declared.json_name)
        if declared.or_query:
            in_query.add(declared.json_name)
    faults = [_unknown(name, "parameter", in_query, in_body) for name in query if name not in in_query]
    for name, value in body.items():
        if name in _UNSUPPORTED and name not in in_body:
            if value not in (None, False, ""):
                faults.append(f"{name} is not supported: {_UNSUPPORTED[name]}")
        elif name in files:
            faults.append(f"{name} is a part of multipart/form-data, not a field")
        elif name not in in_body:
            faults.append(_unknown(name, "field", in_body, in_query))
    if faults:
        raise Invalid("; ".join(faults))


REQUEST_PART = "request"
"""The part of a multipart body that has the fields of a body."""


def check_parts(request_type: Any, names: Sequence[str]) -> None:
    """Raises `Invalid` for a part of a multipart body that is unknown or given more than once."""
    declared = inputs(request_type)
    known = {REQUEST_PART, *(each.json_name for each in declared if each.source in ("form", "file"))}
    fields = {each.json_name for each in declared if each.source == "body"}
    faults = [_unknown(name, "part", known, fields) for name in dict.fromkeys(names) if name not in known]
    faults += [f"{name} is given more than once" for name in sorted(known) if names.count(name) > 1]
    if faults:
        raise Invalid("; ".join(faults))


def check_arguments(known: Collection[str], arguments: Mapping[str, Any]) -> None:
    """Raises `Invalid` for an argument of a tool that is not one of the `known`."""
    faults = [_unknown(name, "field", set(known), set()) for name in arguments if name not in known]
    if faults:
        raise Invalid("; ".join(faults))


_ELSEWHERE = {
    "field": "a query parameter",
    "parameter": "a field of the body or path",
    "part": f"a field of the part {REQUEST_PART}",
}


def _unknown(name: str, what: str, known: set[str], elsewhere: set[str]) -> str:
    shown = json.dumps(name[:_MAX_SUGGESTED_CHARACTERS])
    if name in elsewhere:
        return f"unknown {what} {shown}; it is {_ELSEWHERE[what]}"
    near = [(distance, each) for each in known if (distance := _distance(name, each)) <= _MAX_DISTANCE]
    return f"unknown {what} {shown}" + (f'; did you mean "{min(near)[1]}"?' if near else "")


def _distance(first: str, second: str) -> int:
    """The number of single-character edits between two names; large for long ones."""
    if len(first) > _MAX_SUGGESTED_CHARACTERS:
        return _MAX_SUGGESTED_CHARACTERS
    row = list(range(len(second) + 1))
    for index, left in enumerate(first, 1):
        previous, row[0] = row[0], index
        for column, right in enumerate(second, 1):
            previous, row[column] = row[column], min(row[column] + 1, row[column - 1] + 1, previous + (left != right))
    return row[-1]


def read_arguments(request_type: type[RequestType], arguments: Mapping[str, Any]) -> RequestType:
    """Reads a request type from one object of arguments. Raises `Invalid` with every fault."""
    check_text(arguments)
    return _build(request_type, lambda declared: (arguments.get(declared.json_name), False))


def _build(request_type: type[RequestType], find: Callable[[Input], tuple[Any, bool]]) -> RequestType:
    values, faults = {}, []
    for declared in inputs(request_type):
        if declared.kind is not None:
            values[declared.name] = _of_kind(declared, declared.kind, find(declared)[0])
            continue
        try:
            value, is_text = find(declared)
            value = _value(declared, value, is_text)
        except ValidationError as problem:
            faults.append(f"{declared.json_name}: {problem}")
            continue
        except Invalid as problem:
            faults.append(problem.message)
            continue
        if value is not _ABSENT:
            values[declared.name] = value
        elif declared.is_required:
            faults.append(f"{declared.json_name} is required")
    if faults:
        raise Invalid("; ".join(faults))
    return request_type(**values)


def _of_kind(declared: Input, kind: InputKind, value: Any) -> Any:
    """The value of an input that has a kind. A blank text counts as absent."""
    if value is UNSET:
        value = None
    elif value is None and kind.reads_null:
        return kind.read(declared.json_name, None)
    if value is not None and (value != "" or declared.source == "body"):
        return kind.read(declared.json_name, value)
    if declared.is_required and kind.reads_absent:
        return kind.read(declared.json_name, "")
    if declared.is_required:
        raise Invalid(f"{declared.json_name} is required")
    return declared.default


def _value(declared: Input, value: Any, is_text: bool) -> Any:
    """Converts a value to its input's type, or returns `_ABSENT`. `is_text`: it arrived as text, whatever its type."""
    if value is None or (isinstance(value, str) and not value.strip() and (is_text or declared.type is str)):
        return _ABSENT
    if is_text and isinstance(value, str):
        value = _converted(declared, value)
    if declared.type is Path and isinstance(value, Path):
        return value
    if not _fits(declared, value):
        raise ValidationError(f"must be {_TYPE_NAMES.get(declared.type, 'a file')}")
    if declared.type is int and not declared.low <= value <= declared.high:
        raise ValidationError(f"is not between {declared.low} and {declared.high}", value)
    if declared.type is tuple:
        value = tuple(value)
        if len(value) > declared.high:
            raise ValidationError(f"has more than {declared.high} entries")
    if declared.choices and not set(value if declared.type is tuple else [value]) <= set(declared.choices):
        raise ValidationError(f"is not one of {', '.join(declared.choices)}", value)
    if declared.check is not None:
        for item in value if declared.type is tuple else [value]:
            declared.check(item)
    return value


def _converted(declared: Input, text: str) -> Any:
    if declared.type is bool and text.lower() in ("true", "false"):
        return text.lower() == "true"
    if declared.type is int and re.fullmatch(r"[+-]?[0-9]{1,18}", text):
        return int(text)
    if declared.type is tuple:
        return [part for part in map(str.strip, text.split(",")) if part]
    return text


def _fits(declared: Input, value: Any) -> bool:
    if declared.type is tuple:
        return isinstance(value, list) and all(isinstance(item, str) for item in value)
    if declared.type is dict:
        return isinstance(value, dict) and not (
            declared.of_strings and any(not isinstance(item, str) for item in value.values())
        )
    if declared.type is int:
        return isinstance(value, int) and not isinstance(value, bool)
    return declared.type is not Path and isinstance(value, declared.type)
