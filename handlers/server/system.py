"""The server itself: host information, reload, health and metrics."""

from __future__ import annotations

import logging
import platform
from typing import ClassVar

from tornado.web import RequestHandler

from handlers.base import Base
from handlers.http import serializers
from handlers.http.origin import SAFE_METHODS
from handlers.http.permissions import CONTROL_PROCESSES, PUBLIC, READ
from handlers.openapi.describe import Endpoint, choice
from handlers.routing import Route
from handlers.server.metrics import Collector
from models.errors import Invalid, Unavailable
from supervisor import host

log = logging.getLogger("http")


class Info(Base):
    permission = READ
    endpoints: ClassVar = {
        "GET": Endpoint("Get the host and the supervisor's name", serializers.SupervisorInfo, name="supervisor_info")
    }

    def get(self) -> None:
        settings = self.config.supervisor
        self.reply(
            serializers.supervisor_info(settings.node_name or platform.node(), settings.description, host.read())
        )


class Reload(Base):
    permission = CONTROL_PROCESSES
    endpoints: ClassVar = {
        "POST": Endpoint(
            "Reload the configuration",
            serializers.ReloadResult,
            query=[choice("dry-run", "Only report what would change", ["true", "false"], "false")],
            name="supervisor_reload",
        )
    }

    async def post(self) -> None:
        dry_run = self.query().get("dry-run") or "false"
        if dry_run not in ("true", "false"):
            raise Invalid("dry-run must be true or false")
        done, need = await self.services.reload(dry_run == "true")
        self.reply(serializers.reload_result(done, need, dry_run == "true"))


class Health(Base):
    permission = PUBLIC
    endpoints: ClassVar = {
        "GET": Endpoint("Check whether the server responds", serializers.Health, name="server_health")
    }

    def get(self) -> None:
        self.reply(serializers.Health())


class Ready(Base):
    """Reports whether the store can be written and the event loop is not delayed."""

    permission = PUBLIC
    endpoints: ClassVar = {
        "GET": Endpoint(
            "Check whether the server is ready, and which chart operations are available",
            serializers.Readiness,
            name="server_ready",
        )
    }

    async def get(self) -> None:
        await self.charts.settle()
        if self.supervision.event_writer.failing:
            raise Unavailable("the store cannot be written")
        if self.services.sharing is not None and not self.services.sharing.is_connected:
            raise Unavailable("the shared database is unavailable")
        if self.services.maintenance.is_stalled:
            raise Unavailable("the event loop was delayed by more than a second")
        self.reply(serializers.Readiness(charts=self.charts.groups()))


class Metrics(Base):
    permission = READ
    endpoints: ClassVar = {
        "GET": Endpoint("Get metrics in the Prometheus text format", "text/plain", name="server_metrics")
    }

    def get(self) -> None:
        from prometheus_client import (
            CollectorRegistry,
            ProcessCollector,
            generate_latest,
        )  # imported at the first scrape

        registry = CollectorRegistry()
        ProcessCollector(registry=registry)
        registry.register(Collector(self.services, self.streams))
        self.send(generate_latest(registry), "text/plain; version=0.0.4; charset=utf-8")


def log_request(handler: RequestHandler) -> None:
    """Logs one line for each request that changes something or fails; other requests at debug level."""
    status, request = handler.get_status(), handler.request
    if isinstance(handler, Base):
        handler.services.answered[status] += 1
    level = logging.ERROR if status >= 500 else logging.INFO
    if request.method in SAFE_METHODS and status < 500:
        level = logging.DEBUG
    took, why = 1000 * request.request_time(), getattr(handler, "refused", "")
    if isinstance(handler, Base) and handler.caller.peer is not None:
        why = f" by {handler.caller.peer}{why}"
    log.log(level, "%s %s %d %.1f ms%s", request.method, request.path, status, took, why)


routes: list[Route] = [
    (r"/supervisor/info", Info),
    (r"/supervisor/reload", Reload),
]

common_routes: list[Route] = [
    (r"/healthz", Health),
    (r"/readyz", Ready),
    (r"/metrics", Metrics),
]
