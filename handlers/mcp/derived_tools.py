"""The tools, derived from REST: name, description, schema of the arguments, and whether a tool changes anything.

Chart tools come from the operations of the chart service, the others from endpoint descriptions (`Endpoint.tool`).
Nothing here needs the SDK.
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
from handlers.openapi.schemas import object_schema
from handlers.routing import Service
from models.charts.parameters import Input

_ADDITIVE = {"helm_install", "helm_test", "process_start", "process_start_selected"}
"""Tools that change something and destroy nothing."""
_IDEMPOTENT = {"helm_repo_add", "helm_push", "process_schedule"}
"""Tools that change something and have the same effect when they are called twice."""


@frozen
class Forwarded:
    """The REST request a tool stands for."""

    method: str
    path: str
    """With its prefix, and its variables in braces."""
    permission: Permission
    variables: Sequence[str]
    query: Sequence[str]
    body: Sequence[str]


@frozen
class Tool:
    name: str
    about: str
    schema: Mapping[str, Any]
    """The JSON Schema of its arguments."""
    is_mutating: bool
    action: Operation | Forwarded

    @property
    def title(self) -> str:
        return self.name.replace("_", " ").capitalize()

    @property
    def is_destructive(self) -> bool:
        return self.is_mutating and self.name not in _ADDITIVE

    @property
    def is_idempotent(self) -> bool:
        return not self.is_mutating or self.name in _IDEMPOTENT


def chart_tools(operations: Sequence[Operation]) -> list[Tool]:
    return [
        Tool(operation.tool, f"{operation.summary}.", _schema(operation.inputs), operation.mutating, operation)
        for operation in operations
        if operation.tool is not None
    ]


def rest_tools(services: Sequence[Service]) -> list[Tool]:
    """Returns the tools that endpoint descriptions name."""
    return [_forwarded(*endpoint) for service in services for endpoint in _tool_endpoints(service)]


def _tool_endpoints(service: Service) -> Iterator[tuple[str, type[Base], str, Endpoint]]:
    for route in service.routes:
        handler = route[1]
        for method, endpoint in getattr(handler, "endpoints", {}).items():
            if endpoint.tool is not None and issubclass(handler, Base):
                yield service.prefix + service.base + path_of(route, endpoint), handler, method, endpoint


def _forwarded(path: str, handler: type[Base], method: str, endpoint: Endpoint) -> Tool:
    query = [parameter for parameter in endpoint.query if parameter.where == "query" and not parameter.is_rest_only]
    fields = endpoint.body.fields if endpoint.body is not None else ()
    inputs: list[Parameter | Field] = [*query, *fields]
    path_names = [parameter.name for parameter in endpoint.path_parameters]
    properties: dict[str, Any] = {name: {"type": "string"} for name in path_names}
    properties |= {field.name: {**field.schema, "description": field.about} for field in inputs}
    required = [*path_names, *(field.name for field in inputs if field.required)]
    request = Forwarded(
        method,
        path,
        handler.permission_of(method),
        path_names,
        [parameter.name for parameter in query],
        [field.name for field in fields],
    )
    assert endpoint.tool is not None
    return Tool(endpoint.tool, f"{endpoint.summary}.", object_schema(properties, required), method != "GET", request)


def _schema(inputs: Sequence[Input]) -> dict[str, Any]:
    properties = {field.json_name: _file(field) if field.source == "file" else field.schema() for field in inputs}
    return object_schema(properties, [field.json_name for field in inputs if field.is_required])


def _file(field: Input) -> dict[str, Any]:
    return {"type": "string", "contentEncoding": "base64", "description": f"{field.about}, as base64"}
