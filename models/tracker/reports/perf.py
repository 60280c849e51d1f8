"""Performance reports: JMeter and Go here, JSON in `perf_json.py`; each is detected by its content.

JMeter's JTL is read as a stream: of each label a histogram is kept, whose percentiles are exact to one per cent.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import BinaryIO, Protocol

from attrs import evolve

from models.tracker.reports import byte_stream
from models.tracker.reports.base import BadReport, Limits
from models.tracker.reports.byte_stream import Content
from models.tracker.reports.perf_json import K6, Jmh, PytestBenchmark
from models.tracker.reports.perf_points import MAX_LABELS, OTHERS, Histogram, PerfPoint, PerfReport
from models.tracker.reports.text_cleaning import clean_name

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
        self.first = math.inf
        self.last = -math.inf

    def point(self, label: str) -> PerfPoint:
        count, span = self.times.count, (self.last - self.first) / 1000
        throughput = count / span if span > 0 else None
        return evolve(self.times.point(label), throughput=throughput, error_pct=100 * self.errors / count)


_DEFAULT_COLUMNS = ("timeStamp", "elapsed", "label", "responseCode", "responseMessage", "threadName", "dataType",
                    "success")  # fmt: skip
_JTL_HEAD = re.compile(rb"\A\s*(?:\"?timeStamp\"?\s*[,;\t|]|\d{10,17}[,;\t|]\d+[,;\t|])")


class Jtl:
    """JMeter's CSV, with or without a head line, in any of its usual delimiters."""

    def __init__(self) -> None:
        self._labels: dict[str, _JtlLabel] = {}

    def read(self, pieces: Iterable[bytes]) -> None:
        import csv  # for JMeter only

        lines = (line.decode("utf-8", "replace") for line in byte_stream.lines(pieces))
        first = next((line for line in lines if line.strip()), "")
        delimiter = next((mark for mark in ",;\t|" if mark in first), ",")
        rows = csv.reader(_with_first(first, lines), delimiter=delimiter)
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
            self._add(head, columns)
        if "label" not in columns:
            raise BadReport("its head has no column label", 1)
        for row in rows:
            self._add(row, columns)

    def _add(self, row: list[str], columns: Mapping[str, int]) -> None:
        try:
            elapsed, label = float(row[columns["elapsed"]]), row[columns["label"]]
        except (ValueError, IndexError):
            return  # a line that was cut off when the test was stopped
        if not 0 <= elapsed <= _MAX_MS:
            return
        found = self._labels.get(label)
        if found is None:
            found = self._labels.setdefault(label if len(self._labels) < MAX_LABELS else OTHERS, _JtlLabel())
        found.times.add(elapsed)
        place = columns.get("success", len(row))
        found.errors += place < len(row) and row[place].strip().lower() == "false"
        stamp = columns.get("timeStamp", len(row))
        if stamp < len(row) and row[stamp].isdigit() and len(row[stamp]) < 18:
            begin = int(row[stamp])
            found.first, found.last = min(found.first, begin), max(found.last, begin + elapsed)

    def points(self) -> Iterable[PerfPoint]:
        return [times.point(label) for label, times in self._labels.items()]


def _with_first(first: str, rest: Iterable[str]) -> Iterator[str]:
    yield f"{first}\n"
    for line in rest:
        yield f"{line}\n"


_BENCHMARK = re.compile(r"(Benchmark\S*)\s+(\d{1,15})\s+(.*)")
_PROCESSORS = re.compile(r"-\d{1,4}$")
_METRIC = re.compile(r"([0-9.eE+]{1,24})\s+(\S+)")


class GoBench:
    """`go test -bench`: each line is an average; those of one name (`-count`) are samples of it."""

    def __init__(self) -> None:
        self._package = ""
        self._averages: dict[str, Histogram] = {}
        self._iterations: dict[str, int] = {}

    def read(self, pieces: Iterable[bytes]) -> None:
        for raw in byte_stream.lines(pieces):
            line = raw.decode("utf-8", "replace").strip()
            if line.startswith("pkg: "):
                self._package = line[5:].strip()
            elif match := _BENCHMARK.fullmatch(line):
                self._add(*match.groups())

    def _add(self, name: str, iterations: str, metrics: str) -> None:
        figures = {unit: value for value, unit in _METRIC.findall(metrics)}
        try:
            ms = float(figures["ns/op"]) / 1e6
        except (KeyError, ValueError):
            return
        if not 0 <= ms <= _MAX_MS:
            return
        plain = _PROCESSORS.sub("", name)
        label = f"{self._package}.{plain}" if self._package else plain
        if label not in self._averages and len(self._averages) >= MAX_LABELS:
            label = OTHERS
        self._averages.setdefault(label, Histogram()).add(ms)
        self._iterations[label] = min(self._iterations.get(label, 0) + int(iterations), _MAX_SAMPLES)

    def points(self) -> Iterable[PerfPoint]:
        for label, averages in self._averages.items():
            mean = averages.total / averages.count
            several = averages.point(label) if averages.count > 1 else PerfPoint(label, 0, mean)
            yield evolve(several, samples=self._iterations[label], throughput=1000 / mean if mean else None)


def _text(pattern: bytes) -> Callable[[bytes], bool]:
    compiled = re.compile(pattern, re.MULTILINE | re.DOTALL)
    return lambda head: compiled.search(head) is not None


def _formats() -> tuple[tuple[str, Callable[[bytes], bool], Callable[[Limits], PerfReader]], ...]:
    return (
        ("JMH JSON", _text(rb'\A\s*\[\s*\{.*"(?:benchmark|primaryMetric)"\s*:'), Jmh),
        ("pytest-benchmark JSON", _text(rb'\A\s*\{.*"(?:machine_info|benchmarks)"\s*:'), PytestBenchmark),
        ("k6 summary", _text(rb'\A\s*\{.*"(?:metrics|root_group)"\s*:\s*\{'), K6),
        ("JMeter JTL", lambda head: _JTL_HEAD.match(head) is not None or _has_jtl_columns(head), lambda _: Jtl()),
        ("go test -bench", _text(rb"^Benchmark\S*\s+\d+\s.*ns/op"), lambda _: GoBench()),
    )


def _has_jtl_columns(head: bytes) -> bool:
    names = {name.strip(b' "\xef\xbb\xbf\r') for name in re.split(rb"[,;\t|]", head.lstrip().split(b"\n")[0])}
    return {b"elapsed", b"label"} <= names


def read_perf(file: BinaryIO, limits: Limits) -> PerfReport:
    """Reads a performance report, plain or gzipped, from a seekable file. Raises BadReport, ReportTooLarge."""
    content = Content(file, evolve(limits, inflated=MAX_INFLATED_BYTES))
    head = b"".join(byte_stream.plain((content.head,), content.head))
    if not head.strip():
        raise BadReport("the file is empty")
    formats = _formats()
    for name, matches, reader_of in formats:
        if matches(head):
            reader = reader_of(limits)
            reader.read(byte_stream.plain(content, content.head))
            points = [evolve(point, label=clean_name(point.label) or "(no label)") for point in reader.points()]
            kept = {point.label: point for point in points[:MAX_LABELS]}
            others = [point for point in points if point.label == OTHERS]
            kept.update((point.label, point) for point in others)
            return PerfReport(name, content.digest, tuple(kept.values()), max(len(points) - len(kept), len(others)))
    names = ", ".join(name for name, _, _ in formats)
    raise BadReport(f"not a performance report that is known here (expected one of {names})")
