"""The event log: one row for each status change, counted as it is written, paged without counting.

A page by `eventTime` is one walk of one index, whatever the filter and the number of events. `store` is the file of
this host, or the database that several nodes share (`models/supervision/shared_events.py`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

from attrs import frozen

from models.errors import NotFound
from models.paging import Page, Paging
from models.supervision.process import STATUSES, Status
from models.supervision.tables import database

if TYPE_CHECKING:
    from models.storage.postgres import Postgres
    from models.storage.sqlite import SqliteStore

NEAR = 5_000
"""A page up to this offset costs a millisecond at most, so it may be read on the loop."""

_COLUMNS = "id, event_time, process, pid, start_time, end_time, exit_code, new_status, old_status, uptime"
SORTABLE = frozenset(_COLUMNS.split(", "))
"""The columns that pages may be sorted by."""

_INSERT = f"INSERT INTO event ({_COLUMNS}) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)"  # noqa: S608 (our own column names)
_COUNT = "INSERT INTO tally VALUES (?, ?) ON CONFLICT (scope) DO UPDATE SET events = tally.events + excluded.events"
_KEEP_LAST = "INSERT INTO tally VALUES (?, ?) ON CONFLICT (scope) DO UPDATE SET events = excluded.events"
_STARTS = (
    "SELECT start_time FROM event WHERE process = ? AND event_time BETWEEN ? AND ?"
    " ORDER BY event_time DESC, id DESC LIMIT ?"
)
_MAX_EVENTS_FOR_STARTS = 2000
_TOTAL, _LAST = "total", "last"
_MAX_NAMES = 1000
_NULLABLE = frozenset({"pid", "start_time", "end_time", "exit_code"})


@frozen
class StatusEvent:
    """One status change of one process. Times are microseconds since 1970 (UTC), `uptime` is a length in them."""

    id: int
    at: int
    process: str
    pid: int | None
    start: int | None
    end: int | None
    exit_code: int | None
    new: Status
    old: Status
    uptime: int

    def row(self) -> tuple[object, ...]:
        return (
            self.id, self.at, self.process, self.pid, self.start, self.end, self.exit_code,
            self.new.rank, self.old.rank, self.uptime,
        )  # fmt: skip


@frozen
class Filter:
    """Which events: all, or those that ended in a status, of one process, or of processes with `text` in their name.

    `since` and `until` are microseconds since 1970; both ends are included.
    """

    status: Status | None = None
    process: str | None = None
    text: str = ""
    since: int | None = None
    until: int | None = None

    @property
    def is_combined(self) -> bool:
        """Whether its events are not counted as they are written."""
        has_range = self.since is not None or self.until is not None
        return has_range or bool(self.text) or (self.status is not None and self.process is not None)

    def where(self, names: Sequence[str] = ()) -> tuple[str, list[object]]:
        """The condition and its values. `names` are the processes with `text` in their name."""
        conditions, values = list[str](), list[object]()
        if self.status is not None:
            conditions.append("new_status = ?")
            values.append(self.status.rank)
        if self.process is not None:
            conditions.append("process = ?")
            values.append(self.process)
        for sign, at in ((">=", self.since), ("<=", self.until)):
            if at is not None:
                conditions.append(f"event_time {sign} ?")
                values.append(at)
        if self.text:
            conditions.append(f"process IN ({', '.join('?' * len(names))})" if names else "1 = 0")
            values.extend(names)
        return f"WHERE {' AND '.join(conditions)}" if conditions else "", values

    @property
    def scope(self) -> str:
        """The scope under which the events of a filter that is not combined are counted."""
        if self.status is not None:
            return _status_scope(self.status.rank)
        return _TOTAL if self.process is None else _process_scope(self.process)


def _status_scope(rank: int) -> str:
    return f"status:{rank}"


def _process_scope(name: str) -> str:
    return f"process:{name}"


def _entry(row: Sequence[Any]) -> StatusEvent:
    id, at, process, pid, start, end, exit_code, new, old, uptime = row
    return StatusEvent(id, at, process, pid, start, end, exit_code, STATUSES[new], STATUSES[old], uptime)


def append(entries: Sequence[StatusEvent], store: SqliteStore | Postgres = database) -> None:
    """Writes `entries` and counts them. For use within `atomic()`."""
    store.write_many(_INSERT, [entry.row() for entry in entries])
    _count(store, [(entry.process, entry.new.rank) for entry in entries], 1)


def _count(store: SqliteStore | Postgres, events: Iterable[tuple[str, int]], sign: int) -> None:
    tally: Counter[str] = Counter()
    for process, rank in events:
        tally.update((_TOTAL, _process_scope(process), _status_scope(rank)))
    store.write_many(_COUNT, [(scope, sign * count) for scope, count in tally.items()])


def last_id(store: SqliteStore | Postgres = database) -> int:
    """The highest id ever assigned: ids grow across restarts and are not assigned again after pruning."""
    row = store.execute_sql("SELECT max(id) FROM event").fetchone()
    return max(row[0] or 0, _tallies(store, [_LAST]).get(_LAST, 0))


def count(which: Filter, store: SqliteStore | Postgres = database) -> int:
    if which.is_combined:
        condition, values = which.where(_names(which, store))
        return int(store.execute_sql(f"SELECT count(*) FROM event {condition}", values).fetchone()[0])  # noqa: S608
    return _tallies(store, [which.scope]).get(which.scope, 0)


def _names(which: Filter, store: SqliteStore | Postgres) -> list[str]:
    """The processes with the text of a filter in their name, at most so many."""
    if not which.text:
        return []
    prefix, text = _process_scope(""), which.text.lower()
    rows = store.execute_sql("SELECT scope FROM tally WHERE scope >= ? AND scope < ?", (prefix, "process;"))
    names = [row[0].removeprefix(prefix) for row in rows.fetchall() if row[0].startswith(prefix)]
    return sorted(name for name in names if text in name.lower())[:_MAX_NAMES]


def _tallies(store: SqliteStore | Postgres, scopes: Sequence[str]) -> dict[str, int]:
    places = ", ".join("?" * len(scopes))
    query = f"SELECT scope, events FROM tally WHERE scope IN ({places})"  # noqa: S608 (places alone)
    return dict(store.execute_sql(query, scopes).fetchall())


def counts(store: SqliteStore | Postgres = database) -> dict[str, int]:
    """`totalEvents`, and the number for each status that has occurred as a new status, in the seed's order."""
    scopes = [_TOTAL, *(_status_scope(status.rank) for status in STATUSES)]
    kept = _tallies(store, scopes)
    by_status = {status.value: kept.get(_status_scope(status.rank), 0) for status in STATUSES}
    return {"totalEvents": kept.get(_TOTAL, 0)} | {name: number for name, number in by_status.items() if number}


def get(id: int, store: SqliteStore | Postgres = database) -> StatusEvent:
    """Raises `NotFound`."""
    row = store.execute_sql(f"SELECT {_COLUMNS} FROM event WHERE id = ?", (id,)).fetchone()  # noqa: S608
    if row is None:
        raise NotFound(f"there is no event {id}", "EVENT_NOT_FOUND")
    return _entry(row)


def is_near_newest(paging: Paging, which: Filter | None = None) -> bool:
    """Whether this page is so cheap that it may be read on the loop."""
    is_indexed = which is None or not which.is_combined
    return is_indexed and paging.sort == "event_time" and paging.offset <= NEAR


def page(paging: Paging, which: Filter | None = None, store: SqliteStore | Postgres = database) -> Page[StatusEvent]:
    """One page of the events, read in one transaction so that the total fits the content."""
    which = which or Filter()
    with store.atomic("DEFERRED"):
        total = count(which, store)
        return Page(_content(store, paging, which, total), total, paging)


def _content(store: SqliteStore | Postgres, paging: Paging, which: Filter, total: int) -> list[StatusEvent]:
    """Walks the ids only, from whichever end is nearer, and then reads the rows of this page."""
    size, offset = min(paging.size, total - paging.offset), paging.offset
    if size <= 0:
        return []
    backwards = offset > total // 2
    if backwards:
        offset = total - offset - size
    condition, values = which.where(_names(which, store))
    column = paging.sort
    if column not in SORTABLE:
        raise ValueError(f"no column of events: {column}")
    walk, show = (_order_terms(column)[flag] for flag in (paging.descending != backwards, paging.descending))
    ids = f"SELECT id FROM event {condition} ORDER BY {walk} LIMIT ? OFFSET ?"  # noqa: S608
    query = f"SELECT {_COLUMNS} FROM event WHERE id IN ({ids}) ORDER BY {show}"  # noqa: S608
    return [_entry(row) for row in store.execute_sql(query, [*values, size, offset])]


def _order_terms(column: str) -> tuple[str, str]:
    """ORDER BY terms, ascending and descending; NULL sorts first, as in SQLite."""
    first, last = (" NULLS FIRST", " NULLS LAST") if column in _NULLABLE else ("", "")
    return f"{column} ASC{first}, id ASC", f"{column} DESC{last}, id DESC"


def since(id: int, limit: int, store: SqliteStore | Postgres = database) -> list[StatusEvent]:
    """The first `limit` events after `id`, oldest first: for streams that reconnect."""
    query = f"SELECT {_COLUMNS} FROM event WHERE id > ? ORDER BY id LIMIT ?"  # noqa: S608
    return [_entry(row) for row in store.execute_sql(query, (id, limit))]


def starts(process: str, since: int, until: int, most: int) -> list[int]:
    """When the process was started between these times: the newest of them, oldest first."""
    rows = database.execute_sql(_STARTS, (process, since, until, _MAX_EVENTS_FOR_STARTS)).fetchall()
    times = sorted({start for (start,) in rows if start is not None and since <= start <= until})
    return times[-most:]


def prune(before: int, most: int, batch: int = 1000, store: SqliteStore | Postgres = database) -> int:
    """Deletes up to `batch` of the events older than `before`, or beyond the newest `most`; returns how many.

    The highest id stays stored, so that no id is assigned twice.
    """
    with store.atomic():
        surplus = max(0, count(Filter(), store) - most)
        old = "SELECT id, process, new_status FROM event WHERE event_time < ? ORDER BY event_time, id LIMIT ?"
        rows = store.execute_sql(old, (before, batch)).fetchall()
        if not rows and surplus:
            oldest = "SELECT id, process, new_status FROM event ORDER BY id LIMIT ?"  # a clock may have been set back
            rows = store.execute_sql(oldest, (min(surplus, batch),)).fetchall()
        if rows:
            highest = last_id(store)
            store.write_many("DELETE FROM event WHERE id = ?", [(row[0],) for row in rows])
            _count(store, [(row[1], row[2]) for row in rows], -1)
            store.execute_sql("DELETE FROM tally WHERE events <= 0")
            store.execute_sql(_KEEP_LAST, (_LAST, highest))
    return len(rows)
