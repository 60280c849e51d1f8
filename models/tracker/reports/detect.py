"""Detects the format of a report by its content, never by its name, and reads it.

`TESTS` and `COVERAGE` list all known formats.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import BinaryIO, Literal, Protocol, TypeVar

from attrs import evolve, frozen

from models.tracker.reports import allure, byte_stream, perf
from models.tracker.reports.allure import AllureResults
from models.tracker.reports.base import BadReport, Case, CoverageReport, FileCoverage, Limits, TestReport, UnknownFormat
from models.tracker.reports.byte_stream import Content
from models.tracker.reports.dotnet import NUnit, NUnit2, Trx, TrxDefinitions, XUnit
from models.tracker.reports.dotnet_coverage import DotnetCoverage, VisualStudio
from models.tracker.reports.gotest import GoTest
from models.tracker.reports.heads import Head, has_text, head_of, resemblance
from models.tracker.reports.json_coverage import Istanbul, SimpleCov
from models.tracker.reports.json_examples import Jest, RSpec
from models.tracker.reports.json_tests import Ctrf, Cucumber
from models.tracker.reports.junit import JUnit
from models.tracker.reports.perf_points import PerfReport
from models.tracker.reports.playwright import Playwright
from models.tracker.reports.sonar import SonarCoverage, SonarTests
from models.tracker.reports.tap import Tap
from models.tracker.reports.testng import TestNG
from models.tracker.reports.text_coverage import Codecov, CoveragePy, GoCover, Lcov
from models.tracker.reports.xml_coverage import Clover, Cobertura, Jacoco, OpenCover
from models.tracker.reports.xml_stream import XmlReader

Report = TypeVar("Report", covariant=True)


class Reader(Protocol[Report]):
    """Reads one report."""

    def read(self, pieces: Iterable[bytes]) -> None: ...
    def report(self, format: str, digest: str) -> Report: ...


@frozen
class Format:
    """A format: its name, what its head looks like, and its reader. `definitions` reads the file once before that."""

    name: str
    matches: Callable[[Head], bool]
    reader: Callable[..., Reader[TestReport] | Reader[CoverageReport]]
    definitions: Callable[[Limits], TrxDefinitions] | None = None


def _root(*names: str) -> Callable[[Head], bool]:
    return lambda head: head.root in names


def _is_clover(head: Head) -> bool:
    return head.root == "coverage" and (
        head.first in ("project", "testproject") or ("clover" in head.attributes and head.first != "packages")
    )


_COBERTURA_ELEMENTS = ("sources", "packages", "classes")


def _is_cobertura(head: Head) -> bool:
    attributes = {"line-rate", "lines-valid", "branch-rate"}
    return head.root == "coverage" and (head.first in _COBERTURA_ELEMENTS or not attributes.isdisjoint(head.attributes))


def _is_sonar_coverage(head: Head) -> bool:
    return head.root == "coverage" and (
        head.first == "file" or (set(head.attributes) == {"version"} and head.first not in _COBERTURA_ELEMENTS)
    )


def _is_xunit(version: str) -> Callable[[Head], bool]:
    def matches(head: Head) -> bool:
        if head.root not in ("assemblies", "assembly"):
            return False
        if head.attributes.get("schema-version", "").startswith("3"):
            found = "3"
        else:
            found = "1" if head.root == "assembly" and head.first == "class" else "2"
        return found == version

    return matches


Kind = Literal["test", "coverage", "performance"]
_PARTS: Mapping[Kind, str] = {"test": "junit", "coverage": "jacoco", "performance": "perf"}

ALLURE = "Allure results"
_STRING = rb'"(?:[^"\\]|\\.)*"'
_SIMPLECOV = (
    rb'\A\s*\{(?:.*"simplecov_version"\s*:'
    rb"|\s*" + _STRING + rb'\s*:\s*\{\s*"coverage"\s*:\s*\{'
    rb'|\s*"coverage"\s*:\s*\{\s*' + _STRING + rb'\s*:\s*\{\s*"lines"\s*:\s*\['
    rb'|.*"files"\s*:\s*\[\s*\{\s*"filename"\s*:)'
)  # fmt: skip
_ISTANBUL = (
    rb"\A\s*\{\s*(?:\}\s*\Z|" + _STRING + rb"\s*:\s*\{\s*(?:" + _STRING + rb"\s*:\s*(?:" + _STRING
    + rb'|true|false|null|[0-9]+)\s*,\s*)*"(?:statementMap|fnMap|branchMap|s|f|b)"\s*:\s*\{)'
)  # fmt: skip
"""An object without files is Istanbul's too."""

TESTS = (
    Format("JUnit", _root("testsuites", "testsuite", "testcase"), JUnit),
    Format("TRX", _root("TestRun"), Trx, TrxDefinitions),
    Format("xUnit v1", _is_xunit("1"), XUnit),
    Format("xUnit v2", _is_xunit("2"), XUnit),
    Format("xUnit v3", _is_xunit("3"), XUnit),
    Format("NUnit 2", _root("test-results"), NUnit2),
    Format("NUnit 3", _root("test-run"), NUnit),
    Format("Sonar test execution", _root("testExecutions", "unitTest"), SonarTests),
    Format("TestNG", _root("testng-results"), TestNG),
    Format("CTRF", has_text(rb'\A\s*\{.*"(?:results"\s*:\s*\{|reportFormat"\s*:\s*"CTRF")'), Ctrf),
    Format("Playwright JSON", has_text(rb'\A\s*\{.*(?:"rootDir"\s*:|"suites"\s*:\s*\[)'), Playwright),
    Format("Jest JSON", has_text(rb'\A\s*\{.*"(?:numTotalTests|numTotalTestSuites|testResults)"\s*:'), Jest),
    Format("RSpec JSON", has_text(rb'\A\s*\{.*"(?:examples"\s*:\s*\[|summary_line"\s*:)'), RSpec),
    Format(ALLURE, lambda head: allure.is_result(head.text), AllureResults),
    Format("Cucumber JSON", has_text(rb'\A\s*\[\s*(?:\]\s*\Z|\{.*"(?:elements|keyword)"\s*:)'), Cucumber),
    Format("go test -json", has_text(rb'^[ \t]*\{[^\n]*"Action"[ \t]*:'), GoTest),
    Format("TAP", has_text(rb"^(?:TAP version 1[2-4]\b|1\.\.\d+[ \t]*(?:#[^\n]*)?\r?$|(?:not )?ok\b[ \t]+\d+\b)"), Tap),
)
COVERAGE = (
    Format("JaCoCo", _root("report"), Jacoco),
    Format("Clover", _is_clover, Clover),
    Format("Sonar coverage", _is_sonar_coverage, SonarCoverage),
    Format("Cobertura", _is_cobertura, Cobertura),
    Format("OpenCover", _root("CoverageSession"), OpenCover),
    Format("Go cover profile", has_text(rb"\A\s*mode:[ \t]*(?:set|count|atomic)\b"), GoCover),
    Format("LCOV", has_text(rb"\A(?:\s*TN:|(?!\s*[<{\[]).*?^[ \t]*SF:)"), Lcov),
    Format("Visual Studio coverage", _root("CoverageDSPriv"), VisualStudio),
    Format("dotnet-coverage", _root("results"), DotnetCoverage),
    Format("SimpleCov", has_text(_SIMPLECOV), SimpleCov),
    Format("Istanbul", has_text(_ISTANBUL), Istanbul),
    Format("Codecov JSON", has_text(rb'\A\s*\{.*"coverage"\s*:\s*\{'), Codecov),
    Format("coverage.py JSON", has_text(rb'\A\s*\{.*"(?:files|totals)"\s*:\s*\{'), CoveragePy),
)


def read_tests(file: BinaryIO, limits: Limits, sink: Callable[[Case], None]) -> TestReport:
    """Reads a test report, plain or gzipped, from a seekable file. Raises BadReport, or ReportTooLarge.

    The cases are passed to `sink` as they are read; a report that fails may have passed some already.
    """
    report = _read(file, limits, sink, TESTS, "test")
    assert isinstance(report, TestReport)  # what the readers of TESTS return
    return report


def read_coverage(file: BinaryIO, limits: Limits, sink: Callable[[FileCoverage], None]) -> CoverageReport:
    """Reads a coverage report as `read_tests` reads a test report; its files are passed to `sink`."""
    report = _read(file, limits, sink, COVERAGE, "coverage")
    assert isinstance(report, CoverageReport)  # what the readers of COVERAGE return
    return report


def read_perf(file: BinaryIO, limits: Limits) -> PerfReport:
    """Reads a performance report as `read_tests` reads a test report; its points are in the report."""
    content = Content(file, evolve(limits, inflated=perf.MAX_INFLATED_BYTES))
    head = head_of(content.head, limits)
    for name, matches, reader_of in perf.FORMATS:
        if matches(head):
            reader = reader_of(limits)
            clean = byte_stream.xml if head.root else byte_stream.plain
            reader.read(clean(content, content.head))
            return perf.report(name, content.digest, reader.points())
    names = ", ".join(dict.fromkeys(name for name, _, _ in perf.FORMATS))
    raise BadReport(f"{why_not('performance', head)} (expected one of {names})")


def _read(
    file: BinaryIO,
    limits: Limits,
    sink: Callable[..., None],
    formats: Sequence[Format],
    kind: Kind,
) -> TestReport | CoverageReport:
    start = file.tell()
    content = Content(file, limits)
    if allure.is_zip(content.head) and kind == "test":
        return allure.read_zip(content, limits, sink, ALLURE)
    head = head_of(content.head, limits)
    format = next((format for format in formats if format.matches(head)), None)
    if format is None:
        raise BadReport(f"{why_not(kind, head)} (expected one of {_names(formats)})")
    clean = byte_stream.xml if head.root else byte_stream.plain
    definitions = []
    if format.definitions:
        definitions.append(format.definitions(limits))
        definitions[0].read(clean(content, content.head))
        file.seek(start)
        content = Content(file, limits)
    reader = format.reader(limits, sink, *definitions)
    try:
        reader.read(clean(content, content.head))
        report = reader.report(format.name, content.digest)
        if is_empty(report) and isinstance(reader, XmlReader) and not reader.is_format(head.root, head.first):
            raise UnknownFormat(f"it has none of its elements (the first is <{head.first[:100]}>)")
    except UnknownFormat as error:
        why = misplaced(kind, head) or f"its beginning is that of {format.name}, but {error.why}"
        raise BadReport(f"{why} (expected one of {_names(formats)})") from error
    return report


def read_allure(files: Mapping[str, Path], limits: Limits, sink: Callable[[Case], None]) -> TestReport:
    """Reads files by their names, each a result or container of Allure, as one report, as `read_tests` does."""
    return allure.read_files(files, limits, sink, ALLURE)


def is_allure(file: BinaryIO) -> bool:
    """Whether a file is a result or a container of Allure. Raises BadReport."""
    head = Content(file, Limits()).head
    if not head.lstrip().startswith(b"{"):
        return False
    text = b"".join(byte_stream.plain((head,), head))
    return next((format.name == ALLURE for format in TESTS if format.matches(Head(text=text))), False)


def is_empty(report: TestReport | CoverageReport) -> bool:
    """Whether a report has no test, or no line."""
    return report.line_covered is None if isinstance(report, CoverageReport) else not report.totals.tests


def _names(formats: Sequence[Format]) -> str:
    return ", ".join(format.name for format in formats)


def why_not(kind: Kind, head: Head) -> str:
    """Why a file with this head is no report of a kind, and which part of an upload it belongs to."""
    what = "performance report" if kind == "performance" else "format"
    return misplaced(kind, head) or f"{resemblance(head)}: not a supported {what}"


def misplaced(kind: Kind, head: Head) -> str | None:
    """Which part a file with this head belongs to, where it is a report of another kind."""
    found: dict[Kind, str | None] = {
        "performance": perf.format_of(head),
        "test": next((format.name for format in TESTS if format.matches(head)), None),
        "coverage": next((format.name for format in COVERAGE if format.matches(head)), None),
    }
    for other, name in found.items():
        if name and other != kind:
            text = f"{name} is a {other} report, not a {kind} report: send it as the part {_PARTS[other]}"
            return f"{resemblance(head)}: {text}"
    return None
