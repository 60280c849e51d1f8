"""The dispatcher: one request to a target at a time, and what is given up is reported in the same transaction."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import peewee
import pytest
from outbound_stores import LIMITS, NOW, SECOND, FixedClock, in_store, open_outbox, run_in_thread, written

from models.outbound import outbox
from models.outbound.outbox import Delivery, DeliveryOutcome, Message
from supervisor.outbound import dispatcher
from supervisor.outbound.dispatcher import Dispatcher

Send = Callable[[Delivery], Awaitable[DeliveryOutcome]]
REFUSED = DeliveryOutcome(False, 404, "no hook", is_final=True)


@pytest.fixture(autouse=True)
def _store(tmp_path: Path, database_url: str | None, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(dispatcher, "_RETRY_SECONDS", 0.01)
    with open_outbox(tmp_path / "outbox.db", database_url):
        yield


class Reports:
    """Reports of what was given up. The first cannot be stored."""

    def __init__(self) -> None:
        self.errors: list[str | None] = []

    def report(self, delivery: Delivery) -> None:
        self.errors.append(delivery.error)
        if len(self.errors) == 1:
            raise peewee.OperationalError("database is locked")


def add() -> int:
    return int(written(lambda: outbox.add([Message("notify", "one", {"text": "x"})], NOW, LIMITS))[0])


def state(id: int) -> str:
    return in_store(lambda: outbox.get(id)).state


async def until(sender: Dispatcher, id: int, expected: str) -> None:
    """Sends until a message has this state."""
    watching = asyncio.create_task(sender.watch())
    async with asyncio.timeout(30):
        while await asyncio.to_thread(state, id) != expected:
            sender.wake()
            await asyncio.sleep(0.01)
    sender.close()
    watching.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await watching


def make(send: Send, reports: Reports, clock: FixedClock) -> Dispatcher:
    return Dispatcher(run_in_thread, clock, "node", LIMITS, send, reports.report, lambda: None)


def test_a_message_is_given_up_together_with_its_report() -> None:
    """A report that cannot be stored is not lost: the message is not given up either."""

    async def refuse(_: Delivery) -> DeliveryOutcome:
        return REFUSED

    id, reports = add(), Reports()
    asyncio.run(until(make(refuse, reports, FixedClock()), id, "DEAD"))
    assert reports.errors == ["no hook", "no hook"]


def test_a_message_that_is_too_old_is_given_up_together_with_its_report() -> None:
    async def unused(_: Delivery) -> DeliveryOutcome:
        raise AssertionError

    id, reports, clock = add(), Reports(), FixedClock()
    clock.time += int(LIMITS.max_age * SECOND)
    asyncio.run(until(make(unused, reports, clock), id, "DEAD"))
    assert reports.errors == ["not delivered within server.outbox.max-age"] * 2


def test_a_target_is_busy_until_the_outcome_is_stored(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where that takes longer than the lease."""
    sent: list[int] = []
    rounds: list[int] = []
    clock, finish = FixedClock(), outbox.finish

    async def send(delivery: Delivery) -> DeliveryOutcome:
        sent.append(delivery.id)
        return DeliveryOutcome(True, 204)

    def fail_first(*values: Any) -> Any:
        rounds.append(1)
        if len(rounds) < 20:
            clock.time += (outbox.LEASE_SECONDS + 1) * SECOND
            raise LookupError("not expected")
        return finish(*values)

    monkeypatch.setattr(outbox, "finish", fail_first)
    id, sender = add(), make(send, Reports(), clock)
    asyncio.run(until(sender, id, "DONE"))
    assert sent == [id]
