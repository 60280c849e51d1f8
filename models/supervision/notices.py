"""Notices: events of a process that do not change its status, stored and read in pages."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from attrs import Factory, frozen

from models.paging import Page, Paging
from models.supervision.tables import database

_INSERT = "INSERT INTO notice (id, time, name, process, message, facts) VALUES (?, ?, ?, ?, ?, ?)"
_COLUMNS = "id, time, name, process, message, facts"


@frozen
class Notice:
    """`name` has a dot, as `process.gave_up`; `at` is microseconds since 1970."""

    id: int
    at: int
    name: str
    process: str | None
    message: str
    facts: Mapping[str, Any] = Factory(dict)

    def row(self) -> tuple[object, ...]:
        facts = json.dumps(self.facts, ensure_ascii=False, separators=(",", ":"))
        return self.id, self.at, self.name, self.process, self.message, facts


def _notice(row: Sequence[Any]) -> Notice:
    id, at, name, process, message, facts = row
    return Notice(id, at, name, process, message, json.loads(facts))


def last_id() -> int:
    """The highest id ever given: ids are not given again after pruning."""
    row = database.execute_sql("SELECT seq FROM sqlite_sequence WHERE name = 'notice'").fetchone()
    return int(row[0]) if row else 0


def append(notices: Sequence[Notice]) -> None:
    """Writes notices."""
    with database.atomic():
        database.write_many(_INSERT, [notice.row() for notice in notices])


def since(id: int, limit: int) -> list[Notice]:
    """The first `limit` notices after `id`, oldest first."""
    query = f"SELECT {_COLUMNS} FROM notice WHERE id > ? ORDER BY id LIMIT ?"  # noqa: S608 (our own column names)
    return [_notice(row) for row in database.execute_sql(query, (id, limit))]


def page(paging: Paging, name: str | None = None, process: str | None = None) -> Page[Notice]:
    """One page of the notices of a name, of a process, of both or of all, read in one transaction."""
    given = {"name": name, "process": process}
    values = [value for value in given.values() if value is not None]
    condition = " AND ".join(f"{column} = ?" for column, value in given.items() if value is not None) or "1"
    way = "DESC" if paging.descending else "ASC"
    query = f"SELECT {_COLUMNS} FROM notice WHERE {condition} ORDER BY time {way}, id {way} LIMIT ? OFFSET ?"  # noqa: S608
    with database.atomic("DEFERRED"):
        counted = database.execute_sql(f"SELECT count(*) FROM notice WHERE {condition}", values)  # noqa: S608
        (total,) = counted.fetchone()
        rows = database.execute_sql(query, [*values, paging.size, paging.offset]).fetchall()
    return Page([_notice(row) for row in rows], total, paging)


def prune(most: int, batch: int = 1000) -> int:
    """Deletes up to `batch` of the oldest notices beyond the newest `most`; returns how many."""
    with database.atomic():
        (total,) = database.execute_sql("SELECT count(*) FROM notice").fetchone()
        surplus: int = min(max(0, total - most), batch)
        if surplus:
            oldest = "DELETE FROM notice WHERE id IN (SELECT id FROM notice ORDER BY id LIMIT ?)"
            database.execute_sql(oldest, (surplus,))
    return surplus
