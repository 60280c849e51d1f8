"""What an anonymous caller can cause has a budget: YAML, tag lists, archives, work, slots for helm."""

from __future__ import annotations

import asyncio
import gzip
import threading
import time
from collections.abc import Awaitable, Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import chart_servers
import pytest
import yaml

from models.charts import archive, resources, yaml_values
from models.config.settings import Helm as HelmSettings
from models.config.settings import Work as WorkSettings
from models.deadline import Deadline, applied, checkpoint
from models.errors import Invalid, Throttled, Unavailable, Unprocessable
from models.supervision.process import Seconds
from supervisor.charts.helm import slots
from supervisor.charts.helm.slots import Slots
from supervisor.charts.workers import Workers

BOMB = "a0: &a0 [x]\n" + "".join(f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 40)}]\n" for n in range(1, 41))


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (BOMB, "expand to too much"),
        ("a: " + "[" * 501 + "]" * 501, "more than 500 deep"),
        ("a: &a [*a]", "inside its own anchor"),
        ("[" + "1," * 1_000_001 + "]", "more than 1000000 nodes"),
    ],
    ids=["bomb", "deep", "loop", "many"],
)
def test_yaml_that_stands_for_too_much_is_refused(text: str, reason: str) -> None:
    with pytest.raises(Invalid, match=reason):
        yaml_values.check(text, yaml.CBaseLoader, "x")


@pytest.mark.parametrize(
    "text",
    [
        "base: &b {a: 1, b: 2}\n" + "".join(f"k{n}: *b\n" for n in range(100)),
        "[" * 500 + "]" * 500,
        "a: 1\n---\nb: *c\n",
        "",
    ],
)
def test_yaml_within_its_bounds_is_taken(text: str) -> None:
    yaml_values.check(text, yaml.BaseLoader, "x")


def test_aliases_that_are_repeated_as_often_as_allowed_are_taken() -> None:
    yaml_values.check("a: &a [" + "1," * 50 + "]\nb: [" + "*a," * 19 + "]", yaml.CBaseLoader, "x")
    with pytest.raises(Invalid, match="expand"):
        yaml_values.check("a: &a [" + "1," * 50 + "]\nb: [" + "*a," * 60 + "]", yaml.CBaseLoader, "x")


@pytest.mark.parametrize("name", ["Chart.yaml", "requirements.yaml"])
def test_a_chart_with_such_metadata_is_refused_and_the_file_is_named(tmp_path: Path, name: str) -> None:
    metadata = "apiVersion: v1\nname: demo\nversion: 1.0.0\n"
    files = {f"demo/{name}": BOMB.encode()} if name != "Chart.yaml" else {}
    head = metadata + (BOMB if name == "Chart.yaml" else "")
    file = tmp_path / "demo.tgz"
    file.write_bytes(chart_servers.tar_archive([("demo/Chart.yaml", head.encode()), *files.items()]))
    with pytest.raises(Invalid, match=rf"the chart's {name}: its aliases"):
        archive.check(file)


def test_a_manifest_with_such_aliases_is_refused() -> None:
    with pytest.raises(ValueError, match="expand to too much"):
        resources.named(BOMB)


# Work


def test_work_stops_at_its_deadline_and_when_it_is_cancelled() -> None:
    deadline = Deadline(0, "over")
    with applied(deadline), pytest.raises(Unprocessable, match="over"):
        checkpoint()
    deadline = Deadline(60, "over")
    with applied(deadline):
        checkpoint()
        deadline.cancel()
        with pytest.raises(Unprocessable):
            checkpoint()
    checkpoint()


def test_a_bomb_of_gzip_stops_at_the_deadline(tmp_path: Path) -> None:
    file = tmp_path / "bomb.tgz"
    file.write_bytes(chart_servers.chart_archive()[:-8] + gzip.compress(bytes(50 * 1024**2)))
    file.write_bytes(gzip.compress(gzip.decompress(chart_servers.chart_archive()) + bytes(50 * 1024**2)))
    with applied(Deadline(0, "over")), pytest.raises(Unprocessable, match="over"):
        archive.check(file)
    assert archive.check(file).name


def in_loop(work: Callable[[], Awaitable[Any]]) -> Any:
    async def run() -> Any:
        return await work()

    return asyncio.run(run())


def test_a_full_queue_refuses_more_work_and_other_executors_go_on() -> None:
    async def work() -> None:
        workers, gate = Workers(WorkSettings(threads=1, queue=2)), threading.Event()
        calls = [asyncio.create_task(workers.run(gate.wait)) for _ in range(3)]
        await asyncio.sleep(0)
        with pytest.raises(Unavailable, match=r"svc\.work\.queue"):
            await workers.run(gate.wait)
        assert await asyncio.to_thread(lambda: "login") == "login"
        gate.set()
        assert await asyncio.gather(*calls) == [True] * 3
        assert await workers.run(lambda: 1) == 1
        workers.close()

    in_loop(work)


def endless(stopped: threading.Event) -> None:
    try:
        while True:
            checkpoint()
            time.sleep(0.001)
    finally:
        stopped.set()


def test_work_that_takes_too_long_is_refused_and_stops() -> None:
    async def work() -> None:
        workers, stopped = Workers(WorkSettings(threads=1, timeout=Seconds(0.05))), threading.Event()
        with pytest.raises(Unprocessable, match=r"svc\.work\.timeout"):
            await workers.run(endless, stopped)
        await asyncio.to_thread(workers._executor.submit(int).result)  # the only thread is free again
        workers.close()

    in_loop(work)


def test_the_steps_of_a_request_share_one_deadline() -> None:
    async def work() -> None:
        workers = Workers(WorkSettings(threads=1, timeout=Seconds(0.2)))

        async def steps() -> None:
            with workers.one_request():
                for _ in range(1000):
                    await workers.run(time.sleep, 0.01)

        with pytest.raises(Unprocessable):
            await steps()
        await workers.run(time.sleep, 0.01)
        workers.close()

    in_loop(work)


@pytest.mark.parametrize("how", ["cancel", "close"])
def test_work_stops_when_the_client_leaves_or_the_server_stops(how: str) -> None:
    async def work() -> None:
        workers, stopped = Workers(WorkSettings(threads=1)), threading.Event()
        task = asyncio.create_task(workers.run(endless, stopped))
        await asyncio.sleep(0)
        while not workers._executor._threads:
            await asyncio.sleep(0)
        if how == "cancel":
            task.cancel()
        else:
            workers.close()
        assert await asyncio.to_thread(stopped.wait, 30) or task.cancelled()
        await asyncio.wait({task})
        assert task.cancelled() or isinstance(task.exception(), Unprocessable)
        workers.close()

    in_loop(work)


# Slots


class Crowd:
    """Calls that hold a slot until they are released, in the order in which they got it."""

    def __init__(self, **settings: Any) -> None:
        self.slots = Slots(HelmSettings(**{"max_concurrent": 3, "lock_timeout": Seconds(30), **settings}))
        self.running: list[str | None] = []
        self._ends: list[tuple[str | None, asyncio.Event]] = []
        self.tasks: list[asyncio.Task[None]] = []

    async def call(self, who: str | None) -> asyncio.Task[None]:
        task = asyncio.create_task(self._hold(who))
        self.tasks.append(task)
        await self.settle()
        return task

    async def _hold(self, who: str | None) -> None:
        slots.caller.set(who)
        async with self.slots.slot():
            end = asyncio.Event()
            self.running.append(who)
            self._ends.append((who, end))
            try:
                await end.wait()
            finally:
                self.running.remove(who)
                self._ends = [(name, other) for name, other in self._ends if other is not end]

    async def end(self, who: str | None) -> None:
        index = next(index for index, (name, _) in enumerate(self._ends) if name == who)
        self._ends.pop(index)[1].set()
        await self.settle()

    async def settle(self) -> None:
        for _ in range(10):
            await asyncio.sleep(0)


def test_open_calls_leave_a_slot_for_a_change() -> None:
    async def work() -> None:
        crowd = Crowd()
        for who in ("a", "b", "c", "d"):
            await crowd.call(who)
        assert crowd.running == ["a", "b"]
        await crowd.call(None)
        assert crowd.running == ["a", "b", None]
        await crowd.call(None)
        await crowd.end("a")
        assert crowd.running == ["b", None, None]  # a change comes before those who waited longer
        await crowd.end(None)
        assert crowd.running == ["b", None, "c"]

    in_loop(work)


def test_a_caller_has_only_its_share_and_callers_take_turns() -> None:
    async def work() -> None:
        crowd = Crowd(max_concurrent=5, per_caller=2)
        for _ in range(6):
            await crowd.call("a")
        assert crowd.running == ["a", "a"]
        await crowd.call("b")
        await crowd.call("b")
        await crowd.call("b")
        await crowd.call("c")
        assert crowd.running == ["a", "a", "b", "b"]
        await crowd.end("a")
        await crowd.end("a")
        assert sorted(str(who) for who in crowd.running) == ["a", "b", "b", "c"]

    in_loop(work)


@pytest.mark.parametrize("max_concurrent", [2, 3, 4, 8])
def test_two_hundred_calls_of_one_address_delay_no_install_and_others_by_two_calls_at_most(max_concurrent: int) -> None:
    async def work() -> None:
        crowd = Crowd(max_concurrent=max_concurrent)
        flood = [await crowd.call("flood") for _ in range(200)]
        throttled = [call for call in flood if call.done() and isinstance(call.exception(), Throttled)]
        assert 200 - len(throttled) == len(crowd.running) + 8
        await crowd.call(None)
        assert crowd.running.count(None) == 1  # at once
        await crowd.call("other")
        ended = 0
        while "other" not in crowd.running:
            await crowd.end("flood")
            ended += 1
        assert ended <= 2
        for call in crowd.tasks:
            call.cancel()
        await crowd.settle()

    in_loop(work)


def test_too_many_calls_of_one_caller_are_throttled_and_of_all_refused() -> None:
    async def work() -> None:
        crowd = Crowd(max_concurrent=2, queue_per_caller=2, queue=3)
        for who in ("a", "a", "a", "b"):
            await crowd.call(who)
        with pytest.raises(Throttled, match="queue-per-caller"):
            await (await crowd.call("a"))
        with pytest.raises(Unavailable, match=r"svc\.helm\.queue"):
            await (await crowd.call("c"))
        await crowd.call(None)
        assert crowd.running == ["a", None]

    in_loop(work)


def test_a_call_counts_for_its_caller_before_it_needs_helm() -> None:
    async def work() -> None:
        slots_ = Slots(HelmSettings(max_concurrent=2, queue_per_caller=2))

        def counted(who: str | None, stack: ExitStack) -> None:
            slots.caller.set(who)
            stack.enter_context(slots_.one_call())

        with ExitStack() as stack:
            for who in ("a", "a", "a", "b", None, None, None, None):
                counted(who, stack)
            with pytest.raises(Throttled, match="queue-per-caller"):
                counted("a", stack)
            counted("b", stack)
        counted("a", stack)

    in_loop(work)


def test_calls_that_leave_while_a_slot_becomes_free_keep_no_slot() -> None:
    async def work() -> None:
        crowd = Crowd(max_concurrent=2)
        calls = [await crowd.call("a") for _ in range(4)]
        for call in calls[:3]:
            call.cancel()  # the one that runs and two that wait, in one round of the loop
        await crowd.settle()
        assert all(call.cancelled() for call in calls[:3])
        assert crowd.running == ["a"]
        await crowd.end("a")
        await crowd.call("b")
        assert crowd.running == ["b"]

    in_loop(work)


def test_a_call_that_leaves_the_queue_takes_no_slot_with_it() -> None:
    async def work() -> None:
        crowd = Crowd(max_concurrent=2)
        await crowd.call("a")
        waiting = [await crowd.call(who) for who in ("b", "c")]
        waiting[0].cancel()
        await crowd.settle()
        await crowd.end("a")
        assert crowd.running == ["c"]
        await crowd.end("c")
        late = Crowd(max_concurrent=2, lock_timeout=Seconds(0.01))
        await late.call("a")
        with pytest.raises(Unavailable, match=r"svc\.helm\.max-concurrent"):
            await (await late.call("b"))
        await late.end("a")
        await late.call("b")
        assert late.running == ["b"]

    in_loop(work)
