"""Claims on speed and memory: each is compared with a reference in the same runs and checked against a bound.

A claim is judged by a ratio wherever there is something to compare with: seconds belong to one machine on one day.
"""

import json
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from benchmarks.report import OURS, Figures, table

NOISE = 1.5
"""How many times worse than last time a ratio may be before it is called a regression: these machines are shared."""


@dataclass(frozen=True)
class Claim:
    """`ours` and `theirs` have one value for each run, in the same order; `bound` is for the ratio ours ÷ theirs where
    there is something `beside`, otherwise for ours."""

    area: str
    text: str
    unit: str
    ours: Sequence[float]
    beside: str = ""
    theirs: Sequence[float] = ()
    bound: float | None = None
    at_least: bool = False

    @property
    def key(self) -> str:
        return f"{self.area}: {self.text} / {self.beside}"

    @property
    def ratios(self) -> list[float]:
        return [mine / other for mine, other in zip(self.ours, self.theirs, strict=False) if other]

    @property
    def judged(self) -> float:
        """The value checked against the bound: the median of the ratios, or of the value measured here."""
        return statistics.median(self.ratios or self.ours)

    @property
    def verdict(self) -> str:
        if self.bound is None:
            return ""
        met = self.judged >= self.bound if self.at_least else self.judged <= self.bound
        return "met" if met else "**missed**"

    def cells(self) -> list[str]:
        bound = "" if self.bound is None else f"{'≥' if self.at_least else '≤'} {self.bound:g}"
        beside = f"{self.beside}: {_spread(self.theirs)}" if self.theirs else self.beside
        ratio = _spread(self.ratios) if self.ratios else ""
        return [self.area, self.text, f"{_spread(self.ours)} {self.unit}".strip(), beside, ratio, bound, self.verdict]


def measured(
    figures: Figures,
    metric: str,
    size: int,
    area: str,
    text: str,
    unit: str,
    beside: str = "",
    bound: float | None = None,
    at_least: bool = False,
) -> list[Claim]:
    """The claim on that metric, from the runs in which both were measured; `None` without a value for Pilothouse."""
    ours, theirs = (figures.values.get((metric, size, who), {}) for who in (OURS, beside))
    if beside and not theirs:
        return [Claim(area, text, unit, list(ours.values()), f"{beside}: not measured")] if ours else []
    runs = [run for run in ours if not beside or run in theirs]
    both = [ours[run] for run in runs], [theirs[run] for run in runs] if beside else []
    return [Claim(area, text, unit, both[0], beside, both[1], bound, at_least)] if runs else []


def _spread(values: Sequence[float]) -> str:
    """The median, and from where to where where that is not the same."""
    middle = f"{statistics.median(values):.3g}"
    low, high = f"{min(values):.3g}", f"{max(values):.3g}"
    return middle if low == high else f"{middle} ({low}..{high})"


def shown(claims: Iterable[Claim]) -> str:
    head = ["", "claim", "ours: median (spread)", "beside it", "ours ÷ it", "bound", ""]
    return table(head, [claim.cells() for claim in claims])


def save(path: Path | None, claims: Sequence[Claim]) -> None:
    """Appends the claims to the file, one line each; does nothing without a file."""
    if path is not None:
        with path.open("a") as file:
            file.writelines(json.dumps(asdict(claim)) + "\n" for claim in claims)


def load(path: Path) -> list[Claim]:
    return [Claim(**json.loads(line)) for line in path.read_text().splitlines()]


def regressions(now: Sequence[Claim], before: Sequence[Claim]) -> list[str]:
    """Messages for the ratios that got worse by more than the noise."""
    old = {claim.key: claim for claim in before if claim.ratios}
    worse = []
    for claim in now:
        if claim.ratios and claim.key in old:
            was, is_now = old[claim.key].judged, claim.judged
            change = was / is_now if claim.at_least else is_now / was
            if change > NOISE:
                worse.append(f"{claim.area}, {claim.text}: {is_now:.3g} times {claim.beside}, last time {was:.3g}")
    return worse
