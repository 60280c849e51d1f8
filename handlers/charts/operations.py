"""The operations of the chart service, declared once: REST, pages, tools and the OpenAPI document read them.

To add one, write an attrs class of its inputs with the helpers of `models/charts/parameters.py` and a function, and put
an `Operation` into a list that `handlers/charts/handler.py` joins:

    @frozen
    class HistoryRequest:
        name: str = path("the release's name", refs.release)
        namespace: str = query("its namespace", "default", check=refs.namespace)

    async def history(work: Work, request: HistoryRequest) -> list[HistoryRow]:
        return await work.reads.history(request.namespace, request.name)

    Operation("helm_history", "GET", "/releases/{name}/history", "Revisions of a release, newest first",
              HistoryRequest, history, list[HistoryRow], group="releases", needs="cluster")

The function returns what `response_type` declares: response types (or lists of them) become JSON, `str` or `bytes`
text, `Download` a file, `None` no body; `Warned` adds a `Warning` header per line. It raises kinds of
`models/errors.py`. `Work` (supervisor/charts/service.py) gives it the request's folder, its cluster and the shared
services.
"""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from typing import Any, Literal

from attrs import Factory, evolve, frozen

from handlers.http.credentials import Caller
from models.charts.parameters import Input, inputs
from models.errors import NotFound
from supervisor.charts.service import Work

TEXT = "text/plain; charset=utf-8"
"""Text; `application/yaml` if `Accept` names it."""
LOCK = "text/yaml"
GZIP = "application/gzip"
JSON = "application/json"

Group = Literal["releases", "charts", "repositories", "hub", "dependencies"]

CHANGE_ERRORS = (400, 401, 403, 404, 409, 422, 500, 502, 503, 504)
"""Error statuses of most mutating operations."""


@frozen
class Operation:
    """One operation of the chart service."""

    tool: str | None
    """Its name as a tool; `None` if it is not a tool (uploads)."""
    method: Literal["GET", "POST", "PUT", "DELETE"]
    path: str
    """Below the base path, with variables in braces."""
    summary: str
    request_type: type[Any]
    call: Callable[[Work, Any], Coroutine[Any, Any, Any]]
    response_type: Any
    """A response type, a list of one, a media type (TEXT, LOCK, GZIP), or `None` for no body."""
    status: int = 200
    mutating: bool = False
    """Whether it needs permission to change charts."""
    group: Group = "releases"
    needs: Literal["cluster", "helm", ""] = ""
    """Operations that need a cluster answer 404 without one."""
    error_statuses: tuple[int, ...] = (400, 404, 500)
    """Error statuses in addition to those of every request."""
    name: str = ""
    """Its name in the OpenAPI document if it is not a tool."""
    headers: Mapping[str, str] = Factory(dict)
    """Response headers with their descriptions."""
    json_call: Callable[[Work, Any], Coroutine[Any, Any, bytes]] | None = None
    """Called instead of `call` if `Accept` names JSON: returns the same as JSON."""

    def as_json(self) -> Operation:
        """The same operation with its JSON as result."""
        return self if self.json_call is None else evolve(self, call=self.json_call, response_type=JSON)

    @property
    def identifier(self) -> str:
        return self.tool or self.name

    @property
    def inputs(self) -> tuple[Input, ...]:
        return inputs(self.request_type)

    def check_cluster(self, work: Work) -> None:
        """Raises `NotFound` if the operation needs a cluster and there is none."""
        if self.needs == "cluster" and not work.charts.has_cluster(work.target):
            raise NotFound("there is no cluster, so releases are not served")

    @property
    def is_multipart(self) -> bool:
        return any(declared.source == "file" for declared in self.inputs)

    @property
    def takes_body(self) -> bool:
        return any(declared.source in ("body", "form", "file") for declared in self.inputs)


@frozen
class Warned:
    """A result with warnings, each a `Warning` header, and with other headers."""

    value: Any
    warnings: tuple[str, ...] = ()
    headers: Mapping[str, str] = Factory(dict)


def helm_caller(caller: Caller) -> str | None:
    """Returns the caller to whom helm's slots are counted: account, else address (IPv6 by /64); `None` with the key."""
    if caller.has_chart_key:
        return None
    if caller.user is not None:
        return f"account {caller.user.username}"
    try:
        address = ipaddress.ip_address(caller.address)
    except ValueError:
        return f"address {caller.address}"
    if address.version == 6:
        return f"address {ipaddress.ip_network((address, 64), strict=False)}"
    return f"address {address}"


class ClientLeft(Exception):
    """The client left, and the operation was cancelled."""


async def run(
    operation: Operation,
    work: Work,
    read_request: Callable[[], Awaitable[Any]],
    respond: Callable[[Any], Awaitable[Any]] | None = None,
) -> Any:
    """Runs an operation for REST, a page or a tool, and returns its result.

    `respond` converts the result while the request's files exist. Raises kinds of `Problem`, and `ClientLeft` after
    `work.leave()`.
    """
    async with contextlib.aclosing(work):
        operation.check_cluster(work)
        caller = None if operation.mutating else work.caller
        try:
            with work.charts.workers.one_request(), work.charts.helm.called_by(caller, operation.takes_body):
                request = await read_request()
                value = await work.start(operation.call(work, request), operation.identifier)
        except asyncio.CancelledError:
            if work.has_left:
                raise ClientLeft from None
            raise
        return value if respond is None else await respond(value)
