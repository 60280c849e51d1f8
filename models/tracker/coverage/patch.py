"""Coverage of changed lines: the diff of an upload, and which of its lines the coverage of a run covers or misses."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Literal

from attrs import frozen

from models.times import DAY
from models.tracker.coverage.diff import Ranges, file_name, ranges_of
from models.tracker.coverage.line_sets import source_lines
from models.tracker.files.path_suffixes import PathSuffixes
from models.tracker.tables import reports

FileState = Literal["MEASURED", "NOT_COVERABLE", "NO_LINE_DATA"]

_COVERABLE_DAYS = 30
"""Files of an extension that coverage of the project had in this time are coverable."""
_MAX_EXTENSIONS = 100
"""Kept of one upload. A file without a dot counts by its whole name."""

_STAGED_PATHS = "SELECT DISTINCT path FROM files"
_SEEN = """
    INSERT INTO covered_extension (project_id, extension, seen_at) VALUES (?, ?, ?)
    ON CONFLICT (project_id, extension) DO UPDATE SET seen_at = excluded.seen_at"""
_EXTENSIONS = """
    SELECT e.extension FROM covered_extension e JOIN (SELECT project_id, min(created_at) AS at FROM run
        WHERE id IN (SELECT value FROM json_each(?)) GROUP BY project_id) AS runs ON runs.project_id = e.project_id
    WHERE e.seen_at >= runs.at - ?"""
_STORE = """
    INSERT INTO patch (run_id, base, head, ranges, paths, problem, renames)
    SELECT :run, d.base, d.head, d.ranges, d.paths, d.problem, d.renames FROM diff d WHERE 1 = 1
    ON CONFLICT (run_id) DO UPDATE SET base = excluded.base, head = excluded.head, ranges = excluded.ranges,
    paths = excluded.paths, problem = excluded.problem, renames = excluded.renames"""
_STORE_COMMITS = """
    INSERT INTO base_commit (run_id, place, commit_sha) SELECT ?, c.place, c.commit_sha FROM base_commits c"""
_LINES = """
    SELECT c.path, r.module, c.covered, c.missed FROM coverage c JOIN report r ON r.id = c.report_id
    WHERE c.run_id IN (SELECT value FROM json_each(?))"""


@frozen
class PatchFileInfo:
    """A changed file; lines without line data are not coverable.

    NOT_COVERABLE: no changed line has line data, or no coverage of the project lately had a file of this extension.
    """

    path: str
    covered: int
    missed: int
    missed_ranges: Ranges
    state: FileState


@frozen
class PatchCoverage:
    """The coverage of changed lines. `reason` is why there is none."""

    base: str | None
    head: str | None
    files: Sequence[PatchFileInfo]
    reason: str | None

    @property
    def covered(self) -> int:
        return sum(file.covered for file in self.files)

    @property
    def missed(self) -> int:
        return sum(file.missed for file in self.files)

    @property
    def unknown(self) -> int:
        return sum(file.state == "NO_LINE_DATA" for file in self.files)


def store(run_id: int) -> bool:
    """Keeps the diff of the staged upload for a run, in place of an earlier one. Returns whether there is one."""
    if reports.execute_sql(_STORE, {"run": run_id}).rowcount <= 0:
        return False
    reports.execute_sql("DELETE FROM base_commit WHERE run_id = ?", (run_id,))
    reports.execute_sql(_STORE_COMMITS, (run_id,))
    return True


def staged_problem() -> str | None:
    """Why the diff of the staged upload is not used, if it is not."""
    row = reports.execute_sql("SELECT problem FROM diff").fetchone()
    return None if row is None or row[0] is None else str(row[0])


def changed_lines(run_id: int) -> tuple[Mapping[str, Ranges], Collection[str]]:
    """The changed lines of a run by file, and the files of the repository that its upload named."""
    row = reports.execute_sql("SELECT ranges, paths FROM patch WHERE run_id = ?", (run_id,)).fetchone()
    return ({}, ()) if row is None else (json.loads(row[0]), json.loads(row[1]))


def renamed_files(run_id: int, paths: Iterable[str]) -> dict[str, str]:
    """Of paths in a coverage report of the base, those of files that the diff of a run renames: the new by the old."""
    row = reports.execute_sql("SELECT renames FROM patch WHERE run_id = ?", (run_id,)).fetchone()
    renames: dict[str, str] = json.loads(row[0]) if row and row[0] else {}
    index = PathSuffixes.of(renames)
    found = {}
    for path in dict.fromkeys(paths) if renames else ():
        named = {end for end in index.ends(path) if end in renames}
        named.update(index.ending_with(path, len(renames)))
        places = {new for old in named if (new := _moved(path, old, renames[old])) is not None}
        if len(places) == 1:
            found[path] = places.pop()
    return found


def _moved(path: str, old: str, new: str) -> str | None:
    """A path of a coverage report, which is the end of `old` or ends with it, after the file was renamed."""
    if path == old or path.endswith(f"/{old}"):
        return path[: len(path) - len(old)] + new
    above = old[: len(old) - len(path)]
    return new[len(above) :] if old.endswith(f"/{path}") and new.startswith(above) else None


def coverage(run_ids: Collection[int]) -> PatchCoverage:
    """The coverage of the changed lines of runs of one commit, by the union of their line data."""
    row = reports.execute_sql(
        "SELECT base, head, ranges, paths, problem FROM patch WHERE run_id IN (SELECT value FROM json_each(?))"
        " ORDER BY run_id DESC LIMIT 1",
        (json.dumps(list(run_ids)),),
    ).fetchone()
    if row is None:
        return PatchCoverage(None, None, (), "no diff was uploaded")
    base, head, ranges, paths, problem = row
    if problem is not None:
        return PatchCoverage(base, head, (), problem)
    changed: dict[str, Ranges] = json.loads(ranges)
    lines, extensions = _line_data(run_ids, Matcher(changed, json.loads(paths)))
    is_covered = bool(extensions)
    extensions |= _extensions_of_project(run_ids)
    files = [_file(path, changed[path], lines.get(path), extensions) for path in sorted(changed)]
    found = PatchCoverage(base, head, files, None)
    if found.covered + found.missed:
        return found
    # without any coverage, nothing is known of any file
    unknown = found.unknown or (0 if is_covered else len(files))
    reason = f"no line data for {unknown} changed files" if unknown else "no coverable line changed"
    return PatchCoverage(base, head, files, reason)


def store_extensions(project_id: int, now: int) -> None:
    """Keeps the extensions of the files that the staged coverage has."""
    found = {_extension(path) for (path,) in reports.execute_sql(_STAGED_PATHS)}
    reports.write_many(_SEEN, [(project_id, extension, now) for extension in sorted(found)[:_MAX_EXTENSIONS]])


def _extensions_of_project(run_ids: Collection[int]) -> set[str]:
    """The extensions that coverage of the project of these runs had lately, in any flag."""
    values = json.dumps(list(run_ids)), _COVERABLE_DAYS * DAY
    return {extension for (extension,) in reports.execute_sql(_EXTENSIONS, values)}


Lines = tuple[set[int], set[int]]


def _line_data(run_ids: Collection[int], matcher: Matcher) -> tuple[dict[str, Lines], set[str]]:
    """Covered and missed lines by changed file, and the extensions of all covered files."""
    lines: dict[str, Lines] = defaultdict(lambda: (set(), set()))
    extensions = set[str]()
    for path, module, covered, missed in reports.execute_sql(_LINES, (json.dumps(list(run_ids)),)):
        extensions.add(_extension(path))
        changed = matcher.match(path, module)
        if changed is not None and covered is not None:
            lines[changed][0].update(source_lines(covered))
            lines[changed][1].update(source_lines(missed))
    return lines, extensions


def _extension(path: str) -> str:
    return file_name(path.replace("\\", "/")).rpartition(".")[2].lower()


def _file(path: str, ranges: Ranges, lines: Lines | None, extensions: Collection[str]) -> PatchFileInfo:
    if lines is None:
        state: FileState = "NO_LINE_DATA" if _extension(path) in extensions else "NOT_COVERABLE"
        return PatchFileInfo(path, 0, 0, [], state)
    covered = within(lines[0], ranges)
    missed = sorted(within(lines[1], ranges) - covered)
    state = "MEASURED" if covered or missed else "NOT_COVERABLE"
    return PatchFileInfo(path, len(covered), len(missed), ranges_of(missed), state)


def within(lines: Iterable[int], ranges: Ranges) -> set[int]:
    """Those of the lines that are in a range."""
    ordered, inside, place = sorted(ranges), set[int](), 0
    for line in sorted(lines):
        while place < len(ordered) and ordered[place][1] < line:
            place += 1
        if place < len(ordered) and ordered[place][0] <= line:
            inside.add(line)
    return inside


class Matcher:
    """Finds the changed file that a path of a coverage report means."""

    def __init__(self, changed: Collection[str], paths: Collection[str]) -> None:
        """`paths`: files of the repository; without them only the changed files are known."""
        self._changed = frozenset(changed)
        self._knows_all = bool(paths)
        self._known = dict.fromkeys((*paths, *changed))
        self._suffixes = PathSuffixes.of(self._known)
        self._in_modules: dict[str, PathSuffixes] = {}

    def match(self, path: str, module: str | None) -> str | None:
        """The changed file; None where the path means another file, or is ambiguous."""
        path = path.replace("\\", "/")
        if path in self._changed:
            return path
        for end in self._suffixes.ends(path):
            fitting: Sequence[str] = self._suffixes.ending_with(end)
            if not self._knows_all and end != path:
                fitting = [end] if end in self._known else ()
            if module is not None and len(fitting) > 1:
                fitting = self._in_module(module).ending_with(end) or fitting
            if fitting:
                return fitting[0] if len(fitting) == 1 and fitting[0] in self._changed else None
        return None

    def _in_module(self, module: str) -> PathSuffixes:
        """The files in the folder `module`."""
        if module not in self._in_modules:
            files = (path for path in self._known if path.startswith(f"{module}/"))
            self._in_modules[module] = PathSuffixes.of(files)
        return self._in_modules[module]
