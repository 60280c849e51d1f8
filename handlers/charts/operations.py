"""The operations of the chart service, declared once: REST, the tool server and the interface document read them.

To add one: write an attrs class of its inputs with the helpers of `models/charts/parameters.py`, a function that
does it,
and put an `Operation` into the list `operations` of the group's module (`releases`, `release_reads`, `rendering`,
`repositories`, `packages`, `hub`, `dependencies`); `handlers/charts/all_operations.py` has them all.

    @frozen
    class HistoryAsk:
        name: str = path("the release", releases.name)
        namespace: str = query("its namespace", "default", check=releases.namespace)

    async def history(work: Work, ask: HistoryAsk) -> list[HistoryRow]:
        return await work.cluster.history(ask.namespace, ask.name)

    operations = [
        Operation("helm_history", "GET", "/releases/{name}/history", "Revisions of a release, newest first",
                  HistoryAsk, history, list[HistoryRow], group="releases", needs="cluster"),
    ]

What the function returns is what `answers` says: attrs shapes (or lists of them) become JSON, `str` or `bytes` text,
`Download` a file, `None` no body; `Warned` adds a `Warning` header for each line. It raises kinds of
`models/errors.py`. It gets a `Work` (supervisor/charts/service.py): the private folder of this request, the cluster it
is about, and the services that last (`work.charts`).
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Mapping
from typing import Any, Literal

from attrs import Factory, frozen

from models.charts.parameters import Input, inputs
from models.errors import NotFound
from supervisor.charts.service import Work

TEXT = "text/plain; charset=utf-8"
"""Text; `application/yaml` where `Accept` asks for that."""
LOCK = "text/yaml"
GZIP = "application/gzip"

Group = Literal["releases", "charts", "repositories", "hub", "dependencies"]

CHANGE_FAILS = (400, 401, 403, 404, 409, 422, 500, 502, 503, 504)
"""What most mutating operations may answer beside success."""


@frozen
class Operation:
    """One thing that a caller may ask of the chart service."""

    tool: str | None
    """Its name among the tools; `None`: it is none (uploads)."""
    method: Literal["GET", "POST", "PUT", "DELETE"]
    path: str
    """Below the base path, its variables in braces."""
    summary: str
    asks: type[Any]
    call: Callable[[Work, Any], Coroutine[Any, Any, Any]]
    answers: Any
    """An attrs class, a list of one, a media type (TEXT, LOCK, GZIP), or `None` for no body."""
    status: int = 200
    mutating: bool = False
    """Whether the access gate is before it."""
    group: Group = "releases"
    needs: Literal["cluster", "helm", ""] = ""
    """Without a cluster those of "cluster" are not there (404)."""
    fails: tuple[int, ...] = (400, 404, 500)
    """The statuses, beside success and those that every request may meet, that it may answer."""
    name: str = ""
    """What it is called in the interface document, where it is no tool."""
    headers: Mapping[str, str] = Factory(dict)
    """Headers of its answer, and what they are."""

    @property
    def identifier(self) -> str:
        return self.tool or self.name

    @property
    def inputs(self) -> tuple[Input, ...]:
        return inputs(self.asks)

    def check_there(self, work: Work) -> None:
        """Raises `NotFound` where there is no cluster, and it needs one."""
        if self.needs == "cluster" and not work.charts.has_cluster(work.target):
            raise NotFound("there is no cluster, so releases are not served")

    @property
    def is_multipart(self) -> bool:
        return any(one.source == "file" for one in self.inputs)

    @property
    def takes_body(self) -> bool:
        return any(one.source in ("body", "form", "file") for one in self.inputs)


@frozen
class Warned:
    """An answer with something that did not go well; each line becomes a `Warning` header."""

    value: Any
    warnings: tuple[str, ...]
