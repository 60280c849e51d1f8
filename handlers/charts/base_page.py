"""The base class of the chart pages: they run the same operations as REST, with the same permissions.

The API key comes in the header when script sends the form, else in the field `key`; it is never in a cookie.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, TypeVar

from attrs import evolve
from tornado.web import Finish

from handlers.base import HtmlPage, write_page
from handlers.charts.handler import OPERATIONS
from handlers.charts.operations import ClientLeft, helm_caller, run
from handlers.http.credentials import Caller, is_chart_key
from handlers.http.permissions import CHANGE_CHARTS, READ, SEND_CHART_FORMS, admit, check_charts_open
from handlers.web import layout
from models.charts import yaml_values
from models.charts.helm_args import EncodedValues, read_yaml
from models.errors import Denied, Problem
from models.inputs import read
from models.json_format import read_rfc3339
from supervisor.charts.release_reads import Reads
from supervisor.charts.workers import MAX_INLINE_YAML_BYTES

Result = TypeVar("Result")

_OPERATIONS = {operation.tool: operation for operation in OPERATIONS if operation.tool}
_CLIENT_CLOSED_REQUEST = 499
_UNSTRIPPED_FIELDS = ("values", "password")
_MAX_TEXT_CHARACTERS = 256 * 1024


class ChartPage(HtmlPage):
    """A page of the charts, or a form of one."""

    permission = READ
    permission_to_change = SEND_CHART_FORMS
    max_body = 1024 * 1024

    async def run(
        self,
        tool: str,
        path: dict[str, str] | None = None,
        query: dict[str, str] | None = None,
        body: dict[str, Any] | None = None,
    ) -> Any:
        """Runs an operation, by the name of its tool, and returns its result. Raises `Problem`.

        It is cancelled when the client leaves, except a change that has begun.
        """
        operation = _OPERATIONS[tool]
        if operation.mutating:
            self.check_key()
        work = self.charts.work(self.request)
        work.caller = helm_caller(self.caller)

        async def read_request() -> Any:
            return read(operation.request_type, path or {}, query or {}, body or {})

        self.when_left(work.leave)
        try:
            return await run(operation, work, read_request)
        except ClientLeft:
            self.set_status(_CLIENT_CLOSED_REQUEST, "Client Closed Request")
            raise Finish from None

    async def in_worker(self, is_large: bool, function: Callable[..., Result], *arguments: Any) -> Result:
        """Calls a function, if its input is large in a worker process, which ends when the client leaves.

        Raises as `Workers.run`.
        """
        if not is_large:
            return function(*arguments)
        work = self.charts.work(self.request)
        self.when_left(work.leave)
        try:
            with self.charts.helm.called_by(helm_caller(self.caller)):
                result: Result = await work.start(self.charts.workers.run(function, *arguments), "page")
                return result
        except asyncio.CancelledError:
            if not work.has_left:
                raise
            self.set_status(_CLIENT_CLOSED_REQUEST, "Client Closed Request")
            raise Finish from None

    async def values(self, text: str) -> dict[str, Any] | None:
        """The values that a user typed. Raises `Invalid`."""
        if len(text) <= MAX_INLINE_YAML_BYTES:
            return yaml_values.parse(text)
        return EncodedValues(await self.in_worker(True, read_yaml, text))

    def check_key(self) -> None:
        """Checks the permission that REST requires, with the key of the header or the form.

        Raises `Denied`, `Unauthenticated`.
        """
        check_charts_open(self.config)
        admit(self.keyed_caller, CHANGE_CHARTS, self.config)

    @property
    def keyed_caller(self) -> Caller:
        """The caller, with the key of the header or the form."""
        is_key = self.caller.has_chart_key or is_chart_key(self.field("key").encode(), self.config)
        return evolve(self.caller, has_chart_key=is_key)

    @property
    def has_key(self) -> bool:
        """Whether the request has what `check_key` requires."""
        try:
            self.check_key()
        except Problem:
            return False
        return True

    @property
    def closed(self) -> str:
        """The reason why charts cannot be changed; empty if they can."""
        try:
            check_charts_open(self.config)
        except Denied as problem:
            return problem.message
        return ""

    def reads(self) -> Reads | None:
        """Reads releases of the cluster; `None` without a cluster."""
        work = self.charts.work(self.request)
        return work.reads if self.charts.has_cluster(work.target) else None

    def field(self, name: str) -> str:
        """A field of the form. Blanks around values and passwords are kept."""
        return self.form_value(name, is_trimmed=name not in _UNSTRIPPED_FIELDS)

    def form(self) -> dict[str, str]:
        """The fields to show again in a refused form: never the key or a password."""
        hidden = {"key", "password", "_xsrf"}
        return {name: self.field(name) for name in self.request.body_arguments if name not in hidden}

    def flags(self, *names: str) -> dict[str, bool]:
        """The checkboxes that are set."""
        return {name: True for name in names if self.field(name)}

    def show(self, template: str, **values: Any) -> None:
        config = self.config
        helpers = {
            "api": self.prefix + config.svc.rest.base_path,
            "moment": moment,
            "release_state": release_state,
            "closed": self.closed,
            "requires_key": config.svc.rest.access_interceptor.enabled,
            "key_header": config.svc.security.api_key_header,
            "has_helm": not self.charts.helm.is_missing,
            "refused_key": f"key-{self.form_value('verb') or 'install'}" if self.get_status() in (401, 403) else "",
        }
        write_page(self, template, **helpers, **values)


def integer(text: str) -> int | str | None:
    """Reads a number of a form; returns other text unchanged, so that the operation reports the error."""
    return int(text) if text.isascii() and text.isdigit() and len(text) < 18 else text or None


def moment(text: str | None) -> str:
    """Renders an RFC 3339 time of a release."""
    if text is None:
        return layout.NOTHING
    return layout.when(micros(text))


def micros(text: str) -> int:
    """Microseconds since 1970 of the time of a release."""
    return read_rfc3339("the time of a release", text, zone_needed=False)


def release_state(status: str) -> str:
    """Renders the status of a release."""
    return layout.state(status.replace("-", " "), release_kind(status))


def release_kind(status: str) -> str:
    """The kind of state that the status of a release is, for `state`."""
    kinds = {"deployed": "good", "failed": "bad", "unknown": "warn", "uninstalling": "busy warn"}
    return "busy warn" if status.startswith("pending") else kinds.get(status, "")


def cut(text: str) -> tuple[str, bool]:
    """Returns the part of a long text that a page shows, and whether it was cut."""
    return text[:_MAX_TEXT_CHARACTERS], len(text) > _MAX_TEXT_CHARACTERS
