"""Stored metrics: kept across restarts, bounded by the retention, and no delay of samples by a failing store."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import threading
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping
from concurrent.futures import Executor
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from models.config.settings import MetricSettings
from models.supervision import events, metrics
from models.supervision.events import StatusEvent
from models.supervision.metrics import MEMORY_MINUTES, MetricStep
from models.supervision.process import Seconds, Status
from models.supervision.tables import database
from supervisor.clock import Clock
from supervisor.processes.metrics import MetricsHistory
from supervisor.processes.process.process import Process
from supervisor.processes.usage import Meter, Usage

MINUTE = 60
START = 1_800_000_000 // MINUTE
DAY = 1440


class HandSetClock(Clock):
    def __init__(self, minute: int) -> None:
        self.minute = minute
        super().__init__()

    def now(self) -> int:
        return self.minute * MINUTE * 1_000_000

    def settled(self) -> int:
        return self.now()

    def since_boot(self) -> float:
        return float(self.minute * MINUTE)


class FixedMeter(Meter):
    """Reports the number of the minute as the usage of every process, and twice that of its group."""

    def __init__(self, clock: HandSetClock) -> None:
        super().__init__(clock)
        self._clock = clock

    async def sample(
        self, processes: Iterable[Process], executor: Executor | None = None
    ) -> tuple[Mapping[str, tuple[Usage, Usage]], list[str]]:
        number = cast("HandSetClock", self._clock).minute % 100
        usage = Usage(number, number * 4096)
        return {process.name: (usage, Usage(2 * number, number * 8192)) for process in processes}, []


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Path]:
    path = tmp_path / "pilothouse.db"
    database.open(path)
    yield path
    database.close()


class Server:
    """A metrics history that is sampled minute by minute, as in one run of the server."""

    def __init__(self, first: int, *names: str, keep: int = DAY) -> None:
        self.fleet = [SimpleNamespace(name=name) for name in names]
        self.clock, self.keep = HandSetClock(first), keep
        fleet = cast("list[Process]", self.fleet)
        self.history = MetricsHistory(
            fleet, FixedMeter(self.clock), self.clock, lambda: MetricSettings(keep=Seconds(self.keep * MINUTE))
        )

    async def run(
        self, minutes: int, each: Callable[[int], None] = lambda _: None, *, waits: Callable[[], bool] = lambda: True
    ) -> None:
        """Samples once a minute, and `waits` until the minutes are stored; `each` is called with the minute."""
        passed = 0

        async def round_end() -> None:
            nonlocal passed
            if self.history._storing is not None and waits():
                await self.history._storing
            each(passed)
            passed += 1
            if passed == minutes:
                raise asyncio.CancelledError
            self.clock.minute += 1

        with contextlib.suppress(asyncio.CancelledError):
            await self.history.watch(5, cast("Callable[[], Awaitable[None]]", round_end))
        await self.history.close(20)

    async def points(self, name: str, first: int, last: int) -> list[MetricStep]:
        return (await self.history.window(name, first * MINUTE, (last + 1) * MINUTE, MINUTE))[0]


def rows() -> list[tuple[str, int]]:
    query = "SELECT name, minute FROM metric_minute JOIN metric_process ON id = process ORDER BY minute, name"
    return [(name, minute) for name, minute in database.execute_sql(query)]


@pytest.mark.usefixtures("store")
def test_stored_minutes_are_continued_after_a_restart() -> None:
    async def work() -> None:
        await Server(START, "web").run(200)
        assert rows() == [("web", START + number) for number in range(200)]
        second = Server(START + 199, "web")
        await second.run(10)
        points = await second.points("web", START, START + 300)
        assert [point.at // MINUTE for point in points] == [START + number for number in range(209)]
        for point in points:
            number = point.at // MINUTE % 100
            assert point.values[:4] == pytest.approx((number, number, 4096 * number, 4096 * number))
            assert point.values[4:] == pytest.approx((2 * number, 2 * number, 8192 * number, 8192 * number))
        hour = second.history.of("web").points((START + 147) * MINUTE, (START + 209) * MINUTE, MINUTE)
        assert hour == points[-MEMORY_MINUTES:]

    asyncio.run(work())


@pytest.mark.usefixtures("store")
def test_rows_are_bounded_by_the_retention_also_after_it_changes() -> None:
    counts = list[int]()

    async def work() -> None:
        server = Server(START, "web", "job", keep=90)
        await server.run(200, lambda _: counts.append(len(rows())))
        assert max(counts) == 2 * 89
        assert len(rows()) == 2 * 90
        assert {minute for _, minute in rows()} == set(range(START + 110, START + 200))
        assert len(await server.points("web", START, START + 200)) == 90
        shorter = Server(START + 200, "web", "job", keep=5)
        await shorter.run(3)
        assert {minute for _, minute in rows()} == set(range(START + 198, START + 203))

    asyncio.run(work())


@pytest.mark.usefixtures("store")
def test_minutes_in_the_future_are_deleted_after_the_clock_is_set_back() -> None:
    async def work() -> None:
        server = Server(START, "web")

        def set_back(number: int) -> None:
            if number == 100:
                server.clock.minute -= 50

        await server.run(110, set_back)
        assert [minute for _, minute in rows()] == list(range(START, START + 60))
        assert len(await server.points("web", START, START + 200)) == 60

    asyncio.run(work())


@pytest.mark.usefixtures("store")
def test_only_rows_of_removed_processes_are_deleted() -> None:
    async def work() -> None:
        await Server(START, "gone", "web", "job").run(130)
        server = Server(START + 130, "web", "job")
        seen = list[set[str]]()

        def check(number: int) -> None:
            assert metrics.names() == {name for name, _ in rows()}
            seen.append(metrics.names())
            if number == 1:
                del server.fleet[1]

        await server.run(3, check)
        assert seen == [{"web", "job"}, {"web", "job"}, {"web"}]
        assert len(await server.points("web", START, START + 200)) == 133

    asyncio.run(work())


@pytest.mark.usefixtures("store")
def test_failing_store_is_reported_once_and_gets_the_minutes_afterwards(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.WARNING, "metrics")

    def fail(number: int) -> None:
        if number == 3:
            database.execute_sql("ALTER TABLE metric_minute RENAME TO away")
        if number == 30:
            assert [record.levelname for record in caplog.records] == ["ERROR"]
            assert "metrics cannot be stored (no such table: metric_minute): sampling goes on" in caplog.text
            database.execute_sql("ALTER TABLE away RENAME TO metric_minute")

    async def work() -> None:
        server = Server(START, "web")
        await server.run(35, fail)
        assert rows() == [("web", START + number) for number in range(35)]
        assert [record.levelname for record in caplog.records] == ["ERROR", "WARNING"]

    asyncio.run(work())


@pytest.mark.usefixtures("store")
def test_a_disk_that_hangs_delays_no_sample(monkeypatch: pytest.MonkeyPatch) -> None:
    write, released = metrics.write, threading.Event()

    def wait_and_write(*arguments: Any) -> None:
        released.wait(30)
        write(*arguments)

    monkeypatch.setattr(metrics, "write", wait_and_write)

    async def work() -> None:
        server = Server(START, "web")

        def check(number: int) -> None:
            if number == 4:
                assert len(server.history.of("web").minutes(0)) == 5
                assert rows() == []
                released.set()

        await server.run(6, check, waits=released.is_set)
        assert rows() == [("web", START + number) for number in range(6)]

    asyncio.run(work())


@pytest.mark.usefixtures("store")
def test_sampling_continues_if_the_store_cannot_be_read_at_the_start(caplog: pytest.LogCaptureFixture) -> None:
    async def work() -> None:
        await Server(START, "web").run(5)
        database.execute_sql("ALTER TABLE metric_minute RENAME TO away")
        server = Server(START + 5, "web")

        def restore_table(number: int) -> None:
            if number == 3:
                assert "stored metrics cannot be read (no such table: metric_minute)" in caplog.text
                database.execute_sql("ALTER TABLE away RENAME TO metric_minute")

        await server.run(5, restore_table)
        assert [minute for _, minute in rows()] == list(range(START, START + 10))
        assert len(await server.points("web", START, START + 10)) == 10

    asyncio.run(work())


@pytest.mark.usefixtures("store")
def test_starts_returns_the_start_times_of_the_events_in_the_window() -> None:
    def entry(id: int, start: int | None, at: int, process: str = "web") -> StatusEvent:
        times: dict[str, Any] = {"at": at, "start": start, "end": None}
        return StatusEvent(
            id=id, process=process, pid=1, exit_code=None, new=Status.RUNNING, old=Status.STARTING, uptime=0, **times
        )

    with database.atomic():
        events.append([entry(1, 100, 100), entry(2, 100, 150), entry(3, 200, 200), entry(4, 210, 210, "job")])
        events.append([entry(5, None, 250), entry(6, 300, 301), entry(7, 400, 400)])
    assert events.starts("web", 0, 1000, 100) == [100, 200, 300, 400]
    assert events.starts("web", 101, 399, 100) == [200, 300]
    assert events.starts("web", 0, 1000, 2) == [300, 400]
    assert events.starts("none", 0, 1000, 2) == []
