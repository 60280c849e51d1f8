"""Whose turn of the loop it is: group work leaves some to everybody else."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from supervisor import scheduling


def turns_taken(do: Callable[[Callable[[], None]], None]) -> int:
    """How many turns of the loop pass until `do` calls what it is given."""

    async def count() -> int:
        done: list[bool] = []
        do(lambda: done.append(True))
        passed = 0
        while not done:
            await asyncio.sleep(0)
            passed += 1
        return passed

    return asyncio.run(count())


def test_other_work_gets_eight_iterations_before_the_next_piece() -> None:
    assert turns_taken(scheduling.call_later) in (8, 9)


def test_those_inside_go_one_after_another() -> None:
    order: list[str] = []

    async def work() -> None:
        line = scheduling.YieldingLock()

        async def one(name: str) -> None:
            async with line:
                order.append(name)

        async def others() -> None:
            while len(order) < 5:
                order.append(".")
                await asyncio.sleep(0)

        await asyncio.gather(one("a"), others(), one("b"))

    asyncio.run(work())
    assert order.index("b") - order.index("a") > 3, order


def test_what_a_background_task_raises_is_reported() -> None:
    reported: list[tuple[str, str]] = []

    async def fail() -> None:
        raise ValueError("odd")

    async def work() -> None:
        tasks = scheduling.BackgroundTasks(lambda name, error: reported.append((name, str(error))))
        failing, waiting = tasks.start(fail(), "upkeep"), tasks.start(asyncio.sleep(3600), "wait")
        await asyncio.wait({failing})
        tasks.cancel()
        await asyncio.wait({waiting})
        assert waiting.cancelled()

    asyncio.run(work())
    assert reported == [("upkeep", "odd")]
