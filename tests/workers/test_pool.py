"""The pool of worker processes: results, limits, death, cancellation, warmth and fairness."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import psutil
import pytest
from conftest import wait_for

from models.config.settings import WorkerSettings
from models.errors import Failed, Invalid, TimedOut, TooLarge, Unavailable, Unprocessable
from models.supervision.process import Seconds
from supervisor.children.child import Children
from supervisor.workers import pool as pool_module
from supervisor.workers.confinement import MAX_MEMORY_BYTES
from supervisor.workers.pool import WorkerPool
from supervisor.workers.process import Job

HERE = Path(__file__).parent
MIB = 1024**2
KILL_SECONDS = 1.0 if os.environ.get("CI") else 0.1


def job(
    name: str, seconds: float = 60, cpu: int = 60, file_bytes: int = MIB, read: Any = None, **given: Any
) -> Job[Any]:
    return Job(f"worker_jobs:{name}", given, read or (lambda value: value), cpu, seconds, file_bytes, "the bytes")


def with_pool(
    work: Callable[[WorkerPool], Awaitable[Any]], processes: int = 1, idle: float = 60, most: int = 10
) -> Any:
    async def run() -> Any:
        children = Children()
        environ = {**os.environ, "PYTHONPATH": str(HERE), "SECRET": "x"}
        pool = WorkerPool(WorkerSettings(processes, Seconds(idle)), children, "test", environ, most)
        try:
            return await work(pool)
        finally:
            await pool.close()
            assert pool.pids == set()
            await asyncio.sleep(0)
            children.close()

    return asyncio.run(run())


def run(one: Job[Any]) -> Any:
    return with_pool(lambda pool: pool.run(one, "me"))


async def until(condition: Callable[[], object]) -> None:
    await asyncio.to_thread(wait_for, condition)


def test_a_job_returns_what_its_function_returns_or_raises() -> None:
    assert run(job("add", a=1, b=2)) == 3
    assert run(job("pid")) != os.getpid()
    with pytest.raises(Invalid, match="it is wrong"):
        run(job("refuse", message="it is wrong"))


@pytest.mark.parametrize("name", ["fail", "conflict", "missing", "huge_answer"])
def test_an_unexpected_error_of_a_function_is_a_failure_and_its_process_goes_on(
    name: str, caplog: pytest.LogCaptureFixture
) -> None:
    async def work(pool: WorkerPool) -> None:
        before = await pool.run(job("pid"), "me")
        with pytest.raises(Failed, match="the bytes could not be read"):
            await pool.run(job(name), "me")
        assert await pool.run(job("pid"), "me") == before

    with_pool(work)
    assert [record.levelno for record in caplog.records if record.name == "workers"] == [logging.ERROR]


def test_a_process_has_no_environment_no_privileges_and_limits() -> None:
    found = run(job("surroundings", cpu=7))
    assert found["environment"] == {}
    assert found["nice"] >= 5
    assert found["cpu"] <= 8
    assert found["memory"] == MAX_MEMORY_BYTES
    assert found["no_new_privs"]
    assert found["connect"] != 0


def test_a_limit_that_ends_a_job_is_named(tmp_path: Path) -> None:
    with pytest.raises(TooLarge, match=f"more than {MAX_MEMORY_BYTES} bytes of memory"):
        run(job("waste_memory"))
    with pytest.raises(TooLarge, match="more than 1000 bytes"):
        run(job("write", file_bytes=1000, path=str(tmp_path / "file"), size=5000))
    with pytest.raises(Unprocessable, match="more than 1 s of CPU time"):
        run(job("one_c_call", cpu=1, path=str(tmp_path / "pid")))


def test_the_time_and_the_size_of_one_job_do_not_count_for_the_next(tmp_path: Path) -> None:
    async def work(pool: WorkerPool) -> None:
        with pytest.raises(TooLarge):
            await pool.run(job("write", file_bytes=1000, path=str(tmp_path / "a"), size=5000), "me")
        await pool.run(job("write", path=str(tmp_path / "b"), size=5000), "me")

    with_pool(work)
    assert (tmp_path / "b").stat().st_size == 5000


@pytest.mark.parametrize("how", ["client", "deadline", "close"])
def test_a_job_in_one_c_call_is_killed_at_once(how: str, tmp_path: Path) -> None:
    started = tmp_path / "pid"

    async def work(pool: WorkerPool) -> float:
        task = asyncio.create_task(
            pool.run(job("one_c_call", seconds=3 if how == "deadline" else 600, path=str(started)), "me")
        )
        await until(lambda: started.exists() and started.read_text())
        pid = int(started.read_text())
        begun = time.monotonic()  # after the job has begun: a deadline comes within its 3 s
        if how == "client":
            task.cancel()
        elif how == "close":
            await pool.close()
        expected = {"client": asyncio.CancelledError, "deadline": TimedOut, "close": Unavailable}[how]
        with pytest.raises(expected):
            await task
        assert not psutil.pid_exists(pid)
        return time.monotonic() - begun

    took = with_pool(work)
    assert took < KILL_SECONDS + (3 if how == "deadline" else 0)


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSEGV, signal.SIGTERM])
def test_a_process_that_dies_loses_only_its_job(number: int, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    started = tmp_path / "pid"

    async def work(pool: WorkerPool) -> None:
        task = asyncio.create_task(pool.run(job("one_c_call", path=str(started)), "me"))
        await until(lambda: started.exists() and started.read_text())
        os.kill(int(started.read_text()), number)
        with pytest.raises(Failed, match=f"their worker process ended \\(signal {int(number)}\\)"):
            await task
        assert await pool.run(job("add", a=1, b=1), "me") == 2

    with_pool(work)
    assert [f"signal {int(number)}" in record.message for record in caplog.records if record.name == "workers"] == [
        True
    ]


def test_a_process_that_is_stopped_is_ended_at_the_deadline() -> None:
    async def work(pool: WorkerPool) -> None:
        os.kill(await pool.run(job("pid"), "me"), signal.SIGSTOP)
        with pytest.raises(TimedOut, match=r"within 0\.2 s"):
            await pool.run(job("add", seconds=0.2, a=1, b=1), "me")
        assert await pool.run(job("add", a=1, b=1), "me") == 2

    with_pool(work)


@pytest.mark.parametrize(
    "data", ["\xff\xff\xff\xff", "\0\0\0\2[]", "\0\0\0\2{}", "\0\0\0\1x", '\0\0\0\x0c{"result":9}']
)
def test_garbage_of_a_process_loses_only_its_job(data: str) -> None:
    def read(value: Any) -> Any:
        if value is not None:
            raise ValueError(value)
        return value

    async def work(pool: WorkerPool) -> None:
        with contextlib.suppress(Failed):
            await pool.run(job("write_raw", read=read, data=data, times=1), "me")
            raise AssertionError("garbage was accepted")
        assert await pool.run(job("add", a=1, b=1), "me") == 2

    with_pool(work)


def test_a_process_that_floods_the_channel_is_ended() -> None:
    async def work(pool: WorkerPool) -> None:
        with pytest.raises(Failed):
            await pool.run(job("write_raw", data="\xff" * 1000, times=10_000), "me")
        assert await pool.run(job("add", a=1, b=1), "me") == 2

    with_pool(work)


def test_a_process_is_kept_warm_and_ended_when_idle() -> None:
    async def work(pool: WorkerPool) -> None:
        assert pool.pids == set()
        first = await pool.run(job("pid"), "me")
        assert await pool.run(job("pid"), "me") == first
        await until(lambda: not psutil.pid_exists(first))
        await until(lambda: pool.pids == set())
        assert await pool.run(job("pid"), "me") != first

    with_pool(work, idle=1.5)


def test_a_process_is_replaced_after_its_jobs_or_with_much_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pool_module, "MAX_JOBS", 3)

    async def work(pool: WorkerPool) -> None:
        pids = [await pool.run(job("pid"), "me") for _ in range(4)]
        assert len(set(pids[:3])) == 1
        assert pids[3] != pids[0]
        assert await pool.run(job("keep_memory", size=160 * MIB), "me") == pids[3]
        assert await pool.run(job("pid"), "me") != pids[3]

    with_pool(work)


def test_callers_take_turns_and_the_queue_is_bounded(tmp_path: Path) -> None:
    order: list[str] = []

    async def one(pool: WorkerPool, caller: str) -> None:
        await pool.run(job("pid"), caller)
        order.append(caller)

    async def work(pool: WorkerPool) -> None:
        started = tmp_path / "pid"
        first = asyncio.create_task(pool.run(job("one_c_call", path=str(started)), "flooding"))
        flood = [asyncio.create_task(one(pool, "flooding")) for _ in range(4)]
        await until(started.exists)
        other = asyncio.create_task(one(pool, "other"))
        left = asyncio.create_task(one(pool, "left"))
        await asyncio.sleep(0)
        left.cancel()
        with pytest.raises(Unavailable, match="too much work"):
            await asyncio.gather(*(one(pool, "third") for _ in range(6)))
        first.cancel()
        await asyncio.wait([*flood, other, left])

    with_pool(work, most=10)
    assert order.index("other") == 1


def test_no_process_outlives_a_server_that_is_killed(tmp_path: Path) -> None:
    started = tmp_path / "pid"
    program = f"""
import sys; sys.path[:0] = [{str(HERE)!r}, {str(HERE.parent)!r}, {str(HERE.parent.parent)!r}]
from test_pool import job, with_pool
with_pool(lambda pool: pool.run(job("one_c_call", path={str(started)!r}), "me"))
"""
    with subprocess.Popen([sys.executable, "-c", program]) as server:
        wait_for(lambda: started.exists() and started.read_text())
        pid = int(started.read_text())
        server.kill()
    wait_for(lambda: not psutil.pid_exists(pid) or psutil.Process(pid).status() == psutil.STATUS_ZOMBIE)
