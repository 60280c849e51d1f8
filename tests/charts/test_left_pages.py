"""Work for a request about charts ends when its client leaves, at whatever moment."""

from __future__ import annotations

import asyncio
from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any, cast

import pytest
from tornado.web import Finish

from handlers.charts.operations import ClientLeft, run
from handlers.charts.repository_pages import OneChart
from handlers.http.credentials import ANONYMOUS
from supervisor.charts.service import Target, Work


def test_a_readme_is_not_rendered_for_a_client_that_has_left() -> None:
    ended: list[bool] = []

    async def work() -> None:
        begun, page = asyncio.Event(), OneChart.__new__(OneChart)

        async def run(*_: Any) -> str:
            begun.set()
            try:
                await asyncio.sleep(60)
            finally:
                ended.append(True)
            return ""

        charts: Any = SimpleNamespace(workers=SimpleNamespace(run=run), helm=SimpleNamespace(called_by=nullcontext))
        charts.work = lambda _: Work(charts, Target())
        page.services = cast("Any", SimpleNamespace(charts=charts))
        page.caller, page.request = ANONYMOUS, cast("Any", None)
        page.set_status = lambda *_: None  # type: ignore[method-assign]
        task = asyncio.create_task(page._html("# Title"))
        await begun.wait()
        for end in page._ends:
            end()
        with pytest.raises(Finish):
            await asyncio.wait_for(task, 10)

    asyncio.run(work())
    assert ended == [True]


@pytest.mark.parametrize("moment", ["before the request is read", "while the request is read"])
def test_an_operation_does_not_begin_for_a_client_that_has_left(moment: str) -> None:
    called: list[str] = []

    async def work() -> None:
        reading = asyncio.Event()
        charts: Any = SimpleNamespace(
            workers=SimpleNamespace(one_request=nullcontext), helm=SimpleNamespace(called_by=lambda *_: nullcontext())
        )
        operation: Any = SimpleNamespace(
            check_cluster=lambda _: None, mutating=False, takes_body=True, identifier="x",
            call=lambda *_: called.append("call"),
        )  # fmt: skip
        one = Work(charts, Target())

        async def read() -> None:
            reading.set()
            await asyncio.Event().wait()

        if moment.startswith("before"):
            one.leave()
        task = asyncio.create_task(run(operation, one, read))
        if not moment.startswith("before"):
            await reading.wait()
            one.leave()
        with pytest.raises(ClientLeft):
            await asyncio.wait_for(task, 60)
        assert reading.is_set() is not moment.startswith("before")

    asyncio.run(work())
    assert called == []
