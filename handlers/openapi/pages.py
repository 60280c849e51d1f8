"""The OpenAPI document as JSON, as YAML and as a page, of the application or of one service by prefix."""

from __future__ import annotations

import importlib.util
from functools import cache
from pathlib import Path
from typing import Any

import yaml
from tornado.web import StaticFileHandler

from handlers.base import Base, Page, write_page
from handlers.http import serializers
from handlers.http.permissions import PUBLIC, READ
from handlers.openapi.document import Document
from handlers.routing import Route, Service
from handlers.supervision.system import common_routes
from handlers.tracker import badges
from models.errors import Unavailable


def shared_endpoints(owner: Service) -> Service:
    """Returns the endpoints that belong to no service, with the error shape of the requested prefix's service."""
    return Service("server", "", [*common_routes, *badges.routes], owner.media_type, owner.error, base="")


class Api(Base):
    """The document of what is served now: without a cluster it has no releases."""

    permission = READ

    def get(self) -> None:
        self.send(serializers.text(self.document()).encode(), "application/json")

    def document(self) -> dict[str, Any]:
        services: tuple[Service, ...] = self.settings["served"]
        requested = [service for service in services if not self.prefix or service.prefix == self.prefix]
        has_cluster = self.services.charts.groups()["releases"]
        return Document(self.services.config, [*requested, shared_endpoints(requested[0])], has_cluster).write(
            self.prefix
        )


class ApiYaml(Api):
    def get(self) -> None:
        text = yaml.safe_dump(self.document(), sort_keys=False, allow_unicode=True)
        self.send(text.encode(), "application/yaml")


class SwaggerPage(Page):
    """Swagger UI. Its files come from a Python package, so nothing is loaded from other sites."""

    permission = READ

    def get(self) -> None:
        if swagger_folder() is None:
            raise Unavailable("Swagger UI is not installed (pip install swagger-ui-py); /v3/api-docs is the document")
        write_page(self, "openapi/swagger.html")
        self.set_header("Content-Security-Policy", _POLICY)


_POLICY = (
    "default-src 'self'; img-src 'self' data:; style-src 'self' 'unsafe-inline'; frame-ancestors 'none';"
    " base-uri 'none'; form-action 'self'"
)
"""Swagger UI uses style attributes and data: images."""


class SwaggerFiles(StaticFileHandler, Base):  # type: ignore[misc]
    permission = PUBLIC
    max_body = 0

    def initialize(self, **arguments: Any) -> None:  # type: ignore[override]
        StaticFileHandler.initialize(self, str(swagger_folder() or Path("/nonexistent")))
        Base.initialize(self, **arguments)

    def validate_absolute_path(self, root: str, absolute_path: str) -> str | None:
        if Path(absolute_path).suffix not in (".js", ".css", ".png"):
            self.send_error(404)
            return None
        return super().validate_absolute_path(root, absolute_path)


@cache
def swagger_folder() -> Path | None:
    """Returns the folder of Swagger UI's files, if the package is installed, without importing it."""
    found = importlib.util.find_spec("swagger_ui")
    places = found.submodule_search_locations if found else None
    return Path(places[0]) / "static" if places else None


routes: list[Route] = [
    (r"/v3/api-docs", Api),
    (r"/v3/api-docs\.yaml", ApiYaml),
    (r"/swagger-ui\.html", SwaggerPage),
    (r"/swagger-ui/(.+)", SwaggerFiles),
]
