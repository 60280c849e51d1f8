"""Coverage in JSON: SimpleCov (`.resultset.json`, `coverage.json`) and Istanbul (`coverage-final.json`)."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from models.tracker.coverage.line_sets import MAX_LINE_NUMBER
from models.tracker.reports.base import CoverageReport, FileCoverage, Limits, UnknownFormat
from models.tracker.reports.file_coverage import CoverageFiles, clean_path, coverage_report
from models.tracker.reports.json_stream import CLOSED, ITEM, MAX_COVERAGE_NODES, OPENED, json_values, number, text

_MAX_KEY = 2**62 - 1
_Place = tuple[str, ...]


class SimpleCov:
    """The runs of `.resultset.json` by their command, which are united; or the one of `coverage.json`.

    The lines of a file are an array by index; before SimpleCov 0.18 they are the file's value itself. `null` is no
    code, "ignored" is between `:nocov:`. The file of the gem simplecov-json has an array of files.
    """

    def __init__(self, limits: Limits, sink: Callable[[FileCoverage], None]) -> None:
        self._limits = limits
        self._files = CoverageFiles(limits, sink)
        self._path: str | None = None
        self._lines: dict[int, bool] = {}
        self._branches: list[tuple[int, bool]] = []
        self._branch: list[Any] = []
        self._index = 0
        self._is_simplecov = False

    def read(self, pieces: Iterable[bytes]) -> None:
        for place, value in json_values(pieces, self._limits, MAX_COVERAGE_NODES):
            if place[:1] == ("files",):
                self._listed_file(place[1:], value)
                continue
            if not place and value is OPENED:
                continue
            inside = place if place[:1] == ("coverage",) else place[1:]
            if inside[:1] == ("coverage",):
                self._is_simplecov = True
                if len(inside) > 1:
                    self._file(inside[1], inside[2:], value)
                else:
                    self._close_file()  # the next command may begin with the same file
            elif place[:2] == ("meta", "simplecov_version"):
                self._is_simplecov = True
        self._close_file()
        if not self._is_simplecov:
            raise UnknownFormat("it has no coverage of a command")

    def report(self, format: str, digest: str) -> CoverageReport:
        return coverage_report(format, digest, *self._files.emit())

    def _file(self, path: str, place: _Place, value: Any) -> None:
        if path != self._path or (not place and value is OPENED):
            self._close_file()
            self._path = path
        if not place and value is CLOSED:
            self._close_file()
        elif place in ((ITEM,), ("lines", ITEM)):
            self._line(value)
        elif place[:1] == ("branches",):
            self._read_branch(place[1:], value)

    def _listed_file(self, place: _Place, value: Any) -> None:
        """Reads a file of the gem simplecov-json."""
        if place == (ITEM,):
            self._close_file()
        elif place == (ITEM, "filename"):
            self._path = text(value)
            self._is_simplecov = True
        elif place in ((ITEM, "coverage", ITEM), (ITEM, "coverage", "lines", ITEM)):
            self._line(value)

    def _line(self, value: Any) -> None:
        self._index += 1
        hits = number(value)
        if hits is not None and self._index <= MAX_LINE_NUMBER:
            self._lines[self._index] = hits > 0 or self._lines.get(self._index, False)

    def _read_branch(self, place: _Place, value: Any) -> None:
        """Reads a branch: hits by condition and branch, or an object with its kind, its lines and its coverage."""
        if place[:1] != (ITEM,):
            hits = number(value)
            if len(place) == 2 and hits is not None:
                self._branches.append((hash(place) & _MAX_KEY, hits > 0))
        elif value is OPENED:
            self._branch = []
        elif value is CLOSED:
            taken = [number(value) for key, value in self._branch if key == "coverage"]
            if taken and taken[0] is not None:
                self._branches.append((len(self._branches), taken[0] > 0))
        elif len(place) == 2 and len(self._branch) < 20:
            self._branch.append((place[1], value))

    def _close_file(self) -> None:
        if self._path is not None and self._lines:
            path = clean_path(self._path)
            self._files.add_lines(path, self._lines)
            self._files.add_branch_units(path, self._branches)
        self._path, self._lines, self._branches, self._index = None, {}, [], 0


class Istanbul:
    """Istanbul's own JSON, which nyc, Jest, Vitest, c8 and Cypress write: files by path, with maps and hits.

    A line is covered if a statement that begins in it is, as in Istanbul's own summary of lines.
    """

    def __init__(self, limits: Limits, sink: Callable[[FileCoverage], None]) -> None:
        self._limits = limits
        self._files = CoverageFiles(limits, sink)
        self._begins: dict[str, int] = {}
        self._skipped: set[str] = set()
        self._hits: dict[str, bool] = {}
        self._branches: list[tuple[int, bool]] = []
        self._branch: tuple[str, int] = ("", 0)
        self._has_others = False
        """Whether the top has something else than files."""

    def read(self, pieces: Iterable[bytes]) -> None:
        for place, value in json_values(pieces, self._limits, MAX_COVERAGE_NODES):
            if len(place) == 1:
                self._has_others |= value not in (OPENED, CLOSED)
                if value is CLOSED:
                    self._close_file(clean_path(place[0]))
            elif len(place) > 2:
                self._field(place[1:], value)
        if self._has_others:
            raise UnknownFormat("it has something else than files")

    def report(self, format: str, digest: str) -> CoverageReport:
        return coverage_report(format, digest, *self._files.emit())

    def _field(self, place: _Place, value: Any) -> None:
        kind, key = place[0], place[1]
        if kind == "statementMap" and place[2:] == ("start", "line"):
            line = number(value)
            if line is not None and 0 < line <= MAX_LINE_NUMBER:
                self._begins[key] = int(line)
        elif kind == "statementMap" and place[2:] == ("skip",) and value is True:
            self._skipped.add(key)
        elif kind == "s" and len(place) == 2:
            self._hits[key] = (number(value) or 0) > 0
        elif kind == "b" and place[2:] == (ITEM,):
            index = self._branch[1] + 1 if self._branch[0] == key else 0
            self._branch = key, index
            self._branches.append((hash((key, index)) & _MAX_KEY, (number(value) or 0) > 0))

    def _close_file(self, path: str) -> None:
        lines: dict[int, bool] = {}
        for statement, hit in self._hits.items():
            line = self._begins.get(statement)
            if line is not None:
                lines[line] = hit or statement in self._skipped or lines.get(line, False)
        if lines:
            self._files.add_lines(path, lines)
            self._files.add_branch_units(path, self._branches)
        self._begins, self._skipped, self._hits, self._branches, self._branch = {}, set(), {}, [], ("", 0)
