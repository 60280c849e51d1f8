"""Services, their routes and prefixes, and the service that owns a path."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any
from urllib.parse import unquote, urlencode

from attrs import define, frozen
from tornado.httputil import HTTPServerRequest
from tornado.routing import PathMatches, Rule
from tornado.web import RequestHandler

API = "/api/v1"

Route = tuple[str, type[RequestHandler]] | tuple[str, type[RequestHandler], type[PathMatches]]
"""A pattern below the base path, its handler, and a matcher where that is not `PathMatches`."""


@frozen
class ErrorDetails:
    """The contents of an error response, in every format. `at` is microseconds since 1970."""

    at: int
    path: str
    status: int
    reason: str
    message: str
    code: str | None


@define(eq=False)
class Service:
    """One of the three services: its prefix, its routes below its base path, and the shape of its errors."""

    name: str
    prefix: str
    routes: Sequence[Route]
    media_type: str
    error: Callable[[ErrorDetails], Any]
    base: str = API

    @property
    def segments(self) -> frozenset[str]:
        """The first segments of its paths below its base path."""
        return frozenset(route[0].split("/")[1] for route in self.routes)

    def is_api(self, path: str) -> bool:
        """Whether a path belongs to an API; its errors are never HTML."""
        relative = path.removeprefix(self.prefix)
        return relative.startswith((self.base + "/", "/api/")) or path.startswith(self.base + "/")

    def rules(self, **arguments: Any) -> list[Rule]:
        """Returns the service's rules at the root and under its prefix."""
        return [
            rule(f"{prefix}{self.base}", route, service=self, **arguments)
            for prefix in ("", self.prefix)
            for route in self.routes
        ]


def accepts(request: HTTPServerRequest, media_type: str) -> bool:
    """Whether `Accept` names this media type; a wildcard does not count."""
    accepted = request.headers.get("Accept", "").lower()
    return media_type in accepted and any(name.partition(";")[0].strip() == media_type for name in accepted.split(","))


class StreamPath(PathMatches):
    """Matches only requests whose `Accept` names `text/event-stream`, as a browser's EventSource does."""

    def match(self, request: HTTPServerRequest) -> dict[str, Any] | None:
        return super().match(request) if accepts(request, "text/event-stream") else None


def rule(base: str, route: Route, **arguments: Any) -> Rule:
    """Returns the rule of a route below `base`; `arguments` go to its handler."""
    pattern, handler, *matcher = route
    matches: type[PathMatches] = matcher[0] if matcher else PathMatches
    return Rule(matches(base + pattern), handler, arguments)


def login(uri: str, prefix: str) -> str:
    """Returns the URL of the login that leads back to `uri`, under the same prefix."""
    return f"{prefix}/login?{urlencode({'next': uri})}"


def owner(path: str, services: Sequence[Service]) -> Service | None:
    """Returns the service that owns a path: by prefix, or at the root by base path and the first segment below it."""
    for service in services:
        if path == service.prefix or path.startswith(service.prefix + "/"):
            return service
    for service in services:
        if path.startswith(service.base + "/"):
            first = unquote(path.removeprefix(service.base + "/").split("/")[0])
            if first in service.segments or service.base != API:
                return service
    return None
