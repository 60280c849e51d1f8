"""The coverage of one file at a glance: a strip with a cell for each line, and its missed lines as ranges."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import groupby

from models.tracker.files.sources import CoveredFile

_MAX_CELLS = 1000
"""Beyond as many lines a cell stands for several: about as many as a wide screen has pixels."""

_KINDS = {"missed": "bad", "covered": "good"}


def ranges(numbers: Sequence[int]) -> list[tuple[int, int]]:
    """Ascending line numbers as ranges of (first, last)."""
    groups = groupby(enumerate(numbers), key=lambda pair: pair[1] - pair[0])
    found = [[number for _, number in group] for _, group in groups]
    return [(lines[0], lines[-1]) for lines in found]


def strip(file: CoveredFile) -> str:
    """Renders the lines from the first to the last that the reports name; a cell with a missed line is missed."""
    missed, covered = set(file.missed), set(file.covered)
    last = max((*missed, *covered), default=0)
    lines_each = -(-last // _MAX_CELLS) or 1
    cells: dict[int, str] = {}
    for lines, kind in ((covered, "covered"), (missed, "missed")):
        cells.update(dict.fromkeys(((line - 1) // lines_each for line in lines), kind))
    count = -(-last // lines_each)
    text = f"{len(missed)} of {len(missed | covered)} lines missed"
    return (
        f'<svg class="strip" viewBox="0 0 {max(count, 1)} 12" preserveAspectRatio="none" role="img"'
        f' aria-label="{text}">{"".join(_rectangles(cells, count))}</svg>'
    )


def _rectangles(cells: Mapping[int, str], count: int) -> Iterable[str]:
    """Neighbouring cells of one kind are one rectangle."""
    for kind, group in groupby(range(count), key=lambda cell: cells.get(cell)):
        places = list(group)
        if kind is not None:
            yield f'<rect class="{_KINDS[kind]}" x="{places[0]}" y="0" width="{len(places)}" height="12"/>'
