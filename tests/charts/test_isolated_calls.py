"""Uninterruptible C calls run in a child process: its result, errors, memory limit and termination."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import gzip
import json
import os
import signal
import threading
from collections.abc import Awaitable, Callable
from typing import Any

import psutil
import pytest
from conftest import wait_for
from release_secrets import encoded_release, made_release

from models.charts.archives.schema_refs import check_schema
from models.charts.releases import BadRelease
from models.config.settings import Work
from models.errors import Invalid, Unprocessable
from models.supervision.process import Seconds
from supervisor.charts import workers as charts_workers
from supervisor.charts.isolated_child import MAX_MEMORY_BYTES
from supervisor.charts.kube.releases import unpacked
from supervisor.charts.workers import MAX_C_CALL_BYTES, Isolation, Workers
from supervisor.children.child import Children


def with_workers(work: Callable[[Workers], Awaitable[Any]], timeout: float = 60) -> Any:
    async def run() -> Any:
        children = Children()
        workers = Workers(Work(timeout=Seconds(timeout)), Isolation(children, "test", os.environ))
        try:
            return await work(workers)
        finally:
            workers.close()
            children.close()

    return asyncio.run(run())


def call(function: Callable[..., Any], *arguments: Any) -> Any:
    return with_workers(lambda workers: workers.run(workers.isolated, function, *arguments))


def child_pids() -> list[int]:
    pids = list[int]()
    for child in psutil.Process().children():
        with contextlib.suppress(psutil.NoSuchProcess):  # the child has ended
            if child.status() != psutil.STATUS_ZOMBIE and "isolated_child" in " ".join(child.cmdline()):
                pids.append(child.pid)
    return pids


def test_a_child_returns_what_the_function_returns_or_raises() -> None:
    assert call(os.getpid) != os.getpid()
    with pytest.raises(Invalid, match=r"the chart's a/values\.schema\.json is not JSON"):
        call(check_schema, b"[", "a/values.schema.json")
    with pytest.raises(ValueError, match="Expecting"):
        call(json.loads, "[")


def test_a_child_that_exceeds_its_memory_or_is_killed_is_unprocessable() -> None:
    with pytest.raises(Unprocessable, match=f"more than {MAX_MEMORY_BYTES} bytes of memory"):
        call(bytes, MAX_MEMORY_BYTES)
    with pytest.raises(Unprocessable, match="needs more than"):
        call(signal.raise_signal, signal.SIGKILL)


@pytest.mark.parametrize("how", ["deadline", "cancel", "close", "seconds"])
def test_a_child_is_killed_when_its_call_is_cancelled_or_times_out(how: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if how == "seconds":
        monkeypatch.setattr(charts_workers, "MAX_SECONDS", 0.05)

    async def work(workers: Workers) -> None:
        task = asyncio.create_task(workers.run(workers.isolated, signal.pause))
        await asyncio.to_thread(wait_for, lambda: child_pids() or task.done())
        if how == "cancel":
            task.cancel()
        elif how == "close":
            workers.close()
        with pytest.raises((Unprocessable, asyncio.CancelledError)):
            await task
        await asyncio.to_thread(wait_for, lambda: not child_pids())

    with_workers(work, timeout=0.5 if how == "deadline" else 600)


def test_json_documents_of_every_size_are_parsed() -> None:
    async def work(workers: Workers) -> list[Any]:
        return [await workers.parse_json(text) for text in (b"[1]", json.dumps(["x" * 70_000]), large)]

    large = json.dumps(["x" * MAX_C_CALL_BYTES]).encode()
    assert with_workers(work) == [[1], ["x" * 70_000], ["x" * MAX_C_CALL_BYTES]]


@pytest.mark.parametrize(
    ("padding", "is_isolated"), [(1000, False), (1024**2, False), (8 * 1024**2, True)], ids=["small", "large", "huge"]
)
def test_a_large_release_is_unpacked_in_a_child_without_its_templates(
    padding: int, is_isolated: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    threads: list[bool] = []
    call_child = Isolation.call

    def counted(self: Isolation, function: Callable[..., Any], *arguments: Any) -> Any:
        threads.append(threading.current_thread() is not threading.main_thread())
        return call_child(self, function, *arguments)

    monkeypatch.setattr(Isolation, "call", counted)
    release = made_release("a", "n", manifest="kind: x\n" * 10)
    release["chart"] = {**release["chart"], "templates": [{"name": "x", "data": "y" * padding}]}
    content = with_workers(lambda workers: unpacked(workers, {"data": {"release": encoded_release(release)}}))
    assert content["manifest"] == release["manifest"]
    assert content["chart"]["metadata"] == release["chart"]["metadata"]
    assert threads == ([True] if is_isolated else [])
    assert ("templates" in content["chart"]) is not is_isolated


def test_a_release_larger_than_helm_can_store_is_refused_by_the_child() -> None:
    bomb = base64.b64encode(base64.b64encode(gzip.compress(b'{"name": "' + bytes(65 * 1024**2)))).decode()
    with pytest.raises(BadRelease, match="larger than"):
        with_workers(lambda workers: unpacked(workers, {"data": {"release": bomb}}))
