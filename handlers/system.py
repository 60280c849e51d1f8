"""The supervisor itself: what it runs on, reload, health and metrics."""

from __future__ import annotations

import logging
import platform
from typing import ClassVar

from tornado.web import RequestHandler

from handlers import wire
from handlers.base import Base
from handlers.gates import SAFE, open_to_all, operators, readers
from handlers.interface import Says
from handlers.live import StatusStream
from handlers.metrics import Collector
from handlers.routing import Route
from models.errors import Unavailable
from supervisor import host

log = logging.getLogger("http")


class Info(Base):
    gate = staticmethod(readers)
    says: ClassVar = {"GET": Says("The machine, and who supervises", wire.SupervisorInfo, name="supervisor_info")}

    def get(self) -> None:
        settings = self.services.config.supervisor
        self.reply(wire.supervisor_info(settings.node_name or platform.node(), settings.description, host.read()))


class Reload(Base):
    gate = staticmethod(operators)
    says: ClassVar = {"POST": Says("Read the configuration anew", wire.ReloadResult, name="supervisor_reload")}

    async def post(self) -> None:
        done, need = await self.services.reload()
        self.reply(wire.reload_result(done, need))


class Health(Base):
    gate = staticmethod(open_to_all)
    says: ClassVar = {"GET": Says("Whether it is alive", wire.Health, name="house_health")}

    def get(self) -> None:
        self.reply(wire.Health())


class Ready(Base):
    """Whether the store takes what it is given and the loop is not held up."""

    gate = staticmethod(open_to_all)
    says: ClassVar = {
        "GET": Says("Whether it can do its work, and which groups of charts are on", wire.Readiness, name="house_ready")
    }

    async def get(self) -> None:
        await self.services.charts.settle()
        if self.services.journal.failing:
            raise Unavailable("the store cannot be written")
        if self.services.sharing is not None and not self.services.sharing.is_connected:
            raise Unavailable("the shared database is away")
        if self.services.upkeep.is_stalled:
            raise Unavailable("the loop was held up for more than a second")
        self.reply(wire.Readiness(charts=self.services.charts.groups()))


class Metrics(Base):
    gate = staticmethod(readers)
    says: ClassVar = {"GET": Says("Figures, as Prometheus reads them", "text/plain", name="house_metrics")}

    def get(self) -> None:
        from prometheus_client import CollectorRegistry, ProcessCollector, generate_latest  # only where it is scraped

        registry = CollectorRegistry()
        ProcessCollector(registry=registry)
        registry.register(Collector(self.services, self.streams))
        self.send(generate_latest(registry), "text/plain; version=0.0.4; charset=utf-8")


def log_request(handler: RequestHandler) -> None:
    """One line for each request that changed something or went wrong; reads are for the debug level."""
    status, request = handler.get_status(), handler.request
    if isinstance(handler, Base):
        handler.services.answered[status] += 1
    level = logging.ERROR if status >= 500 else logging.INFO
    if request.method in SAFE and status < 500:
        level = logging.DEBUG
    took, why = 1000 * request.request_time(), getattr(handler, "refused", "")
    log.log(level, "%s %s %d %.1f ms%s", request.method, request.path, status, took, why)


routes: list[Route] = [
    (r"/supervisor/info", Info),
    (r"/supervisor/reload", Reload),
    (r"/processes/stream", StatusStream),
]

house_routes: list[Route] = [
    (r"/healthz", Health),
    (r"/readyz", Ready),
    (r"/metrics", Metrics),
]
