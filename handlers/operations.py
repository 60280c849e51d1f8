"""Operations, declared once: REST, the tools, the pages and the OpenAPI document read the same declaration.

To add one, write an attrs class of its inputs with the helpers of `models/inputs.py` and a function, and put an
`Operation` into a list of its service:

    @http_message
    class NamedProcess:
        name: str = path(kind=NAME)

    async def start(handler: Base, request: NamedProcess) -> ResponseMessage:
        return ResponseMessage(await handler.supervision.fleet.start(request.name))

    Operation("process_start", "POST", "/processes/start/{name}", "Start one process", NamedProcess, start,
              ResponseMessage, permission=CONTROL_PROCESSES, error_statuses=(400, 500))

The function returns what `response_type` declares: response types (or lists of them) become JSON, `bytes` are sent as
they are, `None` has no body. It raises kinds of `models/errors.py`. Handlers that answer by hand (docs/design.md) have
operations without a function.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar, Literal

from attrs import Factory, frozen
from tornado.httputil import HTTPServerRequest

from handlers.base import Base
from handlers.http.permissions import CLOSED, Permission
from handlers.routing import Route
from models.errors import Invalid
from models.inputs import Input, cached, inputs, read
from models.json_format import SMALL_BODY_BYTES, http_message, json_object

EVENT_STREAM = "text/event-stream"

SENT = object()
"""The answer of a function that has sent it."""

Method = Literal["GET", "POST", "PUT", "PATCH", "DELETE"]


@http_message
class NoInputs:
    """The request type of an operation without inputs."""


@frozen
class JsonBody:
    """How a body is read that must be there, or whose unknown fields are refused."""

    if_empty: str = ""
    """The message where there is no body; without one it is an empty object."""
    if_unknown: str = ""
    """The message for an unknown field, which follows its name; without one it is ignored."""
    plain_input: str = ""
    """The input that a body of text/plain is, as bytes."""


@frozen
class Operation:
    """One method of one path."""

    tool: str | None
    """Its name as a tool; `None` if it is not a tool."""
    method: Method
    path: str
    """Below the base path, with variables in braces."""
    summary: str
    request_type: type[Any]
    call: Callable[[Any, Any], Any] | None
    """Takes the handler and the request, may be a coroutine; None where the handler answers by hand."""
    response_type: Any
    """A response type, a list of one, a media type (text, a file, a stream), or `None` for no body."""
    status: int = 200
    error_statuses: Sequence[int] = ()
    """Error statuses in addition to those of every request."""
    name: str = ""
    """Its name in the OpenAPI document if it is not a tool: a noun and a verb."""
    headers: Mapping[str, str] = Factory(dict)
    """Response headers with their descriptions."""
    permission: Permission = CLOSED
    also: Mapping[str, Any] = Factory(dict)
    """Further media types of the response."""
    body: JsonBody = JsonBody()
    max_body: int = SMALL_BODY_BYTES
    """The limit of its body in bytes."""

    @property
    def identifier(self) -> str:
        return self.tool or self.name

    @property
    def inputs(self) -> tuple[Input, ...]:
        return inputs(self.request_type)

    @property
    def is_multipart(self) -> bool:
        return any(declared.source in ("form", "file") for declared in self.inputs)

    @property
    def takes_json(self) -> bool:
        """Whether a body of JSON is enough: it has no required part besides `request`."""
        return not any(declared.source in ("form", "file") and declared.is_required for declared in self.inputs)

    @property
    def takes_body(self) -> bool:
        return _takes_body(self.request_type)

    @property
    def is_change(self) -> bool:
        return self.method != "GET"

    def is_served(self, has_cluster: bool) -> bool:
        """Whether the OpenAPI document has it."""
        return True

    @property
    def documented_statuses(self) -> Sequence[int]:
        """The error statuses in the OpenAPI document, besides those of every request."""
        return self.error_statuses

    @property
    def documented_headers(self) -> Mapping[str, str]:
        return self.headers

    @property
    def media_types(self) -> Mapping[str, Any]:
        """The further media types of the response, in the OpenAPI document."""
        return self.also


class OperationHandler(Base):
    """Reads the request of an operation, runs it, and sends the answer."""

    operations: ClassVar[Mapping[str, Operation]]
    """By method."""

    @classmethod
    def permission_of(cls, method: str) -> Permission:
        found = cls.operations.get("GET" if method == "HEAD" else method)
        return cls.permission if found is None else found.permission

    async def _run(self, *arguments: str) -> None:
        method = self.request.method or ""
        operation = self.operations["GET" if method == "HEAD" else method]
        assert operation.call is not None
        request = read_request(self, operation, arguments)
        self.set_status(operation.status)
        answer = operation.call(self, request)
        if inspect.isawaitable(answer):
            answer = await answer
        if answer is SENT or operation.response_type is None:
            return
        if isinstance(operation.response_type, str):
            self.send(answer, operation.response_type)
        elif isinstance(answer, bytes):
            self.send(answer, "application/json")
        else:
            self.reply(answer)


def read_request(handler: Base, operation: Operation, arguments: Sequence[str] = ()) -> Any:
    """Reads the inputs of an operation; `arguments` are the variables of its path. Raises `Invalid`."""
    declared = inputs(operation.request_type)
    if not declared:
        return operation.request_type()
    path = dict(zip(names_of(operation.path), arguments, strict=True))
    query = query_of(handler, operation.request_type)
    body = _body(handler.request, operation) if _takes_body(operation.request_type) else {}
    return read(operation.request_type, path, query, body)


def _body(request: HTTPServerRequest, operation: Operation) -> Mapping[str, Any]:
    rules = operation.body
    if rules.if_empty and not request.body:
        raise Invalid(rules.if_empty)
    if rules.plain_input and is_plain_text(request):
        return {rules.plain_input: request.body}
    body = json_object(request.body)
    known = {declared.json_name for declared in operation.inputs if declared.source == "body"}
    if rules.if_unknown and (unknown := sorted(set(body) - known)):
        raise Invalid(f"{unknown[0]} {rules.if_unknown}")
    return body


def is_plain_text(request: HTTPServerRequest) -> bool:
    """Whether the body is text/plain."""
    return request.headers.get("Content-Type", "").partition(";")[0].strip().lower() == "text/plain"


@cached
def _query_inputs(request_type: Any) -> Sequence[Input]:
    return [declared for declared in inputs(request_type) if declared.source == "query"]


@cached
def _takes_body(request_type: Any) -> bool:
    return any(declared.source in ("body", "form", "file") for declared in inputs(request_type))


def query_of(handler: Base, request_type: type[Any]) -> Mapping[str, Any]:
    """The query as `read` takes it."""
    declared = _query_inputs(request_type)
    if not declared or not handler.request.query_arguments:
        return {}
    query: dict[str, Any] = dict(handler.query())
    for each in declared:
        if each.kind is not None and each.kind.is_repeated and each.json_name in query:
            query[each.json_name] = handler.query_values(each.json_name)
        elif each.kind is not None and not each.kind.is_trimmed:
            query[each.json_name] = handler.query_value(each.json_name, is_trimmed=False)
    return query


def operation_routes(operations: Sequence[Operation]) -> list[Route]:
    """One route for each path; a path without variables comes before one that would match it too."""
    by_path: dict[str, dict[str, Operation]] = {}
    for operation in operations:
        by_path.setdefault(operation.path, {})[operation.method] = operation
    return [(pattern_of(path), _handler(path, by_path[path])) for path in sorted(by_path, key=lambda path: "{" in path)]


def _handler(path: str, operations: Mapping[str, Operation]) -> type[OperationHandler]:
    body: dict[str, Any] = {method.lower(): OperationHandler._run for method in operations}
    first = next(iter(operations.values()))
    body |= {
        "operations": operations,
        "permission": first.permission,
        "max_body": max(one.max_body for one in operations.values()),
    }
    return type(f"Handler{path.title().translate(_PUNCTUATION)}", (OperationHandler,), body)


_PUNCTUATION = str.maketrans("", "", "/{}-.")


@cached
def names_of(path: str) -> list[str]:
    """The variables of a path."""
    return re.findall(r"\{(\w+)\}", path)


def pattern_of(path: str) -> str:
    """The pattern of a path with variables."""
    return re.sub(r"\{\w+\}", "([^/]+)", path.replace(".", r"\."))
