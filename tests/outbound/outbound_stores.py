"""The store of the outbox for tests: a file, or tables in PostgreSQL."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypeVar

from models.config.settings import OutboxSettings
from models.outbound.tables import store
from supervisor.clock import Clock

Result = TypeVar("Result")

SECOND = 1_000_000
NOW = 1_763_000_000 * SECOND
LIMITS = OutboxSettings()


class FixedClock(Clock):
    """Its time is `time`, in microseconds."""

    time = NOW

    def now(self) -> int:
        return self.time


@contextlib.contextmanager
def open_outbox(path: Path, url: str | None = None) -> Iterator[None]:
    """Opens the store of an outbox."""
    store.open_for_workers(path, url)
    try:
        yield
    finally:
        store.close_all()


def in_store(work: Callable[[], Result]) -> Result:
    """Runs work on the store as a worker does."""
    return store.run_with_timeout(work, 20)


def written(work: Callable[[], Result]) -> Result:
    """Runs work in a transaction."""

    def run() -> Result:
        with store.atomic():
            return work()

    return in_store(run)


async def run_in_thread(work: Callable[[], Any]) -> Any:
    """As `Core.run`."""
    return await asyncio.to_thread(in_store, work)
