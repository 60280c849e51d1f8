"""Go cover profiles. Their unit is the statement: a block has so many, all covered or none."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable

from models.tracker.reports.base import BadReport, CoverageReport, FileCoverage, Limits, ReportTooLarge
from models.tracker.reports.byte_stream import lines
from models.tracker.reports.file_coverage import LAST_LINE, Files, path_of, told, unit_key

_BLOCK = re.compile(rb"(.+):(\d{1,9})\.(\d{1,9}),\d{1,9}\.\d{1,9} (\d{1,9}) (\d{1,30})")
_MOST = 0xFFFF


class GoCover:
    """Blocks. One that is listed twice (each test of a package lists them all) counts once, covered if it ever was."""

    def __init__(self, limits: Limits, sink: Callable[[FileCoverage], None]) -> None:
        self._sink = sink
        self._files = Files(limits)

    def read(self, pieces: Iterable[bytes]) -> None:
        for at, line in enumerate(lines(pieces), 1):
            line = line.strip()
            if not line or line.startswith(b"mode:"):
                continue
            found = _BLOCK.fullmatch(line)
            if not found:
                raise BadReport(
                    "this is no line of a Go cover profile (file:line.column,line.column statements count)", at
                )
            first, column, statements = int(found[2]), int(found[3]), int(found[4])
            if first > LAST_LINE or statements > _MOST:
                raise BadReport("a block of a Go cover profile cannot be that large", at)
            if statements:
                path = path_of(found[1].decode("utf-8", "replace"))
                self._files.add(path, {unit_key(first, column) | statements: found[5].strip(b"0") != b""})

    def report(self, digest: str) -> CoverageReport:
        return told("Go cover profile", digest, *self._files.pour(self._sink, _statements))


def _statements(units: Iterable[int]) -> dict[int, bool]:
    """The statements of blocks, each with a key of its own: the place of its block, and its number in there."""
    blocks: dict[int, bool] = {}
    for unit in units:
        block = unit >> 1
        blocks[block] = bool(unit & 1) or blocks.get(block, False)
    if sum(block & _MOST for block in blocks) > LAST_LINE:
        raise ReportTooLarge(f"a file has more than {LAST_LINE} statements")
    return {(block & ~_MOST) + number: covered for block, covered in blocks.items() for number in range(block & _MOST)}
