"""SVG bar charts and line charts, rendered by the server.

The SVG holds no text: labels stand around it as HTML, so it scales to any width. A table shows the same values.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

from attrs import frozen
from tornado.escape import xhtml_escape

_SLOT_WIDTH, _BAR_WIDTH, _HEIGHT = 10, 7, 100
_MIN_BAD_HEIGHT = 1.2
"""Two pixels of a plot: one failure in a thousand tests stays visible. All else is to scale."""


@frozen
class Bar:
    """One slot of the time axis: its parts from the bottom up as (class, amount), and its tooltip.

    `bad` colours the whole slot.
    """

    parts: Sequence[tuple[str, float]]
    tooltip: str
    bad: bool = False


@frozen
class LinePoint:
    """One slot of a line chart; a value of `None` interrupts the line."""

    value: float | None
    tooltip: str


def bars(element_id: str, slots: Sequence[Bar], title: str, description: str, has_cursor: bool = False) -> str:
    """Renders the bars, oldest first, as one SVG element; with a cursor it takes the focus."""
    largest = max((sum(amount for _, amount in bar.parts) for bar in slots), default=0) or 1
    body = "".join(_bar(position, bar, largest) for position, bar in enumerate(slots))
    return _svg(element_id, len(slots), title, description, body, has_cursor)


def line(element_id: str, slots: Sequence[LinePoint], axis: tuple[float, float], title: str, description: str) -> str:
    """Renders the points, oldest first, as one line with a cursor between the ends of the axis."""
    low, high = axis
    heights = [None if point.value is None else (point.value - low) * _HEIGHT / (high - low) for point in slots]
    hover = "".join(
        f'<g><title>{xhtml_escape(point.tooltip)}</title><rect class="over" x="{position * _SLOT_WIDTH}" y="0"'
        f' width="{_SLOT_WIDTH}" height="{_HEIGHT}"/></g>'
        for position, point in enumerate(slots)
    )
    return _svg(element_id, len(slots), title, description, _path(heights) + hover, has_cursor=True)


def axis_of(values: Iterable[float], min_span: float = 5.0, most: float = 100.0) -> tuple[float, float]:
    """The ends of an axis for these values, in whole numbers and at least `min_span` apart."""
    known = list(values)
    low, high = float(math.floor(min(known))), float(math.ceil(max(known)))
    if high - low < min_span:
        low = float(math.floor(max(0.0, min((low + high - min_span) / 2, most - min_span))))
        high = max(high, low + min_span)
    return low, high


def _svg(element_id: str, slots: int, title: str, description: str, body: str, has_cursor: bool) -> str:
    focus = ' tabindex="0"' if has_cursor else ""
    return (
        f'<svg class="chart plot" viewBox="0 0 {max(1, slots) * _SLOT_WIDTH} {_HEIGHT}" preserveAspectRatio="none"'
        f'{focus} role="img" aria-labelledby="{element_id}-title {element_id}-text">'
        f'<title id="{element_id}-title">{xhtml_escape(title)}</title>'
        f'<desc id="{element_id}-text">{xhtml_escape(description)}</desc>{body}</svg>'
    )


def _bar(position: int, bar: Bar, largest: float) -> str:
    x, y, body = position * _SLOT_WIDTH, float(_HEIGHT), ""
    if bar.bad:
        body += f'<rect class="wash" x="{x}" y="0" width="{_SLOT_WIDTH}" height="{_HEIGHT}"/>'
    for kind, height in _heights(bar.parts, largest):
        y -= height
        left = x + (_SLOT_WIDTH - _BAR_WIDTH) / 2
        body += f'<rect class="{kind}" x="{left:g}" y="{y:.2f}" width="{_BAR_WIDTH}" height="{height:.2f}"/>'
    hover = f'<rect class="over" x="{x}" y="0" width="{_SLOT_WIDTH}" height="{_HEIGHT}"/>'
    return f"<g><title>{xhtml_escape(bar.tooltip)}</title>{body}{hover}</g>"


def _heights(parts: Iterable[tuple[str, float]], largest: float) -> list[tuple[str, float]]:
    """The height of each non-zero part, to scale. A small failure takes its minimum from the tallest part."""
    visible = [(kind, amount) for kind, amount in parts if amount > 0]
    heights = [amount * _HEIGHT / largest for _, amount in visible]
    for place, (kind, _) in enumerate(visible):
        if kind == "bad" and (lacking := _MIN_BAD_HEIGHT - heights[place]) > 0:
            if len(heights) > 1:
                heights[heights.index(max(heights))] -= lacking
            heights[place] += lacking
    return [(kind, max(0.0, height)) for (kind, _), height in zip(visible, heights, strict=True)]


def _path(values: Sequence[float | None]) -> str:
    path, in_segment = "", False
    for position, value in enumerate(values):
        if value is None:
            in_segment = False
            continue
        x, y = position * _SLOT_WIDTH + _SLOT_WIDTH / 2, _HEIGHT - min(100.0, max(0.0, value)) * _HEIGHT / 100
        path += f"{'L' if in_segment else 'M'}{x:g} {y:.2f}"
        if not in_segment:
            path += "h.01"  # a single point shows as a dot
        in_segment = True
    return f'<path class="line" d="{path}"/>' if path else ""


def bar(pct: float) -> str:
    """Renders a percentage of coverage as a bar; the same kinds as the treemap's."""
    return (
        '<svg class="bar" viewBox="0 0 100 8" preserveAspectRatio="none" aria-hidden="true">'
        '<rect width="100" height="8"/>'
        f'<rect class="{coverage_kind(pct)}" width="{pct:.1f}" height="8"/></svg>'
    )


def coverage_kind(pct: float) -> str:
    """The kind of a percentage of covered lines: good from 80, warn from 50, else bad."""
    return "good" if pct >= 80 else "warn" if pct >= 50 else "bad"
