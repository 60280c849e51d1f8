"""CPU and memory of a process over time: as JSON, as sparklines of a table, and as the plots of its page."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import ClassVar

from attrs import frozen

from handlers.base import Base
from handlers.http import serializers
from handlers.http.permissions import READ
from handlers.http.serializers import Instant, MetricPoint, ProcessMetrics
from handlers.openapi.describe import Endpoint, whole, word
from handlers.routing import Route
from models import paging
from models.errors import Invalid
from models.json_format import read_rfc3339
from models.supervision.metrics import MAX_POINTS, Point, Series, peak, step_for
from supervisor import host

RANGES = {"10m": 600, "1h": 3600, "6h": 6 * 3600, "24h": 24 * 3600}
_MICROS_PER_SECOND = 1_000_000
_SPARK_POINTS, _SPARK_WIDTH, _SPARK_HEIGHT = 30, 90, 20
_SPARK_SECONDS = 3600
_PLOT_POINTS, _PLOT_WIDTH, _PLOT_HEIGHT = 360, 720, 100
_MAX_TABLE_ROWS = 24
_MIN_SPAN_SECONDS = 60
_SAMPLE_SECONDS, _SAMPLED_SECONDS = 5, 600
"""The step of the latest samples, and how far they go back at the default interval."""


@frozen
class Window:
    """The time that is shown, in seconds since 1970."""

    start: int
    end: int
    step: int


@frozen
class Plot:
    """One plot of a page. `path` and `starts` are in units of an SVG 720 wide and 100 high."""

    key: str
    label: str
    line: str
    """The averages, as the data of a path."""
    area: str
    """The maxima, as the data of a closed path."""
    starts: Sequence[float]
    top: str
    """The value at the upper end of the axis."""
    values: str
    """For script: the centre of each point and its value, as `x:text` with `;` between them."""


def window(query: Mapping[str, str], now: int, default: int = 3600, points: int = _PLOT_POINTS) -> Window:
    """The window that `from`, `to`, `range` and `step` of a query choose. Raises `Invalid`."""
    end = _instant("to", query["to"]) if query.get("to") else now
    length = RANGES.get(query.get("range", ""), default)
    start = _instant("from", query["from"]) if query.get("from") else end - length
    if end - start < _MIN_SPAN_SECONDS:
        raise Invalid("from must be at least a minute before to")
    default_step = (
        _SAMPLE_SECONDS if length <= _SAMPLED_SECONDS and "from" not in query else step_for(end - start, points)
    )
    step = paging.whole("step", query.get("step") or str(default_step), 1, 86_400)
    if step >= 60 and (end - start) // step > MAX_POINTS:  # of the samples there are few
        raise Invalid(f"step is too small: at most {MAX_POINTS} points are returned")
    return Window(start, end, step)


def _instant(name: str, text: str) -> int:
    return read_rfc3339(name, text) // 1_000_000


def sparkline(series: Series, now: int) -> str:
    """The processor use of the last hour as SVG, or nothing before the second minute."""
    points = series.points(now - _SPARK_SECONDS, now, _SPARK_SECONDS // _SPARK_POINTS)
    if len(points) < 2:
        return ""
    top, _ = peak(points)
    scale = _SPARK_WIDTH / _SPARK_SECONDS
    shown = " ".join(
        f"{max(0.0, (point.at - now + _SPARK_SECONDS) * scale):.0f},"
        f"{_SPARK_HEIGHT - 1 - point.cpu_avg / top * (_SPARK_HEIGHT - 2):.0f}"
        for point in points
    )
    return (
        f'<svg class="spark" viewBox="0 0 {_SPARK_WIDTH} {_SPARK_HEIGHT}" preserveAspectRatio="none"'
        f' aria-hidden="true"><polyline points="{shown}"/></svg>'
    )


def plots(series: Series, shown: Window) -> list[Plot]:
    """The plots of CPU and memory over one time axis; empty without two points."""
    points = series.points(shown.start, shown.end, shown.step)
    if len(points) < 2:
        return []
    cpu, memory = peak(points)
    starts = [_x(at, shown) for at in series.starts if shown.start <= at <= shown.end]
    return [
        _plot("cpu", "CPU", points, [(one.cpu_avg, one.cpu_max) for one in points], cpu, shown, starts),
        _plot("memory", "Memory", points, [(one.memory_avg, one.memory_max) for one in points], memory, shown, starts),
    ]


def text_of(key: str, value: float) -> str:
    """A value of a plot, for people."""
    return f"{value:.1f} %" if key == "cpu" else host.size(int(value))


def rows(series: Series, shown: Window) -> list[tuple[int, str, str]]:
    """The values in a few rows, for those who do not see a plot: time in microseconds, CPU and memory."""
    points = series.points(shown.start, shown.end, step_for(shown.end - shown.start, _MAX_TABLE_ROWS))
    return [
        (one.at * _MICROS_PER_SECOND, text_of("cpu", one.cpu_avg), text_of("memory", one.memory_avg)) for one in points
    ]


def _x(at: int, shown: Window) -> float:
    x = (at - shown.start) / (shown.end - shown.start) * _PLOT_WIDTH
    return round(min(float(_PLOT_WIDTH), max(0.0, x)), 1)


def _plot(
    key: str,
    label: str,
    points: Sequence[Point],
    values: Sequence[tuple[float, float]],
    top: float,
    shown: Window,
    starts: Sequence[float],
) -> Plot:
    line, upper, texts, last = "", list[str](), list[str](), None
    for point, (average, maximum) in zip(points, values, strict=True):
        x = _x(point.at + shown.step // 2, shown)
        command = "L" if last is not None and point.at - last <= 2 * shown.step else "M"
        line += f"{command}{x:g} {_PLOT_HEIGHT - average / top * _PLOT_HEIGHT:.1f}"
        upper.append(f"{x:g} {_PLOT_HEIGHT - maximum / top * _PLOT_HEIGHT:.1f}")
        texts.append(f"{x:g}:{text_of(key, average)}")
        last = point.at
    first, end = upper[0].split()[0], upper[-1].split()[0]
    area = f"M{first} {_PLOT_HEIGHT}L{'L'.join(upper)}L{end} {_PLOT_HEIGHT}Z"
    return Plot(key, label, line, area, starts, text_of(key, top), ";".join(texts))


class MetricsOfProcess(Base):
    """CPU and memory of one process over time."""

    permission = READ
    endpoints: ClassVar = {
        "GET": Endpoint(
            "CPU and memory of one process over time",
            ProcessMetrics,
            path=["name"],
            query=[
                word("from", "The beginning, an RFC 3339 time; an hour before `to` by default", "2026-11-22T10:00:00Z"),
                word("to", "The end, an RFC 3339 time; now by default", "2026-11-22T11:00:00Z"),
                whole("step", "Seconds that one point covers; below 60: of the latest 120 samples", None, 1, 86_400),
            ],
            fails=[400, 404],
            name="process_metrics",
        )
    }

    def get(self, name: str) -> None:
        process = self.supervision.fleet.get(name)
        shown = window(self.query(), self.clock.now() // _MICROS_PER_SECOND)
        series = self.supervision.metrics.of(process.name)
        points = [
            MetricPoint(
                Instant(point.at * _MICROS_PER_SECOND),
                round(point.cpu_avg, 2),
                round(point.cpu_max, 2),
                round(point.memory_avg),
                round(point.memory_max),
            )
            for point in series.points(shown.start, shown.end, shown.step)
        ]
        starts = [Instant(at * _MICROS_PER_SECOND) for at in series.starts if shown.start <= at <= shown.end]
        self.reply(ProcessMetrics(process.name, serializers.Int32(shown.step), points, starts))


routes: list[Route] = [(r"/processes/metrics/([^/]+)", MetricsOfProcess)]
