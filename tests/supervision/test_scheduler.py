"""Schedules with real processes and a clock that the test sets: overlap, missed runs, jumps, limits, history."""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from attrs import evolve
from conftest import IS_PROOF

from models.config.settings import Config, ServerSettings, SupervisorSettings
from models.errors import Invalid, NotFound
from models.paging import Paging
from models.supervision.process import Condition, Dependency, ProcessKind, ProcessSpec, Restart, Seconds, Status
from models.supervision.runs import JobRun
from models.supervision.schedule import Missed, Overlap, Schedule
from supervisor.clock import Clock
from supervisor.processes import group_calls, scheduler
from supervisor.services import Services, open_services

_SECOND = 1_000_000
START = "2026-03-01T10:00:01"
EVERY_MINUTE = Schedule("* * * * *", timezone="UTC")


class SetClock(Clock):
    """Continues from the time that the test sets."""

    def __init__(self, moment: str = START) -> None:
        self.offset = 0
        self.set(moment)
        super().__init__()

    def set(self, moment: str) -> None:
        self.offset += at(moment) - self.now()

    def now(self) -> int:
        return super().now() + self.offset


def at(moment: str) -> int:
    return round(datetime.fromisoformat(moment).replace(tzinfo=UTC).timestamp()) * _SECOND


def text(instant: int | None) -> str | None:
    return None if instant is None else datetime.fromtimestamp(instant // _SECOND, UTC).strftime("%Y-%m-%dT%H:%M:%S")


def job(name: str = "job", command: str = "true", schedule: Schedule | None = EVERY_MINUTE, **more: Any) -> ProcessSpec:
    return ProcessSpec(name, tuple(command.split()), schedule=schedule, stdout_logfile="/dev/null", **more)


class Supervision:
    """The services of a server, its clock, and access to runs, notices and schedules."""

    def __init__(self, services: Services, clock: SetClock) -> None:
        self.services, self.clock = services, clock

    async def tick(self, moment: str) -> None:
        """Sets the clock, and has the scheduler check it as the maintenance does."""
        await self.wait_for_round()
        self.clock.set(moment)
        self.services.supervision.scheduler.check_clock()
        await self.wait_for_round()

    async def wait_for_round(self) -> None:
        for _ in range(3):
            await asyncio.sleep(0)
            while self.services.supervision.scheduler._round is not None:
                await asyncio.sleep(0.001)

    async def until(self, name: str, status: Status, generation: int | None = None) -> None:
        process = self.services.supervision.fleet.get(name)
        await process.until(
            lambda one: (
                one.status is status and not one.starts.is_pending and generation in (None, one.record.generation)
            )
        )

    async def runs(self, name: str = "job") -> list[JobRun]:
        """The runs of a process, oldest first."""
        page = await self.services.supervision.context.runs.page(name, Paging(size=100, descending=False))
        return list(page.content)

    async def outcomes(self, name: str = "job") -> list[tuple[str, str | None, str | None]]:
        """Trigger, instant and outcome of each run."""
        return [(run.trigger, text(run.scheduled_for), run.outcome) for run in await self.runs(name)]

    async def notices(self, name: str) -> list[dict[str, Any]]:
        page = await self.services.supervision.notices.page(Paging(size=100, descending=False), name, None)
        return [dict(notice.facts) for notice in page.content]

    def report(self, name: str = "job") -> Any:
        return self.services.supervision.scheduler.report(self.services.supervision.fleet.get(name))

    async def reload(self, *specs: ProcessSpec) -> None:
        await self.services.supervision.fleet.reload({spec.name: spec for spec in specs}, False)


JOBS = 1000 if IS_PROOF else 60
"""That are due in one second."""
Work = Callable[[Supervision], Awaitable[None]]


@pytest.fixture
def serve(tmp_path: Path) -> Iterator[Callable[..., None]]:
    """Runs `work` with the services of a server with these processes; all calls share a data directory."""
    (tmp_path / "data").mkdir(mode=0o700)

    @contextlib.asynccontextmanager
    async def opened(clock: SetClock, specs: tuple[ProcessSpec, ...], retain: int) -> AsyncIterator[Supervision]:
        processes = {spec.name: spec for spec in specs}
        supervisor = evolve(
            SupervisorSettings(processes=processes), runs=evolve(SupervisorSettings().runs, retain=retain)
        )
        config = Config(server=ServerSettings(data_dir=tmp_path / "data"), supervisor=supervisor)
        async with open_services(config, lambda: config, clock=clock) as services:
            supervision = Supervision(services, clock)
            await supervision.wait_for_round()
            yield supervision

    def serve(work: Work, *specs: ProcessSpec, clock: SetClock | None = None, retain: int = 100) -> None:
        async def run() -> None:
            async with asyncio.timeout(120), opened(clock or SetClock(), specs, retain) as supervision:
                await work(supervision)

        asyncio.run(run())

    yield serve
    ctypes.CDLL(None).prctl(36, 0, 0, 0, 0)  # this process is no longer a subreaper


Serve = Callable[..., None]


def test_a_run_has_its_instant_its_times_and_its_outcome(serve: Serve) -> None:
    async def work(supervision: Supervision) -> None:
        assert text(supervision.report().next_run) == "2026-03-01T10:01:00"
        await supervision.tick("2026-03-01T10:01:00")
        await supervision.until("job", Status.FINISHED)
        await supervision.until("bad", Status.FAILED)
        (run,) = await supervision.runs()
        assert (run.trigger, text(run.scheduled_for), run.exit_code, run.outcome) == (
            "schedule", "2026-03-01T10:01:00", 0, "success",
        )  # fmt: skip
        assert run.start is not None
        assert run.end is not None
        assert at("2026-03-01T10:01:00") <= run.start <= run.end
        assert text(supervision.report().next_run) == "2026-03-01T10:02:00"
        assert (supervision.report().missed, supervision.report().skipped) == (0, 0)
        assert [run.outcome for run in await supervision.runs("bad")] == ["failure"]
        assert await supervision.notices("schedule.failed") == [{"outcome": "failure", "exitCode": 1}]
        await supervision.services.supervision.fleet.start("job")
        await supervision.until("job", Status.FINISHED, 2)
        assert (await supervision.outcomes())[1] == ("manual", None, "success")

    serve(work, job(), job("bad", "false"))


@pytest.mark.parametrize(
    ("day", "cron", "instants"),
    [
        ("2026-03-29", "30 2 * * *", ["01:00"]),  # 02:30 does not exist: 03:00 summer time
        ("2026-10-25", "30 2 * * *", ["00:30"]),  # 02:30 occurs twice: the first is used
        ("2026-10-25", "*/30 * * * *", ["00:30", "01:00", "01:30", "02:00", "02:30"]),
    ],
)
def test_job_at_clock_changes_runs_as_on_debian(serve: Serve, day: str, cron: str, instants: list[str]) -> None:
    async def work(supervision: Supervision) -> None:
        for minute in range(30, 151, 30):
            moment = f"{day}T{minute // 60:02}:{minute % 60:02}:01"
            await supervision.tick(moment)
            await supervision.services.supervision.fleet.get("job").until(lambda one: not (one.live or one.is_pending))
        expected = [("schedule", f"{day}T{instant}:00", "success") for instant in instants]
        assert await supervision.outcomes() == expected

    serve(work, job(schedule=Schedule(cron, timezone="Europe/Berlin")), clock=SetClock(f"{day}T00:00:01"))


TICKS = [f"2026-03-01T10:0{minute}:00" for minute in (1, 2, 3)]


@pytest.mark.parametrize(
    ("overlap", "outcomes", "skipped"),
    [
        (Overlap.SKIP, [(TICKS[0], None)], 2),
        (Overlap.QUEUE, [(TICKS[0], None)], 1),
        (Overlap.REPLACE, [(TICKS[0], "stopped"), (TICKS[1], "stopped"), (TICKS[2], None)], 0),
    ],
)
def test_tick_during_a_run_follows_the_overlap_policy(
    serve: Serve, overlap: Overlap, outcomes: list[tuple[str, str | None]], skipped: int
) -> None:
    async def work(supervision: Supervision) -> None:
        for number, tick in enumerate(TICKS, 1):
            await supervision.tick(tick)
            await supervision.until("job", Status.RUNNING, number if overlap is Overlap.REPLACE else 1)
        assert [(text(run.scheduled_for), run.outcome) for run in await supervision.runs()] == outcomes
        assert supervision.report().skipped == skipped
        assert len(await supervision.notices("schedule.skipped")) == skipped
        if overlap is Overlap.QUEUE:
            instance = supervision.services.supervision.fleet.get("job").instance
            assert instance is not None
            instance.kill()
            await supervision.until("job", Status.RUNNING, 2)
            assert [text(run.scheduled_for) for run in await supervision.runs()] == TICKS[:2]
            await supervision.tick("2026-03-01T10:04:00")
            await supervision.services.supervision.fleet.stop("job")  # ends the run and drops the queued run
            await supervision.wait_for_round()
            assert supervision.services.supervision.fleet.get("job").status is Status.STOPPED
            assert supervision.report().skipped == 2
            await supervision.tick("2026-03-01T10:05:00")  # the schedule is still active
            await supervision.until("job", Status.RUNNING, 3)

    serve(work, job(command="sleep 1000", schedule=evolve(EVERY_MINUTE, overlap=overlap)))


def test_tick_is_skipped_while_a_run_waits_for_its_retry(serve: Serve) -> None:
    async def work(supervision: Supervision) -> None:
        await supervision.tick(TICKS[0])
        await supervision.until("job", Status.FAILED)
        await supervision.tick(TICKS[1])
        assert supervision.report().skipped == 1
        assert await supervision.outcomes() == [("schedule", TICKS[0], "failure")]

    serve(work, job(command="false", restart=Restart.ON_FAILURE, restart_delay=Seconds(3600)))


@pytest.mark.parametrize(
    ("missed", "runs"),
    [(Missed.SKIP, []), (Missed.RUN_ONCE, [("schedule", "2026-03-01T13:00:00", "success")])],
)
def test_runs_missed_during_downtime_are_counted_and_made_up_once(
    serve: Serve, missed: Missed, runs: list[Any]
) -> None:
    clock, spec = SetClock(), job(schedule=Schedule("0 * * * *", timezone="UTC", missed=missed))

    async def stop_at_once(_: Supervision) -> None:
        """The server stops before a run is due."""

    async def work(supervision: Supervision) -> None:
        if runs:
            await supervision.until("job", Status.FINISHED)
        assert await supervision.outcomes() == runs
        assert supervision.report().missed == 3
        assert [one["count"] for one in await supervision.notices("schedule.missed")] == [3]
        assert text(supervision.report().next_run) == "2026-03-01T14:00:00"

    async def after_restart(supervision: Supervision) -> None:
        assert await supervision.outcomes() == runs
        assert supervision.report().missed == 3

    serve(stop_at_once, spec, clock=clock)
    clock.set("2026-03-01T13:02:00")
    serve(work, spec, clock=clock)
    serve(after_restart, spec, clock=clock)


def test_clock_jumps_count_missed_runs_and_no_instant_runs_twice(serve: Serve) -> None:
    async def work(supervision: Supervision) -> None:
        await supervision.tick("2026-03-01T10:30:30")
        await supervision.until("job", Status.FINISHED)
        assert await supervision.outcomes() == [("schedule", "2026-03-01T10:30:00", "success")]
        assert supervision.report().missed == 29
        await supervision.tick("2026-03-01T10:10:00")  # back by less than a day: nothing runs twice
        await supervision.tick("2026-03-01T10:30:30")
        assert text(supervision.report().next_run) == "2026-03-01T10:31:00"
        assert len(await supervision.runs()) == 1
        await supervision.tick("2026-02-27T10:00:30")  # back by more than a day: the stored instant is dropped
        assert text(supervision.report().next_run) == "2026-02-27T10:01:00"
        await supervision.tick("2026-02-27T10:01:00")
        await supervision.until("job", Status.FINISHED, 2)
        assert (await supervision.outcomes())[1] == ("schedule", "2026-02-27T10:01:00", "success")
        assert supervision.report().missed == 29
        await supervision.tick("2026-03-01T10:30:40")  # the later time was right: its instants are not due again
        assert text(supervision.report().next_run) == "2026-03-01T10:31:00"
        assert len(await supervision.runs()) == 2
        assert supervision.report().missed == 29

    serve(work, job())


def test_a_timer_that_ends_after_the_clock_was_set_back_hides_no_jump(serve: Serve) -> None:
    """A timer ends between the jump and the next check of the clock."""

    async def work(supervision: Supervision) -> None:
        await supervision.tick("2026-03-01T10:01:00")
        await supervision.until("job", Status.FINISHED)
        supervision.clock.set("2026-02-01T10:00:30")
        supervision.services.supervision.scheduler._wake()
        await supervision.wait_for_round()
        assert text(supervision.report().next_run) == "2026-02-01T10:01:00"

    serve(work, job())


def test_tick_starts_dependencies_unless_an_operator_stopped_them(serve: Serve) -> None:
    async def work(supervision: Supervision) -> None:
        fleet = supervision.services.supervision.fleet
        await supervision.tick(TICKS[0])
        await supervision.until("job", Status.FINISHED, 1)
        assert fleet.get("db").status is Status.RUNNING
        await fleet.stop("db")
        await supervision.tick(TICKS[1])
        assert fleet.get("db").status is Status.STOPPED
        (skipped,) = await supervision.notices("schedule.skipped")
        assert "db" in skipped["reason"]
        await fleet.start("db")
        await supervision.tick(TICKS[2])
        await supervision.until("job", Status.FINISHED, 2)
        assert [run.trigger for run in await supervision.runs("migrate")] == ["dependency"]

    async def again(supervision: Supervision) -> None:
        """After a restart of the server, `db` is stopped, but not by an operator."""
        await supervision.tick("2026-03-01T10:05:00")
        await supervision.until("job", Status.FINISHED, 3)
        assert supervision.services.supervision.fleet.get("db").status is Status.RUNNING

    clock = SetClock()
    migrate = ProcessSpec("migrate", ("true",), type=ProcessKind.ONESHOT)
    db = ProcessSpec("db", ("sleep", "1000"), depends_on=(Dependency("migrate", Condition.COMPLETED),))
    serve(work, migrate, db, job(depends_on=(Dependency("db"),)), clock=clock)
    serve(again, migrate, db, job(depends_on=(Dependency("db"),)), clock=clock)


def test_stop_of_all_pauses_schedules_and_start_or_restart_of_all_resumes_them(serve: Serve) -> None:
    async def work(supervision: Supervision) -> None:
        fleet, schedules = supervision.services.supervision.fleet, supervision.services.supervision.scheduler
        with pytest.raises(NotFound):
            await group_calls.stop_all(fleet, schedules)
        assert supervision.report().paused
        assert supervision.report().next_run is None
        await supervision.tick("2026-03-01T10:30:00")
        assert await group_calls.start_all(fleet, schedules) == "1 processes have been started"
        await supervision.wait_for_round()
        assert not supervision.report().paused
        assert supervision.report().missed == 0, "a paused schedule misses no run"
        assert fleet.get("job").status is Status.NOT_STARTED
        await supervision.tick("2026-03-01T10:31:00")
        await supervision.until("job", Status.RUNNING)
        await group_calls.restart_all(fleet, schedules)
        assert fleet.get("job").status is Status.STOPPED
        assert fleet.get("web").status is Status.RUNNING
        await schedules.pause("job", True)
        with pytest.raises(Invalid, match="no schedule"):
            await schedules.pause("web", True)
        with pytest.raises(NotFound):
            await schedules.pause("other", True)

    async def again(supervision: Supervision) -> None:
        assert supervision.report().paused, "the pause is stored"
        await supervision.services.supervision.scheduler.pause("job", False)
        await supervision.wait_for_round()
        assert text(supervision.report().next_run) == "2026-03-01T10:32:00"

    clock = SetClock()
    specs = job(command="sleep 1000"), ProcessSpec("web", ("sleep", "1000"))
    serve(work, *specs, clock=clock)
    serve(again, *specs, clock=clock)


def test_tick_restarts_a_service_only_if_it_is_live(serve: Serve) -> None:
    async def work(supervision: Supervision) -> None:
        await supervision.tick(TICKS[0])
        assert supervision.services.supervision.fleet.get("job").status is Status.NOT_STARTED
        assert supervision.report().skipped == 1
        await supervision.services.supervision.fleet.start("job")
        await supervision.tick(TICKS[1])
        await supervision.until("job", Status.RUNNING, 2)
        assert await supervision.outcomes() == [("manual", None, "stopped"), ("schedule", TICKS[1], None)]

    serve(work, job(command="sleep 1000", type=ProcessKind.SERVICE))


def test_process_above_max_runtime_is_aborted_and_restarted_by_its_policy(serve: Serve) -> None:
    async def work(supervision: Supervision) -> None:
        fleet = supervision.services.supervision.fleet
        await supervision.tick(TICKS[0])
        await supervision.until("job", Status.ABORTED)
        assert [run.outcome for run in await supervision.runs()] == ["timeout"]
        assert await supervision.notices("schedule.failed") == [{"outcome": "timeout", "exitCode": 143}]
        await fleet.start("web")
        await fleet.get("web").until(lambda one: one.restarts == 1)
        assert len(await supervision.notices("process.runtime_exceeded")) >= 2
        await fleet.stop("web")
        assert fleet.get("web").status in (Status.STOPPED, Status.ABORTED)
        await fleet.start("long")
        await supervision.reload(*(process.spec for process in fleet if process.name != "long"), long(1))
        await supervision.until("long", Status.ABORTED)

    def long(limit: float) -> ProcessSpec:
        return ProcessSpec("long", ("sleep", "1000"), max_runtime=Seconds(limit))

    web = ProcessSpec(
        "web", ("sleep", "1000"), max_runtime=Seconds(1), restart=Restart.ON_FAILURE, restart_delay=Seconds(0)
    )
    serve(work, job(command="sleep 1000", max_runtime=Seconds(1)), web, long(3600))


def test_reload_recomputes_the_next_run_and_keeps_the_current_run(serve: Serve) -> None:
    async def work(supervision: Supervision) -> None:
        await supervision.tick(TICKS[0])
        await supervision.until("job", Status.RUNNING)
        pid = supervision.services.supervision.fleet.get("job").record.pid
        await supervision.reload(job(command="sleep 1000", schedule=Schedule("0 12 * * *", timezone="UTC")))
        await supervision.wait_for_round()
        assert text(supervision.report().next_run) == "2026-03-01T12:00:00"
        assert supervision.services.supervision.fleet.get("job").record.pid == pid
        await supervision.reload(job(command="sleep 1000", schedule=None))
        assert supervision.report() is None
        await supervision.services.supervision.fleet.stop("job")
        assert await supervision.outcomes() == [("schedule", TICKS[0], "stopped")]
        supervision.clock.set("2026-03-01T20:00:00")
        await supervision.reload(job(command="sleep 1000"))
        await supervision.wait_for_round()
        assert (supervision.report().missed, text(supervision.report().next_run)) == (0, "2026-03-01T20:01:00")

    serve(work, job(command="sleep 1000"))


def test_the_newest_runs_of_each_job_are_kept(serve: Serve) -> None:
    async def work(supervision: Supervision) -> None:
        for number in range(1, 7):
            await supervision.tick(f"2026-03-01T10:0{number}:00")
            await supervision.until("job", Status.FINISHED, number)
            await supervision.until("other", Status.FINISHED, number)
        assert [run.generation for run in await supervision.runs()] == [4, 5, 6]
        assert [run.generation for run in await supervision.runs("other")] == [4, 5, 6]

    serve(work, job(), job("other"), retain=3)


def own_time() -> float:
    """Seconds of a clock that stands while other programs hold the processors that this thread waits for."""
    waited = int(Path("/proc/thread-self/schedstat").read_text().split()[1])
    return time.perf_counter() - waited / 1e9


def test_many_simultaneous_runs_yield_to_the_loop_and_share_one_timer(
    serve: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    iterations, ticks, latest = 0, list[int](), 0.0
    tick = scheduler.Scheduler._tick

    def recording_tick(self: scheduler.Scheduler, entry: scheduler.ScheduledProcess) -> None:
        ticks.append(iterations)
        tick(self, entry)

    async def count() -> None:
        nonlocal iterations, latest
        while True:
            begun = own_time()
            await asyncio.sleep(0)
            iterations, latest = iterations + 1, max(latest, own_time() - begun)

    async def work(supervision: Supervision) -> None:
        monkeypatch.setattr(scheduler.Scheduler, "_tick", recording_tick)
        counting = asyncio.create_task(count())
        ticks.clear()
        begun = own_time()
        await supervision.tick("2026-03-01T10:01:00")
        for number in range(JOBS):
            await supervision.until(f"job-{number}", Status.FINISHED)
        counting.cancel()
        assert own_time() - begun < 0.06 * JOBS + 5, "the time of all jobs"
        assert latest < 0.5, "no iteration of the loop is late"
        assert len(ticks) == JOBS
        assert max(ticks.count(iteration) for iteration in ticks) == 5
        await supervision.wait_for_round()
        timers = [
            handle
            for handle in asyncio.get_running_loop()._scheduled  # type: ignore[attr-defined]
            if handle._callback == supervision.services.supervision.scheduler._wake and not handle.cancelled()
        ]
        assert len(timers) == 1

    serve(work, *(job(f"job-{number}") for number in range(JOBS)))
