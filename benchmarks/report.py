"""The figures of all runs as Markdown: median, range, and the ratio to Pilothouse in the same run."""

import os
import platform
import re
import statistics
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path

PILOTHOUSE = "Pilothouse"


@dataclass(frozen=True)
class Metric:
    key: str
    title: str
    digits: int = 2


METRICS = (
    Metric("launch", "launch → all executing, s", 3),
    Metric("start", "start all (up already) → all executing, s", 3),
    Metric("stop", "stop all → the last has ended, s", 3),
    Metric("crash", "kill -9 → replacement executing, ms (median)"),
    Metric("crash_worst", "kill -9 → replacement executing, ms (worst)"),
    Metric("status_one", "status of all, one connection, ms"),
    Metric("status_many", "status of all, 8 clients, requests/s", 0),
    Metric("busy_median", "status of one while all stop and start, ms (median)"),
    Metric("busy_p99", "status of one while all stop and start, ms (p99)"),
    Metric("busy_worst", "status of one while all stop and start, ms (worst)"),
    Metric("idle_cpu", "idle: processor, %", 3),
    Metric("idle_wakeups", "idle: wakeups/s", 1),
    Metric("pss", "memory PSS, MiB", 1),
    Metric("rss", "memory RSS, MiB", 1),
    Metric("rss_after", "memory RSS after all measurements, MiB", 1),
    Metric("threads", "threads", 0),
)

LIMITS = (
    Metric("spawn_rate", "subprocess.Popen, spawns/s", 0),
    Metric("spawn_all", "{n} times Popen → all executing, s", 3),
    Metric("kill_all", "{n} times killpg → the last has ended, s", 3),
    Metric("exit_notice", "exit → pidfd callback, µs", 0),
    Metric("respawn", "kill -9 → pidfd → Popen → executing, ms"),
    Metric("hello_one", "Tornado's minimal JSON response, 1 client, ms", 3),
    Metric("hello_one_rate", "Tornado's minimal JSON response, 1 client, requests/s", 0),
    Metric("hello_many", "Tornado's minimal JSON response, 8 clients, requests/s", 0),
    Metric("bare_many", "maximum of the load generator (asyncio.Protocol, 8 clients), requests/s", 0),
)


@dataclass
class Figures:
    """figures[metric, children, candidate] = one value for each run that measured it."""

    values: dict[tuple[str, int, str], dict[int, float]] = field(default_factory=lambda: defaultdict(dict))

    def put(self, run: int, metric: str, children: int, candidate: str, value: float) -> None:
        self.values[metric, children, candidate][run] = value

    def of(self, metric: str, children: int, candidate: str) -> list[float]:
        return list(self.values.get((metric, children, candidate), {}).values())

    def median(self, metric: str, children: int, candidate: str) -> float | None:
        found = self.of(metric, children, candidate)
        return statistics.median(found) if found else None

    def ratio(self, metric: str, children: int, candidate: str) -> float | None:
        """Returns the median over the runs of the candidate's value divided by that of Pilothouse."""
        values = self.values.get((metric, children, PILOTHOUSE), {})
        others = self.values.get((metric, children, candidate), {})
        pairs = [others[run] / values[run] for run in others if values.get(run)]
        return statistics.median(pairs) if pairs else None

    def cell(self, metric: Metric, children: int, candidate: str) -> str:
        found = self.of(metric.key, children, candidate)
        if not found:
            return ""
        text = f"{statistics.median(found):.{metric.digits}f}"
        if len(found) > 1:
            text += f" ({min(found):.{metric.digits}f}..{max(found):.{metric.digits}f})"
        ratio = None if candidate == PILOTHOUSE else self.ratio(metric.key, children, candidate)
        return text if ratio is None else f"{text} **x {ratio:.3g}**"


def row(*cells: str) -> str:
    return "| " + " | ".join(cells) + " |"


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    return "\n".join([row(*head), row(*("---" for _ in head)), *(row(*cells) for cells in rows)])


def comparison(figures: Figures, sizes: Sequence[int], names: Sequence[str]) -> str:
    rows = []
    for metric in METRICS:
        title = metric.title
        for children in sizes:
            cells = [figures.cell(metric, children, name) for name in names]
            if any(cells):
                rows.append([title, str(children), *cells])
                title = ""
    return table(["", "children", *names], rows)


def limits(figures: Figures, children: int) -> str:
    rows = [
        [metric.title.format(n=children), figures.cell(metric, 0, "limit")]
        for metric in LIMITS
        if figures.of(metric.key, 0, "limit")
    ]
    return table(["limit", "median (range)"], rows)


def machine() -> str:
    """The machine, without its name or paths."""
    info = Path("/proc/cpuinfo").read_text()
    model = re.search(r"^model name\s*:\s*(.+)$", info, re.MULTILINE)
    load = ", ".join(f"{value:.1f}" for value in os.getloadavg())
    return (
        f"{datetime.now(UTC):%Y-%m-%d %H:%M} UTC; {model[1] if model else platform.machine()}, {os.cpu_count()} cores; "
        f"Linux {platform.release()}; Python {platform.python_version()}; load {load} at the end"
    )
