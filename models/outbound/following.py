"""How far the events of each source were followed: the position moves in the transaction that keeps what follows."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from models.config.settings import OutboxSettings
from models.outbound import dropped, outbox, states
from models.outbound.channels import Channel, by_name
from models.outbound.dropped import Dropped
from models.outbound.events import SubjectEvent
from models.outbound.rules import Rule
from models.outbound.tables import store
from models.times import DAY

_GET = "SELECT position FROM follow WHERE name = ?"
_SET = "INSERT INTO follow (name, position) VALUES (?, ?) ON CONFLICT (name) DO UPDATE SET position = excluded.position"
_FORGOTTEN_AFTER_DAYS = 30
AWAITED_AT_ONCE = 500


def position(name: str) -> int | None:
    """The last event of a source that was followed; None before the first."""
    row = store.execute_sql(_GET, (name,)).fetchone()
    return None if row is None else int(row[0])


def start(name: str, newest: int, first: int | None = None) -> int:
    """Returns the position of a source, which begins at its newest event, or at `first` if that is given."""
    with store.atomic():
        at = position(name)
        if at is None and first is not None:
            at = min(first, newest)
            store.execute_sql(_SET, (name, at))
        elif at is None or at > newest:  # greater: the source was restored from a backup
            at = newest
            store.execute_sql(_SET, (name, at))
    return at


def move(name: str, last: int) -> None:
    """Sets the position of a source, in the caller's transaction."""
    store.execute_sql(_SET, (name, last))


def stop(names: Sequence[str]) -> None:
    """Forgets the positions of sources and the runs that are awaited: a later `start` reports nothing before it."""
    if not any(position(name) is not None for name in names):
        return
    with store.atomic():
        store.write_many("DELETE FROM follow WHERE name = ?", [(name,) for name in names])
        store.execute_sql("DELETE FROM run_wait")


def apply(name: str, after: int, last: int, events: Iterable[SubjectEvent], rules: Sequence[Rule], now: int) -> bool:
    """Notes the events of a source that come after `after`, up to `last`; False if another node did so before."""
    with store.atomic():
        if position(name) != after:
            return False
        for event in events:
            states.apply(rules, event, now)
        move(name, last)
    return True


def await_runs(name: str, after: int, last: int, runs: Iterable[int]) -> bool:
    """As `apply`, for changes of runs: the runs are judged later, when they are complete."""
    with store.atomic():
        if position(name) != after:
            return False
        store.write_many("INSERT INTO run_wait (run_id) VALUES (?) ON CONFLICT DO NOTHING", [(id,) for id in runs])
        move(name, last)
    return True


def awaited_runs(after: int = 0) -> list[int]:
    """The first runs with ids above `after` that changed and were not judged since, `AWAITED_AT_ONCE` at most."""
    query = "SELECT run_id FROM run_wait WHERE run_id > ? ORDER BY run_id LIMIT ?"
    return [int(id) for (id,) in store.execute_sql(query, (after, AWAITED_AT_ONCE))]


def judged(run: int, events: Iterable[SubjectEvent], rules: Sequence[Rule], now: int) -> None:
    """Notes the events of a run, which is not awaited any more."""
    with store.atomic():
        if not store.execute_sql("DELETE FROM run_wait WHERE run_id = ?", (run,)).rowcount:
            return  # another node judged it
        for event in events:
            states.apply(rules, event, now)


def note(event: SubjectEvent, rules: Sequence[Rule], now: int) -> None:
    """Notes an event that no source has."""
    with store.atomic():
        states.apply(rules, event, now)


def note_dropped(read: Callable[[Dropped], SubjectEvent], rules: Sequence[Rule], now: int) -> None:
    """Notes that a full outbox has dropped messages, where that is to be reported."""
    if dropped.next_at() is None:
        return
    with store.atomic():
        for one in dropped.take(now):
            states.apply(rules, read(one), now)


def flush(
    rules: Sequence[Rule], channels: Sequence[Channel], now: int, limits: OutboxSettings
) -> tuple[int, int | None]:
    """Puts what is due into the outbox. Returns how many messages, and when something else is due."""
    with store.atomic():
        due = states.due_messages({rule.id: rule for rule in rules}, now)
        found = states.messages(due, by_name(channels))
        outbox.add(found, now, limits)
        states.forget(now - _FORGOTTEN_AFTER_DAYS * DAY)
        return len(found), states.next_at()
