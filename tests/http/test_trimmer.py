"""When the server returns freed memory to the system."""

from __future__ import annotations

import asyncio
import contextlib
import resource
from collections.abc import Iterator

import pytest
from conftest import until

from handlers.http import memory

MIB = 1024**2


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
        trimmer._floor = trimmer._rest = 0
        with no_free_descriptor():
            trimmer.request_ended()
            while trimmer._timer is not None:
                await asyncio.sleep(0)
        assert trims == []
        trimmer.request_ended()
        while not trims:
            await asyncio.sleep(0)

    asyncio.run(asyncio.wait_for(work(), 60))


def test_trims_under_load_do_not_keep_the_one_at_rest_from_being_made(monkeypatch: pytest.MonkeyPatch) -> None:
    resident, trims = [50 * MIB], list[int]()
    monkeypatch.setattr(memory, "resident_bytes", lambda: resident[-1])
    monkeypatch.setattr(memory, "trim", lambda: trims.append(resident[-1]))
    monkeypatch.setattr(memory, "_AGAIN_SECONDS", 3600.0)

    async def work() -> None:
        trimmer = memory.Trimmer()
        resident.append(90 * MIB)  # with the buffers of requests
        while len(trims) < 30:
            floor = trimmer._floor
            trimmer._is_due = True
            trimmer._check()
            await until(lambda: trimmer._floor == floor + MIB)  # noqa: B023 (awaited at once)
        resident.append(60 * MIB)
        trimmer._check()
        await asyncio.get_running_loop().shutdown_default_executor()
        assert trims[30:] == [60 * MIB]

    asyncio.run(asyncio.wait_for(work(), 60))
