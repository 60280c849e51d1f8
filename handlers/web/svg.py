"""Pictures: bars and a line over time, as SVG made here. What they show is a table as well, and said in their titles.

They bear no text: labels stand around them as HTML, so a picture may be as wide as its place and letters stay letters.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from attrs import frozen
from tornado.escape import xhtml_escape

_SLOT, _BAR, _TALL = 10, 7, 100
_LEAST = 4.0
"""What is there at all is seen: one failure of a thousand tests too."""


@frozen
class Bar:
    """One place on the axis of time: its parts from the bottom up as (class, amount), and what the pointer reads.

    `line` is where the line passes, of 100; None interrupts it. `bad` washes the whole place.
    """

    parts: Sequence[tuple[str, float]]
    told: str
    line: float | None = None
    bad: bool = False


def bars(name: str, told: Sequence[Bar], title: str, description: str) -> str:
    """An SVG of these bars, oldest first. `name` is its id on the page."""
    most = max((sum(amount for _, amount in bar.parts) for bar in told), default=0) or 1
    drawn = "".join(_bar(place, bar, most) for place, bar in enumerate(told))
    return (
        f'<svg class="chart plot" viewBox="0 0 {max(1, len(told)) * _SLOT} {_TALL}" preserveAspectRatio="none"'
        f' role="img" aria-labelledby="{name}-title {name}-text">'
        f'<title id="{name}-title">{xhtml_escape(title)}</title>'
        f'<desc id="{name}-text">{xhtml_escape(description)}</desc>'
        f"{drawn}{_line([bar.line for bar in told])}</svg>"
    )


def _bar(place: int, bar: Bar, most: float) -> str:
    x, y, found = place * _SLOT, float(_TALL), ""
    if bar.bad:
        found += f'<rect class="wash" x="{x}" y="0" width="{_SLOT}" height="{_TALL}"/>'
    for kind, height in _heights(bar.parts, most):
        y -= height
        found += (
            f'<rect class="{kind}" x="{x + (_SLOT - _BAR) / 2:g}" y="{y:.2f}" width="{_BAR}" height="{height:.2f}"/>'
        )
    over = f'<rect class="over" x="{x}" y="0" width="{_SLOT}" height="{_TALL}"/>'
    return f"<g><title>{xhtml_escape(bar.told)}</title>{found}{over}</g>"


def _heights(parts: Iterable[tuple[str, float]], most: float) -> list[tuple[str, float]]:
    """How tall each part is; the small ones take from the tallest, so that nothing grows out of the picture."""
    there = [(kind, amount) for kind, amount in parts if amount > 0]
    heights = [max(_LEAST, amount * _TALL / most) for _, amount in there]
    excess = sum(heights) - _TALL
    if excess > 0:
        heights[heights.index(max(heights))] -= excess
    return [(kind, height) for (kind, _), height in zip(there, heights, strict=True)]


def _line(values: Sequence[float | None]) -> str:
    path, drawing = "", False
    for place, value in enumerate(values):
        if value is None:
            drawing = False
            continue
        x, y = place * _SLOT + _SLOT / 2, _TALL - min(100.0, max(0.0, value)) * _TALL / 100
        path += f"{'L' if drawing else 'M'}{x:g} {y:.2f}"
        if not drawing:
            path += "h.01"  # alone it is a dot
        drawing = True
    return f'<path class="line" d="{path}"/>' if path else ""
