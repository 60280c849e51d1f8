"""The outbox as rows: leases, retries, supersession and its bounds, in SQLite and in PostgreSQL."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from attrs import evolve
from outbound_stores import LIMITS, NOW, SECOND, in_store, open_outbox, written

from models.errors import Conflict, NotFound
from models.outbound import dropped, outbox
from models.outbound.dropped import Dropped
from models.outbound.outbox import Delivery, DeliveryOutcome, Message, State

HOUR = 3600 * SECOND
FAILED = DeliveryOutcome(False, 503, "busy")


@pytest.fixture(autouse=True)
def _store(tmp_path: Path, database_url: str | None) -> Iterator[None]:
    with open_outbox(tmp_path / "outbox.db", database_url):
        yield


def add(*targets: str, key: str | None = None, now: int = NOW, most: int = 10_000, payload: str = "x") -> list[int]:
    found = [Message("notify", target, {"text": payload}, key) for target in targets]
    return written(lambda: outbox.add(found, now, evolve(LIMITS, max_rows=most)))


def claim(now: int = NOW, owner: str = "a", most: int = 4) -> list[Delivery]:
    return in_store(lambda: outbox.claim(now, owner, most))


def finish(delivery: Delivery, outcome: DeliveryOutcome, owner: str = "a", now: int = NOW) -> State | None:
    return in_store(lambda: outbox.finish(delivery, outcome, owner, now))


def state(id: int) -> str:
    return in_store(lambda: outbox.get(id)).state


def test_a_message_is_sent_once_and_done() -> None:
    (id,) = add("one")
    (delivery,) = claim()
    assert (delivery.id, delivery.content, claim()) == (id, {"text": "x"}, [])
    assert finish(delivery, DeliveryOutcome(True, 204)) == "DONE"
    assert (claim(NOW + HOUR), in_store(lambda: outbox.get(id)).status) == ([], 204)


def test_one_message_of_each_target_is_sent_at_a_time_the_oldest_first() -> None:
    first, second, other = add("one", "one", "two")
    assert [delivery.id for delivery in claim()] == [first, other]
    assert claim(owner="b") == []
    assert [delivery.id for delivery in claim(NOW + 61 * SECOND, "b")] == [first, other], "the leases have ended"
    assert second


def test_two_nodes_never_lease_a_target_at_once() -> None:
    add(*(f"target {number % 8}" for number in range(80)))
    found: list[Delivery] = []
    barrier = threading.Barrier(4)

    def node(name: str) -> None:
        barrier.wait()
        for _ in range(4):
            found.extend(claim(owner=name, most=2))

    threads = [threading.Thread(target=node, args=(name,)) for name in "abcd"]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(delivery.target for delivery in found) == sorted(f"target {number}" for number in range(8))


def test_the_leases_of_a_node_end_when_it_starts_again() -> None:
    add("one", "two")
    claim(owner="a", most=1)
    claim(owner="b", most=1)
    in_store(lambda: outbox.release_own("a"))
    assert [delivery.target for delivery in claim(owner="c")] == ["one"]


def test_a_failure_is_tried_again_with_the_same_message_id_after_growing_times() -> None:
    add("one")
    now, ids, waits = NOW, set(), []
    for _ in range(14):
        (delivery,) = claim(now)
        ids.add(delivery.message_id)
        assert finish(delivery, FAILED, now=now) == "PENDING"
        again = in_store(lambda: outbox.get(delivery.id))  # noqa: B023 (called here)
        waits.append((again.next_at - now) / SECOND)
        now = again.next_at
    assert len(ids) == 1
    expected = [5, 10, 20, 40, 80, 160, 320, 640, 1280, 2560, 3600, 3600, 3600, 3600]
    assert all(0.8 * wait <= found <= 1.2 * wait for wait, found in zip(expected, waits, strict=True)), waits


def test_a_failure_delays_only_its_own_target_and_that_for_a_minute_at_most() -> None:
    add("one", "one", "two")
    for delivery in claim():
        finish(delivery, DeliveryOutcome(False, 503, "busy", retry_after=45.0) if delivery.target == "one" else FAILED)
    (id,) = add("three")
    assert [delivery.id for delivery in claim()] == [id]
    assert [delivery.target for delivery in claim(NOW + 44 * SECOND)] == ["two"]
    assert [delivery.target for delivery in claim(NOW + 46 * SECOND)] == ["one"]


@pytest.mark.parametrize(
    ("outcome", "expected"),
    [
        (outbox.outcome_of(503, "busy"), "PENDING"),
        (outbox.outcome_of(429, "busy"), "PENDING"),
        (outbox.outcome_of(408, "late"), "PENDING"),
        (outbox.outcome_of(425, "early"), "PENDING"),
        (DeliveryOutcome(False, None, "timed out"), "PENDING"),
        (outbox.outcome_of(404, "none"), "DEAD"),
        (outbox.outcome_of(410, "gone"), "DEAD"),
        (outbox.outcome_of(301, "moved"), "DEAD"),
        (outbox.outcome_of(503, "busy", 90_000.0), "DEAD"),
        (outbox.outcome_of(204, None), "DONE"),
    ],
)
def test_what_becomes_of_a_message_by_the_answer(outcome: DeliveryOutcome, expected: str) -> None:
    add("one")
    assert finish(claim()[0], outcome) == expected


def test_an_outcome_of_a_node_whose_lease_was_taken_over_is_ignored() -> None:
    _, other = add("one", "one")
    (late,) = claim(owner="a")
    (delivery,) = claim(NOW + 61 * SECOND, "b")
    assert finish(late, DeliveryOutcome(False, 404, "no", is_final=True), "a") is None, (
        "nothing is reported as given up"
    )
    assert finish(late, FAILED, "a") is None
    assert in_store(lambda: outbox.get(other)).next_at == NOW, "the target is not postponed"
    assert state(delivery.id) == "PENDING"
    assert finish(delivery, DeliveryOutcome(True, 200), "b") == "DONE"
    assert state(delivery.id) == "DONE"


def test_an_outcome_ends_no_later_lease_of_its_own_node() -> None:
    add("one", "one")
    (late,) = claim()
    (delivery,) = claim(NOW + 61 * SECOND)
    assert finish(late, DeliveryOutcome(True, 200)) is None
    assert claim(NOW + 62 * SECOND) == [], "the second request has not ended"
    assert finish(delivery, DeliveryOutcome(True, 200)) == "DONE"


def test_an_outcome_after_a_message_was_given_up_changes_nothing() -> None:
    add("one")
    (late,) = claim()
    after = NOW + int(LIMITS.max_age * SECOND)
    assert [dead.id for dead in in_store(lambda: outbox.prune(after, LIMITS))] == [late.id]
    assert finish(late, DeliveryOutcome(False, 404, "no", is_final=True)) is None, "it is reported once"
    assert state(late.id) == "DEAD"


@pytest.mark.parametrize("outcome", [FAILED, outbox.outcome_of(404, "none"), DeliveryOutcome(True, 204)])
def test_a_newer_message_of_a_key_supersedes_the_older(outcome: DeliveryOutcome) -> None:
    (old,) = add("one", key="status")
    (other,) = add("one", key="another")
    (delivery,) = claim(most=1)
    (new,) = add("one", key="status")
    assert (delivery.id, state(old), state(other), state(new)) == (old, "SUPERSEDED", "PENDING", "PENDING")
    assert claim() == [], "the request with the older one has not ended"
    assert finish(delivery, outcome) == state(old) == "SUPERSEDED", "it is not reported as given up"
    in_store(lambda: outbox.prune(NOW + (LIMITS.retain_days * 24 + 1) * HOUR, LIMITS))
    with pytest.raises(NotFound):
        state(old)


def test_a_dead_message_is_retried_by_hand_with_the_same_id() -> None:
    (id,) = add("one")
    delivery = claim()[0]
    finish(delivery, outbox.outcome_of(404, "none"))
    later = NOW + 48 * HOUR
    in_store(lambda: outbox.retry(id, later, LIMITS))
    (again,) = claim(later)
    assert again.message_id == delivery.message_id
    assert finish(again, FAILED, now=later) == "PENDING", "its age counts from the retry"
    with pytest.raises(Conflict, match="is PENDING: only a DEAD one can be retried"):
        in_store(lambda: outbox.retry(id, later, LIMITS))
    in_store(lambda: outbox.delete(id, later))
    with pytest.raises(NotFound):
        in_store(lambda: outbox.retry(id, later, LIMITS))


def test_what_is_too_old_is_given_up_and_what_is_done_is_deleted_in_the_end() -> None:
    old, done = add("one", "two")
    finish(next(one for one in claim() if one.id == done), DeliveryOutcome(True, 200))
    assert in_store(lambda: outbox.prune(NOW + HOUR, LIMITS)) == []
    (dead,) = in_store(lambda: outbox.prune(NOW + 25 * HOUR, LIMITS))
    assert (dead.id, dead.state, dead.error) == (old, "DEAD", "not delivered within server.outbox.max-age")
    in_store(lambda: outbox.prune(NOW + 15 * 24 * HOUR, LIMITS))
    with pytest.raises(NotFound):
        state(done)


def test_a_full_outbox_drops_what_is_done_then_the_oldest_of_the_largest_target() -> None:
    (done,) = add("done", most=10)
    finish(claim()[0], DeliveryOutcome(True, 200))
    (small,) = add("small", most=10)
    flood = [id for _ in range(50) for id in add("flood", most=10)]
    rows = in_store(lambda: outbox.listing(100, 2**62))
    assert len(rows) <= 11
    assert done not in {row.id for row in rows}
    assert state(small) == "PENDING", "a target that is flooded takes no room from another"
    dead = next(row for row in rows if row.state == "DEAD")
    assert dead.error == "the outbox was full (server.outbox.max-rows)"
    pending = [row.id for row in rows if row.state == "PENDING" and row.target == "flood"]
    assert pending == flood[:-10:-1]
    assert written(lambda: dropped.take(NOW)) == [Dropped("flood", None, len(flood) - len(pending))]
    add("flood", most=10)
    window = dropped.WINDOW_SECONDS * SECOND
    assert (written(lambda: dropped.take(NOW)), in_store(dropped.next_at)) == ([], NOW + window)
    assert written(lambda: dropped.take(NOW + window)) == [Dropped("flood", None, 1)]


def test_a_full_outbox_spares_what_is_being_sent() -> None:
    for _ in range(10):
        add("flood", most=10)
    (delivery,) = claim()
    for _ in range(30):
        add("flood", most=10)
        assert claim(owner="b") == [], "a second request to the target"
    assert state(delivery.id) == "PENDING"
    assert finish(delivery, DeliveryOutcome(True, 204)) == "DONE"


def test_a_superseded_message_that_is_being_sent_keeps_its_lease_in_a_full_outbox() -> None:
    add("one", key="status", most=10)
    (delivery,) = claim()
    for _ in range(20):
        add("one", key="status", most=10)
    assert (state(delivery.id), claim(owner="b")) == ("SUPERSEDED", [])


def test_what_is_being_sent_cannot_be_deleted_and_a_busy_target_gets_no_other() -> None:
    (id, _, other) = add("one", "one", "two")
    (delivery,) = claim(most=1)
    with pytest.raises(Conflict, match=f"the message {id} is being sent"):
        in_store(lambda: outbox.delete(id, NOW))
    later = NOW + 61 * SECOND  # the lease has ended, the request has not
    assert [found.id for found in in_store(lambda: outbox.claim(later, "a", 4, ["one"]))] == [other]
    assert in_store(lambda: outbox.next_at(later, ["one"])) == later + 60 * SECOND, "the end of the lease of two"
    finish(delivery, DeliveryOutcome(True, 204))
    in_store(lambda: outbox.delete(id, later))


def test_when_the_next_message_is_due() -> None:
    assert in_store(lambda: outbox.next_at(NOW)) is None
    add("one", "one")
    assert in_store(lambda: outbox.next_at(NOW)) == NOW
    (delivery,) = claim()
    assert in_store(lambda: outbox.next_at(NOW)) == NOW + 60 * SECOND, "the end of the lease, not the second message"
    finish(delivery, DeliveryOutcome(True, 200))
    assert in_store(lambda: outbox.next_at(NOW)) == NOW
    assert in_store(outbox.counts) == {"PENDING": 1, "DEAD": 0}


def test_lists_are_filtered() -> None:
    first, second = add("one", "two")
    found = in_store(lambda: outbox.listing(10, 2**62, "PENDING", "notify", None, "two"))
    assert [row.id for row in found] == [second]
    assert [row.id for row in in_store(lambda: outbox.listing(10, second))] == [first]
    assert in_store(lambda: outbox.listing(10, 2**62, "DEAD")) == []
    assert in_store(lambda: outbox.listing(10, 2**62, project_id=7)) == []
