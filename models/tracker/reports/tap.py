"""TAP, the Test Anything Protocol, versions 12 to 14."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable

from models.tracker.reports.base import BadReport, Case, Limits, TestReport
from models.tracker.reports.byte_stream import MAX_SEARCHED_LINE_BYTES, lines
from models.tracker.reports.text_cleaning import Text, bounded_ms, duration_ms
from models.tracker.reports.totals import CaseBuilder, Severity, TotalsCounter

_POINT = re.compile(r"(?:(not )?ok\b(?:[ \t]+(\d+))?|(skip|todo)[ \t]+(\d+)\b)[ \t]*(?:-[ \t]*)?(.*)", re.DOTALL)
"""testem (Ember) begins the points that it skips with `skip` or `todo`."""

_DIRECTIVE = re.compile(r"(?<!\\)#[ \t]*(skip|todo)\S*[ \t]*(.*)", re.IGNORECASE | re.DOTALL)
_PLAN = re.compile(r"1\.\.(\d{1,9})\b")
_SUBTEST = re.compile(r"# Subtest(?::[ \t]*(.*))?")
_BAIL_OUT = re.compile(r"Bail out![ \t]*(.*)", re.IGNORECASE)
_DURATION = re.compile(r"duration_ms:[ \t]*([0-9]{1,12}(?:\.[0-9]{1,9})?)")
_MESSAGE = re.compile(r"(?:message|error):[ \t]*(\S.*)")
_TIME = re.compile(
    r"(?:(?<!\\)#[ \t]*(?:time=|in[ \t]+)|(?<=[ \t]{2}))(\d{1,9}(?:\.\d{1,9})?[ \t]?(?:ms|s))(?=[ \t]*(?:#|\{|$))"
    r"|(?<=[ \t]-[ \t])\[(\d{1,9}(?:\.\d{1,9})?[ \t]ms)\][ \t]-[ \t]"
)
"""The time after a description (node-tap, Vitest; bats; pg_regress), or in it (testem). It is not part of the name.

No pattern here begins with a repetition: a line may have megabytes of spaces.
"""

_TIMEOUT = re.compile(r"(?<!\\)#[ \t]*(timeout after \d{1,9} s)$")
_OPENING = re.compile(r"(?<![^ \t])\{$")
"""The points of a subtest follow, until a line with the closing brace."""

_BLOCK_TEXT = re.compile(r"[|>][-+0-9]{0,2}")
"""The text begins in the next line."""
_ESCAPED = re.compile(r"\\([\\#])")
_NUMBERED = re.compile(r"(?:(?:not )?ok|skip|todo)[ \t]+\d+\b")
_SUMMARY = re.compile(
    r"#[ \t]?(?:(?:tests|suites|pass|fail|skip(?:ped)?|todo|cancelled|duration_ms)[ \t]+[0-9][0-9.]*"
    r"|Looks like you (?:failed|planned) [0-9].*)"
)
"""Counts at the end of a report (Mocha, tape, node-tap, node's runner; Perl). They are not of the last test point."""

_BLOCK_INDENT = 2
"""The diagnostics of a test point are indented by this much, its subtests by more."""


class _Level:
    """A stream of test points of one indentation: the report itself, or a subtest.

    `summary` is the test point of the subtest, where that stands before it.
    """

    def __init__(self, indent: int, name: str, summary: CaseBuilder | None = None) -> None:
        self.indent = indent
        self.name = name
        self.summary = summary
        self.points = self.failed = 0


class Tap:
    """Test points. A test point that summarizes a subtest is not counted in addition, unless it failed without a failed
    test in there. It stands after the subtest, or before it with an opening brace.

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
        self._is_open = False
        """Whether the case has an opening brace."""
        self._text = Text(limits.output)
        self._error: str | None = None
        """The first line of an error that is only indented."""
        self._is_message_next = False
        self._block: int | None = None
        """The indentation of the open block of diagnostics."""
        self._plan: int | None = None
        self._points = 0

    def read(self, pieces: Iterable[bytes]) -> None:
        for line in lines(pieces, MAX_SEARCHED_LINE_BYTES):
            text = line.decode("utf-8", "replace").rstrip()
            indent = len(text) - len(text.lstrip(" \t"))
            self._line(text.lstrip(" \t"), indent)
        is_cut = self._block is not None
        self._end_point()
        while len(self._levels) > 1:
            self._close_level()
        self._check_plan(is_cut)
        self._totals.close(self._suite)

    def report(self, format: str, digest: str) -> TestReport:
        return self._totals.report(format, digest)

    def _line(self, text: str, indent: int) -> None:
        if self._block is not None and indent < self._block and _NUMBERED.match(text):
            self._block = None  # it has no end
        if self._block is not None:
            self._block_line(text, indent)
        elif text == "---" and self._case:
            self._block = indent
        elif text == "{" and self._case and indent == self._levels[-1].indent:
            self._is_open = True
        elif text == "}" and indent <= self._levels[-1].indent:
            self._leave(indent)
        elif match := _SUBTEST.fullmatch(text):
            self._names[indent] = match[1] or ""
        elif _SUMMARY.fullmatch(text):
            self._end_point()
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
        elif indent >= self._levels[-1].indent + _BLOCK_INDENT and self._case and not self._case.passed:
            self._error_line(text, indent)

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

    def _error_line(self, text: str, indent: int) -> None:
        """Reads a line of an error that is only indented, as Mocha writes it."""
        self._error = self._error or text
        self._text.add(" " * (indent - self._levels[-1].indent - _BLOCK_INDENT) + text + "\n")

    def _diagnostic(self, text: str) -> None:
        if self._case and not self._case.passed:
            self._text.add(text.removeprefix(" ") + "\n")

    def _enter(self, indent: int) -> None:
        """Opens or closes subtests, by the indentation of a test point or a plan."""
        outer, summary = None, None
        if self._case and self._is_open and indent >= self._levels[-1].indent + _BLOCK_INDENT:
            summary, self._case, self._is_open = self._case, None, False
            summary.stack = None if summary.passed else self._text.value
        self._end_point()
        while len(self._levels) > 1 and indent < self._levels[-1].indent:
            self._close_level()
            outer = self._closed
        parent = self._levels[-1].indent
        if indent >= parent + _BLOCK_INDENT:
            if len(self._levels) >= self._limits.depth:
                raise BadReport(f"its subtests are nested more than {self._limits.depth} deep")
            name = (summary.name if summary else None) or self._names.get(parent, self._names.get(indent, ""))
            self._levels.append(_Level(indent, name, summary))
            self._closed = outer
        self._names.clear()

    def _leave(self, indent: int) -> None:
        """Closes the subtest whose closing brace has been read."""
        self._is_open = False
        self._end_point()
        while len(self._levels) > 1 and indent < self._levels[-1].indent:
            self._close_level()

    def _close_level(self) -> None:
        level = self._closed = self._levels.pop()
        self._levels[-1].failed += level.failed
        if summary := level.summary:
            self._closed = None
            if not _is_summary(level, summary):
                self._totals.add(self._suite, summary)

    def _point(self, match: re.Match[str]) -> None:
        level, subtest, self._closed = self._levels[-1], self._closed, None
        level.points += 1
        failed, first, directive, second, description = match.groups()
        description, self._is_open = _without(_OPENING, description.strip())
        reason = None
        if found := _DIRECTIVE.search(description):
            directive, reason, description = found[1], found[2], description[: found.start()]
        time, description = _time(description)
        description, is_open = _without(_OPENING, description.strip())
        self._is_open |= is_open
        timeout = _TIMEOUT.search(description)
        description, _ = _without(_TIMEOUT, description)
        name = _ESCAPED.sub(r"\1", description) or f"test {first or second or level.points}"
        case = CaseBuilder(" > ".join(level.name for level in self._levels[1:] if level.name), name, time)
        if self._limits.reruns == "worst":
            case.place = str(self._points)  # assertions of one description are tests each
        self._points += 1
        if directive and (failed or match[3] or directive.lower() == "skip"):
            case.set_result(Severity.SKIPPED, message=reason)
        elif failed:
            case.set_result(Severity.FAILED, message=timeout and timeout[1])
        if subtest and _is_summary(subtest, case):
            self._is_open = False
            return
        level.failed += case.severity is Severity.FAILED
        self._case, self._text, self._error = case, Text(self._limits.output), None

    def _end_point(self) -> None:
        case, self._case, self._block, self._is_message_next = self._case, None, None, False
        is_open, self._is_open = self._is_open, False
        if case:
            if is_open:  # no subtest followed
                case.name = f"{case.name} {{"
            if not case.passed:
                case.stack = self._text.value
                case.message = case.message or self._error
            self._totals.add(self._suite, case)

    def _check_plan(self, is_cut: bool) -> None:
        points = self._levels[0].points
        if self._plan is None or self._plan > points or is_cut:
            self._totals.warnings.append(f"truncated: it ends after {points} test points")
        if self._plan is None:
            self._add_error("(plan)", f"the plan is missing after {points} test points")
        elif self._plan != points:
            self._add_error("(plan)", f"{self._plan} test points were planned, {points} were found")

    def _add_error(self, name: str, message: str) -> None:
        case = CaseBuilder(self._suite.name, name)
        case.set_result(Severity.ERROR, message=message)
        self._totals.add(self._suite, case)


def _is_summary(subtest: _Level, point: CaseBuilder) -> bool:
    """Whether the points of a subtest have all that its own test point reports."""
    return subtest.points > 0 and (point.severity is not Severity.FAILED or subtest.failed > 0)


def _without(pattern: re.Pattern[str], text: str) -> tuple[str, bool]:
    match = pattern.search(text)
    return (text[: match.start()].rstrip(), True) if match else (text, False)


def _time(description: str) -> tuple[int | None, str]:
    """The time in a description, and the description without it."""
    match = _TIME.search(description)
    if not match:
        return None, description
    return duration_ms(match[1] or match[2]), description[: match.start()] + description[match.end() :]
