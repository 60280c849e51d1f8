"""The tools: what the operations of REST are called by an agent, which inputs they take, what they may change.

Chart tools are made of the operations of the chart service, the others of what handlers say of themselves
(`Endpoint.tool`): there is no second list. Nothing here needs the SDK.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from attrs import frozen

from handlers.base import Base
from handlers.charts.operations import Operation
from handlers.http.permissions import Permission
from handlers.openapi.describe import Endpoint, Field, Parameter
from handlers.openapi.document import path_of
from handlers.routing import Service
from models.charts.parameters import Input

_ADDING = {"helm_install", "helm_test", "process_start", "process_start_selected"}
"""Mutating, but nothing that was there before is lost by them."""
_REPEATABLE = {"helm_repo_add", "helm_push"}
"""Asked for twice they leave what they leave when asked for once."""


@frozen
class Forwarded:
    """A tool that is a request to one of our handlers."""

    method: str
    path: str
    """With its prefix, its variables in braces."""
    permission: Permission
    variables: Sequence[str]
    query: Sequence[str]
    body: Sequence[str]


@frozen
class Tool:
    name: str
    about: str
    schema: Mapping[str, Any]
    """Of its arguments, as JSON Schema."""
    is_mutating: bool
    does: Operation | Forwarded

    @property
    def title(self) -> str:
        return self.name.replace("_", " ").capitalize()

    @property
    def is_destructive(self) -> bool:
        return self.is_mutating and self.name not in _ADDING

    @property
    def is_idempotent(self) -> bool:
        return not self.is_mutating or self.name in _REPEATABLE


def chart_tools(operations: Sequence[Operation]) -> list[Tool]:
    return [
        Tool(one.tool, f"{one.summary}.", _schema_of(one.inputs), one.mutating, one)
        for one in operations
        if one.tool is not None
    ]


def rest_tools(services: Sequence[Service]) -> list[Tool]:
    """Those of handlers that name one."""
    return [_forwarded(service, *found) for service in services for found in _saying(service)]


def _saying(service: Service) -> Iterator[tuple[str, type[Base], str, Endpoint]]:
    for route in service.routes:
        handler = route[1]
        for method, endpoint in getattr(handler, "endpoints", {}).items():
            if endpoint.tool is not None and issubclass(handler, Base):
                yield service.prefix + service.base + path_of(route, endpoint), handler, method, endpoint


def _forwarded(service: Service, path: str, handler: type[Base], method: str, endpoint: Endpoint) -> Tool:
    query = [one for one in endpoint.query if one.where == "query"]
    fields = endpoint.body.fields if endpoint.body is not None else ()
    inputs: list[Parameter | Field] = [*query, *fields]
    properties: dict[str, Any] = {name: {"type": "string"} for name in endpoint.path}
    properties |= {one.name: {**one.schema, "description": one.about} for one in inputs}
    required = [*endpoint.path, *(one.name for one in inputs if one.required)]
    does = Forwarded(
        method,
        path,
        handler.permission_of(method),
        endpoint.path,
        [one.name for one in query],
        [one.name for one in fields],
    )
    assert endpoint.tool is not None
    return Tool(endpoint.tool, f"{endpoint.summary}.", _object(properties, required), method != "GET", does)


def _schema_of(inputs: Sequence[Input]) -> dict[str, Any]:
    properties = {one.wire: _file(one) if one.source == "file" else one.schema() for one in inputs}
    return _object(properties, [one.wire for one in inputs if one.is_required])


def _file(one: Input) -> dict[str, Any]:
    return {"type": "string", "contentEncoding": "base64", "description": f"{one.about}, as base64"}


def _object(properties: Mapping[str, Any], required: Sequence[str]) -> dict[str, Any]:
    return {"type": "object", "properties": dict(properties), **({"required": list(required)} if required else {})}
