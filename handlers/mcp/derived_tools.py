"""The tools, derived from REST: name, description, schema of the arguments, and whether a tool changes anything.

Chart tools come from the operations of the chart service, the others from endpoint descriptions (`Endpoint.tool`).
Nothing here needs the SDK.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, get_origin

from attrs import evolve, frozen

from handlers.charts.operations import ChartOperation
from handlers.http.permissions import Permission
from handlers.mcp.compact_schemas import compact
from handlers.openapi.schemas import object_schema
from handlers.operations import Operation
from handlers.routing import Service
from models.inputs import Input

_ADDITIVE = {"helm_install", "helm_test", "process_start", "process_start_selected"}
"""Tools that change something and destroy nothing."""
_NARROWER = {
    "helm_show_all": "helm_show_chart, helm_show_values or helm_show_readme",
    "helm_get_manifest": "helm_get_resources with a cursor",
    "helm_diff": "helm_diff with context 0",
}
"""Tools whose results may be large, and what returns less."""
PROJECT = "project"
"""Another name of the argument `id` of a tool about a project; it takes the project's name."""


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

    @property
    def has_project(self) -> bool:
        """Whether it is about a project by id; the tool takes the name too."""
        return "/projects/{id}/" in self.path

    @property
    def has_both_streams(self) -> bool:
        """Whether it reads one output stream of a process; the tool reads both by default."""
        return "/processes/logs/{name}" in self.path


@frozen
class Tool:
    name: str
    about: str
    schema: Mapping[str, Any]
    """The JSON Schema of its arguments."""
    is_mutating: bool
    action: ChartOperation | Forwarded
    is_paged: bool = False
    """Whether the tool adds a cursor to a list that REST returns as a whole."""

    @property
    def arguments(self) -> set[str]:
        """The names of its arguments, with those that its schema leaves out."""
        names = set(self.schema["properties"])
        if isinstance(self.action, ChartOperation):
            names |= {each.json_name for each in self.action.inputs}
        elif self.action.has_project:
            names.add(PROJECT)
        return names

    @property
    def rest_hint(self) -> str:
        """What to call where the result is too large: a narrower tool, or REST."""
        return f"call {_NARROWER[self.name]}" if self.name in _NARROWER else "REST returns all of it"

    @property
    def is_destructive(self) -> bool:
        return self.is_mutating and self.name not in _ADDITIVE


def toolset_of(name: str) -> str:
    """The set that a tool belongs to."""
    if name.startswith("helm_"):
        return "charts"
    return "processes" if name.startswith(("process_", "event_")) else "tests"


def tools_of(services: Sequence[Service], has_contexts: bool = False) -> list[Tool]:
    """The tools of all operations that name one. Those of charts run the operation, the others stand for a request.

    Without contexts that requests may name (`svc.kube.contexts`), no tool offers one.
    """
    tools = [
        _with_cursor(_tool(service.prefix + service.base, operation, has_contexts))
        for service in services
        for route in service.routes
        for method, operation in getattr(route[1], "operations", {}).items()
        if operation.tool is not None and not getattr(route[1], "fixed", {}).get(method)
    ]
    return sorted(tools, key=lambda tool: isinstance(tool.action, Forwarded))


def _tool(base: str, operation: Operation, has_contexts: bool) -> Tool:
    declared = [each for each in operation.inputs if each.source != "header" and not each.is_rest_only]
    if not has_contexts:
        declared = [each for each in declared if each.json_name != "context" or each.type is not str]
    path, query, body = (
        [each.json_name for each in declared if each.source == source] for source in ("path", "query", "body")
    )
    action: ChartOperation | Forwarded = Forwarded(
        operation.method, base + operation.path, operation.permission, path, query, body
    )
    if isinstance(operation, ChartOperation):
        action = operation
    assert operation.tool is not None
    is_paged = get_origin(operation.response_type) is list and not operation.is_change
    schema = _schema(declared)
    if isinstance(action, Forwarded) and action.has_both_streams:
        schema["properties"]["stream"]["default"] = "both"
    return Tool(operation.tool, operation.summary, schema, operation.is_change, action, is_paged)


def _with_cursor(tool: Tool) -> Tool:
    """Adds the argument `cursor` to a tool with a list; one that has its own pages keeps them."""
    properties = tool.schema["properties"]
    if not tool.is_paged or {"cursor", "page", "maxResults"} & set(properties):
        return evolve(tool, is_paged=False)
    return evolve(tool, schema={**tool.schema, "properties": {**properties, "cursor": {"type": "string"}}})


def _schema(inputs: Sequence[Input]) -> dict[str, Any]:
    properties = {field.json_name: compact(field.json_name, _argument(field)) for field in inputs}
    return object_schema(properties, [field.json_name for field in inputs if field.is_required])


def _argument(field: Input) -> dict[str, Any]:
    if field.source == "path" and field.kind is not None:
        about = f"{field.about}, by id or name" if field.about == "The project" else field.about
        return {"type": "string", "description": about}
    if field.source != "file":
        return field.described_schema()
    return {"type": "string", "contentEncoding": "base64", "description": f"{field.about}, as base64"}
