"""Claims about speed and memory: each value is checked against a target, as a ratio to a reference of the same runs
where there is one, because absolute times depend on the machine.
"""

import argparse
import json
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from benchmarks.report import PILOTHOUSE, Figures, table

NOISE = 1.5
"""A ratio that is worse than the stored one by more than this factor is reported; the machines are shared."""


@dataclass(frozen=True)
class Claim:
    """One measurement. `values` (Pilothouse) and `reference_values` have one value for each run, in the same order.

    The target applies to the ratio of both where there is a reference, otherwise to the value of Pilothouse.
    """

    area: str
    text: str
    unit: str
    values: Sequence[float]
    reference: str = ""
    reference_values: Sequence[float] = ()
    target: float | None = None
    is_minimum: bool = False

    @property
    def key(self) -> str:
        return f"{self.area}: {self.text} / {self.reference}"

    @property
    def ratios(self) -> list[float]:
        return [value / other for value, other in zip(self.values, self.reference_values, strict=False) if other]

    @property
    def judged(self) -> float:
        """The value checked against the target: the median of the ratios, or of the values."""
        return statistics.median(self.ratios or self.values)

    @property
    def verdict(self) -> str:
        if self.target is None:
            return ""
        met = self.judged >= self.target if self.is_minimum else self.judged <= self.target
        return "met" if met else "**missed**"

    def cells(self) -> list[str]:
        target = "" if self.target is None else f"{'≥' if self.is_minimum else '≤'} {self.target:g}"
        values = f"{_median_and_range(self.values)} {self.unit}".strip()
        reference = self.reference
        if self.reference_values:
            reference += f": {_median_and_range(self.reference_values)} {self.unit}".rstrip()
        ratio = _median_and_range(self.ratios) if self.ratios else ""
        return [self.area, self.text, values, reference, ratio, target, self.verdict]


def measured(
    figures: Figures,
    metric: str,
    size: int,
    area: str,
    text: str,
    unit: str,
    reference: str = "",
    target: float | None = None,
    is_minimum: bool = False,
) -> list[Claim]:
    """Returns the claim about a metric, from the runs in which both sides were measured; none without values."""
    values, others = (figures.values.get((metric, size, candidate), {}) for candidate in (PILOTHOUSE, reference))
    if reference and not others:
        return [Claim(area, text, unit, list(values.values()), f"{reference}: not measured")] if values else []
    runs = [run for run in values if not reference or run in others]
    pair = [values[run] for run in runs], [others[run] for run in runs] if reference else []
    return [Claim(area, text, unit, pair[0], reference, pair[1], target, is_minimum)] if runs else []


def _median_and_range(values: Sequence[float]) -> str:
    """Returns the median, with the minimum and maximum in brackets if they differ."""
    middle, low, high = map(_three_digits, (statistics.median(values), min(values), max(values)))
    return middle if low == high else f"{middle} ({low}..{high})"


def _three_digits(value: float) -> str:
    text = f"{value:.3g}"
    return f"{float(text):,.0f}" if "e+" in text else text


def claims_table(claims: Iterable[Claim]) -> str:
    head = ["area", "measured", "Pilothouse: median (range)", "compared with", "ratio", "target", "result"]
    return table(head, [claim.cells() for claim in claims])


def add_outputs(parser: argparse.ArgumentParser) -> None:
    """Adds the options that `publish` reads."""
    parser.add_argument("--out", type=Path, help="write the Markdown here too")
    parser.add_argument("--claims", type=Path, help="append the claims to this file")


def publish(options: argparse.Namespace, text: str, claims: Sequence[Claim]) -> None:
    """Prints the Markdown, and writes it and the claims to the files of the options, if any."""
    print(text)
    if options.out:
        options.out.write_text(text)
    save(options.claims, claims)


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
            change = was / is_now if claim.is_minimum else is_now / was
            if change > NOISE:
                worse.append(f"{claim.area}, {claim.text}: {is_now:.3g} times {claim.reference}, last time {was:.3g}")
    return worse
