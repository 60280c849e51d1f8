"""The coverage of a run as a tree of folders, one level at a time, with its change against the baseline."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from attrs import frozen

from models.tracker.coverage.file_coverage import percent
from models.tracker.tables import Run, reports

MAX_FILES = 50_000
MAX_ENTRIES = 200
"""Entries of one level that are shown."""

_FILES = """
    SELECT path, max(line_covered), max(line_missed) FROM coverage WHERE run_id = ?
    GROUP BY path ORDER BY path LIMIT ?"""

Counts = tuple[int, int]


@frozen
class Entry:
    """A folder or a file. `name` may be several folders that hold nothing but each other."""

    name: str
    path: str
    is_folder: bool
    covered: int
    missed: int
    files: int
    change: float | None
    """The change of its percentage against the baseline, in points."""

    @property
    def lines(self) -> int:
        return self.covered + self.missed

    @property
    def pct(self) -> float | None:
        return percent(self.covered, self.missed)


@frozen
class Level:
    """One folder: its entries with most missed lines first, and the folders above it as name and path."""

    folder: str
    parents: Sequence[tuple[str, str]]
    entries: Sequence[Entry]
    count: int


def files_of(run: Run) -> dict[str, Counts]:
    """Covered and missed lines of each file of a run."""
    rows = reports.execute_sql(_FILES, (run.id, MAX_FILES)).fetchall()
    return {path: (covered, missed) for path, covered, missed in rows}


def level(files: Mapping[str, Counts], folder: str, before: Mapping[str, Counts]) -> Level:
    """The entries of a folder; `before` has the files of the baseline."""
    prefix = f"{folder.strip('/')}/" if folder.strip("/") else ""
    groups = _grouped(files, prefix)
    old = {name: _sum(members.values()) for name, members in _grouped(before, prefix).items()}
    entries = [_entry(prefix, name, members, old.get(name)) for name, members in groups.items()]
    entries.sort(key=lambda entry: (-entry.missed, entry.name))
    parts = prefix.rstrip("/").split("/") if prefix else []
    parents = [(part, "/".join(parts[: place + 1])) for place, part in enumerate(parts)]
    return Level(prefix.rstrip("/"), parents, entries[:MAX_ENTRIES], len(entries))


def _grouped(files: Mapping[str, Counts], prefix: str) -> dict[str, dict[str, Counts]]:
    """The files below a folder, by the name of the entry that they belong to; folders end with a slash."""
    groups: dict[str, dict[str, Counts]] = {}
    for path, counts in files.items():
        if path.startswith(prefix):
            name, slash, _ = path[len(prefix) :].partition("/")
            groups.setdefault(name + slash, {})[path] = counts
    return groups


def _entry(prefix: str, name: str, members: Mapping[str, Counts], before: Counts | None) -> Entry:
    covered, missed = _sum(members.values())
    now, then = percent(covered, missed), percent(*before) if before else None
    change = None if now is None or then is None else now - then
    is_folder = name.endswith("/")
    full = prefix + name
    while is_folder and len(inner := _grouped(members, full)) == 1 and next(iter(inner)).endswith("/"):
        full += next(iter(inner))
    return Entry(full[len(prefix) :].rstrip("/"), full.rstrip("/"), is_folder, covered, missed, len(members), change)


def _sum(counts: Iterable[Counts]) -> Counts:
    covered = missed = 0
    for one, other in counts:
        covered, missed = covered + one, missed + other
    return covered, missed


@frozen
class Tile:
    """A rectangle of the treemap, in units of a map of this width and height."""

    entry: Entry
    x: float
    y: float
    width: float
    height: float


def treemap(entries: Sequence[Entry], width: float, height: float) -> list[Tile]:
    """Rectangles whose areas are the numbers of lines. Each is cut along its longer side, into halves of the lines."""
    shown = sorted((entry for entry in entries if entry.lines), key=lambda entry: -entry.lines)
    tiles, waiting = list[Tile](), [(shown, 0.0, 0.0, width, height)] if shown else []
    while waiting:
        group, x, y, wide, high = waiting.pop()
        if len(group) == 1:
            tiles.append(Tile(group[0], x, y, wide, high))
            continue
        total, first, cut = sum(entry.lines for entry in group), 0, 0
        while cut < len(group) - 1 and (not cut or first + group[cut].lines <= total / 2):
            first += group[cut].lines
            cut += 1
        share, rest = first / total, 1 - first / total
        waiting += (
            [(group[:cut], x, y, wide * share, high), (group[cut:], x + wide * share, y, wide * rest, high)]
            if wide >= high
            else [(group[:cut], x, y, wide, high * share), (group[cut:], x, y + high * share, wide, high * rest)]
        )
    return tiles
