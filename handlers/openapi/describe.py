"""Endpoint descriptions: parameters, responses and failures of a handler, from which the OpenAPI document is generated.

class Info(Base): permission = READ endpoints: ClassVar = {"GET": Endpoint("Get one process", Info, path=["name"],
fails=[404], tool="process_info")}

The document takes the credentials from the handler's permission. Parameters that a function parses are declared next to
that function and named here.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal

from attrs import Factory, frozen

from models.paging import INT32, INT64, MAX_PAGE_SIZE

Where = Literal["path", "query", "header"]

EVENT_STREAM = "text/event-stream"
_NAME = {"type": "string", "minLength": 1}


@frozen
class Parameter:
    """A parameter in the path, query or headers. `schema` is JSON Schema."""

    name: str
    about: str
    schema: Mapping[str, Any] = Factory(lambda: {"type": "string"})
    where: Where = "query"
    required: bool = False
    is_rest_only: bool = False
    """Whether the MCP tool lacks it."""


@frozen
class Field:
    """A field of a JSON body, or a part of a form."""

    name: str
    about: str
    schema: Mapping[str, Any] = Factory(lambda: {"type": "string"})
    required: bool = False


@frozen
class Body:
    """A request body, as `application/json` or `multipart/form-data`."""

    media_type: str
    fields: Sequence[Field]
    required: bool = True


@frozen
class Endpoint:
    """One method of one path.

    `answers` is an attrs class, a list or mapping of them, a media type (text, a file, a stream), or None for no body;
    `fails` has the error statuses beyond those of every request.
    """

    summary: str
    answers: Any
    status: int = 200
    path: Sequence[str | Parameter] = ()
    """The groups in the route's pattern: their names, or parameters where they need more than a name."""
    query: Sequence[Parameter] = ()
    """Parameters in the query and headers."""
    body: Body | None = None
    fails: Sequence[int] = ()
    tool: str | None = None
    """Its name as a tool of the MCP server."""
    name: str = ""
    """Its `operationId` where it is no tool: a noun and a verb."""
    also: Mapping[str, Any] = Factory(dict)
    """Further media types of the response."""
    headers: Mapping[str, str] = Factory(dict)
    """Headers of the response, and their descriptions."""

    @property
    def path_parameters(self) -> list[Parameter]:
        return [one if isinstance(one, Parameter) else Parameter(one, "", _NAME, "path", True) for one in self.path]

    @property
    def identifier(self) -> str:
        return self.tool or self.name


def number(name: str, about: str) -> Parameter:
    """Returns a path parameter that is an id."""
    schema = {"type": "integer", "format": "int64", "minimum": -INT64, "maximum": INT64}
    return Parameter(name, about, schema, "path", required=True)


def free_text(name: str, about: str, example: str) -> Parameter:
    """Returns a query parameter that is any text."""
    return Parameter(name, about, {"type": "string", "examples": [example]})


def whole(name: str, about: str, default: int | None = None, low: int = 0, high: int = INT32) -> Parameter:
    """Returns a query parameter that is a whole number."""
    width = "int32" if high <= INT32 else "int64"
    schema: dict[str, Any] = {"type": "integer", "format": width, "minimum": low, "maximum": high}
    return Parameter(name, about, schema | ({} if default is None else {"default": default}))


def choice(name: str, about: str, choices: Sequence[str], default: str | None = None) -> Parameter:
    """Returns a query parameter that is one of `choices`."""
    schema: dict[str, Any] = {"type": "string", "enum": list(choices)}
    return Parameter(name, about, schema | ({} if default is None else {"default": default}))


def paged(*sort: Parameter, most: int = MAX_PAGE_SIZE) -> list[Parameter]:
    """Returns the parameters that `models.paging.paging` reads; `sort` is the one of the sort key, if there is one."""
    direction = {"type": "string", "pattern": "^([Aa][Ss][Cc]|[Dd][Ee][Ss][Cc])?$", "default": "desc"}
    return [
        whole("page", "The page number, from 0", 0),
        whole("size", "The page size", 20, 1, most),
        *sort,
        Parameter("sortDirection", "asc or desc, in any case", direction),
    ]
