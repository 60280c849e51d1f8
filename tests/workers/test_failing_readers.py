"""A worker process that fails while it reads an upload, in whatever way, loses that upload only."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from attrs import evolve
from conftest import wait_for
from records import open_store
from uploads import junit

from models.config.settings import Config, WorkerProcesses
from models.errors import Failed, Problem, TimedOut, TooLarge
from models.tracker.reports.upload_folder import Received
from models.tracker.runs.store import Stored, Upload
from models.tracker.tables import Project, Run
from supervisor.children.child import Children
from supervisor.clock import Clock
from supervisor.tracker import ingest
from supervisor.tracker.attachments import Attachments
from supervisor.tracker.disk_space import DiskSpace
from supervisor.tracker.ingest import Ingest
from supervisor.workers.pool import WorkerPool
from supervisor.workers.process import Job

HERE = Path(__file__).parent
FAULTS: dict[str, type[Problem]] = {
    "read_with_view": Failed,
    "read_with_trigger": Failed,
    "read_and_write_garbage": Failed,
    "read_and_answer_much": Failed,
    "read_and_answer_garbage": Failed,
    "read_and_die": Failed,
    "read_and_stop": TimedOut,
    "read_and_waste": TooLarge,
}


@pytest.fixture(autouse=True)
def store(tmp_path: Path) -> Iterator[None]:
    with open_store(tmp_path / "tracker.db", None):
        yield


async def send(made: Ingest, project: str) -> Stored:
    folder = made.folder()
    folder.mkdir()
    (folder / "0").write_text(junit(passed=3))
    return await made.run(folder, Upload(project), [Received("junit", "a.xml", "0")], None, "me", lambda _: None)


@pytest.mark.parametrize("fault", FAULTS)
def test_a_failing_reader_loses_its_upload_only(fault: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    function = f"worker_jobs:{fault}"

    def failing(*arguments: Any) -> Job[Any]:
        job: Job[Any] = Job(*arguments)
        return evolve(job, function=function, seconds=1.0 if fault == "read_and_stop" else job.seconds)

    async def work() -> None:
        clock, children = Clock(), Children()
        attachments = Attachments(tmp_path / "attachments", Config().tracker.attachments, clock, asyncio.to_thread)
        environ = {**os.environ, "PYTHONPATH": str(HERE)}
        pool = WorkerPool(WorkerProcesses(processes=1), children, "test", environ, 10)
        incoming = tmp_path / "incoming"
        made = Ingest(incoming, Config(), clock, lambda _: None, attachments, pool, DiskSpace(tmp_path, 0))
        try:
            made.sweep()
            assert (await send(made, "before")).run.tests == 3
            with monkeypatch.context() as changed:
                changed.setattr(ingest, "Job", failing)
                with pytest.raises(FAULTS[fault]):
                    await send(made, "lost")
            assert (await send(made, "after")).run.tests == 3
            await asyncio.to_thread(wait_for, lambda: not list(incoming.iterdir()))
        finally:
            await made.close(60)
            children.close()

    asyncio.run(work())
    assert [project.name for project in Project.select().order_by(Project.id)] == ["before", "after"]
    assert Run.select().count() == 2
