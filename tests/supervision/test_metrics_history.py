"""The history of CPU and memory: its bounds and sums, by REST, and on the pages of a real server."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Iterator
from unittest.mock import Mock

import pytest
from browsing import Browser, address, page
from conftest import Server, wait_for
from talk import running_server

from models.config.settings import Metrics
from models.supervision.metrics import MAX_SAMPLES, Series, peak, step_for
from models.supervision.process import ProcessSpec
from models.supervision.record import Record
from supervisor.clock import Clock
from supervisor.processes.metrics import MetricsHistory
from supervisor.processes.process import Process
from supervisor.processes.usage import Meter

MINUTE = 60
START = 1_800_000_000 // MINUTE * MINUTE


def series(samples: list[tuple[int, float, float]], keep_minutes: int = 1440) -> Series:
    made = Series(keep_minutes)
    for at, cpu, memory in samples:
        made.add(START + at, cpu, memory)
    return made


@pytest.mark.parametrize(
    ("samples", "step", "expected"),
    [
        ([], 60, []),
        ([(0, 1, 10)], 60, [(0, 1, 1, 10, 10)]),
        ([(0, 1, 10), (5, 3, 30)], 60, [(0, 2, 3, 20, 30)]),
        ([(0, 1, 10), (60, 3, 30)], 60, [(0, 1, 1, 10, 10), (60, 3, 3, 30, 30)]),
        ([(0, 1, 10), (60, 3, 30)], 120, [(0, 2, 3, 20, 30)]),
        ([(0, 1, 10), (600, 3, 30)], 60, [(0, 1, 1, 10, 10), (600, 3, 3, 30, 30)]),
        ([(60, 1, 10), (0, 3, 30)], 60, [(60, 2, 3, 20, 30)]),  # a clock that was set back
        ([(0, 1, 10), (5, 3, 30)], 5, [(0, 1, 1, 10, 10), (5, 3, 3, 30, 30)]),
    ],
)
def test_points_are_averages_and_maxima_of_their_step(
    samples: list[tuple[int, float, float]], step: int, expected: list[tuple[int, ...]]
) -> None:
    points = series(samples).points(START, START + 3600, step)
    assert [(one.at - START, one.cpu_avg, one.cpu_max, one.memory_avg, one.memory_max) for one in points] == expected


def test_points_outside_the_window_are_left_out() -> None:
    made = series([(minute * MINUTE, 1, 1) for minute in range(10)])
    points = made.points(START + 2 * MINUTE, START + 4 * MINUTE, MINUTE)
    assert [one.at - START for one in points] == [2 * MINUTE, 3 * MINUTE, 4 * MINUTE]


def test_the_memory_of_a_history_is_bounded() -> None:
    made = series([(minute * MINUTE, 1, 1) for minute in range(5000)], keep_minutes=60)
    assert len(made.points(0, START * 2, MINUTE)) <= 61
    assert len(made._minutes) < 80
    assert len(made._samples) == MAX_SAMPLES


def test_an_axis_and_a_step_fit_the_data() -> None:
    assert peak([]) == (1.0, 1.0)
    assert peak(series([(0, 250, 9)]).points(0, START * 2, MINUTE)) == (250, 9)
    assert [step_for(seconds, 360) for seconds in (60, 21_600, 21_601, 86_400)] == [60, 60, 120, 240]


@pytest.mark.parametrize("is_live", [False, True])
def test_a_sample_uses_a_worker_only_where_a_process_is_live(monkeypatch: pytest.MonkeyPatch, is_live: bool) -> None:
    clock, workers = Clock(), list[object]()
    web = Process(ProcessSpec("web", ("x",)), Mock(), Mock())
    if is_live:
        web.instance, web.record = Mock(), Record("web", pid=os.getpid())
    to_thread = asyncio.to_thread

    async def counted(work: Callable[[], object]) -> object:
        workers.append(work)
        return await to_thread(work)

    monkeypatch.setattr(asyncio, "to_thread", counted)
    history = MetricsHistory([web], Meter(clock), clock, lambda: Metrics())

    async def work() -> None:
        await history.sample()
        await history.sample()

    asyncio.run(work())
    assert len(workers) == is_live
    assert bool(history.of("web").points(0, START * 2, 1)) == is_live


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    processes = {
        "web": {"command": "sleep 1000", "auto-start": True},
        "idle": {"command": "true", "depends-on": ["web"]},
    }
    supervisor = {"metrics": {"interval": "200ms"}}
    with running_server(tmp_path_factory.mktemp("metrics"), processes, supervisor=supervisor) as one:
        wait_for(lambda: len(one.get("/api/v1/processes/metrics/web?step=1").json["points"]) > 2)
        yield one


def test_the_metrics_of_a_process_are_given_with_its_starts(server: Server) -> None:
    found = server.get("/api/v1/processes/metrics/web").json
    assert (found["process"], found["step"], len(found["starts"])) == ("web", 60, 1)
    assert found["points"][0]["memoryMax"] >= found["points"][0]["memoryAvg"] > 0
    assert server.get("/api/v1/processes/metrics/idle").json["points"] == []
    assert server.get("/api/v1/processes/metrics/none").status == 404


@pytest.mark.parametrize(
    "query",
    [
        "from=yesterday",
        "from=2026-11-22T10:00:00",
        "from=2126-11-22T10:00:00Z",
        "step=0",
        "step=60&from=2020-01-01T00:00:00Z",
    ],
)
def test_a_faulty_window_is_refused(server: Server, query: str) -> None:
    assert server.get(f"/api/v1/processes/metrics/web?{query}").status == 400


def test_a_selector_chooses_the_rows_and_a_faulty_one_is_ignored_with_a_note(server: Server) -> None:
    assert "idle" not in page(server, "/processes?select=w*").words
    shown = page(server, "/processes?select=%40none").words
    assert "Ignored: select @none" in shown
    assert "idle" in shown


def test_the_plots_are_read_by_keys_and_selected_rows_are_restarted(chromium: Browser, server: Server) -> None:
    with chromium.page(address(server)) as tab:
        tab.goto("/processes/web?range=10m")
        tab.locator("svg[data-values]").first.focus()
        tab.keyboard.press("ArrowLeft")
        tab.locator("#metrics output", has_text=" % at ").wait_for()
        assert "idle" in tab.locator("#related").inner_text()
        before = server.get("/api/v1/processes/info/web").json["pid"]
        tab.goto("/processes")
        tab.get_by_label("Select web").check()
        tab.on("dialog", lambda dialog: dialog.accept())
        tab.get_by_role("button", name="Restart selected").click()
        tab.locator(".toast.good").wait_for()
        assert server.get("/api/v1/processes/info/web").json["pid"] != before
        tab.get_by_role("button", name="Views").click()
        tab.get_by_label("Save the present filter as").fill("mine")
        tab.get_by_role("button", name="Save", exact=True).click()
        tab.get_by_role("link", name="mine").wait_for()
