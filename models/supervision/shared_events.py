"""The event history that several nodes share: each node's own events, copied there in the order of their commits.

An event has two numbers: the one of its node, and the one in the shared history, which grows in commit order without
gaps. The last number that a node has copied is written with its events, so a repeated copy adds nothing.
"""

from __future__ import annotations

from collections.abc import Sequence

from attrs import evolve

from models.storage.postgres import Postgres
from models.supervision import events
from models.supervision.events import StatusEvent
from models.supervision.tables import HISTORY

CHANNEL = "event"

_STEPS = [
    [
        *HISTORY,
        "CREATE TABLE node (instance TEXT PRIMARY KEY, copied INTEGER NOT NULL)",
    ],
]
_COPIED = "SELECT copied FROM node WHERE instance = ?"
_SET_COPIED = (
    "INSERT INTO node (instance, copied) VALUES (?, ?) ON CONFLICT (instance) DO UPDATE SET copied = excluded.copied"
)


def open_history(url: str) -> Postgres:
    """Raises `CannotUse`, `peewee.DatabaseError`."""
    store = Postgres("history", _STEPS)
    store.open(url)
    return store


def begin(store: Postgres, instance: str, newest: int) -> int:
    """The number of the last event that a node has copied; `newest` is the last event of the node.

    A node that was restored from a backup assigns numbers again; those count as new events.
    """
    with store.atomic():
        copied = _copied(store, instance)
        if copied > newest:
            store.execute_sql(_SET_COPIED, (instance, newest))
        return min(copied, newest)


def copy(store: Postgres, instance: str, entries: Sequence[StatusEvent], after: int | None = None) -> int:
    """Adds events of a node, oldest first, except those that were added before; returns the last number copied.

    Where that is less than `after`, the database was replaced by an older copy of itself, and nothing is added.
    """
    with store.atomic():
        copied = _copied(store, instance)
        if after is not None and copied < after:
            return copied
        fresh = [entry for entry in entries if entry.id > copied]
        if fresh:
            last = events.last_id(store)
            events.append([evolve(entry, id=last + place) for place, entry in enumerate(fresh, 1)], store)
            store.execute_sql(_SET_COPIED, (instance, fresh[-1].id))
            store.notify(CHANNEL)
    return max(copied, entries[-1].id)


def _copied(store: Postgres, instance: str) -> int:
    row = store.execute_sql(_COPIED, (instance,)).fetchone()
    return int(row[0]) if row else 0
