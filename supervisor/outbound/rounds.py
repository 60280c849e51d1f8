"""Rounds of work after each change, for the tasks that follow events."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable

import peewee

from models.errors import Problem

log = logging.getLogger("outbox")

RETRY_SECONDS = 5.0
_GATHER_SECONDS = 0.1
"""Events come in groups."""


async def watch_rounds(wake: asyncio.Event, run: Callable[[], Awaitable[float | None]], failure: str) -> None:
    """Runs a round now, after each `wake`, and after the seconds that the round before has returned; for ever.

    A round that fails is logged as `failure`, and tried again.
    """
    wait: float | None = 0.0
    while True:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(wait):
                await wake.wait()
                await asyncio.sleep(_GATHER_SECONDS)
        wake.clear()
        try:
            wait = await run()
        except Exception as error:  # this task does not end
            is_known = isinstance(error, peewee.PeeweeException | Problem | OSError)
            log.warning("%s: %s", failure, error, exc_info=not is_known)
            wait = RETRY_SECONDS
