"""`schedule` and `max-runtime` of a process, as the loader reads them."""

from __future__ import annotations

from pathlib import Path

import pytest

from models.config.loader import load
from models.config.settings import BadConfig
from models.supervision.process import ProcessSpec, Seconds, needs_restart
from models.supervision.schedule import Missed, Overlap, Schedule

AT = "supervisor.processes.job"


def job(folder: Path, properties: str) -> ProcessSpec:
    file = folder / "pilothouse.yaml"
    file.write_text(f"supervisor.processes:\n  job: {{command: [run], {properties}}}\n")
    return load(file, {}).supervisor.processes["job"]


@pytest.mark.parametrize(
    ("written", "schedule"),
    [
        ("schedule: '*/5 * * * *'", Schedule("*/5 * * * *")),
        ("schedule: ' 0  2 * * * '", Schedule("0 2 * * *")),
        ("schedule: '@daily'", Schedule("@daily")),
        ("schedule: {every: 90s}", Schedule(every=90)),
        ("schedule: {every: 366d}", Schedule(every=366 * 86_400)),
        ("schedule.every: 10", Schedule(every=10)),
        (
            "schedule: {cron: 30 2 * * *, timezone: Europe/Berlin, overlap: queue, missed: run-once, jitter: 24h}",
            Schedule("30 2 * * *", None, "Europe/Berlin", Overlap.QUEUE, Missed.RUN_ONCE, 86_400),
        ),
        ("schedule: null", None),
    ],
)
def test_a_schedule_is_read(tmp_path: Path, written: str, schedule: Schedule | None) -> None:
    assert job(tmp_path, written).schedule == schedule


@pytest.mark.parametrize(
    ("written", "fault"),
    [
        ("schedule: '61 * * * *'", "schedule: '61 * * * *' is not a cron expression: bad minute"),
        ("schedule: '@reboot'", "schedule: '@reboot' is not one of @yearly, "),
        ("schedule: {cron: '* * * *'}", "schedule.cron: '* * * *' must have five fields"),
        ("schedule: {}", "schedule: exactly one of cron, every must be given"),
        ("schedule: {cron: '@daily', every: 1h}", "schedule: exactly one of cron, every must be given"),
        ("schedule: {every: 9s}", "schedule.every: '9s' is not between 10s and 366d"),
        ("schedule: {every: 367d}", "schedule.every: '367d' is not between 10s and 366d"),
        ("schedule: {every: often}", "schedule.every: 'often' is not a length of time"),
        ("schedule: {every: 1h, jitter: 25h}", "schedule.jitter: '25h' is not between 0s and 1d"),
        ("schedule: {every: 1h, overlap: wait}", "schedule.overlap: 'wait' is not one of skip, queue, replace"),
        ("schedule: {every: 1h, missed: all}", "schedule.missed: 'all' is not one of skip, run-once"),
        (
            "schedule: {every: 1h, timezone: Mars/Olympus}",
            "schedule.timezone: 'Mars/Olympus' is not a time zone of this host's database (package tzdata)",
        ),
        ("schedule: {every: 1h, at: noon}", "schedule.at: unknown property"),
        ("schedule: [a, b]", "schedule: a mapping is expected, not a list"),
        ("max-runtime: 500ms", "max-runtime: '0.5s' must be 1s or more"),
    ],
)
def test_an_error_names_the_property_and_the_reason(tmp_path: Path, written: str, fault: str) -> None:
    with pytest.raises(BadConfig) as caught:
        job(tmp_path, written)
    assert [line for line in caught.value.faults if not line.startswith(f"{AT}.{fault}")] == []


def test_a_change_of_schedule_or_max_runtime_restarts_nothing(tmp_path: Path) -> None:
    plain = job(tmp_path, "max-runtime: 1m")
    assert plain.max_runtime == Seconds(60)
    assert not needs_restart(plain, job(tmp_path, "schedule: '@daily', max-runtime: 1h"))


@pytest.mark.parametrize("schedule", ["30 2 * * *", "{cron: 30 2 * * *, timezone: UTC}"])
def test_equal_schedules_are_one_object(tmp_path: Path, schedule: str) -> None:
    file = tmp_path / "pilothouse.yaml"
    jobs = [f"  job-{number}: {{command: x, schedule: {schedule!r}}}" for number in range(2)]
    file.write_text("\n".join(["supervisor.processes:", *jobs]).replace("'{", "{").replace("}'", "}"))
    first, second = (process.schedule for process in load(file, {}).supervisor.processes.values())
    assert first is second is not None
