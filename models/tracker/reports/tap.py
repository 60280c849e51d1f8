"""TAP, the Test Anything Protocol, versions 12 to 14."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable

from models.tracker.reports.base import BadReport, Case, Limits, TestReport
from models.tracker.reports.byte_stream import lines
from models.tracker.reports.text_cleaning import Text, bounded_ms
from models.tracker.reports.totals import CaseBuilder, Severity, TotalsCounter

_POINT = re.compile(r"(not )?ok\b(?:[ \t]+(\d+))?[ \t]*(?:-[ \t]*)?(.*)", re.DOTALL)
_DIRECTIVE = re.compile(r"(?<!\\)#[ \t]*(skip|todo)\S*[ \t]*(.*)", re.IGNORECASE | re.DOTALL)
_PLAN = re.compile(r"1\.\.(\d{1,9})\b")
_SUBTEST = re.compile(r"# Subtest(?::[ \t]*(.*))?")
_BAIL_OUT = re.compile(r"Bail out![ \t]*(.*)", re.IGNORECASE)
_DURATION = re.compile(r"duration_ms:[ \t]*([0-9]{1,12}(?:\.[0-9]{1,9})?)")
_MESSAGE = re.compile(r"(?:message|error):[ \t]*(\S.*)")
_BLOCK_TEXT = re.compile(r"[|>][-+0-9]{0,2}")
"""The text begins in the next line."""
_ESCAPED = re.compile(r"\\([\\#])")
_BLOCK_INDENT = 2
"""The diagnostics of a test point are indented by this much, its subtests by more."""


class _Level:
    """A stream of test points of one indentation: the report itself, or a subtest."""

    def __init__(self, indent: int, name: str) -> None:
        self.indent = indent
        self.name = name
        self.points = self.failed = 0


class Tap:
    """Test points. A test point that summarizes a subtest is not counted in addition, unless it failed without a failed
    test in there.

    A plan that does not fit, a missing plan and a "Bail out!" are an error each: the run did not end well.
    """

    def __init__(self, limits: Limits, sink: Callable[[Case], None]) -> None:
        self._limits = limits
        self._totals = TotalsCounter(sink, limits)
        self._suite = self._totals.open(limits.suite)
        self._levels = [_Level(0, "")]
        self._closed: _Level | None = None
        """The subtest that has just ended, which the next test point sums up."""
        self._names: dict[int, str] = {}
        """Names of subtests by the indentation of their comment, which is that of the subtest or of its parent."""
        self._case: CaseBuilder | None = None
        self._text = Text(limits.output)
        self._is_message_next = False
        self._block: int | None = None
        """The indentation of the open block of diagnostics."""
        self._plan: int | None = None

    def read(self, pieces: Iterable[bytes]) -> None:
        for line in lines(pieces):
            text = line.decode("utf-8", "replace").rstrip()
            indent = len(text) - len(text.lstrip(" \t"))
            self._line(text.lstrip(" \t"), indent)
        self._end_point()
        while len(self._levels) > 1:
            self._close_level()
        self._check_plan()
        self._totals.close(self._suite)

    def report(self, format: str, digest: str) -> TestReport:
        return self._totals.report(format, digest)

    def _line(self, text: str, indent: int) -> None:
        if self._block is not None:
            self._block_line(text, indent)
        elif text == "---" and self._case:
            self._block = indent
        elif match := _SUBTEST.fullmatch(text):
            self._names[indent] = match[1] or ""
        elif text.startswith("#") or not text:
            self._diagnostic(text[1:])
        elif match := _BAIL_OUT.fullmatch(text):
            self._end_point()
            self._add_error("Bail out!", match[1])
            self._plan = self._plan if self._plan is None else self._levels[0].points
        elif match := _PLAN.match(text):
            self._enter(indent)
            if indent == self._levels[0].indent:
                self._plan = int(match[1])
        elif match := _POINT.fullmatch(text):
            self._enter(indent)
            self._point(match)

    def _block_line(self, text: str, indent: int) -> None:
        if text == "..." and indent <= (self._block or 0):
            self._block = None
        elif self._case:
            self._text.add(" " * max(0, indent - (self._block or 0)) + text + "\n")
            if match := _DURATION.fullmatch(text):
                self._case.duration_ms = bounded_ms(float(match[1]))
            elif self._is_message_next and text:
                self._case.message, self._is_message_next = text, False
            elif (match := _MESSAGE.fullmatch(text)) and not self._case.message:
                self._is_message_next = _BLOCK_TEXT.fullmatch(match[1]) is not None
                self._case.message = None if self._is_message_next else match[1].strip("'\"")

    def _diagnostic(self, text: str) -> None:
        if self._case and not self._case.passed:
            self._text.add(text.removeprefix(" ") + "\n")

    def _enter(self, indent: int) -> None:
        """Opens or closes subtests, by the indentation of a test point or a plan."""
        self._end_point()
        outer = None
        while len(self._levels) > 1 and indent < self._levels[-1].indent:
            self._close_level()
            outer = self._closed
        parent = self._levels[-1].indent
        if indent >= parent + _BLOCK_INDENT:
            if len(self._levels) >= self._limits.depth:
                raise BadReport(f"its subtests are nested more than {self._limits.depth} deep")
            self._levels.append(_Level(indent, self._names.get(parent, self._names.get(indent, ""))))
            self._closed = outer
        self._names.clear()

    def _close_level(self) -> None:
        level = self._closed = self._levels.pop()
        self._levels[-1].failed += level.failed

    def _point(self, match: re.Match[str]) -> None:
        level, subtest, self._closed = self._levels[-1], self._closed, None
        level.points += 1
        failed, number, description = match.groups()
        directive = _DIRECTIVE.search(description)
        if directive:
            description = description[: directive.start()]
        name = _ESCAPED.sub(r"\1", description.strip()) or f"test {number or level.points}"
        is_skipped = directive is not None and (failed or directive[1].lower() == "skip")
        if subtest and subtest.points and (not failed or is_skipped or subtest.failed):
            return
        case = CaseBuilder(" > ".join(level.name for level in self._levels[1:] if level.name), name)
        if is_skipped and directive:
            case.set_result(Severity.SKIPPED, message=directive[2])
        elif failed:
            case.set_result(Severity.FAILED)
            level.failed += 1
        self._case, self._text = case, Text(self._limits.output)

    def _end_point(self) -> None:
        case, self._case, self._block, self._is_message_next = self._case, None, None, False
        if case:
            if not case.passed:
                case.stack = self._text.value
            self._totals.add(self._suite, case)

    def _check_plan(self) -> None:
        points = self._levels[0].points
        if self._plan is None:
            self._add_error("(plan)", f"the plan is missing after {points} test points")
        elif self._plan != points:
            self._add_error("(plan)", f"{self._plan} test points were planned, {points} were found")

    def _add_error(self, name: str, message: str) -> None:
        case = CaseBuilder(self._suite.name, name)
        case.set_result(Severity.ERROR, message=message)
        self._totals.add(self._suite, case)
