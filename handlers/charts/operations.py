"""The operations of the chart service, declared once: REST, pages, tools and the OpenAPI document read them.

To add one, write an attrs class of its inputs with the helpers of `models/inputs.py` and a function, and put
a `ChartOperation` into a list that `handlers/charts/handler.py` joins:

    @frozen
    class HistoryRequest:
        name: str = path("the release's name", refs.release)
        namespace: str = query("its namespace", "default", check=refs.namespace)

    async def history(work: Work, request: HistoryRequest) -> list[HistoryRow]:
        return await work.reads.history(request.namespace, request.name)

    ChartOperation("helm_history", "GET", "/releases/{name}/history", "Revisions of a release, newest first",
              HistoryRequest, history, list[HistoryRow], group="releases", needs="cluster")

The function returns what `response_type` declares: response types (or lists of them) become JSON, `str` or `bytes`
text, `Download` a file, `None` no body; `Warned` adds a `Warning` header per line. It raises kinds of
`models/errors.py`. `Work` (supervisor/charts/service.py) gives it the request's folder, its cluster and the shared
services.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from typing import Any, Literal

from attrs import Factory, evolve, field, frozen

from handlers.http.credentials import Caller
from handlers.http.permissions import CHANGE_CHARTS, READ_CHARTS, READ_CLUSTER, Permission
from handlers.operations import Operation
from models.errors import NotFound
from supervisor.charts.service import Work

TEXT = "text/plain; charset=utf-8"
"""Text; `application/yaml` if `Accept` names it."""
LOCK = "text/yaml"
GZIP = "application/gzip"
JSON = "application/json"

Group = Literal["releases", "charts", "repositories", "hub", "dependencies", "registries", "contexts"]

CHANGE_ERRORS = (400, 401, 403, 404, 409, 422, 500, 502, 503, 504)
"""Error statuses of most mutating operations."""


@frozen
class ChartOperation(Operation):
    """One operation of the chart service. `call` takes a `Work` and the request."""

    mutating: bool = False
    """Whether it needs permission to change charts."""
    is_cluster_read: bool = False
    """Whether it reads live objects, which needs the key or an ADMIN."""
    group: Group = "releases"
    needs: Literal["cluster", "helm", ""] = ""
    """Operations that need a cluster answer 404 without one."""
    error_statuses: Sequence[int] = (400, 404, 500)
    json_call: Callable[[Work, Any], Coroutine[Any, Any, bytes]] | None = None
    """Called instead of `call` if `Accept` names JSON: returns the same as JSON."""
    permission: Permission = field(
        default=Factory(
            lambda self: CHANGE_CHARTS if self.mutating else READ_CLUSTER if self.is_cluster_read else READ_CHARTS,
            takes_self=True,
        )
    )

    text_call: Callable[[Work, Any], Coroutine[Any, Any, str]] | None = None
    """Called instead of `call` if `Accept` names `text/plain`, and by the tool: returns the same as text."""

    def as_text(self) -> ChartOperation:
        """The same operation with its text as result."""
        return self if self.text_call is None else evolve(self, call=self.text_call, response_type=TEXT)

    def as_json(self) -> ChartOperation:
        """The same operation with its JSON as result."""
        return self if self.json_call is None else evolve(self, call=self.json_call, response_type=JSON)

    @property
    def is_change(self) -> bool:
        return self.mutating

    def is_served(self, has_cluster: bool) -> bool:
        return has_cluster or self.needs != "cluster" or self.mutating

    @property
    def documented_statuses(self) -> Sequence[int]:
        return [*self.error_statuses, 415] if self.takes_body else self.error_statuses

    @property
    def documented_headers(self) -> Mapping[str, str]:
        return {"Content-Disposition": "The name of the file"} if self.response_type == GZIP else self.headers

    @property
    def media_types(self) -> Mapping[str, Any]:
        types = dict(self.also) if self.json_call is None else {JSON: dict}
        return types if self.text_call is None else {**types, "text/plain": str}

    @property
    def has_values(self) -> bool:
        """Whether its body may be large: it has values of a chart."""
        return any(declared.source == "body" and declared.json_name == "values" for declared in self.inputs)

    def check_cluster(self, work: Work) -> None:
        """Raises `NotFound` if the operation needs a cluster and there is none."""
        if self.needs == "cluster" and not work.charts.has_cluster(work.target):
            raise NotFound("there is no cluster, so releases are not served")


@frozen
class Warned:
    """A result with warnings, each a `Warning` header, and with other headers."""

    value: Any
    warnings: tuple[str, ...] = ()
    headers: Mapping[str, str] = Factory(dict)


def helm_caller(caller: Caller) -> str | None:
    """Returns the caller to whom helm's slots are counted: account or address; `None` with the key."""
    return None if caller.has_chart_key else caller.account_or_address


class ClientLeft(Exception):
    """The client left, and the operation was cancelled."""


async def run(
    operation: ChartOperation,
    work: Work,
    read_request: Callable[[], Coroutine[Any, Any, Any]],
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
                request = await work.start(read_request(), f"request of {operation.identifier}")
                work.use_context(getattr(request, "context", None))
                assert operation.call is not None
                value = await work.start(operation.call(work, request), operation.identifier)
        except asyncio.CancelledError:
            if work.has_left:
                raise ClientLeft from None
            raise
        return value if respond is None else await respond(value)
