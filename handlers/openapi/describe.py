"""What a handler says of itself: its parameters, what it answers, how it fails. The interface document is made of it.

    class Info(Base):
        permission = READ
        says: ClassVar = {"GET": Says("One process", Info, path=["name"], fails=[404], tool="process_info")}

Who may is not said here: the document asks the handler's gate. Parameters that are read by a function of ours are
declared beside that function, once, and named here.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal

from attrs import Factory, frozen

from models.paging import INT32, INT64

Where = Literal["path", "query", "header"]

EVENT_STREAM = "text/event-stream"


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
class Endpoint:
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
    """Its parameters in the query and headers; and those of the path of which more is to be said than their name."""
    body: Body | None = None
    fails: Sequence[int] = ()
    tool: str | None = None
    """Its name among the tools of the tool server."""
    name: str = ""
    """What it is called in clients that are made from the document, where it is no tool: a thing and a verb."""
    also: Mapping[str, Any] = Factory(dict)
    """Further media types of the answer."""
    headers: Mapping[str, str] = Factory(dict)
    """Headers of the answer, and what they are."""

    @property
    def identifier(self) -> str:
        return self.tool or self.name


def number(name: str, about: str) -> Parameter:
    """A part of the path that is the number of something."""
    schema = {"type": "integer", "format": "int64", "minimum": -INT64, "maximum": INT64}
    return Parameter(name, about, schema, "path", required=True)


def word(name: str, about: str, example: str) -> Parameter:
    """A parameter that is any text."""
    return Parameter(name, about, {"type": "string", "examples": [example]})


def whole(name: str, about: str, default: int | None = None, low: int = 0, high: int = INT32) -> Parameter:
    """A parameter that is a whole number."""
    schema: dict[str, Any] = {"type": "integer", "format": "int32", "minimum": low, "maximum": high}
    return Parameter(name, about, schema | ({} if default is None else {"default": default}))


def choice(name: str, about: str, choices: Sequence[str], default: str | None = None) -> Parameter:
    """A parameter that is one of some words."""
    schema: dict[str, Any] = {"type": "string", "enum": list(choices)}
    return Parameter(name, about, schema | ({} if default is None else {"default": default}))
