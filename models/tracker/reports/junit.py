"""JUnit XML, in the dialects of the world: Ant, surefire, Gradle, pytest, jest, googletest, node and who follows them.

Suites nest to any depth, counts may be missing or wrong, and a test's retries are told in three ways: as elements in
it (surefire), as attributes (none that matter), or as the same test again (pytest-rerunfailures, Gradle).
"""

from __future__ import annotations

import re
from collections.abc import Callable

from models.tracker.reports.base import Case, Limits, TestReport
from models.tracker.reports.case_builder import Draft, Weight
from models.tracker.reports.text_cleaning import Remembered, Text, count, duration_ms
from models.tracker.reports.totals import Declared, Frame, Tally
from models.tracker.reports.xml_stream import Reader

_SUITES = ("testsuite", "testsuites")
_FAULTS = {
    "error": Weight.ERROR,
    "failure": Weight.FAILED,
    "skipped": Weight.SKIPPED,
    "disabled": Weight.SKIPPED,
    "ignored": Weight.SKIPPED,
    "flakyFailure": Weight.RETRIED,
    "flakyError": Weight.RETRIED,
}
_NOT_RUN = {"notrun", "not run", "skipped", "suppressed", "disabled", "ignored", "pending"}
_SKIPPING = (("status", _NOT_RUN), ("result", _NOT_RUN), ("disabled", {"true", "1", "yes"}))
_DURATIONS = Remembered(duration_ms)
_DOTTED = re.compile(r"([^\W\d][\w$]*(?:\.[^\W\d][\w$]*)*)\.([^\W\d][\w$]*)")


class JUnit(Reader):
    """Roots are `testsuites`, `testsuite`, or a bare `testcase`."""

    def __init__(self, limits: Limits, sink: Callable[[Case], None]) -> None:
        super().__init__(limits)
        self._tally = Tally(sink, limits)
        self._frames: list[Frame] = [self._tally.outside]
        self._drafts: list[Draft] = []
        self._kept: Text | None = None
        """The stack of the fault that was told last, if it is the one that is kept."""
        faults = {name: self._fault(name) for name in _FAULTS}
        self.starts = {
            "testsuites": self._group,
            "testsuite": self._suite,
            "testcase": self._case,
            **faults,
            "rerunFailure": self._rerun,
            "rerunError": self._rerun,
            "stackTrace": self._trace,
            "system-out": self._out,
            "system-err": self._err,
        }
        self.ends = {
            "testsuites": self._close,
            "testsuite": self._close,
            "testcase": self._finish,
            **dict.fromkeys((*_FAULTS, "stackTrace", "system-out", "system-err"), self.hush),
        }

    def report(self, digest: str) -> TestReport:
        return self._tally.report("JUnit", digest)

    def _group(self, attributes: dict[str, str]) -> None:
        self._open(attributes, False)

    def _suite(self, attributes: dict[str, str]) -> None:
        self._open(attributes, True)

    def _open(self, attributes: dict[str, str], listed: bool) -> None:
        frame = self._tally.open(attributes.get("name"), self._frames[-1], _declared(attributes), listed)
        self._frames.append(frame)

    def _close(self) -> None:
        self._tally.close(self._frames.pop())

    def _case(self, attributes: dict[str, str]) -> None:
        get = attributes.get
        class_name, name = get("classname"), get("name")
        if class_name is None and name and (dotted := _DOTTED.fullmatch(name.strip())):
            class_name, name = dotted.groups()
        draft = Draft(class_name, name, _DURATIONS[get("time", "")])
        draft.place = get("file")
        self._drafts.append(draft)
        if "status" in attributes or "result" in attributes or "disabled" in attributes:
            self._skipping(draft, attributes)

    def _skipping(self, draft: Draft, attributes: dict[str, str]) -> None:
        for attribute, words in _SKIPPING:
            if attribute in attributes and attributes[attribute].lower() in words:
                draft.weigh(Weight.SKIPPED)

    def _finish(self) -> None:
        self._tally.add(self._frames[-1], self._drafts.pop())

    def _fault(self, name: str) -> Callable[[dict[str, str]], None]:
        weight = _FAULTS[name]
        retried = weight is Weight.RETRIED

        def start(attributes: dict[str, str]) -> None:
            parent = self.parent
            if parent == "testcase":
                draft = self._drafts[-1]
                draft.flaky |= retried
                draft.reruns += retried
            elif parent in _SUITES and weight >= Weight.FAILED:
                draft = self._broken()
            else:
                return
            self._kept = None
            if draft.weigh(weight, attributes.get("type"), attributes.get("message")):
                self._kept = draft.stack = Text(self.limits.output)
                self.listen(draft.stack)

        return start

    def _broken(self) -> Draft:
        frame = self._frames[-1]
        frame.broken = frame.broken or Draft(frame.name, "(suite)")
        return frame.broken

    def _rerun(self, attributes: dict[str, str]) -> None:
        if self.parent == "testcase":
            self._drafts[-1].reruns += 1
            self._drafts[-1].weigh(Weight.RERUN, attributes.get("type"), attributes.get("message"))

    def _trace(self, _attributes: dict[str, str]) -> None:
        """The stack in a flakyFailure; the output that stands beside it is not of the test's last attempt."""
        if self._kept and _FAULTS.get(self.parent) is Weight.RETRIED:
            self.listen(self._kept)

    def _out(self, _attributes: dict[str, str]) -> None:
        if self.parent == "testcase":
            draft = self._drafts[-1]
            draft.out = draft.out or Text(self.limits.output)
            self.listen(draft.out)
        else:
            self.hush()

    def _err(self, _attributes: dict[str, str]) -> None:
        if self.parent == "testcase":
            draft = self._drafts[-1]
            draft.err = draft.err or Text(self.limits.output)
            self.listen(draft.err)
        else:
            self.hush()


def _declared(attributes: dict[str, str]) -> Declared:
    get = attributes.get
    skipped = next(
        (number for name in ("skipped", "skips", "skip", "ignored") if (number := count(get(name))) is not None), None
    )
    disabled = count(get("disabled"))
    return Declared(
        tests=count(get("tests")),
        failed=count(get("failures")),
        errors=count(get("errors")),
        skipped=None if skipped is None and disabled is None else (skipped or 0) + (disabled or 0),
        duration_ms=duration_ms(get("time")),
    )
