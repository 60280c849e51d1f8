"""Performance of runs: the figures of each label, and their change against earlier runs."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

from attrs import frozen

from models.tracker.gate import baseline
from models.tracker.reports.perf_points import FIGURES, PerfPoint
from models.tracker.tables import reports

BASELINES = 5

_POINTS = f"""
    SELECT run_id, label, {", ".join(FIGURES)} FROM perf_point WHERE run_id IN (SELECT value FROM json_each(?))
    ORDER BY run_id, label, id"""  # noqa: S608 (constants)
_HISTORY = """
    SELECT r.id FROM counted_run r WHERE r.project_id = :project AND r.flag = :flag
    AND r.id < :before AND EXISTS (SELECT 1 FROM perf_point t WHERE t.run_id = r.id AND
    (:label = '' OR t.label = :label)) ORDER BY r.id DESC LIMIT :most"""
_FLAGS = """
    SELECT DISTINCT r.flag FROM counted_run r WHERE r.project_id = ?
    AND EXISTS (SELECT 1 FROM perf_point t WHERE t.run_id = r.id) ORDER BY r.flag LIMIT 100"""


@frozen
class Compared:
    """A label of a run, with the medians of the baselines."""

    point: PerfPoint
    baseline_latency: float | None = None
    baseline_throughput: float | None = None

    @property
    def latency_change_pct(self) -> float | None:
        return _change(latency(self.point), self.baseline_latency)

    @property
    def throughput_change_pct(self) -> float | None:
        return _change(self.point.throughput, self.baseline_throughput)


def _change(now: float | None, before: float | None) -> float | None:
    return None if now is None or not before else 100 * (now - before) / before


def latency(point: PerfPoint) -> float | None:
    """The 95th percentile, or the mean where the report has none."""
    return point.mean if point.p95 is None else point.p95


def points(run_ids: Iterable[int]) -> dict[int, list[PerfPoint]]:
    """The points of runs by label; several reports of one label are one point."""
    found: dict[int, dict[str, PerfPoint]] = defaultdict(dict)
    for run, label, *figures in reports.execute_sql(_POINTS, (json.dumps(list(run_ids)),)):
        point, known = PerfPoint(label, *figures), found[run].get(label)
        found[run][label] = point if known is None else _united(known, point)
    return {run: list(labels.values()) for run, labels in found.items()}


def _united(one: PerfPoint, other: PerfPoint) -> PerfPoint:
    """Two reports of one label, from shards: the samples of both, and the worse of each percentile."""
    samples = one.samples + other.samples

    def average(a: float | None, b: float | None) -> float | None:
        if a is None or b is None:
            return b if a is None else a
        return (a * one.samples + b * other.samples) / samples if samples else (a + b) / 2

    def largest(a: float | None, b: float | None) -> float | None:
        return max((value for value in (a, b) if value is not None), default=None)

    throughputs = [value for value in (one.throughput, other.throughput) if value is not None]
    least = [value for value in (one.min, other.min) if value is not None]
    return PerfPoint(
        one.label, samples, average(one.mean, other.mean), min(least, default=None), largest(one.max, other.max),
        largest(one.p50, other.p50), largest(one.p90, other.p90), largest(one.p95, other.p95),
        largest(one.p99, other.p99), sum(throughputs) if throughputs else None,
        average(one.error_pct, other.error_pct),
    )  # fmt: skip


def baselines(run_id: int, base_branch: str) -> list[int]:
    """Runs with points of the baseline's commit and of the commits before it, one of each, the newest first."""
    return baseline.with_points(run_id, base_branch, BASELINES)


def compared(run_id: int, base_ids: Sequence[int]) -> list[Compared]:
    """The points of a run, each with the medians of its baselines."""
    from statistics import median  # 0.8 MB, for runs with performance reports only

    known = points([run_id, *base_ids])
    latencies, throughputs = defaultdict[str, list[float]](list), defaultdict[str, list[float]](list)
    for id in base_ids:
        for point in known.get(id, ()):
            if (ms := latency(point)) is not None:
                latencies[point.label].append(ms)
            if point.throughput is not None:
                throughputs[point.label].append(point.throughput)
    return [
        Compared(
            point,
            median(latencies[point.label]) if point.label in latencies else None,
            median(throughputs[point.label]) if point.label in throughputs else None,
        )
        for point in known.get(run_id, ())
    ]


def with_points(run_ids: Iterable[int]) -> Collection[int]:
    """Those of these runs that have points."""
    ids = list(run_ids)
    query = "SELECT DISTINCT run_id FROM perf_point WHERE run_id IN (SELECT value FROM json_each(?))"
    return {row[0] for row in reports.execute_sql(query, (json.dumps(ids),))} if ids else set()


def flags(project_id: int) -> list[str]:
    """The flags of a project's runs with points, sorted."""
    return [row[0] for row in reports.execute_sql(_FLAGS, (project_id,))]


def history(project_id: int, flag: str, label: str, before: int, limit: int) -> list[int]:
    """The ids of runs with points, below the id `before`, newest first. An empty label is any."""
    values: Mapping[str, Any] = {
        "project": project_id, "flag": flag, "label": label, "before": before, "most": limit
    }  # fmt: skip
    return [row[0] for row in reports.execute_sql(_HISTORY, values)]
