"""The server itself: host information, reload, health and metrics."""

from __future__ import annotations

import logging
import platform
from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any

from tornado.web import RequestHandler

from handlers.base import Base
from handlers.http import serializers
from handlers.http.origin import SAFE_METHODS
from handlers.http.permissions import CONTROL_PROCESSES, PUBLIC, READ
from handlers.http.serializers import Health, Readiness, ReloadResult, SupervisorInfo
from handlers.http.sse import Streams
from handlers.operations import NoInputs, Operation, operation_routes
from handlers.routing import Route
from models.errors import Unavailable
from models.inputs import FLAG, query
from models.json_format import http_message
from models.supervision import events
from models.supervision.events import Filter
from models.supervision.process import STATUSES
from supervisor import host
from supervisor.services import Services

log = logging.getLogger("http")


def info(handler: Base, _: NoInputs) -> SupervisorInfo:
    settings = handler.config.supervisor
    return serializers.supervisor_info(settings.node_name or platform.node(), settings.description, host.read())


@http_message
class ReloadRequest:
    is_dry_run: bool = query("Only report what would change", False, kind=FLAG, json_name="dry-run")


async def reload(handler: Base, request: ReloadRequest) -> ReloadResult:
    done, need = await handler.services.reload(request.is_dry_run)
    return serializers.reload_result(done, need, request.is_dry_run)


def health(handler: Base, _: NoInputs) -> Health:
    return Health()


async def readiness(handler: Base, _: NoInputs) -> Readiness:
    """Reports whether the store can be written, the disk has space and the event loop is not delayed."""
    services = handler.services
    await handler.charts.settle()
    if handler.supervision.event_writer.failing:
        raise Unavailable("the store cannot be written")
    if services.disk.is_full:
        raise Unavailable(services.disk.shortage)
    if services.sharing is not None and not services.sharing.is_connected:
        raise Unavailable("the shared database is unavailable")
    if services.maintenance.is_stalled:
        raise Unavailable("the event loop was delayed by more than a second")
    return Readiness(charts=handler.charts.groups(), disk="LOW" if services.disk.is_low else "UP")


class Collector:
    """Collects the metrics of one application (docs/operations.md) at each scrape; prometheus_client renders them."""

    def __init__(self, services: Services, streams: Streams) -> None:
        self._services = services
        self._streams = streams

    def collect(self) -> Iterator[Any]:
        yield from self._server()
        yield from self._supervision()
        yield from self._charts()
        yield from self._tracker()
        yield from self._outbox()

    def _server(self) -> Iterator[Any]:
        event_writer, responses = self._services.supervision.event_writer, sorted(self._services.answered.items())
        yield _gauge("loop_lag_seconds", "Delay of the event loop at its last check.", self._services.maintenance.lag)
        yield _gauge("streams_open", "Open event streams.", len(self._streams))
        yield _gauge("streams", "Open event streams by kind.", self._streams.by_kind(), "kind")
        yield _gauge("store_failing", "1 while the store cannot be written.", int(event_writer.failing))
        waiting = event_writer.waiting + (self._services.sharing.history.waiting if self._services.sharing else 0)
        yield _gauge("store_waiting_events", "Status changes that are not in the store yet.", waiting)
        codes = {str(code): number for code, number in responses}
        yield _counter("http_responses", "Responses by status code.", codes, "code")
        failed = self._services.accounts.failed_logins
        yield _counter("logins_failed", "Logins with a wrong name or password.", failed)

    def _supervision(self) -> Iterator[Any]:
        fleet = list(self._services.supervision.fleet)
        yield _gauge("events_stored", "Status changes in the history.", events.count(Filter()))
        now = Counter(process.status for process in fleet)
        states = {status.value: now[status] for status in STATUSES}
        yield _gauge("processes", "Processes by status.", states, "status")
        live = {process.name: int(process.live) for process in fleet}
        yield _gauge("process_up", "1 while the process is live.", live, "process")
        restarts = {process.name: process.restarts for process in fleet}
        yield _counter("process_restarts", "Restarts by policy.", restarts, "process")

    def _charts(self) -> Iterator[Any]:
        helm = self._services.charts.helm
        yield _gauge("helm_running", "Running helm processes.", helm.runner.running)
        ended = {outcome: helm.runner.ended[outcome] for outcome in ("ok", "failed")}
        yield _counter("helm_runs", "Ended helm processes: ok (exit code 0) or failed.", ended, "outcome")

    def _tracker(self) -> Iterator[Any]:
        ingest = self._services.tracker.ingest
        yield _gauge("uploads_waiting", "Uploads received and not stored yet.", ingest.waiting)
        if (forwarder := self._services.supervision.process_logs.forwarder) is not None:
            yield _counter("log_lines_lost", "Lines of logs that could not be forwarded.", forwarder.lost, "process")
            rotated_away = "Bytes of logs that were rotated away before they were forwarded."
            yield _counter("log_bytes_lost", rotated_away, forwarder.lost_bytes, "process")
        uploads = {outcome: ingest.answered[outcome] for outcome in ("stored", "refused", "failed")}
        yield _counter("uploads", "Uploads of reports by outcome.", uploads, "outcome")

    def _outbox(self) -> Iterator[Any]:
        core = self._services.outbound.opened
        counts = core.dispatcher.counts if core else {"PENDING": 0, "DEAD": 0}
        yield _gauge("outbox_pending", "Messages of the outbox that are to be sent.", counts["PENDING"])
        yield _gauge("outbox_dead", "Messages of the outbox that were given up.", counts["DEAD"])
        yield _tries(core.dispatcher.results if core else {})


def _tries(results: Mapping[tuple[str, str], int]) -> Any:
    from prometheus_client.core import CounterMetricFamily

    family = CounterMetricFamily("pilothouse_deliveries", "Tries to send a message.", labels=["kind", "result"])
    for (kind, result), number in sorted(results.items()):
        family.add_metric([kind, result], number)
    return family


def _gauge(name: str, about: str, value: float | Mapping[str, float], label: str = "") -> Any:
    from prometheus_client.core import GaugeMetricFamily  # imported at the first scrape

    return _family(GaugeMetricFamily, name, about, value, label)


def _counter(name: str, about: str, value: float | Mapping[str, float], label: str = "") -> Any:
    from prometheus_client.core import CounterMetricFamily

    return _family(CounterMetricFamily, name, about, value, label)


def _family(kind: Any, name: str, about: str, value: float | Mapping[str, float], label: str) -> Any:
    """A family with one value, or with a value for each text of a label."""
    if not isinstance(value, Mapping):
        return kind(f"pilothouse_{name}", about, value=value)
    family = kind(f"pilothouse_{name}", about, labels=[label])
    for text, number in value.items():
        family.add_metric([text], number)
    return family


def metrics(handler: Base, _: NoInputs) -> bytes:
    from prometheus_client import (
        CollectorRegistry,
        ProcessCollector,
        generate_latest,
    )  # imported at the first scrape

    registry = CollectorRegistry()
    ProcessCollector(registry=registry)
    registry.register(Collector(handler.services, handler.streams))
    return generate_latest(registry)


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


OPERATIONS = [
    Operation(
        None, "GET", "/supervisor/info", "Get the host and the supervisor's name", NoInputs, info, SupervisorInfo,
        name="supervisor_info", permission=READ,
    ),
    Operation(
        None, "POST", "/supervisor/reload", "Reload the configuration", ReloadRequest, reload, ReloadResult,
        name="supervisor_reload", permission=CONTROL_PROCESSES,
    ),
]  # fmt: skip
routes: list[Route] = operation_routes(OPERATIONS)

COMMON_OPERATIONS = [
    Operation(
        None, "GET", "/healthz", "Check whether the server responds", NoInputs, health, Health, name="server_health",
        permission=PUBLIC,
    ),
    Operation(
        None, "GET", "/readyz", "Check whether the server is ready, and which chart operations are available", NoInputs,
        readiness, Readiness, name="server_ready", permission=PUBLIC,
    ),
    Operation(
        None, "GET", "/metrics", "Get metrics in the Prometheus text format", NoInputs, metrics,
        "text/plain; version=0.0.4; charset=utf-8", name="server_metrics", permission=READ,
    ),
]  # fmt: skip
common_routes: list[Route] = operation_routes(COMMON_OPERATIONS)
