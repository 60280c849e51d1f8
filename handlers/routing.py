"""Services, where they are mounted, and whose path a path is."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any
from urllib.parse import urlencode

from attrs import define, frozen
from tornado.httputil import HTTPServerRequest
from tornado.routing import PathMatches, Rule
from tornado.web import RequestHandler

API = "/api/v1"

Route = tuple[str, type[RequestHandler]] | tuple[str, type[RequestHandler], type[PathMatches]]
"""A pattern below the base path, who answers, and how a path is held against it where that is not the plain way."""


@frozen
class ErrorDetails:
    """A failure on its way to the client, in no shape yet. `at` is microseconds since 1970."""

    at: int
    path: str
    status: int
    reason: str
    message: str
    code: str | None


@define(eq=False)
class Service:
    """One of the three: its prefix, what it serves below its base path, and the shape of its errors."""

    name: str
    prefix: str
    routes: Sequence[Route]
    media_type: str
    error: Callable[[ErrorDetails], Any]
    base: str = API

    @property
    def segments(self) -> frozenset[str]:
        """The first words of its paths below its base path, by which it owns them at the root."""
        return frozenset(route[0].split("/")[1] for route in self.routes)

    def is_api(self, path: str) -> bool:
        """Whether a path is one of an API, not of a page: its failures are never HTML."""
        words = path.removeprefix(self.prefix)
        return words.startswith((self.base + "/", "/api/")) or path.startswith(self.base + "/")

    def mounted(self, **arguments: Any) -> list[Rule]:
        """Its rules, at the root and under its prefix."""
        return [
            rule(f"{prefix}{self.base}", route, service=self, **arguments)
            for prefix in ("", self.prefix)
            for route in self.routes
        ]


def accepts(request: HTTPServerRequest, media_type: str) -> bool:
    """Whether `Accept` names this media type; a wildcard does not name it."""
    named = request.headers.get("Accept", "").split(",")
    return any(word.partition(";")[0].strip().lower() == media_type for word in named)


class StreamPath(PathMatches):
    """Matches only a request whose `Accept` names `text/event-stream`, as every browser's EventSource does."""

    def match(self, request: HTTPServerRequest) -> dict[str, Any] | None:
        return super().match(request) if accepts(request, "text/event-stream") else None


def rule(base: str, route: Route, **arguments: Any) -> Rule:
    """One route below `base`; `arguments` go to its handler."""
    pattern, handler, *matcher = route
    matches: type[PathMatches] = matcher[0] if matcher else PathMatches
    return Rule(matches(base + pattern), handler, arguments)


def login(uri: str, prefix: str) -> str:
    """The login that leads back to `uri`, under the same prefix."""
    return f"{prefix}/login?{urlencode({'next': uri})}"


def owner(path: str, services: Sequence[Service]) -> Service | None:
    """The service whose path this is: by its prefix, or at the root by its own base path or the first word below it."""
    for service in services:
        if path == service.prefix or path.startswith(service.prefix + "/"):
            return service
    for service in services:
        if path.startswith(service.base + "/"):
            first = path.removeprefix(service.base + "/").split("/")[0]
            if first in service.segments or service.base != API:
                return service
    return None
