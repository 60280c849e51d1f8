"""The page that compares two runs: what got worse, what got better, all figures; and the choice of the two runs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from attrs import frozen

from handlers.routing import Route
from handlers.tracker import serializers
from handlers.tracker.pages.tracker_pages import ReadPage, took
from handlers.tracker.responses import ComparisonInfo
from handlers.web.layout import change, figure
from models.errors import Invalid
from models.tracker import queries, visibility
from models.tracker.runs import comparison
from models.tracker.runs.comparison import Differences, FileChange, Timing
from models.tracker.runs.kept_answers import state_of_pair
from models.tracker.tables import Project, Run

_MAX_CHOICES = 100
_SHOWN = 10


@frozen
class FigureChange:
    """A figure that differs between the runs."""

    label: str
    base: str
    head: str
    delta: str


@frozen
class ChangedSide:
    """What got worse, or better: figures, and the largest changes of files and durations."""

    figures: Sequence[FigureChange]
    files: Sequence[FileChange]
    timings: Sequence[Timing]

    @property
    def is_empty(self) -> bool:
        return not (self.figures or self.files or self.timings)


def sides(compared: ComparisonInfo, differences: Differences) -> tuple[ChangedSide, ChangedSide]:
    """What got worse, and what got better."""
    figures = list(_figures(compared))
    files = [file for file in differences.files if file.base is not None and file.head is not None and file.delta]
    timings = [test for test in compared.timings if test.head_ms != test.base_ms]

    def side(is_worse: bool) -> ChangedSide:
        return ChangedSide(
            [item for item, worse in figures if worse is is_worse],
            [file for file in files if (file.delta < 0) is is_worse][:_SHOWN],
            [test for test in timings if (test.head_ms > test.base_ms) is is_worse][:_SHOWN],
        )

    return side(True), side(False)


@frozen
class FigureTile:
    """One figure of the head beside that of the base. `kind` is `good` or `bad` where it got better or worse."""

    label: str
    text: str
    delta: str = ""
    kind: str = ""


def tiles(compared: ComparisonInfo) -> Sequence[FigureTile]:
    """The five figures that a reader looks for first."""
    base, head = compared.base, compared.head
    failing, fixed, duration = compared.new_failures.count, compared.fixed.count, compared.duration_delta_ms
    before, after = took_apart(base.duration_ms or 0, head.duration_ms or 0)
    return [
        FigureTile("Newly failing", f"{failing:,}", kind="bad" if failing else ""),
        FigureTile("Fixed", f"{fixed:,}", kind="good" if fixed else ""),
        _percentages("Pass rate", base.pass_rate, head.pass_rate),
        _percentages("Line coverage", base.line_coverage_pct, head.line_coverage_pct),
        FigureTile("Duration", f"{before} → {after}", _delta(duration)),
    ]


def _percentages(label: str, base: float | None, head: float | None) -> FigureTile:
    if base is None or head is None or base == head:
        return FigureTile(label, figure(head, " %"))
    kind = "good" if head > base else "bad"
    return FigureTile(label, f"{figure(base, ' %')} → {figure(head, ' %')}", f"{change(head - base)} points", kind)


def _delta(ms: int) -> str:
    return f"{'+' if ms > 0 else '-'}{took(abs(ms))}" if ms else ""


def took_apart(base: int, head: int) -> tuple[str, str]:
    """Two durations in ms as text, in the coarsest unit in which they differ."""
    for unit in (_minutes_and_seconds, lambda ms: f"{ms / 1000:.1f} s"):
        if (texts := (unit(base), unit(head)))[0] != texts[1]:
            return texts
    return (took(base), took(head)) if base == head else (f"{base:,} ms", f"{head:,} ms")


def _minutes_and_seconds(ms: int) -> str:
    return f"{ms // 60_000}m {ms // 1000 % 60}s" if ms >= 60_000 else took(ms)


def _figures(compared: ComparisonInfo) -> Iterator[tuple[FigureChange, bool]]:
    """The figures that differ, each with whether it got worse."""
    base, head = compared.base, compared.head
    for label, before, after in (
        ("Pass rate", base.pass_rate, head.pass_rate),
        ("Line coverage", base.line_coverage_pct, head.line_coverage_pct),
        ("Branch coverage", base.branch_coverage_pct, head.branch_coverage_pct),
        ("Changed lines covered", base.patch_coverage_pct, head.patch_coverage_pct),
    ):
        if before is not None and after is not None and before != after:
            item = FigureChange(label, figure(before, " %"), figure(after, " %"), f"{change(after - before)} points")
            yield item, after < before
    if delta := compared.duration_delta_ms:
        item = FigureChange("Duration", took(base.duration_ms), took(head.duration_ms), took(abs(delta)))
        yield item, delta > 0


class ComparePage(ReadPage):
    """The comparison of two runs."""

    async def get(self) -> None:
        base, head = (self.query().get(name, "").strip() for name in ("base", "head"))
        if not base or not head:
            await self._choose(base, head)
            return
        try:
            await self.show_kept(
                "tracker/compare.html", lambda user: state_of_pair(user, base, head), lambda: self._values(base, head)
            )
        except Invalid as refused:
            self.set_status(400)
            await self._choose(base, head, refused.message)

    def _values(self, base: str, head: str) -> dict[str, Any]:
        pair = visibility.pair(self.caller.user, base, head)
        compared, differences = serializers.comparison_info(comparison.compare(*pair)), comparison.differences(*pair)
        worse, better = sides(compared, differences)
        return {
            "comparison": compared,
            "differences": differences,
            "tiles": tiles(compared),
            "changed_files": [file for file in differences.files if file.delta or None in (file.base, file.head)],
            "worse": worse,
            "better": better,
            "project": queries.project(pair[0].project_id),
        }

    async def _choose(self, base: str, head: str, problem: str = "") -> None:
        """Shows the choice of two runs, of one project where a run is given."""

        def values() -> tuple[Project | None, list[tuple[Run, str]]]:
            user, given = self.caller.user, base or head
            project = visibility.run(user, given)[1] if given else None
            return project, visibility.newest_runs(user, project, _MAX_CHOICES)

        project, choices = await self.read(values)
        await self.show(
            "tracker/compare_choice.html",
            project=project,
            choices=choices,
            max_choices=_MAX_CHOICES,
            chosen={"base": base, "head": head},
            problem=problem,
        )


routes: list[Route] = [(r"/compare", ComparePage)]
