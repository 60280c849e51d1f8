"""The OpenAPI document as JSON, as YAML and as a page, of the application or of one service by prefix.

It is written in a worker, and requests at the same time share it: as YAML it takes a third of a second.
"""

from __future__ import annotations

import asyncio
from typing import Any
from urllib.parse import urlencode

import yaml

from handlers.base import Base, Page, write_long_page
from handlers.http import serializers
from handlers.http.permissions import READ
from handlers.openapi import reference
from handlers.openapi.document import Document
from handlers.routing import Route, Service
from handlers.server.system import common_routes
from handlers.tracker import badges
from models.errors import NotFound
from supervisor.single_flight import SingleFlight


def shared_endpoints(owner: Service) -> Service:
    """Returns the endpoints that belong to no service, with the error shape of the requested prefix's service."""
    return Service("server", "", [*common_routes, *badges.routes], owner.media_type, owner.error, base="")


class Api(Base):
    """The document of what is served now: without a cluster it has no releases."""

    permission = READ
    media_type = "application/json"

    async def get(self) -> None:
        flights: SingleFlight[bytes] = self.settings["interface_documents"]
        key = (self.prefix, self.media_type)
        self.send(await flights.run(key, lambda: asyncio.to_thread(self.encoded)), self.media_type)

    def encoded(self) -> bytes:
        return serializers.text(self.document()).encode()

    def document(self) -> dict[str, Any]:
        services: tuple[Service, ...] = self.settings["served"]
        requested = [service for service in services if not self.prefix or service.prefix == self.prefix]
        has_cluster = self.charts.groups()["releases"]
        return Document(self.config, [*requested, shared_endpoints(requested[0])], has_cluster).write(self.prefix)


class ApiYaml(Api):
    media_type = "application/yaml"

    def encoded(self) -> bytes:
        return yaml.safe_dump(self.document(), sort_keys=False, allow_unicode=True).encode()


class InterfacePage(Api, Page):
    """The document as a page: operations by group, and one operation with its schemas, an example and a form."""

    async def get(self) -> None:
        query, document = self.query(), await asyncio.to_thread(self.document)
        text, id = query.get("q", "").strip(), query.get("operation", "")
        origin = f"{'https' if self.caller.is_secure else self.request.protocol}://{self.request.host}{self.prefix}"
        shown = reference.details(document, id, origin)
        if id and shown is None:
            raise NotFound(f"there is no operation {id}")
        await write_long_page(
            self,
            "openapi/interface.html",
            q=text,
            groups=reference.grouped(document, text),
            total=len(reference.operations(document)),
            shown=shown,
            schemes=document["components"]["securitySchemes"],
            url=lambda id: f"?{urlencode({'operation': id} | ({'q': text} if text else {}))}#operation",
        )


routes: list[Route] = [
    (r"/v3/api-docs", Api),
    (r"/v3/api-docs\.yaml", ApiYaml),
    (r"/swagger-ui\.html", InterfacePage),
]
