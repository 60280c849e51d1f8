"""The XML of Visual Studio (`CoverageDSPriv`) and of `dotnet-coverage` (`results`): ranges of lines in source files."""

from __future__ import annotations

from array import array
from collections import defaultdict
from collections.abc import Callable

from models.tracker.reports.base import CoverageReport, FileCoverage, Limits, ReportTooLarge
from models.tracker.reports.file_coverage import MAX_UNITS, CoverageFiles, clean_path, coverage_report, line_number
from models.tracker.reports.xml_stream import Attributes, Item, XmlReader, parts

_HITS = {"yes": True, "partial": True, "no": False}
_HITS_OF_VISUAL_STUDIO = {"0": True, "1": True, "2": False}
"""Covered, partially covered, not covered."""


class _Ranges(XmlReader):
    """Collects the lines of ranges by the number of their source file, whose path follows them."""

    def __init__(self, limits: Limits, sink: Callable[[FileCoverage], None]) -> None:
        super().__init__(limits)
        self._files = CoverageFiles(limits, sink)
        self._units: dict[str, array[int]] = defaultdict(lambda: array("q"))
        self._paths: dict[str, str] = {}
        self._size = 0

    def report(self, format: str, digest: str) -> CoverageReport:
        self._store()
        lines, _ = self._files.emit()
        return coverage_report(format, digest, lines, None)

    def _add(self, source: str | None, begin: str | None, end: str | None, hit: bool | None) -> None:
        """Adds the lines of a range. It has those from the first to the last, as the tools count them."""
        first, last = line_number(begin), line_number(end)
        if source is None or hit is None or first is None:
            return
        last = max(first, last or first)
        self._size += last - first + 1
        if self._size > MAX_UNITS:
            raise ReportTooLarge(f"it has more than {MAX_UNITS} lines of source")
        self._units[source].extend(range(first << 1 | hit, (last << 1 | hit) + 1, 2))

    def _name(self, source: str | None, path: str | None) -> None:
        if source is not None and path:
            if len(self._paths) >= self.limits.files:
                raise ReportTooLarge(f"it has more than {self.limits.files} source files")
            self._paths[source] = clean_path(path)

    def _store(self) -> None:
        """Stores the lines of the files whose paths are known, and forgets the others."""
        for source, units in self._units.items():
            if path := self._paths.get(source):
                self._files.add_units(path, units)
        self._units.clear()
        self._paths.clear()


class DotnetCoverage(_Ranges):
    """`modules`, `function`, `range`; the source files of a module follow its functions."""

    markers = frozenset(("modules", "module", "skipped_modules"))

    def __init__(self, limits: Limits, sink: Callable[[FileCoverage], None]) -> None:
        super().__init__(limits, sink)
        self.starts = {"range": self._range, "source_file": self._source_file}
        self.ends = {"module": self._store}

    def _range(self, attributes: Attributes) -> None:
        get = attributes.get
        self._add(get("source_id"), get("start_line"), get("end_line"), _HITS.get(get("covered", "").lower()))

    def _source_file(self, attributes: Attributes) -> None:
        self._name(attributes.get("id"), attributes.get("path"))


_LINES = ("SourceFileID", "LnStart", "LnEnd", "Coverage")
_NAMES = ("SourceFileID", "SourceFileName")


class VisualStudio(_Ranges):
    """`Module`, `NamespaceTable`, `Class`, `Method`, `Lines`; all source files are at the end."""

    parts = {"Lines": frozenset(_LINES), "SourceFileNames": frozenset(_NAMES)}
    texts = frozenset((*_LINES, *_NAMES))
    markers = frozenset(("Module", "schema"))

    def __init__(self, limits: Limits, sink: Callable[[FileCoverage], None]) -> None:
        super().__init__(limits, sink)
        self.items = {"Lines": self._lines, "SourceFileNames": self._source_file}

    def _lines(self, item: Item) -> None:
        source, first, last, hit = (self._text(item, name) for name in _LINES)
        self._add(source, first, last, _HITS_OF_VISUAL_STUDIO.get(hit or ""))

    def _source_file(self, item: Item) -> None:
        number, path = (self._text(item, name) for name in _NAMES)
        self._name(number, path)

    def _text(self, item: Item, name: str) -> str | None:
        return self.join(parts(item, name)[:1])
