"""What a handler says of itself: its parameters, what it answers, how it fails. The interface document is made of it.

    class Info(Base):
        says: ClassVar = {"GET": Says("One process", ProcessStatusInfo, path=("name",), fails=(404,))}

Parameters that are read by a function of ours are declared beside that function, once, and named here.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal

from attrs import Factory, frozen

Where = Literal["path", "query", "header"]


@frozen
class Parameter:
    """One input that is no body. `schema` is JSON Schema."""

    name: str
    about: str
    schema: Mapping[str, Any] = Factory(lambda: {"type": "string"})
    where: Where = "query"
    required: bool = False


@frozen
class Field:
    """One field of a body: of JSON, or a part of a form."""

    name: str
    about: str
    schema: Mapping[str, Any] = Factory(lambda: {"type": "string"})
    required: bool = False


@frozen
class Body:
    """A request's body by media type: `application/json`, `multipart/form-data`."""

    media_type: str
    fields: Sequence[Field]
    required: bool = True


@frozen
class Says:
    """One method of one path.

    `answers` is an attrs class, a list or mapping of some, a media type (text, a file, a stream), or None for no body;
    `fails` are the statuses, beside those that every request may meet, that it may answer.
    """

    summary: str
    answers: Any
    status: int = 200
    path: Sequence[str] = ()
    """What the groups of the route's pattern are called, in their order."""
    query: Sequence[Parameter] = ()
    body: Body | None = None
    fails: Sequence[int] = ()
    gate: Literal["open", "reader", "operator", "account", "poster", "key"] = "reader"
    tool: str | None = None
    """Its name among the tools of the tool server."""
    also: Mapping[str, Any] = Factory(dict)
    """Further media types of the answer."""


def whole(name: str, about: str, default: int | None = None, low: int = 0, high: int = 2**31 - 1) -> Parameter:
    """A parameter that is a whole number."""
    schema: dict[str, Any] = {"type": "integer", "format": "int32", "minimum": low, "maximum": high}
    return Parameter(name, about, schema | ({} if default is None else {"default": default}))


def choice(name: str, about: str, choices: Sequence[str], default: str | None = None) -> Parameter:
    """A parameter that is one of some words."""
    schema: dict[str, Any] = {"type": "string", "enum": list(choices)}
    return Parameter(name, about, schema | ({} if default is None else {"default": default}))
