"""The worker processes of charts: values of every size, limits, death, cancellation, the queue and its order."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import gzip
import json
import logging
import os
import pickle
import signal
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import chart_jobs
import psutil
import pytest
from conftest import wait_for
from release_secrets import encoded_release, made_release

from models.charts.archives.schema_refs import check_schema
from models.charts.releases import BadRelease
from models.config.settings import WorkerSettings, WorkSettings
from models.errors import Failed, Invalid, Problem, TooLarge, Unavailable, Unprocessable, Upstream
from models.json_format import json_value
from models.supervision.process import Seconds
from supervisor.charts import workers as charts_workers
from supervisor.charts.helm.slots import caller
from supervisor.charts.kube.releases import unpacked
from supervisor.charts.service import RequestFolders
from supervisor.charts.workers import Workers
from supervisor.children.child import Children
from supervisor.workers import answers, calls, protocol
from supervisor.workers.confinement import MAX_MEMORY_BYTES
from supervisor.workers.pool import WorkerPool

KILL_SECONDS = 1.0 if os.environ.get("CI") else 0.1


def with_workers(work: Callable[[Workers], Awaitable[Any]], tmp_path: Path, processes: int = 1, queue: int = 64) -> Any:
    """Runs `work`; afterwards no process and no folder is left."""

    async def run() -> Any:
        children, folders = Children(), RequestFolders(tmp_path / "temp")
        environ = {**os.environ, "PYTHONPATH": str(Path(__file__).parent)}
        pool = WorkerPool(WorkerSettings(processes), children, "test", environ, queue, "svc.work.queue")
        workers = Workers(WorkSettings(timeout=Seconds(60), queue=queue), pool, folders)
        try:
            result = await work(workers)
            assert list((tmp_path / "temp").glob("*/call-*")) == []
            return result
        finally:
            await workers.close()
            assert pool.pids == set()
            folders.close()
            await asyncio.sleep(0)
            children.close()

    return asyncio.run(run())


def call(tmp_path: Path, function: Callable[..., Any], *arguments: Any) -> Any:
    return with_workers(lambda workers: workers.run(function, *arguments), tmp_path)


async def set_timeout(workers: Workers, seconds: float) -> None:
    """Limits the time of requests from now on, when a worker runs: its start may take as long on a busy machine."""
    workers.settings = WorkSettings(timeout=Seconds(60))
    await workers.run(chart_jobs.pid)
    workers.settings = WorkSettings(timeout=Seconds(seconds))


async def begun(file: Path) -> int:
    """The pid of a worker that has written it to a file."""
    await asyncio.to_thread(wait_for, lambda: file.exists() and file.read_text())
    return int(file.read_text())


@pytest.mark.parametrize("size", [1, 3000, 100_000])
def test_values_of_every_type_and_size_arrive_as_they_were(size: int, tmp_path: Path) -> None:
    async def work(workers: Workers) -> None:
        found = await workers.run(chart_jobs.sample, size)
        expected = chart_jobs.sample(size)
        assert found.row.chart == expected.row.chart  # type: ignore[union-attr]
        assert (found.name, found.path, found.pairs) == (expected.name, expected.path, expected.pairs)
        assert (found.kinds, found.parts) == (expected.kinds, expected.parts)
        assert await workers.run(chart_jobs.texts, size) == chart_jobs.texts(size)
        assert await workers.run(chart_jobs.data, size) == bytes(size)
        assert await workers.run(chart_jobs.same, {"a": ["x" * size]}) == {"a": ["x" * size]}
        assert await workers.run(chart_jobs.same, expected.parts["list"]) == expected.parts["list"]

    with_workers(work, tmp_path)


@pytest.mark.parametrize(
    "value",
    [
        {"k" * 70_000: 1},
        {"values": {"中" * 11_000: 1}},
        {"😀" * 2048: "😀" * 2048, "\0text" * 500: ["x" * 3000], "b": {"\0list": 1}},
        {f"{number}" * 3000: number for number in range(10)},
    ],
    ids=["ascii", "below", "wide", "many"],
)
def test_long_names_of_objects_arrive_as_they_were(value: Any, tmp_path: Path) -> None:
    assert call(tmp_path, chart_jobs.same, value) == value


@pytest.mark.parametrize("value", ["😀" * 16_200, "中" * 16_200, ["😀" * 200] * 70], ids=["wide", "three", "list"])
def test_arguments_are_sent_by_their_bytes_and_keep_the_worker(value: Any, tmp_path: Path) -> None:
    async def work(workers: Workers) -> None:
        pid = await workers.run(chart_jobs.pid)
        assert await workers.run(chart_jobs.same, value) == value
        assert await workers.run(chart_jobs.pid) == pid

    with_workers(work, tmp_path)


@pytest.mark.parametrize("padding", [0, 40_000])
def test_json_that_is_nested_too_deeply_is_refused_by_the_worker(padding: int, tmp_path: Path) -> None:
    def nested(depth: int) -> str:
        return f'["{"x" * padding}", ' * depth + "1" + "]" * depth

    async def work(workers: Workers) -> None:
        pid = await workers.run(chart_jobs.pid)
        assert await workers.run(json_value, nested(100)) == json.loads(nested(100))
        for depth in (101, 300, 600):
            with pytest.raises(Unprocessable, match="nested too deeply"):
                await workers.run(json_value, nested(depth))
        assert await workers.run(chart_jobs.pid) == pid

    with_workers(work, tmp_path)


@pytest.mark.parametrize("value", [1, None, "", [], {"a": 1}], ids=str)
def test_any_number_of_short_values_arrives(value: Any, tmp_path: Path) -> None:
    """Their number decides whether they are looked at closely, and their size in JSON whether they need a file."""

    async def work(workers: Workers) -> None:
        for count in (500, 1000, 1500, 2000, 2500, 3000, 3100, 3500, 4000, 6000, 8000, 12_000):
            sent = json.dumps([value] * count)
            assert await workers.run(json_value, sent) == json.loads(sent), count

    with_workers(work, tmp_path)


def test_what_a_function_raises_is_raised_with_its_code(tmp_path: Path) -> None:
    assert call(tmp_path, os.getpid) != os.getpid()
    with pytest.raises(Invalid, match=r"the chart's a/values\.schema\.json is not JSON"):
        call(tmp_path, check_schema, b"[", "a/values.schema.json")
    with pytest.raises(Upstream, match="not there") as raised:
        call(tmp_path, chart_jobs.upstream)
    assert raised.value.code == "its-code"


def test_json_documents_of_every_size_are_parsed(tmp_path: Path) -> None:
    async def work(workers: Workers) -> None:
        for document in ([1], ["x" * 70_000], {"a": [{"b": number} for number in range(50_000)]}, {"\0list": [[0, 9]]}):
            assert await workers.parse_json(json.dumps(document)) == document
        for text in (b"[", b"[" * 100_000, b"\xff" * 100_000):
            with pytest.raises(Invalid):
                await workers.parse_json(text)

    with_workers(work, tmp_path)


@pytest.mark.parametrize(
    ("function", "arguments", "problem", "message"),
    [
        (chart_jobs.allocate, [MAX_MEMORY_BYTES], TooLarge, f"more than {MAX_MEMORY_BYTES} bytes of memory"),
        (chart_jobs.data, [3 * 1024**2], TooLarge, "more than 2097152 bytes when read"),
        (chart_jobs.work_in_c, ["started"], Unprocessable, "more than 1 s of CPU time"),
        (chart_jobs.wrong_type, [], Failed, "could not be read"),
        (chart_jobs.bad_pieces, [], Failed, "could not be read"),
        (chart_jobs.deep_pieces, [], Failed, "could not be read"),
        (chart_jobs.many_answers, [], Failed, "could not be read"),
        (signal.raise_signal, [signal.SIGKILL], Failed, "SIGKILL|signal 9"),
        (os._exit, [3], Failed, "exit code 3|code 3"),
    ],
    ids=["memory", "file", "cpu", "type", "pieces", "depth", "flood", "killed", "exit"],
)
def test_a_worker_that_fails_loses_only_its_job_and_is_logged_once(
    function: Callable[..., Any],
    arguments: list[Any],
    problem: type[Problem],
    message: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr(charts_workers, "MAX_CPU_SECONDS", 1)
    monkeypatch.setattr(charts_workers, "MAX_FILE_BYTES", 2 * 1024**2)
    monkeypatch.chdir(tmp_path)
    started = [str(tmp_path / one) if one == "started" else one for one in arguments]

    async def work(workers: Workers) -> None:
        beside = asyncio.create_task(workers.run(chart_jobs.wait, str(tmp_path / "beside"), str(tmp_path / "end")))
        pid = await begun(tmp_path / "beside")
        with pytest.raises(problem, match=message):
            await workers.run(function, *started)
        (tmp_path / "end").touch()
        assert await beside == pid
        assert await workers.run(chart_jobs.same, "next") == "next"

    with_workers(work, tmp_path, processes=2)
    errors = [record for record in caplog.records if record.levelno >= logging.ERROR]
    assert len(errors) == (problem is Failed)


def test_a_stopped_worker_meets_the_deadline_of_its_job(tmp_path: Path) -> None:
    async def work(workers: Workers) -> None:
        await set_timeout(workers, 2)
        task = asyncio.create_task(workers.run(chart_jobs.work_in_c, str(tmp_path / "started")))
        pid = await begun(tmp_path / "started")
        os.kill(pid, signal.SIGSTOP)
        with pytest.raises(Unprocessable, match=r"svc\.work\.timeout"):
            await task
        assert not psutil.pid_exists(pid)
        workers.settings = WorkSettings(timeout=Seconds(60))
        assert await workers.run(chart_jobs.pid) != pid

    with_workers(work, tmp_path)


@pytest.mark.parametrize("how", ["client", "close", "deadline"])
def test_a_job_in_one_c_call_ends_at_once_and_its_folder_is_removed(how: str, tmp_path: Path) -> None:
    timeout = 2 if how == "deadline" else 600

    async def work(workers: Workers) -> None:
        await set_timeout(workers, timeout)
        began = time.monotonic()
        task = asyncio.create_task(workers.run(chart_jobs.work_in_c, str(tmp_path / "started")))
        pid = await begun(tmp_path / "started")
        ended = time.monotonic()
        if how == "client":
            task.cancel()
        elif how == "close":
            await workers.close()
        else:
            ended = began + timeout
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.wait({task})
        assert time.monotonic() - ended < KILL_SECONDS
        assert not psutil.pid_exists(pid)
        assert task.cancelled() if how == "client" else isinstance(task.exception(), Unavailable | Unprocessable)

    with_workers(work, tmp_path)


def test_the_steps_of_a_request_share_one_deadline(tmp_path: Path) -> None:
    async def work(workers: Workers) -> None:
        await set_timeout(workers, 2)

        async def steps() -> None:
            with workers.one_request():
                for _ in range(1000):
                    await workers.run(chart_jobs.pause, 0.02)

        with pytest.raises(Unprocessable, match=r"svc\.work\.timeout"):
            await steps()
        workers.settings = WorkSettings(timeout=Seconds(60))
        await workers.run(chart_jobs.pause, 0.01)

    with_workers(work, tmp_path)


def test_a_full_queue_refuses_work_and_callers_take_turns_after_privileged_ones(tmp_path: Path) -> None:
    async def work(workers: Workers) -> None:
        first = asyncio.create_task(workers.run(chart_jobs.wait, str(tmp_path / "started"), str(tmp_path / "end")))
        await begun(tmp_path / "started")
        order: list[str | None] = []

        async def one(who: str | None) -> None:
            caller.set(who)
            await workers.run(chart_jobs.pid)
            order.append(who)

        tasks = [asyncio.create_task(one(who)) for who in ("a", "a", "a", "b", None)]
        await asyncio.sleep(0)
        with pytest.raises(Unavailable, match=r"svc\.work\.queue"):
            await workers.run(chart_jobs.pid)
        (tmp_path / "end").touch()
        await asyncio.gather(first, *tasks)
        assert order == [None, "a", "b", "a", "a"]

    with_workers(work, tmp_path, queue=5)


@pytest.mark.parametrize("padding", [1000, 1024**2, 8 * 1024**2], ids=["small", "large", "huge"])
def test_a_large_release_is_unpacked_in_a_worker_without_its_templates(padding: int, tmp_path: Path) -> None:
    release = made_release("a", "n", manifest="kind: x\n" * 10)
    release["chart"] = {**release["chart"], "templates": [{"name": "x", "data": "y" * padding}]}
    secret = {"data": {"release": encoded_release(release)}}
    content = with_workers(lambda workers: unpacked(workers, secret), tmp_path)
    assert content["manifest"] == release["manifest"]
    assert content["chart"]["metadata"] == release["chart"]["metadata"]
    assert ("templates" in content["chart"]) is (padding == 1000)


def test_a_release_larger_than_helm_can_store_is_refused_by_the_worker(tmp_path: Path) -> None:
    bomb = base64.b64encode(base64.b64encode(gzip.compress(b'{"name": "' + bytes(65 * 1024**2)))).decode()
    with pytest.raises(BadRelease, match="larger than"):
        with_workers(lambda workers: unpacked(workers, {"data": {"release": bomb}}), tmp_path)


@pytest.mark.parametrize(
    ("expected", "answer"),
    [
        (str, {"pieces": {calls.TEXT: [[0, 8 * 1024**2]]}}),
        (bytes, {"pieces": {calls.BYTES: [[0, 8 * 1024**2]]}}),
        (dict[str, list[tuple[str, int]]], {"whole": {"a": [["x", 1]] * 10_000}}),
        (list[chart_jobs.Row], {"whole": [{"names": ["x"] * 10_000}]}),
    ],
    ids=["text", "bytes", "nested list", "list of an object"],
)
def test_the_loop_runs_while_a_large_answer_is_read(expected: Any, answer: Any, tmp_path: Path) -> None:
    file = tmp_path / "answer"
    file.write_bytes("é".encode() * 4 * 1024**2)

    async def work() -> None:
        runs, task = 0, asyncio.create_task(answers.read(expected, answer, file))
        while not task.done():
            await asyncio.sleep(0)
            runs += 1
        assert runs > 15
        found = await task
        if expected in (str, bytes):
            assert found == (file.read_bytes() if expected is bytes else "é" * 4 * 1024**2)

    asyncio.run(work())


def test_a_small_answer_is_encoded_once_and_none_of_a_large_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lengths: list[int] = []
    encode = json.dumps

    def counted(value: Any, **options: Any) -> str:
        text = encode(value, **options)
        lengths.append(len(text))
        return text

    def answer(value: Any) -> bytes:
        call = base64.b64encode(pickle.dumps((chart_jobs.same, [value], {}))).decode()
        with monkeypatch.context() as changed:
            changed.setattr(json, "dumps", counted)
            return protocol.encode({"result": calls.perform(str(tmp_path / "call"), call)})

    assert protocol.decode(answer(["x" * 1000] * 20)[protocol.LENGTH_BYTES :]) == {
        "result": {"whole": ["x" * 1000] * 20}
    }
    assert len(lengths) == 1
    lengths.clear()
    answer(["x" * 1000] * 1000)
    assert sum(lengths) < 2 * 1000 * 1010
    assert max(lengths) <= calls.MAX_PIECE_BYTES
