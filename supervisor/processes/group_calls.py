"""Starting, stopping, restarting and signalling several processes, with a result for each."""

from __future__ import annotations

import logging
import signal
from collections.abc import Mapping, Sequence
from typing import Literal

from attrs import frozen

from models.errors import Problem
from supervisor.processes.fleet import Fleet, announced
from supervisor.processes.instance import next_request
from supervisor.processes.process import Process

log = logging.getLogger("supervision")

Outcome = Literal["started", "already", "stopped", "not_running", "restarted", "signalled", "failed"]
Results = Mapping[Process, str | BaseException]


@frozen
class CallResult:
    """What a call for several processes did to one of them."""

    name: str
    outcome: Outcome
    message: str


async def start(fleet: Fleet, names: Sequence[str]) -> list[CallResult]:
    """Starts those that are not live, lower `order` first."""
    processes = [fleet.get(name) for name in names]
    live = {process for process in processes if process.live}
    request, idle = next_request(), [process for process in processes if not process.live]
    with announced(idle):
        started = await fleet.results(idle, lambda process: fleet.start_once(process, request))
    await fleet.stored()
    return [
        _unchanged(one, "already") if one in live else _result(one, dict(started)[one], "started") for one in processes
    ]


async def stop(fleet: Fleet, names: Sequence[str]) -> list[CallResult]:
    """Stops those that are live, starting or due for a restart, each after its dependents."""
    processes = [fleet.get(name) for name in names]
    due = [process for process in processes if _is_due(process)]
    request = _call_off(processes)
    stopped = dict(await _stop(fleet, due, request))
    await fleet.stored()
    return [
        _result(process, stopped[process], "stopped") if process in stopped else _unchanged(process, "not_running")
        for process in processes
    ]


async def restart(fleet: Fleet, names: Sequence[str]) -> list[CallResult]:
    """Stops those that are live, waits until they are gone, and starts all of them.

    A live process that depends on one of them is restarted too and has a result of its own.
    """
    processes = [fleet.get(name) for name in names]
    behind = [one for one in fleet.dependents_of(names) if one not in processes and _is_due(one)]
    due = [process for process in processes if _is_due(process)]
    request = _call_off(processes)
    with announced([*processes, *behind]):
        stopped = dict(await _stop(fleet, due, request))
        failed = {process: result for process, result in stopped.items() if isinstance(result, BaseException)}
        wanted = [process for process in [*processes, *behind] if process not in failed]
        started = await fleet.results(wanted, lambda process: fleet.start_once(process, request))
    results = {**failed, **dict(started)}
    for process, result in results.items():
        if isinstance(result, str):
            results[process] = f"{process.name} has been restarted (pid {process.record.pid})"
    await fleet.stored()
    return [_result(process, results[process], "restarted") for process in [*processes, *behind]]


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
    if not isinstance(result, BaseException):
        return CallResult(process.name, outcome, result)
    if not isinstance(result, Problem):
        log.error("%s: %s", process.name, result, exc_info=result)
    message = str(result)
    return CallResult(process.name, "failed", message if process.name in message else f"{process.name}: {message}")
