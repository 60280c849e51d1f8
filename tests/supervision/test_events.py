"""The event log compared with a reference: a Python list that is sorted, filtered and sliced."""

from __future__ import annotations

import random
import sqlite3
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import peewee
import pytest

from models.errors import NotFound
from models.paging import Paging
from models.supervision import events
from models.supervision import tables as schema
from models.supervision.events import SORTABLE, Filter, StatusEvent
from models.supervision.process import STATUSES, Status
from models.supervision.tables import database

NAMES = ["web", "db", "Web", "größe", "a.b", "zzz", "web 2"]
FIELDS = {
    "id": "id",
    "pid": "pid",
    "event_time": "at",
    "process": "process",
    "start_time": "start",
    "end_time": "end",
    "exit_code": "exit_code",
    "new_status": "new",
    "old_status": "old",
    "uptime": "uptime",
}
FILTERS = [
    Filter(),
    Filter(status=Status.RUNNING),
    Filter(status=Status.UNHEALTHY),
    Filter(status=Status.UNKNOWN),
    Filter(process="web"),
    Filter(process="größe"),
    Filter(process="nobody"),
    Filter(status=Status.RUNNING, process="web"),
    Filter(text="E"),
    Filter(text="nobody"),
    Filter(status=Status.RUNNING, text="we"),
]


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Path]:
    path = tmp_path / "pilothouse.db"
    database.open(path)
    yield path
    database.close()


def some_events(chance: random.Random, first: int, count: int) -> list[StatusEvent]:
    """Events with many equal values and nulls; none has the status `unknown`."""
    statuses = [status for status in STATUSES if status is not Status.UNKNOWN]
    return [
        StatusEvent(
            id=id,
            at=chance.randrange(1_000_000, 1_000_001 + count // 3),
            process=chance.choice(NAMES),
            pid=chance.choice([None, *range(100, 110)]),
            start=chance.choice([None, *range(20)]),
            end=chance.choice([None, *range(20)]),
            exit_code=chance.choice([None, 0, 1, 137, 255]),
            new=chance.choice(statuses),
            old=chance.choice(STATUSES),
            uptime=chance.choice([0, 1, 59_999_999, 10**13]),
        )
        for id in range(first, first + count)
    ]


def write(entries: list[StatusEvent]) -> None:
    with database.atomic():
        events.append(entries)


def matches(which: Filter, entry: StatusEvent) -> bool:
    is_named = which.process in (None, entry.process) and which.text.lower() in entry.process.lower()
    return which.status in (None, entry.new) and is_named


def expected_page(entries: list[StatusEvent], paging: Paging, which: Filter) -> list[StatusEvent]:
    def key(entry: StatusEvent) -> tuple[bool, object, int]:
        value = getattr(entry, FIELDS[paging.sort])
        if isinstance(value, Status):
            value = STATUSES.index(value)
        return value is not None, value, entry.id

    chosen = sorted((e for e in entries if matches(which, e)), key=key, reverse=paging.descending)
    return chosen[paging.offset : paging.offset + paging.size]


@pytest.fixture(scope="module")
def many(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[StatusEvent]]:
    database.open(tmp_path_factory.mktemp("many") / "pilothouse.db")
    entries = some_events(random.Random(1), 1, 2000)
    write(entries)
    yield entries
    database.close()


@pytest.mark.parametrize("descending", [False, True], ids=["asc", "desc"])
@pytest.mark.parametrize("sort", sorted(SORTABLE))
def test_every_page_equals_the_sorted_and_sliced_list(many: list[StatusEvent], sort: str, descending: bool) -> None:
    for which in FILTERS:
        total = sum(matches(which, entry) for entry in many)
        for size in (1, 7, 20, 100):
            last = max(-(-total // size) - 1, 0)
            for number in {0, 1, last // 2, last // 2 + 1, max(last - 1, 0), last, last + 1, 2**31 - 1}:
                requested = Paging(number, size, sort, descending)
                page = events.page(requested, which)
                assert page.total == total
                assert list(page.content) == expected_page(many, requested, which), (requested, which)


def test_paging_returns_every_event_once(many: list[StatusEvent]) -> None:
    first = events.page(Paging(0, 100, "new_status"))
    found = [
        entry.id for number in range(first.pages) for entry in events.page(Paging(number, 100, "new_status")).content
    ]
    assert first.pages == 20
    assert sorted(found) == [entry.id for entry in many]


def test_statuses_sort_in_their_declared_order(store: Path) -> None:
    shuffled = random.Random(2).sample(STATUSES, len(STATUSES))
    write(
        [
            StatusEvent(n, 5, "web", None, None, None, None, new, Status.NOT_STARTED, 0)
            for n, new in enumerate(shuffled, 1)
        ]
    )
    page = events.page(Paging(0, 100, "new_status", descending=False))
    assert tuple(entry.new for entry in page.content) == STATUSES


def test_get_returns_an_event_as_it_was_written(store: Path) -> None:
    entries = some_events(random.Random(3), 1, 50)
    write(entries)
    assert [events.get(entry.id) for entry in entries] == entries


@pytest.mark.parametrize("id", [0, -1, 51, 2**63 - 1, -(2**63)])
def test_get_of_an_unassigned_id_raises_not_found(store: Path, id: int) -> None:
    write(some_events(random.Random(3), 1, 50))
    with pytest.raises(NotFound) as result:
        events.get(id)
    assert result.value.code == "EVENT_NOT_FOUND"


@pytest.mark.parametrize(("after", "limit"), [(0, 5), (0, 500), (17, 1), (17, 20), (99, 5), (100, 5), (5000, 5)])
def test_since_returns_later_events_oldest_first_up_to_a_limit(store: Path, after: int, limit: int) -> None:
    entries = some_events(random.Random(4), 1, 100)
    write(entries)
    assert events.since(after, limit) == [entry for entry in entries if entry.id > after][:limit]


def test_events_after_a_pruned_event_are_returned(store: Path) -> None:
    entries = some_events(random.Random(4), 1, 100)
    write(entries)
    while events.prune(0, 10):
        pass
    assert events.since(0, 500) == entries[-10:]  # the highest ids, whatever their time


def counted(entries: list[StatusEvent]) -> dict[str, int]:
    tally = Counter(entry.new.value for entry in entries)
    ordered = {status.value: tally[status.value] for status in STATUSES if tally[status.value]}
    return {"totalEvents": len(entries)} | ordered


def test_an_empty_history_counts_nothing(store: Path) -> None:
    assert events.counts() == {"totalEvents": 0}
    assert events.last_id() == 0
    assert events.page(Paging()).total == 0


def test_counts_are_correct_after_appending_and_pruning(store: Path) -> None:
    chance, kept, written = random.Random(5), list[StatusEvent](), 0
    for _ in range(60):
        new = some_events(chance, written + 1, chance.randrange(0, 40))
        written += len(new)
        write(new)
        kept = [*kept, *new]
        before, most, batch = (
            chance.choice([0, 1_000_004]),
            chance.choice([30, 200, 2**62]),
            chance.choice([1, 7, 1000]),
        )
        old = sum(entry.at < before for entry in kept)
        removed = min(old or max(0, len(kept) - most), batch)
        assert events.prune(before, most, batch) == removed
        if old:
            kept.sort(key=lambda entry: (entry.at, entry.id))
        kept = sorted(kept[removed:], key=lambda entry: entry.id)
        counts = events.counts()
        assert counts == counted(kept)
        assert list(counts) == list(counted(kept))
        for which in FILTERS:
            assert events.count(which) == sum(matches(which, entry) for entry in kept)
    assert written > 500


def test_prune_removes_at_most_one_batch(store: Path) -> None:
    write(some_events(random.Random(6), 1, 100))
    assert [events.prune(2**60, 10**6, batch=40) for _ in range(4)] == [40, 40, 20, 0]
    assert events.counts() == {"totalEvents": 0}


def test_ids_are_not_reused_after_the_newest_event_was_pruned(store: Path) -> None:
    write(some_events(random.Random(7), 1, 20))
    while events.prune(2**60, 10**6):
        pass
    assert events.last_id() == 20
    database.close()
    database.open(store)
    assert events.last_id() == 20
    write(some_events(random.Random(8), 21, 5))
    assert events.last_id() == 25


def test_events_of_one_transaction_are_written_whole_or_not_at_all(store: Path) -> None:
    write(some_events(random.Random(9), 1, 3))
    with pytest.raises(peewee.DatabaseError):
        write(some_events(random.Random(9), 2, 5))  # ids 2 and 3 are taken
    assert events.last_id() == 3
    assert events.counts()["totalEvents"] == 3


def schema_of(path: Path) -> list[tuple[str, ...]]:
    store = sqlite3.connect(path)
    try:
        return store.execute("SELECT type, name, sql FROM sqlite_master ORDER BY name").fetchall()
    finally:
        store.close()


def test_a_fresh_store_gets_every_table_and_its_version(store: Path) -> None:
    tables = {name for kind, name, _ in schema_of(store) if kind == "table"}
    assert {"event", "tally", "supervised", "house"} <= tables
    assert database.pragma("user_version") == len(database.steps)


def test_migrating_again_changes_nothing(store: Path) -> None:
    write(some_events(random.Random(10), 1, 10))
    before = schema_of(store)
    database.migrate()
    assert schema_of(store) == before
    assert events.count(Filter()) == 10


def test_store_of_a_newer_version_is_refused_and_unchanged(store: Path) -> None:
    newer = len(database.steps) + 1
    database.pragma("user_version", newer)
    before = schema_of(store)
    with pytest.raises(peewee.DatabaseError, match=f"version {newer}"):
        database.migrate()
    assert schema_of(store) == before
    assert database.pragma("user_version") == newer


def test_failed_migration_leaves_schema_and_version_unchanged(store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    done, before = len(database.steps), schema_of(store)
    step = ["CREATE TABLE extra (x INTEGER)", "CREATE TABLE event (x INTEGER)"]
    monkeypatch.setattr(database, "steps", [*database.steps, step])
    with pytest.raises(peewee.DatabaseError):
        database.migrate()
    assert schema_of(store) == before
    assert database.pragma("user_version") == done


def test_fact_is_created_once_and_kept(store: Path) -> None:
    value = schema.fact("instance")
    assert len(value) == 16
    assert schema.fact("instance", "another") == value
    assert schema.fact("colour", "red") == "red"
