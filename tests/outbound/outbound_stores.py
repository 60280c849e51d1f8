"""The store of the outbox for tests: a file, or tables in PostgreSQL."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TypeVar

from models.config.settings import Outbox
from models.outbound.tables import store

Result = TypeVar("Result")

SECOND = 1_000_000
NOW = 1_763_000_000 * SECOND
LIMITS = Outbox()


@contextlib.contextmanager
def open_outbox(path: Path, url: str | None = None) -> Iterator[None]:
    """Opens the store of an outbox."""
    store.open(path, url)
    store.close()
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
