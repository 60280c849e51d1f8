"""The house: who serves which path, and the door through which every request comes."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from pathlib import Path
from typing import Any

from tornado.httputil import HTTPHeaders, HTTPMessageDelegate, HTTPServerRequest, RequestStartLine, ResponseStartLine
from tornado.routing import Rule
from tornado.web import Application, RequestHandler

from handlers import events, live, pages, processes, system, wire
from handlers.base import Page, Refusal, methods
from handlers.gates import SAFE, caller, check_host, check_site
from handlers.routing import API, Service, StreamPath, Told, login, owner, rule
from handlers.streams import Broadcast, Streams
from models.errors import LoginNeeded, NotFound, Problem, TooLarge, Unauthenticated, Unavailable, WrongMethod
from supervisor.services import Services

_HERE = Path(__file__).parent
_DROPPING_TAKES = 10.0


def _error_response(told: Told) -> wire.ErrorResponse:
    code = told.code or {400: "VALIDATION_ERROR"}.get(told.status, told.reason.upper().replace(" ", "_"))
    return wire.ErrorResponse(wire.Instant(told.at), told.path, told.reason, told.message, code)


def _problem(told: Told) -> dict[str, Any]:
    return {
        "type": "about:blank",
        "title": told.reason,
        "status": told.status,
        "detail": told.message,
        "instance": told.path,
        "message": told.message,
    }


def _dated_problem(told: Told) -> dict[str, Any]:
    return _problem(told) | {"timestamp": wire.instant(told.at)}


SUPERVISION = Service(
    "supervision",
    "/supervision",
    [*processes.routes, *events.routes, *system.routes],
    "application/json",
    _error_response,
)
CHARTS = Service("charts", "/charts", [], "application/problem+json", _dated_problem)
TRACKER = Service("tracker", "/tracker", live.routes, "application/problem+json", _problem)

SERVICES = (SUPERVISION, CHARTS, TRACKER)


def rules(services: Services, streams: Streams) -> list[Rule]:
    """The URL map of the whole house."""
    arguments = {"services": services, "streams": streams}
    house = [
        rule(prefix, route, service=service, **arguments)
        for prefix, service in [("", SUPERVISION), *((service.prefix, service) for service in SERVICES)]
        for route in [*system.house_routes, *pages.routes]
    ]
    return [
        rule(API, ("/events", live.RunStream, StreamPath), service=TRACKER, **arguments),
        *SUPERVISION.mounted(**arguments),
        *CHARTS.mounted(**arguments),
        *TRACKER.mounted(**arguments),
        *house,
    ]


class House(Application):
    def __init__(self, services: Services) -> None:
        self.services = services
        self.streams = Streams(services.config.server)
        self.streams.statuses = Broadcast(live.status_block)
        services.changes.subscribe(self.streams.statuses.publish)
        arguments = {"services": services, "service": SUPERVISION, "streams": self.streams}
        super().__init__(
            rules(services, self.streams),
            default_handler_class=Refusal,
            default_handler_args=arguments,
            template_path=str(_HERE / "templates"),
            static_path=str(_HERE.parent / "static"),
            static_handler_class=pages.Static,
            static_handler_args={**arguments},
            log_function=system.log_request,
            listing=processes.Listing(services.fleet),
        )

    def get_handler_delegate(
        self,
        request: HTTPServerRequest,
        target_class: type[RequestHandler],
        target_kwargs: dict[str, Any] | None = None,
        path_args: list[bytes] | None = None,
        path_kwargs: dict[str, bytes] | None = None,
    ) -> Any:
        """Lets a request in, or has it refused; either way its body is read first, within bounds."""
        problem = self._refused(request, target_class)
        if problem is not None:
            return Intake(self, request, self._refusal(request, problem), 0)
        inner = super().get_handler_delegate(request, target_class, target_kwargs, path_args, path_kwargs)
        return Intake(self, request, inner, getattr(target_class, "max_body", 0))

    def _refused(self, request: HTTPServerRequest, target: type[RequestHandler]) -> Problem | None:
        try:
            check_host(request, self.services.config)
            if target is Refusal:
                return NotFound("there is nothing at this path")
            if request.method not in methods(target):
                return WrongMethod(f"{request.method} is not for this path", methods(target))
            if self.services.engine.closing:
                return Unavailable("pilothouse is stopping")
            check_site(request, self.services.config)
            if request.method != "OPTIONS":
                target.gate(caller(request, self.services.config), self.services.config)  # type: ignore[attr-defined]
        except Unauthenticated as problem:
            if issubclass(target, Page) and request.method in SAFE:
                return LoginNeeded(login(request.uri or "/", owner(request.path, SERVICES)))
            return problem
        except Problem as problem:
            return problem
        return None

    def _refusal(self, request: HTTPServerRequest, problem: Problem) -> HTTPMessageDelegate:
        service = owner(request.path, SERVICES) or SUPERVISION
        arguments = {"services": self.services, "service": service, "streams": self.streams, "problem": problem}
        return super().get_handler_delegate(request, Refusal, arguments)

    def too_large(self, request: HTTPServerRequest, limit: int) -> HTTPMessageDelegate:
        return self._refusal(request, TooLarge(f"the body is larger than {limit} bytes"))


class Intake(HTTPMessageDelegate):
    """Reads a request's body for its handler, up to `limit` bytes of it.

    A client that is still sending never sees an answer that comes with a closed connection: so what is refused is
    answered when its body was read and dropped, or when it has cost `server.max-body` bytes or ten seconds.
    """

    def __init__(self, house: House, request: HTTPServerRequest, inner: HTTPMessageDelegate, limit: int) -> None:
        self._house = house
        self._request = request
        self._inner = inner
        self._limit = limit
        self._seen = 0
        self._finished = False
        self._timer: asyncio.TimerHandle | None = None

    def headers_received(
        self, start_line: RequestStartLine | ResponseStartLine, headers: HTTPHeaders
    ) -> Awaitable[None] | None:
        connection: Any = self._request.connection
        connection.set_max_body_size(2**62)  # we count ourselves: Tornado's own limit closes without a word
        if self._limit and _announced(headers) > self._limit:
            self._refuse_size()
        elif not self._limit and _announced(headers):
            self._drop_within()
        return self._inner.headers_received(start_line, headers)

    def data_received(self, chunk: bytes) -> Awaitable[None] | None:
        self._seen += len(chunk)
        if self._limit and self._seen > self._limit:
            self._refuse_size()
        if self._limit:
            return self._inner.data_received(chunk)
        if self._seen > self._house.services.config.server.max_body:
            self.finish()
        return None

    def finish(self) -> None:
        if not self._finished:
            self._finished = True
            if self._timer is not None:
                self._timer.cancel()
            self._inner.finish()

    def on_connection_close(self) -> None:
        self._finished = True
        if self._timer is not None:
            self._timer.cancel()
        self._inner.on_connection_close()

    def _refuse_size(self) -> None:
        self._inner = self._house.too_large(self._request, self._limit)
        self._limit = 0
        self._drop_within()

    def _drop_within(self) -> None:
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(_DROPPING_TAKES, self.finish)


def _announced(headers: HTTPHeaders) -> int:
    length = headers.get("Content-Length", "")
    if length.isdigit():
        return int(length)
    return 1 if "Transfer-Encoding" in headers else 0
