"""OpenCover XML. Its unit is the sequence point."""

from __future__ import annotations

from collections.abc import Callable

from models.tracker.reports.base import CoverageReport, FileCoverage, Limits, ReportTooLarge
from models.tracker.reports.file_coverage import Counts, Files, hit, line_of, path_of, told, unit_key
from models.tracker.reports.text_cleaning import count
from models.tracker.reports.xml_stream import Reader

_AT_ONCE = 10_000
"""As many points of a method are gathered before they are packed."""


class OpenCover(Reader):
    """`Module`, `File`, `Method`, `SequencePoint`. A point that two modules share counts once, by its place."""

    def __init__(self, limits: Limits, sink: Callable[[FileCoverage], None]) -> None:
        super().__init__(limits)
        self._sink = sink
        self._files = Files(limits)
        self._paths: dict[str, str] = {}
        self._file = ""
        self._points: dict[str, dict[int, bool]] = {}
        self._branches: dict[str, Counts] = {}
        self._summary: Counts | None = None
        self.starts = {
            "File": self._named,
            "FileRef": self._referred,
            "Method": self._method,
            "SequencePoint": self._point,
            "BranchPoint": self._branch,
            "Summary": self._summed,
        }
        self.ends = {"Method": self._finish}

    def report(self, digest: str) -> CoverageReport:
        points, branches = self._files.pour(self._sink)
        return told("OpenCover", digest, points if sum(points) else self._summary, branches)

    def _named(self, attributes: dict[str, str]) -> None:
        if len(self._paths) >= self.limits.files:
            raise ReportTooLarge(f"it has more than {self.limits.files} source files")
        self._paths[attributes.get("uid", "")] = path_of(attributes.get("fullPath"))

    def _referred(self, attributes: dict[str, str]) -> None:
        self._file = attributes.get("uid", "")

    def _method(self, _attributes: dict[str, str]) -> None:
        self._file = ""
        self._points, self._branches = {}, {}

    def _point(self, attributes: dict[str, str]) -> None:
        line = line_of(attributes.get("sl"))
        if not line:
            return
        key = unit_key(line, count(attributes.get("sc")) or 0)
        points = self._points.setdefault(attributes.get("fileid") or self._file, {})
        points[key] = hit(attributes.get("vc")) or points.get(key, False)
        if len(points) > _AT_ONCE:
            self._finish()
            self._points, self._branches = {}, {}

    def _branch(self, attributes: dict[str, str]) -> None:
        if not line_of(attributes.get("sl")):
            return
        file = attributes.get("fileid") or self._file
        covered, missed = self._branches.get(file, (0, 0))
        taken = hit(attributes.get("vc"))
        self._branches[file] = covered + taken, missed + (not taken)

    def _finish(self) -> None:
        for file, points in self._points.items():
            self._files.add(self._path(file), points)
        for file, branches in self._branches.items():
            if file in self._points:
                self._files.branches(self._path(file), *branches, another=True)

    def _path(self, file: str) -> str:
        return self._paths.get(file) or path_of(f"file {file}")

    def _summed(self, attributes: dict[str, str]) -> None:
        """The session's own sum, which counts only where no points are listed."""
        covered = count(attributes.get("visitedSequencePoints"))
        points = count(attributes.get("numSequencePoints"))
        if self.parent == "CoverageSession" and points and covered is not None and covered <= points:
            self._summary = covered, points - covered
