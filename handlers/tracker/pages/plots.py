"""The plots of the tracker: the trend of a project's runs, and the results of one test."""

from __future__ import annotations

from collections.abc import Sequence

from handlers.http import serializers
from handlers.tracker.responses import OutcomeInfo, RunInfo
from handlers.web import svg
from handlers.web.layout import figure
from handlers.web.svg import Bar, LinePoint
from models.json_format import rfc3339

MAX_RUNS = 30
RANGES = (30, 60, 120)
"""How many runs the plots of a project may show."""

_KINDS = {"PASSED": "good", "FAILED": "bad", "ERROR": "bad"}


def ticks(runs: Sequence[RunInfo]) -> Sequence[RunInfo]:
    """Three to five of these runs (newest first) at equal distances, oldest first, for the dates below the plots."""
    count = min(len(runs), 5 if len(runs) > 8 else 3)
    places = [round(tick * (len(runs) - 1) / (count - 1)) for tick in range(count)] if count > 1 else range(count)
    return [runs[-1 - place] for place in places]


def trend(runs: Sequence[RunInfo]) -> str:
    """Plots runs (newest first): bars of passed, skipped and failed tests."""
    slots = [
        Bar(
            parts=[("good", run.passed), ("rest", run.skipped), ("bad", run.failed + run.errors)],
            tooltip=_run_tooltip(run),
            bad=run.status == "FAILED",
        )
        for run in reversed(runs)
    ]
    return svg.bars("trend", slots, f"Tests of the last {len(slots)} runs", _description(runs), has_cursor=True)


def duration_trend(runs: Sequence[RunInfo]) -> str:
    """Plots the durations of runs (newest first)."""
    slots = [
        Bar(
            parts=[("rest", run.duration_ms or 0)],
            tooltip=f"Run {run.id}: {serializers.duration_text((run.duration_ms or 0) * 1000)}",
        )
        for run in reversed(runs)
    ]
    text = "The table below has the same values."
    return svg.bars("duration-trend", slots, f"Durations of the last {len(slots)} runs", text, has_cursor=True)


def coverage_trend(runs: Sequence[RunInfo]) -> tuple[str, tuple[float, float]] | None:
    """Plots the line coverage of runs (newest first); returns it with the ends of its axis. `None` without coverage."""
    shown = list(reversed(runs))
    known = [run.line_coverage_pct for run in shown if run.line_coverage_pct is not None]
    if len(known) < 2:
        return None
    axis = svg.axis_of(known)
    points = [
        LinePoint(run.line_coverage_pct, f"Run {run.id}: {figure(run.line_coverage_pct, ' %')} of lines covered")
        for run in shown
    ]
    text = f"Line coverage went from {figure(known[0], ' %')} to {figure(known[-1], ' %')}."
    return svg.line("coverage-trend", points, axis, f"Line coverage of the last {len(points)} runs", text), axis


def _run_tooltip(run: RunInfo) -> str:
    failed = run.failed + run.errors
    covered = "" if run.line_coverage_pct is None else f", {figure(run.line_coverage_pct, ' %')} of lines covered"
    day = rfc3339(run.created_at)[:10]
    return f"Run {run.id}, {day}: {run.passed} passed, {failed} failed, {run.skipped} skipped{covered}"


def _description(runs: Sequence[RunInfo]) -> str:
    failed = sum(run.status == "FAILED" for run in runs)
    covered = [run.line_coverage_pct for run in runs if run.line_coverage_pct is not None]
    text = f"{failed} of {len(runs)} runs failed."
    if covered:
        text += f" Line coverage went from {figure(covered[-1], ' %')} to {figure(covered[0], ' %')}."
    return f"{text} The table below has the same values."


def over_time(results: Sequence[OutcomeInfo]) -> str:
    """Plots the results of one test (newest first) as bars; the height is the duration."""
    shown = results[:MAX_RUNS]
    longest = max((result.duration_ms or 0 for result in shown), default=0) or 1
    slots = [
        Bar(
            parts=[(_KINDS.get(result.status, "rest"), max(result.duration_ms or 0, longest * 0.06))],
            tooltip=_result_tooltip(result),
            bad=_KINDS.get(result.status) == "bad",
        )
        for result in reversed(shown)
    ]
    failed = sum(bar.bad for bar in slots)
    text = f"It failed in {failed} of {len(slots)} runs. The table below has the same values."
    return svg.bars("times", slots, f"The last {len(slots)} results and their durations", text)


def _result_tooltip(result: OutcomeInfo) -> str:
    flaky = ", flaky" if result.flaky else ""
    return f"Run {result.run_id}: {result.status.lower()}{flaky}, {result.duration_ms or 0} ms"
