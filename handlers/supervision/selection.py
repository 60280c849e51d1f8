"""Details and groups of processes, operations on selected ones, runs of jobs and their schedules."""

from __future__ import annotations

import signal
from collections import Counter
from collections.abc import Awaitable, Sequence
from typing import ClassVar

from attrs import evolve

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
from handlers.openapi.describe import Endpoint, Parameter, choice, paged
from handlers.routing import Route
from handlers.supervision import details
from handlers.supervision.details import ProcessDetails, ProcessRun
from models.config import parsers
from models.errors import Invalid
from models.json_format import Instant
from models.paging import paging
from models.supervision.selectors import Group, groups_of, select
from supervisor.processes import group_calls
from supervisor.processes.group_calls import CallResult
from supervisor.processes.scheduler import Scheduler

_ABOUT_SELECT = (
    "Which processes: names, globs, `@group`, `label=value`, `all`, and `!term` to exclude, "
    "with commas between them; may be repeated"
)
SELECT = Parameter("select", _ABOUT_SELECT, {"type": "string", "examples": ["web,worker-*", "@backend,!db"]})
_REQUIRED_SELECT = Parameter("select", _ABOUT_SELECT, SELECT.schema, required=True)
_SIGNAL = Parameter(
    "signal", "A name or a number: HUP, SIGUSR1, 15", {"type": "string", "examples": ["HUP"]}, required=True
)
_TO = choice("to", "The main process alone, or its whole process group", ["main", "group"], "main")
_PAUSED = evolve(choice("paused", "true pauses the schedule, false resumes it", ["true", "false"]), required=True)


def groups(handler: Base) -> dict[str, Group]:
    """The groups of all processes, by name."""
    specs = [process.spec for process in handler.supervision.fleet]
    return groups_of(specs, handler.config.supervisor.groups)


def selected_names(handler: Base) -> list[str]:
    """The names that the query's `select` selects. Raises `Invalid`, `NotFound`."""
    values = handler.get_query_arguments("select")
    return select(values, [process.spec for process in handler.supervision.fleet], groups(handler))


class Details(Base):
    permission = READ
    endpoints: ClassVar = {
        "GET": Endpoint(
            "List processes with groups, labels, CPU and memory",
            list[ProcessDetails],
            query=[SELECT],
            fails=[404],
            tool="process_details",
        )
    }

    async def get(self) -> None:
        fleet, known = self.supervision.fleet, groups(self)
        names = selected_names(self) if "select" in self.request.query_arguments else [one.name for one in fleet]
        processes = [fleet.get(name) for name in names]
        usage = await self.supervision.meter.read(processes)
        await self.supervision.event_writer.stored_soon()
        of: dict[str, list[str]] = {name: [] for name in names}
        for group in known.values():
            for member in group.members:
                of.setdefault(member, []).append(group.name)
        scheduler, runs = self.supervision.scheduler, self.supervision.context.runs
        self.reply(
            [
                details.process_details(
                    one, of[one.name], usage.get(one.name), scheduler.report(one), runs.last(one.name)
                )
                for one in processes
            ]
        )


class Groups(Base):
    permission = READ
    endpoints: ClassVar = {"GET": Endpoint("List the groups of processes", list[ProcessGroup], tool="process_groups")}

    async def get(self) -> None:
        live = {process.name for process in self.supervision.fleet if process.live}
        known = groups(self).values()
        self.reply([ProcessGroup(one.name, one.members, len(live.intersection(one.members))) for one in known])


class SelectedOperation(Base):
    """One operation on all selected processes: each has a result, and any failure makes the response a 500."""

    permission = CONTROL_PROCESSES
    failure_code = "START_FAILED"

    async def post(self) -> None:
        names = selected_names(self)
        results = [ProcessResult(one.name, one.outcome, one.message) for one in await self.call(names)]
        failures = [one.message for one in results if one.outcome == "failed"]
        if not failures:
            counts = Counter(one.outcome for one in results)
            message = ", ".join(f"{number} {outcome.replace('_', ' ')}" for outcome, number in counts.items())
            self.reply(ProcessResults(message or "nothing is selected", results))
            return
        message = f"not all processes could be changed: {'; '.join(failures)}"
        self.refused = f": {message}"
        self.set_status(500)
        at = Instant(self.clock.now())
        path, code = self.request.path, self.failure_code
        self.reply(ErrorResponseWithResults(at, path, "Internal Server Error", message, code, results))

    def scheduler_of_all(self) -> Scheduler | None:
        """Returns the scheduler if the only selector is `all`: the request then includes the schedules."""
        return self.supervision.scheduler if self.get_query_arguments("select") == ["all"] else None

    def call(self, names: Sequence[str]) -> Awaitable[list[CallResult]]:
        """Runs the operation on the processes with these names."""
        raise NotImplementedError


def _endpoint(verb: str, *query: Parameter) -> dict[str, Endpoint]:
    tool = f"process_{verb.lower()}_selected"
    fails = [400, 404, 500]
    about = f"{verb} the selected processes"
    return {"POST": Endpoint(about, ProcessResults, query=[_REQUIRED_SELECT, *query], fails=fails, tool=tool)}


class StartSelected(SelectedOperation):
    endpoints: ClassVar = _endpoint("Start")

    def call(self, names: Sequence[str]) -> Awaitable[list[CallResult]]:
        return group_calls.start(self.supervision.fleet, names, self.scheduler_of_all())


class StopSelected(SelectedOperation):
    endpoints: ClassVar = _endpoint("Stop")
    failure_code = "STOP_FAILED"

    def call(self, names: Sequence[str]) -> Awaitable[list[CallResult]]:
        return group_calls.stop(self.supervision.fleet, names, self.scheduler_of_all())


class RestartSelected(SelectedOperation):
    endpoints: ClassVar = _endpoint("Restart")

    def call(self, names: Sequence[str]) -> Awaitable[list[CallResult]]:
        return group_calls.restart(self.supervision.fleet, names, self.scheduler_of_all())


class SignalSelected(SelectedOperation):
    endpoints: ClassVar = _endpoint("Signal", _SIGNAL, _TO)
    failure_code = "SIGNAL_FAILED"

    async def call(self, names: Sequence[str]) -> list[CallResult]:
        number, to_group = _signal(self)
        return group_calls.send(self.supervision.fleet, names, number, to_group)


class SignalOne(Base):
    """Sends a signal to one process; if the process ends, its restart policy applies."""

    permission = CONTROL_PROCESSES
    endpoints: ClassVar = {
        "POST": Endpoint(
            "Send a signal to one process",
            ResponseMessage,
            path=["name"],
            query=[_SIGNAL, _TO],
            fails=[400, 404, 409, 500],
            tool="process_signal",
        )
    }

    async def post(self, name: str) -> None:
        number, to_group = _signal(self)
        self.reply(ResponseMessage(self.supervision.fleet.get(name).send(number, to_group)))


def _signal(handler: Base) -> tuple[signal.Signals, bool]:
    """The signal that a request names, and whether it is for the whole group. Raises `Invalid`."""
    query = handler.query()
    try:
        number = parsers.signal_of(query.get("signal", ""))
    except parsers.ValidationError as problem:
        raise Invalid(f"signal {problem}") from None
    to = query.get("to") or "main"
    if to not in ("main", "group"):
        raise Invalid("to must be main or group")
    return number, to == "group"


class Runs(Base):
    permission = READ
    endpoints: ClassVar = {
        "GET": Endpoint(
            "List the runs of a job, newest first, in pages",
            PageOf[ProcessRun],
            path=["name"],
            query=paged(),
            fails=[404, 504],
            tool="process_runs",
        )
    }

    async def get(self, name: str) -> None:
        requested = paging({"sortBy": "id", **self.query()}, {"id": "id"})
        page = await self.supervision.context.runs.page(name, requested)
        if not page.total:
            self.supervision.fleet.get(name)  # raises NotFound
        self.reply(page_of(page, details.process_run))


class ScheduleState(Base):
    """Pauses and resumes the schedule of one process; its run, if any, continues."""

    permission = CONTROL_PROCESSES
    endpoints: ClassVar = {
        "POST": Endpoint(
            "Pause or resume the schedule of one process",
            ResponseMessage,
            path=["name"],
            query=[_PAUSED],
            fails=[400, 404, 500],
            tool="process_schedule",
        )
    }

    async def post(self, name: str) -> None:
        paused = self.flag("paused", default="")
        self.reply(ResponseMessage(await self.supervision.scheduler.pause(name, paused)))


routes: list[Route] = [
    (r"/processes/details", Details),
    (r"/processes/groups", Groups),
    (r"/processes/start", StartSelected),
    (r"/processes/stop", StopSelected),
    (r"/processes/restart", RestartSelected),
    (r"/processes/signal", SignalSelected),
    (r"/processes/signal/([^/]+)", SignalOne),
    (r"/processes/runs/([^/]+)", Runs),
    (r"/processes/schedule/([^/]+)", ScheduleState),
]
