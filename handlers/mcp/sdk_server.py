"""The MCP server of the SDK: over streamable HTTP, over SSE, and over standard input and output.

Imported at the first request to the tools (`handlers/mcp/handler.py`) and not before: the SDK takes 55 MB.
"""

from __future__ import annotations

import asyncio
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

from handlers.mcp.bridge import Application, Message
from handlers.mcp.compact_schemas import SHARED
from handlers.mcp.sdk_answers import Answers
from handlers.mcp.toolbox import Toolbox, ToolCaller
from models import VERSION
from models.errors import Unavailable

CALLER_KEY = "pilothouse.caller"
"""The key of the `ToolCaller` in an ASGI scope."""

_INSTRUCTIONS = (
    "Pilothouse manages one small host: process_* start, stop and watch its processes, event_list is their history;"
    " helm_* handle Helm releases, charts and chart repositories; project_list, run_list, run_detail, gate_verdict and"
    " flaky_tests report on test and coverage results. Arguments of several tools: "
    + "; ".join(f"{name}: {text}" for name, text in SHARED.items())
    + "."
)
_MESSAGES_PATH = "/sse/messages"


def _is_fault(record: logging.LogRecord) -> bool:
    """Drops the traceback that the SDK logs when a session ends while a request to it is on its way."""
    return record.exc_info is None or not isinstance(record.exc_info[1], anyio.ClosedResourceError)


logging.getLogger("mcp.server.streamable_http").addFilter(_is_fault)


def make_server(toolbox: Toolbox, caller_of: Callable[[Any], ToolCaller]) -> Server[Any]:
    """`caller_of` returns the caller of a transport's request."""
    answers = Answers(toolbox, caller_of)
    server: Server[Any] = Server(
        "pilothouse",
        version=VERSION,
        title="Pilothouse",
        instructions=_INSTRUCTIONS,
        get_tool_input_schema=toolbox.schema,
        on_list_tools=answers.list_tools,
        on_call_tool=answers.call_tool,
        on_list_prompts=answers.list_prompts,
        on_get_prompt=answers.get_prompt,
        on_list_resources=answers.list_resources,
        on_list_resource_templates=answers.list_resource_templates,
        on_read_resource=answers.read_resource,
    )
    return server


class HttpTransports:
    """Streamable HTTP and SSE, and the sessions of both."""

    def __init__(self, toolbox: Toolbox, max_message: int, max_sessions: int, idle_seconds: float) -> None:
        """`max_message` is in bytes; `max_sessions` limits each transport."""
        for name in ("mcp", "sse_starlette"):
            logging.getLogger(name).setLevel(logging.WARNING)  # they log the ids of sessions
        logging.getLogger("mcp.server.sse").setLevel(logging.CRITICAL)  # it logs a traceback for each malformed message
        self._server = make_server(toolbox, lambda request: request.scope[CALLER_KEY])
        self._manager = StreamableHTTPSessionManager(
            self._server,
            session_idle_timeout=idle_seconds,
            max_sessions=max_sessions,
            max_request_body_size=max_message,
        )
        self._sse = SseServerTransport(_MESSAGES_PATH, max_request_body_size=max_message)
        self._max_sessions = max_sessions
        self._open = 0
        self._ready = asyncio.Event()
        self._stop_requested = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    async def start(self) -> None:
        self._task = asyncio.create_task(self._run(), name="tools")
        await self._ready.wait()

    async def _run(self) -> None:
        async with self._manager.run():
            self._ready.set()
            await self._stop_requested.wait()

    async def close(self) -> None:
        """Ends all sessions."""
        self._stop_requested.set()
        if self._task is not None:
            await self._task

    @property
    def http(self) -> Application:
        return self._manager.handle_request

    async def messages(self, scope: Message, receive: Any, send: Any) -> None:
        with contextlib.suppress(
            anyio.BrokenResourceError, anyio.ClosedResourceError
        ):  # the message was accepted, and its session has ended
            await self._sse.handle_post_message(scope, receive, send)

    async def sse(self, scope: Message, receive: Any, send: Any) -> None:
        """Raises `Unavailable`."""
        if self._open >= self._max_sessions:
            raise Unavailable(f"all {self._max_sessions} tool sessions are in use")
        self._open += 1
        try:
            async with self._sse.connect_sse(scope, receive, send) as (read, write):
                await self._server.run(read, write, self._server.create_initialization_options())
        finally:
            self._open -= 1


async def serve_stdio(toolbox: Toolbox, caller: ToolCaller, lines: AsyncIterator[str] | None = None) -> None:
    """Serves over standard input and output until the input ends.

    `lines` are the lines of standard input; with None the SDK reads it, and only its end ends this.
    """
    server, pending = make_server(toolbox, lambda _: caller), PendingRequests()
    requests = None if lines is None else pending.until_answered(lines)
    async with stdio_server(cast("Any", requests)) as (read, write):
        await server.run(read, pending.track(write), server.create_initialization_options())


class PendingRequests:
    """The ids of requests without a response yet.

    The SDK ends a conversation at the end of its input and drops the requests in progress. So its input ends when every
    request has a response: `printf … | run.py mcp` prints all of them.
    """

    def __init__(self) -> None:
        self._ids: set[int | str] = set()
        self._changed = asyncio.Event()

    def add(self, line: str) -> None:
        """Reads a line of input as the SDK does, which answers nothing to a line that is no message."""
        try:
            message = types.jsonrpc_message_adapter.validate_json(line, by_name=False)
        except ValueError:
            return
        if isinstance(message, types.JSONRPCRequest):
            self._ids.add(message.id)
        elif isinstance(message, types.JSONRPCNotification) and message.method == "notifications/cancelled":
            self._remove((message.params or {}).get("requestId"))  # it gets no response

    def _remove(self, id: Any) -> None:
        if isinstance(id, int | str):
            self._ids.discard(id)
        self._changed.set()

    async def until_answered(self, lines: AsyncIterator[str]) -> AsyncIterator[str]:
        """Yields `lines`, and ends when all of their requests have a response."""
        async for line in lines:
            self.add(line)
            yield line
        while self._ids:
            self._changed.clear()
            await self._changed.wait()

    def track(self, write: Any) -> Any:
        """Wraps the SDK's stream of responses and removes the id of each."""
        return _TrackedStream(write, self._remove)


class _TrackedStream:
    def __init__(self, write: Any, on_sent: Callable[[Any], None]) -> None:
        self._write = write
        self._on_sent = on_sent

    async def send(self, item: Any) -> None:
        await self._write.send(item)
        self._on_sent(getattr(item.message, "id", None))

    async def aclose(self) -> None:
        await self._write.aclose()

    async def __aenter__(self) -> Any:
        await self._write.__aenter__()
        return self

    async def __aexit__(self, *error: Any) -> Any:
        return await self._write.__aexit__(*error)
