"""All processes: the order they start and stop in, what they need of each other, and what a reload changes."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Iterator, Mapping, Sequence
from typing import Any

from attrs import Factory, asdict, frozen

from models.errors import Conflict, Failed, Invalid, NotFound, Problem
from models.supervision.process import (
    ENDED,
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
from supervisor.processes.context import SupervisionContext
from supervisor.processes.log_files import LogFile
from supervisor.processes.process import Process
from supervisor.scheduling import pause

log = logging.getLogger("supervision")

_AT_ONCE = 5


@frozen
class Reload:
    """What a new configuration changed, by name of process."""

    added: list[str] = Factory(list)
    removed: list[str] = Factory(list)
    started: list[str] = Factory(list)
    restarted: list[str] = Factory(list)
    changed: list[str] = Factory(list)
    failed: list[str] = Factory(list)
    settings: list[str] = Factory(list)
    """Properties that are taken over, beside the processes."""

    def __str__(self) -> str:
        """`added: db; restarted: web`, or that nothing changed."""
        return (
            "; ".join(f"{what}: {', '.join(names)}" for what, names in asdict(self).items() if names)
            or "nothing changed"
        )


class Fleet:
    def __init__(
        self, specs: Mapping[str, ProcessSpec], context: SupervisionContext, records: Mapping[str, Record]
    ) -> None:
        self._engine = context
        self._specs, self._needed = dict(specs), needed_by(specs)
        self._processes = {name: self._make(spec, records.get(name)) for name, spec in specs.items()}
        self._later: asyncio.Future[list[str]] | None = None
        self._bringing: dict[Process, asyncio.Future[str]] = {}

    def _make(self, spec: ProcessSpec, record: Record | None = None) -> Process:
        return Process(spec, self._engine, self._have_what_it_needs, record)

    # What it is

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
        """The processes that need one of these, directly or through others."""
        needing = dict.fromkeys(other for name in names for other in dependents(self._needed, name))
        return [self._processes[name] for name in needing]

    async def stored(self) -> None:
        """Returns when all changes so far are in the store, or the store has been waited for long enough."""
        await self._engine.event_writer.answer()

    def log_files(self) -> list[LogFile]:
        return [file for process in self._processes.values() for file in process.log_files()]

    # One process

    async def start(self, name: str) -> str:
        """Starts one, and before it what it depends on. Raises `Invalid` for an unknown name too, `Failed`."""
        try:
            process = self.get(name)
        except NotFound as problem:
            raise Invalid(problem.message, problem.code) from None  # the seed's start knows no 404
        return await self._answered(process.start())

    async def stop(self, name: str) -> str:
        """Stops one, and before it what depends on it. Raises `NotFound`, `Failed`."""
        return await self._answered(self.stop_with_dependents(self.get(name)))

    async def restart(self, name: str) -> str:
        """Restarts one; what depends on it is stopped before and started again after. Raises `NotFound`, `Failed`."""
        return await self._answered(self._restart(self.get(name)))

    async def _restart(self, process: Process) -> str:
        self._engine.launch(process.spec, process.record.generation + 1)  # what cannot be run here stops nobody
        behind = [self._processes[other] for other in dependents(self._needed, process.name)]
        wanted = [other for other in behind if other.live or other.waits_for_restart]
        for other in behind:
            await other.stop()
        try:
            message = await process.restart()
        except Problem:
            if process.waits_for_restart:
                self._later = asyncio.ensure_future(self._start(wanted))  # they wait for it to come back
            raise
        if failed := await self._start(wanted):
            raise Failed(f"{message}, but of what depends on it: {'; '.join(failed)}", "START_FAILED")
        return message

    async def stop_with_dependents(self, process: Process) -> str:
        for other in [self._processes[name] for name in dependents(self._needed, process.name)]:
            await other.stop()
        return await process.stop()

    async def _answered(self, deed: Awaitable[str]) -> str:
        """An answer leaves when what it says is in the store."""
        try:
            return await deed
        finally:
            await self._engine.event_writer.answer()

    async def _have_what_it_needs(self, name: str) -> None:
        """Starts what the process depends on and waits for it, `start-timeout` at most. Raises `Failed`."""
        spec = self.get(name).spec
        try:
            async with asyncio.timeout(spec.start_timeout):
                await _all(self._have(name, dependency) for dependency in spec.depends_on)
        except TimeoutError:
            missing = [d.process for d in spec.depends_on if not _serves(self.get(d.process), d.condition)]
            raise Failed(
                f"{name} was not started: {', '.join(missing)} did not come up within {spec.start_timeout:g} s",
                "START_FAILED",
            ) from None

    async def _have(self, name: str, dependency: Dependency) -> None:
        process = self.get(dependency.process)
        if not process.live and not process.waits_for_restart:
            try:
                await self.bring(process, by_hand=False)
            except Problem as problem:
                if not process.waits_for_restart:
                    raise Failed(f"{name} was not started: {problem.message}", "START_FAILED") from None
        await process.until(lambda one: _serves(one, dependency.condition) or _is_over(one))
        if not _serves(process, dependency.condition):
            raise Failed(f"{name} was not started: {process.name} is {process.status.value}", "START_FAILED")

    # All of them

    async def start_all(self) -> str:
        """Starts all that are not live, lower `order` first.

        Raises `Failed`, which names those that did not start; else `Conflict`, which names those that were live before.
        """
        before = [process.name for process in self._processes.values() if process.live]
        failed = await self._start([process for process in self._processes.values() if not process.live])
        await self._engine.event_writer.answer()
        if failed:
            raise Failed(f"not all processes could be started: {'; '.join(failed)}", "START_FAILED")
        if before:
            raise Conflict(
                f"already running: {', '.join(before)}; all others were started", "PROCESSES_ALREADY_RUNNING"
            )
        return f"{len(self)} processes have been started"

    async def stop_all(self) -> str:
        """Stops all that are live or due for a restart. Raises `NotFound` where none is, `Failed`."""
        some = [process for process in self._processes.values() if process.live or process.waits_for_restart]
        if not some:
            raise NotFound("no process is running", "NO_RUNNING_PROCESSES")
        failed = await self._each(some, self.stop_with_dependents, backwards=True)
        await self._engine.event_writer.answer()
        if failed:
            raise Failed(f"not all processes could be stopped: {'; '.join(failed)}", "STOP_FAILED")
        return f"{len(some)} processes have been stopped"

    async def restart_all(self) -> str:
        """Stops what is live, waits until it is gone, and starts all. Raises `Failed`, which names who did not."""
        some = [process for process in self._processes.values() if process.live or process.waits_for_restart]
        failed = await self._each(some, self.stop_with_dependents, backwards=True)
        failed += await self._start(list(self._processes.values()))
        await self._engine.event_writer.answer()
        if failed:
            raise Failed(f"not all processes could be restarted: {'; '.join(failed)}", "START_FAILED")
        return f"{len(self)} processes have been restarted"

    async def start_marked(self) -> None:
        """Starts those marked `auto-start`; failures are told by the log and the status."""
        for failure in await self._start([process for process in self._processes.values() if process.spec.auto_start]):
            log.error("auto-start: %s", failure)

    async def _start(self, processes: list[Process]) -> list[str]:
        return await self._each(processes, self.bring)

    async def bring(self, process: Process, by_hand: bool = True) -> str:
        """Starts it; all who want that while it is under way get the same answer, so that a failure is met once."""
        start = self._bringing.get(process)
        if start is None:
            start = self._bringing[process] = asyncio.ensure_future(process.start(by_hand))
            start.add_done_callback(lambda done: (self._bringing.pop(process), done.cancelled() or done.exception()))
        return await asyncio.shield(start)

    async def _each(
        self, processes: list[Process], do: Callable[[Process], Awaitable[str]], backwards: bool = False
    ) -> list[str]:
        """Does it to all, those of equal `order` together; returns what failed, in words."""
        results = await self.results(processes, do, backwards)
        return [_words(process, result) for process, result in results if _failed(process, result)]

    async def results(
        self, processes: Sequence[Process], do: Callable[[Process], Awaitable[str]], backwards: bool = False
    ) -> list[tuple[Process, str | BaseException]]:
        """Does it to all, those of equal `order` together; returns the message or the exception of each."""
        done: list[tuple[Process, str | BaseException]] = []
        for order in sorted({process.spec.order for process in processes}, reverse=backwards):
            together = [process for process in processes if process.spec.order == order]
            results = await asyncio.gather(*await _begun(together, do), return_exceptions=True)
            done += zip(together, results, strict=True)
        return done

    # A life of ours

    async def close(self, leave: bool) -> None:
        """Stops all, dependents first; or looks away from all, for the next start to find them."""
        self._engine.closing = True
        if leave:
            await self._begun_are_through()
            log.info("processes left running: %d", sum(process.live for process in self._processes.values()))
        some = [process for process in self._processes.values() if process.live or process.waits_for_restart]
        for failure in await self._each([] if leave else some, self.stop_with_dependents, backwards=True):
            log.error("while closing: %s", failure)
        for process in self._processes.values():
            process.forget()

    async def _begun_are_through(self) -> None:
        """A start that was begun is gone through with: its child is to be found by the next start."""
        begun = [process.begun for process in self._processes.values() if process.begun is not None]
        if begun:
            await asyncio.wait(begun)

    async def kill(self) -> None:
        """Ends at once what is still there, with all that it started."""
        live = [process.life for process in self._processes.values() if process.life is not None]
        for life in live:
            life.kill()
        if live:
            await asyncio.wait({life.child.exited for life in live}, timeout=1.0)

    async def reload(self, specs: Mapping[str, ProcessSpec], auto_start: bool) -> Reload:
        """Takes over a new configuration: what did not change is not touched. One at a time.

        `auto_start` says whether new processes that are marked so are started.
        """
        removed = [process for name, process in self._processes.items() if name not in specs]
        changed = [name for name, spec in specs.items() if name in self._specs and self._specs[name] != spec]
        added = [name for name in specs if name not in self._processes]
        needed, before = self._needed, self._specs
        self._take(specs, changed)
        live = [self._processes[name] for name in changed if self._processes[name].live]
        live = [process for process in live if needs_restart(before[process.name], process.spec)]
        new = [self._processes[name] for name in added if auto_start and specs[name].auto_start]
        failed = await self._each(removed, lambda one: self._retire(one, needed), backwards=True)
        self._processes = {name: one for name, one in self._processes.items() if one.live or not one.retired}
        failed += await self._each(live, Process.renew)
        failed += await self._start(new)
        await self._engine.event_writer.answer()
        return Reload(
            added=added,
            removed=[process.name for process in removed],
            started=[process.name for process in new if process.live],
            restarted=[process.name for process in live if process.live],
            changed=changed,
            failed=failed,
        )

    async def _retire(self, process: Process, needed: Mapping[str, list[str]]) -> str:
        """What depended on it, and is configured no more either, goes before it. `needed` as it was till now."""
        for other in dependents(needed, process.name):
            if other in self._processes and self._processes[other].retired:
                await self._processes[other].stop()
        return await process.retire()

    def _take(self, specs: Mapping[str, ProcessSpec], changed: list[str]) -> None:
        """From here on these are the processes, before anything is waited for."""
        for name, process in self._processes.items():
            process.retired = name not in specs
        for name in changed:
            self._processes[name].spec = specs[name]
        self._specs, self._needed = dict(specs), needed_by(specs)
        kept = self._processes
        retired = {name: process for name, process in kept.items() if process.retired}  # until they are gone
        self._processes = {name: kept.get(name) or self._make(spec) for name, spec in specs.items()} | retired


async def _all(deeds: Iterable[Coroutine[Any, Any, None]]) -> None:
    """As `gather`, and where one fails nobody goes on waiting for the others."""
    tasks = [asyncio.ensure_future(deed) for deed in deeds]
    try:
        await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()


async def _begun(processes: list[Process], do: Callable[[Process], Awaitable[str]]) -> list[asyncio.Future[str]]:
    """All of it begun, some in each turn of the loop, so that requests are answered in between."""
    tasks: list[asyncio.Future[str]] = []
    for number, process in enumerate(processes, 1):
        tasks.append(asyncio.ensure_future(do(process)))
        if number % _AT_ONCE == 0:
            await pause()
    return tasks


def _serves(process: Process, condition: Condition) -> bool:
    return process.status is Status.HEALTHY if condition is Condition.HEALTHY else process.status in UP


def _is_over(process: Process) -> bool:
    """Nothing more is to be expected of it by itself."""
    return not process.live and not process.waits_for_restart and process.status in ENDED | {Status.NOT_STARTED}


def _failed(process: Process, result: object) -> bool:
    """Whether a deed ended in an exception; one that is no `Problem` is a defect of ours, and nobody else's trouble."""
    if isinstance(result, Exception) and not isinstance(result, Problem):
        log.error("%s: %s", process.name, result, exc_info=result)
    return isinstance(result, BaseException)


def _words(process: Process, result: object) -> str:
    message = str(result)
    return message if process.name in message else f"{process.name}: {message}"
