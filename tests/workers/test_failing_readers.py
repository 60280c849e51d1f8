"""A worker process that fails while it reads an upload, in whatever way, loses that upload only."""

from __future__ import annotations

import asyncio
import contextlib
import os
import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from attrs import evolve
from conftest import wait_for
from records import open_store
from tornado.httputil import HTTPHeaders
from uploads import junit

from models.charts.repositories import staged_index
from models.charts.repositories import stored as catalogued
from models.charts.repositories.stored import Chart, ChartVersion, RepositoryRow, RepositorySource, catalogue
from models.config.settings import ChartSecurity, Config, FetchSettings, WorkerSettings
from models.errors import Failed, Problem, TimedOut, TooLarge
from models.tracker.reports.upload_folder import Received
from models.tracker.runs.store import StoredRun, Upload
from models.tracker.tables import Project, Run
from supervisor.charts.fetcher import Fetcher
from supervisor.charts.repositories import Repositories
from supervisor.charts.workers import Workers
from supervisor.children.child import Children
from supervisor.clock import Clock
from supervisor.http.client import Request, Response
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


async def send(made: Ingest, project: str) -> StoredRun:
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
        pool = WorkerPool(WorkerSettings(processes=1), children, "test", environ, 10)
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


INDEX = "apiVersion: v1\nentries: {shop: [{version: 1.0.0, urls: [a.tgz]}]}\n"
STAGED_FAULTS = {
    "view": "DROP TABLE listing; CREATE VIEW listing AS SELECT x'5b5d' AS charts",
    "trigger": "CREATE TRIGGER t AFTER INSERT ON charts BEGIN DELETE FROM listing; END",
    "no listing": "DELETE FROM listing",
    "null listing": "UPDATE listing SET charts = NULL",
    "chart of another repository": "INSERT INTO charts VALUES (-1, 'evil', x'5b5d')",
    "chart without a name": "UPDATE charts SET name = NULL",
    "chart with a huge number": "UPDATE charts SET id = 9223372036854775800",
    "version without a URL": "UPDATE versions SET url = NULL",
}


class OneIndex(Fetcher):
    """Has the same index at each URL."""

    async def fetch(self, request: Request) -> Response:
        assert request.into is not None
        request.into.write_text(INDEX)
        return Response(request.url, 200, HTTPHeaders(), b"", len(INDEX), "")


@pytest.fixture
def repositories(tmp_path: Path) -> Iterator[Repositories]:
    catalogue.open(tmp_path / "charts.db")
    try:
        yield Repositories(OneIndex(FetchSettings(), ChartSecurity()), Clock(), Workers())
    finally:
        catalogue.close()


def staged_by(statement: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each index is staged, then its staged file is changed."""
    stage = staged_index.stage

    def stage_and_change(file: Path, rows: Path, repository: str | None) -> None:
        stage(file, rows, repository)
        with contextlib.closing(sqlite3.connect(rows)) as store:
            store.executescript(statement)

    monkeypatch.setattr(staged_index, "stage", stage_and_change)


@pytest.mark.parametrize("fault", STAGED_FAULTS)
def test_an_index_that_is_staged_with_a_fault_is_not_stored(
    fault: str,
    tmp_path: Path,
    repositories: Repositories,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    asyncio.run(repositories.add(RepositorySource("first", "https://first"), tmp_path))
    staged_by(STAGED_FAULTS[fault], monkeypatch)
    with pytest.raises(Failed, match="could not be stored: an error in the server"):
        asyncio.run(repositories.add(RepositorySource("second", "https://second"), tmp_path))
    assert "its staged rows are not valid" in caplog.text
    assert [source.name for source in catalogued.all_named()] == ["first"]
    assert [row.name for row in Chart.select()] == ["shop"]


def test_a_staged_index_writes_no_version_of_another_repository(
    tmp_path: Path, repositories: Repositories, monkeypatch: pytest.MonkeyPatch
) -> None:
    asyncio.run(repositories.add(RepositorySource("first", "https://first"), tmp_path))
    staged_by("INSERT INTO versions VALUES (-1, '99.0.0', 0, 'https://evil/a.tgz', '', '', 0)", monkeypatch)
    asyncio.run(repositories.add(RepositorySource("second", "https://second"), tmp_path))
    query = ChartVersion.select(RepositoryRow.name, ChartVersion.version).join(Chart).join(RepositoryRow)
    assert set(query.tuples()) == {("first", "1.0.0"), ("second", "1.0.0")}
