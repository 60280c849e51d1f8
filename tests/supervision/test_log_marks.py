"""The places of starts and exits in log files, which are measured in threads."""

from __future__ import annotations

import asyncio
import ctypes
import threading
from collections.abc import Callable, Coroutine, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from models.config.settings import Config, ServerSettings, SupervisorSettings
from models.supervision.process import ProcessSpec, Restart, Seconds, Status
from supervisor.processes.logs import access as log_access
from supervisor.processes.logs import files as log_files
from supervisor.processes.logs import process_logs
from supervisor.processes.logs.files import LogFile, log_sizes
from supervisor.services import Services, open_services

Work = Callable[[Services], Coroutine[Any, Any, None]]


@pytest.fixture(autouse=True)
def subreaper() -> Iterator[None]:
    yield
    ctypes.CDLL(None).prctl(36, 0, 0, 0, 0)  # this process is no longer one


def with_services(folder: Path, specs: Sequence[ProcessSpec], work: Work) -> None:
    async def run() -> None:
        processes = {spec.name: spec for spec in specs}
        config = Config(server=ServerSettings(data_dir=folder), supervisor=SupervisorSettings(processes=processes))
        async with open_services(config, lambda: config) as services, asyncio.timeout(60):
            await work(services)

    asyncio.run(run())


def test_each_start_and_exit_is_where_the_log_ended_and_no_file_is_looked_up_on_the_loop(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    on_loop = list[str]()
    log = tmp_path / "web.log"

    def noted(path: Path | str) -> Any:
        if threading.current_thread() is threading.main_thread():
            on_loop.append(str(path))
        return log_access.log_place(path)

    async def work(services: Services) -> None:
        monkeypatch.setattr(log_files, "log_place", noted)
        process = services.supervision.fleet.get("web")
        await services.supervision.fleet.start("web")
        await process.until(lambda one: one.record.generation == 6 and one.status is Status.FAILED)
        marks = await services.supervision.process_logs.marks(str(log))
        places = [(mark.is_exit, mark.position) for mark in marks]
        assert places == [place for n in range(6) for place in ((False, 5 * n), (True, 5 * n + 5))]
        assert {mark.exit_code for mark in marks if mark.is_exit} == {3}

    web = ProcessSpec(
        "web", ("sh", "-c", "echo line; exit 3"), restart=Restart.ALWAYS, restart_delay=Seconds(0), restart_limit=5,
        stdout_logfile=str(log),
    )  # fmt: skip
    with_services(tmp_path, [web], work)
    assert on_loop == []


def test_log_whose_file_system_does_not_answer_holds_only_its_marks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    answers, calls = threading.Event(), list[str]()

    def hung(files: Sequence[LogFile]) -> Mapping[str, int]:
        if any("web" in file.path for file in files):
            calls.append("web")
            answers.wait()
        return log_sizes(files)

    async def work(services: Services) -> None:
        monkeypatch.setattr(process_logs, "log_sizes", hung)
        monkeypatch.setattr(process_logs, "_MEASURE_SECONDS", 1)  # that of the other takes less, also under load
        fleet = services.supervision.fleet
        try:
            start = asyncio.create_task(fleet.start("web"))
            await fleet.start("other")
            await start
            for _ in range(2):
                await fleet.stop("web")
                await fleet.start("web")
            assert fleet.get("web").live
            assert calls == ["web"], "a thread for each start and exit"
        finally:
            answers.set()
        assert await services.supervision.process_logs.marks(str(tmp_path / "web.log")) == []
        assert len(await services.supervision.process_logs.marks(str(tmp_path / "other.log"))) == 1

    specs = [
        ProcessSpec(name, ("sleep", "1000"), stdout_logfile=str(tmp_path / f"{name}.log")) for name in ("web", "other")
    ]
    with_services(tmp_path, specs, work)
