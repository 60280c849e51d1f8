"""What the pages of the charts share: they do what REST does, by the same operations, behind the same gate.

The key comes in the header, where script sends the form, or in its field `key`; no cookie ever bears it.
"""

from __future__ import annotations

import asyncio
from datetime import datetime
from typing import Any

from attrs import evolve
from tornado.web import Finish

from handlers.base import Page, write_page
from handlers.charts.all_operations import OPERATIONS
from handlers.http.credentials import is_chart_key
from handlers.http.origin import SAFE_METHODS
from handlers.http.permissions import CHANGE_CHARTS, READ, SEND_CHART_FORMS, Permission, admit, check_charts_open
from handlers.web import layout
from models.charts.parameters import read
from models.errors import Denied, NotFound
from supervisor.charts.release_reads import Reads
from supervisor.charts.service import Work

_TOOLS = {one.tool: one for one in OPERATIONS if one.tool}
_LEFT = 499
_AS_TYPED = ("values", "password")
_SECOND = 1_000_000
_SHOWN = 256 * 1024


class ChartPage(Page):
    """A page of the charts, or a form of one."""

    permission = READ
    max_body = 1024 * 1024

    @classmethod
    def permission_of(cls, method: str) -> Permission:
        return READ if method in SAFE_METHODS else SEND_CHART_FORMS

    def initialize(self, **arguments: Any) -> None:  # type: ignore[override]
        super().initialize(**arguments)
        self._tasks: dict[asyncio.Task[Any], Work] = {}

    def on_connection_close(self) -> None:
        """The client has left: what it asked for ends, unless it is a change that has begun."""
        super().on_connection_close()
        for task, work in self._tasks.items():
            if not work.begun:
                task.cancel()

    async def ask(
        self,
        tool: str,
        path: dict[str, str] | None = None,
        query: dict[str, str] | None = None,
        body: dict[str, Any] | None = None,
    ) -> Any:
        """What an operation answers, named as the tools are. Raises kinds of `Problem`."""
        operation = _TOOLS[tool]
        if operation.mutating:
            self._check_key()
        work = self.services.charts.work(self.request)
        async with work:
            if operation.needs == "cluster" and not self.services.charts.has_cluster(work.target):
                raise NotFound("there is no cluster, so releases are not served")
            ask = read(operation.asks, path or {}, query or {}, body or {})
            task = asyncio.create_task(operation.call(work, ask), name=f"page {tool}")
            self._tasks[task] = work
            try:
                return await task
            except asyncio.CancelledError:
                self.set_status(_LEFT, "Client Closed Request")
                raise Finish from None
            finally:
                del self._tasks[task]

    def _check_key(self) -> None:
        """As the gate of the REST interface, with the key from wherever it came. Raises `Denied`, `Unauthenticated`."""
        config = self.services.config
        check_charts_open(config)
        has_key = self.caller.has_chart_key or is_chart_key(self.field("key").encode(), config)
        admit(evolve(self.caller, has_chart_key=has_key), CHANGE_CHARTS, config)

    @property
    def closed(self) -> str:
        """Why nobody may change charts; empty where that is possible."""
        try:
            check_charts_open(self.services.config)
        except Denied as problem:
            return problem.message
        return ""

    def reads(self) -> Reads | None:
        """What may be asked of releases; `None` where there is no cluster."""
        work = self.services.charts.work(self.request)
        return work.reads if self.services.charts.has_cluster(work.target) else None

    def field(self, name: str) -> str:
        """A text of the form; what a blank at its beginning or end means something to is as it was typed."""
        return self.get_body_argument(name, "", strip=name not in _AS_TYPED)

    def form(self, *left_out: str) -> dict[str, str]:
        """The texts of the form, to be shown in it again: never the key."""
        hidden = {"key", "password", "_xsrf", *left_out}
        return {name: self.field(name) for name in self.request.body_arguments if name not in hidden}

    def flags(self, *names: str) -> dict[str, bool]:
        """The boxes that were ticked."""
        return {name: True for name in names if self.field(name)}

    def show(self, template: str, **values: Any) -> None:
        config = self.services.config
        words = {
            "moment": moment,
            "release_state": release_state,
            "closed": self.closed,
            "asks_key": config.svc.rest.access_interceptor.enabled,
            "key_header": config.svc.security.api_key_header,
            "has_helm": not self.services.charts.helm.is_missing,
        }
        write_page(self, template, **words, **values)


def integer(text: str) -> int | str | None:
    """A number of a form; other text as it is, so that its operation says what is wrong with it."""
    return int(text) if text.isascii() and text.isdigit() and len(text) < 18 else text or None


def moment(text: str | None) -> str:
    """A time as the charts tell it, as HTML."""
    if text is None:
        return layout.NOTHING
    return layout.when(micros(text))


def micros(text: str) -> int:
    """A time as the charts tell it, in microseconds since 1970."""
    return round(datetime.fromisoformat(text).timestamp() * _SECOND)


def release_state(status: str) -> str:
    """A release's status as HTML."""
    kinds = {"deployed": "good", "failed": "bad", "unknown": "warn", "uninstalling": "busy warn"}
    return layout.state(
        status.replace("-", " "), "busy warn" if status.startswith("pending") else kinds.get(status, "")
    )


def cut(text: str) -> tuple[str, bool]:
    """What a page shows of a long text, and whether there is more."""
    return text[:_SHOWN], len(text) > _SHOWN
