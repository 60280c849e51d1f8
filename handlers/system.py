"""The supervisor itself: what it runs on, reload, health and metrics."""

from __future__ import annotations

import logging
import platform
from collections import Counter
from collections.abc import Iterator
from typing import Any, ClassVar

from tornado.web import RequestHandler

from handlers import wire
from handlers.base import Base
from handlers.gates import SAFE, open_to_all, operators, readers
from handlers.interface import Says
from handlers.live import StatusStream
from handlers.routing import Route
from handlers.streams import Streams
from models import events
from models.errors import Unavailable
from models.events import Filter
from models.processes import STATUSES
from supervisor import host
from supervisor.services import Services

log = logging.getLogger("http")


class Info(Base):
    gate = staticmethod(readers)
    says: ClassVar = {"GET": Says("The machine, and who supervises", wire.SupervisorInfo)}

    def get(self) -> None:
        settings = self.services.config.supervisor
        self.reply(wire.supervisor_info(settings.node_name or platform.node(), settings.description, host.read()))


class Reload(Base):
    gate = staticmethod(operators)
    says: ClassVar = {"POST": Says("Read the configuration anew", wire.ReloadResult, fails=[400, 500], gate="operator")}

    async def post(self) -> None:
        done, need = await self.services.reload()
        self.reply(wire.reload_result(done, need))


class Health(Base):
    gate = staticmethod(open_to_all)

    def get(self) -> None:
        self.reply({"status": "UP"})


class Ready(Base):
    """Whether the store takes what it is given and the loop is not held up."""

    gate = staticmethod(open_to_all)

    def get(self) -> None:
        if self.services.journal.failing:
            raise Unavailable("the store cannot be written")
        if self.services.is_stalled:
            raise Unavailable("the loop was held up for more than a second")
        self.reply({"status": "UP", "store": "UP", "loop": "UP", "charts": self.services.charts.groups()})


class Metrics(Base):
    gate = staticmethod(readers)

    def get(self) -> None:
        from prometheus_client import CollectorRegistry, ProcessCollector, generate_latest  # only where it is scraped

        registry = CollectorRegistry()
        ProcessCollector(registry=registry)
        registry.register(_Collector(self.services, self.streams))
        self.send(generate_latest(registry), "text/plain; version=0.0.4; charset=utf-8")


class _Collector:
    """What we count, gathered when it is asked for."""

    def __init__(self, services: Services, streams: Streams) -> None:
        self._services = services
        self._streams = streams

    def collect(self) -> Iterator[Any]:
        from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

        def gauge(name: str, what: str, value: float) -> Any:
            return GaugeMetricFamily(f"pilothouse_{name}", what, value=value)

        fleet, journal = self._services.fleet, self._services.journal
        yield gauge("loop_lag_seconds", "How late the loop was at its last beat.", self._services.lag)
        yield gauge("streams_open", "Open event streams.", len(self._streams))
        yield gauge("store_failing", "1 while the store cannot be written.", int(journal.failing))
        yield gauge("store_waiting_events", "Status changes that are not in the store yet.", journal.waiting)
        yield gauge("events_stored", "Status changes in the history.", events.count(Filter()))
        states = GaugeMetricFamily("pilothouse_processes", "Processes by status.", labels=["status"])
        now = Counter(process.status for process in fleet)
        for status in STATUSES:
            states.add_metric([status.value], now[status])
        yield states
        up = GaugeMetricFamily("pilothouse_process_up", "1 while the process is live.", labels=["process"])
        restarts = CounterMetricFamily("pilothouse_process_restarts", "Restarts by policy.", labels=["process"])
        for process in fleet:
            up.add_metric([process.name], int(process.live))
            restarts.add_metric([process.name], process.restarts)
        yield up
        yield restarts
        answers = CounterMetricFamily("pilothouse_http_responses", "Answers by status code.", labels=["code"])
        for code, number in sorted(self._services.answered.items()):
            answers.add_metric([str(code)], number)
        yield answers


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
