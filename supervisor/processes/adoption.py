"""Adoption: at its start, the server finds the processes that an earlier run of it started. Nothing starts twice.

A child is recognized by the stored pid, start time and boot; or, where the server was killed between the spawn and that
commit, by the tag in its environment, because the intent to start is stored before the spawn. Where even that could not
be stored (a full disk), the tag has a later generation than the record. Where only processes that such a child started
are left, it is recorded as `unknown`, so that its generation is not used again.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Mapping

from attrs import frozen

from models.supervision.process import IDLE, ProcessSpec, Status
from models.supervision.record import Record
from supervisor.children import orphans, tags
from supervisor.children.child import Child
from supervisor.children.orphans import Cgroups
from supervisor.children.proc import ProcessIdentity
from supervisor.children.tags import TaggedProcess
from supervisor.processes.fleet import Fleet
from supervisor.processes.process.context import SupervisionContext, user_of, variables_of_files
from supervisor.processes.process.instance import ProcessInstance
from supervisor.processes.process.process import Process
from supervisor.scheduling import BackgroundTasks

log = logging.getLogger("adoption")

_STOP_TIMEOUT_SECONDS = 10.0
_MAX_REPORTED, _MAX_NAME_CHARACTERS = 20, 100


@frozen
class Leftovers:
    """What an earlier run of the server left running and the configuration no longer contains."""

    processes: list[Process]
    pids: Mapping[str, set[int]]
    """Tagged processes that belong to no adopted child, by the process that they were started for."""
    groups: Mapping[str, set[int]]
    """Members of control groups of no adopted child, by folder."""
    fleet: Fleet
    cgroups: Cgroups

    def begin(self, tasks: BackgroundTasks) -> dict[str, asyncio.Task[None]]:
        """Ends them in the background. Returns the tasks that end the tagged processes, by process."""
        if pids := sorted(set().union(*self.pids.values(), *self.groups.values())):
            log.warning("ending processes left by an earlier run: pid %s", ", ".join(map(str, pids)))
        for process in self.processes:
            tasks.start(self._retire(process), f"leftover {process.name}")
        for folder in self.groups.keys() - {self.cgroups.folder(name) for name in self.pids}:
            tasks.start(self._end(self.groups[folder], folder), "leftovers of a control group")
        return {
            name: tasks.start(self._end(pids, self.cgroups.folder(name)), f"leftovers of {name}")
            for name, pids in self.pids.items()
        }

    async def _retire(self, process: Process) -> None:
        await process.retire()

    async def _end(self, pids: set[int], folder: str) -> None:
        """Ends these, and all members of a control group unless the process was started again meanwhile."""
        await orphans.end(pids | self.groups.get(folder, set()), _STOP_TIMEOUT_SECONDS)
        is_used = any(process.live and self.cgroups.folder(process.name) == folder for process in self.fleet)
        if folder in self.groups and not is_used:
            self.cgroups.kill_folder(folder)

    async def end(self) -> None:
        """Returns when they have ended. Raises `Failed`."""
        pids: set[int] = set().union(*self.pids.values(), *self.groups.values())
        await asyncio.gather(
            orphans.end(pids, _STOP_TIMEOUT_SECONDS), *(process.retire() for process in self.processes)
        )
        for folder in self.groups:
            self.cgroups.kill_folder(folder)


async def adopt(fleet: Fleet, context: SupervisionContext, records: Mapping[str, Record]) -> Leftovers:
    """Adopts live children, marks those that ended meanwhile as `unknown`, and resumes restarts that were due."""
    (tagged, forged), groups = await asyncio.to_thread(lambda: (_tagged_processes(context), context.cgroups.left()))
    removed = [_removed(name, context) for name in records.keys() - {process.name for process in fleet}]
    with_files = [process.spec for process in fleet if process.spec.env_file]
    variables = await asyncio.to_thread(variables_of_files, with_files) if tagged and with_files else {}
    fingerprints = {one.identity: one.fingerprint for one in tagged}
    kept: set[tuple[str, int]] = set()
    context.period = max((record.period for record in records.values()), default=0)
    for process in (*fleet, *removed):
        record = process.state.record = records.get(process.name, process.record)
        match = _by_identity(context, record) or _by_tag(context, process.spec, record, tagged)
        if match is not None:
            child, generation = match
            _take_over(process, context, child, generation, variables.get(process.name, {}))
            kept.add((process.name, generation))
            known = ("", None, process.spec.launch_fingerprint)
            if process.name in fleet and fingerprints.get(child.identity) not in known:
                log.warning("%s: pid %d runs with an older configuration: restart it", process.name, child.pid)
        elif (latest := _latest_generation(process.name, tagged)) > record.generation:
            process.state.mark_unstored(latest)
        elif record.status not in IDLE:
            process.state.mark_unknown()
    adopted = {process.instance.child.pid for process in (*fleet, *removed) if process.instance is not None}
    _report_forged([one for one in forged if one[0] not in adopted], context)
    if not kept:
        context.period += 1
    for process in fleet:
        process.restarter.resume()
    kept_groups = {context.cgroups.folder(name) for name, _ in kept}
    left = {folder: members for folder, members in groups.items() if folder not in kept_groups}
    pids: dict[str, set[int]] = {
        process.name: set() for process in fleet if context.cgroups.folder(process.name) in left
    }
    for one in tagged:
        if (one.name, one.generation) not in kept:
            pids.setdefault(one.name, set()).add(one.identity.pid)
    return Leftovers(removed, pids, left, fleet, context.cgroups)


def _take_over(
    process: Process, context: SupervisionContext, child: Child, generation: int, variables: Mapping[str, str] | None
) -> None:
    """The process has this child of an earlier run of the server; `variables` are those of its `env-file`."""
    state, clock = process.state, context.clock
    if generation != state.record.generation and state.status not in IDLE:
        state.mark_unknown()
    if state.status in IDLE:  # its start could not be stored
        state.begin_generation(generation)
    launch = context.adopted_launch(process.spec, generation, variables)
    instance = ProcessInstance.adopted(context, process, process.spec, launch, child)
    known = state.record.start if state.record.pid == child.pid else None
    process.follow(instance, known or clock.now() - instance.uptime())
    state.log_adoption()
    if state.status is Status.STARTING:
        instance.follow_start()
    elif state.status is Status.STOPPING:
        process.finish_stopping(instance)
    else:
        instance.resume()


def _latest_generation(name: str, tagged: list[TaggedProcess]) -> int:
    return max((process.generation for process in tagged if process.name == name), default=0)


def _removed(name: str, context: SupervisionContext) -> Process:
    """A process that is no longer configured: its launch settings are unknown, but it can be stopped."""

    async def no_dependencies(_: str, __: int) -> None:
        """It is never started again."""

    return Process(ProcessSpec(name, ("",)), context, no_dependencies)


def _by_identity(context: SupervisionContext, record: Record) -> tuple[Child, int] | None:
    if record.status in IDLE or record.pid is None or record.start_ticks is None or record.boot_id is None:
        return None
    child = context.children.adopt(ProcessIdentity(record.pid, record.start_ticks, record.boot_id))
    return (child, record.generation) if child else None


def _tagged_processes(context: SupervisionContext) -> tuple[list[TaggedProcess], list[tuple[int, int, str]]]:
    """The tagged processes, and pid, user and name of those whose tag does not count."""
    forged: list[tuple[int, int, str]] = []

    def note(pid: int, uid: int, name: str) -> None:
        forged.append((pid, uid, name))

    return tags.tagged_processes(context.server_id, key=context.children.key, on_forged=note), forged


def _report_forged(forged: list[tuple[int, int, str]], context: SupervisionContext) -> None:
    """Ignored processes are a notice: somebody may try to have them adopted."""
    for pid, uid, name in forged[:_MAX_REPORTED]:
        shown = name.encode("utf-8", "replace").decode()[:_MAX_NAME_CHARACTERS]
        log.warning("pid %d of user %d has a tag of %s that the server did not give it: ignored", pid, uid, shown)
    if forged:
        pids = ", ".join(str(pid) for pid, _, _ in forged[:_MAX_REPORTED])
        message = f"{len(forged)} processes have a tag that the server did not give them and were ignored: pid {pids}"
        context.notices.post("process.tag_ignored", None, message, pids=[pid for pid, _, _ in forged[:_MAX_REPORTED]])


def _by_tag(
    context: SupervisionContext, spec: ProcessSpec, record: Record, tagged: list[TaggedProcess]
) -> tuple[Child, int] | None:
    """The oldest session leader with the user of the configuration and the intended generation, or a later one."""
    uid = os.geteuid() if (configured := user_of(spec)) is None else configured
    known = record.generation if record.status in IDLE or record.pid is not None else record.generation - 1
    for process in tagged:
        is_meant = process.name == record.name and process.uid == uid
        if process.leads_session and is_meant and process.generation > known:
            child = context.children.adopt(process.identity)
            if child is not None:
                return child, process.generation
    return None
