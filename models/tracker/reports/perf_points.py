"""The figures of performance reports. Times are milliseconds; what a report lacks is None."""

from __future__ import annotations

import math

from attrs import fields, frozen

MAX_LABELS = 500
OTHERS = "(other labels)"
"""The label of everything beyond `MAX_LABELS`."""

_GAMMA = 1.02
_LOG_GAMMA = math.log(_GAMMA)
_SMALLEST_MS = 0.000_001


@frozen
class PerfPoint:
    """The figures of one label. `throughput` is per second, `error_pct` a percentage of the samples."""

    label: str
    samples: int
    mean: float | None = None
    min: float | None = None
    max: float | None = None
    p50: float | None = None
    p90: float | None = None
    p95: float | None = None
    p99: float | None = None
    throughput: float | None = None
    error_pct: float | None = None


FIGURES = tuple(field.name for field in fields(PerfPoint) if field.name != "label")


@frozen
class PerfReport:
    format: str
    digest: str
    points: tuple[PerfPoint, ...]
    dropped_labels: int = 0
    """How many labels were counted as `OTHERS`."""


class Histogram:
    """Counts of durations in buckets that grow by two per cent, so that a percentile is exact to one per cent."""

    def __init__(self) -> None:
        self.count = 0
        self.total = 0.0
        self.least = math.inf
        self.most = 0.0
        self._buckets: dict[int, int] = {}

    def add(self, ms: float) -> None:
        self.count += 1
        self.total += ms
        self.least = min(self.least, ms)
        self.most = max(self.most, ms)
        bucket = math.ceil(math.log(ms) / _LOG_GAMMA) if ms > _SMALLEST_MS else -(10**6)
        self._buckets[bucket] = self._buckets.get(bucket, 0) + 1

    def percentile(self, share: float) -> float | None:
        """The duration that a share of 0 to 1 of all does not exceed."""
        rank, seen = max(1, math.ceil(share * self.count)), 0
        for bucket in sorted(self._buckets):
            seen += self._buckets[bucket]
            if seen >= rank:
                middle = 0.0 if bucket == -(10**6) else 2 * _GAMMA**bucket / (1 + _GAMMA)
                return min(max(middle, self.least), self.most)
        return None

    def point(self, label: str) -> PerfPoint:
        if not self.count:
            return PerfPoint(label, 0)
        p50, p90, p95, p99 = (self.percentile(share) for share in (0.5, 0.9, 0.95, 0.99))
        return PerfPoint(label, self.count, self.total / self.count, self.least, self.most, p50, p90, p95, p99)
