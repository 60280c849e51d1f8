"""The tool server as the SDK has it: over streamable HTTP, over SSE, and over the streams of a process.

This module is imported at the first request to the tools (`handlers/mcp/handler.py`), and not before: with the SDK
come tens of megabytes.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import logging
from collections.abc import AsyncIterator, Callable
from typing import Any, cast

import anyio
import mcp_types as types
from mcp.server.lowlevel import Server
from mcp.server.sse import SseServerTransport
from mcp.server.stdio import stdio_server
from mcp.server.streamable_http_manager import StreamableHTTPSessionManager
from mcp.shared.exceptions import MCPError

from handlers.mcp.asgi import Application, Message
from handlers.mcp.derived_tools import Tool
from handlers.mcp.results import Result
from handlers.mcp.toolbox import Asker, Toolbox
from handlers.mcp.unanswered import Unanswered
from models import VERSION
from models.errors import NotFound, Unavailable

FACT = "pilothouse.asker"
"""Where a request's scope has its `Asker`."""

_INSTRUCTIONS = (
    "Pilothouse looks after one small host: process_* start, stop and watch its processes, event_list is their history;"
    " helm_* handle Helm releases, charts and chart repositories; project_list, run_list, run_detail, gate_verdict and"
    " flaky_tests tell of test and coverage reports."
)
_MESSAGES = "/sse/messages"


def _is_news(record: logging.LogRecord) -> bool:
    """Not that a session was ended while a request was on its way to it: the SDK tells of that with a trace."""
    return record.exc_info is None or not isinstance(record.exc_info[1], anyio.ClosedResourceError)


logging.getLogger("mcp.server.streamable_http").addFilter(_is_news)


def server(toolbox: Toolbox, asker: Callable[[Any], Asker]) -> Server[Any]:
    """`asker` finds who calls from what the transport knows of the request."""

    async def listed(context: Any, _: Any) -> types.ListToolsResult:
        return types.ListToolsResult(tools=[_tool(one) for one in toolbox.listed(asker(context.request).caller)])

    async def called(context: Any, params: types.CallToolRequestParams) -> types.CallToolResult:
        try:
            tool = toolbox.find(params.name)
        except NotFound as problem:
            raise MCPError(types.INVALID_PARAMS, problem.message) from None
        return _result(await toolbox.call(tool, params.arguments or {}, asker(context.request)))

    made: Server[Any] = Server(
        "pilothouse",
        version=VERSION,
        title="Pilothouse",
        instructions=_INSTRUCTIONS,
        get_tool_input_schema=toolbox.schema,
        on_list_tools=listed,
        on_call_tool=called,
    )
    return made


class Serving:
    """The two HTTP transports, and the sessions of both. `most`: how many of each there may be."""

    def __init__(self, toolbox: Toolbox, largest: int, most: int, idle: float) -> None:
        """`largest` is how many bytes a message may have; after `idle` seconds a session is over."""
        for name in ("mcp", "sse_starlette"):
            logging.getLogger(name).setLevel(logging.WARNING)  # ids of sessions are no matter for the log
        logging.getLogger("mcp.server.sse").setLevel(logging.CRITICAL)  # it traces what a client has sent amiss
        self._server = server(toolbox, lambda request: request.scope[FACT])
        self._manager = StreamableHTTPSessionManager(
            self._server, session_idle_timeout=idle, max_sessions=most, max_request_body_size=largest
        )
        self._sse = SseServerTransport(_MESSAGES, max_request_body_size=largest)
        self._most = most
        self._open = 0
        self._ready = asyncio.Event()
        self._enough = asyncio.Event()
        self._life: asyncio.Task[None] | None = None

    async def start(self) -> None:
        self._life = asyncio.create_task(self._live(), name="tools")
        await self._ready.wait()

    async def _live(self) -> None:
        async with self._manager.run():
            self._ready.set()
            await self._enough.wait()

    async def close(self) -> None:
        """Ends all sessions."""
        self._enough.set()
        if self._life is not None:
            await self._life

    @property
    def http(self) -> Application:
        return self._manager.handle_request

    async def messages(self, scope: Message, receive: Any, send: Any) -> None:
        with contextlib.suppress(
            anyio.BrokenResourceError, anyio.ClosedResourceError
        ):  # it was taken, and nobody is left
            await self._sse.handle_post_message(scope, receive, send)

    async def sse(self, scope: Message, receive: Any, send: Any) -> None:
        """Raises `Unavailable`."""
        if self._open >= self._most:
            raise Unavailable(f"all {self._most} sessions of tools are taken")
        self._open += 1
        try:
            async with self._sse.connect_sse(scope, receive, send) as (read, write):
                await self._server.run(read, write, self._server.create_initialization_options())
        finally:
            self._open -= 1


async def serve_streams(toolbox: Toolbox, asker: Asker, lines: AsyncIterator[str] | None = None) -> None:
    """Serves whoever started this process, over its standard streams, until they are closed.

    `lines` are those of standard input; `None`: they are read here, and it cannot be ended before they end.
    """
    made, unanswered = server(toolbox, lambda _: asker), Unanswered()
    asked = None if lines is None else unanswered.until_over(lines)
    async with stdio_server(cast("Any", asked)) as (read, write):
        await made.run(read, unanswered.noting(write), made.create_initialization_options())


def _tool(one: Tool) -> types.Tool:
    hints = types.ToolAnnotations(
        title=one.title,
        read_only_hint=not one.is_mutating,
        destructive_hint=one.is_destructive,
        idempotent_hint=one.is_idempotent,
    )
    return types.Tool(
        name=one.name, title=one.title, description=one.about, input_schema=dict(one.schema), annotations=hints
    )


def _result(result: Result) -> types.CallToolResult:
    content: list[types.ContentBlock] = [types.TextContent(type="text", text=result.text)]
    content += [types.TextContent(type="text", text=f"warning: {line}") for line in result.warnings]
    if result.blob is not None:
        blob = types.BlobResourceContents(
            uri=f"pilothouse://charts/{result.blob.name}",
            mime_type=result.blob.media_type,
            blob=base64.b64encode(result.blob.content).decode(),
        )
        content.append(types.EmbeddedResource(type="resource", resource=blob))
    return types.CallToolResult(content=content, structured_content=result.object, is_error=result.is_error)
