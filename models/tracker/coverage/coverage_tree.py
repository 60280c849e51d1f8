"""The coverage of a run as a tree of folders, one level at a time, with its change against the baseline."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from attrs import frozen

from models.tracker.coverage import patch
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
class TreeEntry:
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
    entries: Sequence[TreeEntry]
    count: int


def files_of(run: Run) -> dict[str, Counts]:
    """Covered and missed lines of each file of a run."""
    rows = reports.execute_sql(_FILES, (run.id, MAX_FILES)).fetchall()
    return {path: (covered, missed) for path, covered, missed in rows}


def files_before(base: Run, head: Run, after: Mapping[str, Counts]) -> dict[str, Counts]:
    """The files of a run by the paths that they have in a later one, whose diff may rename them."""
    before = files_of(base)
    gone = [path for path in before if path not in after]
    moved = {old: new for old, new in patch.renamed_files(head.id, gone).items() if new not in before}
    return {moved.get(path, path): counts for path, counts in before.items()}


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


def _entry(prefix: str, name: str, members: Mapping[str, Counts], before: Counts | None) -> TreeEntry:
    covered, missed = _sum(members.values())
    now, then = percent(covered, missed), percent(*before) if before else None
    change = None if now is None or then is None else now - then
    is_folder = name.endswith("/")
    full = prefix + name
    while is_folder and len(inner := _grouped(members, full)) == 1 and next(iter(inner)).endswith("/"):
        full += next(iter(inner))
    return TreeEntry(
        full[len(prefix) :].rstrip("/"), full.rstrip("/"), is_folder, covered, missed, len(members), change
    )


def _sum(counts: Iterable[Counts]) -> Counts:
    covered = missed = 0
    for one, other in counts:
        covered, missed = covered + one, missed + other
    return covered, missed


@frozen
class Tile:
    """A rectangle of the treemap, in units of a map of this width and height."""

    entry: TreeEntry
    x: float
    y: float
    width: float
    height: float


def treemap(entries: Sequence[TreeEntry], width: float, height: float) -> list[Tile]:
    """Rectangles whose areas are the numbers of lines, squarified: each row is filled while its tiles grow squarer."""
    waiting = sorted((entry for entry in entries if entry.lines), key=lambda entry: -entry.lines)
    tiles, x, y = list[Tile](), 0.0, 0.0
    scale = width * height / max(1, sum(entry.lines for entry in waiting))
    while waiting:
        side = max(min(width - x, height - y), 1e-6)
        row = 1
        while row < len(waiting) and _worst(waiting[: row + 1], side, scale) <= _worst(waiting[:row], side, scale):
            row += 1
        thick, along = sum(entry.lines for entry in waiting[:row]) * scale / side, 0.0
        is_column = width - x >= height - y
        for entry in waiting[:row]:
            long = entry.lines * scale / thick
            tiles.append(
                Tile(entry, x, y + along, thick, long) if is_column else Tile(entry, x + along, y, long, thick)
            )
            along += long
        x, y = (x + thick, y) if is_column else (x, y + thick)
        waiting = waiting[row:]
    return tiles


def _worst(row: Sequence[TreeEntry], side: float, scale: float) -> float:
    """The largest ratio of two sides among the tiles of a row along this side."""
    areas = [entry.lines * scale for entry in row]
    total = sum(areas)
    return max(side * side * areas[0] / total**2, total**2 / (side * side * areas[-1]))
