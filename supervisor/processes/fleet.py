"""All processes: start and stop order, dependencies, and what a reload changes."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable, Collection, Coroutine, Iterable, Iterator, Mapping, Sequence
from typing import Any

from attrs import Factory, asdict, evolve, frozen

from models.errors import Conflict, Failed, Invalid, NotFound, Problem
from models.supervision.process import (
    IDLE,
    UP,
    Condition,
    Dependency,
    ProcessSpec,
    Status,
    dependents,
    needed_by,
    needs_restart,
)
from models.supervision.record import Record
from models.supervision.runs import Cause
from supervisor.processes.logs.files import LogFile
from supervisor.processes.open_calls import OpenCalls
from supervisor.processes.process.attempts import StartCalledOff, next_request, stopped_before_start
from supervisor.processes.process.context import SupervisionContext
from supervisor.processes.process.hooks import START_PRE
from supervisor.processes.process.instance import ProcessInstance
from supervisor.processes.process.process import MANUAL, Process
from supervisor.scheduling import BackgroundTasks, retrieve_exception, yield_to_loop

log = logging.getLogger("supervision")

AUTO = Cause("auto")
_BATCH = 5
_KILL_TIMEOUT_SECONDS = 1.0


@frozen
class Reload:
    """What a reload did, by process name."""

    added: list[str] = Factory(list)
    removed: list[str] = Factory(list)
    started: list[str] = Factory(list)
    restarted: list[str] = Factory(list)
    changed: list[str] = Factory(list)
    failed: list[str] = Factory(list)
    settings: list[str] = Factory(list)
    """Properties outside the processes that were taken over."""

    def __str__(self) -> str:
        """`added: db; restarted: web`, or `nothing changed`."""
        return (
            "; ".join(f"{what}: {', '.join(names)}" for what, names in asdict(self).items() if names)
            or "nothing changed"
        )


class Fleet:
    def __init__(
        self, specs: Mapping[str, ProcessSpec], context: SupervisionContext, records: Mapping[str, Record]
    ) -> None:
        self._context = context
        self._needed = needed_by(specs)
        self._processes = {name: self._make(spec, records.get(name)) for name, spec in specs.items()}
        self._starts: dict[Process, tuple[int, asyncio.Future[str]]] = {}
        self._waiting_dependents: set[asyncio.Future[list[str]]] = set()
        self._tasks = BackgroundTasks(_report_failure)
        self.calls = OpenCalls()
        self.on_specs_changed: Callable[[], None] = lambda: None
        """Called when a reload has replaced the specs, before it starts or stops anything."""

    def _make(self, spec: ProcessSpec, record: Record | None = None) -> Process:
        return Process(spec, self._context, self._start_dependencies, record)

    def __iter__(self) -> Iterator[Process]:
        return iter(self._processes.values())

    def __len__(self) -> int:
        return len(self._processes)

    def __contains__(self, name: str) -> bool:
        return name in self._processes

    def get(self, name: str) -> Process:
        """Raises `NotFound`."""
        try:
            return self._processes[name]
        except KeyError:
            raise NotFound(f"there is no process {name}", "PROCESS_NOT_FOUND") from None

    def dependents_of(self, names: Iterable[str]) -> list[Process]:
        """The direct and indirect dependents of these processes."""
        behind = dict.fromkeys(other for name in names for other in dependents(self._needed, name))
        return [self._processes[name] for name in behind]

    async def unrunnable(self, processes: Iterable[Process]) -> dict[Process, Problem]:
        """Why those that live must not be stopped for a restart: they, or what lives of their dependents, cannot be
        run on this machine now."""
        affected = {process: self._affected(process) for process in processes if process.live}
        problems = await self._problems(one for several in affected.values() for one in several)
        first = {process: next(filter(None, map(problems.get, several)), None) for process, several in affected.items()}
        return {process: problem for process, problem in first.items() if problem is not None}

    def _affected(self, process: Process) -> list[Process]:
        """A process and those of its dependents that live: a restart stops all of these."""
        return [process, *(one for one in self.dependents_of([process.name]) if one.live)]

    async def _problems(self, processes: Iterable[Process]) -> dict[Process, Problem]:
        """Why some of these cannot be run on this machine now."""
        found: dict[Process, Problem] = {}
        for process in dict.fromkeys(processes):
            try:
                await self._context.check(process.spec)
            except Invalid as problem:
                found[process] = problem
        return found

    async def stored(self) -> None:
        """Returns when all changes so far are stored. Raises `Unavailable`."""
        await self._context.event_writer.ensure_stored()

    def log_files(self) -> list[LogFile]:
        return [file for process in self._processes.values() for file in process.log_files()]

    async def start(self, name: str) -> str:
        """Starts one process after its dependencies.

        Raises `Invalid` (for an unknown name too), `Failed`, and `Conflict` where a stop came after the request.
        """
        try:
            process = self.get(name)
        except NotFound as problem:
            raise Invalid(problem.message, problem.code) from None  # `start` documents 400 for an unknown name
        return await self._stored(process.start(check_first=True))

    async def stop(self, name: str) -> str:
        """Stops one process after its dependents. Raises `NotFound`, `Failed`."""
        self.hold([self.get(name)])
        return await self._stored(self.stop_with_dependents(self.get(name), next_request()))

    def hold(self, processes: Iterable[Process]) -> None:
        """An operator stops these, and with them their dependents that are up."""
        stopped = list(processes)
        behind = self.dependents_of(process.name for process in stopped)
        for process in [*stopped, *(one for one in behind if one.live or one.is_pending)]:
            process.state.hold(True)

    def held_dependency(self, process: Process) -> Process | None:
        """A direct or indirect dependency that is down because an operator stopped it."""
        needed, seen = [process], {process}
        for dependent in needed:
            for dependency in (self.get(one.process) for one in dependent.spec.depends_on):
                if dependency in seen or dependency.live or dependency.waits_for_restart:
                    continue
                if dependency.record.held:
                    return dependency
                seen.add(dependency)
                needed.append(dependency)
        return None

    async def restart(self, name: str, cause: Cause = MANUAL) -> str:
        """Restarts one process; its dependents are stopped before and started after. Raises `NotFound`, `Failed`."""
        return await self._stored(self._restart(self.get(name), next_request(), cause))

    async def _restart(self, process: Process, request: int, cause: Cause) -> str:
        for problem in (await self._problems(self._affected(process))).values():
            raise problem  # before anything is stopped
        behind = [self._processes[other] for other in dependents(self._needed, process.name)]
        wanted = [other for other in behind if other.live or other.is_pending]
        with announced(wanted):
            for other in behind:
                await other.stop(request)
            try:
                message = await process.restart(request, cause)
            except Problem:
                if process.waits_for_restart:
                    self._start_later(wanted, request)
                raise
            if failed := await self.start_each(wanted, request):
                raise Failed(f"{message}, but of its dependents: {'; '.join(failed)}", "START_FAILED")
        return message

    def _start_later(self, processes: list[Process], request: int) -> None:
        """The dependents wait until their dependency is restarted by its policy."""
        start = asyncio.ensure_future(self.start_each(processes, request))
        self._waiting_dependents.add(start)
        start.add_done_callback(self._waiting_dependents.discard)

    async def stop_with_dependents(self, process: Process, request: int) -> str:
        behind = [self._processes[name] for name in dependents(self._needed, process.name)]
        for other in (*behind, process):
            other.call_off(request)  # before anything is awaited: a dependent must not start its dependency again
        for other in behind:
            await other.stop(request)
        return await process.stop(request)

    async def _stored(self, work: Coroutine[Any, Any, str]) -> str:
        """A response is sent when the changes that it reports are stored."""
        with contextlib.closing(work), self.calls.open():
            try:
                return await work
            except StartCalledOff as problem:
                raise Conflict(problem.message, problem.code) from None
            finally:
                await self._context.event_writer.ensure_stored()

    async def _start_dependencies(self, name: str, request: int) -> None:
        """Starts the dependencies of a process and waits for them, `start-timeout` at most. Raises `Failed`.

        A dependency that was stopped since the request is not started.
        """
        spec = self.get(name).spec
        if not spec.depends_on:
            return
        try:
            delay = max(self.get(dependency.process).spec.start_delay for dependency in spec.depends_on)
            async with asyncio.timeout(spec.start_timeout + delay):
                await _gather_or_cancel(
                    self._start_dependency(name, dependency, request) for dependency in spec.depends_on
                )
        except TimeoutError:
            missing = [d.process for d in spec.depends_on if not _satisfies(self.get(d.process), d.condition)]
            raise Failed(
                f"{name} was not started: {', '.join(missing)} did not come up within {spec.start_timeout:g} s",
                "START_FAILED",
            ) from None

    async def _start_dependency(self, name: str, dependency: Dependency, request: int) -> None:
        process, condition = self.get(dependency.process), dependency.condition
        if condition is Condition.COMPLETED and process.state.has_completed:
            return
        if not process.live and not process.waits_for_restart:
            try:
                await self.start_once(process, request, Cause("dependency"))
            except Problem as problem:
                if not process.waits_for_restart:
                    failure = StartCalledOff if isinstance(problem, StartCalledOff) else Failed
                    raise failure(f"{name} was not started: {problem.message}", "START_FAILED") from None
        await process.until(lambda one: _satisfies(one, condition) or _has_ended(one))
        if not _satisfies(process, condition):
            was_stopped = process.status in (Status.STOPPED, Status.ABORTED) and not process.record.wanted
            failure = StartCalledOff if was_stopped else Failed
            raise failure(f"{name} was not started: {process.name} is {_outcome(process)}", "START_FAILED")

    async def stop_every(self, request: int) -> list[str]:
        """Stops all processes, idle ones too: a process that is idle now may be started by another before it is
        stopped."""
        processes = list(self._processes.values())
        for process in processes:
            process.call_off(request)
        return await self._for_each(
            processes, lambda process: self.stop_with_dependents(process, request), reverse=True
        )

    async def start_marked(self) -> None:
        """Starts those marked `auto-start`; failures are logged. A job that ran in this period is not repeated."""
        processes = [process for process in self._processes.values() if process.spec.auto_start]
        marked = [process for process in processes if not (process.spec.is_job and process.state.has_run)]
        await self._start_marked(marked)

    async def _start_marked(self, processes: list[Process]) -> None:
        for failure in await self.start_each(processes, next_request(), AUTO, delayed=True):
            log.error("auto-start: %s", failure)

    async def start_each(
        self, processes: list[Process], request: int, cause: Cause = MANUAL, delayed: bool = False
    ) -> list[str]:
        """Starts these; returns the failures. A later stop calls off those that have not begun yet."""
        with announced(processes) as announcements:

            async def start(process: Process) -> str:
                with announcements[process]:  # it waits for nothing once its own start has ended
                    return await self.start_once(process, request, cause, delayed=delayed)

            return await self._for_each(processes, start)

    async def start_once(self, process: Process, request: int, cause: Cause = MANUAL, delayed: bool = False) -> str:
        """Starts a process; requests during the start share its outcome, so that one failure is one attempt."""
        if process.starts.is_called_off(request):
            raise stopped_before_start(process.name)
        begun = self._starts.get(process)
        if begun is None or process.starts.is_called_off(begun[0]):
            start = asyncio.ensure_future(process.start(request, cause, delayed=delayed))
            begun = self._starts[process] = request, start
            begun[1].add_done_callback(lambda done: self._on_started(process, done))
        return await asyncio.shield(begun[1])

    def _on_started(self, process: Process, start: asyncio.Future[str]) -> None:
        if self._starts[process][1] is start:
            del self._starts[process]
        if not start.cancelled():
            start.exception()  # the callers may have left

    async def _for_each(
        self, processes: list[Process], do: Callable[[Process], Awaitable[str]], reverse: bool = False
    ) -> list[str]:
        """Runs the operation for all, those of equal `order` concurrently; returns the failures."""
        results = await self.results(processes, do, reverse)
        return [failure_message(process, result) for process, result in results if isinstance(result, BaseException)]

    async def results(
        self, processes: Sequence[Process], do: Callable[[Process], Awaitable[str]], reverse: bool = False
    ) -> list[tuple[Process, str | BaseException]]:
        """Runs the operation for all, those of equal `order` concurrently; returns a message or exception for each."""
        done: list[tuple[Process, str | BaseException]] = []
        batches: dict[int, list[Process]] = {}  # made before anything is awaited: a reload may change the orders
        for process in processes:
            batches.setdefault(process.spec.order, []).append(process)
        for _, batch in sorted(batches.items(), reverse=reverse):
            results = await asyncio.gather(*await _begin_all(batch, do), return_exceptions=True)
            done += zip(batch, results, strict=True)
        return done

    async def close(self, leave: bool) -> None:
        """Stops all, dependents first; or leaves all running, for the next start of the server to adopt."""
        self._context.closing = True
        if leave:
            for process in self._processes.values():
                process.hooks.call_off(next_request(), START_PRE)
            await self.calls.end([*(start for _, start in self._starts.values()), *self._waiting_dependents])
            await _wait_for_spawns(self)
            log.info("processes left running: %d", sum(process.live for process in self._processes.values()))
        else:
            for failure in await self.stop_every(next_request()):
                log.error("during shutdown: %s", failure)
        for process in self._processes.values():
            process.cancel_tasks()

    async def kill(self) -> None:
        """Sends SIGKILL to everything that is still running."""
        await _kill([process.instance for process in self if process.instance is not None])

    async def reload(self, specs: Mapping[str, ProcessSpec], auto_start: bool) -> Reload:
        """Takes over a new configuration: a process whose entry did not change is not touched.

        `auto_start` is whether new processes marked `auto-start` are started. Those with a `start-delay`, and what
        depends on them, are started in the background. Raises `Unavailable` where the server stops meanwhile.
        """
        with self.calls.open():
            return await self._reload(specs, auto_start)

    async def _reload(self, specs: Mapping[str, ProcessSpec], auto_start: bool) -> Reload:
        plan, needed = self.preview(specs, auto_start), self._needed
        removed = [self._processes[name] for name in plan.removed]
        self._take_over(specs, plan.changed)
        live, new = ([self._processes[name] for name in names] for names in (plan.restarted, plan.started))
        failed = await self._for_each(removed, lambda process: self._retire(process, needed), reverse=True)
        self._processes = {name: one for name, one in self._processes.items() if one.live or not one.retired}
        failed += await self._for_each(live, Process.restart_if_running)
        later = [process for process in new if _has_delay(process, self)]
        if later:
            self._tasks.start(self._start_marked(later))
        at_once = [process for process in new if process not in later]
        failed += await self.start_each(at_once, next_request(), AUTO, delayed=True)
        await self._context.event_writer.ensure_stored()
        return evolve(
            plan,
            started=[process.name for process in new if process.live],
            restarted=[process.name for process in live if process.live],
            failed=failed,
        )

    def preview(self, specs: Mapping[str, ProcessSpec], auto_start: bool) -> Reload:
        """Returns what `reload` would do, and does nothing."""
        old = {name: process.spec for name, process in self._processes.items()}  # with what could not be removed
        changed = [name for name, spec in specs.items() if name in old and old[name] != spec]
        added = [name for name in specs if name not in self._processes]
        return Reload(
            added=added,
            removed=[name for name in self._processes if name not in specs],
            started=[name for name in added if auto_start and specs[name].auto_start],
            restarted=[one for one in changed if self._processes[one].live and needs_restart(old[one], specs[one])],
            changed=changed,
        )

    async def _retire(self, process: Process, needed: Mapping[str, list[str]]) -> str:
        """Dependents that are no longer configured either are stopped first. `needed` is from before the reload."""
        for other in dependents(needed, process.name):
            if other in self._processes and self._processes[other].retired:
                await self._processes[other].stop()
        return await process.retire()

    def _take_over(self, specs: Mapping[str, ProcessSpec], changed: list[str]) -> None:
        """Replaces the processes at once, before anything is awaited."""
        for name, process in self._processes.items():
            process.retired = name not in specs
        for name in changed:
            self._processes[name].take_over(specs[name])
        self._needed = needed_by(specs)
        kept = self._processes
        retired = {name: process for name, process in kept.items() if process.retired}  # until they are gone
        self._processes = {name: kept.get(name) or self._make(spec) for name, spec in specs.items()} | retired
        self.on_specs_changed()


def _has_delay(process: Process, fleet: Fleet) -> bool:
    """Whether its start waits for a `start-delay`, its own or one of a dependency that does not run."""
    needed = (fleet.get(dependency.process) for dependency in process.spec.depends_on)
    return process.spec.start_delay > 0 or any(not other.live and _has_delay(other, fleet) for other in needed)


def _report_failure(_: str, error: BaseException) -> None:
    log.error("auto-start: %s", error, exc_info=error)


@contextlib.contextmanager
def announced(processes: Iterable[Process]) -> Iterator[Mapping[Process, contextlib.ExitStack]]:
    """A group operation is going to start these processes: until then a stop calls that off.

    Yields a context for each, which ends its announcement earlier.
    """
    with contextlib.ExitStack() as stack:
        announcements: dict[Process, contextlib.ExitStack] = {}
        for process in processes:
            announcements[process] = stack.enter_context(contextlib.ExitStack())
            announcements[process].enter_context(process.starts.announced())
        yield announcements


async def _wait_for_spawns(processes: Iterable[Process]) -> None:
    """A spawn that has begun is completed: the next start of the server must find its child."""
    spawns = [process.starts.latest.spawned for process in processes if process.starts.latest is not None]
    if begun := [spawn for spawn in spawns if spawn is not None]:
        await asyncio.wait(begun)


async def _kill(instances: Collection[ProcessInstance]) -> None:
    for instance in instances:
        instance.kill()
    if instances:
        await asyncio.wait({instance.child.exited for instance in instances}, timeout=_KILL_TIMEOUT_SECONDS)


async def _gather_or_cancel(works: Iterable[Coroutine[Any, Any, None]]) -> None:
    """As `gather`; where one fails, the others are cancelled."""
    tasks = [asyncio.ensure_future(work) for work in works]
    try:
        await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()


async def _begin_all(processes: list[Process], do: Callable[[Process], Awaitable[str]]) -> list[asyncio.Future[str]]:
    """Begins all operations, a few in each iteration of the loop, so that requests are answered in between."""
    tasks: list[asyncio.Future[str]] = []
    try:
        for number, process in enumerate(processes, 1):
            task = asyncio.ensure_future(do(process))
            task.add_done_callback(retrieve_exception)  # the caller may have been cancelled
            tasks.append(task)
            if number % _BATCH == 0:
                await yield_to_loop()
    except asyncio.CancelledError:
        for begun in tasks:
            begun.cancel()
        raise
    return tasks


def _satisfies(process: Process, condition: Condition) -> bool:
    if condition is Condition.COMPLETED:
        return process.state.has_completed
    if condition is Condition.HEALTHY:
        return process.status is Status.HEALTHY
    return process.status in UP or (process.spec.is_job and process.state.has_completed)


def _outcome(process: Process) -> str:
    """`failed (exit code 3)`"""
    code = process.record.exit_code
    return f"{process.status.value}{'' if code is None else f' (exit code {code})'}"


def _has_ended(process: Process) -> bool:
    """Whether its status changes no more by itself."""
    return not process.live and not process.waits_for_restart and process.status in IDLE


def failure_message(process: Process, error: BaseException) -> str:
    """The message of what an operation has raised. What is no `Problem` is a bug, and is logged with a trace."""
    if isinstance(error, Exception) and not isinstance(error, Problem):
        log.error("%s: %s", process.name, error, exc_info=error)
    message = str(error)
    return message if process.name in message else f"{process.name}: {message}"
