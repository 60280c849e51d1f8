"""`/mcp` and `/sse`: the paths of the tool server, which exist whether it is on or not, and its life in the house."""

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
from handlers.charts.operations import Operation
from handlers.http.permissions import USE_TOOLS
from handlers.mcp import asgi, inside
from handlers.mcp.asgi import Exchange
from handlers.mcp.derived_tools import chart_tools, rest_tools
from handlers.mcp.toolbox import Asker, Toolbox
from handlers.routing import Route, Service
from models.config.settings import Config
from models.errors import NotFound, Unavailable, WrongMethod
from supervisor.services import CannotStart, Services

if TYPE_CHECKING:
    from handlers.mcp.serving import Serving

LARGEST = 16 * 1024 * 1024
"""Bytes of a message: a chart that is pushed comes as base64."""
_MOST_SESSIONS = 1000
_IDLE = 1800.0


def is_installed() -> bool:
    """Whether the SDK is there; it is not imported."""
    return importlib.util.find_spec("mcp") is not None


def why_off(config: Config) -> str | None:
    """Why there are no tools, if there are none."""
    if config.svc.mcp.enabled is False:
        return "the tool server is switched off (svc.mcp.enabled)"
    return None if is_installed() else "the tool server is not installed (pip install 'pilothouse[mcp]')"


def check_installed(config: Config) -> None:
    """Raises `CannotStart` where tools are wanted that there cannot be."""
    if config.svc.mcp.enabled and not is_installed():
        raise CannotStart("svc.mcp.enabled: the tool server is not installed (pip install 'pilothouse[mcp]')")


class Tools:
    """The tool server of the house: made at the first request to it."""

    def __init__(
        self, application: Application, services: Services, served: Sequence[Service], operations: Sequence[Operation]
    ) -> None:
        self._application = application
        self._services = services
        tools = [*chart_tools(operations), *rest_tools(served)]
        self._toolbox = Toolbox(lambda: services.config, tools, lambda: services.charts)
        self._making = asyncio.Lock()
        self._serving: Serving | None = None
        self._open: set[Exchange] = set()
        self._is_closed = False

    async def serve(self, handler: ToolHandler, what: str) -> None:
        """Answers a request by the application `what` of `Serving`. Raises `Unavailable`."""
        application: asgi.Application = getattr(await self._made(), what)
        exchange = self._exchange(handler)
        self._open.add(exchange)
        handler.exchange = exchange
        try:
            await exchange.run(application)
        finally:
            self._open.discard(exchange)

    def _exchange(self, handler: ToolHandler) -> Exchange:
        who = handler.caller
        if who.credential is not None and who.credential.kind != "token":
            who = evolve(who, credential=None)
        exchange: Exchange

        async def ask(method: str, path: str, body: bytes) -> tuple[int, str, bytes]:
            return await inside.ask(self._application, handler.request, method, path, body)

        asker = Asker(who, ask, lambda callback: exchange.when_left(callback))
        exchange = Exchange(handler, handler.prefix, {"pilothouse.asker": asker})
        return exchange

    async def _made(self) -> Serving:
        async with self._making:
            if self._is_closed:
                raise Unavailable("pilothouse is stopping")
            if self._serving is None:
                module = await asyncio.to_thread(importlib.import_module, "handlers.mcp.serving")
                most = min(_MOST_SESSIONS, self._services.config.server.max_streams)
                serving: Serving = module.Serving(self._toolbox, LARGEST, most, _IDLE)
                await serving.start()
                self._serving = serving
            return self._serving

    async def close(self) -> None:
        """Ends all sessions and open answers."""
        async with self._making:
            self._is_closed = True
            for exchange in tuple(self._open):
                exchange.leave()
            if self._serving is not None:
                await self._serving.close()


class ToolHandler(Base):
    """A path of the tools. Whether it is there, and what it takes, is not said to who has not the key."""

    permission = USE_TOOLS
    rejects_cross_site_reads = True
    max_body = LARGEST
    takes: ClassVar[Mapping[str, str]] = {}
    """By method, which application of `Serving` answers."""
    exchange: Exchange | None = None

    def prepare(self) -> None:
        if not self.takes:
            raise NotFound("there is nothing at this path")
        if why := why_off(self.services.config):
            raise NotFound(why)
        if self.request.method not in self._allowed():
            raise WrongMethod(f"{self.request.method} is not for this path", self._allowed())

    def _allowed(self) -> tuple[str, ...]:
        return (*self.takes, *(["HEAD"] if "GET" in self.takes else []), "OPTIONS")

    async def get(self) -> None:
        tools: Tools = self.settings["tools"]
        await tools.serve(self, self.takes[self.request.method or ""])

    post = put = delete = get

    def options(self, *arguments: str) -> None:
        super().options()
        self.set_header("Allow", ", ".join(self._allowed()))

    async def head(self, *arguments: str) -> None:
        self.set_header("Content-Type", "text/event-stream")

    def on_connection_close(self) -> None:
        super().on_connection_close()
        if self.exchange is not None:
            self.exchange.leave()


class StreamableHttp(ToolHandler):
    takes: ClassVar = {"GET": "http", "POST": "http", "DELETE": "http"}


class Sse(ToolHandler):
    takes: ClassVar = {"GET": "sse"}


class Messages(ToolHandler):
    takes: ClassVar = {"POST": "messages"}


class Nothing(ToolHandler):
    """Whatever else lies below these paths: nothing does."""


class DecodedPath(PathMatches):
    """Matches the path as it is meant: `/%6dcp` is `/mcp`, and has the same gate."""

    def match(self, request: HTTPServerRequest) -> dict[str, Any] | None:
        return {} if self.regex.match(unquote(request.path)) else None


routes: list[Route] = [
    (r"/mcp", StreamableHttp, DecodedPath),
    (r"/sse", Sse, DecodedPath),
    (r"/sse/messages", Messages, DecodedPath),
    (r"/(?:mcp|sse)/.*", Nothing, DecodedPath),
]
