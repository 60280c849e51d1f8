"""The tools a caller may use, and their calls.

A chart tool runs its operation; any other tool sends the REST request it stands for. So a tool has the same permissions
and the same error messages as REST.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Protocol, TypeVar
from urllib.parse import quote, urlencode

from attrs import frozen

from handlers.charts.operations import ChartOperation, helm_caller, run
from handlers.http.credentials import Caller
from handlers.http.permissions import READ_CLUSTER, admit, check_changes_open, check_cluster_reads
from handlers.mcp import project_names, results
from handlers.mcp.derived_tools import Forwarded, Tool, toolset_of
from handlers.mcp.results import ToolResult
from models.charts.helm_args import EncodedValues
from models.charts.tool_messages import Kind, SmallMessage, check_size, decoded_file
from models.config.parsers import TOOLSETS
from models.config.settings import Config
from models.errors import Denied, Failed, Invalid, NotFound, Problem, Unavailable
from models.inputs import check_arguments, read_arguments
from models.json_format import check_text
from supervisor.charts.service import Charts, Work

log = logging.getLogger("tools")

Value = TypeVar("Value")

MAX_WAITING_CALLS = 50
_INTERNAL_ERROR = "internal error; the log has details"


class SendRequest(Protocol):
    """Sends a REST request as the caller; returns status, media type and body. Raises `Unavailable`."""

    def __call__(self, method: str, path: str, body: bytes) -> Awaitable[tuple[int, str, bytes]]: ...


@frozen
class ToolSelection:
    """The tools that a client asks for: sets of tools, and whether only those that change nothing."""

    toolsets: frozenset[str] = frozenset(TOOLSETS)
    is_read_only: bool = False

    @classmethod
    def of_query(cls, toolsets: str | None, readonly: str | None) -> ToolSelection:
        """Reads `?toolsets=tests,charts&readonly=true`. Raises `Invalid`."""
        names = frozenset(part for part in map(str.strip, (toolsets or ",".join(TOOLSETS)).split(",")) if part)
        if unknown := sorted(names - set(TOOLSETS)):
            raise Invalid(f"toolsets: {unknown[0][:100]} is not one of {', '.join(TOOLSETS)}")
        if readonly not in (None, "", "true", "false"):
            raise Invalid("readonly: must be true or false")
        return cls(names, readonly == "true")

    def has(self, tool: Tool) -> bool:
        return toolset_of(tool.name) in self.toolsets and not (self.is_read_only and tool.is_mutating)


@frozen
class ToolCaller:
    """The caller of a tool, and how the REST requests of the tool are sent."""

    caller: Caller | None
    """None if only the server that receives the requests knows the caller."""
    send: SendRequest
    on_disconnect: Callable[[Callable[[], object]], object] = lambda _: None
    """Registers a callback for the moment the client disconnects."""
    selection: ToolSelection = ToolSelection()
    moved: SmallMessage | None = None
    """What was taken out of the message."""

    def restored(self, arguments: Mapping[str, Any]) -> Mapping[str, Any]:
        """The arguments with what was taken out of them: values are encoded, files are bytes. Raises `Invalid`."""
        message = self.moved
        if message is None:
            return arguments
        given = dict(arguments)
        for name, moved in message.moved.items():
            if given.get(name) in (message.mark, {message.mark: True}):
                if moved.fault:
                    raise Invalid(moved.fault)
                given[name] = moved.data if moved.kind == "file" else EncodedValues(moved.data)
        return given


class Toolbox:
    def __init__(self, config: Callable[[], Config], tools: Sequence[Tool], charts: Callable[[], Charts]) -> None:
        self._config = config
        self._tools = {tool.name: tool for tool in tools}
        self._charts = charts
        self._running: set[asyncio.Task[ToolResult]] = set()
        self._workers = ThreadPoolExecutor(1, "tools")
        self._waiting = 0

    def list(self, caller: ToolCaller) -> Sequence[Tool]:
        """Returns the tools that exist, that the client selected and that the caller may call."""
        return [
            tool
            for tool in self._tools.values()
            if self._why_missing(tool, caller.selection) is None and self._may_call(tool, caller.caller)
        ]

    def find(self, name: str, selection: ToolSelection = ToolSelection()) -> Tool:
        """Raises `NotFound`; a tool that changes something exists only where changes are enabled."""
        tool = self._tools.get(name)
        reason = self._why_missing(tool, selection) if tool is not None else None
        if tool is None or reason is not None:
            raise NotFound(f"there is no tool {name[:100]}" + (f": {reason}" if reason is not None else ""))
        return tool

    def large_arguments(self) -> dict[str, dict[str, Kind]]:
        """The arguments that may be large, by tool: values and archives of charts."""
        found: dict[str, dict[str, Kind]] = {}
        for tool in self._tools.values():
            if isinstance(tool.action, ChartOperation):
                files: dict[str, Kind] = {one.json_name: "file" for one in tool.action.inputs if one.source == "file"}
                found[tool.name] = files | ({"values": "values"} if tool.action.has_values else {})
        return found

    def schema(self, name: str) -> Mapping[str, Any] | None:
        """Returns the JSON Schema of a tool's arguments."""
        tool = self._tools.get(name)
        return tool.schema if tool is not None else None

    def _why_missing(self, tool: Tool, selection: ToolSelection) -> str | None:
        if toolset_of(tool.name) not in self._config().svc.mcp.toolsets:
            return "its set is turned off (svc.mcp.toolsets)"
        if not selection.has(tool):
            return "the address of this connection leaves it out"
        try:
            if tool.is_mutating:
                check_changes_open(self._config())
            if isinstance(tool.action, ChartOperation) and tool.action.is_cluster_read:
                check_cluster_reads(self._config())
        except (Denied, NotFound) as problem:
            return problem.message
        return None

    def _may_call(self, tool: Tool, caller: Caller | None) -> bool:
        """Every caller who may use tools may call those of charts, except reads of live objects."""
        try:
            if caller is not None:
                self._check_permission(tool, caller)
        except Problem:
            return False
        return True

    def _check_permission(self, tool: Tool, caller: Caller) -> None:
        """Raises `Unauthenticated`, `Denied`."""
        if isinstance(tool.action, Forwarded):
            admit(caller, tool.action.permission, self._config())
        elif tool.action.is_cluster_read:
            admit(caller, READ_CLUSTER, self._config())

    async def wait_for_changes(self) -> None:
        """Returns when the changes that have begun have ended."""
        if self._running:
            await asyncio.wait(self._running)

    async def call(self, tool: Tool, arguments: Mapping[str, Any], caller: ToolCaller) -> ToolResult:
        """Calls a tool. A change that has begun continues when the client disconnects."""
        if caller.moved is not None and caller.moved.refusal:
            return results.failed(caller.moved.refusal)
        try:
            if isinstance(tool.action, Forwarded) or self._config().svc.rest.unknown_fields == "REFUSE":
                check_arguments(tool.arguments, arguments)
        except Problem as problem:
            return results.failed(problem.message)
        result = await self._page(tool, arguments, caller)
        return await results.bounded(result, tool.arguments, tool.rest_hint)

    async def _page(self, tool: Tool, arguments: Mapping[str, Any], caller: ToolCaller) -> ToolResult:
        """The result; of a tool that pages a list, the page that `cursor` and `limit` name."""
        if not tool.is_paged:
            return await self._call(tool, arguments, caller)
        given = {name: value for name, value in arguments.items() if name != "cursor"}
        try:
            cursor = _cursor(arguments.get("cursor"))
            result = await self._call(tool, given, caller)
            rows = given["limit"] if isinstance(given.get("limit"), int) else None
            return await results.page(result, cursor, rows)
        except Problem as problem:
            return results.failed(problem.message)

    async def _call(self, tool: Tool, arguments: Mapping[str, Any], caller: ToolCaller) -> ToolResult:
        if isinstance(tool.action, Forwarded):
            return await _reported(tool, self._forward(tool.action, arguments, caller.send))
        try:
            if caller.caller is not None:
                self._check_permission(tool, caller.caller)
        except Problem as problem:
            return results.failed(problem.message)
        work = self._charts().work()
        work.caller = helm_caller(caller.caller) if caller.caller is not None else None
        work.has_key = caller.caller is None or caller.caller.has_chart_key
        operation = tool.action.as_text()
        task = asyncio.create_task(_reported(tool, self._operate(operation, work, arguments, caller)), name=tool.name)
        self._running.add(task)
        task.add_done_callback(self._running.discard)

        def cancel() -> None:
            if not work.begun:
                task.cancel()

        caller.on_disconnect(cancel)
        try:
            await asyncio.wait([task])
        except asyncio.CancelledError:
            cancel()
            raise
        return results.failed("the client has disconnected") if task.cancelled() else task.result()

    async def _operate(
        self, operation: ChartOperation, work: Work, arguments: Mapping[str, Any], caller: ToolCaller
    ) -> ToolResult:
        async def read_request() -> Any:
            try:
                given = await self._in_worker(lambda: _with_files(operation, work, caller.restored(arguments)))
            except OSError as error:
                raise Failed(f"the request could not be stored: {error.strerror}") from None
            return read_arguments(operation.request_type, given)

        async def respond(value: Any) -> ToolResult:
            return await results.of_value(operation, value)

        result: ToolResult = await run(operation, work, read_request, respond)
        return result

    async def _forward(self, request: Forwarded, arguments: Mapping[str, Any], send: SendRequest) -> ToolResult:
        check_size(arguments)  # they are small: large ones were taken out, or refused, in a worker process
        check_text(arguments)
        given = {name: value for name, value in arguments.items() if value is not None}
        if request.has_project:
            given = await project_names.with_id(request, given, send)
        if request.has_both_streams:
            given = {"stream": "both", **given}
        missing = [name for name in request.variables if not _query_text(given.get(name, "")).strip()]
        if missing:
            raise Invalid("; ".join(f"{name} is required" for name in missing))
        path = request.path
        for name in request.variables:
            path = path.replace(f"{{{name}}}", quote(_query_text(given[name]), safe=""))
        query = {name: _query_text(given[name]) for name in request.query if name in given}
        body = {name: given[name] for name in request.body if name in given}
        uri = f"{path}?{urlencode(query)}" if query else path
        return results.of_response(*await send(request.method, uri, json.dumps(body).encode() if request.body else b""))

    async def _in_worker(self, work: Callable[[], Value]) -> Value:
        """Runs work on arguments, which may be large, in the tools' own thread. Raises `Unavailable`."""
        if self._waiting >= MAX_WAITING_CALLS:
            raise Unavailable("too many tools are called at once; try again soon")
        self._waiting += 1
        try:
            return await asyncio.get_running_loop().run_in_executor(self._workers, work)
        finally:
            self._waiting -= 1


async def _reported(tool: Tool, work: Awaitable[ToolResult]) -> ToolResult:
    """Returns the result, or the failure with the message of REST."""
    try:
        return await work
    except Problem as problem:
        return results.failed(problem.message)
    except Exception:
        log.exception("the tool %s failed", tool.name)
        return results.failed(_INTERNAL_ERROR)


def _with_files(operation: ChartOperation, work: Work, arguments: Mapping[str, Any]) -> Mapping[str, Any]:
    """Returns the arguments with files in place of base64. Raises `Invalid`, `TooLarge`, `OSError`."""
    given = dict(arguments)
    files = {
        field: given.pop(field.json_name)
        for field in operation.inputs
        if field.source == "file" and field.json_name in given
    }
    check_size(given)
    for field, value in files.items():
        if value is not None:
            file = work.subfolder("given") / field.name
            file.write_bytes(value if isinstance(value, bytes) else decoded_file(field.json_name, value))
            given[field.json_name] = file
    return given


def _cursor(value: Any) -> int:
    """The number of rows before a page. Raises `Invalid`."""
    if value in (None, ""):
        return 0
    if isinstance(value, str) and value.isascii() and value.isdigit() and len(value) < 10:
        return int(value)
    raise Invalid("cursor: must be the nextCursor of the page before")


def _query_text(value: Any) -> str:
    """Returns a value as a path or a query contains it."""
    return value if isinstance(value, str) else json.dumps(value)
