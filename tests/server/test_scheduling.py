"""Cooperative scheduling: group work yields to the loop."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from supervisor import scheduling


def iterations_until_called(do: Callable[[Callable[[], None]], None]) -> int:
    """The number of loop iterations until `do` calls its argument."""

    async def count() -> int:
        done: list[bool] = []
        do(lambda: done.append(True))
        passed = 0
        while not done:
            await asyncio.sleep(0)
            passed += 1
        return passed

    return asyncio.run(count())


def test_call_later_leaves_eight_iterations_to_other_work() -> None:
    assert iterations_until_called(scheduling.call_later) in (8, 9)


def test_yielding_lock_yields_before_its_next_holder() -> None:
    order: list[str] = []

    async def work() -> None:
        lock = scheduling.YieldingLock()

        async def one(name: str) -> None:
            async with lock:
                order.append(name)

        async def others() -> None:
            while len(order) < 5:
                order.append(".")
                await asyncio.sleep(0)

        await asyncio.gather(one("a"), others(), one("b"))

    asyncio.run(work())
    assert order.index("b") - order.index("a") > 3, order


def test_exception_of_a_background_task_is_reported() -> None:
    reported: list[tuple[str, str]] = []

    async def fail() -> None:
        raise ValueError("odd")

    async def work() -> None:
        tasks = scheduling.BackgroundTasks(lambda name, error: reported.append((name, str(error))))
        failing, waiting = tasks.start(fail(), "maintenance"), tasks.start(asyncio.sleep(3600), "wait")
        await asyncio.wait({failing})
        tasks.cancel()
        await asyncio.wait({waiting})
        assert waiting.cancelled()

    asyncio.run(work())
    assert reported == [("maintenance", "odd")]
