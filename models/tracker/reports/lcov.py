"""LCOV tracefiles. Lines are counted from their DA records; LF and LH are often missing or stale, and not asked."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable

from models.tracker.reports.base import CoverageReport, FileCoverage, Limits
from models.tracker.reports.byte_stream import lines
from models.tracker.reports.file_coverage import Files, hit, line_of, path_of, told

_COUNT = re.compile(r"-?\d+(?:\.\d*)?(?:[eE][+-]?\d{1,3})?", re.ASCII)


class Lcov:
    """Records of a source file each; a file may have several, one for each test.

    What cannot be read in a record (a count of NaN, a word of another tool) is passed over.
    """

    def __init__(self, limits: Limits, sink: Callable[[FileCoverage], None]) -> None:
        self._sink = sink
        self._files = Files(limits)
        self._path: str | None = None
        self._lines: dict[int, bool] = {}
        self._branches = [0, 0]

    def read(self, pieces: Iterable[bytes]) -> None:
        for line in lines(pieces):
            word, _, rest = line.strip().partition(b":")
            if word == b"DA":
                self._line(rest.decode("utf-8", "replace"))
            elif word == b"BRDA":
                taken = rest.rpartition(b",")[2].decode("utf-8", "replace")
                self._branches[0 if hit(taken) else 1] += 1
            elif word == b"SF":
                self._finish()
                self._path = path_of(rest.decode("utf-8", "replace"))
            elif word == b"end_of_record":
                self._finish()
        self._finish()

    def report(self, digest: str) -> CoverageReport:
        return told("LCOV", digest, *self._files.pour(self._sink))

    def _line(self, rest: str) -> None:
        number, _, count = rest.partition(",")
        line = line_of(number.strip())
        count = count.partition(",")[0].strip()
        if line is not None and _COUNT.fullmatch(count):
            self._lines[line] = hit(count) or self._lines.get(line, False)

    def _finish(self) -> None:
        if self._path is not None and self._lines:
            self._files.add(self._path, self._lines)
            self._files.branches(self._path, self._branches[0], self._branches[1], another=False)
        self._path, self._lines, self._branches = None, {}, [0, 0]
