"""CPU and memory of a process over time: as JSON, as sparklines of a table, and as the plots of its page."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from attrs import frozen

from handlers.base import Base
from handlers.http import serializers
from handlers.http.permissions import READ
from handlers.http.serializers import ProcessMetrics
from handlers.operations import Operation, operation_routes
from handlers.routing import Route
from models.errors import Invalid
from models.inputs import NAME, instant, path, query, whole
from models.json_format import Instant, http_message, rfc3339
from models.supervision.metrics import MAX_POINTS, MetricStep, Series, merged, peak, step_for
from models.times import SECOND
from supervisor import host

RANGES = {"10m": 600, "1h": 3600, "6h": 6 * 3600, "24h": 24 * 3600}
_SPARK_POINTS, _SPARK_WIDTH, _SPARK_HEIGHT = 30, 90, 20
_SPARK_SECONDS = 3600
_PLOT_POINTS, _PLOT_WIDTH, _PLOT_HEIGHT = 360, 720, 100
_MAX_TABLE_ROWS = 24
_MIN_SPAN_SECONDS = 60
_SAMPLE_SECONDS, _SAMPLED_SECONDS = 5, 600
"""The step of the latest samples, and how far they go back at the default interval."""
_FIRST_SECOND = -62_135_596_800
"""The year 1: no earlier time can be written."""


@frozen
class TimeWindow:
    """The time that is shown, in seconds since 1970."""

    start: int
    end: int
    step: int


@frozen
class Plot:
    """One plot of a page. Paths and `starts` are in units of an SVG 720 wide and 100 high."""

    key: str
    label: str
    line: str
    """The averages, as the data of a path."""
    area: str
    """The maxima, as the data of a closed path."""
    group: str
    """The averages of the process group, as the data of a path; empty where they are those of the process."""
    starts: Sequence[float]
    top: str
    """The value at the upper end of the axis."""
    values: str
    """For script: the centre of each point and its value, as `x:text` with `;` between them."""


@http_message
class MetricsWindow:
    start: int | None = query(
        "The beginning, an RFC 3339 time; an hour before `to` by default", kind=instant("2026-11-22T10:00:00Z"),
        json_name="from",
    )  # fmt: skip
    end: int | None = query(
        "The end, an RFC 3339 time; now by default", kind=instant("2026-11-22T11:00:00Z"), json_name="to"
    )
    step: int | None = query(
        "Seconds that one point covers (at most 1,440 points); below 60: the latest 120 samples", kind=whole(1, 86_400)
    )


@http_message
class MetricsOfProcess(MetricsWindow):
    name: str = path(kind=NAME)


def window(request: MetricsWindow, now: int, length: int = 3600, points: int = _PLOT_POINTS) -> TimeWindow:
    """The window that a request chooses, `length` seconds by default. Raises `Invalid`."""
    end = now if request.end is None else request.end // SECOND
    start = max(end - length, _FIRST_SECOND) if request.start is None else request.start // SECOND
    if end - start < _MIN_SPAN_SECONDS:
        raise Invalid("from must be at least a minute before to")
    if request.step is not None:
        step = request.step
    elif length <= _SAMPLED_SECONDS and request.start is None:
        step = _SAMPLE_SECONDS
    else:
        step = step_for(end - start, points)
    if step >= 60 and (end - start) // step > MAX_POINTS:  # of the samples there are few
        raise Invalid(f"step is too small: at most {MAX_POINTS} points are returned")
    return TimeWindow(start, end, step)


def sparkline(series: Series, now: int) -> str:
    """The processor use of the last hour as SVG, or nothing before the second minute."""
    points = series.points(now - _SPARK_SECONDS, now, _SPARK_SECONDS // _SPARK_POINTS)[-_SPARK_POINTS:]
    if len(points) < 2:
        return ""
    top, _ = peak(point.alone for point in points)
    first = points[0].at
    scale = _SPARK_WIDTH / (points[-1].at - first)
    shown = " ".join(
        f"{(point.at - first) * scale:.0f},{_SPARK_HEIGHT - 1 - point.cpu_avg / top * (_SPARK_HEIGHT - 2):.0f}"
        for point in points
    )
    return (
        f'<svg class="spark" viewBox="0 0 {_SPARK_WIDTH} {_SPARK_HEIGHT}" preserveAspectRatio="none"'
        f' aria-hidden="true"><title>CPU since {time.strftime("%H:%M UTC", time.gmtime(first))}</title>'
        f'<polyline points="{shown}"/></svg>'
    )


def plots(points: Sequence[MetricStep], starts: Sequence[int], shown: TimeWindow) -> list[Plot]:
    """The plots of CPU and memory over one time axis; empty without two points. `starts` are in microseconds."""
    if len(points) < 2:
        return []
    cpu, memory = peak(points)
    marks = [_x(at // SECOND, shown) for at in starts]
    return [
        _plot(
            "cpu", "CPU", [_PlotPoint(one.at, *one.values[:2], one.group_cpu_avg) for one in points], cpu, shown, marks
        ),
        _plot(
            "memory",
            "Memory",
            [_PlotPoint(one.at, *one.values[2:4], one.group_memory_avg) for one in points],
            memory,
            shown,
            marks,
        ),
    ]


def text_of(key: str, value: float) -> str:
    """A value of a plot, for people."""
    return f"{value:.1f} %" if key == "cpu" else host.size(int(value))


def rows(points: Sequence[MetricStep], shown: TimeWindow) -> list[tuple[int, Sequence[str]]]:
    """The values in a few rows, for those who do not see a plot: time in microseconds, CPU and memory.

    Where the values of the process group differ, they follow.
    """
    few = merged(points, max(shown.step, step_for(shown.end - shown.start, _MAX_TABLE_ROWS)))
    table, has_own_group = list[tuple[int, Sequence[str]]](), has_group(points)
    for one in few:
        texts = [text_of("cpu", one.cpu_avg), text_of("memory", one.memory_avg)]
        if has_own_group:
            texts += [text_of("cpu", one.group_cpu_avg), text_of("memory", one.group_memory_avg)]
        table.append((one.at * SECOND, texts))
    return table


def has_group(points: Iterable[MetricStep]) -> bool:
    """Whether the process group has used more than the process alone."""
    return any(one.values[:4] != one.values[4:] for one in points)


def moves(shown: TimeWindow, now: int, keep: int) -> list[tuple[str, str]]:
    """Links to other windows, by their label: the query of each. They replace zooming by drag."""
    length = shown.end - shown.start
    oldest, quarter = now - keep, length // 4
    windows = [
        ("Earlier", shown.start - length, shown.start, shown.start > oldest),
        ("Later", shown.end, min(shown.end + length, now), shown.end + _MIN_SPAN_SECONDS <= now),
        ("Zoom in", shown.start + quarter, shown.end - quarter, length >= 4 * _MIN_SPAN_SECONDS),
        ("Zoom out", shown.start - length // 2, min(shown.end + length // 2, now), length < keep),
    ]
    return [
        (label, f"from={_text(start)}&to={_text(end)}")
        for label, start, end, is_useful in windows
        if is_useful and end - start >= _MIN_SPAN_SECONDS
    ]


def _text(seconds: int) -> str:
    return rfc3339(max(seconds, _FIRST_SECOND) * SECOND).replace(".000000", "")


def _x(at: int, shown: TimeWindow) -> float:
    x = (at - shown.start) / (shown.end - shown.start) * _PLOT_WIDTH
    return round(min(float(_PLOT_WIDTH), max(0.0, x)), 1)


class _PlotPoint(NamedTuple):
    """A point of one plot."""

    at: int
    average: float
    maximum: float
    group: float


def _plot(
    key: str, label: str, points: Sequence[_PlotPoint], top: float, shown: TimeWindow, starts: Sequence[float]
) -> Plot:
    has_own_group = any(point.group != point.average for point in points)
    texts, area = list[str](), ""
    for point in points:
        text = text_of(key, point.average)
        group_text = f", group {text_of(key, point.group)}" if has_own_group else ""
        texts.append(f"{_x(point.at + shown.step // 2, shown):g}:{text}{group_text}")
    for part in _parts([(point.at, point.maximum) for point in points], top, shown):
        first, last = part[0].split()[0], part[-1].split()[0]
        area += f"M{first} {_PLOT_HEIGHT}L{'L'.join(part)}L{last} {_PLOT_HEIGHT}Z"
    line = _line([(point.at, point.average) for point in points], top, shown)
    group = _line([(point.at, point.group) for point in points], top, shown) if has_own_group else ""
    return Plot(key, label, line, area, group, starts, text_of(key, top), ";".join(texts))


def _line(values: Sequence[tuple[int, float]], top: float, shown: TimeWindow) -> str:
    """The data of a path. A single value is drawn as a point."""
    return "".join(f"M{'L'.join(part if len(part) > 1 else part * 2)}" for part in _parts(values, top, shown))


def _parts(values: Sequence[tuple[int, float]], top: float, shown: TimeWindow) -> list[list[str]]:
    """The coordinates of values; a new part begins where there was no sample."""
    parts, last = list[list[str]](), None
    for at, value in values:
        if last is None or at - last > 2 * shown.step:
            parts.append([])
        parts[-1].append(f"{_x(at + shown.step // 2, shown):g} {_PLOT_HEIGHT - value / top * _PLOT_HEIGHT:.1f}")
        last = at
    return parts


async def process_metrics(handler: Base, request: MetricsOfProcess) -> ProcessMetrics:
    """CPU and memory of one process over time."""
    supervision = handler.supervision
    await supervision.event_writer.stored_soon(request.name)
    process = supervision.fleet.get(request.name)
    shown = window(request, handler.clock.now() // SECOND)
    points, starts = await supervision.metrics.window(process.name, shown.start, shown.end, shown.step)
    return ProcessMetrics(
        process.name,
        serializers.Int32(shown.step),
        [serializers.metric_point(point) for point in points],
        [Instant(at) for at in starts],
    )


OPERATIONS = [
    Operation(
        None, "GET", "/processes/metrics/{name}", "Get CPU and memory of one process over time", MetricsOfProcess,
        process_metrics, ProcessMetrics, error_statuses=[400, 404], name="process_metrics", permission=READ,
    )
]  # fmt: skip
routes: list[Route] = operation_routes(OPERATIONS)
