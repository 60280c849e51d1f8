"""The application: its routes, and the authentication and authorization of every request."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any
from weakref import WeakSet

import tornado.web
from attrs import evolve
from tornado.httputil import HTTPConnection, HTTPMessageDelegate, HTTPServerRequest
from tornado.routing import Rule
from tornado.web import RequestHandler

from handlers.accounts import account, single_sign_on
from handlers.base import Base, HtmlPage, Refusal, methods
from handlers.charts import release_list, release_pages, repository_pages
from handlers.charts.handler import OPERATIONS
from handlers.charts.handler import routes as chart_routes
from handlers.http import serializers
from handlers.http.body_limit import BodyLimit
from handlers.http.credentials import (
    ANONYMOUS,
    AccountLookup,
    Caller,
    FindCredential,
    identify_caller,
    presented_credential,
    xsrf_cookie,
)
from handlers.http.head_limit import HeadLimit, head_problem
from handlers.http.origin import SAFE_METHODS, check_host, check_origin
from handlers.http.permissions import admit
from handlers.http.sse import Broadcast, Streams
from handlers.http.stream_credentials import StreamCredentials
from handlers.mcp import handler as mcp
from handlers.openapi import pages as openapi_pages
from handlers.outbound import channels, outbox
from handlers.outbound import pages as outbound_pages
from handlers.outbound import rules as notification_rules
from handlers.routing import API, ErrorDetails, Route, Service, StreamPath, owner, rule
from handlers.server import own_log, system
from handlers.supervision import (
    events,
    log_reads,
    process_metrics,
    process_table,
    processes,
    selection,
)
from handlers.supervision import pages as process_pages
from handlers.supervision import streams as status_streams
from handlers.tracker import attachments, ingest, perf, projects, source, triage, uploader
from handlers.tracker import runs as run_reads
from handlers.tracker import stream as run_stream
from handlers.tracker.pages import (
    badges,
    commit_pages,
    commits,
    compare_page,
    failure_pages,
    forms,
    insight_page,
    open_projects,
    tracker_pages,
)
from handlers.tracker.project_status import ProjectStatusCache
from handlers.tracker.stream import RunFeed, RunStream
from handlers.web import documents, layout, live, overview, search, static, timeline
from models.config.settings import Config
from models.errors import Invalid, NotFound, Problem, Unauthenticated, Unavailable, WrongMethod
from models.json_format import Instant
from models.tracker.runs.kept_answers import KeptAnswers
from supervisor.services import Services
from supervisor.single_flight import SingleFlight

_HERE = Path(__file__).parent
_FORMS = ("multipart/", "application/x-www-form-urlencoded")


def _error_response(error: ErrorDetails) -> serializers.ErrorResponse:
    code = error.code or {400: "VALIDATION_ERROR"}.get(error.status, error.reason.upper().replace(" ", "_"))
    return serializers.ErrorResponse(Instant(error.at), error.path, error.reason, error.message, code)


def _problem(error: ErrorDetails) -> serializers.ProblemDetail:
    return serializers.ProblemDetail(
        "about:blank", error.reason, error.status, error.message, error.path, error.message
    )


def _dated_problem(error: ErrorDetails) -> serializers.DatedProblemDetail:
    at = Instant(error.at)
    code = (error.code or error.reason).lower().replace("_", "-").replace(" ", "-")
    return serializers.DatedProblemDetail(
        "about:blank", error.reason, error.status, error.message, error.path, error.message, at, code
    )


SUPERVISION = Service(
    "supervision",
    "/supervision",
    [
        *processes.routes,
        *log_reads.routes,
        *selection.routes,
        *events.routes,
        *system.routes,
        *own_log.routes,
        *live.routes,
        *search.api_routes,
        *process_metrics.routes,
    ],
    "application/json",
    _error_response,
)
CHARTS = Service("charts", "/charts", chart_routes(OPERATIONS), "application/problem+json", _dated_problem)
TRACKER = Service(
    "tracker",
    "/tracker",
    [
        *ingest.routes,
        *projects.routes,
        *open_projects.routes,
        *run_reads.routes,
        *triage.routes,
        *commits.routes,
        *attachments.routes,
        *source.routes,
        *perf.routes,
        *run_stream.routes,
        *account.routes,
        *single_sign_on.routes,
        *outbox.routes,
        *channels.routes,
        *notification_rules.routes,
    ],
    "application/problem+json",
    _problem,
)

SERVICES = (SUPERVISION, CHARTS, TRACKER)


PAGES: list[Route] = [
    *overview.routes,
    *process_pages.routes,
    *release_list.routes,
    *release_pages.routes,
    *repository_pages.routes,
    *openapi_pages.routes,
    *search.routes,
    *timeline.routes,
    *documents.routes,
    *static.routes,
]

Replaced = Mapping[str, Sequence[Route]]
"""The routes of a host application that replace those of a group of chart operations (`Operation.group`)."""


def served(config: Config, replaced: Replaced | None = None) -> tuple[Service, ...]:
    """Returns the three services, with the configured base path and a host application's routes."""
    charts = chart_routes([operation for operation in OPERATIONS if operation.group not in (replaced or {})])
    charts += [route for routes in (replaced or {}).values() for route in routes]
    return SUPERVISION, evolve(CHARTS, routes=charts, base=config.svc.rest.base_path), TRACKER


def rules(services: Services, streams: Streams, replaced: Replaced | None = None) -> list[Rule]:
    """Returns every route of the application."""
    arguments, mounted = {"services": services, "streams": streams}, served(services.config, replaced)
    tracker_routes = [
        *tracker_pages.routes,
        *failure_pages.routes,
        *insight_page.routes,
        *commit_pages.routes,
        *compare_page.routes,
        *source.pages,
        *perf.pages,
        *forms.routes,
        *outbound_pages.routes,
        *open_projects.page_routes,
    ]
    tracker = [*badges.routes, *uploader.routes, *tracker_routes]
    shared = [
        rule(prefix, route, service=service, **arguments)
        for prefix, service in [("", SUPERVISION), *((service.prefix, service) for service in mounted)]
        for route in [*system.common_routes, *PAGES, *account.pages, *single_sign_on.pages, *tracker, *mcp.routes]
    ]
    return [
        rule(API, ("/events", RunStream, StreamPath), service=TRACKER, **arguments),
        *(rule for service in mounted for rule in service.rules(**arguments)),
        *shared,
    ]


class Application(tornado.web.Application):
    def __init__(self, services: Services, replaced: Replaced | None = None) -> None:
        self.services = services
        self.served = served(services.config, replaced)
        self.streams = Streams(services.config.server)
        self.streams.statuses = Broadcast(status_streams.status_block)
        services.changes.subscribe(self.streams.statuses.publish)
        notice_stream = Broadcast(status_streams.notice_block)
        services.supervision.notices.published.subscribe(notice_stream.publish)
        runs = RunFeed(services.tracker, services.clock)
        services.tracker.updates.subscribe(runs.publish)
        self.answering: WeakSet[Base] = WeakSet()
        """The requests that are not answered yet."""
        self.tools = mcp.Tools(self, services, self.served)
        arguments = {"services": services, "service": SUPERVISION, "streams": self.streams}
        super().__init__(
            rules(services, self.streams, replaced),
            default_handler_class=Refusal,
            default_handler_args=arguments,
            template_path=str(_HERE / "templates"),
            static_path=str(_HERE.parent / "static"),
            static_handler_class=static.StaticFiles,
            static_handler_args={**arguments},
            log_function=system.log_request,
            xsrf_cookies=True,
            xsrf_cookie_name=xsrf_cookie(services),
            served=self.served,
            listing=processes.Listing(services.supervision.fleet),
            process_rows=process_table.ProcessRows(),
            project_statuses=ProjectStatusCache(services.tracker, services.config.tracker.quality_gate),
            kept_answers=KeptAnswers(),
            kept_answers_flights=SingleFlight(),
            interface_documents=SingleFlight(),
            fragments=layout.FragmentCache(),
            runs=runs,
            live=live.Live(services, self.streams, runs),
            tools=self.tools,
            answering=self.answering,
            notice_stream=notice_stream,
            stream_credentials=StreamCredentials(services.accounts),
        )

    def start_request(self, server_conn: object, request_conn: HTTPConnection) -> HTTPMessageDelegate:
        """Limits the head of a request before it is parsed."""
        return HeadLimit(super().start_request(server_conn, request_conn), request_conn)

    def get_handler_delegate(
        self,
        request: HTTPServerRequest,
        target_class: type[RequestHandler],
        target_kwargs: dict[str, Any] | None = None,
        path_args: list[bytes] | None = None,
        path_kwargs: dict[str, bytes] | None = None,
    ) -> Any:
        """Authenticates and authorizes a request before its body is read."""
        dispatch = partial(self._dispatch, request, target_class, target_kwargs, path_args, path_kwargs)
        accounts = self.services.accounts
        is_looked_up = self.services.is_shared or self.services.config.tracker.security.proxy_login.header is not None
        try:
            presented = presented_credential(request, self.services) if is_looked_up else None
        except Invalid:  # `_authorize` reports it
            presented = None
        if presented is None:
            return dispatch(accounts.find_credential)
        return AccountLookup(accounts.find_credential_remotely(presented), dispatch)

    def _dispatch(
        self,
        request: HTTPServerRequest,
        target_class: type[RequestHandler],
        target_kwargs: dict[str, Any] | None,
        path_args: list[bytes] | None,
        path_kwargs: dict[str, bytes] | None,
        find_credential: FindCredential,
    ) -> HTTPMessageDelegate:
        """Returns the delegate that reads the body, within limits, and then runs the handler or the refusal."""
        caller, problem = self._authorize(request, target_class, find_credential)
        problem = problem or _path_problem(path_args or ())
        limit, routed = 0, None if target_class is Refusal else (target_kwargs or {}).get("service")
        if problem is not None:
            inner = self._refusal(request, problem, caller, routed)
        else:
            arguments = {**(target_kwargs or {}), "caller": caller}
            inner = super().get_handler_delegate(request, target_class, arguments, path_args, path_kwargs)
            limit = (
                target_class.body_limit(self.services.config, request.method or "")
                if issubclass(target_class, Base)
                else 0
            )
            reads_forms = request.method not in SAFE_METHODS and getattr(target_class, "takes_forms", False)
            if not reads_forms and request.headers.get("Content-Type", "").lower().startswith(_FORMS):
                del request.headers["Content-Type"]  # Tornado would answer 400 for a malformed form that is not used
        max_body = self.services.config.server.max_body
        return BodyLimit(
            request, inner, limit, max_body, lambda problem: self._refusal(request, problem, caller, routed)
        )

    def _authorize(
        self, request: HTTPServerRequest, target: type[RequestHandler], find_credential: FindCredential
    ) -> tuple[Caller, Problem | None]:
        """Returns the caller, and why the request is refused, if it is. Pages lead anonymous callers to the login."""
        caller, config = ANONYMOUS, self.services.config
        assert issubclass(target, Base)
        try:
            if (excess := head_problem(request)) is not None:
                return caller, excess
            self._check_request(request, target)
            if request.method == "OPTIONS":
                return caller, None
            target.check_open(request.method or "", config)
            caller = identify_caller(request, self.services, find_credential)
            admit(caller, target.permission_of(request.method or ""), config)
        except Unauthenticated as problem:
            if issubclass(target, HtmlPage) and caller is not ANONYMOUS and not caller.is_authenticated:
                return caller, target.login_needed(request, _prefix(request.path))
            return caller, problem
        except NotFound as problem:
            return self._caller_or_anonymous(request, find_credential), problem
        except Problem as problem:
            return caller, problem
        return caller, None

    def _caller_or_anonymous(self, request: HTTPServerRequest, find_credential: FindCredential) -> Caller:
        """Returns the caller for a page that reports 404, which names the account."""
        try:
            return identify_caller(request, self.services, find_credential)
        except Problem:
            return ANONYMOUS

    def _check_request(self, request: HTTPServerRequest, target: type[Base]) -> None:
        """Checks what does not depend on the caller. Raises `Problem`."""
        check_host(request, self.services.config)
        if target is Refusal:
            raise NotFound("nothing is served at this path")
        if request.method not in methods(target):
            raise WrongMethod(f"the method {request.method} is not allowed here", methods(target))
        if self.services.is_closing:
            raise Unavailable("pilothouse is stopping")
        check_origin(request, self.services.config, target.rejects_cross_site_reads)

    def _refusal(
        self, request: HTTPServerRequest, problem: Problem, caller: Caller, routed: Service | None = None
    ) -> HTTPMessageDelegate:
        """`routed` is the service the request was routed to: where `Accept` decided, the path does not show it."""
        service = routed or owner(request.path, self.served) or SUPERVISION
        arguments = {
            "services": self.services,
            "service": service,
            "streams": self.streams,
            "caller": caller,
            "problem": problem,
        }
        return super().get_handler_delegate(request, Refusal, arguments)


def _path_problem(arguments: Sequence[bytes | None]) -> Problem | None:
    """Checks the variables of a path before a body is read for a handler that could not use them."""
    for argument in arguments:
        try:
            text = (argument or b"").decode()
        except UnicodeDecodeError:
            return Invalid("the path is not UTF-8")
        if "\0" in text:
            return Invalid("a NUL is in the path")
    return None


def _prefix(path: str) -> str:
    """Returns the prefix of the service whose path this is, or an empty text."""
    prefixes = (service.prefix for service in SERVICES)
    return next((prefix for prefix in prefixes if path == prefix or path.startswith(prefix + "/")), "")
