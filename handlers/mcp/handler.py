"""`/mcp` and `/sse`: the tool server within the application. The paths exist whether it is enabled or not."""

from __future__ import annotations

import asyncio
import importlib
import importlib.util
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar
from urllib.parse import unquote

from attrs import evolve
from tornado.httputil import HTTPServerRequest
from tornado.routing import PathMatches
from tornado.web import Application

from handlers.base import Base
from handlers.charts.operations import helm_caller
from handlers.http.permissions import USE_TOOLS
from handlers.http.proxy import is_forwarded
from handlers.mcp import bridge
from handlers.mcp.bridge import Exchange
from handlers.mcp.derived_tools import tools_of
from handlers.mcp.toolbox import Toolbox, ToolCaller, ToolSelection
from handlers.routing import Route, Service
from models.charts.tool_messages import Kind, SmallMessage, shortened
from models.config.settings import Config
from models.errors import NotFound, Unavailable, WrongMethod
from models.json_format import SMALL_BODY_BYTES
from supervisor.services import CannotStart, Services

if TYPE_CHECKING:
    from handlers.mcp.sdk_server import HttpTransports

MAX_MESSAGE_BYTES = 16 * 1024 * 1024
"""A chart that is pushed arrives as base64."""
MAX_SESSIONS = 1000
SESSION_IDLE_SECONDS = 1800.0


def is_installed() -> bool:
    """Whether the SDK is installed, without importing it."""
    return importlib.util.find_spec("mcp") is not None


def why_disabled(config: Config) -> str | None:
    """Returns why there are no tools, or None where there are."""
    if config.svc.mcp.enabled is False:
        return "the tool server is disabled (svc.mcp.enabled)"
    return None if is_installed() else "the tool server is not installed (pip install 'pilothouse[mcp]')"


def check_installed(config: Config) -> None:
    """Raises `CannotStart` where tools are required and not installed."""
    if config.svc.mcp.enabled and not is_installed():
        raise CannotStart("svc.mcp.enabled: the tool server is not installed (pip install 'pilothouse[mcp]')")


class Tools:
    """The tool server, created at the first request to it."""

    def __init__(self, application: Application, services: Services, served: Sequence[Service]) -> None:
        self._application = application
        self._services = services
        tools = tools_of(served, bool(services.config.svc.kube.contexts))
        self._toolbox = Toolbox(lambda: services.config, tools, lambda: services.charts)
        self._creating = asyncio.Lock()
        self._transports: HttpTransports | None = None
        self._open: set[Exchange] = set()
        self._is_closed = False

    async def serve(self, handler: ToolHandler, transport: str) -> None:
        """Answers a request by a transport of `HttpTransports`. Raises `Unavailable`."""
        application: bridge.Application = getattr(await self._created(), transport)
        exchange = self._exchange(handler)
        self._open.add(exchange)
        handler.when_left(exchange.disconnect)
        try:
            await exchange.run(application)
        finally:
            self._open.discard(exchange)

    def _exchange(self, handler: ToolHandler) -> Exchange:
        caller = handler.caller
        if caller.credential is not None and caller.credential.kind != "token":
            caller = evolve(caller, credential=None)  # agents have tokens, not sessions
        exchange: Exchange

        async def send(method: str, path: str, body: bytes) -> tuple[int, str, bytes]:
            is_passed_on = is_forwarded(handler.request, handler.config)
            return await bridge.internal_request(self._application, handler.request, is_passed_on, method, path, body)

        selection = ToolSelection.of_query(
            handler.get_query_argument("toolsets", None), handler.get_query_argument("readonly", None)
        )
        tool_caller = ToolCaller(
            caller, send, lambda callback: exchange.on_disconnect(callback), selection, handler.message
        )
        exchange = Exchange(handler, handler.prefix, {"pilothouse.caller": tool_caller})
        return exchange

    def large_arguments(self) -> Mapping[str, Mapping[str, Kind]]:
        """The arguments that may be large, by tool."""
        return self._toolbox.large_arguments()

    async def _created(self) -> HttpTransports:
        async with self._creating:
            if self._is_closed:
                raise Unavailable("pilothouse is stopping")
            if self._transports is None:
                module = await asyncio.to_thread(importlib.import_module, "handlers.mcp.sdk_server")
                max_sessions = min(MAX_SESSIONS, self._services.config.server.max_streams)
                transports: HttpTransports = module.HttpTransports(
                    self._toolbox, MAX_MESSAGE_BYTES, max_sessions, SESSION_IDLE_SECONDS
                )
                await transports.start()
                self._transports = transports
            return self._transports

    async def close(self) -> None:
        """Ends all sessions and open responses."""
        async with self._creating:
            self._is_closed = True
            for exchange in tuple(self._open):
                exchange.disconnect()
            if self._transports is not None:
                await self._transports.close()


class ToolHandler(Base):
    """A path of the tool server. Callers without the key learn neither whether it exists nor its methods."""

    permission = USE_TOOLS
    rejects_cross_site_reads = True
    max_body = MAX_MESSAGE_BYTES
    transports: ClassVar[Mapping[str, str]] = {}
    """By method, the transport of `HttpTransports` that answers."""
    message: SmallMessage | None = None

    def prepare(self) -> None:
        if not self.transports:
            raise NotFound("nothing is served at this path")
        if reason := why_disabled(self.config):
            raise NotFound(reason)
        if self.request.method not in self._allowed():
            raise WrongMethod(f"the method {self.request.method} is not allowed here", self._allowed())

    def _allowed(self) -> tuple[str, ...]:
        return (*self.transports, *(["HEAD"] if "GET" in self.transports else []), "OPTIONS")

    async def get(self) -> None:
        tools: Tools = self.settings["tools"]
        if len(self.request.body) > SMALL_BODY_BYTES:
            self.message = await self._shortened(tools.large_arguments())
            self.request.body = self.message.body
        await tools.serve(self, self.transports[self.request.method or ""])

    post = put = delete = get

    async def _shortened(self, kinds: Mapping[str, Mapping[str, Kind]]) -> SmallMessage:
        """A large message without what may be large, read in a worker process. Raises as `Workers.run`."""
        with self.charts.helm.called_by(helm_caller(self.caller)):
            work = self.charts.workers.run(shortened, self.request.body, kinds)
            shortening = asyncio.ensure_future(work)
        self.when_left(shortening.cancel)
        try:
            return await shortening
        except asyncio.CancelledError:
            if not shortening.cancelled():
                raise
            raise Unavailable("the client has disconnected") from None

    def options(self, *arguments: str) -> None:
        super().options()
        self.set_header("Allow", ", ".join(self._allowed()))

    async def head(self, *arguments: str) -> None:
        self.set_header("Content-Type", "text/event-stream")
        await self.flush()  # `finish` would add a Content-Length of 0


class StreamableHttp(ToolHandler):
    transports: ClassVar = {"GET": "http", "POST": "http", "DELETE": "http"}


class Sse(ToolHandler):
    transports: ClassVar = {"GET": "sse"}


class Messages(ToolHandler):
    transports: ClassVar = {"POST": "messages"}


class Missing(ToolHandler):
    """Every other path below these: 404, for callers with the key."""


class DecodedPath(PathMatches):
    """Matches the decoded path: `/%6dcp` is `/mcp`, with the same permission."""

    def match(self, request: HTTPServerRequest) -> dict[str, Any] | None:
        return {} if self.regex.match(unquote(request.path)) else None


routes: list[Route] = [
    (r"/mcp", StreamableHttp, DecodedPath),
    (r"/sse", Sse, DecodedPath),
    (r"/sse/messages", Messages, DecodedPath),
    (r"/(?:mcp|sse)/.*", Missing, DecodedPath),
]
