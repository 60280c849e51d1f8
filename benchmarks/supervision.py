"""Supervision: Pilothouse compared with supervisord, runit, pm2 and bare Python, in the same runs.

    python benchmarks/supervision.py [--quick] [--install] [--children 1,100,500] [--runs 3] [--out FILE]

A child reports itself when it executes. Peers that are not installed are listed as such; --install downloads them into
a separate cache (runit with apt-get). Only loopback is used, and every started process is ended. The exit code is
non-zero only if Pilothouse fails; missed targets are marked in the table.
"""

import argparse
import signal
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from types import FrameType
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))  # it is run as a program

from benchmarks import children, claims, limits, paging, report, trial
from benchmarks.candidates import Candidate, Pilothouse
from benchmarks.claims import Claim
from benchmarks.peers import Pm2, Runit, Supervisord
from benchmarks.report import Figures

CANDIDATES: tuple[type[Candidate], ...] = (Pilothouse, Supervisord, Runit, Pm2)


class Benchmark:
    """All runs of all candidates; the results are in `figures` and `failures`."""

    def __init__(
        self, kinds: Sequence[type[Candidate]], sizes: Sequence[int], limits: trial.SampleLimits, place: Path
    ) -> None:
        self.kinds = kinds
        self.sizes = sizes
        self.limits = limits
        self.place = place
        self.program, self.child = children.build(place)
        self.figures = Figures()
        self.failures: list[tuple[str, str]] = []

    def run(self, number: int) -> None:
        """Runs each candidate with each number of children; the order rotates from run to run."""
        self._limits(number)
        for size in self.sizes:
            turn = number % len(self.kinds) if self.kinds else 0
            for kind in (*self.kinds[turn:], *self.kinds[:turn]):
                if number < kind.most_runs(size):
                    self._trial(number, kind, size)

    def _limits(self, number: int) -> None:
        def record(metric: str, value: float) -> None:
            self.figures.put(number, metric, 0, "limit", value)

        with tempfile.TemporaryDirectory(prefix="ph-bench-") as name:
            limits.measure(Path(name), self.program, max(self.sizes), self.limits.many_clients, record)

    def _trial(self, number: int, kind: type[Candidate], size: int) -> None:
        def record(metric: str, value: float) -> None:
            self.figures.put(number, metric, size, kind.name, value)

        begin = time.monotonic()
        try:
            with trial.launched_trial(kind, self.program, size) as stage:
                trial.measure(stage, self.limits, record)
        except Exception as problem:
            self._failed(kind, f"run {number + 1}, {size} children", problem)
        say(f"run {number + 1}: {kind.name}, {size} children: {time.monotonic() - begin:.1f} s")

    def idle(self) -> None:
        """Measures all idle candidates at the same time, once for each number of children."""
        for size in self.sizes:
            with ExitStack() as stack:
                stages = [stage for kind in self.kinds if (stage := self._resting(stack, kind, size))]
                time.sleep(1)
                for stage, (processor, wakeups) in zip(stages, trial.idle(stages, self.limits.idle), strict=True):
                    name = stage.candidate.name
                    self.figures.put(0, "idle_cpu", size, name, processor)
                    self.figures.put(0, "idle_wakeups", size, name, wakeups)
            say(f"idle with {size} children")

    def _resting(self, stack: ExitStack, kind: type[Candidate], size: int) -> trial.Trial | None:
        try:
            stage = stack.enter_context(trial.launched_trial(kind, self.program, size))
            stage.launch()
        except Exception as problem:
            self._failed(kind, f"idle, {size} children", problem)
            return None
        return stage

    def paging(self, sizes: Sequence[int]) -> list[paging.Row]:
        try:
            return paging.measure(sizes)
        except Exception as problem:
            self._failed(Pilothouse, "paging", problem)
            return []

    def _failed(self, kind: type[Candidate], where: str, problem: Exception) -> None:
        notes = " / ".join(getattr(problem, "__notes__", []))
        self.failures.append((kind.name, f"{where}: {type(problem).__name__}: {problem}"))
        say(f"{kind.name} failed, {where}: {problem!r}\n{notes}")

    @property
    def ours_failed(self) -> bool:
        return any(name == Pilothouse.name for name, _ in self.failures)


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def document(benchmark: Benchmark, absent: Sequence[tuple[str, str]], pages: Sequence[paging.Row], runs: int) -> str:
    names = [kind.name for kind in benchmark.kinds]
    versions = [
        f"- {kind.name}: {kind.version()}. {' '.join(f'({note})' for note in kind.notes)}".rstrip()
        for kind in benchmark.kinds
    ]
    parts = [
        "# Supervision",
        f"{report.machine()}. {runs} run(s); cells: median (min..max) **x ratio to Pilothouse in the same run**. "
        f"Child: {benchmark.child}; it reports itself when it executes. The idle state is measured once.",
        "\n".join(versions + [f"- {name}: not installed: {reason}" for name, reason in absent]),
        report.comparison(benchmark.figures, benchmark.sizes, names),
        "## Limits of the machine",
        report.limits(benchmark.figures, max(benchmark.sizes)),
    ]
    if pages:
        parts += ["## Pages of the history", paging.table(pages)]
    if Pilothouse in benchmark.kinds:
        parts += ["## Targets", claims.claims_table(claimed(benchmark))]
    if benchmark.failures:
        parts += ["## Failures", "\n".join(f"- {name}: {what}" for name, what in benchmark.failures)]
    return "\n\n".join(parts) + "\n"


_LAUNCH, _STOP = 1 / 5, 0.25 / 31
"""Targets relative to the peers' values on the machine where they were set, so that they hold on slower machines."""


def claimed(benchmark: Benchmark) -> list[Claim]:
    """Returns the claims for the largest number of children."""
    size = max(benchmark.sizes)

    def of(metric: str, text: str, unit: str, **more: Any) -> list[Claim]:
        return claims.measured(benchmark.figures, metric, size, "supervision", text.format(n=size), unit, **more)

    return [
        *of("crash", "kill -9 of one of {n} processes → its replacement executes", "ms", reference="runit", target=1.0),
        *of("crash", "kill -9 of one of {n} processes → its replacement executes", "ms", reference="supervisord"),
        *of("start", "start {n} processes → all execute", "s", target=1.0),
        *of("start", "start {n} processes → all execute", "s", reference="supervisord"),
        *of("launch", "launch of the supervisor → {n} processes execute", "s", target=1.0),
        *of("launch", "launch of the supervisor → {n} processes execute", "s", reference="supervisord", target=_LAUNCH),
        *of("stop", "stop {n} processes → the last has ended", "s", target=0.25),
        *of("stop", "stop {n} processes → the last has ended", "s", reference="pm2", target=_STOP),
        *of(
            "status_many",
            "status of all {n} processes, 8 clients",
            "requests/s",
            reference="supervisord",
            target=20.0,
            is_minimum=True,
        ),
        *of("busy_p99", "status of one process while {n} stop and start, p99", "ms", target=50.0),
        *of("busy_p99", "status of one process while {n} stop and start, p99", "ms", reference="supervisord"),
        *of("idle_cpu", "processor time when idle, {n} processes", "%", target=0.02),
        *of("pss", "memory (PSS), {n} processes", "MiB", reference="pm2"),
        *of("rss", "memory (RSS), {n} processes; the limit is 60 MB", "MiB", target=57.2),
        *of("rss_after", "memory (RSS) after all measurements, {n} processes", "MiB", target=57.2),
    ]


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--children", default="", help="how many, in commas (1,100,500; with --quick 1,100)")
    parser.add_argument("--runs", type=int, default=0, help="3; with --quick 1")
    parser.add_argument("--only", default="", help="candidates, in commas")
    parser.add_argument("--events", default="", help="sizes of the history to page through (1000,1000000); 0: none")
    parser.add_argument("--quick", action="store_true", help="one run, fewer samples")
    parser.add_argument("--install", action="store_true", help="fetch the peers first")
    claims.add_outputs(parser)
    return parser.parse_args()


def _numbers(text: str) -> list[int]:
    return [int(number) for number in text.split(",") if int(number) > 0]


def _stop(number: int, frame: FrameType | None) -> None:
    raise SystemExit(128 + number)  # so that every finally runs


def main() -> int:
    signal.signal(signal.SIGTERM, _stop)
    options = arguments()
    sizes = _numbers(options.children or ("1,100" if options.quick else "1,100,500"))
    runs = options.runs or (1 if options.quick else 3)
    wanted = [kind for kind in CANDIDATES if not options.only or kind.name in options.only.split(",")]
    for kind in wanted:
        if options.install and kind.missing():
            kind.install()
    kinds = [kind for kind in wanted if not kind.missing()]
    absent = [(kind.name, kind.missing()) for kind in wanted if kind.missing()]
    with tempfile.TemporaryDirectory(prefix="ph-bench-") as name:
        benchmark = Benchmark(kinds, sizes, trial.QUICK if options.quick else trial.SampleLimits(), Path(name))
        for number in range(runs):
            benchmark.run(number)
        benchmark.idle()
        histories = _numbers(options.events or ("1000,100000" if options.quick else "1000,1000000"))
        pages = benchmark.paging(histories) if histories and Pilothouse in kinds else []
        text = document(benchmark, absent, pages, runs)
    claims.publish(options, text, claimed(benchmark))
    return int(benchmark.ours_failed)


if __name__ == "__main__":
    sys.exit(main())
