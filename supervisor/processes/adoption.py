"""Finding again, after we were killed or left, the processes that we had started. Nothing is started twice.

A child is known by its pid, start time and boot, which are in the store; or, where we were killed between its spawn and
that commit, by its mark: that it is to run is in the store before it is started. Where even that could not be stored
(the disk was full), and where it had come back by itself, the mark of a later generation tells.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping

from attrs import frozen

from models.supervision.process import ENDED, ProcessSpec, Status
from models.supervision.record import Record
from supervisor.processes import orphans
from supervisor.processes.child import Child, Identity
from supervisor.processes.context import SupervisionContext
from supervisor.processes.fleet import Fleet
from supervisor.processes.orphans import TaggedProcess
from supervisor.processes.process import Process

log = logging.getLogger("adoption")

_GRACE = 10.0
_IDLE = ENDED | {Status.NOT_STARTED}


@frozen
class Leftovers:
    """What an earlier life of ours left running and the configuration no longer asks for."""

    processes: list[Process]
    pids: set[int]
    """Bearers of our mark that belong to no child that lives."""

    async def end(self) -> None:
        if self.pids:
            log.warning("left over from an earlier life, to be ended: pid %s", ", ".join(map(str, sorted(self.pids))))
        await asyncio.gather(orphans.end(self.pids, _GRACE), *(process.retire() for process in self.processes))


async def adopt(fleet: Fleet, context: SupervisionContext, records: Mapping[str, Record]) -> Leftovers:
    """Watches what lives again, marks what died meanwhile as `unknown`, and takes up restarts that were due."""
    marked = await asyncio.to_thread(orphans.tagged_processes, context.instance)
    removed = [_removed(name, context) for name in records.keys() - {process.name for process in fleet}]
    told = {one.identity: one.spec for one in marked}
    kept: set[tuple[str, int]] = set()
    for process in (*fleet, *removed):
        record = process.record = records.get(process.name, process.record)
        found = _by_identity(context, record) or _by_mark(context, record, marked)
        if found is not None:
            child, generation = found
            process.adopt(child, record, generation)
            kept.add((process.name, generation))
            if process.name in fleet and told.get(child.identity) not in ("", None, process.spec.launched_as):
                log.warning("%s: pid %d was started by an older configuration: restart it", process.name, child.pid)
        elif record.status not in _IDLE:
            process.lost()
    for process in fleet:
        process.resume()
    pids = {one.identity.pid for one in marked if (one.name, one.generation) not in kept}
    return Leftovers(removed, pids)


def _removed(name: str, context: SupervisionContext) -> Process:
    """A process that is configured no more: how it was started is not known, only how it is stopped."""

    async def nothing(_: str) -> None:
        """It is never started again."""

    return Process(ProcessSpec(name, ("",)), context, nothing)


def _by_identity(context: SupervisionContext, record: Record) -> tuple[Child, int] | None:
    if record.status in _IDLE or record.pid is None or record.start_ticks is None or record.boot_id is None:
        return None
    child = context.children.adopt(Identity(record.pid, record.start_ticks, record.boot_id))
    return (child, record.generation) if child else None


def _by_mark(context: SupervisionContext, record: Record, marked: list[TaggedProcess]) -> tuple[Child, int] | None:
    """The oldest leader of a session that bears the mark of the generation that was intended, or of a later one."""
    known = record.generation if record.status in _IDLE or record.pid is not None else record.generation - 1
    for one in marked:
        if one.leads and one.name == record.name and one.generation > known:
            child = context.children.adopt(one.identity)
            if child is not None:
                return child, one.generation
    return None
