"""Sends what is due in the outbox: at most four targets at a time, one request each. Idle, it sleeps until the next
is due or `wake` is called, which changes by other nodes do too (`supervisor/replication.py`).

What a target does delays only its own messages: each request has a time limit, and a failure postpones its target.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
from collections import Counter
from collections.abc import Awaitable, Callable
from typing import Any

import peewee
from attrs import evolve

from models.config import settings
from models.errors import Problem
from models.outbound import outbox
from models.outbound.outbox import Delivery, DeliveryOutcome, State
from models.outbound.tables import store
from models.times import SECOND
from supervisor.clock import Clock
from supervisor.scheduling import BackgroundTasks

log = logging.getLogger("outbox")

Run = Callable[[Callable[[], Any]], Awaitable[Any]]
Send = Callable[[Delivery], Awaitable[DeliveryOutcome]]

_RETRY_SECONDS = 5.0
_PRUNE_SECONDS = 60.0


class Dispatcher:
    def __init__(
        self,
        run: Run,
        clock: Clock,
        owner: str,
        limits: settings.OutboxSettings,
        send: Send,
        report_dead: Callable[[Delivery], None],
        on_dead: Callable[[], None],
    ) -> None:
        """`run` runs work on the store in a thread. `owner` names this node.

        `report_dead` is called in the transaction that gives a message up, `on_dead` after it.
        """
        self.results: Counter[tuple[str, str]] = Counter()
        """The tries by kind and result: delivered, retried, dead."""
        self.counts = {"PENDING": 0, "DEAD": 0}
        self._run = run
        self._clock = clock
        self._owner = owner
        self._limits = limits
        self._send = send
        self._report_dead = report_dead
        self._on_dead = on_dead
        self._wake = asyncio.Event()
        self._tasks = BackgroundTasks(
            lambda name, error: log.error("the task %s ended: %s", name, error, exc_info=error)
        )
        self._running: set[str] = set()
        self._pruned_at = -math.inf

    def wake(self) -> None:
        """Something was added, or changed by hand or by another node."""
        self._wake.set()

    def close(self) -> None:
        """Ends the requests. Their leases end when this node starts again."""
        self._tasks.cancel()

    async def watch(self) -> None:
        """Sends, for ever."""
        while True:
            self._wake.clear()
            try:
                wait = await self._round()
            except Exception as error:  # this task does not end
                is_known = isinstance(error, peewee.PeeweeException | Problem)
                log.warning("the outbox cannot be read: %s", error, exc_info=not is_known)
                wait = _RETRY_SECONDS
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(wait):
                    await self._wake.wait()

    async def _round(self) -> float | None:
        """Starts what is due; returns the seconds until something else is, None if nothing is known to be."""
        now, busy = self._clock.now(), sorted(self._running)
        free = outbox.MAX_TARGETS_AT_ONCE - len(busy)
        is_pruned = self._clock.since_boot() < self._pruned_at + _PRUNE_SECONDS

        def work() -> tuple[list[Delivery], int | None, dict[str, int], int]:
            dead = 0 if is_pruned else self._prune(now)
            claimed = outbox.claim(now, self._owner, free, busy) if free else []
            return claimed, outbox.next_at(now, busy), outbox.counts(), dead

        claimed, next_at, self.counts, dead = await self._run(work)
        if not is_pruned:
            self._pruned_at = self._clock.since_boot()
        if dead:
            self._on_dead()
        for delivery in claimed:
            self._running.add(delivery.target)
            self._tasks.start(self._deliver(delivery), f"delivery {delivery.id}")
        if next_at is None:
            return None
        return max(0.01, (next_at - now) / SECOND) if free > len(claimed) else _PRUNE_SECONDS

    def _prune(self, now: int) -> int:
        with store.atomic():
            dead = outbox.prune(now, self._limits)
            for delivery in dead:
                self._report_dead(delivery)
        return len(dead)

    async def _deliver(self, delivery: Delivery) -> None:
        """Sends a message. Its target has no other request of this node until the outcome is stored."""
        try:
            try:
                outcome = await self._send(delivery)
            except Exception as error:
                log.error("message %d cannot be sent: %s", delivery.id, error, exc_info=error)
                outcome = DeliveryOutcome(False, None, f"internal error: {type(error).__name__}")
            state = await self._finished(delivery, outcome, self._clock.now())
        finally:
            self._running.discard(delivery.target)
            self._wake.set()
        if state is None:
            return
        result = "delivered" if outcome.is_delivered else "dead" if state == "DEAD" else "retried"
        self.results[delivery.kind, result] += 1
        if state == "DEAD":
            log.warning("message %d to %s is given up: %s", delivery.id, delivery.target, outcome.error)
            self._on_dead()

    async def _finished(self, delivery: Delivery, outcome: DeliveryOutcome, now: int) -> State | None:
        """Stores an outcome, as often as it takes; returns the state of the message, as `outbox.finish`."""

        def finish() -> State | None:
            with store.atomic():
                state = outbox.finish(delivery, outcome, self._owner, now)
                if state == "DEAD":
                    self._report_dead(evolve(delivery, error=outcome.error))
            return state

        while True:
            try:
                state: State | None = await self._run(finish)
                return state
            except Exception as error:
                is_known = isinstance(error, peewee.PeeweeException | Problem)
                log.warning("the outcome of message %d cannot be stored: %s", delivery.id, error, exc_info=not is_known)
                await asyncio.sleep(_RETRY_SECONDS)
