"""JSON Schema of response types, generated from their attrs classes."""

from __future__ import annotations

import enum
import types
import typing
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal, TypeGuard, get_args, get_origin

import attrs

from handlers.http import serializers
from models.json_format import Instant
from models.supervision.process import Seconds

Schema = dict[str, Any]

_PLAIN: Mapping[Any, Schema] = {
    str: {"type": "string"},
    bool: {"type": "boolean"},
    int: {"type": "integer", "format": "int64"},
    float: {"type": "number"},
    Seconds: {"type": "number"},
    bytes: {"type": "string", "format": "binary"},
    dict: {"type": "object"},
    type(None): {"type": "null"},
    Instant: {"type": "string", "format": "date-time"},
    serializers.Length: {
        "type": "string",
        "description": "ISO 8601 duration, hours the largest unit; seconds may have a fraction",
        "pattern": r"^PT(\d+H)?(\d+M)?(\d+(\.\d+)?S)?$",  # format `duration` (RFC 3339) has no fractions
        "examples": ["PT49H3M2.5S"],
    },
}


class Components:
    """The schemas of all response types by name, each referred to by `$ref`."""

    def __init__(self) -> None:
        self.schemas: dict[str, Schema] = {}
        self._kinds: dict[str, Any] = {}

    def of(self, kind: Any) -> Schema:
        """Returns the schema of a type: plain, attrs, list, mapping, union, enum or Literal. Raises `TypeError`."""
        if kind in _PLAIN:
            return dict(_PLAIN[kind])
        origin, arguments = get_origin(kind), get_args(kind)
        if origin is Annotated:
            schema = self.of(arguments[0])
            return schema | {"format": arguments[1]} if isinstance(arguments[1], str) else schema
        if origin is Literal:
            return {"type": "string", "enum": list(arguments)}
        if origin in (types.UnionType, typing.Union):
            return _union([self.of(member) for member in arguments])
        if attrs.has(origin or kind) or _is_enum(kind):
            return self._named(kind)
        if origin is not None and issubclass(origin, Mapping):
            return {"type": "object", "additionalProperties": self.of(arguments[1])}
        if origin is not None and issubclass(origin, Sequence):
            return {"type": "array", "items": self.of(arguments[0])}
        raise TypeError(f"{kind} has no schema")

    def _named(self, kind: Any) -> Schema:
        origin, arguments = get_origin(kind) or kind, get_args(kind)
        name = origin.__name__.removesuffix("Of" if arguments else "\0") + "".join(
            argument.__name__ for argument in arguments
        )
        if self._kinds.setdefault(name, kind) != kind:
            raise TypeError(f"{kind} and {self._kinds[name]} have the same name")
        if name not in self.schemas:
            self.schemas[name] = {}  # the type may refer to itself
            self.schemas[name] = _enum(kind) if _is_enum(kind) else self._object_or_extension(origin, arguments)
        return {"$ref": f"#/components/schemas/{name}"}

    def _object_or_extension(self, kind: Any, arguments: Sequence[Any]) -> Schema:
        """Returns an object, or for a subclass the parent's schema and the fields it adds."""
        fields = attrs.fields(attrs.resolve_types(kind))
        parent = next((base for base in kind.__mro__[1:] if attrs.has(base)), None)
        if parent is None:
            return self._object(fields, kind, arguments)
        own = self._object([field for field in fields if not field.inherited], kind, arguments)
        return {"allOf": [self.of(parent), own]}

    def _object(self, fields: Sequence[attrs.Attribute[Any]], kind: Any, arguments: Sequence[Any]) -> Schema:
        variables = dict(zip(getattr(kind, "__parameters__", ()), arguments, strict=True))
        properties = {
            serializers.name_of(field): self.of(_substituted(_json_type(field), variables)) for field in fields
        }
        required = [serializers.name_of(field) for field in fields if not serializers.may_be_missing(field)]
        return object_schema(properties, required) | _about(kind)


def object_schema(properties: Mapping[str, Schema], required: Sequence[str]) -> Schema:
    """Returns the schema of an object with these properties."""
    return {"type": "object", "properties": dict(properties), **({"required": list(required)} if required else {})}


def _is_enum(kind: Any) -> TypeGuard[type[enum.Enum]]:
    return isinstance(kind, type) and issubclass(kind, enum.Enum)


def _enum(kind: type[enum.Enum]) -> Schema:
    return {"type": "string", "enum": [member.value for member in kind]}


def _union(schemas: Sequence[Schema]) -> Schema:
    """Returns `type: [T, null]` for an optional plain type, else `anyOf`."""
    members = [schema for schema in schemas if schema != {"type": "null"}]
    if len(schemas) == len(members) or len(members) > 1 or "type" not in members[0]:
        return {"anyOf": list(schemas)}
    plain: Schema = members[0] | {"type": [members[0]["type"], "null"]}
    return plain | ({"enum": [*plain["enum"], None]} if "enum" in plain else {})


def _json_type(field: attrs.Attribute[Any]) -> Any:
    """Returns the type of a field in JSON: a field that may be omitted is never null."""
    if not serializers.may_be_missing(field):
        return field.type
    return next(member for member in get_args(field.type) if member is not type(None))


def _about(kind: Any) -> Schema:
    about = " ".join((kind.__doc__ or "").split())
    return {"description": about} if about and not about.startswith("Method generated") else {}


def _substituted(kind: Any, variables: Mapping[Any, Any]) -> Any:
    """Returns a type with the arguments of a generic class in place of its variables."""
    if kind in variables:
        return variables[kind]
    used = tuple(variable for variable in getattr(kind, "__parameters__", ()) if variable in variables)
    return kind[tuple(variables[variable] for variable in used)] if used else kind
