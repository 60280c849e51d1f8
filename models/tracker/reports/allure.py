"""Allure results: a JSON file for each test and each fixture, in a zip or as the parts of one upload.

The results of one `historyId` are attempts of one test, of which the last counts, as in Allure's own report.
"""

from __future__ import annotations

import hashlib
import io
import json
import re
import struct
import zipfile
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from attrs import evolve, frozen

from models.tracker.reports import byte_stream
from models.tracker.reports.base import BadReport, Case, Limits, ReportTooLarge, TestReport, UnknownFormat
from models.tracker.reports.byte_stream import Content
from models.tracker.reports.json_stream import MAX_TEXT_BYTES, number, text
from models.tracker.reports.text_cleaning import Text, bounded_ms, without_colours
from models.tracker.reports.totals import CaseBuilder, OpenSuite, Severity, TotalsCounter

MAX_ZIP_BYTES = 128 * 1024 * 1024
_ZIP_HEADS = (b"PK\x03\x04", b"PK\x05\x06")
_CLEANED_ZIP = "PK\ufffd\ufffd".encode()
"""The beginning of a zip without its control characters."""

_METHODS = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)
_BROKEN_ZIP = (zipfile.BadZipFile, zlib.error, EOFError, NotImplementedError, RuntimeError, ValueError, struct.error)
_NAMES = ("result.json", "container.json")
_STATUSES = {
    "passed": Severity.NONE,
    "skipped": Severity.SKIPPED,
    "failed": Severity.FAILED,
    "broken": Severity.ERROR,
}
_FAILING = ("failed", "broken")
_MAX_ATTACHMENTS = 100
_MAX_LEVELS = 50

Document = tuple[str, Callable[[], bytes]]
"""The name of a result or a container, and what reads it."""


@frozen
class _Attempt:
    """Where a result is, when it ended, and the hashes of its test and of its own id."""

    stop: float
    index: int
    test: int
    id: int
    failed: bool


class AllureResults:
    """Reads results. A failed fixture counts as an error, unless a test in it failed and was not passed again.

    A fixture all of whose tests ran again counts by those later attempts, which have fixtures of their own.
    """

    def __init__(self, limits: Limits, sink: Callable[[Case], None]) -> None:
        self._limits = limits
        self._totals = TotalsCounter(sink, limits)
        self._suites: dict[str, OpenSuite] = {}
        self._fixtures: list[tuple[CaseBuilder, frozenset[int]]] = []

    def read(self, pieces: Iterable[bytes]) -> None:
        """Reads a single result or container. Raises BadReport."""
        data = b"".join(pieces)
        if len(data) > MAX_TEXT_BYTES:
            raise ReportTooLarge(f"an Allure result is larger than {MAX_TEXT_BYTES} bytes")
        self.read_all([("", lambda: data)])

    def read_all(self, documents: Sequence[Document]) -> None:
        """Reads results and containers, the attempts of a test in their order. Raises BadReport."""
        found = [self._attempt(_parsed(document), index) for index, document in enumerate(documents)]
        attempts = sorted(filter(None, found), key=lambda attempt: (attempt.stop, attempt.index))
        earlier: dict[int, int] = {}
        for attempt in attempts:
            reruns = earlier.get(attempt.test, 0)
            earlier[attempt.test] = reruns + 1
            self._add_result(_parsed(documents[attempt.index]), reruns)
        self._add_fixtures(attempts)
        for suite in self._suites.values():
            self._totals.close(suite)

    def report(self, format: str, digest: str) -> TestReport:
        return self._totals.report(format, digest)

    def _add_fixtures(self, attempts: Sequence[_Attempt]) -> None:
        """Counts the failed fixtures that no failed test stands for."""
        last = {attempt.test: attempt for attempt in attempts}
        outcomes = {attempt.id: attempt.failed for attempt in last.values()}
        failed = {attempt.id for attempt in attempts if attempt.failed}
        for fixture, tests in self._fixtures:
            final = [outcomes[test] for test in tests if test in outcomes]
            is_run_again = not final and not failed.isdisjoint(tests)
            if not any(final) and not is_run_again:
                self._totals.add(self._totals.outside, fixture)

    def _attempt(self, document: dict[str, Any], index: int) -> _Attempt | None:
        """The attempt that a document is; a container is none, and its failed fixtures are kept."""
        if text(document.get("uuid")) is None:
            raise UnknownFormat("it has no uuid")
        if "befores" in document or "afters" in document or ("children" in document and "status" not in document):
            self._read_container(document)
            return None
        test, id = text(document.get("historyId")), hash(text(document.get("uuid")))
        stop, failed = number(document.get("stop")) or 0, document.get("status") in _FAILING
        return _Attempt(stop, index, hash(test) if test else -index, id, failed)

    def _read_container(self, container: dict[str, Any]) -> None:
        children = frozenset(hash(child) for child in _items(container, "children") if isinstance(child, str))
        for kind in ("befores", "afters"):
            for fixture in _objects(container, kind):
                if fixture.get("status") in _FAILING:
                    builder = CaseBuilder(text(container.get("name")), f"(fixture) {text(fixture.get('name')) or kind}")
                    self._set_result(builder, fixture)
                    self._fixtures.append((builder, children))

    def _add_result(self, result: dict[str, Any], reruns: int) -> None:
        get, labels = result.get, _labels(result)
        class_name = labels.get("testClass") or ".".join(
            labels[name] for name in ("parentSuite", "suite", "subSuite") if name in labels
        )
        builder = CaseBuilder(class_name or text(get("fullName")), text(get("name")) or text(get("fullName")))
        start, stop = number(get("start")), number(get("stop"))
        builder.duration_ms = None if start is None or stop is None else bounded_ms(stop - start)
        builder.place = text(get("historyId")) or text(get("fullName"))
        builder.reruns, builder.replaces = reruns, reruns > 0
        self._set_result(builder, result)
        details = get("statusDetails")
        builder.flaky = builder.passed and isinstance(details, dict) and details.get("flaky") is True
        builder.attachments = _attachments(result)
        name = labels.get("suite") or labels.get("parentSuite") or labels.get("package") or ""
        suite = self._suites.get(name)
        if suite is None:
            suite = self._suites[name] = self._totals.open(name)
        self._totals.add(suite, builder)

    def _set_result(self, builder: CaseBuilder, result: dict[str, Any]) -> None:
        severity = _STATUSES.get(text(result.get("status")) or "", Severity.ERROR)
        details = result.get("statusDetails")
        message, trace = (
            without_colours(text(details.get(name)) or "") if isinstance(details, dict) else ""
            for name in ("message", "trace")
        )
        stack = Text(self._limits.output)
        stack.add(trace)
        if severity:
            builder.set_result(severity, None, message or None, stack.value)


def _items(document: dict[str, Any], name: str) -> list[Any]:
    value = document.get(name)
    return value if isinstance(value, list) else []


def _objects(document: dict[str, Any], name: str) -> list[dict[str, Any]]:
    return [item for item in _items(document, name) if isinstance(item, dict)]


def _labels(result: dict[str, Any]) -> dict[str, str]:
    """The first label of each name."""
    labels: dict[str, str] = {}
    for label in _objects(result, "labels"):
        name, value = text(label.get("name")), text(label.get("value"))
        if name and value:
            labels.setdefault(name, value)
    return labels


def _attachments(result: dict[str, Any]) -> list[str]:
    """The files of a result and of its steps."""
    found: list[str] = []
    level = [result]
    for _ in range(_MAX_LEVELS):
        for step in level:
            found += filter(None, (text(item.get("source")) for item in _objects(step, "attachments")))
        level = [inner for step in level for inner in _objects(step, "steps")]
        if not level or len(found) >= _MAX_ATTACHMENTS:
            break
    return found[:_MAX_ATTACHMENTS]


def _parsed(document: Document) -> dict[str, Any]:
    name, load = document
    try:
        data = load()
        parsed = json.loads(b"".join(byte_stream.plain((data,), data)), strict=False)
        if not isinstance(parsed, dict):
            raise BadReport("an Allure result is a JSON object")
    except (BadReport, ValueError, RecursionError) as error:
        why = error.why if isinstance(error, BadReport) else f"this is not well-formed JSON: {str(error)[:200]}"
        kind = type(error) if isinstance(error, BadReport) else BadReport
        raise kind(f"{name[:100]}: {why}" if name else why) from None
    return parsed


_RESULT = re.compile(rb'"(?:historyId|labels|stage|status|start|befores|afters|children)"\s*:')
_UUID = re.compile(rb'"uuid"\s*:\s*"')


def is_result(text: bytes) -> bool:
    """Whether a cleaned text is the beginning of a result, of a container, or of a zip, which may have them."""
    if text.startswith(_CLEANED_ZIP):
        return True
    return text.lstrip().startswith(b"{") and None not in (_UUID.search(text), _RESULT.search(text))


def is_zip(head: bytes) -> bool:
    return head.startswith(_ZIP_HEADS)


def read_zip(content: Content, limits: Limits, sink: Callable[[Case], None], format: str) -> TestReport:
    """Reads a zip of Allure results. Raises BadReport, also for any other zip."""
    archive = io.BytesIO()
    for piece in content:
        archive.write(piece)
        if archive.tell() > MAX_ZIP_BYTES:
            raise ReportTooLarge(f"a zip is larger than {MAX_ZIP_BYTES} bytes")
    try:
        with zipfile.ZipFile(archive) as opened:
            reader = AllureResults(limits, sink)
            reader.read_all([_entry(opened, entry, limits) for entry in _entries(opened)])
            return reader.report(format, content.digest)
    except _BROKEN_ZIP as error:
        raise BadReport(f"the zip cannot be read: {str(error)[:200]}") from None


def _entries(archive: zipfile.ZipFile) -> Iterator[zipfile.ZipInfo]:
    entries = [entry for entry in archive.infolist() if not entry.is_dir()]
    found = [entry for entry in entries if entry.filename.endswith(_NAMES)]
    if entries and not found:
        names = ", ".join(entry.filename[:50] for entry in entries[:3])
        raise BadReport(f"it is a zip without Allure results (*-result.json); it has {names}")
    yield from found


def _entry(archive: zipfile.ZipFile, entry: zipfile.ZipInfo, limits: Limits) -> Document:
    """An entry, which is read at each call. Each call counts as inflated bytes."""

    def load() -> bytes:
        if entry.compress_type not in _METHODS:
            raise BadReport("it is compressed in another way than deflate")
        with archive.open(entry) as file:
            data = file.read(MAX_TEXT_BYTES + 1)
        if limits.spend is not None:
            limits.spend(len(data))
        if len(data) > MAX_TEXT_BYTES:
            raise ReportTooLarge(f"an Allure result is larger than {MAX_TEXT_BYTES} bytes")
        return data

    return entry.filename, load


def read_files(files: Mapping[str, Path], limits: Limits, sink: Callable[[Case], None], format: str) -> TestReport:
    """Reads files, each a result or a container, as one report. Raises BadReport with the name of the file."""
    digests: dict[str, str] = {}

    def document(name: str, path: Path) -> Document:
        def load() -> bytes:
            with path.open("rb") as file:
                content = Content(file, evolve(limits, inflated=MAX_TEXT_BYTES))
                data = b"".join(content)
            digests[name] = content.digest
            return data

        return name, load

    reader = AllureResults(limits, sink)
    reader.read_all([document(name, path) for name, path in files.items()])
    digest = hashlib.sha256("".join(sorted(digests.values())).encode()).hexdigest()
    return reader.report(format, digest)
