"""The base of every handler: permissions, parameters, JSON, pages, and the responses of failures."""

from __future__ import annotations

import asyncio
import errno
import hashlib
import http
import logging
from collections.abc import Awaitable, Callable
from functools import partial, wraps
from typing import Any
from urllib.parse import quote, unquote

from tornado.httputil import HTTPServerRequest
from tornado.web import HTTPError, RequestHandler

from handlers.http import serializers
from handlers.http.body_limit import connection_of
from handlers.http.compression import CompressingHandler
from handlers.http.credentials import ANONYMOUS, Caller, session_cookie
from handlers.http.origin import SAFE_METHODS
from handlers.http.permissions import CLOSED, PUBLIC, Permission
from handlers.http.sse import Streams
from handlers.routing import ErrorDetails, Service, accepts, login
from handlers.web import layout
from handlers.web.layout import Frame, template_helpers
from models import errors
from models.accounts.accounts import User
from models.config.settings import Config
from models.errors import Problem
from models.inputs import cached
from models.json_format import SMALL_BODY_BYTES
from supervisor.charts.service import Charts
from supervisor.clock import Clock
from supervisor.processes.service import Supervision
from supervisor.services import Services
from supervisor.tracker.service import Tracker

log = logging.getLogger("http")

STATUS: dict[type[Problem], int] = {
    errors.LoginNeeded: 302,
    errors.Invalid: 400,
    errors.Unauthenticated: 401,
    errors.Denied: 403,
    errors.NotFound: 404,
    errors.WrongMethod: 405,
    errors.SlowRequest: 408,
    errors.Conflict: 409,
    errors.TooLarge: 413,
    errors.Unsupported: 415,
    errors.Misdirected: 421,
    errors.Unprocessable: 422,
    errors.Throttled: 429,
    errors.Failed: 500,
    errors.Upstream: 502,
    errors.TooLargeResponse: 502,
    errors.Unavailable: 503,
    errors.DiskFull: 503,
    errors.TimedOut: 504,
    errors.InsufficientStorage: 507,
}
"""The status code of each kind of problem."""

_PHRASES = {413: "Content Too Large", 422: "Unprocessable Content"}
"""The phrases of RFC 9110 where Python's versions differ."""

_OUT_OF_RESOURCES = (errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.ENOSPC, errno.EDQUOT, errno.EROFS)
_DONE_SECONDS, _MAX_DONE_CHARACTERS = 60, 500
_ERROR_PAGE = "web/error.html"
HELP = {
    401: ("Accounts and credentials", "accounts#credentials"),
    403: ("Who may do what", "operations#permissions"),
    413: ("Limits", "operations#limits"),
    429: ("Limits", "operations#limits"),
    503: ("What happens when …", "operations#what-happens-when-"),
    507: ("A full disk", "security#a-full-disk"),
}
"""The parts of the documentation that explain a status in more than a sentence: title, and place below `/help`."""
_METHODS = ("GET", "POST", "PUT", "PATCH", "DELETE")
_PAGE_HEADERS = {
    "Content-Security-Policy": "default-src 'self'; frame-ancestors 'none'; base-uri 'none'; form-action 'self'",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "same-origin",
    "Cache-Control": "no-store",
}
_FRAMED_HEADERS = {
    "Content-Security-Policy": _PAGE_HEADERS["Content-Security-Policy"].replace("'none'", "'self'", 1),
    "X-Frame-Options": "SAMEORIGIN",
}


@cached
def methods(handler: Any) -> tuple[str, ...]:
    """Returns the methods of a handler for `Allow`: HEAD comes with GET, OPTIONS with every handler."""
    own = [name for name in _METHODS if getattr(handler, name.lower()) is not getattr(RequestHandler, name.lower())]
    return (*own, *(["HEAD"] if "GET" in own else []), "OPTIONS")


class Base(CompressingHandler):
    """The base class of handlers, closed unless a subclass names a permission.

    `max_body` is the limit of a body in bytes; `takes_forms` lets Tornado parse forms.
    """

    permission: Permission = CLOSED
    permission_to_change: Permission | None = None
    """The permission of the methods that change something, where it is another."""
    max_body = SMALL_BODY_BYTES
    takes_forms = False
    rejects_cross_site_reads = False
    """Whether pages of other sites are refused reads too."""
    version: str | None = None
    """The page's ETag."""
    has_left = False
    """Whether the client has closed the connection."""
    _ends: tuple[Callable[[], object], ...] = ()
    refused = ""
    """The reason of a refusal, for the log."""

    def initialize(self, services: Services, service: Service, streams: Streams, caller: Caller = ANONYMOUS) -> None:
        self.services = services
        self.service = service
        self.streams = streams
        self.caller = caller
        self.settings["answering"].add(self)
        if caller.has_expired_session:
            self.clear_cookie(session_cookie(services))

    @property
    def config(self) -> Config:
        return self.services.config

    @property
    def clock(self) -> Clock:
        return self.services.clock

    @property
    def supervision(self) -> Supervision:
        return self.services.supervision

    @property
    def charts(self) -> Charts:
        return self.services.charts

    @property
    def tracker(self) -> Tracker:
        return self.services.tracker

    @classmethod
    def body_limit(cls, config: Config, method: str) -> int:
        """Returns the limit of a body in bytes, for handlers where it is a setting or depends on the method."""
        return cls.max_body

    @classmethod
    def permission_of(cls, method: str) -> Permission:
        """Returns the permission that a method needs."""
        return cls.permission if method in SAFE_METHODS else cls.permission_to_change or cls.permission

    @classmethod
    def check_open(cls, method: str, config: Config) -> None:
        """Raises `Denied` if the configuration forbids this to every caller."""

    @property
    def held_bytes(self) -> int:
        """The bytes of an unfinished body in memory, for a handler that streams its body."""
        return 0

    @property
    def is_answering(self) -> bool:
        """Whether the whole request has been received."""
        return True

    def drop_body(self) -> None:
        """Frees what has arrived of a body, for a handler that streams its body: the client has left."""

    def when_left(self, end: Callable[[], object]) -> None:
        """Calls `end`, which ends work of the request, when the client closes the connection; at once if it has."""
        if self.has_left:
            end()
        else:
            self._ends += (end,)

    def on_connection_close(self) -> None:
        """The client has left: its bytes are freed now. The handler is in cycles that are collected much later."""
        super().on_connection_close()
        self.has_left = True
        ends, self._ends = self._ends, ()
        for end in ends:
            end()
        self.drop_body()
        body = getattr(self.request, "_body_future", None)
        if body is not None and body.done() and not body.cancelled() and (fault := body.exception()) is not None:
            asyncio.get_running_loop().call_soon(fault.with_traceback, None)  # once `_execute` has ended with it

    def on_finish(self) -> None:
        self.settings["answering"].discard(self)
        if (connection := connection_of(self.request)) is not None:
            connection.on_expired = None  # the next request's head is awaited

    def set_default_headers(self) -> None:
        self.clear_header("Server")
        self.set_header("X-Content-Type-Options", "nosniff")

    @property
    def prefix(self) -> str:
        """The service prefix of the request, for links to pages; empty at the root."""
        own = self.service.prefix
        return own if self.request.path == own or self.request.path.startswith(own + "/") else ""

    def get_current_user(self) -> User | None:
        return self.caller.user

    def set_cookie(self, name: str, value: str | bytes, *arguments: Any, **options: Any) -> None:
        """Sets a cookie that is HttpOnly and SameSite=Lax, and Secure where the client uses TLS."""
        safe: dict[str, Any] = {"httponly": True, "samesite": "Lax", "secure": self.caller.is_secure}
        super().set_cookie(name, value, *arguments, **safe | options)

    def check_xsrf_cookie(self) -> None:
        """Only pages check the token of a form; `check_origin` has refused other sites."""

    def compute_etag(self) -> str | None:
        """Returns the ETag of a page; other responses have none, because they change constantly."""
        return self.version

    async def head(self, *arguments: str) -> None:
        pending = self.get(*arguments)
        if pending is not None:
            await pending

    def options(self, *arguments: str) -> None:
        self.set_status(204)
        self.set_header("Allow", ", ".join(methods(type(self))))

    def decode_argument(self, value: bytes, name: str | None = None) -> str:
        text = super().decode_argument(value, name)
        if "\x00" in text:
            raise HTTPError(400, reason="Bad Request", log_message="a NUL is in the request")
        return text

    def query(self) -> dict[str, str]:
        """Returns the query parameters, the last value of each."""
        return {name: self.get_query_argument(name) for name in self.request.query_arguments}

    def query_values(self, name: str, is_trimmed: bool = True) -> list[str]:
        """Returns all values of a query parameter."""
        return self.get_query_arguments(name, strip=is_trimmed)

    def query_value(self, name: str, is_trimmed: bool = True) -> str:
        """Returns the last value of a query parameter; empty where it is missing. Others may be malformed."""
        return next(reversed(self.query_values(name, is_trimmed)), "")

    def reply(self, response: Any) -> None:
        """Sends a response object as JSON."""
        self.send(serializers.encoded(response), "application/json")

    def send(self, body: bytes, media_type: str) -> None:
        self.set_header("Content-Type", media_type)
        self.write(body)

    # Failures

    def log_exception(self, kind: Any, error: Any, trace: Any) -> None:
        """Logs defects with a traceback; a problem is only reported to the client."""
        if not isinstance(_problem(error), (Problem, HTTPError)):
            log.error("%s %s: %s", self.request.method, self.request.path, error, exc_info=(kind, error, trace))

    def write_error(self, status_code: int, **facts: Any) -> None:
        error = _problem(facts.get("exc_info", (None, None, None))[1])
        details = self._error_details(status_code, error)
        self.refused = f": {details.message}"
        self.set_status(details.status, details.reason)
        self._failure_headers(error)
        if isinstance(self, HtmlPage) or (
            not self.service.is_api(self.request.path) and accepts(self.request, "text/html")
        ):
            self._write_error_page(details)
        else:
            self.send(serializers.encoded(self.service.error(details)), self.service.media_type)
        self.finish()

    def _write_error_page(self, details: ErrorDetails) -> None:
        try:
            write_page(self, _ERROR_PAGE, details=details, help=HELP.get(details.status))
        except OSError:  # no descriptor is free for the template
            self.send(f"{details.status} {details.reason}: {details.message}\n".encode(), "text/plain; charset=utf-8")

    def _error_details(self, status: int, error: object) -> ErrorDetails:
        message, code = None, None
        if isinstance(error, Problem):
            status, message, code = STATUS[type(error)], error.message, error.code
        elif isinstance(error, HTTPError):
            message = error.log_message % error.args if error.log_message and error.args else error.log_message
        reason = _PHRASES.get(status) or http.HTTPStatus(status).phrase
        message = message or ("internal error; the log has details" if status == 500 else reason)
        return ErrorDetails(self.clock.now(), self.request.path, status, reason, message, code)

    def _failure_headers(self, error: object) -> None:
        if isinstance(error, errors.LoginNeeded):
            self.set_header("Location", error.at)
        elif isinstance(error, errors.Unauthenticated):
            self.set_header("WWW-Authenticate", "Bearer")
        elif isinstance(error, errors.WrongMethod):
            self.set_header("Allow", ", ".join(error.allowed))
        elif isinstance(error, errors.SlowRequest):
            self.set_header("Connection", "close")
        elif isinstance(error, errors.Throttled):
            self.set_header("Retry-After", str(error.again))
        elif isinstance(error, errors.Unavailable):
            self.set_header("Retry-After", "5")
        elif isinstance(error, Problem) and error.retry_after is not None:
            self.set_header("Retry-After", str(error.retry_after))


def _problem(error: object) -> object:
    """Returns `Unavailable` where the machine lacks memory, disk space or descriptors."""
    if isinstance(error, OSError) and error.errno in _OUT_OF_RESOURCES:
        return errors.Unavailable(f"this is not possible now: {error.strerror}")
    return error


class HtmlPage(Base):
    """A handler that responds with HTML. `back` is the page after a login that a form has caused."""

    takes_forms = True
    max_body = SMALL_BODY_BYTES
    back = "/"
    may_be_framed = False
    """Whether another page of the server may show it in a frame."""
    why = ""
    """The error of a submitted form, which the page shows again (`shown_again`)."""

    @classmethod
    def login_needed(cls, request: HTTPServerRequest, prefix: str) -> errors.LoginNeeded:
        return errors.LoginNeeded(
            login(request.uri or "/" if request.method in SAFE_METHODS else prefix + cls.back, prefix)
        )

    def unseen(self, message: str) -> Problem:
        """Returns 404 for callers with an account, and a redirect to the login for others."""
        return (
            errors.NotFound(message) if self.caller.is_authenticated else self.login_needed(self.request, self.prefix)
        )

    @property
    def address(self) -> str:
        """The URL of the page that a form shows, for a form whose own URL has no GET."""
        return self.prefix + self.back

    def redirect_done(self, path: str, text: str) -> None:
        """Redirects to a page below the prefix, which shows once what has been done."""
        place = self.prefix or "/"
        self.set_cookie(
            _done_cookie(self), quote(text), path=place, max_age=_DONE_SECONDS, httponly=True, samesite="Strict"
        )
        self.redirect(self.prefix + path, status=303)

    def take_done(self) -> str:
        """What has been done, as the request before this one reported it; empty if nothing was or it was shown."""
        name = _done_cookie(self)
        text = unquote(self.get_cookie(name) or "")[:_MAX_DONE_CHARACTERS]
        if text:
            self.clear_cookie(name, path=self.prefix or "/")
        return text

    async def again(self, *arguments: str) -> None:
        """Shows the page with the form, for a `post` that is `shown_again`."""
        raise NotImplementedError

    def failed(self, problem: Problem) -> str:
        """Sets the status of a failure; returns its message for the page."""
        self.set_status(STATUS[type(problem)])
        self._failure_headers(problem)
        self.refused = f": {problem.message}"
        return problem.message

    def typed(self, name: str, stored: object = None) -> str:
        """Returns the submitted value of a refused form's field, else the stored one."""
        was_sent = self.why and name in self.request.body_arguments
        return self.form_value(name, is_trimmed=False) if was_sent else "" if stored is None else str(stored)

    def form_value(self, name: str, is_trimmed: bool = True) -> str:
        """Returns a field of the form, the last of its name; empty where it is missing."""
        return next(reversed(self.form_values(name, is_trimmed)), "")

    def form_values(self, name: str, is_trimmed: bool = True) -> list[str]:
        """Returns all values of a field of the form."""
        return self.get_body_arguments(name, strip=is_trimmed)

    def check_xsrf_cookie(self) -> None:
        """Browsers, and callers without a token but with an account, need the token of a form; others do not."""
        if self.is_from_browser() or (self.caller.credential and self.caller.credential.kind != "token"):
            RequestHandler.check_xsrf_cookie(self)

    def is_from_browser(self) -> bool:
        return "Origin" in self.request.headers or "Sec-Fetch-Site" in self.request.headers


def _done_cookie(page: Base) -> str:
    return f"{session_cookie(page.services)}_done"


def shown_again(post: Callable[..., Awaitable[None]]) -> Callable[..., Awaitable[None]]:
    """Decorates a `post`: a refused form is shown again, with the reason and the entered values."""

    @wraps(post)
    async def posted(page: HtmlPage, *arguments: str) -> None:
        try:
            await post(page, *arguments)
        except errors.LoginNeeded:
            raise
        except Problem as problem:
            page.why = page.failed(problem)
            await page.again(*arguments)

    return posted


class Refusal(Base):
    """Responds to a refused request after its body was read and dropped."""

    permission = PUBLIC

    def initialize(
        self,
        services: Services,
        service: Service,
        streams: Streams,
        caller: Caller = ANONYMOUS,
        problem: Problem | None = None,
    ) -> None:
        super().initialize(services, service, streams, caller)
        self.problem = problem or errors.NotFound("nothing is served at this path")

    def prepare(self) -> None:
        raise self.problem

    def write_error(self, status_code: int, **facts: Any) -> None:
        """Reports the refusal, even if Tornado finds another error in the request."""
        super().write_error(status_code, exc_info=(type(self.problem), self.problem, None))


def write_page(handler: Base, template: str, **values: Any) -> None:
    """Sends a page, with the headers of every page."""
    _send_page(handler, rendered(handler, template, values))


async def write_long_page(handler: Base, template: str, **values: Any) -> None:
    """As `write_page`, rendered in a worker: a page of many rows would block the loop."""
    _send_page(handler, await asyncio.to_thread(rendered, handler, template, values))


def rendered(handler: Base, template: str, values: dict[str, Any]) -> bytes:
    """Returns a page. `frame_key` has the values that the frame shows of the caller and the server."""
    caller, request = handler.caller, handler.request
    path = request.path.removeprefix(handler.prefix) or "/"
    user = caller.user.username if caller.user else None
    has_get = "GET" in methods(type(handler)) or template == _ERROR_PAGE
    address = handler.address if isinstance(handler, HtmlPage) and not has_get else None
    page_frame = Frame(path, request.uri or "/", user, caller.is_admin, _is_failing(handler.services), address)
    frame = {"frame": page_frame, "base": handler.prefix, "icon": partial(layout.icon, handler.static_url("icons.svg"))}
    frame["refusal"] = handler.why if isinstance(handler, HtmlPage) else ""
    frame["done"] = handler.take_done() if isinstance(handler, HtmlPage) and request.method == "GET" else ""
    return handler.render_string(template, **template_helpers(), **frame, **values)


def frame_key(handler: Base) -> tuple[object, ...]:
    user = handler.caller.user
    done = handler.get_cookie(_done_cookie(handler))
    return handler.request.uri, user and user.username, handler.caller.is_admin, _is_failing(handler.services), done


def _is_failing(services: Services) -> bool:
    return services.supervision.has_trouble


def set_page_headers(handler: Base) -> None:
    is_framed = isinstance(handler, HtmlPage) and handler.may_be_framed
    for name, value in (_PAGE_HEADERS | (_FRAMED_HEADERS if is_framed else {})).items():
        handler.set_header(name, value)


def _send_page(handler: Base, body: bytes) -> None:
    set_page_headers(handler)
    handler.version = etag(body.replace(handler.xsrf_token, b"") if b'name="_xsrf"' in body else body)
    handler.send(body, "text/html; charset=utf-8")


def etag(body: bytes) -> str:
    """Returns the ETag of a body, without the token of its forms, which changes with every response."""
    return f'W/"{hashlib.blake2b(body, digest_size=12).hexdigest()}"'
