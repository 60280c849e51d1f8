"""The minutes of the metrics of each process, stored: a row for each process and minute of the window that is kept.

A new minute takes the room of the oldest, so the store has a fixed size. CPU is stored in hundredths of a per cent,
memory in KiB, and the values of a process group only where they differ from those of the process.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence

from models.supervision.metrics import Minute
from models.supervision.tables import database

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
