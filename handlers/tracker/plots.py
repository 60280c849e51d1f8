"""What the tracker's pictures show: the trend of a project's runs, and one test over its runs."""

from __future__ import annotations

from collections.abc import Sequence

from handlers.tracker.responses import OutcomeInfo, RunInfo
from handlers.web import svg
from handlers.web.layout import figure
from handlers.web.svg import Bar
from models.json_format import rfc3339

SHOWN = 30
"""So many places has a picture."""

_KINDS = {"PASSED": "good", "FAILED": "bad", "ERROR": "bad"}


def trend(runs: Sequence[RunInfo]) -> str:
    """Runs, newest first, as bars of what passed, failed and was skipped, and a line of the coverage."""
    told = [
        Bar(
            parts=[("good", run.passed), ("rest", run.skipped), ("bad", run.failed + run.errors)],
            told=_of_run(run),
            line=run.line_coverage_pct,
            bad=run.status == "FAILED",
        )
        for run in reversed(runs[:SHOWN])
    ]
    return svg.bars("trend", told, f"Tests and coverage of the last {len(told)} runs", _in_words(runs[:SHOWN]))


def _of_run(run: RunInfo) -> str:
    failed = run.failed + run.errors
    covered = "" if run.line_coverage_pct is None else f", {figure(run.line_coverage_pct, ' %')} of lines covered"
    day = rfc3339(run.created_at)[:10]
    return f"Run {run.id}, {day}: {run.passed} passed, {failed} failed, {run.skipped} skipped{covered}"


def _in_words(runs: Sequence[RunInfo]) -> str:
    failed = sum(run.status == "FAILED" for run in runs)
    covered = [run.line_coverage_pct for run in runs if run.line_coverage_pct is not None]
    words = f"{failed} of {len(runs)} runs failed."
    if covered:
        words += f" Line coverage went from {figure(covered[-1], ' %')} to {figure(covered[0], ' %')}."
    return f"{words} The table below says the same."


def over_time(results: Sequence[OutcomeInfo]) -> str:
    """One test's results, newest first, as bars as tall as they took long."""
    shown = results[:SHOWN]
    longest = max((one.duration_ms or 0 for one in shown), default=0) or 1
    told = [
        Bar(
            parts=[(_KINDS.get(one.status, "rest"), max(one.duration_ms or 0, longest * 0.06))],
            told=f"Run {one.run_id}: {one.status.lower()}{', flaky' if one.flaky else ''}, {one.duration_ms or 0} ms",
            bad=_KINDS.get(one.status) == "bad",
        )
        for one in reversed(shown)
    ]
    failed = sum(bar.bad for bar in told)
    text = f"It failed in {failed} of {len(told)} runs. The table below says the same."
    return svg.bars("times", told, f"The last {len(told)} results and how long they took", text)
