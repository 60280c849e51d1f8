"""`go test -json` and `go tool test2json`: one JSON object a line. Other lines (a download, make) are skipped.

test2json without `-p` names no package: then it is `Limits.suite`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Sized
from typing import Any

from models.tracker.reports.base import Case, Limits, ReportTooLarge, TestReport, UnknownFormat
from models.tracker.reports.byte_stream import MAX_SEARCHED_LINE_BYTES, Ending, lines
from models.tracker.reports.json_stream import number, text
from models.tracker.reports.text_cleaning import Text, bounded_ms
from models.tracker.reports.totals import CaseBuilder, OpenSuite, Severity, TotalsCounter

MAX_HELD_BYTES = 32 * 1024 * 1024
"""Output of all running tests that is held, because it is not known yet which of them will fail."""

MAX_RUNNING = 100_000
"""Packages, and tests of one package that run at the same time."""

_MAX_BUILDS = 1000
_MAX_RERUN_CHARACTERS, _HELD_CHARACTERS = 32 * 1024 * 1024, 1000
"""The output of tests of reruns that is held until their ends, each with so many; beyond, they are no reruns."""

_RESULTS = {"pass": Severity.NONE, "fail": Severity.FAILED, "skip": Severity.SKIPPED}
_ACTIONS = {*_RESULTS, "start", "run", "output", "pause", "cont", "bench"}
_BUILD_FAILED = re.compile(rb"FAIL\s+(\S{1,500})\s+\[(?:build|setup) failed\]")
"""How older versions of Go report, as plain text only, a package that does not build."""

_ENDED = re.compile(r"\S--- (PASS|FAIL|SKIP): (\S+) \(")
"""The end of a test behind its own output, where test2json does not see it."""

_FRAMING = ("=== RUN", "=== PAUSE", "=== CONT", "=== NAME", "--- PASS", "--- SKIP", "--- FAIL", "PASS\n", "FAIL\n")


class _Package:
    """A package whose tests run. `tests` maps tests to the output that is held for them, `running` are those begun.

    `failures` has how often each test failed in earlier runs of the package in this log, and is None where this one is
    no rerun of those alone; `reruns` are the tests of such a rerun.
    """

    def __init__(self, suite: OpenSuite, failures: dict[str, int] | None) -> None:
        self.failures = failures
        self.reruns: list[CaseBuilder] = []
        self.failed_tests: list[str] = []
        self.suite = suite
        self.tests: dict[str, Text] = {}
        self.running: set[str] = set()
        self.output: Text | None = None
        self.has_start = False
        self.failed = False


class GoTest:
    """Tests are those that ended, subtests and the tests around them alike.

    A test that began and never ended is an error. So is a package that failed without a failed test: it did not
    build, it was killed, or it panicked outside of any test. So is one that has a start and no end (Go 1.20 and later).
    A package that runs again with only tests that failed before is a rerun (gotestsum): each of them counts once, by
    its last outcome.
    """

    def __init__(self, limits: Limits, sink: Callable[[Case], None]) -> None:
        self._limits = limits
        self._totals = TotalsCounter(sink, limits)
        self._packages: dict[str, _Package] = {}
        self._suites: dict[str, OpenSuite] = {}
        self._build_outputs: dict[str, Text] = {}
        self._unbuilt: dict[str, str] = {}
        self._room = MAX_HELD_BYTES
        self._rerun_room = _MAX_RERUN_CHARACTERS
        self._failures: dict[str, dict[str, int]] = {}
        """How often the tests of packages that have ended failed."""
        self._has_events = False

    def read(self, pieces: Iterable[bytes]) -> None:
        ending, line = Ending(pieces), b""
        for line in lines(ending, MAX_SEARCHED_LINE_BYTES):
            if event := _event(line):
                self._has_events = True
                self._on_event(event)
            elif (match := _BUILD_FAILED.match(line)) and len(self._unbuilt) < _MAX_BUILDS:
                self._unbuilt[match[1].decode("utf-8", "replace")] = match[0].decode("utf-8", "replace")
        if not self._has_events:
            raise UnknownFormat("no line of it is an event")
        self._warn_if_truncated(line if ending.is_cut else b"")
        for name in list(self._packages):
            self._end_package(name, None, None)
        for name, message in self._unbuilt.items():
            self._add_package_error(self._suite(name), name, None, message)
        for suite in self._suites.values():
            self._totals.close(suite)

    def report(self, format: str, digest: str) -> TestReport:
        return self._totals.report(format, digest)

    def _on_event(self, event: dict[str, Any]) -> None:
        action = event.get("Action")
        name = text(event.get("Package")) or self._limits.suite
        if action == "build-output":
            build = text(event.get("ImportPath")) or ""
            if build in self._build_outputs or len(self._build_outputs) < _MAX_BUILDS:
                output = self._hold(self._build_outputs.get(build), text(event.get("Output")) or "")
                self._build_outputs[build] = output
        elif action in _ACTIONS:
            package = self._package(name)
            test = text(event.get("Test"))
            package.has_start |= action == "start"
            if action == "output":
                self._on_output(package, test, text(event.get("Output")) or "")
            elif action == "run" and test:
                _check_running(package.running)
                package.running.add(test)
            elif action in _RESULTS and test:
                self._end_test(package, test, _RESULTS[action], _duration_ms(event))
            elif action in _RESULTS:
                # not removed: other packages may have failed by the same build
                build_output = self._build_outputs.get(text(event.get("FailedBuild")) or "")
                self._end_package(name, _RESULTS[action], _duration_ms(event), build_output)

    def _warn_if_truncated(self, last_line: bytes) -> None:
        """Warns of a log that ends before its packages do, or within an event."""
        open_packages = [
            name
            for name, package in self._packages.items()
            if (package.has_start or package.running) and name not in self._unbuilt
        ]
        if open_packages:
            more = f" and {len(open_packages) - 1} more" if len(open_packages) > 1 else ""
            self._totals.warnings.append(f"truncated: the log ends before {open_packages[0][:200]}{more}")
        elif last_line.lstrip().startswith(b"{") and _event(last_line) is None:
            self._totals.warnings.append("truncated: the log ends within a line")

    def _package(self, name: str) -> _Package:
        package = self._packages.get(name)
        if package is None:
            package = self._packages[name] = _Package(self._suite(name), self._failures.get(name))
        return package

    def _suite(self, name: str) -> OpenSuite:
        """The suite of a package: one, however often the package ran."""
        suite = self._suites.get(name)
        if suite is None:
            if len(self._suites) >= MAX_RUNNING:
                raise ReportTooLarge(f"it has more than {MAX_RUNNING} packages")
            suite = self._suites[name] = self._totals.open(name)
        return suite

    def _on_output(self, package: _Package, test: str | None, line: str) -> None:
        if test is None or (test not in package.running and len(package.tests) >= MAX_RUNNING):
            package.output = self._hold(package.output, line)
        elif not line.lstrip().startswith(_FRAMING) and line != f"{test}\n":
            package.tests[test] = self._hold(package.tests.get(test), line)
            if test.startswith("Benchmark") and " ns/op" in line:
                package.running.discard(test)  # a benchmark has no other end

    def _hold(self, output: Text | None, line: str) -> Text:
        output = output or Text(self._limits.output)
        before = output.size
        if len(line) <= self._room:
            output.add(line)
        else:
            output.dropped += len(line)
        self._room -= output.size - before
        return output

    def _release(self, output: Text | None) -> None:
        self._room += output.size if output else 0

    def _end_test(self, package: _Package, test: str, severity: Severity, duration_ms: int | None) -> None:
        builder = CaseBuilder(package.suite.name, test, duration_ms)
        output = package.tests.pop(test, None)
        package.running.discard(test)
        self._release(output)
        builder.set_result(severity)
        kept = output.value if output else None
        if builder.passed:
            builder.out = kept
        elif kept:
            builder.stack = kept
            builder.message = next((line.strip() for line in kept.splitlines() if line.strip()), None)
        if severity >= Severity.FAILED:
            package.failed = True
            package.failed_tests.append(test)
        self._add_test(package, test, builder)

    def _add_test(self, package: _Package, test: str, builder: CaseBuilder) -> None:
        """Counts a test, or holds it while the package may be a rerun of the tests that failed."""
        failures = package.failures
        size = _HELD_CHARACTERS + len(builder.stack or builder.out or "")
        is_rerun = failures is not None and (test in failures or test.partition("/")[0] in failures)
        if failures is not None and is_rerun and size <= self._rerun_room:
            self._rerun_room -= size
            builder.reruns = failures.get(test, 1)
            package.reruns.append(builder)
            return
        package.failures = None
        self._add_reruns(package, False)
        self._totals.add(package.suite, builder)

    def _add_reruns(self, package: _Package, replaces: bool) -> None:
        for builder in package.reruns:
            builder.replaces = replaces
            builder.reruns = builder.reruns if replaces else 0
            self._rerun_room += _HELD_CHARACTERS + len(builder.stack or builder.out or "")
            self._totals.add(package.suite, builder)
        package.reruns.clear()

    def _remember_failures(self, name: str, package: _Package) -> None:
        failures = self._failures.setdefault(name, {}) if package.failed_tests else {}
        for test in package.failed_tests:
            failures[test] = failures.get(test, 0) + 1

    def _end_package(
        self, name: str, severity: Severity | None, duration_ms: int | None, build_output: Text | None = None
    ) -> None:
        """Ends a package; with no severity the log ended before it.

        A test that is still running did not end well, also in a package that passed, unless its end stands behind an
        output without a newline, or it is a benchmark. Output of a test that has ended already belongs to the package.
        """
        package = self._packages.pop(name)
        failed = severity is Severity.FAILED
        is_good = severity is not None and not failed
        for test in sorted(package.running):
            output = package.tests.get(test)
            ended = _ENDED.search(output.value or "") if output else None
            if ended and ended[2] == test:
                self._end_test(package, test, _RESULTS[ended[1].lower()], None)
            elif not (is_good and test.startswith("Benchmark")):
                self._end_test(package, test, Severity.ERROR, None)
        self._add_reruns(package, True)
        self._remember_failures(name, package)
        for output in package.tests.values():
            self._release(output)
            package.output = self._hold(package.output, output.joined)
        if failed:
            self._unbuilt.pop(name, None)
        has_no_end = severity is None and package.has_start and name not in self._unbuilt
        if (failed or has_no_end) and not package.failed:
            message = "the package failed without a failed test" if failed else "the log ends before the package does"
            self._add_package_error(package.suite, name, duration_ms, message, build_output or package.output)
        self._release(package.output)

    def _add_package_error(
        self, suite: OpenSuite, name: str, duration_ms: int | None, message: str, output: Text | None = None
    ) -> None:
        builder = CaseBuilder(name, "(package)", duration_ms)
        builder.set_result(Severity.ERROR, None, message, output.value if output else None)
        self._totals.add(suite, builder)


def _event(line: bytes) -> dict[str, Any] | None:
    """The event of a line; None for a line that is none: programs may print lines that begin with a brace."""
    if not line.lstrip().startswith(b"{"):
        return None
    try:
        event = json.loads(line)
    except (ValueError, RecursionError):
        return None
    if not isinstance(event.get("Action"), str):
        return None
    return {name: value for name, value in event.items() if isinstance(value, str | int | float)}


def _check_running(tests: Sized) -> None:
    if len(tests) >= MAX_RUNNING:
        raise ReportTooLarge(f"more than {MAX_RUNNING} tests run at the same time")


def _duration_ms(event: dict[str, Any]) -> int | None:
    seconds = number(event.get("Elapsed"))
    return None if seconds is None else bounded_ms(seconds * 1000)
