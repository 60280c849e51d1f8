"""Threads for log files: one for each file, whatever its file system does."""

from __future__ import annotations

import asyncio
import errno
import threading
from concurrent.futures import wait
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from conftest import until

from models.config.settings import Config, ServerSettings, SupervisorSettings
from models.supervision.process import ProcessSpec
from supervisor.processes.logs import access as log_access
from supervisor.processes.logs import files as log_files
from supervisor.processes.logs import threads
from supervisor.processes.logs.files import LogFiles, tail
from supervisor.processes.logs.rotation import Rotated
from supervisor.processes.logs.threads import LogThreads
from supervisor.scheduling import DaemonThreads
from supervisor.services import open_services


class Hanging:
    """Work that waits until its file system answers."""

    def __init__(self) -> None:
        self.answers = threading.Event()
        self.calls = 0

    def __call__(self) -> int:
        self.calls += 1
        self.answers.wait()
        return self.calls


async def check_timed_out(pool: LogThreads, hanging: Hanging) -> None:
    with pytest.raises(OSError, match="the file system does not answer") as raised:
        await pool.run("hung", hanging)
    assert raised.value.errno == errno.ETIMEDOUT


def test_a_file_that_hangs_holds_one_thread_and_no_other_file(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(threads, "ANSWER_SECONDS", 1.0)

    async def work() -> None:
        pool, hanging = LogThreads(), Hanging()
        try:
            for _ in range(3):
                await check_timed_out(pool, hanging)
            assert hanging.calls == 1
        finally:
            hanging.answers.set()
        await until(lambda: not pool._running)
        assert await pool.run("hung", hanging) == 2

    asyncio.run(work())


def test_what_comes_too_late_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """As the descriptor of a file: by a timeout, and by a caller that leaves. What comes in time is the caller's."""
    monkeypatch.setattr(threads, "ANSWER_SECONDS", 1.0)
    late: list[int] = []

    async def work() -> None:
        pool, timed_out, left = LogThreads(), Hanging(), Hanging()
        try:
            with pytest.raises(OSError, match="the file system does not answer"):
                await pool.run("hung", timed_out, late.append)
            caller = asyncio.create_task(pool.run("left", left, late.append))
            await until(lambda: left.calls == 1)
            caller.cancel()
            await asyncio.wait({caller})
            assert late == []
        finally:
            timed_out.answers.set()
            left.answers.set()
        await until(lambda: len(late) == 2)
        assert await pool.run("hung", timed_out, late.append) == 2
        assert late == [1, 1]

    asyncio.run(work())


def test_a_caller_that_leaves_does_not_free_the_file(monkeypatch: pytest.MonkeyPatch) -> None:
    async def work() -> None:
        pool, hanging = LogThreads(), Hanging()
        try:
            callers = [asyncio.create_task(pool.run("hung", hanging)) for _ in range(5)]
            await until(lambda: hanging.calls == 1)
            for one in callers[:4]:
                one.cancel()
            await asyncio.wait(callers[:4])
            assert await pool.run("other", lambda: "read") == "read"
            assert hanging.calls == 1
        finally:
            hanging.answers.set()
        assert await callers[4] == 2
        await until(lambda: not pool._running)

    asyncio.run(work())


def test_calls_of_many_at_once_take_turns() -> None:
    async def work() -> None:
        pool, running, most = LogThreads(), 0, list[int]()

        def read() -> None:
            nonlocal running
            running += 1
            most.append(running)
            running -= 1

        await asyncio.gather(*(pool.run("one", read) for _ in range(200)))
        assert most == [1] * 200
        with pytest.raises(ZeroDivisionError):
            await pool.run("one", lambda: 1 // 0)
        assert await pool.run("two", lambda: 2) == 2

    asyncio.run(work())


def test_no_more_threads_than_allowed_run() -> None:
    pool = DaemonThreads(2, "some")
    for _ in range(300):
        futures = [pool.submit(threading.get_ident) for _ in range(4)]
        assert not wait(futures, 60).not_done
        assert pool._threads <= 2


def test_work_that_follows_other_work_at_once_starts_no_thread() -> None:
    pool, ended, calls = DaemonThreads(64, "some"), threading.Event(), list[object]()

    def go_on(call: object) -> None:
        calls.append(call)
        if len(calls) < 100:
            pool.submit(threading.get_ident).add_done_callback(go_on)
        else:
            ended.set()

    go_on(None)
    assert ended.wait(60)
    assert pool._threads == 1


def test_one_thread_uses_all_files_and_one_more_each_that_hangs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(threads, "ANSWER_SECONDS", 1.0)

    async def work() -> None:
        pool, hanging = LogThreads(), Hanging()

        def read(path: str) -> str:
            if path.startswith("hung"):
                hanging()
            return path.upper()

        paths = ["a", "hung 1", "b", "hung 2", "c"]
        try:
            assert await pool.run_each(paths, read) == {"a": "A", "b": "B", "c": "C"}
            assert [path for path in paths if pool.hangs(path)] == ["hung 1", "hung 2"]
            assert await pool.run_each(paths, read) == {"a": "A", "b": "B", "c": "C"}
            with pytest.raises(OSError, match="does not answer"):
                await pool.run("hung 1", lambda: None)
            assert hanging.calls == 2
        finally:
            hanging.answers.set()
        await until(lambda: not pool._running)
        assert (await pool.run_each(paths, read)).keys() == set(paths)
        with pytest.raises(ZeroDivisionError):
            await pool.run_each(["a"], lambda _: 1 // 0)

    asyncio.run(work())


def test_so_many_files_that_hang_are_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(threads, "ANSWER_SECONDS", 1.0)
    monkeypatch.setattr(threads, "MAX_THREADS", 2)

    async def work() -> None:
        pool, hanging = LogThreads(), Hanging()
        try:
            for path in ("one", "two"):
                with pytest.raises(OSError, match="the file system does not answer"):
                    await pool.run(path, hanging)
            with pytest.raises(OSError, match="2 log files do not answer"):
                await pool.run("three", lambda: None)
            assert await pool.run_each(["three"], str) == {}
        finally:
            hanging.answers.set()

    asyncio.run(work())


def test_logs_that_hang_hold_no_thread_of_the_default_pool(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    answers, hung = threading.Event(), set[str]()

    def hanging(path: Path | str) -> Any:
        hung.add(str(path))
        answers.wait()
        return real(path)

    real = log_access.log_place
    paths = [str(tmp_path / f"{number}.log") for number in range(12)]
    processes = {
        f"hung{number}": ProcessSpec(f"hung{number}", ("true",), stdout_logfile=path)
        for number, path in enumerate(paths)
    }
    config = Config(server=ServerSettings(data_dir=tmp_path), supervisor=SupervisorSettings(processes=processes))

    async def work() -> None:
        async with open_services(config, lambda: config) as services, asyncio.timeout(60):
            monkeypatch.setattr(log_access, "log_place", hanging)
            logs = services.supervision.logs
            readers = [asyncio.create_task(logs.threads.run(path, partial(tail, Path(path), 1))) for path in paths]
            try:
                await until(lambda: hung == set(paths))
                assert await services.tracker.run(lambda: "read") == "read"
                assert await asyncio.to_thread(lambda: "read") == "read"
            finally:
                answers.set()
            assert await asyncio.gather(*readers) == [(b"", 0)] * len(paths)

    asyncio.run(work())


def test_readers_do_not_wait_for_ever_for_a_rotation_that_hangs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(log_files, "_ROTATION_SECONDS", 0.05)
    (tmp_path / "log").write_bytes(b"one\n")

    async def work() -> None:
        logs, answers = LogFiles(list), threading.Event()

        def rotate() -> list[Rotated]:
            answers.wait()
            return []

        rotation = asyncio.create_task(logs.rotate_in(logs.threads.executor, rotate))
        await until(logs._rotation_lock.locked)
        try:
            for read in (logs.begin(str(tmp_path / "log"), 1), logs.clear([str(tmp_path / "log")])):
                with pytest.raises(OSError, match="is being rotated, whose file system does not answer"):
                    await read
        finally:
            answers.set()
        await rotation
        assert (await logs.begin(str(tmp_path / "log"), 1))[0] == b"one\n"

    asyncio.run(work())
