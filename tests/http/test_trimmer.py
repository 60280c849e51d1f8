"""When the server returns freed memory to the system."""

from __future__ import annotations

import asyncio
import contextlib
import resource
from collections.abc import Iterator

import pytest

from handlers.http import memory


@contextlib.contextmanager
def no_free_descriptor() -> Iterator[None]:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (0, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_memory_is_returned_after_a_time_without_free_descriptors(monkeypatch: pytest.MonkeyPatch) -> None:
    trims = list[int]()
    monkeypatch.setattr(memory, "trim", lambda: trims.append(memory.resident_bytes()))
    monkeypatch.setattr(memory, "_DELAY_SECONDS", 0.0)
    monkeypatch.setattr(memory, "_AGAIN_SECONDS", 0.0)

    async def work() -> None:
        trimmer = memory.Trimmer()
        trimmer._floor = 0
        with no_free_descriptor():
            trimmer.request_ended()
            while trimmer._timer is not None:
                await asyncio.sleep(0)
        assert trims == []
        trimmer.request_ended()
        while not trims:
            await asyncio.sleep(0)

    asyncio.run(asyncio.wait_for(work(), 60))
