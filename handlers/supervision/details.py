"""Details of processes, schedules and runs as JSON, in addition to `ProcessStatusInfo`."""

from __future__ import annotations

from collections.abc import Sequence

from handlers.http.serializers import Int32, copied, instant
from models.json_format import Instant, http_message
from models.supervision.process import Status
from models.supervision.runs import JobRun, Outcome, Trigger
from supervisor.processes.process.process import Process
from supervisor.processes.scheduler import ScheduleReport
from supervisor.processes.usage import Usage


@http_message
class ProcessRun:
    """One run of a job; `outcome` is null while it is in progress."""

    id: int
    trigger: Trigger
    scheduled_for: Instant | None
    start_time: Instant | None
    end_time: Instant | None
    exit_code: Int32 | None
    outcome: Outcome | None


@http_message
class ProcessSchedule:
    """`missed` and `skipped` count runs."""

    expression: str
    timezone: str
    next_run: Instant | None
    last_run: Instant | None
    last_outcome: Outcome | None
    paused: bool
    missed: int
    skipped: int


@http_message
class ProcessDetails:
    """Details of a process for operators, in addition to `ProcessStatusInfo`."""

    name: str
    status: Status
    pid: int | None
    type: str
    groups: Sequence[str]
    labels: Sequence[str]
    description: str
    start_time: Instant | None
    end_time: Instant | None
    exit_code: Int32 | None
    restarts: Int32
    cpu_percent: float | None
    memory_bytes: int | None
    status_text: str | None
    waiting_for: str | None
    next_restart: Instant | None
    schedule: ProcessSchedule | None
    last_run: ProcessRun | None


def process_details(
    process: Process, groups: Sequence[str], usage: Usage | None, schedule: ScheduleReport | None, last: JobRun | None
) -> ProcessDetails:
    record, spec = process.record, process.spec
    return ProcessDetails(
        name=process.name,
        status=record.status,
        pid=record.pid if process.live else None,
        type=spec.kind.value,
        groups=groups,
        labels=spec.labels,
        description=spec.description,
        start_time=instant(record.start),
        end_time=instant(record.end),
        exit_code=record.exit_code,
        restarts=process.restarts,
        cpu_percent=None if usage is None else round(usage.cpu, 1),
        memory_bytes=None if usage is None else usage.memory,
        status_text=None if process.instance is None else process.instance.status_text,
        waiting_for=process.waiting_for,
        next_restart=instant(process.restarter.next_restart),
        schedule=None if schedule is None else process_schedule(schedule, last),
        last_run=None if last is None else process_run(last),
    )


def process_schedule(report: ScheduleReport, last: JobRun | None) -> ProcessSchedule:
    return copied(
        ProcessSchedule,
        report,
        last_run=None if last is None else instant(last.start),
        last_outcome=None if last is None else last.outcome,
    )


def process_run(run: JobRun) -> ProcessRun:
    return ProcessRun(
        id=run.id,
        trigger=run.trigger,
        scheduled_for=instant(run.scheduled_for),
        start_time=instant(run.start),
        end_time=instant(run.end),
        exit_code=run.exit_code,
        outcome=run.outcome,
    )
