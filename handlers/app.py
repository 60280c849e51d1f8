"""The house: who serves which path, and the door through which every request comes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tornado.httputil import HTTPMessageDelegate, HTTPServerRequest
from tornado.routing import Rule
from tornado.web import Application, RequestHandler

from handlers import events, live, pages, processes, system, wire
from handlers.base import Page, Refusal, methods
from handlers.gates import SAFE, caller, check_host, check_site
from handlers.intake import Intake
from handlers.routing import API, Service, StreamPath, Told, login, owner, rule
from handlers.streams import Broadcast, Streams
from models.errors import LoginNeeded, NotFound, Problem, TooLarge, Unauthenticated, Unavailable, WrongMethod
from supervisor.services import Services

_HERE = Path(__file__).parent


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
        problem, limit = self._refused(request, target_class), 0
        if problem is not None:
            inner = self._refusal(request, problem)
        else:
            inner = super().get_handler_delegate(request, target_class, target_kwargs, path_args, path_kwargs)
            limit = getattr(target_class, "max_body", 0)
            if not getattr(target_class, "takes_forms", False):
                request.headers.pop("Content-Type", None)  # a body that nobody reads cannot be wrong
        too_large = TooLarge(f"the body is larger than {limit} bytes")
        most = self.services.config.server.max_body
        return Intake(request, inner, limit, most, lambda: self._refusal(request, too_large))

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
