"""The house: who serves which path, and the door through which every request comes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import tornado.web
from attrs import evolve
from tornado.httputil import HTTPMessageDelegate, HTTPServerRequest
from tornado.routing import Rule
from tornado.web import RequestHandler

from handlers.accounts import account, users
from handlers.accounts.remote_accounts import AccountLookup
from handlers.base import Base, Page, Refusal, methods
from handlers.charts.all_operations import OPERATIONS
from handlers.charts.handler import routes as chart_routes
from handlers.http import serializers
from handlers.http.body_limit import BodyLimit
from handlers.http.permissions import (
    ANONYMOUS,
    SAFE,
    Caller,
    FindCredential,
    admit,
    caller,
    check_host,
    check_site,
    shown,
    xsrf_cookie,
)
from handlers.http.sse import Broadcast, Streams
from handlers.mcp import handler as tools
from handlers.routing import API, ErrorDetails, Route, Service, StreamPath, owner, rule
from handlers.supervision import events, processes, system
from handlers.supervision import pages as process_pages
from handlers.supervision import streams as live
from handlers.tracker import badges, forms, ingest, projects, quality_gate
from handlers.tracker import pages as tracker_pages
from handlers.tracker import runs as run_reads
from handlers.tracker import stream as run_stream
from handlers.tracker.project_status import Boards
from handlers.tracker.stream import Runs, RunStream
from handlers.web import layout, pages
from models.config.settings import Config
from models.errors import Invalid, NotFound, Problem, Unauthenticated, Unavailable, WrongMethod
from supervisor.services import Services

_HERE = Path(__file__).parent
_FORMS = ("multipart/", "application/x-www-form-urlencoded")


def _error_response(told: ErrorDetails) -> serializers.ErrorResponse:
    code = told.code or {400: "VALIDATION_ERROR"}.get(told.status, told.reason.upper().replace(" ", "_"))
    return serializers.ErrorResponse(serializers.Instant(told.at), told.path, told.reason, told.message, code)


def _problem(told: ErrorDetails) -> serializers.ProblemDetail:
    return serializers.ProblemDetail("about:blank", told.reason, told.status, told.message, told.path, told.message)


def _dated_problem(told: ErrorDetails) -> serializers.DatedProblemDetail:
    at = serializers.Instant(told.at)
    return serializers.DatedProblemDetail(
        "about:blank", told.reason, told.status, told.message, told.path, told.message, at
    )


SUPERVISION = Service(
    "supervision",
    "/supervision",
    [*processes.routes, *events.routes, *system.routes],
    "application/json",
    _error_response,
)
CHARTS = Service("charts", "/charts", chart_routes(OPERATIONS), "application/problem+json", _dated_problem)
TRACKER = Service(
    "tracker",
    "/tracker",
    [
        *ingest.routes,
        *quality_gate.routes,
        *projects.routes,
        *run_reads.routes,
        *run_stream.routes,
        *account.routes,
    ],
    "application/problem+json",
    _problem,
)

SERVICES = (SUPERVISION, CHARTS, TRACKER)


Replaced = Mapping[str, Sequence[Route]]
"""A host application's own routes in place of those of a group of charts, by its name (`Operation.group`)."""


def served(config: Config, replaced: Replaced | None = None) -> tuple[Service, ...]:
    """The three, with the base paths that this configuration gives them, and what a host application has replaced."""
    charts = chart_routes([one for one in OPERATIONS if one.group not in (replaced or {})])
    charts += [route for routes in (replaced or {}).values() for route in routes]
    return SUPERVISION, evolve(CHARTS, routes=charts, base=config.svc.rest.base_path), TRACKER


def rules(services: Services, streams: Streams, replaced: Replaced | None = None) -> list[Rule]:
    """The URL map of the whole house."""
    arguments, each = {"services": services, "streams": streams}, served(services.config, replaced)
    tracker = [*badges.routes, *tracker_pages.routes, *forms.routes]
    house = [
        rule(prefix, route, service=service, **arguments)
        for prefix, service in [("", SUPERVISION), *((service.prefix, service) for service in each)]
        for route in [*system.common_routes, *pages.routes, *account.pages, *users.pages, *tracker, *tools.routes]
    ]
    return [
        rule(API, ("/events", RunStream, StreamPath), service=TRACKER, **arguments),
        *(one for service in each for one in service.mounted(**arguments)),
        *house,
    ]


class Application(tornado.web.Application):
    def __init__(self, services: Services, replaced: Replaced | None = None) -> None:
        self.services = services
        self.served = served(services.config, replaced)
        self.streams = Streams(services.config.server)
        self.streams.statuses = Broadcast(live.status_block)
        services.changes.subscribe(self.streams.statuses.publish)
        runs = Runs(services)
        services.runs.subscribe(runs.publish)
        operations = [one for one in OPERATIONS if one.group not in (replaced or {})]
        self.tools = tools.Tools(self, services, self.served, operations)
        arguments = {"services": services, "service": SUPERVISION, "streams": self.streams}
        super().__init__(
            rules(services, self.streams, replaced),
            default_handler_class=Refusal,
            default_handler_args=arguments,
            template_path=str(_HERE / "templates"),
            static_path=str(_HERE.parent / "static"),
            static_handler_class=pages.Static,
            static_handler_args={**arguments},
            log_function=system.log_request,
            xsrf_cookies=True,
            xsrf_cookie_name=xsrf_cookie(services),
            served=self.served,
            listing=processes.Listing(services.fleet),
            rows=process_pages.Rows(),
            boards=Boards(services),
            kept=layout.Kept(),
            runs=runs,
            tools=self.tools,
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
        let_in = partial(self._let_in, request, target_class, target_kwargs, path_args, path_kwargs)
        said = shown(request, self.services) if self.services.is_shared else None
        if said is None:
            return let_in(self.services.accounts.known)
        return AccountLookup(self.services.accounts.look_up(said), let_in)

    def _let_in(
        self,
        request: HTTPServerRequest,
        target_class: type[RequestHandler],
        target_kwargs: dict[str, Any] | None,
        path_args: list[bytes] | None,
        path_kwargs: dict[str, bytes] | None,
        look: FindCredential,
    ) -> HTTPMessageDelegate:
        who, problem = self._ask(request, target_class, look)
        problem = problem or _fault_of(path_args or ())
        limit, routed = 0, None if target_class is Refusal else (target_kwargs or {}).get("service")
        if problem is not None:
            inner = self._refusal(request, problem, who, routed)
        else:
            arguments = {**(target_kwargs or {}), "caller": who}
            inner = super().get_handler_delegate(request, target_class, arguments, path_args, path_kwargs)
            limit = target_class.body_limit(self.services.config) if issubclass(target_class, Base) else 0
            reads_forms = request.method not in SAFE and getattr(target_class, "takes_forms", False)
            if not reads_forms and request.headers.get("Content-Type", "").lower().startswith(_FORMS):
                del request.headers["Content-Type"]  # a body that nobody reads cannot be wrong
        most = self.services.config.server.max_body
        return BodyLimit(request, inner, limit, most, lambda problem: self._refusal(request, problem, who, routed))

    def _ask(
        self, request: HTTPServerRequest, target: type[RequestHandler], look: FindCredential
    ) -> tuple[Caller, Problem | None]:
        """Who asks, and why this is refused, if it is. A page that wants an account leads to the login."""
        who, config = ANONYMOUS, self.services.config
        assert issubclass(target, Base)
        try:
            self._check(request, target)
            if request.method == "OPTIONS":
                return who, None
            target.check_open(request.method or "", config)
            who = caller(request, self.services, look)
            admit(who, target.permission_of(request.method or ""), config)
        except Unauthenticated as problem:
            if issubclass(target, Page) and who is not ANONYMOUS and not who.is_known:
                return who, target.login_needed(request, _prefix(request.path))
            return who, problem
        except NotFound as problem:
            return self._recognised(request, look), problem
        except Problem as problem:
            return who, problem
        return who, None

    def _recognised(self, request: HTTPServerRequest, look: FindCredential) -> Caller:
        """Who asks for what there is not: a page says so to whom it says it."""
        try:
            return caller(request, self.services, look)
        except Problem:
            return ANONYMOUS

    def _check(self, request: HTTPServerRequest, target: type[Base]) -> None:
        """Whether anybody may ask this. Raises `Problem`."""
        check_host(request, self.services.config)
        if target is Refusal:
            raise NotFound("there is nothing at this path")
        if request.method not in methods(target):
            raise WrongMethod(f"{request.method} is not for this path", methods(target))
        if self.services.context.closing:
            raise Unavailable("pilothouse is stopping")
        check_site(request, self.services.config, target.minds_site)

    def _refusal(
        self, request: HTTPServerRequest, problem: Problem, who: Caller, routed: Service | None = None
    ) -> HTTPMessageDelegate:
        """`routed` is the service that the request was for: at the root its `Accept` may have decided, not its path."""
        service = routed or owner(request.path, self.served) or SUPERVISION
        arguments = {
            "services": self.services,
            "service": service,
            "streams": self.streams,
            "caller": who,
            "problem": problem,
        }
        return super().get_handler_delegate(request, Refusal, arguments)


def _fault_of(words: Sequence[bytes | None]) -> Problem | None:
    """What is wrong with the variables of a path, before a handler takes the body that comes with it."""
    for word in words:
        try:
            text = (word or b"").decode()
        except UnicodeDecodeError:
            return Invalid("the path is not UTF-8")
        if "\0" in text:
            return Invalid("a NUL is in the path")
    return None


def _prefix(path: str) -> str:
    return next((one.prefix for one in SERVICES if path == one.prefix or path.startswith(one.prefix + "/")), "")
