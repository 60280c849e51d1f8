"""Searches the tests of a project by name, and its failure clusters by text, for a bounded time."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any, Generic, TypeVar

from attrs import frozen

from models.paging import decode_cursor, encode_cursor
from models.tracker import clusters
from models.tracker.clusters import ClusterInfo
from models.tracker.tables import reports
from models.tracker.triage import TriageRule

Item = TypeVar("Item")

MAX_SECONDS = 2.0
_BATCH_ROWS = 2_000

_TESTS = """
    SELECT id, class_name, name, file FROM test WHERE project_id = ? AND id > ? ORDER BY id LIMIT ?"""


@frozen
class FoundTest:
    id: int
    class_name: str
    name: str
    file: str | None


@frozen
class Found(Generic[Item]):
    """`is_partial`: the time was over before the list was complete; the search goes on at `next_cursor`."""

    items: Sequence[Item]
    next_cursor: str | None
    is_partial: bool


def tests(project_id: int, q: str, cursor: str | None, limit: int) -> Found[FoundTest]:
    """The tests whose class and name contain all words of `q`, in any case. Raises `Invalid`."""
    (after,) = decode_cursor(cursor, int) if cursor else (0,)
    words, end = q.casefold().split(), time.monotonic() + MAX_SECONDS
    found: list[FoundTest] = []
    while True:
        rows: list[Any] = reports.execute_sql(_TESTS, (project_id, after, _BATCH_ROWS)).fetchall()
        for row in rows:
            text = f"{row[1]} {row[2]}".casefold()
            if all(word in text for word in words):
                if len(found) == limit:
                    return Found(found, encode_cursor(after), False)
                found.append(FoundTest(*row))
            after = row[0]
        if len(rows) < _BATCH_ROWS:
            return Found(found, None, False)
        if time.monotonic() > end:
            return Found(found, encode_cursor(after), True)


def failures(
    project_id: int, q: str, rules: Sequence[TriageRule], cursor: str | None, limit: int
) -> Found[ClusterInfo]:
    """The clusters whose texts contain all words of `q`, in any case, most occurrences first. Raises `Invalid`."""
    after = decode_cursor(cursor, int, int) if cursor else None
    words, end = q.casefold().split(), time.monotonic() + MAX_SECONDS
    found: list[ClusterInfo] = []
    while True:
        rows = clusters.listing(project_id, rules, _BATCH_ROWS, after)
        for row in rows:
            text = f"{row.signature} {row.type or ''} {row.message or ''}".casefold()
            if all(word in text for word in words):
                if len(found) == limit:
                    return Found(found, encode_cursor(*after) if after else None, False)
                found.append(row)
            after = clusters.place(row)
        if len(rows) < _BATCH_ROWS:
            return Found(found, None, False)
        if time.monotonic() > end:
            return Found(found, encode_cursor(*after) if after else None, True)
