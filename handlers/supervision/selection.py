"""Details and groups of processes, operations on selected ones, runs of jobs and their schedules."""

from __future__ import annotations

import signal
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import Any

from handlers.base import Base
from handlers.http.permissions import CONTROL_PROCESSES, READ
from handlers.http.serializers import (
    ErrorResponseWithResults,
    PageOf,
    ProcessGroup,
    ProcessResult,
    ProcessResults,
    ResponseMessage,
    page_of,
)
from handlers.operations import NoInputs, Operation, operation_routes
from handlers.routing import Route
from handlers.supervision import details
from handlers.supervision.details import ProcessDetails, ProcessRun
from models.config import parsers
from models.errors import Invalid
from models.inputs import FLAG, NAME, InputKind, PageRequest, choice, path, query
from models.json_format import Instant, http_message
from models.supervision.selectors import Group, groups_of, select
from supervisor.processes import group_calls
from supervisor.processes.fleet import Fleet
from supervisor.processes.group_calls import CallResult
from supervisor.processes.scheduler import Scheduler

GroupCall = Callable[[Fleet, Sequence[str], Scheduler | None], Awaitable[list[CallResult]]]
_ABOUT_SELECT = (
    "Which processes: names, globs, `@group`, `label=value`, `all`, and `!term` to exclude, "
    "with commas between them; may be repeated"
)
_SELECT = InputKind(
    {"type": "string", "examples": ["web,worker-*", "@backend,!db"]},
    lambda _, values: tuple(values),
    is_repeated=True,
    reads_absent=True,
)


def _read_signal(name: str, text: str) -> signal.Signals:
    try:
        return parsers.signal_of(text)
    except parsers.ValidationError as problem:
        raise Invalid(f"{name} {problem}") from None


_SIGNAL = InputKind({"type": "string", "examples": ["HUP"]}, _read_signal, reads_absent=True)
_UNREAD_SIGNAL = InputKind(_SIGNAL.schema, lambda _, text: text, reads_absent=True)
"""Read after the selection, whose faults are reported first."""


@http_message
class NamedProcess:
    name: str = path(kind=NAME)


@http_message
class Selection:
    select: tuple[str, ...] | None = query(_ABOUT_SELECT, kind=_SELECT)


@http_message
class SelectedProcesses:
    select: tuple[str, ...] = query(_ABOUT_SELECT, required=True, kind=_SELECT)


def _signal_input(kind: InputKind = _SIGNAL) -> Any:
    return query("A name or a number: HUP, SIGUSR1, 15", required=True, kind=kind)


def _to_input() -> Any:
    about = "The main process alone, or its whole process group"
    return query(about, "main", kind=choice("main", "group"))


@http_message
class SignalToSelected(SelectedProcesses):
    signal: str = _signal_input(_UNREAD_SIGNAL)
    to: str = _to_input()


@http_message
class SignalToProcess(NamedProcess):
    signal: signal.Signals = _signal_input()
    to: str = _to_input()


@http_message
class RunsOfProcess(PageRequest):
    name: str = path(kind=NAME)
    sort_by: str = query("The sort key", "id", kind=choice("id"), place=3)


@http_message
class PausedSchedule(NamedProcess):
    paused: bool = query("true pauses the schedule, false resumes it", required=True, kind=FLAG)


def groups(handler: Base) -> dict[str, Group]:
    """The groups of all processes, by name."""
    specs = [process.spec for process in handler.supervision.fleet]
    return groups_of(specs, handler.config.supervisor.groups)


def selected_names(handler: Base, selectors: Sequence[str]) -> list[str]:
    """The names that selectors select. Raises `Invalid`, `NotFound`."""
    return select(selectors, [process.spec for process in handler.supervision.fleet], groups(handler))


async def list_details(handler: Base, request: Selection) -> list[ProcessDetails]:
    supervision, known = handler.supervision, groups(handler)
    fleet, scheduler, runs = supervision.fleet, supervision.scheduler, supervision.context.runs
    names = [one.name for one in fleet] if request.select is None else selected_names(handler, request.select)
    processes = [fleet.get(name) for name in names]
    usage = await supervision.meter.read(processes)
    await supervision.event_writer.stored_soon()
    of: dict[str, list[str]] = {name: [] for name in names}
    for group in known.values():
        for member in group.members:
            of.setdefault(member, []).append(group.name)
    return [
        details.process_details(one, of[one.name], usage.get(one.name), scheduler.report(one), runs.last(one.name))
        for one in processes
    ]


def list_groups(handler: Base, _: NoInputs) -> list[ProcessGroup]:
    live = {process.name for process in handler.supervision.fleet if process.live}
    known = groups(handler).values()
    return [ProcessGroup(one.name, one.members, len(live.intersection(one.members))) for one in known]


async def _results(
    handler: Base, calls: Awaitable[list[CallResult]], failure_code: str
) -> ProcessResults | ErrorResponseWithResults:
    """The results of one operation on all selected processes: any failure makes the response a 500."""
    results = [ProcessResult(one.name, one.outcome, one.message) for one in await calls]
    failures = [one.message for one in results if one.outcome == "failed"]
    if not failures:
        counts = Counter(one.outcome for one in results)
        message = ", ".join(f"{number} {outcome.replace('_', ' ')}" for outcome, number in counts.items())
        return ProcessResults(message or "nothing is selected", results)
    message = f"not all processes could be changed: {'; '.join(failures)}"
    handler.refused = f": {message}"
    handler.set_status(500)
    at = Instant(handler.clock.now())
    return ErrorResponseWithResults(at, handler.request.path, "Internal Server Error", message, failure_code, results)


def _call_selected(run: GroupCall, failure_code: str = "START_FAILED") -> Callable[[Base, SelectedProcesses], Any]:
    """A request whose only selector is `all` includes the schedules."""

    async def call(handler: Base, request: SelectedProcesses) -> Any:
        names, supervision = selected_names(handler, request.select), handler.supervision
        scheduler = supervision.scheduler if request.select == ("all",) else None
        return await _results(handler, run(supervision.fleet, names, scheduler), failure_code)

    return call


async def signal_selected(handler: Base, request: SignalToSelected) -> ProcessResults | ErrorResponseWithResults:
    names, number = selected_names(handler, request.select), _read_signal("signal", request.signal)

    async def send() -> list[CallResult]:
        return group_calls.send(handler.supervision.fleet, names, number, request.to == "group")

    return await _results(handler, send(), "SIGNAL_FAILED")


async def clear_selected(handler: Base, request: SelectedProcesses) -> ProcessResults | ErrorResponseWithResults:
    """Empties the log files of the selected processes; their rotated files stay."""
    supervision = handler.supervision
    calls = group_calls.clear_logs(supervision.fleet, supervision.logs, selected_names(handler, request.select))
    return await _results(handler, calls, "CLEAR_FAILED")


def signal_one(handler: Base, request: SignalToProcess) -> ResponseMessage:
    """Sends a signal to one process; if the process ends, its restart policy applies."""
    process = handler.supervision.fleet.get(request.name)
    return ResponseMessage(process.send(request.signal, request.to == "group"))


async def list_runs(handler: Base, request: RunsOfProcess) -> PageOf[ProcessRun]:
    page = await handler.supervision.context.runs.page(request.name, request.paging(request.sort_by))
    if not page.total:
        handler.supervision.fleet.get(request.name)  # raises NotFound
    return page_of(page, details.process_run)


async def pause_schedule(handler: Base, request: PausedSchedule) -> ResponseMessage:
    """Pauses and resumes the schedule of one process; its run, if any, continues."""
    return ResponseMessage(await handler.supervision.scheduler.pause(request.name, request.paused))


_change = partial(Operation, permission=CONTROL_PROCESSES)
OPERATIONS = [
    Operation(
        "process_details", "GET", "/processes/details", "List processes with groups, labels, CPU and memory", Selection,
        list_details, list[ProcessDetails], error_statuses=[404], permission=READ,
    ),
    Operation(
        "process_groups", "GET", "/processes/groups", "List the groups of processes", NoInputs, list_groups,
        list[ProcessGroup], permission=READ,
    ),
    _change(
        "process_start_selected", "POST", "/processes/start", "Start the selected processes", SelectedProcesses,
        _call_selected(group_calls.start), ProcessResults, error_statuses=(400, 404, 500),
    ),
    _change(
        "process_stop_selected", "POST", "/processes/stop", "Stop the selected processes", SelectedProcesses,
        _call_selected(group_calls.stop, "STOP_FAILED"), ProcessResults, error_statuses=(400, 404, 500),
    ),
    _change(
        "process_restart_selected", "POST", "/processes/restart", "Restart the selected processes", SelectedProcesses,
        _call_selected(group_calls.restart), ProcessResults, error_statuses=(400, 404, 500),
    ),
    _change(
        "process_signal_selected", "POST", "/processes/signal", "Signal the selected processes", SignalToSelected,
        signal_selected, ProcessResults, error_statuses=(400, 404, 500),
    ),
    _change(
        None, "POST", "/processes/clear-logs", "Empty the logs of the selected processes", SelectedProcesses,
        clear_selected, ProcessResults, error_statuses=(400, 404, 500), name="process_clear_logs",
    ),
    _change(
        "process_signal", "POST", "/processes/signal/{name}", "Send a signal to one process", SignalToProcess,
        signal_one, ResponseMessage, error_statuses=(400, 404, 409, 500),
    ),
    Operation(
        "process_runs", "GET", "/processes/runs/{name}", "List the runs of a job, newest first, in pages",
        RunsOfProcess, list_runs, PageOf[ProcessRun], error_statuses=(404, 504), permission=READ,
    ),
    _change(
        "process_schedule", "POST", "/processes/schedule/{name}", "Pause or resume the schedule of one process",
        PausedSchedule, pause_schedule, ResponseMessage, error_statuses=(400, 404, 500),
    ),
]  # fmt: skip
routes: list[Route] = operation_routes(OPERATIONS)
