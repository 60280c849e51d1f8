"""What is in a file that came as a report is told by its content, never by its name; then its format reads it.

`TESTS` and `COVERAGE` are all the formats there are.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import BinaryIO, Protocol, TypeVar

from attrs import frozen

from models.tracker.reports import byte_stream
from models.tracker.reports.base import BadReport, Case, CoverageReport, FileCoverage, Limits, TestReport
from models.tracker.reports.byte_stream import Content
from models.tracker.reports.clover import Clover
from models.tracker.reports.cobertura import Cobertura
from models.tracker.reports.coveragepy import CoveragePy
from models.tracker.reports.ctrf import Ctrf
from models.tracker.reports.gocover import GoCover
from models.tracker.reports.gotest import GoTest
from models.tracker.reports.jacoco import Jacoco
from models.tracker.reports.junit import JUnit
from models.tracker.reports.lcov import Lcov
from models.tracker.reports.nunit import NUnit, XUnit
from models.tracker.reports.opencover import OpenCover
from models.tracker.reports.trx import Definitions, Trx
from models.tracker.reports.xml_stream import root_of

Row = TypeVar("Row", contravariant=True)
Whole = TypeVar("Whole", covariant=True)


_PAGE = re.compile(rb"\s*<(?:!doctype\s+)?html\b", re.IGNORECASE)


@frozen
class Head:
    """The beginning of a report: of XML its root, that one's attributes and the first element in it, else its text."""

    root: str = ""
    attributes: Mapping[str, str] = {}
    first: str = ""
    text: bytes = b""


class Reading(Protocol[Whole]):
    """One report, being read."""

    def read(self, pieces: Iterable[bytes]) -> None: ...
    def report(self, digest: str) -> Whole: ...


@frozen
class Format:
    """A format: its name, what its head looks like, and what reads it. `first` reads the file once before that."""

    name: str
    fits: Callable[[Head], bool]
    reader: Callable[..., Reading[TestReport] | Reading[CoverageReport]]
    before: Callable[[Limits], Definitions] | None = None


def _root(*names: str) -> Callable[[Head], bool]:
    return lambda head: head.root in names


def _says(pattern: bytes) -> Callable[[Head], bool]:
    compiled = re.compile(pattern, re.MULTILINE | re.DOTALL)
    return lambda head: compiled.search(head.text) is not None


def _clover(head: Head) -> bool:
    return head.root == "coverage" and (
        head.first in ("project", "testproject") or ("clover" in head.attributes and head.first != "packages")
    )


TESTS = (
    Format("JUnit", _root("testsuites", "testsuite", "testcase"), JUnit),
    Format("TRX", _root("TestRun"), Trx, Definitions),
    Format("xUnit v2", _root("assemblies", "assembly"), XUnit),
    Format("NUnit 3", _root("test-run"), NUnit),
    Format("CTRF", _says(rb'\A\s*\{.*"(?:results"\s*:\s*\{|reportFormat"\s*:\s*"CTRF")'), Ctrf),
    Format("go test -json", _says(rb'^[ \t]*\{[^\n]*"Action"[ \t]*:'), GoTest),
)
COVERAGE = (
    Format("JaCoCo", _root("report"), Jacoco),
    Format("Clover", _clover, Clover),
    Format("Cobertura", _root("coverage"), Cobertura),
    Format("OpenCover", _root("CoverageSession"), OpenCover),
    Format("Go cover profile", _says(rb"\A\s*mode:[ \t]*(?:set|count|atomic)\b"), GoCover),
    Format("LCOV", _says(rb"\A(?!\s*[<{]).*?^[ \t]*SF:"), Lcov),
    Format("coverage.py JSON", _says(rb'\A\s*\{.*"(?:files|totals)"\s*:\s*\{'), CoveragePy),
)


def read_tests(file: BinaryIO, limits: Limits, sink: Callable[[Case], None]) -> TestReport:
    """Reads a test report, plain or gzipped, from a seekable file. Raises BadReport, and ReportTooLarge as one of it.

    The cases go to `sink` as they are found; if it fails, some have gone there already.
    """
    found = _read(file, limits, sink, TESTS, COVERAGE, "a coverage report, not a test report")
    assert isinstance(found, TestReport)  # what the formats of TESTS make
    return found


def read_coverage(file: BinaryIO, limits: Limits, sink: Callable[[FileCoverage], None]) -> CoverageReport:
    """The same of a coverage report and its files."""
    found = _read(file, limits, sink, COVERAGE, TESTS, "a test report, not a coverage report")
    assert isinstance(found, CoverageReport)  # what the formats of COVERAGE make
    return found


def _read(
    file: BinaryIO,
    limits: Limits,
    sink: Callable[..., None],
    formats: Sequence[Format],
    others: Sequence[Format],
    misplaced: str,
) -> TestReport | CoverageReport:
    start = file.tell()
    whole = Content(file, limits)
    head = _head(whole.head, limits)
    found = next((format for format in formats if format.fits(head)), None)
    if found is None:
        other = next((format.name for format in others if format.fits(head)), None)
        raise BadReport(_unknown(head, formats, f"{other} is {misplaced}" if other else ""))
    clean = byte_stream.xml if head.root else byte_stream.plain
    more = []
    if found.before:
        before = found.before(limits)
        before.read(clean(whole, whole.head))
        file.seek(start)
        whole = Content(file, limits)
        more.append(before)
    reading = found.reader(limits, sink, *more)
    reading.read(clean(whole, whole.head))
    return reading.report(whole.digest)


def _head(start: bytes, limits: Limits) -> Head:
    text = b"".join(byte_stream.plain((start,), start))
    if not text.strip():
        raise BadReport("the file is empty")
    if _PAGE.match(text):
        raise BadReport("it is a page of HTML, not a report")
    if not text.lstrip().startswith(b"<"):
        return Head(text=text)
    root, attributes, first = root_of(byte_stream.xml((start,), start), limits, len(start) < byte_stream.HEAD)
    return Head(root, attributes, first)


def _unknown(head: Head, formats: Sequence[Format], misplaced: str) -> str:
    names = ", ".join(format.name for format in formats)
    what = f"its root element is <{head.root[:100]}>" if head.root else "it is no XML"
    return f"{what}: {misplaced or 'not a format that is known here'} (expected one of {names})"
