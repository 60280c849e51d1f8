"""Log files are rotated as they grow: by one inotify descriptor, without a timer while nothing is written."""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import statistics
import sys
import threading
from collections.abc import AsyncIterator, Coroutine, Iterable
from pathlib import Path
from typing import Any

import pytest
from conftest import until

from supervisor.processes.logs import growth as log_growth
from supervisor.processes.logs.files import LogFile, LogFiles
from supervisor.processes.logs.growth import LogGrowth

LIMIT = 10_000


def run(work: Coroutine[Any, Any, None]) -> None:
    asyncio.run(asyncio.wait_for(work, 60))


@contextlib.asynccontextmanager
async def watching(*paths: Path) -> AsyncIterator[LogGrowth]:
    """Watches these files as a server does, without its periodic checks."""
    files = [LogFile(str(path), LIMIT, 3) for path in paths]
    growth = LogGrowth(LogFiles(lambda: files))
    watch = asyncio.create_task(growth.watch())
    growth.add(files)
    yield growth
    watch.cancel()
    await asyncio.wait({watch})


async def is_watched(growth: LogGrowth, *paths: Path) -> None:
    await until(lambda: {str(path) for path in paths} <= growth._sizes.keys() and not growth._due)


def append(path: Path, size: int) -> None:
    with path.open("ab") as file:
        file.write(b"x" * size)


def inotify_descriptors() -> int:
    links = []
    for descriptor in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(FileNotFoundError):
            links.append(os.readlink(descriptor))
    return links.count("anon_inode:inotify")


def test_a_file_is_rotated_whenever_it_has_grown_beyond_its_limit(tmp_path: Path) -> None:
    path = tmp_path / "log"
    path.touch()

    async def work() -> None:
        async with watching(path):
            for number in range(1, 4):
                for _ in range(4):
                    append(path, LIMIT // 3)
                await until(lambda: path.stat().st_size < LIMIT)
                assert len(list(tmp_path.iterdir())) == 1 + number

    run(work())


@pytest.mark.parametrize(("before", "written", "rotated"), [(0, 0.6, True), (0.6, 0.01, False), (0, 0.4, False)])
def test_fast_growing_file_is_rotated_at_half_of_its_limit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, before: float, written: float, rotated: bool
) -> None:
    monkeypatch.setattr(log_growth, "_FAST_BYTES_PER_SECOND", 1.0)  # however late the check is
    path = tmp_path / "log"
    append(path, int(before * 10_000_000))

    async def work() -> None:
        async with watching() as growth:
            growth.add([LogFile(str(path), 10_000_000, 1)])
            await is_watched(growth, path)
            append(path, int(written * 10_000_000))
            await until(lambda: bool(growth._due))
            await is_watched(growth, path)
            assert (tmp_path / "log.1").exists() is rotated

    run(work())


WRITER = """
import os, sys, time
file, block = os.open(sys.argv[1], os.O_WRONLY | os.O_APPEND), 64 * 1024
size, rotated = 0, []
for _ in range(10_000):
    os.write(file, bytes(block))
    before, size = size, os.fstat(file).st_size
    if size < before:
        rotated.append(before)
    if len(rotated) == 40:
        break
    time.sleep(block / 100e6)
print(*rotated)
"""


def test_a_small_log_written_at_the_highest_rate_stays_within_twice_its_limit(tmp_path: Path) -> None:
    path, limit = tmp_path / "log", 500_000
    path.touch()

    async def work() -> None:
        async with watching() as growth:
            growth.add([LogFile(str(path), limit, 1)])
            await is_watched(growth, path)
            writer = await asyncio.create_subprocess_exec(
                sys.executable, "-c", WRITER, str(path), stdout=asyncio.subprocess.PIPE
            )
            output, _ = await writer.communicate()
            sizes = [int(size) for size in output.split()]
            assert len(sizes) == 40
            assert statistics.median(sizes) <= 2 * limit  # on an idle machine this is true of each size
            await is_watched(growth, path)  # nothing is due again

    run(work())


def test_many_idle_files_cost_one_descriptor_and_no_timer(tmp_path: Path) -> None:
    paths = [tmp_path / str(number) for number in range(50)]
    for path in paths:
        path.touch()

    async def work() -> None:
        before = inotify_descriptors()
        async with watching(*paths) as growth:
            await is_watched(growth, *paths)
            assert inotify_descriptors() == before + 1
            append(paths[7], 10)
            await until(lambda: bool(growth._due))
            assert list(growth._due) == [str(paths[7])]
            await is_watched(growth, *paths)  # nothing is due, so no timer runs
        assert inotify_descriptors() == before

    run(work())


@pytest.mark.parametrize("change", ["deleted", "renamed", "missing at first", "large at first"])
def test_replaced_or_new_file_is_watched(tmp_path: Path, change: str) -> None:
    path = tmp_path / "log"
    if change != "missing at first":
        append(path, 3 * LIMIT if change == "large at first" else 1)

    async def work() -> None:
        async with watching(path) as growth:
            if change in ("deleted", "renamed"):
                await is_watched(growth, path)
                with path.open("rb"):  # a process may hold it open
                    path.unlink() if change == "deleted" else path.rename(tmp_path / "moved")
                    await until(lambda: str(path) not in growth._sizes and not growth._due)
            if change != "large at first":
                append(path, 1)
                await growth.rotate_all()
                await is_watched(growth, path)
                append(path, LIMIT)
            await until((tmp_path / "log.1").exists)

    run(work())


def test_failed_rotation_is_retried_in_the_next_round(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    broken, good = tmp_path / "broken", tmp_path / "good"
    copy, attempts = shutil.copyfileobj, 0

    def copy_unless_broken(source: Any, target: Any, length: int = 0) -> None:
        nonlocal attempts
        if os.readlink(f"/proc/self/fd/{source.fileno()}") == str(broken):
            attempts += 1
            raise OSError(5, os.strerror(5))
        copy(source, target, length)

    monkeypatch.setattr(shutil, "copyfileobj", copy_unless_broken)

    async def work() -> None:
        broken.touch()
        good.touch()
        async with watching(broken, good) as growth:
            await is_watched(growth, broken, good)
            append(broken, LIMIT)
            await until(lambda: attempts == 1)
            for number in (1, 2):  # each takes as long as another attempt would
                append(broken, LIMIT)
                append(good, LIMIT)
                await until(lambda number=number: good.with_name(f"good.{number}").exists())  # type: ignore[misc]
            assert attempts == 1
            await growth.rotate_all()
            assert attempts == 2

    run(work())


def test_a_limit_that_a_reload_lowers_applies_to_the_next_write(tmp_path: Path) -> None:
    path = tmp_path / "log"
    path.touch()

    async def work() -> None:
        async with watching(path) as growth:
            await is_watched(growth, path)
            growth.add([LogFile(str(path), 100, 1)])
            append(path, 100)
            await until((tmp_path / "log.1").exists)

    run(work())


def test_write_before_the_new_watch_is_registered_is_noticed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A watch reports once: an event that is lost would leave the file unwatched."""
    path, is_read, watches = tmp_path / "log", threading.Event(), list[str]()
    append(path, 10)
    watch_files, read_inotify = log_growth.watch_files, log_growth.read_inotify

    def watch_and_write(inotify: int, paths: Iterable[str]) -> Any:
        watched = watch_files(inotify, paths)
        watches.extend(paths)
        if len(watches) == 2:
            is_read.clear()
            append(path, LIMIT)
            assert is_read.wait(10)
        return watched

    def read(inotify: int) -> list[int]:
        descriptors = read_inotify(inotify)
        if descriptors:
            is_read.set()
        return descriptors

    monkeypatch.setattr(log_growth, "watch_files", watch_and_write)
    monkeypatch.setattr(log_growth, "read_inotify", read)

    async def work() -> None:
        async with watching(path) as growth:
            await is_watched(growth, path)
            append(path, 10)
            await until((tmp_path / "log.1").exists)

    run(work())


def test_periodic_checks_rotate_files_without_inotify(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "log"
    append(path, LIMIT)

    def fail_to_open() -> int:
        raise OSError(24, os.strerror(24))

    monkeypatch.setattr(log_growth, "open_inotify", fail_to_open)

    async def work() -> None:
        async with watching(path) as growth:
            await growth.rotate_all()
            assert (tmp_path / "log.1").exists()
            await until(lambda: "not as they grow" in caplog.text)

    run(work())
    assert caplog.text.count("log files are checked every five seconds only, not as they grow: Too many open") == 1
