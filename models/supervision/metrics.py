"""CPU and memory over time, in memory of a fixed size: the latest samples, and a row for each of the latest minutes.

The minutes of each process are stored too, for the time that is kept. A new minute takes the room of the oldest, so the
store has a fixed size. CPU is stored in hundredths of a per cent, memory in KiB, and the values of a process group only
where they differ from those of the process.
"""

from __future__ import annotations

import json
from array import array
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from itertools import groupby

from attrs import evolve, frozen

from models.supervision.tables import database

MAX_SAMPLES = 120
MAX_POINTS = 1440
MEMORY_MINUTES = 62
"""An hour, wherever in a minute it begins. The minutes before it are stored."""
_MINUTE_SECONDS = 60
_CPU_UNIT, _MEMORY_UNIT = 0.01, 1024
_UNITS = (_CPU_UNIT, _CPU_UNIT, _MEMORY_UNIT, _MEMORY_UNIT) * 2
_VALUES = "cpu_avg, cpu_max, memory_avg, memory_max, group_cpu_avg, group_cpu_max, group_memory_avg, group_memory_max"
_SAVE = (
    f"INSERT OR REPLACE INTO metric_minute (minute, process, {_VALUES})"  # noqa: S608 (our own names)
    " VALUES (?, (SELECT id FROM metric_process WHERE name = ?), ?, ?, ?, ?, ?, ?, ?, ?)"
)
_OF_PROCESS = (
    f"WITH RECURSIVE wanted (at) AS (VALUES (?) UNION ALL SELECT at + 1 FROM wanted WHERE at < ?)"  # noqa: S608 (as above)
    f" SELECT minute, {_VALUES} FROM metric_process CROSS JOIN wanted"
    " CROSS JOIN metric_minute ON minute = at AND process = id WHERE name = ? ORDER BY minute"
)
_BETWEEN = (
    f"SELECT name, minute, {_VALUES} FROM metric_minute JOIN metric_process ON id = process"  # noqa: S608 (our own names)
    " WHERE minute BETWEEN ? AND ? ORDER BY minute"
)
_DELETE = "DELETE FROM metric_minute WHERE minute BETWEEN ? AND ? AND process IN (SELECT value FROM json_each(?))"
_MINUTES_PER_DELETION = 60

Minute = tuple[int, Sequence[float]]
"""A minute since 1970 and its values: the fields of `MetricStep` after `at`, in their order."""


@frozen
class MetricStep:
    """CPU in percent of one processor and memory in bytes, over the step that begins at `at`, in seconds since 1970."""

    at: int
    cpu_avg: float
    cpu_max: float
    memory_avg: float
    memory_max: float
    group_cpu_avg: float
    group_cpu_max: float
    group_memory_avg: float
    group_memory_max: float

    @property
    def values(self) -> tuple[float, float, float, float, float, float, float, float]:
        return (
            self.cpu_avg, self.cpu_max, self.memory_avg, self.memory_max,
            self.group_cpu_avg, self.group_cpu_max, self.group_memory_avg, self.group_memory_max,
        )  # fmt: skip

    @property
    def alone(self) -> MetricStep:
        """The same, with the values of the process for those of its group."""
        return evolve(
            self,
            group_cpu_avg=self.cpu_avg,
            group_cpu_max=self.cpu_max,
            group_memory_avg=self.memory_avg,
            group_memory_max=self.memory_max,
        )


class _Rows:
    """The latest rows of `width` numbers, with their times."""

    def __init__(self, width: int) -> None:
        self._width = width
        self._times = array("q")
        self._values = array("f")

    def __len__(self) -> int:
        return len(self._times)

    def __iter__(self) -> Iterator[tuple[int, Sequence[float]]]:
        for row, at in enumerate(self._times):
            yield at, self._values[row * self._width : (row + 1) * self._width]

    def append(self, at: int, values: Sequence[float], keep: int) -> None:
        self._times.append(at)
        self._values.extend(values)
        excess = len(self._times) - keep
        if excess > 8:  # in batches, because each moves all rows
            del self._times[:excess], self._values[: excess * self._width]

    def latest(self, after: int) -> list[tuple[int, Sequence[float]]]:
        """The rows after that time, oldest first."""
        rows = list[tuple[int, Sequence[float]]]()
        for row in range(len(self._times) - 1, -1, -1):
            if self._times[row] <= after:
                break
            rows.append((self._times[row], self._values[row * self._width : (row + 1) * self._width]))
        return rows[::-1]

    def drop_after(self, at: int) -> None:
        while self._times and self._times[-1] > at:
            self._times.pop()
            del self._values[-self._width :]


class Series:
    """The metrics of one process with its group, or of the host. Times are seconds since 1970."""

    def __init__(self, keep_minutes: int = MEMORY_MINUTES) -> None:
        self.keep_minutes = keep_minutes
        self._samples, self._minutes = _Rows(4), _Rows(8)
        self._minute, self._count = 0, 0
        self._open = [0.0] * 8
        """Of the present minute the sum and the maximum of each value."""
        self._last: tuple[float, ...] = ()

    def add(self, at: float, cpu: float, memory: float, group_cpu: float = 0.0, group_memory: float = 0.0) -> None:
        """Adds a sample. If the clock was set back, minutes after it are forgotten."""
        minute = int(at) // _MINUTE_SECONDS
        if minute < self._minute - 1:
            self._minutes.drop_after(minute - 1)
            self._samples.drop_after(int(at))
            self._minute, self._count = 0, 0
        self.end_minute(minute)
        self._last = values = cpu, memory, group_cpu, group_memory
        self._samples.append(int(at), values, MAX_SAMPLES)
        self._minute = max(minute, self._minute)
        self._count += 1
        for place, value in enumerate(values):
            self._open[2 * place] += value
            self._open[2 * place + 1] = max(self._open[2 * place + 1], value)

    def repeat(self, at: float) -> None:
        """Adds the last sample again: nothing has changed since. Does nothing before the first one."""
        minute, last = int(at) // _MINUTE_SECONDS, self._last
        if minute != self._minute or not self._count:
            if last:
                self.add(at, *last)
            return
        self._samples.append(int(at), last, MAX_SAMPLES)
        self._count += 1
        for place, value in enumerate(last):
            self._open[2 * place] += value

    @property
    def minute_count(self) -> int:
        """The number of minutes in memory."""
        return len(self._minutes) + (self._count > 0)

    def end_minute(self, minute: int) -> None:
        """Closes the present minute if it is before `minute`."""
        if self._minute < minute:
            if self._count:
                self._minutes.append(self._minute, self._present(), self.keep_minutes)
            self._count, self._open = 0, [0.0] * 8

    def restore(self, minute: int, values: Sequence[float]) -> None:
        """Adds a stored minute, which is later than those before. Samples of the same minute are added to it."""
        self.end_minute(minute)
        self._minute, self._count, self._open = minute, 1, list(values)

    def _present(self) -> Sequence[float]:
        return [value if place % 2 else value / self._count for place, value in enumerate(self._open)]

    def minutes(self, after: int) -> list[Minute]:
        """The minutes after that one, with the present one."""
        rows = self._minutes.latest(after)
        if self._count and self._minute > after:
            rows.append((self._minute, self._present()))
        return rows

    def has(self, minute: int) -> bool:
        """Whether memory goes back to that minute."""
        first = next((at for at, _ in self._minutes), self._minute if self._count else minute + 1)
        return first <= minute

    def points(self, start: int, end: int, step: int, older: Iterable[Minute] = ()) -> list[MetricStep]:
        """One point for each `step` seconds from `start` to `end` that has data, and the latest of them at most.

        Steps shorter than a minute come from the latest samples, others from the minutes. `older` has minutes that may
        not be in memory any more.
        """
        if step < _MINUTE_SECONDS:
            rows = [(at, [value for value in values for _ in range(2)]) for at, values in self._samples]
            return _points([row for row in rows if start <= row[0] <= end], step)
        own = self.minutes(-1)[-self.keep_minutes :]
        before = [row for row in older if not own or row[0] < own[0][0]]
        timed = [(minute * _MINUTE_SECONDS, values) for minute, values in (*before, *own)]
        return _points([row for row in timed if start - _MINUTE_SECONDS < row[0] < end], step)[-MAX_POINTS:]


def _points(rows: Iterable[tuple[int, Sequence[float]]], step: int) -> list[MetricStep]:
    """One point for each step, with the average of the averages and the largest maximum."""
    points = list[MetricStep]()
    for place, group in groupby(rows, lambda row: row[0] // step):
        columns = list(zip(*(values for _, values in group), strict=True))
        values = [max(column) if index % 2 else sum(column) / len(column) for index, column in enumerate(columns)]
        points.append(MetricStep(place * step, *values))
    return points


def merged(points: Iterable[MetricStep], step: int) -> list[MetricStep]:
    """The same with a longer step."""
    return _points([(point.at, point.values) for point in points], step)


def step_for(seconds: int, points: int) -> int:
    """The smallest step of whole minutes that gives at most so many points."""
    return max(1, -(-seconds // (points * _MINUTE_SECONDS))) * _MINUTE_SECONDS


def peak(points: Iterable[MetricStep], low: float = 1.0) -> tuple[float, float]:
    """The largest CPU and memory of these points and their groups, at least `low`: the upper ends of the axes."""
    cpu, memory = low, low
    for point in points:
        cpu = max(cpu, point.cpu_max, point.group_cpu_max)
        memory = max(memory, point.memory_max, point.group_memory_max)
    return cpu, memory


# The store


def write(rows: Mapping[str, Iterable[Minute]], first: int, last: int) -> None:
    """Stores minutes of processes, by name, and deletes all before `first` and after `last`, in one transaction."""
    with database.atomic():
        database.execute_sql("DELETE FROM metric_minute WHERE minute < ?", (first,))
        database.execute_sql("DELETE FROM metric_minute WHERE minute > ?", (last,))
        database.write_many("INSERT OR IGNORE INTO metric_process (name) VALUES (?)", [(name,) for name in rows])
        values = [(minute, name, *_stored(values)) for name, minutes in rows.items() for minute, values in minutes]
        database.write_many(_SAVE, values)


def _stored(values: Sequence[float]) -> list[int | None]:
    numbers: list[int | None] = [round(value / unit) for value, unit in zip(values, _UNITS, strict=True)]
    return numbers if numbers[:4] != numbers[4:] else [*numbers[:4], None, None, None, None]


def _read(numbers: Sequence[int | None]) -> Sequence[float]:
    full = numbers if numbers[4] is not None else (*numbers[:4], *numbers[:4])
    return [(number or 0) * unit for number, unit in zip(full, _UNITS, strict=True)]


def of_process(name: str, first: int, last: int) -> list[Minute]:
    """The stored minutes of a process, from `first` to `last`."""
    return [(row[0], _read(row[1:])) for row in database.execute_sql(_OF_PROCESS, (first, last, name))]


def between(first: int, last: int) -> Iterator[tuple[str, int, Sequence[float]]]:
    """The stored minutes of all processes from `first` to `last`, by name, in their order."""
    for row in database.execute_sql(_BETWEEN, (first, last)):
        yield row[0], row[1], _read(row[2:])


def names() -> set[str]:
    """The processes that have stored minutes."""
    return {name for (name,) in database.execute_sql("SELECT name FROM metric_process")}


def forget(removed: Collection[str]) -> None:
    """Deletes the minutes of processes that are no longer configured.

    Each transaction deletes those of an hour, so that others write in between.
    """
    known = dict(database.execute_sql("SELECT name, id FROM metric_process").fetchall())
    ids = json.dumps([known[name] for name in removed if name in known])
    first = _first_minute(0)
    while first is not None:
        with database.atomic():
            database.execute_sql(_DELETE, (first, first + _MINUTES_PER_DELETION - 1, ids))
        first = _first_minute(first + _MINUTES_PER_DELETION)
    with database.atomic():
        database.execute_sql("DELETE FROM metric_process WHERE id IN (SELECT value FROM json_each(?))", (ids,))


def _first_minute(since: int) -> int | None:
    row = database.execute_sql("SELECT min(minute) FROM metric_minute WHERE minute >= ?", (since,)).fetchone()
    return None if row[0] is None else int(row[0])
