"""The outbox is opened by one task at a time, which closes what it cannot load."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path
from typing import Any

import pytest

from models.config.settings import Config, NotifySettings, ServerSettings
from models.errors import TimedOut, Unavailable
from models.tracker.project_secrets import ProjectSecrets
from supervisor.charts.workers import Workers
from supervisor.clock import Clock
from supervisor.outbound import service
from supervisor.outbound.service import Outbound
from supervisor.scheduling import BackgroundTasks
from supervisor.tracker.disk_space import DiskSpace


class Core:
    """Parts that take some time to make, and cannot be loaded the first times."""

    def __init__(self, failures: list[Exception]) -> None:
        self.failures = failures
        self.is_closed = self.is_started = False

    async def run_deletion(self, work: Any) -> None:
        work()

    def load(self) -> None:
        if self.failures:
            raise self.failures.pop()

    def start(self, _: BackgroundTasks) -> None:
        self.is_started = True

    async def close(self) -> None:
        self.is_closed = True


class Opening:
    def __init__(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *failures: Exception) -> None:
        config = Config(server=ServerSettings(data_dir=tmp_path), notify=NotifySettings())
        self.made: list[Core] = []
        self.may_open = threading.Event()
        self.may_open.set()
        facts = config, Clock(), "node", ProjectSecrets(config.server), dict
        self.outbound = Outbound(*facts, Workers().parse_json, DiskSpace(tmp_path, 0))
        self.tasks = BackgroundTasks(lambda name, error: None)
        left = list(failures)

        def make() -> Core:
            self.made.append(Core(left))
            assert self.may_open.wait(60)
            return self.made[-1]

        monkeypatch.setattr(self.outbound, "_make", make)
        monkeypatch.setattr(self.outbound, "_is_used", lambda: True)
        monkeypatch.setattr(service, "_FIRST_OPENING_SECONDS", 0.05)
        monkeypatch.setattr(service, "_RETRY_SECONDS", 0.01)


def test_what_cannot_be_loaded_is_closed_and_opened_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    one = Opening(tmp_path, monkeypatch, TimedOut("the query took longer than 20 s"))

    async def work() -> None:
        await one.outbound.start(one.tasks)
        await one.outbound.core()

    asyncio.run(work())
    assert [(core.is_closed, core.is_started) for core in one.made] == [(True, False), (False, True)]


def test_a_problem_of_the_store_is_unavailable(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    one = Opening(tmp_path, monkeypatch, TimedOut("late"))

    async def work() -> None:
        one.outbound._tasks = one.tasks
        with pytest.raises(Unavailable, match="the outbox is not available: late"):
            await one.outbound.core()

    asyncio.run(work())


def test_a_slow_store_is_opened_once_and_delays_the_start_a_little(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = Opening(tmp_path, monkeypatch)
    one.may_open.clear()
    monkeypatch.setattr(service, "_FIRST_OPENING_SECONDS", 0.05)

    async def work() -> None:
        await asyncio.wait_for(one.outbound.start(one.tasks), 30)
        one.may_open.set()
        await asyncio.gather(*(one.outbound.core() for _ in range(5)))

    asyncio.run(work())
    assert len(one.made) == 1
