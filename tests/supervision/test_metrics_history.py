"""The history of CPU and memory: its bounds and sums, by REST, and on the pages of a real server."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from unittest.mock import AsyncMock, Mock, patch

import pytest
from browser_pages import Browser, confirm, get_page, url_of
from conftest import Server, wait_for
from http_checks import running_server

from handlers.supervision.process_metrics import TimeWindow, plots, sparkline
from handlers.supervision.process_table import ProcessRows
from models.config.settings import MetricSettings
from models.supervision.metrics import MAX_SAMPLES, Series, peak, step_for
from models.supervision.process import ProcessSpec
from models.supervision.record import Record
from supervisor.children import proc
from supervisor.clock import Clock
from supervisor.processes.metrics import MetricsHistory
from supervisor.processes.process.process import Process
from supervisor.processes.readings import GroupReader, ProcessTimes, group_ticks
from supervisor.processes.usage import Meter

MINUTE = 60
START = 1_800_000_000 // MINUTE * MINUTE
FAMILY = "(i=0; while [ $i -lt 200000 ]; do i=$((i+1)); done) & sleep 1000 & wait"
"""A shell whose children use the processor and the memory."""


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
        ([(60, 1, 10), (0, 3, 30)], 60, [(60, 2, 3, 20, 30)]),  # a clock that was set back a little
        (
            [(0, 9, 9), (60, 9, 9), (1200, 1, 10), (60, 3, 30)],
            60,
            [(0, 9, 9, 9, 9), (60, 3, 3, 30, 30)],
        ),  # and one that was set back far
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
    assert [one.at - START for one in points] == [2 * MINUTE, 3 * MINUTE]


def test_the_memory_of_a_history_is_bounded() -> None:
    made = series([(minute * MINUTE, 1, 1) for minute in range(5000)], keep_minutes=60)
    assert len(made.points(0, START * 2, MINUTE)) <= 61
    assert len(made._minutes) < 80
    assert MAX_SAMPLES <= len(made._samples) < MAX_SAMPLES + 10


def test_a_plot_is_interrupted_where_there_was_no_sample() -> None:
    made = series([(0, 50, 9), (60, 100, 9), (600, 50, 9)])
    shown = TimeWindow(START, START + 1440, MINUTE)
    cpu, _ = plots([point.alone for point in made.points(shown.start, shown.end, MINUTE)], [], shown)
    assert cpu.line == "M15 50.0L45 0.0M315 50.0L315 50.0"
    assert cpu.area == "M15 100L15 50.0L45 0.0L45 100ZM315 100L315 50.0L315 100Z"
    assert (cpu.group, cpu.top, cpu.values) == ("", "100.0 %", "15:50.0 %;45:100.0 %;315:50.0 %")


def test_an_axis_and_a_step_fit_the_data() -> None:
    assert peak([]) == (1.0, 1.0)
    assert peak(series([(0, 250, 9)]).points(0, START * 2, MINUTE)) == (250, 9)
    assert [step_for(seconds, 360) for seconds in (60, 21_600, 21_601, 86_400)] == [60, 60, 120, 240]


def test_a_sparkline_has_at_most_thirty_points_of_the_last_hour() -> None:
    known = series([(minute * MINUTE, minute % 7, 1) for minute in range(90)])
    drawn = sparkline(known, START + 90 * MINUTE + 30)
    points = [point.split(",") for point in drawn.partition('points="')[2].partition('"')[0].split()]
    assert len(points) == 30
    assert all(0 <= int(x) <= 90 and 0 <= int(y) <= 20 for x, y in points)
    assert sparkline(known, START + 300 * MINUTE) == ""


def test_sparkline_is_redrawn_for_each_minute() -> None:
    known, page, process, rows = series([(0, 1, 10), (120, 3, 30)]), Mock(), Mock(), ProcessRows()
    page.supervision.metrics.of = lambda name: known
    page.clock.now.return_value = (START + 150) * 1_000_000
    first = rows._sparkline(process, page)
    known.add(START + 179, 3, 30)
    assert rows._sparkline(process, page) is first
    known.add(START + 180, 9, 90)
    page.clock.now.return_value = (START + 185) * 1_000_000
    assert first != rows._sparkline(process, page) != ""


def test_minutes_that_were_read_from_the_store_are_continued() -> None:
    made = Series()
    made.restore(START // MINUTE, [1, 2, 10, 20, 1, 2, 10, 20])
    made.restore(START // MINUTE + 1, [3, 6, 30, 60, 3, 6, 30, 60])
    made.add(START + MINUTE + 30, 5, 50, 5, 50)
    points = made.points(START, START + 3600, MINUTE)
    assert [one.values[:4] for one in points] == [(1, 2, 10, 20), (4, 6, 40, 60)]


def times(used: int, waited: int = 0, *, parent: int = 1, group: int = 10, start: int = 5) -> ProcessTimes:
    return ProcessTimes(parent, group, start, used, waited, 0)


@pytest.mark.parametrize(
    ("before", "after", "expected"),
    [
        ({}, {}, {}),
        ({10: times(5)}, {10: times(7)}, {10: 2}),
        ({}, {10: times(7)}, {10: 7}),
        ({10: times(5)}, {10: times(2, start=9)}, {10: 2}),  # the pid was reused
        ({10: times(5)}, {10: times(5), 11: times(3, parent=10)}, {10: 3}),
        ({10: times(5), 11: times(3, parent=10)}, {10: times(6), 11: times(7, parent=10)}, {10: 5}),
        ({10: times(5)}, {10: times(5, 4)}, {10: 4}),  # a child began and ended in between
        (
            {10: times(5), 11: times(30, parent=10)},
            {10: times(5, 34)},
            {10: 4},
        ),  # a child ended that was counted
        ({10: times(5), 11: times(30, parent=10)}, {10: times(6)}, {10: 1}),  # the child was not waited for
        ({10: times(5), 11: times(30, parent=1)}, {10: times(6)}, {10: 1}),
        ({10: times(5), 11: times(30, parent=10, group=11)}, {10: times(5, 31)}, {10: 1}),  # a job with its own group
        ({10: times(5), 20: times(5, group=20)}, {10: times(6), 20: times(9, group=20)}, {10: 1, 20: 4}),
    ],
)
def test_group_ticks_include_live_and_ended_processes(
    before: dict[int, ProcessTimes], after: dict[int, ProcessTimes], expected: dict[int, int]
) -> None:
    assert {
        group: ticks for group, ticks in group_ticks(before, after, after.keys()).items() if group in expected
    } == expected


def test_a_member_that_is_found_late_counts_from_then_on() -> None:
    before, after = {10: times(5)}, {10: times(6), 11: times(300, parent=10, start=700)}
    assert group_ticks(before, after, after.keys(), 701) == {10: 1}
    assert group_ticks(before, after, after.keys(), 700) == {10: 301}, "it began since the reading before"
    assert group_ticks({}, after, after.keys(), 701) == {10: 306}, "the time of a new leader is that since its start"
    later = {10: times(6), 11: times(340, parent=10, start=700)}
    assert group_ticks(after, later, later.keys(), 900) == {10: 40}
    assert group_ticks(later, {10: times(6, 345)}, {10}, 900) == {10: 5}


@pytest.fixture
def leader() -> Iterator[subprocess.Popen[bytes]]:
    """The leader of a session."""
    process = subprocess.Popen(["sleep", "1000"], start_new_session=True)
    yield process
    process.kill()
    process.wait()


def test_a_repeated_sample_counts_as_the_last_one() -> None:
    made, other = Series(), Series()
    for at in (0, 5, 10, 65, 130):
        other.add(START + at, 3, 30, 4, 40)
        made.repeat(START + at) if at else made.add(START + at, 3, 30, 4, 40)
    for step in (5, MINUTE):
        assert made.points(START, START + 300, step) == other.points(START, START + 300, step) != []
    Series().repeat(START)


def test_a_reading_opens_no_file_of_a_process_that_has_not_run(leader: subprocess.Popen[bytes]) -> None:
    reader, sleeps = GroupReader(Clock()), ("sleep\n", "S")
    comm = Path(f"/proc/{leader.pid}/comm")
    wait_for(lambda: (comm.read_text(), (proc.stat(leader.pid) or "?")[0]) == sleeps, about="a process that sleeps")
    first = reader.read({leader.pid})
    assert first.times[leader.pid].memory > 0
    with patch("builtins.open") as opened, patch("os.listdir") as listed:
        second = reader.read({leader.pid})
    assert (opened.call_count, listed.call_count) == (0, 0)
    assert second.times == first.times
    assert leader.pid not in second.used
    leader.kill()
    leader.wait()
    assert reader.read({leader.pid}).times == {}
    reader.close()


def test_members_of_a_group_are_searched_for_every_half_minute() -> None:
    class LaterClock(Clock):
        passed = 0.0

        def since_boot(self) -> float:
            return super().since_boot() + self.passed

    clock = LaterClock()
    reader = GroupReader(clock)
    command = ["sh", "-c", "read line; sleep 1000 & echo; wait"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, start_new_session=True) as shell:
        assert shell.stdin is not None
        assert shell.stdout is not None
        assert reader.read({shell.pid}).times.keys() == {shell.pid}
        shell.stdin.write(b"\n")
        shell.stdin.flush()
        shell.stdout.readline()
        assert reader.read({shell.pid}).times.keys() == {shell.pid}
        clock.passed = 30
        found = reader.read({shell.pid})
        assert len(found.times) == 2
        assert found.memory[shell.pid] == sum(one.memory for one in found.times.values())
        os.killpg(shell.pid, signal.SIGKILL)
    assert shell.pid not in reader.read({shell.pid}).times


def test_a_process_with_several_threads_is_always_read() -> None:
    code = (
        "import threading, time\n"
        "def spin():\n    while True: pass\n"
        "threading.Thread(target=spin, daemon=True).start()\nprint(flush=True)\ntime.sleep(1000)"
    )
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, start_new_session=True) as process:
        assert process.stdout is not None
        process.stdout.readline()
        reader = GroupReader(Clock())
        wait_for(lambda: reader.read({process.pid}).times[process.pid].threads == 2)
        wait_for(lambda: reader.read({process.pid}).used.get(process.pid, 0) > 0, about="the work of its thread")
        process.kill()


@pytest.mark.parametrize(("is_read", "expected"), [(False, [0, 57.5, 117.5]), (True, [0, 5, 10])])
def test_without_a_reader_each_minute_has_one_sample_at_its_end(is_read: bool, expected: list[float]) -> None:
    clock = SteppedClock()
    history = MetricsHistory([], Meter(clock), clock, lambda: MetricSettings())
    taken = list[float]()

    async def sample(_: object) -> None:
        taken.append(clock.passed)
        await MetricsHistory.sample(history)

    async def round_end() -> None:
        clock.passed += 2.5
        if is_read:
            history.of("web")
        if len(taken) == len(expected):
            raise asyncio.CancelledError

    history.sample = sample  # type: ignore[method-assign, assignment]
    with contextlib.suppress(asyncio.CancelledError), patch.object(history, "_restore", AsyncMock()):
        asyncio.run(history.watch(2.5, round_end))
    assert taken == expected


class SteppedClock(Clock):
    """A clock that is moved by hand, from the beginning of a minute on."""

    passed = 0.0

    def now(self) -> int:
        return int((START + self.passed) * 1_000_000)

    def since_boot(self) -> float:
        return self.passed


@pytest.mark.parametrize("is_live", [False, True])
def test_a_sample_uses_a_thread_only_if_a_process_is_live(leader: subprocess.Popen[bytes], is_live: bool) -> None:
    clock = Clock()
    web = Process(ProcessSpec("web", ("x",)), Mock(), Mock())
    if is_live:
        web.instance, web.state.record = Mock(), Record("web", pid=leader.pid)
    history = MetricsHistory([web], Meter(clock), clock, lambda: MetricSettings())

    async def work(executor: ThreadPoolExecutor) -> None:
        await history.sample(executor)
        await history.sample(executor)

    with ThreadPoolExecutor(1) as executor, patch.object(executor, "submit", wraps=executor.submit) as submit:
        asyncio.run(work(executor))
    assert submit.call_count == 2 * is_live
    assert bool(history.of("web").points(0, START * 2, 1)) == is_live


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    processes = {
        "web": {"command": "sleep 1000", "auto-start": True},
        "idle": {"command": "true", "depends-on": ["web"]},
        "family": {"command": ["sh", "-c", FAMILY], "auto-start": True},
    }
    supervisor = {"metrics": {"interval": "200ms"}}
    with running_server(tmp_path_factory.mktemp("metrics"), processes, supervisor=supervisor) as one:
        wait_for(lambda: len(one.get("/api/v1/processes/metrics/web?step=1").json["points"]) > 2)
        yield one


def test_metrics_of_a_process_include_its_starts(server: Server) -> None:
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
        "from=0001-01-01T00:00:00%2B23:59",
        "to=9999-12-31T23:59:59-23:59",
        "step=0",
        "step=60&from=2020-01-01T00:00:00Z",
    ],
)
def test_invalid_window_is_400(server: Server, query: str) -> None:
    assert server.get(f"/api/v1/processes/metrics/web?{query}").status == 400


def test_group_metrics_include_the_child_processes(server: Server) -> None:
    def highest(process: str, field: str) -> float:
        points = server.get(f"/api/v1/processes/metrics/{process}").json["points"]
        return float(max(point[field] for point in points))

    wait_for(lambda: highest("family", "groupCpuMax") > highest("family", "cpuMax"))
    about = "the children, which are searched for every half minute"
    wait_for(lambda: highest("family", "groupMemoryMax") > highest("family", "memoryMax") > 0, 90, about)
    assert highest("web", "groupMemoryMax") == highest("web", "memoryMax")
    shown = get_page(server, "/processes/family?range=10m&step=1")
    assert "average of the process group" in shown.words
    assert "CPU of the group" in shown.words
    assert "CPU of the group" not in get_page(server, "/processes/web?range=10m&step=1").words


def test_other_windows_are_links_that_need_no_script(server: Server) -> None:
    hour = get_page(server, "/processes/web?from=2026-01-01T00:00:00Z&to=2026-01-01T01:00:00Z")
    links = [str(attributes.get("href")) for tag, attributes in hour.tags if tag == "a"]
    assert [link for link in links if "from=" in link and link.endswith("#metrics")] == [
        "/processes/web?from=2026-01-01T01:00:00Z&to=2026-01-01T02:00:00Z#metrics",
        "/processes/web?from=2026-01-01T00:15:00Z&to=2026-01-01T00:45:00Z#metrics",
        "/processes/web?from=2025-12-31T23:30:00Z&to=2026-01-01T01:30:00Z#metrics",
    ]
    assert "There is no history in this time" in hour.words
    for query in ("to=0001-01-01T00:02:00Z", "from=9999-12-31T00:00:00Z&to=9999-12-31T23:59:59.999999Z"):
        assert server.get(f"/processes/web?{query}").status == 200
    future = get_page(server, "/processes/web?from=2126-01-01T00:00:00Z&to=2126-01-01T01:00:00Z")
    links = [str(attributes.get("href")) for tag, attributes in future.tags if tag == "a"]
    assert [link for link in links if "from=" in link and link.endswith("#metrics")] == [
        "/processes/web?from=2125-12-31T23:00:00Z&to=2126-01-01T00:00:00Z#metrics",
        "/processes/web?from=2126-01-01T00:15:00Z&to=2126-01-01T00:45:00Z#metrics",
    ]


def test_an_unknown_range_is_ignored_with_a_note(server: Server) -> None:
    shown = get_page(server, "/processes/web?range=2w")
    assert "Ignored: range 2w." in shown.words
    current = [attributes for tag, attributes in shown.tags if tag == "a" and "aria-current" in attributes]
    assert "/processes/web?range=1h#metrics" in [attributes["href"] for attributes in current]
    assert "Ignored" not in get_page(server, "/processes/web?range=6h").words


def test_minutes_are_kept_after_a_restart_of_the_server(server: Server) -> None:
    path = "/api/v1/processes/metrics/web"
    before = server.get(path).json
    server.stop()
    server.start()
    after = server.get(path).json
    assert before["points"][0]["at"] == after["points"][0]["at"]
    assert before["starts"][0] == after["starts"][0]


def test_selector_filters_the_rows_and_an_invalid_one_is_ignored_with_a_note(server: Server) -> None:
    assert "idle" not in get_page(server, "/processes?select=w*").words
    shown = get_page(server, "/processes?select=%40none").words
    assert "Ignored: select @none" in shown
    assert "idle" in shown


def test_plot_values_are_read_by_keyboard_and_selected_rows_are_restarted(chromium: Browser, server: Server) -> None:
    with chromium.page(url_of(server)) as tab:
        tab.goto("/processes/web?range=10m")
        tab.locator("svg[data-values]").first.focus()
        tab.keyboard.press("ArrowLeft")
        tab.locator("#metrics output", has_text=" % at ").wait_for()
        assert "idle" in tab.locator("#related").inner_text()
        before = server.get("/api/v1/processes/info/web").json["pid"]
        tab.goto("/processes")
        tab.get_by_label("Select web").check()
        tab.get_by_role("button", name="Restart selected").click()
        confirm(tab, "Restart the selected processes?", "Restart selected")
        tab.locator(".toast.good").wait_for()
        assert server.get("/api/v1/processes/info/web").json["pid"] != before
        tab.get_by_role("button", name="Views").click()
        tab.get_by_label("Save the present filter as").fill("mine")
        tab.get_by_role("button", name="Save", exact=True).click()
        tab.get_by_role("link", name="mine").wait_for()
