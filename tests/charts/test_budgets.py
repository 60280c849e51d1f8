"""Limits on what an anonymous caller can cause: YAML, archives, slots for helm processes."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import chart_servers
import pytest
import yaml

from models.charts import resources, yaml_values
from models.charts.archives import archive
from models.config.settings import HelmSettings
from models.errors import Invalid, Throttled, Unavailable
from models.supervision.process import Seconds
from supervisor.charts.helm import slots
from supervisor.charts.helm.slots import Slots

DEEP = "a: " + "[" * 501 + "]" * 501
BOMB = "a0: &a0 [x]\n" + "".join(f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 40)}]\n" for n in range(1, 41))


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (BOMB, "expand to too much"),
        (DEEP, "more than 500 deep"),
        ("a: &a [*a]", "inside its own anchor"),
        ("[" + "1," * 1_000_001 + "]", "more than 1000000 nodes"),
    ],
    ids=["bomb", "deep", "loop", "many"],
)
def test_yaml_that_expands_beyond_its_limits_is_refused(text: str, reason: str) -> None:
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
def test_yaml_within_its_limits_is_accepted(text: str) -> None:
    yaml_values.check(text, yaml.BaseLoader, "x")


def test_repeated_aliases_are_accepted_up_to_the_limit() -> None:
    yaml_values.check("a: &a [" + "1," * 50 + "]\nb: [" + "*a," * 19 + "]", yaml.CBaseLoader, "x")
    with pytest.raises(Invalid, match="expand"):
        yaml_values.check("a: &a [" + "1," * 50 + "]\nb: [" + "*a," * 60 + "]", yaml.CBaseLoader, "x")


@pytest.mark.parametrize("name", ["Chart.yaml", "requirements.yaml"])
def test_metadata_with_expanding_aliases_is_refused_with_its_file_name(tmp_path: Path, name: str) -> None:
    metadata = "apiVersion: v1\nname: demo\nversion: 1.0.0\n"
    files = {f"demo/{name}": BOMB.encode()} if name != "Chart.yaml" else {}
    head = metadata + (BOMB if name == "Chart.yaml" else "")
    file = tmp_path / "demo.tgz"
    file.write_bytes(chart_servers.tar_archive([("demo/Chart.yaml", head.encode()), *files.items()]))
    with pytest.raises(Invalid, match=rf"the chart's {name}: its aliases"):
        archive.check(file)


@pytest.mark.parametrize(
    ("path", "text", "reason"),
    [
        ("values.yaml", BOMB, "aliases expand"),
        ("values.yaml", DEEP, "more than 500 deep"),
        ("values.yaml", "a: [" + "1," * 1_000_001 + "]", "more than 1000000 nodes"),
        ("Chart.lock", BOMB, "aliases expand"),
        ("requirements.lock", DEEP, "more than 500 deep"),
        ("charts/sub/values.yaml", DEEP, "more than 500 deep"),
        ("charts/sub/charts/inner/values.yaml", "exports:\n  data:\n    " + DEEP, "more than 500 deep"),
    ],
    ids=lambda value: value if len(value) < 50 else "yaml",
)
def test_what_helm_reads_beside_the_metadata_is_within_the_bounds(
    tmp_path: Path, path: str, text: str, reason: str
) -> None:
    file = tmp_path / "demo.tgz"
    head = b"apiVersion: v1\nname: demo\nversion: 1.0.0\n"
    file.write_bytes(chart_servers.tar_archive([("demo/Chart.yaml", head), (f"demo/{path}", text.encode())]))
    with pytest.raises(Invalid, match=rf"the chart's {path}: .*{reason}"):
        archive.check(file)
    assert archive.check(file, is_evaluated=False).name == "demo"  # show and pull
    assert archive.check(file, is_safe_only=True).name == "demo"  # lint


@pytest.mark.parametrize("text", ["a: [", "\x00", "\xff", "a: *b", "a: 1\n---\nb: 2\n", "[" * 500 + "]" * 500])
def test_values_that_are_faulty_or_within_the_bounds_are_left_to_helm(tmp_path: Path, text: str) -> None:
    file = tmp_path / "demo.tgz"
    head = b"apiVersion: v1\nname: demo\nversion: 1.0.0\n"
    values = [("demo/values.yaml", text.encode("latin-1")), ("demo/templates/values.yaml", DEEP.encode())]
    file.write_bytes(chart_servers.tar_archive([("demo/Chart.yaml", head), *values]))
    assert archive.check(file).name == "demo"


def test_a_manifest_with_expanding_aliases_is_refused() -> None:
    with pytest.raises(Invalid, match="expand to too much"):
        resources.named(BOMB)


def run_in_loop(work: Callable[[], Awaitable[Any]]) -> Any:
    async def run() -> Any:
        return await work()

    return asyncio.run(run())


# Slots


class SlotCalls:
    """Calls that hold a slot until `end`; `running` has their callers in the order in which they got it."""

    def __init__(self, **settings: Any) -> None:
        self.slots = Slots(HelmSettings(**{"max_concurrent": 3, "lock_timeout": Seconds(30), **settings}))
        self.running: list[str | None] = []
        self._ends: list[tuple[str | None, asyncio.Event]] = []
        self.tasks: list[asyncio.Task[None]] = []

    async def call(self, caller: str | None) -> asyncio.Task[None]:
        task = asyncio.create_task(self._hold(caller))
        self.tasks.append(task)
        await self.settle()
        return task

    async def _hold(self, caller: str | None) -> None:
        slots.caller.set(caller)
        async with self.slots.slot():
            end = asyncio.Event()
            self.running.append(caller)
            self._ends.append((caller, end))
            try:
                await end.wait()
            finally:
                self.running.remove(caller)
                self._ends = [(name, other) for name, other in self._ends if other is not end]

    async def end(self, caller: str | None) -> None:
        index = next(index for index, (name, _) in enumerate(self._ends) if name == caller)
        self._ends.pop(index)[1].set()
        await self.settle()

    async def settle(self) -> None:
        for _ in range(10):
            await asyncio.sleep(0)


def test_reads_leave_a_slot_for_a_change() -> None:
    async def work() -> None:
        slot_calls = SlotCalls()
        for caller in ("a", "b", "c", "d"):
            await slot_calls.call(caller)
        assert slot_calls.running == ["a", "b"]
        await slot_calls.call(None)
        assert slot_calls.running == ["a", "b", None]
        await slot_calls.call(None)
        await slot_calls.end("a")
        assert slot_calls.running == ["b", None, None]  # a change precedes reads that have waited longer
        await slot_calls.end(None)
        assert slot_calls.running == ["b", None, "c"]

    run_in_loop(work)


def test_slots_are_limited_per_caller_and_callers_alternate() -> None:
    async def work() -> None:
        slot_calls = SlotCalls(max_concurrent=5, per_caller=2)
        for _ in range(6):
            await slot_calls.call("a")
        assert slot_calls.running == ["a", "a"]
        await slot_calls.call("b")
        await slot_calls.call("b")
        await slot_calls.call("b")
        await slot_calls.call("c")
        assert slot_calls.running == ["a", "a", "b", "b"]
        await slot_calls.end("a")
        await slot_calls.end("a")
        assert sorted(str(caller) for caller in slot_calls.running) == ["a", "b", "b", "c"]

    run_in_loop(work)


@pytest.mark.parametrize("max_concurrent", [2, 3, 4, 8])
def test_200_calls_of_one_address_delay_no_install_and_others_by_two_calls(max_concurrent: int) -> None:
    async def work() -> None:
        slot_calls = SlotCalls(max_concurrent=max_concurrent)
        flood = [await slot_calls.call("flood") for _ in range(200)]
        throttled = [call for call in flood if call.done() and isinstance(call.exception(), Throttled)]
        assert 200 - len(throttled) == len(slot_calls.running) + 8
        await slot_calls.call(None)
        assert slot_calls.running.count(None) == 1  # at once
        await slot_calls.call("other")
        ended = 0
        while "other" not in slot_calls.running:
            await slot_calls.end("flood")
            ended += 1
        assert ended <= 2
        for call in slot_calls.tasks:
            call.cancel()
        await slot_calls.settle()

    run_in_loop(work)


def test_calls_beyond_the_queue_of_a_caller_are_429_and_of_all_callers_503() -> None:
    async def work() -> None:
        slot_calls = SlotCalls(max_concurrent=2, queue_per_caller=2, queue=3)
        for caller in ("a", "a", "a", "b"):
            await slot_calls.call(caller)
        with pytest.raises(Throttled, match="queue-per-caller"):
            await (await slot_calls.call("a"))
        with pytest.raises(Unavailable, match=r"svc\.helm\.queue"):
            await (await slot_calls.call("c"))
        await slot_calls.call(None)
        assert slot_calls.running == ["a", None]

    run_in_loop(work)


def test_a_call_counts_for_its_caller_before_it_waits_for_a_slot() -> None:
    async def work() -> None:
        slots_ = Slots(HelmSettings(max_concurrent=2, queue_per_caller=2))

        def counted(caller: str | None, stack: ExitStack) -> None:
            slots.caller.set(caller)
            stack.enter_context(slots_.one_call())

        with ExitStack() as stack:
            for caller in ("a", "a", "a", "b", None, None, None, None):
                counted(caller, stack)
            with pytest.raises(Throttled, match="queue-per-caller"):
                counted("a", stack)
            counted("b", stack)
        counted("a", stack)

    run_in_loop(work)


def test_calls_cancelled_while_a_slot_becomes_free_keep_no_slot() -> None:
    async def work() -> None:
        slot_calls = SlotCalls(max_concurrent=2)
        calls = [await slot_calls.call("a") for _ in range(4)]
        for call in calls[:3]:
            call.cancel()  # the running call and two waiting calls, in one iteration of the loop
        await slot_calls.settle()
        assert all(call.cancelled() for call in calls[:3])
        assert slot_calls.running == ["a"]
        await slot_calls.end("a")
        await slot_calls.call("b")
        assert slot_calls.running == ["b"]

    run_in_loop(work)


def test_a_cancelled_waiting_call_keeps_no_slot() -> None:
    async def work() -> None:
        slot_calls = SlotCalls(max_concurrent=2)
        await slot_calls.call("a")
        waiting = [await slot_calls.call(caller) for caller in ("b", "c")]
        waiting[0].cancel()
        await slot_calls.settle()
        await slot_calls.end("a")
        assert slot_calls.running == ["c"]
        await slot_calls.end("c")
        late = SlotCalls(max_concurrent=2, lock_timeout=Seconds(0.01))
        await late.call("a")
        with pytest.raises(Unavailable, match=r"svc\.helm\.max-concurrent"):
            await (await late.call("b"))
        await late.end("a")
        await late.call("b")
        assert late.running == ["b"]

    run_in_loop(work)
