"""The metrics of the server, collected at each scrape. docs/operations.md lists them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any

from handlers.http.sse import Streams
from models.supervision import events
from models.supervision.events import Filter
from models.supervision.process import STATUSES
from supervisor.services import Services


class Collector:
    """Collects the metrics of one application; prometheus_client renders them."""

    def __init__(self, services: Services, streams: Streams) -> None:
        self._services = services
        self._streams = streams

    def collect(self) -> Iterator[Any]:
        yield from self._server()
        yield from self._supervision()
        yield from self._charts()
        yield from self._tracker()

    def _server(self) -> Iterator[Any]:
        event_writer, responses = self._services.supervision.event_writer, sorted(self._services.answered.items())
        yield _gauge("loop_lag_seconds", "Delay of the event loop at its last check.", self._services.maintenance.lag)
        yield _gauge("streams_open", "Open event streams.", len(self._streams))
        yield _gauges("streams", "Open event streams by kind.", "kind", self._streams.by_kind())
        yield _gauge("store_failing", "1 while the store cannot be written.", int(event_writer.failing))
        waiting = event_writer.waiting + (self._services.sharing.history.waiting if self._services.sharing else 0)
        yield _gauge("store_waiting_events", "Status changes that are not in the store yet.", waiting)
        codes = {str(code): number for code, number in responses}
        yield _counters("http_responses", "Responses by status code.", "code", codes)
        failed = self._services.accounts.failed_logins
        yield _counter("logins_failed", "Logins with a wrong name or password.", failed)

    def _supervision(self) -> Iterator[Any]:
        fleet = list(self._services.supervision.fleet)
        yield _gauge("events_stored", "Status changes in the history.", events.count(Filter()))
        now = Counter(process.status for process in fleet)
        states = {status.value: now[status] for status in STATUSES}
        yield _gauges("processes", "Processes by status.", "status", states)
        live = {process.name: int(process.live) for process in fleet}
        yield _gauges("process_up", "1 while the process is live.", "process", live)
        restarts = {process.name: process.restarts for process in fleet}
        yield _counters("process_restarts", "Restarts by policy.", "process", restarts)

    def _charts(self) -> Iterator[Any]:
        helm = self._services.charts.helm
        yield _gauge("helm_running", "Running helm processes.", helm.runner.running)
        ended = {outcome: helm.runner.ended[outcome] for outcome in ("ok", "failed")}
        yield _counters("helm_runs", "Ended helm processes: ok (exit code 0) or failed.", "outcome", ended)

    def _tracker(self) -> Iterator[Any]:
        ingest = self._services.tracker.ingest
        yield _gauge("uploads_waiting", "Uploads received and not stored yet.", ingest.waiting)
        if (forwarder := self._services.supervision.process_logs.forwarder) is not None:
            yield _counters("log_lines_lost", "Lines of logs that could not be forwarded.", "process", forwarder.lost)
            rotated_away = "Bytes of logs that were rotated away before they were forwarded."
            yield _counters("log_bytes_lost", rotated_away, "process", forwarder.lost_bytes)
        uploads = {outcome: ingest.answered[outcome] for outcome in ("stored", "refused", "failed")}
        yield _counters("uploads", "Uploads of reports by outcome.", "outcome", uploads)


def _gauge(name: str, help: str, value: float) -> Any:
    from prometheus_client.core import GaugeMetricFamily  # imported at the first scrape

    return GaugeMetricFamily(f"pilothouse_{name}", help, value=value)


def _gauges(name: str, help: str, label: str, values: Mapping[str, float]) -> Any:
    from prometheus_client.core import GaugeMetricFamily

    return _filled(GaugeMetricFamily(f"pilothouse_{name}", help, labels=[label]), values)


def _counter(name: str, help: str, value: float) -> Any:
    from prometheus_client.core import CounterMetricFamily

    return CounterMetricFamily(f"pilothouse_{name}", help, value=value)


def _counters(name: str, help: str, label: str, values: Mapping[str, float]) -> Any:
    from prometheus_client.core import CounterMetricFamily

    return _filled(CounterMetricFamily(f"pilothouse_{name}", help, labels=[label]), values)


def _filled(family: Any, values: Mapping[str, float]) -> Any:
    for label, value in values.items():
        family.add_metric([label], value)
    return family
