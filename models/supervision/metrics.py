"""CPU and memory over time, in memory of a fixed size: the latest samples, and one row for each minute."""

from __future__ import annotations

from array import array
from collections import deque
from collections.abc import Iterable, Iterator, Sequence

from attrs import frozen

MAX_SAMPLES = 120
MAX_STARTS = 100
MAX_POINTS = 1440
_MINUTE_SECONDS = 60
_COLUMNS = 4
"""CPU average and maximum, memory average and maximum."""


@frozen
class Point:
    """CPU in percent of one processor and memory in bytes, over the step that begins at `at`, in seconds since 1970."""

    at: int
    cpu_avg: float
    cpu_max: float
    memory_avg: float
    memory_max: float


class Series:
    """The metrics of one process or of the host. Times are seconds since 1970 and never go back."""

    def __init__(self, keep_minutes: int) -> None:
        self.starts: deque[int] = deque(maxlen=MAX_STARTS)
        """When the process was started."""
        self._samples: deque[tuple[float, float, float]] = deque(maxlen=MAX_SAMPLES)
        self.keep_minutes = keep_minutes
        self._minutes = array("L")
        self._values = array("f")
        self._sum = [0.0, 0.0, 0.0, 0.0]
        self._minute, self._count = 0, 0

    def add(self, at: float, cpu: float, memory: float) -> None:
        """Adds a sample. A sample of an earlier minute than the last is counted in the last."""
        self._samples.append((at, cpu, memory))
        minute = max(self._minute, int(at) // _MINUTE_SECONDS)
        if minute != self._minute:
            self._close_minute()
            self._minute, self._count, self._sum = minute, 0, [0.0, 0.0, 0.0, 0.0]
        self._count += 1
        self._sum[0] += cpu
        self._sum[1] = max(self._sum[1], cpu)
        self._sum[2] += memory
        self._sum[3] = max(self._sum[3], memory)

    def _close_minute(self) -> None:
        if not self._count:
            return
        cpu, cpu_max, memory, memory_max = self._sum
        self._minutes.append(self._minute)
        self._values.extend((cpu / self._count, cpu_max, memory / self._count, memory_max))
        excess = len(self._minutes) - self.keep_minutes
        if excess > max(8, self.keep_minutes // 16):  # in batches, because each moves all rows
            del self._minutes[:excess], self._values[: excess * _COLUMNS]

    def points(self, start: int, end: int, step: int) -> list[Point]:
        """One point for each `step` seconds from `start` to `end` that has data.

        Steps shorter than a minute come from the latest samples, others from the minutes.
        """
        points = list[Point]()
        group, place = list[Sequence[float]](), 0
        for at, values in self._sample_rows() if step < _MINUTE_SECONDS else self._minute_rows():
            if not start - step < at <= end:
                continue
            if at // step != place and group:
                points.append(_merged(place * step, group))
                group = []
            place = at // step
            group.append(values)
        if group:
            points.append(_merged(place * step, group))
        return points

    def _sample_rows(self) -> Iterator[tuple[int, Sequence[float]]]:
        for at, cpu, memory in self._samples:
            yield int(at), (cpu, cpu, memory, memory)

    def _minute_rows(self) -> Iterator[tuple[int, Sequence[float]]]:
        first = max(0, len(self._minutes) - self.keep_minutes)
        for row in range(first, len(self._minutes)):
            yield self._minutes[row] * _MINUTE_SECONDS, self._values[row * _COLUMNS : (row + 1) * _COLUMNS]
        if self._count:
            cpu, cpu_max, memory, memory_max = self._sum
            yield self._minute * _MINUTE_SECONDS, (cpu / self._count, cpu_max, memory / self._count, memory_max)


def _merged(at: int, rows: Sequence[Sequence[float]]) -> Point:
    count = len(rows)
    return Point(
        at,
        sum(row[0] for row in rows) / count,
        max(row[1] for row in rows),
        sum(row[2] for row in rows) / count,
        max(row[3] for row in rows),
    )


def step_for(seconds: int, points: int) -> int:
    """The smallest step of whole minutes that gives at most so many points."""
    return max(1, -(-seconds // (points * _MINUTE_SECONDS))) * _MINUTE_SECONDS


def peak(points: Iterable[Point], low: float = 1.0) -> tuple[float, float]:
    """The largest CPU and memory of these points, at least `low`: the upper ends of the axes."""
    cpu, memory = low, low
    for point in points:
        cpu, memory = max(cpu, point.cpu_max), max(memory, point.memory_max)
    return cpu, memory
