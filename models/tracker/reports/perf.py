"""Performance reports: JMeter and Go here, JSON in `perf_json.py`; each is detected by its content.

JMeter's JTL, which is CSV or XML, is read as a stream: of each label a histogram is kept, whose percentiles are exact
to one per cent.
"""

from __future__ import annotations

import itertools
import math
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Protocol

from attrs import evolve

from models.tracker.reports import byte_stream
from models.tracker.reports.base import BadReport, Limits
from models.tracker.reports.heads import Head, has_text
from models.tracker.reports.perf_json import K6, Jmh, PytestBenchmark
from models.tracker.reports.perf_points import MAX_LABELS, OTHERS, Histogram, PerfPoint, PerfReport
from models.tracker.reports.text_cleaning import clean_name
from models.tracker.reports.xml_stream import Attributes, XmlReader

MAX_INFLATED_BYTES = 1024**3

_MAX_MS = 1e12
_MAX_SAMPLES = 2**53


class PerfReader(Protocol):
    def read(self, pieces: Iterable[bytes]) -> None: ...

    def points(self) -> Iterable[PerfPoint]: ...


class _JtlLabel:
    def __init__(self) -> None:
        self.times = Histogram()
        self.errors = 0
        self.has_outcome = False
        self.first = math.inf
        self.last = -math.inf

    def point(self, label: str) -> PerfPoint:
        count, span = self.times.count, (self.last - self.first) / 1000
        throughput = count / span if span > 0 else None
        error_pct = 100 * self.errors / count if self.has_outcome else None
        return evolve(self.times.point(label), throughput=throughput, error_pct=error_pct)


_DEFAULT_COLUMNS = ("timeStamp", "elapsed", "label", "responseCode", "responseMessage", "threadName", "dataType",
                    "success")  # fmt: skip
_DELIMITER = re.compile(r"[,;\t|]")
_K6_HEAD = re.compile(rb'\s*\{\s*"(?:metrics|root_group|options|state|setup_data|results|config|metadata|version)"\s*:')
_JTL_HEAD = re.compile(rb"\A\s*(?:\"?timeStamp\"?\s*[,;\t|]|\d{10,17}[,;\t|]\d+[,;\t|])")


class _JtlLabels:
    """The samples of a JTL by label."""

    def __init__(self) -> None:
        self._labels: dict[str, _JtlLabel] = {}

    def add(self, label: str, elapsed: str, success: str | None, stamp: str) -> None:
        """Adds a sample, unless its time is no number. `success` is None where the file does not say."""
        try:
            ms = float(elapsed)
        except ValueError:
            return
        if not 0 <= ms <= _MAX_MS:
            return
        found = self._labels.get(label)
        if found is None:
            found = self._labels.setdefault(label if len(self._labels) < MAX_LABELS else OTHERS, _JtlLabel())
        found.times.add(ms)
        if success is not None:
            found.has_outcome = True
            found.errors += success.strip().lower() == "false"
        if stamp.isascii() and stamp.isdigit() and len(stamp) < 18:
            begin = int(stamp)
            found.first, found.last = min(found.first, begin), max(found.last, begin + ms)

    def points(self) -> Iterable[PerfPoint]:
        return [times.point(label) for label, times in self._labels.items()]


class JtlXml(XmlReader):
    """JMeter's XML. Samples within a sample are part of it, as in CSV."""

    def __init__(self, limits: Limits) -> None:
        super().__init__(limits)
        self._labels = _JtlLabels()
        self.points = self._labels.points
        self.starts = dict.fromkeys(("httpSample", "sample"), self._on_sample)

    def _on_sample(self, attributes: Attributes) -> None:
        if len(self.path) == 2 and "t" in attributes:
            self._labels.add(attributes.get("lb", ""), attributes["t"], attributes.get("s"), attributes.get("ts", ""))


class Jtl:
    """JMeter's CSV, with or without a head line, in any of its usual delimiters."""

    def __init__(self) -> None:
        self._labels = _JtlLabels()
        self.points = self._labels.points

    def read(self, pieces: Iterable[bytes]) -> None:
        import csv  # for JMeter only

        csv.field_size_limit(byte_stream.MAX_CSV_LINE_BYTES)
        lines = (line.decode("utf-8", "replace") for line in byte_stream.lines(pieces, byte_stream.MAX_CSV_LINE_BYTES))
        first = next((line for line in lines if line.strip()), "")
        delimiter = _DELIMITER.search(first)
        rows = csv.reader(_with_first(first, lines), delimiter=delimiter[0] if delimiter else ",")
        try:
            self._read_rows(rows)
        except csv.Error as error:
            raise BadReport(f"this is not valid CSV: {error}", rows.line_num) from error

    def _read_rows(self, rows: Iterator[list[str]]) -> None:
        head = next(rows, [])
        names = [name.strip().strip("\ufeff") for name in head]
        columns: Mapping[str, int] = {name: place for place, name in enumerate(names)}
        if "elapsed" not in columns:
            columns = {name: place for place, name in enumerate(_DEFAULT_COLUMNS)}
            rows = itertools.chain((head,), rows)
        if "label" not in columns:
            raise BadReport("its head has no column label", 1)
        row, width = next(rows, []), len(head)
        for following in rows:
            self._add(row, columns)
            row, width = following, len(row) or width
        if len(row) >= width:  # else it was cut off when the test was stopped, perhaps within the label
            self._add(row, columns)

    def _add(self, row: list[str], columns: Mapping[str, int]) -> None:
        if len(row) <= max(columns["elapsed"], columns["label"]):
            return
        success, stamp = (row[place] if (place := columns.get(name, len(row))) < len(row) else None
                          for name in ("success", "timeStamp"))  # fmt: skip
        self._labels.add(row[columns["label"]], row[columns["elapsed"]], success, stamp or "")


def _with_first(first: str, rest: Iterable[str]) -> Iterator[str]:
    yield f"{first}\n"
    for line in rest:
        yield f"{line}\n"


_BENCHMARK = re.compile(r"(Benchmark\S*)(?:\s+(\d{1,15})(?=\s))?(?:\s+(.*))?", re.ASCII)
_RESULT = re.compile(r"(\d{1,15})\s+(\S+ ns/op.*)", re.ASCII)
_PROCESSORS = re.compile(r"-[0-9]{1,4}$")


class GoBench:
    """`go test -bench`: each line is an average; those of one name (`-count`) are samples of it.

    Names end with the number of processors. It is left out, so that the machines of a CI compare, unless the report
    has several (`-cpu`).
    """

    def __init__(self) -> None:
        self._package = ""
        self._averages: dict[str, Histogram] = {}
        self._iterations: dict[str, int] = {}

    def read(self, pieces: Iterable[bytes]) -> None:
        name = ""
        for raw in byte_stream.lines(pieces):
            line = raw.decode("utf-8", "replace").strip()
            if line.startswith("pkg: "):
                self._package = line[5:].strip()
            elif match := _BENCHMARK.fullmatch(line):
                if match[2]:
                    self._add(*match.groups())
                name = "" if match[2] else match[1]
            elif name and (match := _RESULT.fullmatch(line)):  # the benchmark has written to its output
                self._add(name, *match.groups())
                name = ""

    def _add(self, name: str, iterations: str, metrics: str) -> None:
        values = metrics.split()
        figures = dict(zip(values[1::2], values[::2], strict=False))
        try:
            ms = float(figures["ns/op"]) / 1e6
        except (KeyError, ValueError):
            return
        if not 0 <= ms <= _MAX_MS:
            return
        label = f"{self._package}.{name}" if self._package else name
        if label not in self._averages and len(self._averages) >= MAX_LABELS:
            label = OTHERS
        self._averages.setdefault(label, Histogram()).add(ms)
        self._iterations[label] = min(self._iterations.get(label, 0) + int(iterations), _MAX_SAMPLES)

    def points(self) -> Iterable[PerfPoint]:
        names = Counter(_PROCESSORS.sub("", label) for label in self._averages)
        for label, averages in self._averages.items():
            plain, mean = _PROCESSORS.sub("", label), averages.total / averages.count
            shown = plain if names[plain] == 1 else label
            several = averages.point(shown) if averages.count > 1 else PerfPoint(shown, 0, mean)
            yield evolve(several, samples=self._iterations[label], throughput=1000 / mean if mean else None)


def _is_jtl(head: Head) -> bool:
    first_line = head.text.lstrip().split(b"\n")[0]
    names = {name.strip(b' "\xef\xbb\xbf\r') for name in re.split(rb"[,;\t|]", first_line)}
    return _JTL_HEAD.match(head.text) is not None or {b"elapsed", b"label"} <= names


FORMATS: Sequence[tuple[str, Callable[[Head], bool], Callable[[Limits], PerfReader]]] = (
    ("JMH JSON", has_text(rb'\A\s*\[\s*(?:\]\s*\Z|\{.*"(?:benchmark|primaryMetric)"\s*:)'), Jmh),
    ("pytest-benchmark JSON", has_text(rb'\A\s*\{.*"(?:machine_info|benchmarks)"\s*:'), PytestBenchmark),
    ("k6 summary", has_text(rb'\A\s*\{.*"(?:metrics|root_group)"\s*:\s*\{'), K6),
    ("k6 summary", has_text(rb'\A\s*\{.*"(?:k6_version|execution)"\s*:\s*"'), K6),
    ("JMeter JTL (XML)", lambda head: head.root == "testResults", JtlXml),
    ("JMeter JTL", _is_jtl, lambda _: Jtl()),
    ("go test -bench", has_text(rb"^Benchmark\S*\s+\d+\s[^\n]*ns/op|^goos: \w+\r?$"), lambda _: GoBench()),
)
"""Name, whether a head is of the format, and what makes its reader."""


def format_of(head: Head) -> str | None:
    """The format of a performance report that begins so. Other JSON may have metrics somewhere, k6 begins with them."""
    name = next((name for name, matches, _ in FORMATS if matches(head)), None)
    return None if name == "k6 summary" and not _K6_HEAD.match(head.text) else name


def report(format: str, digest: str, found: Iterable[PerfPoint]) -> PerfReport:
    """The report of these points: of the first `MAX_LABELS` labels."""
    points = [evolve(point, label=clean_name(point.label) or "(no label)") for point in found]
    labels = list(dict.fromkeys(point.label for point in points))
    kept = {*labels[:MAX_LABELS], OTHERS}
    dropped = max(len(labels) - MAX_LABELS, OTHERS in labels)
    return PerfReport(format, digest, tuple(point for point in points if point.label in kept), dropped)
