"""Finding again, after we were killed or left, the processes that we had started. Nothing is started twice.

A child is known by its pid, start time and boot, which are in the store; or, where we were killed between its spawn and
that commit, by its mark: the intent to start that generation is in the store before any spawn. Where even the intent
could not be stored (the disk was full), the mark of a later generation tells.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping

from models.processes import ENDED, Status
from models.supervised import Record
from supervisor import strays
from supervisor.child import Child, Identity
from supervisor.engine import Engine
from supervisor.fleet import Fleet
from supervisor.strays import Bearer

log = logging.getLogger("adoption")

_GRACE = 10.0
_IDLE = ENDED | {Status.NOT_STARTED}


async def adopt(fleet: Fleet, engine: Engine, records: Mapping[str, Record]) -> set[int]:
    """Watches what lives again, marks what died meanwhile as `unknown`, and takes up restarts that were due.

    Returns the pids of what belongs to no configured process any more, for `end_leftovers`.
    """
    marked = await asyncio.to_thread(strays.bearers, engine.instance)
    kept: set[tuple[str, int]] = set()
    for process in fleet:
        record = records.get(process.name, Record(process.name))
        found = _by_identity(engine, record) or _by_mark(engine, record, marked)
        if found is not None:
            child, generation = found
            process.adopt(child, record, generation)
            kept.add((process.name, generation))
        elif record.status not in _IDLE:
            process.lost()
    for name in records.keys() - {process.name for process in fleet}:
        engine.journal.forget(name)
    for process in fleet:
        process.resume()
    return {one.identity.pid for one in marked if (one.name, one.generation) not in kept}


def _by_identity(engine: Engine, record: Record) -> tuple[Child, int] | None:
    if record.status in _IDLE or record.pid is None or record.start_ticks is None or record.boot_id is None:
        return None
    child = engine.children.adopt(Identity(record.pid, record.start_ticks, record.boot_id))
    return (child, record.generation) if child else None


def _by_mark(engine: Engine, record: Record, marked: list[Bearer]) -> tuple[Child, int] | None:
    """The oldest leader of a session that bears the mark of the generation that was intended, or of a later one."""
    known = record.generation if record.status in _IDLE or record.pid is not None else record.generation - 1
    for one in marked:
        if one.leads and one.name == record.name and one.generation > known:
            child = engine.children.adopt(one.identity)
            if child is not None:
                return child, one.generation
    return None


async def end_leftovers(pids: set[int]) -> None:
    """Ends what an earlier life of ours started and no configured process answers for."""
    if pids:
        log.warning("left over from an earlier life, to be ended: pid %s", ", ".join(map(str, sorted(pids))))
        await strays.end(pids, _GRACE)
