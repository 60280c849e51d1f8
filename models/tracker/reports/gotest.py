"""`go test -json`: one JSON object a line. Lines between them that are none (a download, a make) are passed over."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Sized
from typing import Any

from models.tracker.reports.base import BadReport, Case, Limits, ReportTooLarge, TestReport
from models.tracker.reports.byte_stream import lines
from models.tracker.reports.case_builder import Draft, Weight
from models.tracker.reports.json_stream import number, text
from models.tracker.reports.text_cleaning import Text, bounded_ms
from models.tracker.reports.totals import Frame, Tally

HELD = 32 * 1024 * 1024
"""As much output of all the tests that run is held: which of them will fail is not known yet."""

AT_ONCE = 100_000
"""As many packages there are, and as many tests of one run at the same time."""

_ENDS = {"pass": Weight.NOTHING, "fail": Weight.FAILED, "skip": Weight.SKIPPED}
_UNBUILT = re.compile(rb"FAIL\s+(\S{1,500})\s+\[(?:build|setup) failed\]")
"""How older Go tells, in plain words only, of a package that does not build."""

_FRAMING = ("=== RUN", "=== PAUSE", "=== CONT", "=== NAME", "--- PASS", "--- SKIP", "--- FAIL", "PASS\n", "FAIL\n")


class _Package:
    """A package whose tests run."""

    def __init__(self, frame: Frame) -> None:
        self.frame = frame
        self.tests: dict[str, Text | None] = {}
        """Tests that have begun, with their output."""
        self.output: Text | None = None
        self.failed = False


class GoTest:
    """A test is what has ended as a test, a subtest as well as the one that it is in.

    A test that began and never ended, and a package that failed without a failed test (it did not build, it was
    killed, it panicked outside of any) are an error each.
    """

    def __init__(self, limits: Limits, sink: Callable[[Case], None]) -> None:
        self._limits = limits
        self._tally = Tally(sink, limits)
        self._packages: dict[str, _Package] = {}
        self._frames: dict[str, Frame] = {}
        self._builds: dict[str, Text] = {}
        self._unbuilt: dict[str, str] = {}
        self._room = HELD

    def read(self, pieces: Iterable[bytes]) -> None:
        for at, line in enumerate(lines(pieces), 1):
            if line.lstrip().startswith(b"{"):
                self._event(_event(line, at))
            elif (unbuilt := _UNBUILT.match(line)) and len(self._unbuilt) < 1000:
                self._unbuilt[unbuilt[1].decode("utf-8", "replace")] = unbuilt[0].decode("utf-8", "replace")
        for name in list(self._packages):
            self._end(name, None, None)
        for name, said in self._unbuilt.items():
            self._broken(self._frame(name), name, None, said)
        for frame in self._frames.values():
            self._tally.close(frame)

    def report(self, digest: str) -> TestReport:
        return self._tally.report("go test -json", digest)

    def _event(self, event: dict[str, Any]) -> None:
        action = event.get("Action")
        name = text(event.get("Package"))
        if action == "build-output":
            build = text(event.get("ImportPath")) or ""
            if build in self._builds or len(self._builds) < 1000:
                self._builds[build] = self._held(self._builds.get(build), text(event.get("Output")) or "")
        elif name is not None:
            package = self._package(name)
            test = text(event.get("Test"))
            if action == "output":
                self._output(package, test, text(event.get("Output")) or "")
            elif action == "run" and test:
                _bounded(package.tests)
                package.tests.setdefault(test, None)
            elif action in _ENDS and test:
                self._finish(package, test, _ENDS[action], _length(event))
            elif action in _ENDS:
                unbuilt = self._builds.get(text(event.get("FailedBuild")) or "")  # others may have failed by it too
                self._end(name, _ENDS[action], _length(event), unbuilt)

    def _package(self, name: str) -> _Package:
        package = self._packages.get(name)
        if package is None:
            package = self._packages[name] = _Package(self._frame(name))
        return package

    def _frame(self, name: str) -> Frame:
        """The suite of a package: one, however often it ran (gotestsum lets what has failed run again)."""
        frame = self._frames.get(name)
        if frame is None:
            if len(self._frames) >= AT_ONCE:
                raise ReportTooLarge(f"it has more than {AT_ONCE} packages")
            frame = self._frames[name] = self._tally.open(name)
        return frame

    def _output(self, package: _Package, test: str | None, line: str) -> None:
        if test is None:
            package.output = self._held(package.output, line)
        elif not line.lstrip().startswith(_FRAMING):
            _bounded(package.tests)
            package.tests[test] = self._held(package.tests.get(test), line)

    def _held(self, kept: Text | None, line: str) -> Text:
        kept = kept or Text(self._limits.output)
        before = kept.size
        if len(line) <= self._room:
            kept.add(line)
        else:
            kept.miss(line)
        self._room -= kept.size - before
        return kept

    def _freed(self, kept: Text | None) -> None:
        self._room += kept.size if kept else 0

    def _finish(self, package: _Package, test: str, weight: Weight, duration_ms: int | None) -> None:
        draft = Draft(package.frame.name, test, duration_ms)
        kept = package.tests.pop(test, None)
        self._freed(kept)
        draft.weigh(weight)
        if draft.passed or kept is None:
            draft.out = kept
        else:
            draft.stack = kept
            draft.message = next((line.strip() for line in (kept.value or "").splitlines() if line.strip()), None)
        package.failed |= weight >= Weight.FAILED
        self._tally.add(package.frame, draft)

    def _end(self, name: str, weight: Weight | None, duration_ms: int | None, unbuilt: Text | None = None) -> None:
        """A package ended, or with no weight the log before it did. In one that passed only benchmarks have no end."""
        package = self._packages.pop(name)
        failed = weight is Weight.FAILED
        for test in list(package.tests):
            if failed or weight is None:
                self._finish(package, test, Weight.ERROR, None)
            else:
                self._freed(package.tests.pop(test))
        if failed:
            self._unbuilt.pop(name, None)
        if failed and not package.failed:
            why = "the package failed without a failed test"
            self._broken(package.frame, name, duration_ms, why, unbuilt or package.output)
        self._freed(package.output)

    def _broken(
        self, frame: Frame, name: str, duration_ms: int | None, message: str, output: Text | None = None
    ) -> None:
        draft = Draft(name, "(package)", duration_ms)
        draft.weigh(Weight.ERROR, None, message)
        draft.stack = output
        self._tally.add(frame, draft)


def _event(line: bytes, at: int) -> dict[str, Any]:
    """The event of a line. Raises BadReport."""
    try:
        event = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise BadReport(f"this is not well-formed JSON: {str(error)[:100]}", at) from error
    return {name: value for name, value in event.items() if isinstance(value, str | int | float)}


def _bounded(running: Sized) -> None:
    if len(running) >= AT_ONCE:
        raise ReportTooLarge(f"more than {AT_ONCE} tests run at the same time")


def _length(event: dict[str, Any]) -> int | None:
    seconds = number(event.get("Elapsed"))
    return None if seconds is None else bounded_ms(seconds * 1000)
