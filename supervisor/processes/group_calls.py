"""Starting, stopping, restarting and signalling all processes, or several with a result for each."""

from __future__ import annotations

import functools
import signal
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Concatenate, Literal, ParamSpec, TypeVar

from attrs import frozen

from models.errors import Conflict, Failed, NotFound, Problem
from supervisor.processes.fleet import Fleet, announced, failure_message
from supervisor.processes.logs.files import LogFiles
from supervisor.processes.process.attempts import next_request
from supervisor.processes.process.process import Process
from supervisor.processes.scheduler import Scheduler

Outcome = Literal[
    "started", "already", "stopped", "not_running", "restarted", "signalled", "cleared", "no_logs", "failed"
]
Results = Mapping[Process, str | BaseException]
Given = ParamSpec("Given")
Answer = TypeVar("Answer")


@frozen
class CallResult:
    """The result of an operation on several processes for one of them."""

    name: str
    outcome: Outcome
    message: str


def _open_call(
    do: Callable[Concatenate[Fleet, Given], Awaitable[Answer]],
) -> Callable[Concatenate[Fleet, Given], Awaitable[Answer]]:
    """The operation raises `Unavailable` where the server stops meanwhile and leaves its processes."""

    @functools.wraps(do)
    async def call(fleet: Fleet, /, *given: Given.args, **named: Given.kwargs) -> Answer:
        with fleet.calls.open():
            return await do(fleet, *given, **named)

    return call


@_open_call
async def start_all(fleet: Fleet, scheduler: Scheduler) -> str:
    """Starts all that are not live, lower `order` first, but no scheduled job; resumes all schedules.

    Raises `Failed`, which names those that did not start; else `Conflict`, which names those that were live before.
    """
    _resume(fleet, scheduler)
    processes = _without_scheduled_jobs(fleet)
    before = [process.name for process in processes if process.live]
    failed = await fleet.start_each(
        [process for process in processes if not process.live], next_request(), delayed=True
    )
    await fleet.stored()
    _check_all(failed, "started", "START_FAILED")
    if before:
        raise Conflict(f"already running: {', '.join(before)}; all others were started", "PROCESSES_ALREADY_RUNNING")
    return f"{len(processes)} processes have been started"


@_open_call
async def stop_all(fleet: Fleet, scheduler: Scheduler) -> str:
    """Stops all that are live, starting or due for a restart; pauses all schedules.

    Raises `NotFound` where nothing is to be stopped, `Failed`.
    """
    scheduler.pause_all(True)
    for process in fleet:
        process.state.hold(True)
    active = [process for process in fleet if process.live or process.is_pending]
    if not active:
        await fleet.stored()
        raise NotFound("no process is running", "NO_RUNNING_PROCESSES")
    failed = await fleet.stop_every(next_request())
    await fleet.stored()
    _check_all(failed, "stopped", "STOP_FAILED")
    return f"{len(active)} processes have been stopped"


@_open_call
async def restart_all(fleet: Fleet, scheduler: Scheduler) -> str:
    """Stops all, waits until they are gone, and starts all but scheduled jobs; resumes all schedules.

    Stops nothing where a live process could not be started again. Raises `Failed`, which names those that did not stop
    or start.
    """
    request = next_request()
    problems = await fleet.unrunnable(fleet)
    _check_all(list(dict.fromkeys(one.message for one in problems.values())), "restarted", "START_FAILED")
    _resume(fleet, scheduler)
    processes = _without_scheduled_jobs(fleet)
    with announced(processes):
        failed = await fleet.stop_every(request)
        failed += await fleet.start_each(processes, request)
    await fleet.stored()
    _check_all(failed, "restarted", "START_FAILED")
    return f"{len(processes)} processes have been restarted"


def _resume(fleet: Fleet, scheduler: Scheduler) -> None:
    scheduler.pause_all(False)
    for process in fleet:
        process.state.hold(False)


def _without_scheduled_jobs(fleet: Fleet) -> list[Process]:
    return [process for process in fleet if not process.spec.is_scheduled_job]


def _check_all(failed: list[str], done: str, code: str) -> None:
    """Raises `Failed` if any process could not be `done`."""
    if failed:
        raise Failed(f"not all processes could be {done}: {'; '.join(failed)}", code)


@_open_call
async def start(fleet: Fleet, names: Sequence[str], scheduler: Scheduler | None = None) -> list[CallResult]:
    """Starts those that are not live, lower `order` first.

    Here and below `scheduler` is given where all processes are selected: schedules are paused and resumed then, and
    no scheduled job is started, as by the calls for all.
    """
    jobs: list[CallResult] = []
    if scheduler is not None:
        _resume(fleet, scheduler)
        names, jobs = _without_jobs(fleet, names)
    processes = [fleet.get(name) for name in names]
    live = {process for process in processes if process.live}
    request, idle = next_request(), [process for process in processes if not process.live]
    with announced(idle):
        started = await fleet.results(idle, lambda process: fleet.start_once(process, request))
    await fleet.stored()
    return [
        _unchanged(one, "already") if one in live else _result(one, dict(started)[one], "started") for one in processes
    ] + jobs


def _without_jobs(fleet: Fleet, names: Sequence[str]) -> tuple[list[str], list[CallResult]]:
    """The names of all but scheduled jobs, and the results of these."""
    jobs = [name for name in names if fleet.get(name).spec.is_scheduled_job]
    return [name for name in names if name not in jobs], [
        CallResult(name, "already", f"{name} runs by its schedule") for name in jobs
    ]


@_open_call
async def stop(fleet: Fleet, names: Sequence[str], scheduler: Scheduler | None = None) -> list[CallResult]:
    """Stops those that are live, starting or due for a restart, each after its dependents."""
    if scheduler is not None:
        scheduler.pause_all(True)
    processes = [fleet.get(name) for name in names]
    fleet.hold(processes)
    due = [process for process in processes if _is_due(process)]
    request = _call_off(processes)
    stopped = dict(await _stop(fleet, due, request))
    await fleet.stored()
    return [
        _result(process, stopped[process], "stopped") if process in stopped else _unchanged(process, "not_running")
        for process in processes
    ]


@_open_call
async def restart(fleet: Fleet, names: Sequence[str], scheduler: Scheduler | None = None) -> list[CallResult]:
    """Stops those that are live, waits until they are gone, and starts all of them.

    What could not be started again, as its environment file is broken, is left as it is, with what it depends on. A
    live process that depends on one of them is restarted too and has a result of its own.
    """
    jobs: list[CallResult] = []
    if scheduler is not None:
        _resume(fleet, scheduler)
        names, jobs = _without_jobs(fleet, names)
        live = [one.name for one in jobs if _is_due(fleet.get(one.name))]
        stopped_jobs = {one.name: one for one in await stop(fleet, live)}
        jobs = [stopped_jobs.get(one.name, one) for one in jobs]
    request = next_request()  # before the check: a stop that comes during it is a later request
    processes = [fleet.get(name) for name in names]
    due = {process for process in [*processes, *fleet.dependents_of(names)] if _is_due(process)}
    with announced({*processes, *due}):
        unrunnable = await fleet.unrunnable(processes)
        processes = [process for process in processes if process not in unrunnable]
        dependents = fleet.dependents_of(process.name for process in processes)
        behind = [one for one in dependents if one not in processes and one in due]
        for process in processes:
            process.call_off(request)
        stopped = dict(await _stop(fleet, [one for one in processes if one in due], request))
        failed = {process: result for process, result in stopped.items() if isinstance(result, BaseException)}
        wanted = [process for process in [*processes, *behind] if process not in failed]
        started = await fleet.results(wanted, lambda process: fleet.start_once(process, request))
    results = {**failed, **dict(started)}
    for process, result in results.items():
        if isinstance(result, str):
            results[process] = f"{process.name} has been restarted (pid {process.record.pid})"
    await fleet.stored()
    done = [_result(process, results[process], "restarted") for process in [*processes, *behind]]
    return done + [_result(one, problem, "failed") for one, problem in unrunnable.items()] + jobs


async def clear_logs(fleet: Fleet, logs: LogFiles, names: Sequence[str]) -> list[CallResult]:
    """Empties the log files of these; their rotated files stay."""
    results = []
    for process in map(fleet.get, names):
        paths = [file.path for file in process.log_files()]
        try:
            problems = await logs.clear(paths)
        except OSError as error:
            problems = [f"they cannot be emptied: {error.strerror}"]
        if problems:
            results.append(CallResult(process.name, "failed", f"{process.name}: {'; '.join(problems)}"))
        elif paths:
            results.append(CallResult(process.name, "cleared", f"the logs of {process.name} have been emptied"))
        else:
            results.append(CallResult(process.name, "no_logs", f"{process.name} has no log file of its own"))
    return results


def send(fleet: Fleet, names: Sequence[str], number: signal.Signals, to_group: bool) -> list[CallResult]:
    """Sends a signal to those that are live."""
    results = []
    for process in (fleet.get(name) for name in names):
        if not process.live:
            results.append(_unchanged(process, "not_running"))
            continue
        try:
            message: str | BaseException = process.send(number, to_group)
        except Problem as problem:
            message = problem
        results.append(_result(process, message, "signalled"))
    return results


def _is_due(process: Process) -> bool:
    return process.live or process.is_pending


def _call_off(processes: Sequence[Process]) -> int:
    """Calls off all starts of these that were requested before; returns the number of this request."""
    request = next_request()
    for process in processes:
        process.call_off(request)
    return request


async def _stop(fleet: Fleet, processes: Sequence[Process], request: int) -> list[tuple[Process, str | BaseException]]:
    return await fleet.results(processes, lambda process: fleet.stop_with_dependents(process, request), reverse=True)


def _unchanged(process: Process, outcome: Outcome) -> CallResult:
    return CallResult(process.name, outcome, f"{process.name} is {process.status.value}")


def _result(process: Process, result: str | BaseException, outcome: Outcome) -> CallResult:
    if isinstance(result, BaseException):
        return CallResult(process.name, "failed", failure_message(process, result))
    return CallResult(process.name, outcome, result)
